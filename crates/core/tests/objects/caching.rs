//! The cache of objects: what a load received is read from the disk next time, verified, by any
//! process; and nothing that happens to the cache's files fails a load or changes a byte.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tload::cache::finish_caching;
use tload::cache::{CacheDirectory, CacheEntry, Pruning};
use tload::internal::probe;
use tload::internal::storage::ObjectSource;
use tload::report::{CacheReport, EngineReport};
use tload::{
    Checkpoint, EngineChoice, Error, ErrorKind, Loader, Location, Report, Result, Selection,
    StoreOptions, Tensor,
};
use tload_testbed::{Fault, FaultyServer, Operation, Rule};
use tload_testing::fixtures::Rng;

use crate::alone::is_alone;
use crate::fixtures::{assert_all, assert_same, even, folder, in_file_order, load, mixed, read};
#[cfg(target_os = "linux")]
use crate::seccomp::refuse;
use crate::sites::{Site, faulty_at, faulty_web_at, on_sites, s3_options};

pub(crate) const KEY: &str = "m.safetensors";
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Gives a site a cache that leaves nothing out: tests that run at the same time share its buffers.
pub(crate) fn cached_in(site: &mut Site, folder: &Path) {
    let folder = folder.to_str().expect("UTF-8");
    for (key, value) in [("cache_dir", folder), ("cache_wait", "true")] {
        site.options.set(key, value).expect("an option");
    }
}

/// Loads everything, and waits until the cache has it.
pub(crate) fn load_cached(site: &Site, key: &str) -> (Vec<Tensor>, Report) {
    let checkpoint = site.checkpoint(key).expect("opens");
    let loaded = load(&checkpoint, in_file_order()).expect("loads");
    drop(checkpoint);
    assert!(finish_caching(PATIENCE));
    loaded
}

pub(crate) fn of_cache(report: &Report) -> &CacheReport {
    report.cache.as_ref().expect("a load with a cache")
}

/// Returns the files of a cache with this name.
pub(crate) fn files(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, name));
        } else if entry.file_name() == name {
            found.push(path);
        }
    }
    found.sort();
    found
}

pub(crate) fn contents(folder: &Path) -> Vec<PathBuf> {
    files(folder, "contents.safetensors")
}

on_sites!(second_load_sends_no_request:
    versitygw, versitygw_tls, s3s_fs, moto, fake_gcs, azurite, nginx, nginx_redirect, registry, faulty, sliced);
fn second_load_sends_no_request(site: &Rc<Site>) {
    let folder = folder();
    let files = [mixed("a", 1, 24, 2 << 20), even("b", 2, 3, 3_000_001)];
    let names = ["m/one.safetensors", "m/two.safetensors"];
    let mut options = site.options.clone();
    let directory = folder.path().to_str().expect("UTF-8");
    options.set("cache_dir", directory).expect("an option");
    options.set("cache_wait", "true").expect("an option");
    for (name, file) in names.iter().zip(&files) {
        site.put(name, file);
    }
    let locations = names.map(|name| site.location(name));
    let load_all = |options: &StoreOptions| {
        let checkpoint = Checkpoint::open_all_with(&locations, options).expect("opens");
        let loaded = load(&checkpoint, in_file_order()).expect("loads");
        assert!(finish_caching(PATIENCE));
        loaded
    };
    let (first, report) = load_all(&options);
    let files: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
    assert_all(&first, &files);
    assert!(report.requests > 0, "{report}");
    assert_eq!(of_cache(&report).reason, None);
    let (second, report) = load_all(&options);
    assert_same(&second, &first);
    assert_eq!((report.requests, report.remote_bytes), (0, 0), "{report}");
    assert_eq!(report.read_bytes, report.cached_bytes);
    assert!(is_read_like_files(&report), "{report}");
    assert_eq!(of_cache(&report).written_bytes, 0);
    // Complete files are plain ones.
    let mut kept: Vec<_> = contents(folder.path()).iter().map(|it| read(it)).collect();
    kept.sort();
    let mut wanted: Vec<_> = files.iter().map(|file| file.to_vec()).collect();
    wanted.sort();
    assert!(kept == wanted, "the files in the cache");
    // Nothing has to be asked.
    options.set("cache_check", "offline").expect("an option");
    assert_same(&load_all(&options).0, &first);
}

/// A server and a site with a cache.
pub(crate) struct Bench {
    pub(crate) server: Arc<FaultyServer>,
    pub(crate) site: Site,
    pub(crate) folder: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let server = Arc::new(FaultyServer::start());
        let mut site = faulty_at(&server);
        let folder = folder();
        cached_in(&mut site, folder.path());
        Self {
            server,
            site,
            folder,
        }
    }

    /// Returns one whose cache is on a disk of its own; `None` without the right to mount any.
    #[cfg(target_os = "linux")]
    fn on_own_disk() -> Option<(Self, OwnDisk)> {
        let mut bench = Self::new();
        let disk = OwnDisk::mount(bench.folder.path())?;
        cached_in(&mut bench.site, &disk.cache());
        Some((bench, disk))
    }

    /// Returns how many bytes were requested.
    pub(crate) fn requested_bytes(&self) -> u64 {
        let requests = self.server.requests();
        let ranges = requests.iter().filter_map(|it| it.range.clone());
        ranges.map(|range| range.end - range.start).sum()
    }

    pub(crate) fn gets(&self) -> usize {
        let requests = self.server.requests();
        let gets = requests.iter().filter(|it| it.operation == Operation::Get);
        gets.count()
    }
}

#[test]
fn replaced_object_is_loaded_anew() {
    let bench = Bench::new();
    let (old, new) = (even("t", 1, 4, 1 << 20), even("t", 2, 4, 1 << 20));
    bench.site.put(KEY, &old);
    assert_all(&load_cached(&bench.site, KEY).0, &[&old]);
    bench.site.put(KEY, &new);
    let (tensors, report) = load_cached(&bench.site, KEY);
    assert_all(&tensors, &[&new]);
    assert!(report.requests > 0, "{report}");
    let (tensors, report) = load_cached(&bench.site, KEY);
    assert_all(&tensors, &[&new]);
    assert_eq!(report.requests, 0, "{report}");
}

/// An opening asks whether the object has changed, and takes the header from the cache.
#[test]
fn bytes_of_unchanged_object_are_not_sent_again() {
    // Headers of one tile, of several tiles, and longer than the first request.
    for tensors in [4, 2_000, 8_000] {
        let bench = Bench::new();
        let file = even("t", 1, tensors, 64);
        bench.site.put(KEY, &file);
        bench
            .server
            .state_checksums(&format!("models/{KEY}"), &[(REPR_DIGEST.0, REPR_DIGEST.1)]);
        assert_all(&load_cached(&bench.site, KEY).0, &[&file]);
        let (gets, sent) = (bench.gets(), bench.server.counts().body_bytes);
        let (tensors, report) = load_cached(&bench.site, KEY);
        assert_all(&tensors, &[&file]);
        assert_eq!(report.requests, 0, "{report}");
        assert_eq!(bench.gets(), gets + 1, "one question");
        assert_eq!(bench.server.counts().body_bytes, sent, "and no bytes");
        // The server's statements about the object are still known.
        let location = bench.site.location(KEY);
        let object = ObjectSource::at(&location, &bench.site.options).expect("opens");
        assert_eq!(bench.server.counts().body_bytes, sent);
        let stated = object.stated_sha256().expect("was stated");
        assert!(stated.starts_with("e3b0c442"), "{stated}");
        // A damaged header is requested.
        let damaged = File::options()
            .write(true)
            .open(&contents(bench.folder.path())[0]);
        let damaged = damaged.expect("a file of the cache");
        damaged.write_all_at(&[0xFF; 100], 0).expect("writable");
        assert_all(&load_cached(&bench.site, KEY).0, &[&file]);
        assert!(bench.server.counts().body_bytes > sent);
    }
}

/// Only status 304 says that an object is the one in the cache. A server that refuses the range
/// because the object was replaced says the opposite.
#[test]
fn refused_range_does_not_prove_that_the_cache_is_right() {
    let bench = Bench::new();
    bench.site.put(KEY, &even("t", 1, 4, 64));
    load_cached(&bench.site, KEY);
    bench.site.put(KEY, &even("t", 2, 4, 64));
    let refuses = Rule::always(Fault::status(416, "InvalidRange")).on(Operation::Get);
    bench.server.fault(refuses);
    let error = bench
        .site
        .checkpoint(KEY)
        .expect_err("the object is another one");
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
}

/// Field with the SHA-256 of an empty file: nothing here verifies it.
const REPR_DIGEST: (&str, &str) = (
    "Repr-Digest",
    "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:",
);

/// Returns a site like the bench's, with this value of `cache_check`.
pub(crate) fn checking(bench: &Bench, check: &str) -> Site {
    let mut site = faulty_at(&bench.server);
    cached_in(&mut site, bench.folder.path());
    site.options.set("cache_check", check).expect("an option");
    site
}

#[test]
fn known_objects_are_opened_without_a_request() {
    let bench = Bench::new();
    let (one, two) = (even("a", 1, 4, 1 << 20), even("b", 2, 4, 1 << 20));
    bench.site.put("m/one.safetensors", &one);
    bench.site.put("m/two.safetensors", &two);
    load_cached(&bench.site, "m");
    let before = bench.server.requests().len();
    for check in ["never", "offline"] {
        let (tensors, report) = load_cached(&checking(&bench, check), "m");
        assert_all(&tensors, &[&one, &two]);
        assert_eq!(report.requests, 0, "{report}");
        let made = report.phases.iter().any(|phase| phase.phase == "client");
        assert!(!made, "{:?}", report.phases);
    }
    assert_eq!(bench.server.requests().len(), before);
    // Both folder and object have changed since.
    let new = even("a", 3, 4, 1 << 20);
    bench.site.put("m/one.safetensors", &new);
    bench
        .site
        .put("m/three.safetensors", &even("c", 4, 1, 1000));
    assert_all(
        &load_cached(&checking(&bench, "never"), "m").0,
        &[&one, &two],
    );
    assert_eq!(load_cached(&bench.site, "m").0.len(), 9);
    let (tensors, report) = load_cached(&checking(&bench, "offline"), "m/one.safetensors");
    assert_all(&tensors, &[&new]);
    assert_eq!(report.requests, 0, "{report}");
}

#[test]
fn offline_loads_fail_for_what_is_not_cached() {
    let bench = Bench::new();
    bench.site.put(KEY, &even("t", 1, 4, 1 << 20));
    let offline = checking(&bench, "offline");
    let refused = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
        assert!(error.to_string().contains("offline"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("cache_dir")));
    };
    for key in [KEY, "folder"] {
        refused(offline.checkpoint(key).expect_err("unknown"));
    }
    assert_eq!(bench.server.requests().len(), 0);
    // Opened before, but its contents are gone.
    load_cached(&bench.site, KEY);
    for path in contents(bench.folder.path()) {
        std::fs::remove_file(path).expect("removes");
    }
    let before = bench.server.requests().len();
    refused(offline.checkpoint(KEY).expect_err("no bytes"));
    assert_eq!(bench.server.requests().len(), before);
    // Missing when it was asked for, and remembered.
    assert!(bench.site.checkpoint("none.safetensors").is_err());
    let before = bench.server.requests().len();
    let error = offline.checkpoint("none.safetensors").expect_err("absent");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(bench.server.requests().len(), before);
}

#[test]
fn stale_answers_are_forgotten_when_bytes_are_missing() {
    let bench = Bench::new();
    let (old, new) = (even("t", 1, 8, 1 << 20), even("t", 2, 8, 1 << 20));
    let never = checking(&bench, "never");
    // The first bytes are missing: the opening asks.
    bench.site.put(KEY, &old);
    load_cached(&bench.site, KEY);
    bench.site.put(KEY, &new);
    for path in contents(bench.folder.path()) {
        std::fs::remove_file(path).expect("removes");
    }
    assert_all(&load_cached(&never, KEY).0, &[&new]);
    // Others are: the load fails rather than mix two states, and the next one asks.
    bench.site.put(KEY, &old);
    load_cached(&bench.site, KEY);
    bench.site.put(KEY, &new);
    for path in contents(bench.folder.path()) {
        let cut = File::options().write(true).open(path).expect("opens");
        cut.set_len(5 << 20).expect("cuts");
    }
    let checkpoint = never.checkpoint(KEY).expect("its header is there");
    let error = load(&checkpoint, in_file_order()).expect_err("changed");
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
    assert_all(&load_cached(&never, KEY).0, &[&new]);
}

/// Some of a checkpoint's objects are opened in the state that the cache knows, and others have to
/// be asked about, when all have been replaced.
#[test]
fn states_of_two_times_are_not_mixed() {
    let shards = |seed| [even("a", seed, 4, 1 << 20), even("b", seed + 1, 8, 1 << 20)];
    let answers = |folder: &Path| -> Vec<PathBuf> {
        let all = std::fs::read_dir(folder.join("v1/answers")).expect("a directory");
        let paths = all.map(|entry| entry.expect("an entry").path());
        let is_of_one = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).expect("is text");
            text.contains("one.safetensors") && text.contains("Present")
        };
        paths.filter(is_of_one).collect()
    };
    let contents_of_one = |folder: &Path| -> Vec<PathBuf> {
        let is_of_one = |path: &PathBuf| path.metadata().is_ok_and(|it| it.len() < 6 << 20);
        contents(folder).into_iter().filter(is_of_one).collect()
    };
    for way in ["evicted", "forgotten"] {
        let bench = Bench::new();
        let put = |shards: &[Vec<u8>; 2]| {
            bench.site.put("m/one.safetensors", &shards[0]);
            bench.site.put("m/two.safetensors", &shards[1]);
        };
        let (old, new) = (shards(1), shards(3));
        put(&old);
        load_cached(&bench.site, "m");
        let folder = bench.folder.path();
        let missing = if way == "evicted" {
            contents_of_one(folder)
        } else {
            answers(folder)
        };
        assert_eq!(missing.len(), 1, "{way}: {missing:?}");
        std::fs::remove_file(&missing[0]).expect("removes");
        put(&new);
        for round in 0..2 {
            let (tensors, _) = load_cached(&checking(&bench, "never"), "m");
            assert_all(&tensors, &[&new[0], &new[1]]);
            assert_eq!(tensors.len(), 12, "{way}, round {round}");
        }
    }
}

#[test]
fn cache_checks_without_cache_are_refused() {
    let mut site = faulty_at(&Arc::new(FaultyServer::start()));
    site.options.set("cache_check", "never").expect("an option");
    let error = site.checkpoint(KEY).expect_err("no cache");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    assert!(error.to_string().contains("cache_check"), "{error}");
}

#[test]
fn damaged_bytes_are_requested_again_and_repaired() {
    let bench = Bench::new();
    let file = even("t", 1, 5, 3_000_000);
    bench.site.put(KEY, &file);
    load_cached(&bench.site, KEY);
    let mut rng = Rng::new(5);
    for name in ["contents.safetensors", "stamps"] {
        for round in 0..12 {
            let path = &files(bench.folder.path(), name)[0];
            let mut bytes = read(path);
            // The first bytes are the header, which the opening request brings.
            let first = if name == "stamps" { 8 * 4 } else { 256 << 10 };
            for _ in 0..=round {
                let at = first + rng.index(bytes.len() - first);
                bytes[at] ^= 1 << rng.index(8);
            }
            std::fs::write(path, &bytes).expect("writes");
            let (tensors, report) = load_cached(&bench.site, KEY);
            assert_all(&tensors, &[&file]);
            assert!(report.requests > 0, "{report}");
            let damaged = of_cache(&report).damaged_bytes;
            assert_eq!(damaged > 0, name != "stamps", "{report}");
            let (tensors, report) = load_cached(&bench.site, KEY);
            assert_all(&tensors, &[&file]);
            assert_eq!(report.requests, 0, "round {round}: {report}");
        }
    }
}

#[test]
fn lost_truncated_and_foreign_files_are_no_bytes() {
    let bench = Bench::new();
    let file = even("t", 1, 5, 3_000_000);
    bench.site.put(KEY, &file);
    load_cached(&bench.site, KEY);
    let path = |name: &str| files(bench.folder.path(), name)[0].clone();
    let data = read(&path("contents.safetensors"));
    let stamps = read(&path("stamps"));
    let damages: [&dyn Fn(); 6] = [
        &|| std::fs::write(path("contents.safetensors"), vec![0; data.len()]).expect("writes"),
        &|| std::fs::write(path("contents.safetensors"), &data[..700_000]).expect("writes"),
        &|| std::fs::remove_file(path("contents.safetensors")).expect("removes"),
        &|| std::fs::write(path("stamps"), &stamps[..stamps.len() / 2 + 3]).expect("writes"),
        &|| std::fs::write(path("stamps"), vec![0xFF; stamps.len()]).expect("writes"),
        &|| std::fs::remove_dir_all(bench.folder.path().join("v1")).expect("removes"),
    ];
    for (number, damage) in damages.iter().enumerate() {
        damage();
        let (tensors, report) = load_cached(&bench.site, KEY);
        assert_all(&tensors, &[&file]);
        assert!(report.requests > 0, "damage {number}: {report}");
        let (tensors, report) = load_cached(&bench.site, KEY);
        assert_all(&tensors, &[&file]);
        assert_eq!(report.requests, 0, "damage {number}: {report}");
    }
}

/// The entry is complete when the checkpoint is opened, and is not when it is read.
#[test]
fn bytes_that_disappear_meanwhile_are_requested() {
    for engine in [
        EngineChoice::Auto,
        EngineChoice::Pread,
        EngineChoice::TokioUring,
    ] {
        let bench = Bench::new();
        let file = mixed("t", 1, 30, 1 << 20);
        bench.site.put(KEY, &file);
        load_cached(&bench.site, KEY);
        let checkpoint = bench.site.checkpoint(KEY).expect("opens");
        let path = &contents(bench.folder.path())[0];
        let cut = File::options().write(true).open(path).expect("opens");
        cut.set_len(file.len() as u64 / 2).expect("cuts");
        let mut options = in_file_order();
        options.engine = engine;
        let (tensors, report) = load(&checkpoint, options).expect("loads");
        assert_all(&tensors, &[&file]);
        assert!(report.requests > 0 && report.cached_bytes > 0, "{report}");
    }
}

#[test]
fn selections_use_and_fill_the_same_entry() {
    let bench = Bench::new();
    let file = even("t", 1, 40, 300_000);
    bench.site.put(KEY, &file);
    let select = |names: &[&str]| {
        let checkpoint = bench.site.checkpoint(KEY).expect("opens");
        let loader = Loader::new(checkpoint).options(in_file_order());
        let loader = loader.select(Selection::names(names.iter().copied()));
        let mut stream = loader.stream().expect("starts");
        let tensors = stream.by_ref().collect::<Result<Vec<_>>>().expect("loads");
        assert_eq!(tensors.len(), names.len());
        let theirs = safetensors::SafeTensors::deserialize(&file).expect("valid");
        for tensor in &tensors {
            let wanted = theirs.tensor(tensor.name()).expect("there");
            assert!(tensor.bytes() == wanted.data(), "{}", tensor.name());
        }
        let report = stream.report();
        drop(stream);
        assert!(finish_caching(PATIENCE));
        report
    };
    let few = ["t3", "t20", "t39"];
    assert_eq!(select(&few).cached_bytes, 0);
    let again = select(&few);
    assert_eq!(again.requests, 0, "{again}");
    let (tensors, all) = load_cached(&bench.site, KEY);
    assert_all(&tensors, &[&file]);
    assert!(all.cached_bytes > 900_000 && all.requests > 0, "{all}");
    let (_, all) = load_cached(&bench.site, KEY);
    assert_eq!(all.requests, 0, "{all}");
    assert_eq!(select(&["t7"]).requests, 0);
}

/// The disk's latencies say nothing about a request for what the cache lacks.
#[test]
fn slow_store_is_no_stalled_disk() {
    // On a busy machine, the disk may stall, too.
    assert!((0..10).any(|_| stalls_of_a_disk_before_a_slow_store() == 0));
}

fn stalls_of_a_disk_before_a_slow_store() -> u64 {
    let bench = Bench::new();
    let file = even("t", 1, 40, 1 << 17);
    bench.site.put(KEY, &file);
    let mut options = in_file_order();
    options.extent_bytes = Some(1 << 17);
    let checkpoint = bench.site.checkpoint(KEY).expect("opens");
    let names: Vec<_> = (0..39).map(|index| format!("t{index}")).collect();
    let loader = Loader::new(checkpoint).options(options.clone());
    let loader = loader.select(Selection::names(&names));
    let stream = loader.stream().expect("starts");
    let tensors = stream.collect::<Result<Vec<_>>>().expect("loads");
    assert_eq!(tensors.len(), 39);
    assert!(finish_caching(PATIENCE));
    let delay = Fault::Delay(Duration::from_millis(700));
    bench.server.fault(Rule::always(delay).from_byte(1));
    let checkpoint = bench.site.checkpoint(KEY).expect("opens");
    let (tensors, report) = load(&checkpoint, options).expect("loads");
    assert_all(&tensors, &[&file]);
    assert!(report.requests > 0, "{report}");
    assert!(report.cached_bytes > 30 << 17, "{report}");
    report.stalls
}

#[test]
fn load_goes_on_where_an_interrupted_one_stopped() {
    let bench = Bench::new();
    let file = even("t", 1, 16, 1 << 20);
    bench.site.put(KEY, &file);
    let checkpoint = bench.site.checkpoint(KEY).expect("opens");
    let fails = Rule::always(Fault::status(403, "AccessDenied")).from_byte(9 << 20);
    bench.server.fault(fails);
    load(&checkpoint, in_file_order()).expect_err("the second half is denied");
    drop(checkpoint);
    assert!(finish_caching(PATIENCE));
    bench.server.clear_faults();
    let (tensors, report) = load_cached(&bench.site, KEY);
    assert_all(&tensors, &[&file]);
    assert!(report.requests > 0, "{report}");
    let (_, report) = load_cached(&bench.site, KEY);
    assert_eq!(report.requests, 0, "{report}");
}

#[test]
fn unusable_directory_is_noted_and_fails_no_load() {
    let bench = Bench::new();
    let file = even("t", 1, 3, 100_000);
    bench.site.put(KEY, &file);
    let path = bench.folder.path().join("a file");
    std::fs::write(&path, "not a directory").expect("writes");
    for directory in [
        path.clone(),
        path.join("below"),
        PathBuf::from("/proc/none"),
    ] {
        let mut site = faulty_at(&bench.server);
        cached_in(&mut site, &directory);
        let (tensors, report) = load_cached(&site, KEY);
        assert_all(&tensors, &[&file]);
        let reason = of_cache(&report).reason.clone().expect("a reason");
        assert!(reason.contains("cannot be used"), "{reason}");
        assert!(report.to_string().contains(&reason), "{report}");
    }
}

/// Mounted file system, until it is dropped.
#[cfg(target_os = "linux")]
struct Mounted(PathBuf);

#[cfg(target_os = "linux")]
impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Mounts a small file system in memory; `None` without the right to.
#[cfg(target_os = "linux")]
fn mount_small(path: &Path, size: &std::ffi::CStr) -> Option<Mounted> {
    use rustix::mount::{MountFlags, mount};

    let mounted = mount("tmpfs", path, "tmpfs", MountFlags::empty(), size);
    let mounted = mounted.map_err(|errno| format!("cannot mount a tmpfs: {errno}"));
    tload_testbed::require_named("mount", mounted).map(|()| Mounted(path.to_owned()))
}

/// The disk is full before the limit is reached.
#[cfg(target_os = "linux")]
#[test]
fn older_object_makes_way_on_full_disk_with_limit() {
    let mut bench = Bench::new();
    let Some(_mounted) = mount_small(bench.folder.path(), c"size=32M") else {
        return;
    };
    bench
        .site
        .options
        .set("cache_limit", "4GiB")
        .expect("an option");
    let names = ["old.safetensors", "new.safetensors"];
    for (seed, name) in names.into_iter().enumerate() {
        let file = even("t", seed as u64, 5, 4 << 20);
        bench.site.put(name, &file);
        load_cached(&bench.site, name);
        let (tensors, report) = load_cached(&bench.site, name);
        assert_all(&tensors, &[&file]);
        assert_eq!(report.requests, 0, "{report}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_and_read_only_one_are_noted_and_fail_no_load() {
    use rustix::mount::{MountFlags, mount_remount};

    let bench = Bench::new();
    let file = even("t", 1, 8, 3 << 20);
    bench.site.put(KEY, &file);
    let path = bench.folder.path();
    let Some(_mounted) = mount_small(path, c"size=12M") else {
        return;
    };

    let checkpoint = bench.site.checkpoint(KEY).expect("opens");
    assert_all(
        &load(&checkpoint, in_file_order()).expect("loads").0,
        &[&file],
    );
    assert!(finish_caching(PATIENCE));
    let (tensors, report) = load(&checkpoint, in_file_order()).expect("loads");
    assert_all(&tensors, &[&file]);
    let cache = of_cache(&report);
    assert!(
        cache.written_bytes > 0 && report.cached_bytes > 0,
        "{report}"
    );
    let reason = cache.reason.as_deref().expect("a reason");
    assert!(reason.contains("the disk is nearly full"), "{reason}");
    drop(checkpoint);

    mount_remount(path, MountFlags::RDONLY, c"").expect("nothing is open for writing");
    let (tensors, report) = load_cached(&bench.site, KEY);
    assert_all(&tensors, &[&file]);
    assert!(report.cached_bytes > 0, "{report}");
    let reason = of_cache(&report).reason.as_deref().expect("a reason");
    assert!(reason.contains("cannot be written to"), "{reason}");
}

/// File system on a disk of its own, which can be made to take nothing for a while.
#[cfg(target_os = "linux")]
struct OwnDisk(PathBuf);

#[cfg(target_os = "linux")]
impl OwnDisk {
    /// Creates one in `folder` and mounts it; `None` without the right to.
    fn mount(folder: &Path) -> Option<Self> {
        let (image, path) = (folder.join("image"), folder.join("disk"));
        let made = || {
            std::fs::create_dir(&path).map_err(|error| error.to_string())?;
            let file = File::create(&image).map_err(|error| error.to_string())?;
            file.set_len(512 << 20).map_err(|error| error.to_string())?;
            run("mkfs.ext4", &["-q".as_ref(), image.as_ref()])?;
            run(
                "mount",
                &[
                    "-o".as_ref(),
                    "loop".as_ref(),
                    image.as_ref(),
                    path.as_ref(),
                ],
            )
        };
        let made = made().map(|()| Self(path.clone()));
        tload_testbed::require_named("mount", made)
    }

    /// Returns the directory of the cache on it.
    fn cache(&self) -> PathBuf {
        self.0.join("cache")
    }

    /// Makes writes wait, or lets them go on.
    fn freeze(&self, stops: bool) {
        let flag = if stops { "-f" } else { "-u" };
        run("fsfreeze", &[flag.as_ref(), self.0.as_ref()]).expect("a file system on a disk");
    }
}

#[cfg(target_os = "linux")]
impl Drop for OwnDisk {
    fn drop(&mut self) {
        let _ = run("fsfreeze", &["-u".as_ref(), self.0.as_ref()]);
        let _ = run("umount", &["-l".as_ref(), self.0.as_ref()]);
    }
}

#[cfg(target_os = "linux")]
fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> std::result::Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let is_good = output.status.success();
    is_good
        .then_some(())
        .ok_or_else(|| format!("{program}: {said}"))
}

/// More than the buffers hold, while the disk takes nothing: the load goes on at full speed and
/// says so, and the next one requests what was left out.
#[cfg(target_os = "linux")]
#[test]
fn bytes_that_a_slow_disk_does_not_take_are_left_out() {
    let Some((mut bench, disk)) = Bench::on_own_disk() else {
        return;
    };
    let file = even("t", 1, 20, 8 << 20);
    bench.site.put(KEY, &file);
    let not_waiting = bench.site.options.set("cache_wait", "false");
    not_waiting.expect("an option");
    let checkpoint = bench.site.checkpoint(KEY).expect("opens");
    disk.freeze(true);
    let (tensors, report) = load(&checkpoint, in_file_order()).expect("loads");
    disk.freeze(false);
    assert_all(&tensors, &[&file]);
    let cache = of_cache(&report);
    assert!(cache.dropped_bytes >= 64 << 20, "{report}");
    assert!(cache.shortfall().is_some(), "{report}");
    drop(checkpoint);
    assert!(finish_caching(PATIENCE));
    bench
        .site
        .options
        .set("cache_wait", "true")
        .expect("an option");
    for is_whole in [false, true] {
        let (tensors, report) = load_cached(&bench.site, KEY);
        assert_all(&tensors, &[&file]);
        assert_eq!(report.requests == 0, is_whole, "{report}");
    }
}

/// Returns whether an engine for files read what the cache has.
fn is_read_like_files(report: &Report) -> bool {
    let features = &report.engine.features;
    features.iter().any(|it| it == "cached objects")
}

/// Models are larger than memory: their files must not push others out of it.
#[cfg(target_os = "linux")]
#[test]
fn cache_leaves_nothing_in_the_page_cache() {
    let Some((bench, disk)) = Bench::on_own_disk() else {
        return;
    };
    let directory = disk.cache();
    let file = even("t", 1, 16, 1 << 20);
    bench.site.put(KEY, &file);
    for is_cached in [false, true] {
        let (tensors, report) = load_cached(&bench.site, KEY);
        assert_all(&tensors, &[&file]);
        assert_eq!(report.requests == 0, is_cached, "{report}");
        let residency = probe::residency(&contents(&directory)[0]);
        // The end of the file is no whole sector.
        let resident = residency.expect("Linux answers").resident_bytes;
        assert!(resident <= 64 << 10, "{resident} bytes");
    }
}

/// The rest of the object is not in the cache, and never asked for.
#[test]
fn cached_part_of_an_object_is_read_like_a_file() {
    let bench = Bench::new();
    let file = even("t", 1, 8, 1 << 20);
    bench.site.put(KEY, &file);
    let part = |site: &Site, names: &[&str]| {
        let checkpoint = site.checkpoint(KEY).expect("opens");
        let loader = Loader::new(checkpoint).options(in_file_order());
        let loader = loader.select(Selection::names(names.iter().copied()));
        let mut stream = loader.stream().expect("starts");
        let tensors: Result<Vec<_>> = stream.by_ref().collect();
        assert!(finish_caching(PATIENCE));
        (tensors.expect("loads"), stream.report())
    };
    let (first, report) = part(&bench.site, &["t1", "t2"]);
    assert!(
        !is_read_like_files(&report) && report.requests > 0,
        "{report}"
    );
    let (second, report) = part(&bench.site, &["t1", "t2"]);
    assert_same(&second, &first);
    assert!(is_read_like_files(&report), "{report}");
    assert_eq!((report.requests, report.remote_bytes), (0, 0), "{report}");
    // Two thirds of it are there, and the rest is added.
    for requests in [1, 0] {
        let (_, report) = part(&bench.site, &["t1", "t2", "t3"]);
        assert!(is_read_like_files(&report), "{report}");
        assert_eq!(report.requests, requests, "{report}");
    }
    let (_, report) = part(&bench.site, &["t0", "t1", "t5", "t6", "t7"]);
    assert!(!is_read_like_files(&report), "{report}");
}

/// Containers often refuse rings.
#[cfg(target_os = "linux")]
#[test]
fn cached_objects_need_no_ring() {
    if !is_alone("caching::cached_objects_need_no_ring") {
        return;
    }
    refuse(libc::SYS_io_uring_setup, libc::EPERM);
    let bench = Bench::new();
    let file = even("t", 1, 4, 1 << 20);
    bench.site.put(KEY, &file);
    load_cached(&bench.site, KEY);
    for engine in [EngineChoice::Uring, EngineChoice::TokioUring] {
        let checkpoint = bench.site.checkpoint(KEY).expect("opens");
        let mut options = in_file_order();
        options.engine = engine;
        let (tensors, report) = load(&checkpoint, options).expect("loads");
        assert_all(&tensors, &[&file]);
        assert!(is_read_like_files(&report), "{report}");
        let EngineReport {
            name, requested, ..
        } = &report.engine;
        assert_eq!((&**name, &**requested), ("pread", engine.name()));
    }
}

/// A removal that fails is not one of an object in use.
#[cfg(target_os = "linux")]
#[test]
fn removal_from_a_read_only_disk_is_an_error() {
    let Some((bench, disk)) = Bench::on_own_disk() else {
        return;
    };
    let directory = disk.cache();
    bench.site.put(KEY, &even("t", 1, 2, 1 << 20));
    load_cached(&bench.site, KEY);
    let arguments = ["-o", "remount,ro"].map(std::ffi::OsStr::new);
    run("mount", &[arguments[0], arguments[1], disk.0.as_ref()]).expect("remounts");
    let cache = CacheDirectory::open(&directory).expect("a cache");
    let mut rules = Pruning::default();
    rules.max_bytes = Some(0);
    for removal in [cache.remove(None), cache.prune(&rules)] {
        let error = removal.expect_err("it is read-only");
        let cause = std::error::Error::source(&error).expect("a cause");
        assert!(
            cause.to_string().contains("Read-only file system"),
            "{cause}"
        );
    }
    assert_eq!(cache.entries().len(), 1);
}

#[test]
fn objects_without_reliable_validator_are_not_cached() {
    let server = Arc::new(FaultyServer::start());
    server.leave_out_validators();
    let mut site = faulty_web_at(&server);
    let folder = folder();
    cached_in(&mut site, folder.path());
    let allowed = site.options.set("allow_unversioned", "true");
    allowed.expect("an option");
    let file = even("t", 1, 3, 100_000);
    site.put(KEY, &file);
    for _ in 0..2 {
        let (tensors, report) = load_cached(&site, KEY);
        assert_all(&tensors, &[&file]);
        assert_eq!(report.cached_bytes, 0, "{report}");
        let reason = of_cache(&report).reason.clone().expect("a reason");
        assert!(reason.contains("is not cached"), "{reason}");
    }
    assert_eq!(contents(folder.path()), [""; 0].map(PathBuf::from));
}

#[test]
fn limit_evicts_what_was_not_used_for_longest() {
    let mut bench = Bench::new();
    let limit = bench.site.options.set("cache_limit", "20MiB");
    limit.expect("an option");
    let all: Vec<_> = (0..4).map(|at| even("t", at, 4, 2 << 20)).collect();
    for (at, file) in all.iter().enumerate() {
        let key = format!("{at}.safetensors");
        bench.site.put(&key, file);
        let (tensors, report) = load_cached(&bench.site, &key);
        assert_all(&tensors, &[file]);
        assert_eq!(of_cache(&report).reason, None, "{report}");
        assert!(contents(bench.folder.path()).len() <= 2);
    }
    // The last one is complete, the first one is gone.
    let (_, report) = load_cached(&bench.site, "3.safetensors");
    assert_eq!(report.requests, 0, "{report}");
    let (tensors, report) = load_cached(&bench.site, "0.safetensors");
    assert_all(&tensors, &[&all[0]]);
    assert!(report.requests > 0, "{report}");
}

#[test]
fn entries_in_use_are_not_evicted() {
    let mut bench = Bench::new();
    bench.site.options.set("cache_limit", "12MiB").expect("set");
    let all: Vec<_> = (0..2).map(|at| even("t", at, 4, 2 << 20)).collect();
    bench.site.put("0.safetensors", &all[0]);
    bench.site.put("1.safetensors", &all[1]);
    load_cached(&bench.site, "0.safetensors");
    let open = bench.site.checkpoint("0.safetensors").expect("opens");
    let path = &contents(bench.folder.path())[0];
    // Its limit leaves no room for another one.
    let (tensors, _) = load_cached(&bench.site, "1.safetensors");
    assert_all(&tensors, &[&all[1]]);
    let (tensors, report) = load(&open, in_file_order()).expect("loads");
    assert_all(&tensors, &[&all[0]]);
    assert_eq!(report.requests, 0, "{report}");
    assert!(path.exists(), "what is open is evicted");
    drop(open);
}

/// This process knows what it has open.
#[cfg(target_os = "linux")]
#[test]
fn entries_in_use_are_not_evicted_without_locks() {
    if !is_alone("caching::entries_in_use_are_not_evicted_without_locks") {
        return;
    }
    refuse(libc::SYS_flock, libc::ENOLCK);
    let mut bench = Bench::new();
    bench.site.options.set("cache_limit", "4MiB").expect("set");
    let file = even("t", 1, 4, 4 << 20);
    bench.site.put(KEY, &file);
    let (tensors, _) = load_cached(&bench.site, KEY);
    assert_all(&tensors, &[&file]);
    let cache = CacheDirectory::open(bench.folder.path()).expect("a cache");
    let [entry]: [CacheEntry; 1] = cache.entries().try_into().expect("it stays");
    assert!(entry.cached_bytes > 0, "{entry:?}");
    let removal = cache.remove(None).expect("removes");
    assert_eq!(removal.removed.len(), 1, "it is closed");
}

#[test]
fn directory_lists_and_removes_what_is_not_in_use() {
    let bench = Bench::new();
    let all: Vec<_> = (0..2).map(|at| even("t", at, 4, 2 << 20)).collect();
    for (at, file) in all.iter().enumerate() {
        let key = format!("m/{at}.safetensors");
        bench.site.put(&key, file);
        load_cached(&bench.site, &key);
    }
    let cache = CacheDirectory::open(bench.folder.path()).expect("a cache");
    let [one, two]: [CacheEntry; 2] = cache.entries().try_into().expect("two objects");
    for (entry, at) in [(&one, 0), (&two, 1)] {
        assert!(entry.is_complete(), "{entry:?}");
        assert_eq!(entry.object_bytes, all[at].len() as u64);
        assert!(read(&entry.path) == all[at], "{entry:?}");
        assert!(entry.is_within(&bench.site.location("m")).expect("a URL"));
        assert!(!entry.is_within(&bench.site.location("n")).expect("a URL"));
    }
    let open = bench.site.checkpoint("m/0.safetensors").expect("opens");
    let mut rules = Pruning::default();
    rules.max_bytes = Some(0);
    let removal = cache.prune(&rules).expect("prunes");
    assert_eq!((removal.removed.len(), removal.in_use.len()), (1, 1));
    let (tensors, report) = load(&open, in_file_order()).expect("loads");
    assert_all(&tensors, &[&all[0]]);
    assert_eq!(report.requests, 0, "{report}");
    drop((tensors, open));
    let within = bench.site.location("m");
    let removal = cache.remove(Some(&within)).expect("a URL");
    assert_eq!((removal.removed.len(), removal.in_use.len()), (1, 0));
    assert!(cache.entries().is_empty());
    // A process was killed while it removed an entry.
    let left = bench.folder.path().join("v1/removed/0123456789abcdef");
    std::fs::create_dir_all(&left).expect("a directory");
    std::fs::write(left.join("contents"), "left").expect("a file");
    cache.prune(&Pruning::default()).expect("prunes");
    assert!(!left.exists(), "files that no list has");
    let error = CacheDirectory::open(bench.folder.path().join("v1")).expect_err("no cache");
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// More than the buffers hold: nothing is dropped, however slow the disk.
#[test]
fn load_that_waits_for_the_disk_caches_everything() {
    let bench = Bench::new();
    let file = even("t", 1, 24, 8 << 20);
    bench.site.put(KEY, &file);
    let (tensors, _) = load_cached(&bench.site, KEY);
    assert_all(&tensors, &[&file]);
    let (tensors, report) = load_cached(&bench.site, KEY);
    assert_all(&tensors, &[&file]);
    assert_eq!(
        (report.requests, of_cache(&report).dropped_bytes),
        (0, 0),
        "{report}"
    );
    assert_eq!(of_cache(&report).shortfall(), None);
}

/// Variable with the endpoint and the cache's directory, one a line, for a child process.
const MARK: &str = "TLOAD_TEST_CACHING";

fn start_child(server: &FaultyServer, folder: &Path) -> Child {
    let words = format!("{}\n{}", server.url(), folder.display());
    let this = std::env::current_exe().expect("a process knows its executable");
    Command::new(this)
        .args(["--exact", "caching::child_loads", "--test-threads=1"])
        .env(MARK, words)
        .stdout(Stdio::null())
        .spawn()
        .expect("starts")
}

/// Loads in a child process of the tests below; does nothing otherwise.
#[test]
fn child_loads() {
    let Some(words) = std::env::var_os(MARK) else {
        return;
    };
    let words = words.into_string().expect("UTF-8");
    let (endpoint, folder) = words.split_once('\n').expect("two");
    let mut options = s3_options(endpoint);
    options.set("cache_dir", folder).expect("an option");
    let location = Location::parse("s3://models/m.safetensors").expect("a URL");
    let checkpoint = Checkpoint::open_with(&location, options).expect("opens");
    let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
    assert!(finish_caching(PATIENCE));
    // As the tests below put it.
    assert_all(&tensors, &[&shared_file()]);
}

fn shared_file() -> Vec<u8> {
    mixed("t", 9, 80, 1 << 20)
}

#[test]
fn processes_share_one_directory() {
    let bench = Bench::new();
    let file = shared_file();
    bench.site.put(KEY, &file);
    let children: Vec<_> = (0..4)
        .map(|_| start_child(&bench.server, bench.folder.path()))
        .collect();
    for mut child in children {
        assert!(child.wait().expect("a child").success());
    }
    let (tensors, report) = load_cached(&bench.site, KEY);
    assert_all(&tensors, &[&file]);
    assert_eq!(report.requests, 0, "{report}");
    assert_eq!(of_cache(&report).damaged_bytes, 0, "{report}");
}

/// The others wait for what one of them requests: each byte leaves the store once.
#[test]
fn first_of_several_processes_requests_for_all() {
    let bench = Bench::new();
    let file = shared_file();
    bench.site.put(KEY, &file);
    // Slow enough for all of them to be there before the first one is done.
    let slow = Fault::Delay(Duration::from_millis(300));
    bench.server.fault(Rule::always(slow).on(Operation::Get));
    let children: Vec<_> = (0..8)
        .map(|_| start_child(&bench.server, bench.folder.path()))
        .collect();
    for mut child in children {
        assert!(child.wait().expect("a child").success());
    }
    let sent = bench.server.counts().body_bytes;
    // Each process opens the object by itself.
    let headers = 8 * (1 << 20);
    assert!(sent < file.len() as u64 + headers, "{sent} bytes");
}

/// A process that holds a claim and does nothing delays the others, and no more, however often the
/// object is opened meanwhile.
#[test]
fn process_that_stands_still_is_not_waited_for() {
    let bench = Bench::new();
    let file = shared_file();
    bench.site.put(KEY, &file);
    let held = Rule::always(Fault::StallHeaders).on(Operation::Get);
    bench.server.fault(held.from_byte(1));
    let mut stuck = start_child(&bench.server, bench.folder.path());
    assert!(bench.server.wait_for_in_flight(2, PATIENCE), "no claim");
    kill_process(Pid::from_child(&stuck), Signal::STOP).expect("a child");
    bench.server.clear_faults();
    let never = checking(&bench, "never");
    let checkpoint = bench.site.checkpoint(KEY).expect("opens");
    let loading = std::thread::spawn(move || load(&checkpoint, in_file_order()));
    let begun = Instant::now();
    while !loading.is_finished() {
        assert!(begun.elapsed() < 5 * PATIENCE, "it still waits");
        never.checkpoint(KEY).expect("opens");
        let pause = Duration::from_millis(500);
        bench.server.wait_until(pause, |_| loading.is_finished());
    }
    assert!(begun.elapsed() > Duration::from_secs(5), "it did not wait");
    let (tensors, _) = loading.join().expect("ends").expect("loads");
    assert_all(&tensors, &[&file]);
    let _ = stuck.kill();
    stuck.wait().expect("a child");
}

/// Number of times that five processes are started, each of which is killed at a moment of its own.
const KILLS: u32 = 40;

/// Children are killed while they receive and write. What they leave is either absent or right.
#[test]
fn killed_writers_leave_nothing_that_is_read_as_bytes() {
    let bench = Bench::new();
    let file = shared_file();
    bench.site.put(KEY, &file);
    let mut rng = Rng::new(17);
    for round in 0..KILLS {
        let mut children = [(); 5].map(|()| start_child(&bench.server, bench.folder.path()));
        for child in &mut children {
            let before = bench.server.counts().body_bytes;
            let until = before + rng.below(file.len() as u64);
            // Without enough bytes to send, the children end by themselves.
            bench
                .server
                .wait_until(Duration::from_millis(100), |counts| {
                    counts.body_bytes >= until
                });
            let _ = child.kill();
            child.wait().expect("a child");
        }
        if round % 3 == 2 {
            let (tensors, report) = load_cached(&bench.site, KEY);
            assert_all(&tensors, &[&file]);
            assert_eq!(of_cache(&report).damaged_bytes, 0, "{report}");
            let (_, report) = load_cached(&bench.site, KEY);
            assert_eq!(report.requests, 0, "{report}");
            std::fs::remove_dir_all(bench.folder.path().join("v1")).expect("removes");
        }
    }
    assert!(bench.gets() > 0);
}
