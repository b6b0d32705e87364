//! Processes that shrink a cache, and are killed at any moment.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use tload::Checkpoint;
use tload::cache::finish_caching;
use tload::cache::{CacheDirectory, Pruning};
use tload_testing::fixtures::Rng;

use crate::cache_children::{child, key_of, location_of, of_child};
use crate::caching::{Bench, PATIENCE, load_cached, of_cache};
use crate::fixtures::{assert_all, even, in_file_order, load};

/// Line of a child that has begun.
const BEGUN: &str = "begun";

/// Number of times that all children are started, each of which is killed at a moment of its own.
const ROUNDS: u64 = 50;
const CHILDREN: u64 = 4;

/// Time within which a child is killed, microseconds: that of several removals and loads.
const LIFE_MICROS: u64 = 20_000;

/// Objects of 256 KiB. The limit has room for half of them.
const OBJECTS: usize = 8;
const LIMIT: u64 = 1 << 20;

fn object(at: usize) -> Vec<u8> {
    even("t", at as u64, 2, 128 << 10)
}

fn rules(max_bytes: u64) -> Pruning {
    let mut rules = Pruning::default();
    rules.max_bytes = Some(max_bytes);
    rules
}

/// Loads, prunes and removes in a child process of the test below, until it is killed; does nothing
/// otherwise.
#[test]
fn child_shrinks_until_it_is_killed() {
    let Some((options, folder, mut rng)) = of_child(LIMIT) else {
        return;
    };
    let read = |at: usize| {
        let checkpoint = Checkpoint::open_with(location_of(at), &options).expect("opens");
        let (tensors, report) = load(&checkpoint, in_file_order()).expect("loads");
        assert_all(&tensors, &[&object(at)]);
        assert_eq!(of_cache(&report).damaged_bytes, 0, "{report}");
    };
    read(0);
    let cache = CacheDirectory::open(folder).expect("a cache");
    writeln!(std::io::stdout(), "{BEGUN}").expect("the test reads");
    loop {
        let at = rng.index(OBJECTS);
        match rng.below(8) {
            0 | 1 => drop(cache.prune(&rules(LIMIT / 4)).expect("prunes")),
            2 => drop(cache.remove(Some(&location_of(at))).expect("removes")),
            3 => drop(cache.remove(None).expect("removes")),
            _ => read(at),
        }
    }
}

fn start_child(bench: &Bench, seed: u64) -> Child {
    let name = "cache_kills::child_shrinks_until_it_is_killed";
    let mut child = child(bench, name, seed);
    child.stdout(Stdio::piped()).spawn().expect("starts")
}

/// Kills a child that has begun, after a part of its life.
fn kill(bench: &Bench, mut child: Child, life: Duration) {
    let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
    let mut lines = lines.map(|line| line.expect("text"));
    assert!(lines.any(|line| line.ends_with(BEGUN)), "the child failed");
    bench.server.wait_until(life, |_| false);
    child.kill().expect("a child");
    let status = child.wait().expect("a child");
    assert_eq!(status.signal(), Some(9), "the child failed");
}

/// Returns all files below a directory.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

/// A process that is killed as it opens an entry leaves one without bytes.
#[test]
fn limit_of_zero_removes_entries_without_bytes() {
    let bench = Bench::new();
    let name = "a".repeat(64);
    let entry = bench.folder.path().join("v1/aa").join(name);
    std::fs::create_dir_all(&entry).expect("creates");
    std::fs::write(entry.join("stamps"), "").expect("writes");
    let cache = CacheDirectory::open(bench.folder.path()).expect("a cache");
    cache.prune(&rules(1)).expect("prunes");
    assert!(entry.exists(), "within the limit");
    cache.prune(&rules(0)).expect("prunes");
    assert!(!entry.exists());
}

/// Their entries are absent or right, not in use, and the next prune removes all files.
#[test]
fn killed_evictions_and_removals_leave_nothing_behind() {
    let bench = Bench::new();
    for at in 0..OBJECTS {
        bench.site.put(&key_of(at), &object(at));
    }
    let mut rng = Rng::new(17);
    let cache = || CacheDirectory::open(bench.folder.path()).expect("a cache");
    for round in 0..ROUNDS {
        let seeds = round * CHILDREN..(round + 1) * CHILDREN;
        let children: Vec<_> = seeds.map(|seed| start_child(&bench, seed)).collect();
        for child in children {
            let life = Duration::from_micros(rng.below(LIFE_MICROS));
            kill(&bench, child, life);
        }
        if round % 10 == 9 {
            for at in 0..OBJECTS {
                let (tensors, report) = load_cached(&bench.site, &key_of(at));
                assert_all(&tensors, &[&object(at)]);
                assert_eq!(of_cache(&report).damaged_bytes, 0, "{report}");
            }
        }
        if round % 2 == 0 {
            let removal = cache().prune(&rules(0)).expect("prunes");
            assert_eq!(removal.in_use.len(), 0, "{:?}", removal.in_use);
            let left: Vec<_> = files(&bench.folder.path().join("v1"))
                .into_iter()
                .filter(|file| file.parent().is_some_and(|it| !it.ends_with("answers")))
                .collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
    assert!(finish_caching(PATIENCE));
    // Answers are small, and kept until they are old.
    let mut rules = rules(0);
    rules.unused_for = Some(Duration::ZERO);
    cache().prune(&rules).expect("prunes");
    let left = files(bench.folder.path());
    assert!(left.is_empty(), "{left:?}");
}
