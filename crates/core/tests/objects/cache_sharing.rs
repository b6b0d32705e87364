//! A cache's directory that several processes fill and shrink at the same time, that clocks
//! disagree about, or that copies are made from without requests.

use std::collections::BTreeSet;
use std::fs::FileTimes;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use tload::cache::finish_caching;
use tload::cache::{CacheDirectory, Pruning};
use tload::copy::{CopyJob, CopyReport};
use tload::internal::metrics_text;
use tload::{Checkpoint, Dtype, ErrorKind, Indices, Loader, Location, Result, Slice};
use tload_testbed::{Fault, Operation, Rule};
use tload_testing::fixtures::{FileBuilder, Rng};

use crate::cache_children::{child, key_of, location_of, of_child};
use crate::caching::{Bench, KEY, PATIENCE, checking, contents, load_cached, of_cache};
use crate::fixtures::{assert_all, even, folder, in_file_order, load, read};
use crate::listener::Listener;
use crate::sites::{Site, options};

/// Objects of 2 MiB that children load, in turn. The limit has room for some of them, and for less
/// than the children have open.
const OBJECTS: usize = 12;
const CHILDREN: u64 = 4;
const ROUNDS: u32 = 15;
const LIMIT: u64 = 10 << 20;

fn object(at: usize) -> Vec<u8> {
    even("t", at as u64, 2, 1 << 20)
}

fn start_child(bench: &Bench, seed: u64) -> Child {
    let mut child = child(bench, "cache_sharing::child_loads_in_turn", seed);
    child.stdout(Stdio::null()).spawn().expect("starts")
}

/// Loads in a child process of the test below; does nothing otherwise. Each object stays open
/// while the next one is loaded.
#[test]
fn child_loads_in_turn() {
    let Some((options, folder, mut rng)) = of_child(LIMIT) else {
        return;
    };
    let cache = |path: &Path| {
        let entries = CacheDirectory::open(path).expect("a cache").entries();
        move |location: &Location| {
            let shown = location.to_string();
            let mut entries = entries.iter();
            let entry = entries.find(|entry| entry.location.as_deref() == Some(&*shown));
            let path = entry.expect("is open").path.clone();
            (inode(&path), path)
        }
    };
    let mut held: Option<(usize, Checkpoint, (u64, PathBuf))> = None;
    for _ in 0..ROUNDS {
        let at = rng.index(OBJECTS);
        let location = location_of(at);
        let checkpoint = Checkpoint::open_with(&location, &options).expect("opens");
        let (tensors, report) = load(&checkpoint, in_file_order()).expect("loads");
        assert!(finish_caching(PATIENCE));
        assert_all(&tensors, &[&object(at)]);
        assert_eq!(of_cache(&report).damaged_bytes, 0, "{report}");
        let place = cache(Path::new(&folder))(&location);
        if let Some((at, checkpoint, (inode_then, path))) = held.take() {
            // Other processes have evicted much since, and nothing that is open.
            assert_eq!(inode(&path), inode_then, "{}", path.display());
            let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
            assert_all(&tensors, &[&object(at)]);
        }
        held = Some((at, checkpoint, place));
    }
}

fn inode(path: &Path) -> u64 {
    path.symlink_metadata().map_or(0, |there| there.ino())
}

/// Returns the bytes on disk of all entries.
fn disk_bytes(folder: &Path) -> u64 {
    let cache = CacheDirectory::open(folder);
    let entries = cache.map_or_else(|_| Vec::new(), |cache| cache.entries());
    entries.iter().map(|entry| entry.disk_bytes).sum()
}

#[test]
fn processes_that_evict_under_load_keep_the_limit_and_what_is_open() {
    let bench = Bench::new();
    for at in 0..OBJECTS {
        bench.site.put(&key_of(at), &object(at));
    }
    let mut children: Vec<_> = (0..CHILDREN)
        .map(|seed| start_child(&bench, seed))
        .collect();
    // Each process may exceed it by a sixteenth; stamps and descriptions are measured later.
    let most = LIMIT + CHILDREN * LIMIT / 16 + (1 << 20);
    let mut above = 0;
    while children
        .iter_mut()
        .any(|child| child.try_wait().expect("a child").is_none())
    {
        let taken = disk_bytes(bench.folder.path());
        // Entries move while they are counted: one sum says nothing.
        above = if taken > most { above + 1 } else { 0 };
        assert!(above < 5, "{taken} bytes, at most {most} are allowed");
    }
    for mut child in children {
        assert!(child.wait().expect("a child").success());
    }
    let cache = CacheDirectory::open(bench.folder.path()).expect("a cache");
    let left = cache.entries();
    let left = left.iter().filter(|entry| entry.is_complete()).count();
    assert!((1..OBJECTS).contains(&left), "{left} objects are left");
    // The cache was of use: most objects are loaded twice.
    let loads = CHILDREN * u64::from(2 * ROUNDS - 1);
    let loaded = loads * object(0).len() as u64;
    assert!(bench.server.counts().body_bytes < loaded);
    for at in 0..OBJECTS {
        let (tensors, report) = load_cached(&bench.site, &key_of(at));
        assert_all(&tensors, &[&object(at)]);
        assert_eq!(of_cache(&report).damaged_bytes, 0, "{report}");
    }
}

/// Sets all times of all files in a directory.
fn set_times(folder: &Path, time: SystemTime) {
    for entry in std::fs::read_dir(folder).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            set_times(&path, time);
        } else {
            let times = FileTimes::new().set_accessed(time).set_modified(time);
            let file = std::fs::File::options().append(true).open(path);
            let set = file.and_then(|file| file.set_times(times));
            set.expect("its owner may set them");
        }
    }
}

/// Seconds since 1970, of a clock that was wrong or is: a past and a future.
const WRONG: [u64; 3] = [0, 1, 4_102_444_800];

#[test]
fn times_of_wrong_clocks_change_no_byte() {
    let bench = Bench::new();
    let (old, new) = (even("t", 1, 4, 1 << 20), even("t", 2, 4, 1 << 20));
    bench.site.put("m/one.safetensors", &old);
    load_cached(&bench.site, "m");
    for seconds in WRONG {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for check in ["always", "never", "offline"] {
            set_times(bench.folder.path(), time);
            let (tensors, report) = load_cached(&checking(&bench, check), "m");
            assert_all(&tensors, &[&old]);
            assert_eq!(report.requests, 0, "{check} after {seconds} s: {report}");
        }
        // Damage is found, and a replaced object is another one.
        set_times(bench.folder.path(), time);
        let path = &contents(bench.folder.path())[0];
        let cut = std::fs::File::options().write(true).open(path);
        cut.and_then(|file| file.set_len(2 << 20)).expect("cuts");
        set_times(bench.folder.path(), time);
        let (tensors, report) = load_cached(&bench.site, "m");
        assert_all(&tensors, &[&old]);
        assert!(report.requests > 0, "{report}");
        set_times(bench.folder.path(), time);
        bench.site.put("m/one.safetensors", &new);
        assert_all(&load_cached(&bench.site, "m").0, &[&new]);
        bench.site.put("m/one.safetensors", &old);
        assert_all(&load_cached(&bench.site, "m").0, &[&old]);
        std::fs::remove_dir_all(bench.folder.path().join("v1")).expect("removes");
        load_cached(&bench.site, "m");
    }
}

/// An object that was last used in the future would outlive all others.
#[test]
fn objects_used_in_the_future_are_evicted_in_their_turn() {
    let mut bench = Bench::new();
    bench.site.options.set("cache_limit", "20MiB").expect("set");
    let all: Vec<_> = (0..5).map(|at| even("t", at, 4, 2 << 20)).collect();
    for (at, file) in (0..).zip(&all) {
        bench.site.put(&key_of(at), file);
        let (tensors, report) = load_cached(&bench.site, &key_of(at));
        assert_all(&tensors, &[file]);
        assert_eq!(of_cache(&report).reason, None, "{report}");
        if at == 0 {
            let future = SystemTime::now() + Duration::from_secs(10 * 365 * 24 * 3600);
            set_times(bench.folder.path(), future);
        }
    }
    // Two entries made way; other tests of this process evict too.
    let evicted = "tload_cache_bytes_total{event=\"evicted\"} ";
    let text = metrics_text();
    let evicted = text.lines().find_map(|line| line.strip_prefix(evicted));
    assert!(evicted.expect("a line").parse::<u64>().expect("a number") >= 16 << 20);
    let cache = CacheDirectory::open(bench.folder.path()).expect("a cache");
    let left = cache.entries();
    let is_left = |at: usize| {
        let location = bench.site.location(&key_of(at));
        left.iter()
            .any(|it| it.is_within(&location).expect("a URL"))
    };
    assert!(is_left(4) && !is_left(0), "{left:?}");
    // `prune` counts their age from now on too.
    let future = SystemTime::now() + Duration::from_secs(1000);
    set_times(bench.folder.path(), future);
    let mut rules = Pruning::default();
    rules.unused_for = Some(Duration::from_nanos(1));
    let removed = [(); 2].map(|()| cache.prune(&rules).expect("prunes").removed.len());
    assert_eq!(removed.iter().sum::<usize>(), left.len());
    let answers = std::fs::read_dir(bench.folder.path().join("v1/answers"));
    assert_eq!(answers.expect("a directory").count(), 0);
}

/// Server of a file without an entity tag, by the server's own clock.
struct Dated {
    server: Listener,
    modified: Arc<AtomicI64>,
}

/// Time of the server, seconds since 1970: long ago.
const DATE: &str = "Sun, 09 Sep 2001 01:46:40 GMT";
const DATE_SECONDS: i64 = 1_000_000_000;

impl Dated {
    /// Starts it. The file was modified at the absolute value of `modified`, whose sign says which
    /// of two files it is.
    fn start(has_date: bool) -> Self {
        let date = if has_date {
            format!("Date: {DATE}\r\n")
        } else {
            String::new()
        };
        let modified = Arc::new(AtomicI64::new(0));
        let now = Arc::clone(&modified);
        let server = Listener::start(move |request| {
            let modified = now.load(Ordering::SeqCst);
            let file = dated_file(modified > 0);
            let range = request.lines().find_map(|line| {
                let line = line.to_ascii_lowercase();
                let (start, end) = line.strip_prefix("range: bytes=")?.split_once('-')?;
                Some((start.parse().ok()?, end.parse::<usize>().ok()?))
            });
            let (start, end): (usize, usize) = range.unwrap_or((0, file.len() - 1));
            let end = end.min(file.len() - 1);
            let shown = dated(modified.abs());
            let body = String::from_utf8(file[start..=end].to_vec()).expect("ASCII");
            format!(
                "HTTP/1.1 206 Partial Content\r\n{date}Last-Modified: {shown}\r\n\
                 Content-Range: bytes {start}-{end}/{}\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{body}",
                file.len(),
                body.len()
            )
        });
        Self { server, modified }
    }
}

fn dated_file(is_first: bool) -> Vec<u8> {
    let byte = if is_first { b'a' } else { b'b' };
    let contents = vec![byte; 2_000_000];
    let file = FileBuilder::new().tensor("t", Dtype::U8, &[contents.len()], &contents);
    file.build()
}

/// Formats a time on the day of [`DATE`].
fn dated(seconds: i64) -> String {
    // 01:46:40 is 6400 seconds after midnight.
    let of_day = seconds - (DATE_SECONDS - 6400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("Sun, 09 Sep 2001 {hour:02}:{minute:02}:{second:02} GMT")
}

/// Without an entity tag, the clock of the server tells whether the last change tells states apart.
/// This machine's says that all of them are decades old.
#[test]
fn ages_of_objects_are_by_the_clock_of_their_server() {
    for (has_date, age, is_cached) in [
        (true, 3600, true),
        (true, 59, false),
        (true, 0, false),
        (false, 3600, false),
    ] {
        assert_eq!(dated(DATE_SECONDS), DATE);
        let dated = Dated::start(has_date);
        let folder = folder();
        let directory = folder.path().to_str().expect("UTF-8");
        let options = options(&[("cache_dir", directory), ("cache_wait", "true")]);
        let url = format!("{}/{KEY}", dated.server.url());
        let location = Location::parse(&url).expect("a URL");
        let load_all = || {
            let checkpoint = Checkpoint::open_with(&location, &options).expect("opens");
            let loaded = load(&checkpoint, in_file_order()).expect("loads");
            assert!(finish_caching(PATIENCE));
            loaded
        };
        let modified = DATE_SECONDS - age;
        dated.modified.store(modified, Ordering::SeqCst);
        for round in 0..2 {
            let (tensors, report) = load_all();
            assert_all(&tensors, &[&dated_file(true)]);
            let from_cache = report.requests == 0;
            assert_eq!(from_cache, is_cached && round == 1, "{age} s: {report}");
            let reason = of_cache(&report).reason.is_some();
            assert_eq!(reason, !is_cached, "{age} s: {report}");
        }
        if !is_cached {
            // Replaced within the second, or the minute.
            dated.modified.store(-modified, Ordering::SeqCst);
            assert_all(&load_all().0, &[&dated_file(false)]);
        }
    }
}

/// Each of them waits for what the other one requests.
#[test]
fn loads_of_one_opening_request_each_byte_once() {
    let bench = Bench::new();
    let file = even("t", 1, 8, 4 << 20);
    bench.site.put(KEY, &file);
    let checkpoint = bench.site.checkpoint(KEY).expect("opens");
    // Neither ends before the other one has begun.
    let slow = Fault::Delay(Duration::from_millis(300));
    bench.server.fault(Rule::always(slow).on(Operation::Get));
    let before = bench.requested_bytes();
    std::thread::scope(|scope| {
        let loads = [(); 2].map(|()| scope.spawn(|| load(&checkpoint, in_file_order())));
        for load in loads {
            let (tensors, _) = load.join().expect("ends").expect("loads");
            assert_all(&tensors, &[&file]);
        }
    });
    let (requested, len) = (bench.requested_bytes() - before, file.len() as u64);
    // Neighbouring requests share a tile.
    assert!(requested <= len + len / 16, "{requested} bytes of {len}");
    assert!(finish_caching(PATIENCE));
    let (tensors, report) = load(&checkpoint, in_file_order()).expect("loads");
    assert_all(&tensors, &[&file]);
    assert_eq!(report.requests, 0, "{report}");
}

/// Length of a tile, bytes.
const TILE: u64 = 64 << 10;

/// Tiles of a slice that an earlier one left are not requested again.
#[test]
fn slices_request_the_tiles_that_are_missing() {
    let bench = Bench::new();
    let (rows, row) = (256, 1 << 16);
    let contents = Rng::new(1).bytes(rows * row);
    let file = FileBuilder::new().tensor("t", Dtype::U8, &[rows, row], &contents);
    let file = file.build();
    let header = file.len() - contents.len();
    bench.site.put(KEY, &file);
    let mut present = BTreeSet::new();
    for (first, last) in [(100, 116), (108, 132), (90, 140), (108, 120)] {
        let checkpoint = bench.site.checkpoint(KEY).expect("opens");
        let before = bench.requested_bytes();
        let slice = Slice::new([Indices::from(first..last)]);
        let loader = Loader::new(checkpoint).slices([("t".to_owned(), slice)]);
        let mut stream = loader.stream().expect("starts");
        let tensors: Result<Vec<_>> = stream.by_ref().collect();
        let tensors = tensors.expect("loads");
        assert!(tensors[0].bytes() == &contents[first * row..last * row]);
        drop(stream);
        assert!(finish_caching(PATIENCE));
        let bytes = [first, last].map(|at| (header + at * row) as u64);
        let wanted: BTreeSet<_> = (bytes[0] / TILE..bytes[1].div_ceil(TILE)).collect();
        let missing = wanted.difference(&present).count() as u64;
        let requested = bench.requested_bytes() - before;
        assert_eq!(requested, missing * TILE, "rows {first} to {last}");
        present.extend(wanted);
    }
}

fn copy(site: &Site, key: &str, target: &Path) -> Result<CopyReport> {
    let copy = CopyJob::new(site.location(key), target);
    copy.store(site.options.clone()).run()
}

#[test]
fn copies_without_requests_list_what_the_cache_knows() {
    let bench = Bench::new();
    let files = [even("a", 1, 2, 200_000), even("b", 2, 2, 200_000)];
    let all: [(&str, &[u8]); 4] = [
        ("m/one.safetensors", &files[0]),
        ("m/two.safetensors", &files[1]),
        ("m/config.json", b"{}"),
        ("m/more/tokenizer.json", b"[]"),
    ];
    for (key, bytes) in all {
        bench.site.put(key, bytes);
    }
    let target = folder();
    let [never, offline] = ["never", "offline"].map(|check| checking(&bench, check));
    // Nothing is known: an error, and at once.
    let error = copy(&offline, "m", &target.path().join("none")).expect_err("unknown");
    assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
    assert!(error.to_string().contains("offline"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("cache_dir")));
    assert_eq!(bench.server.requests().len(), 0);
    // A load lists the weights alone, and a copy everything below.
    load_cached(&bench.site, "m");
    let before = bench.server.requests().len();
    let error = copy(&offline, "m", &target.path().join("some")).expect_err("not all");
    assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
    assert_eq!(bench.server.requests().len(), before);
    copy(&bench.site, "m", &target.path().join("first")).expect("copies");
    assert!(finish_caching(PATIENCE));
    let before = bench.server.requests().len();
    for (name, site) in [("never", &never), ("offline", &offline)] {
        let copied = target.path().join(name);
        copy(site, "m", &copied).expect("copies");
        for (key, bytes) in all {
            let key = key.strip_prefix("m/").expect("below");
            assert!(read(&copied.join(key)) == bytes, "{name}: {key}");
        }
    }
    assert_eq!(bench.server.requests().len(), before);
    // The list of a copy serves loads, and the location may end in a slash.
    let loaded = load(&offline.checkpoint("m/").expect("opens"), in_file_order());
    assert_all(&loaded.expect("loads").0, &[&files[0], &files[1]]);
    assert_eq!(bench.server.requests().len(), before);
}

/// Adapters come and go through a cache that has room for few of them.
#[test]
fn thousand_adapters_pass_through_a_small_cache() {
    const ADAPTERS: u64 = 1000;
    const LIMIT: u64 = 8 << 20;
    /// The adapters at the end must be in the cache.
    const LAST: u64 = 20;
    let mut bench = Bench::new();
    let limit = LIMIT.to_string();
    bench
        .site
        .options
        .set("cache_limit", &limit)
        .expect("an option");
    let adapter = |seed| even("lora", seed, 4, 10_000);
    let key = |seed: u64| format!("loras/{seed}/adapter_model.safetensors");
    for seed in 0..ADAPTERS {
        let file = adapter(seed);
        bench.site.put(&key(seed), &file);
        let checkpoint = bench.site.checkpoint(&key(seed)).expect("opens");
        let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
        assert_all(&tensors, &[&file]);
        // A load leaves bytes out that find no free buffer: those are looked for below.
        if seed + LAST + 1 >= ADAPTERS {
            drop(checkpoint);
            assert!(finish_caching(PATIENCE));
        }
    }
    let cache = CacheDirectory::open(bench.folder.path()).expect("a cache");
    let entries = cache.entries();
    let taken: u64 = entries.iter().map(|entry| entry.disk_bytes).sum();
    // Each opening measures the space that is left for itself.
    assert!(taken <= LIMIT + LIMIT / 8, "{taken} bytes");
    assert!(entries.len() > 20, "{} adapters", entries.len());
    let offline = checking(&bench, "offline");
    for seed in ADAPTERS - LAST..ADAPTERS {
        let (tensors, report) = load_cached(&offline, &key(seed));
        assert_all(&tensors, &[&adapter(seed)]);
        assert_eq!(report.requests, 0, "{report}");
    }
}
