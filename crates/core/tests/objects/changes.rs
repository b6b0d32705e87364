//! Objects that change while they are read: the old bytes or `Changed`, never a mixture.

use std::rc::Rc;
use std::sync::Arc;

use tload::{Checkpoint, Error, ErrorKind, LoadOptions, Loader, Result, Tensor};
use tload_testbed::{Fault, FaultyServer, Rule};

use crate::fixtures::{assert_all, even, index, load, options};
use crate::sites::{Site, faulty_at, faulty_web_at, on_sites};

const KEY: &str = "m.safetensors";

struct Bench {
    server: Arc<FaultyServer>,
    site: Site,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        Self::of(faulty_at)
    }

    /// Creates two states of one file, of the same length and with the same header.
    fn of(site: impl Fn(&Arc<FaultyServer>) -> Site) -> Self {
        let server = Arc::new(FaultyServer::start());
        let site = site(&server);
        let (old, new) = (even("t", 1, 4, 1 << 20), even("t", 2, 4, 1 << 20));
        assert_eq!(old.len(), new.len());
        site.put(KEY, &old);
        Self {
            server,
            site,
            old,
            new,
        }
    }

    fn open(&self) -> Checkpoint {
        self.site.checkpoint(KEY).expect("opens")
    }
}

fn expect_changed(checkpoint: &Checkpoint, says: &str) -> Error {
    let error = load_serially(checkpoint).expect_err("the object was replaced");
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
    assert!(error.chain().contains(says), "{}", error.chain());
    let location = error.location().expect("an error of an object");
    assert!(location.ends_with("/models/m.safetensors"), "{location}");
    assert!(
        error.range().is_some() && error.hint().is_some(),
        "{}",
        error.chain()
    );
    error
}

/// Loads with one request at a time, of 256 KiB each.
fn load_serially(checkpoint: &Checkpoint) -> Result<Vec<Tensor>> {
    let serial = options(|it| (it.depth, it.extent_bytes) = (Some(1), Some(256 << 10)));
    load(checkpoint, serial).map(|(tensors, _)| tensors)
}

/// Replaced right before the third read: tensors delivered before stay valid, and no bytes of the
/// new state arrive.
#[test]
fn object_replaced_during_load_is_changed() {
    for (fault, status) in [
        (Fault::ChangeBefore(even("t", 2, 4, 1 << 20)), 412),
        (Fault::ChangeBefore(even("t", 2, 1, 1000)), 412),
        (Fault::RemoveBefore, 404),
    ] {
        let bench = Bench::new();
        let checkpoint = bench.open();
        bench.server.fault(Rule::once(fault).from_byte(1).after(6));
        let serial = options(|it| (it.depth, it.extent_bytes) = (Some(1), Some(256 << 10)));
        let mut stream = Loader::new(checkpoint)
            .options(serial)
            .stream()
            .expect("starts");
        let loaded: Vec<_> = stream.by_ref().collect();
        let error = loaded
            .last()
            .expect("an error")
            .as_ref()
            .expect_err("changed");
        assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
        assert_eq!(error.request().expect("a request").status, Some(status));
        let old = safetensors::SafeTensors::deserialize(&bench.old).expect("a valid file");
        let good = loaded.iter().filter_map(|tensor| tensor.as_ref().ok());
        for tensor in good {
            let wanted = old.tensor(tensor.name()).expect("in the file");
            assert!(tensor.bytes() == wanted.data(), "{}", tensor.name());
        }
        assert_eq!(stream.report().outcome, "changed");
        // Never retried.
        let refused = bench.server.requests();
        assert!(
            refused
                .iter()
                .filter(|request| request.status == Some(status))
                .count()
                == 1
        );
    }
}

/// The server ignores If-Match: the response is compared.
#[test]
fn ignored_if_match_is_detected() {
    let bench = Bench::new();
    let checkpoint = bench.open();
    bench.site.put(KEY, &bench.new);
    bench.server.fault(Rule::always(Fault::IgnoreIfMatch));
    expect_changed(&checkpoint, "its ETag changed from");
    bench.site.put(KEY, &even("t", 2, 4, 1 << 10));
    expect_changed(&checkpoint, "");
    bench.site.put(KEY, &even("t", 2, 5, 1 << 20));
    expect_changed(&checkpoint, "its length changed from");
}

/// A weak tag is no valid condition (RFC 9110), but it is compared.
#[test]
fn weak_etag_is_compared() {
    for site in [faulty_at, faulty_web_at] {
        let bench = Bench::of(site);
        bench.server.fault(Rule::always(Fault::WeakEtag));
        let checkpoint = bench.open();
        assert_all(&load_serially(&checkpoint).expect("loads"), &[&bench.old]);
        let requests = bench.server.requests();
        let conditional = requests
            .iter()
            .any(|request| request.headers.contains_key("if-match"));
        assert!(!conditional, "a weak tag never matches");
        bench.site.put(KEY, &bench.new);
        expect_changed(&checkpoint, "changed while it was read");
    }
}

/// Without a tag, the modification time is compared. It is no condition: a server that keeps
/// fractions of a second, such as `versitygw`, refuses the second that it stated.
#[test]
fn modification_time_replaces_missing_etag() {
    let bench = Bench::of(faulty_web_at);
    bench.server.fault(Rule::always(Fault::NoEtag));
    let checkpoint = bench.open();
    assert_all(&load_serially(&checkpoint).expect("loads"), &[&bench.old]);
    let mut requests = bench.server.requests().into_iter();
    assert!(requests.all(|request| !request.headers.contains_key("if-unmodified-since")));
    bench.site.put(KEY, &bench.new);
    expect_changed(&checkpoint, "changed while it was read");
}

/// A tag that disappears cannot be told from a replaced object.
#[test]
fn disappearing_etag_is_changed() {
    let bench = Bench::of(faulty_web_at);
    let checkpoint = bench.open();
    bench.server.fault(Rule::always(Fault::NoEtag));
    expect_changed(&checkpoint, "its ETag changed from");
}

/// With versions, the old state is still readable.
#[test]
fn versioned_bucket_serves_old_version() {
    let bench = Bench::new();
    bench.server.keep_versions();
    bench.site.put(KEY, &bench.old);
    let checkpoint = bench.open();
    bench.site.put(KEY, &bench.new);
    bench.server.forget_requests();
    assert_all(&load_serially(&checkpoint).expect("loads"), &[&bench.old]);
    for request in bench.server.requests() {
        let version = request.query.iter().any(|(name, _)| name == "versionId");
        assert!(version, "{request:?}");
    }
    assert_all(&load_serially(&bench.open()).expect("loads"), &[&bench.new]);
}

/// Reading versions needs a permission of its own; without it, the tag is used.
#[test]
fn denied_versions_fall_back_to_etag() {
    let bench = Bench::new();
    bench.server.keep_versions();
    bench.site.put(KEY, &bench.old);
    let checkpoint = bench.open();
    bench.server.forget_requests();
    bench
        .server
        .fault(Rule::once(Fault::status(403, "AccessDenied")));
    assert_all(&load_serially(&checkpoint).expect("loads"), &[&bench.old]);
    let requests = bench.server.requests();
    let versions: Vec<_> = requests
        .iter()
        .map(|request| request.query.iter().any(|(name, _)| name == "versionId"))
        .collect();
    assert!(
        versions[0] && !versions[1..].contains(&true),
        "{versions:?}"
    );
    assert!(
        requests
            .iter()
            .all(|request| request.headers.contains_key("if-match"))
    );
    bench.site.put(KEY, &bench.new);
    expect_changed(&checkpoint, "changed");
}

const INDEX: &str = "m/model.safetensors.index.json";

/// Puts two shards and an index of these `tensors`.
fn put_indexed(site: &Site, tensors: &[&str]) {
    let placed = |name: &&str| {
        (
            (*name).to_owned(),
            if name.starts_with('a') {
                "a.safetensors"
            } else {
                "b.safetensors"
            },
        )
    };
    let placed: Vec<_> = tensors.iter().map(placed).collect();
    for prefix in ["a", "b"] {
        site.put(
            &format!("m/{prefix}.safetensors"),
            &even(prefix, 1, 2, 70_000),
        );
    }
    site.put(INDEX, &index(&placed));
}

/// Replaces the index only; the shards stay the same.
fn index_replaced(site: &Rc<Site>) {
    put_indexed(site, &["a0", "b0"]);
    let checkpoint = site.checkpoint("m").expect("opens");
    let (tensors, _) = load(&checkpoint, LoadOptions::default()).expect("loads");
    assert_eq!(tensors.len(), 2);
    site.put(INDEX, &index(&[("a1".to_owned(), "a.safetensors")]));
    let mut stream = Loader::new(checkpoint).stream().expect("starts");
    let error = stream
        .by_ref()
        .find_map(Result::err)
        .expect("the index was replaced");
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
    let location = error.location().expect("an error of the index");
    assert!(location.ends_with(INDEX), "{location}");
    assert_eq!(stream.report().outcome, "changed");
}

on_sites!(
    index_replaced: in_memory, faulty, faulty_web, versitygw, s3s_fs, moto, fake_gcs, azurite, nginx,
);

/// The old version can still be read, but it is no longer the checkpoint's.
#[test]
fn index_replaced_in_versioned_bucket_is_changed() {
    let server = Arc::new(FaultyServer::start());
    server.keep_versions();
    index_replaced(&Rc::new(faulty_at(&server)));
}

/// Overwrites an opened object with more bytes, with fewer and with as many, on real servers.
fn overwritten(site: &Rc<Site>) {
    let (old, new) = (even("t", 1, 3, 200_000), even("t", 2, 3, 200_000));
    let mut replacements = vec![even("t", 2, 3, 300_000), even("t", 2, 2, 1000)];
    // Tags of web servers consist of length and second, which may be equal.
    if site.lists() {
        replacements.push(new);
    }
    for (at, replacement) in replacements.iter().enumerate() {
        let key = format!("{at}.safetensors");
        site.put(&key, &old);
        let checkpoint = site.checkpoint(&key).expect("opens");
        assert_all(
            &load(&checkpoint, LoadOptions::default()).expect("loads").0,
            &[&old],
        );
        site.put(&key, replacement);
        let error = load(&checkpoint, LoadOptions::default()).expect_err("the object was replaced");
        assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
        assert!(error.hint().is_some(), "{}", error.chain());
        let again = site.checkpoint(&key).expect("opens");
        assert_all(
            &load(&again, LoadOptions::default()).expect("loads").0,
            &[replacement],
        );
    }
}

on_sites!(
    overwritten: in_memory, faulty, versitygw, s3s_fs, moto, fake_gcs, azurite, nginx, nginx_redirect,
);
