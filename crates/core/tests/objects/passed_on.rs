//! Objects that a server passes on to its clients, through a cache or from it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tload::cache::CacheDirectory;
use tload::internal::storage::object::ObjectSite;
use tload::{ErrorKind, Location};
use tload_testbed::{Fault, FaultyServer, Rule};

use crate::caching::{Bench, KEY, load_cached};
use crate::fixtures::{even, read};
use crate::hubs::{Model, hub, store};
use crate::sites::faulty_at;

const PATIENCE: Duration = Duration::from_secs(60);

/// Time for which a server remembers an object.
const FRESH: Duration = Duration::from_secs(1);

/// Client that takes nothing more after the first bytes, until it is told to go on.
struct Stopped {
    first: Option<mpsc::Sender<()>>,
    go_on: mpsc::Receiver<()>,
    taken: Vec<u8>,
}

impl Write for Stopped {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Some(first) = self.first.take() {
            first.send(()).expect("the test waits");
            self.go_on.recv().expect("the test goes on");
        }
        self.taken.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A server passes an object on to several clients, one of which stands still. It keeps the others
/// from nothing, and every byte is requested once.
#[test]
fn stopped_client_holds_nothing_of_the_cache() {
    let bench = Bench::new();
    let file = even("t", 1, 7, 5 << 20);
    bench.site.put(KEY, &file);
    let objects = [bench.site.object(KEY), bench.site.object(KEY)];
    let whole = 0..file.len() as u64;
    bench.server.forget_requests();
    std::thread::scope(|scope| {
        let ((first, began), (going, go_on)) = (mpsc::channel(), mpsc::channel());
        let [stopped, other] = &objects;
        let range = whole.clone();
        let slow = scope.spawn(move || {
            let mut client = Stopped {
                first: Some(first),
                go_on,
                taken: Vec::new(),
            };
            let copied = stopped.copy_to(range, &mut client);
            copied.map(|()| client.taken)
        });
        began.recv().expect("the first client gets bytes");
        let mut taken = Vec::new();
        other.copy_to(whole.clone(), &mut taken).expect("copies");
        assert!(taken == file, "the bytes of the other client");
        going.send(()).expect("the client waits");
        let taken = slow.join().expect("no panic").expect("copies");
        assert!(taken == file, "the bytes of the slow client");
    });
    assert_eq!(bench.requested_bytes(), file.len() as u64);
}

#[test]
fn program_with_an_async_runtime_copies_objects() {
    let bench = Bench::new();
    let file = even("t", 1, 2, 1 << 20);
    bench.site.put(KEY, &file);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().expect("a runtime");
    runtime.block_on(async {
        let mut taken = Vec::new();
        let object = bench.site.object(KEY);
        let copied = object.copy_to(0..file.len() as u64, &mut taken);
        copied.expect("copies");
        assert!(taken == file);
    });
}

/// A server opens the stores again and again: a branch of a hub does not stay at its first commit.
#[test]
fn moved_branch_is_noticed() {
    let (hub, model) = hub();
    let root = Location::parse(&format!("hf://{}", crate::hubs::MODEL)).expect("a URL");
    let site = ObjectSite::below(&root, &store(&hub, &[])).expect("starts");
    let (name, bytes) = model.files()[0];
    let names: Vec<&str> = name.split('/').collect();
    let read = || {
        let object = site.open(&names).expect("opens");
        let mut taken = Vec::new();
        let len = object.identity().len;
        object.copy_to(0..len, &mut taken).expect("copies");
        taken
    };
    assert!(read() == bytes);
    let other = Model::new(7);
    hub.commit(crate::hubs::MODEL, "main", &other.files());
    let begun = Instant::now();
    while read() != other.files()[0].1 {
        assert!(begun.elapsed() < PATIENCE, "still the old commit");
    }
}

#[test]
fn object_that_is_not_in_the_cache_is_not_found() {
    let bench = Bench::new();
    bench.site.put(KEY, &even("t", 1, 2, 1 << 20));
    bench
        .site
        .put("other.safetensors", &even("t", 2, 2, 1 << 20));
    load_cached(&bench.site, KEY);
    let site = ObjectSite::cached(&bench.site.options).expect("starts");
    let bucket = bench.site.location("").to_string();
    let bucket = bucket.trim_start_matches("s3://").trim_end_matches('/');
    site.open(&["s3", bucket, KEY]).expect("is in the cache");
    // The store has it, but is not asked.
    let error = site.open(&["s3", bucket, "other.safetensors"]);
    assert_eq!(error.expect_err("is not").kind(), ErrorKind::NotFound);
}

#[test]
fn list_of_a_cache_has_what_openings_trust() {
    let bench = Bench::new();
    bench.site.put(KEY, &even("t", 1, 2, 1 << 20));
    load_cached(&bench.site, KEY);
    let version = bench.folder.path().join("v1");
    let cache = CacheDirectory::open(bench.folder.path()).expect("a cache");
    let entry = cache.entries().pop().expect("an object");
    let description = entry.path.with_file_name("entry.json");
    let bucket = bench.site.location("").to_string();
    let bucket = bucket.trim_start_matches("s3://").trim_end_matches('/');
    let list = |shared: &str| {
        let options = bench.site.options.clone().with("cache_shared", shared);
        let site = ObjectSite::cached(&options.expect("an option")).expect("starts");
        let listed = site.list(&["s3", bucket]).map(|(_, files)| files);
        listed.map_err(|error| error.kind())
    };
    let set = |path: &Path, mode: u32| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(path, mode).expect("is ours");
    };
    let is_listed = Ok(vec![KEY.to_owned()]);
    assert_eq!(list("false"), is_listed);
    set(&description, 0o622);
    assert_eq!(list("false"), Err(ErrorKind::NotFound));
    assert_eq!(list("true"), is_listed);
    set(&description, 0o600);
    set(&version, 0o770);
    assert_eq!(list("false"), Err(ErrorKind::PermissionDenied));
    assert_eq!(list("true"), is_listed);
    set(&version, 0o700);
    // Longer than the description of any object.
    let mut text = vec![b' '; 64 << 10];
    text.extend(read(&description));
    fs::write(&description, text).expect("is ours");
    assert_eq!(list("false"), Err(ErrorKind::NotFound));
}

/// Reading versions needs a permission of its own. Its absence is noticed once, not by every
/// client.
#[test]
fn denied_version_is_not_requested_again_for_the_next_client() {
    let server = Arc::new(FaultyServer::start());
    server.keep_versions();
    let site = faulty_at(&server);
    site.put(KEY, &even("t", 1, 2, 1 << 20));
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "each round takes a second");
        server.clear_faults();
        let objects = ObjectSite::below(&site.location(""), &site.options).expect("starts");
        let opened = Instant::now();
        // Returns the number of requests for a version.
        let copy = || {
            let object = objects.open(&[KEY]).ok()?;
            server.forget_requests();
            object.copy_to(0..1 << 20, &mut std::io::sink()).ok()?;
            let requests = server.requests();
            let queries = requests.iter().flat_map(|request| &request.query);
            Some(queries.filter(|(name, _)| name == "versionId").count())
        };
        let is_remembered = objects.open(&[KEY]).is_ok();
        server.fault(Rule::once(Fault::status(403, "AccessDenied")));
        let counts = (is_remembered, copy(), copy());
        if opened.elapsed() < FRESH {
            assert_eq!(counts, (true, Some(1), Some(0)));
            return;
        }
    }
}
