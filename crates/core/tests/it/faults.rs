//! Loads that fail or end early: files that change, callers that leave, timeouts.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use tload::CacheMode;
use tload::internal::plan::Layout;
use tload::internal::schedule::Depth;
use tload::internal::storage::MemorySource;
use tload::{
    Checkpoint, Dtype, EngineChoice, Error, ErrorKind, LoadOptions, Loader, Order, Slice,
    TensorStream,
};
use tload_testing::fixtures::tensor_info;
use tload_testing::sim::{Moments, SimConfig};
use tload_testing::simulation::Simulation;

use crate::files::{even, folder, location, options, write};
use crate::requirement;

const MIB: usize = 1 << 20;

fn truncate(path: &Path, len: u64) {
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(len)).expect("ours");
}

/// Receives items until the error, which must be the last one.
fn failure(mut stream: TensorStream) -> Error {
    let error = stream
        .by_ref()
        .find_map(Result::err)
        .expect("the load must fail");
    assert!(stream.next().is_none(), "an error is the end");
    assert_eq!(stream.report().outcome, error.kind().name());
    error
}

/// Returns every engine and cache mode that this machine supports.
fn variants() -> Vec<(EngineChoice, CacheMode)> {
    requirement::engines()
        .into_iter()
        .flat_map(|engine| [(engine, CacheMode::Auto), (engine, CacheMode::Buffered)])
        .collect()
}

/// Returns options with a budget so small that most of a file is unread while the caller has one
/// tensor.
fn tight(engine: EngineChoice, cache: CacheMode, lanes: usize) -> LoadOptions {
    options(|it| {
        (it.engine, it.cache, it.lanes) = (engine, cache, Some(lanes));
        it.order = Order::File;
        it.memory_limit = Some(2 * (MIB as u64) + 16_384);
    })
}

#[test]
fn file_truncated_before_load_has_changed() {
    for (engine, cache) in variants() {
        let folder = folder();
        let path = write(&folder.path().join("m.safetensors"), &even("t", 1, 8, MIB));
        let loader = Loader::open(location(&path)).expect("opens");
        let loader = loader.options(tight(engine, cache, 1));
        truncate(&path, 3 * MIB as u64);
        let error = loader.stream().map_or_else(|error| error, failure);
        assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
        assert_eq!(error.location(), path.to_str());
    }
}

#[test]
fn file_truncated_during_load_has_changed_and_range_is_named() {
    for (engine, cache) in variants() {
        for lanes in [1, 3] {
            let folder = folder();
            let file = even("t", 1, 32, MIB);
            let path = write(&folder.path().join("m.safetensors"), &file);
            let loader = Loader::open(location(&path)).expect("opens");
            let loader = loader.options(tight(engine, cache, lanes));
            let mut stream = loader.stream().expect("starts");
            let first = stream.next().expect("there are 32").expect("is there");
            let cut = 20 * MIB as u64 + 777;
            truncate(&path, cut);
            let error = failure(stream);
            assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
            assert_eq!(error.location(), path.to_str());
            let range = error.range().expect("names the bytes");
            assert!(
                range.end > cut && range.end <= file.len() as u64,
                "{range:?}"
            );
            crate::files::assert_same(&first, &file);
        }
    }
}

/// Calls `meanwhile` after the first of four tensors. All tensors received must be those of the old
/// file, even if the load fails.
fn load_and(
    engine: EngineChoice,
    cache: CacheMode,
    path: &Path,
    old: &[u8],
    meanwhile: impl FnOnce(),
) -> Result<(), Error> {
    let loader = Loader::open(location(path))?.options(tight(engine, cache, 1));
    let mut stream = loader.stream()?;
    crate::files::assert_same(&stream.next().expect("there are four")?, old);
    meanwhile();
    for tensor in stream {
        crate::files::assert_same(&tensor?, old);
    }
    Ok(())
}

fn assert_replaced(error: &Error, path: &Path) {
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
    assert!(
        error.message().contains("it was replaced by another file"),
        "{error}"
    );
    assert_eq!(error.location(), path.to_str());
}

#[test]
fn file_replaced_during_load_is_error_and_never_mixed() {
    let (old, new) = (even("t", 1, 4, MIB), even("t", 2, 4, MIB));
    for (engine, cache) in variants() {
        let folder = folder();
        let path = write(&folder.path().join("m.safetensors"), &old);
        let ended = load_and(engine, cache, &path, &old, || {
            let other = write(&folder.path().join("new"), &new);
            std::fs::rename(other, &path).expect("the same folder");
        });
        assert_replaced(&ended.expect_err("replaced"), &path);
        load_and(engine, cache, &path, &new, || {}).expect("the new one");
    }
}

#[test]
fn link_retargeted_during_load_is_error() {
    let old = even("t", 1, 4, MIB);
    for (engine, cache) in variants() {
        let folder = folder();
        for state in ["1", "2"] {
            std::fs::create_dir(folder.path().join(state)).expect("ours");
            write(&folder.path().join(state).join("m.safetensors"), &old);
        }
        let link = folder.path().join("current");
        std::os::unix::fs::symlink("1", &link).expect("ours");
        let path = link.join("m.safetensors");
        let ended = load_and(engine, cache, &path, &old, || {
            std::os::unix::fs::symlink("2", folder.path().join("next")).expect("ours");
            std::fs::rename(folder.path().join("next"), &link).expect("the same folder");
        });
        assert_replaced(&ended.expect_err("replaced"), &path);
    }
}

/// The shards are unchanged: only the index differs.
#[test]
fn index_replaced_during_load_is_error() {
    let old = even("t", 1, 4, MIB);
    let index = |total: u64| {
        let placed = (0..4).map(|tensor| (format!("t{tensor}"), "m.safetensors".into()));
        let weight_map: serde_json::Map<_, serde_json::Value> = placed.collect();
        let metadata = serde_json::json!({"total_size": total});
        serde_json::json!({"metadata": metadata, "weight_map": weight_map}).to_string()
    };
    for (engine, cache) in variants() {
        let folder = folder();
        write(&folder.path().join("m.safetensors"), &old);
        let name = "model.safetensors.index.json";
        let path = write(&folder.path().join(name), index(1).as_bytes());
        let replace = || {
            let other = write(&folder.path().join("new"), index(2).as_bytes());
            std::fs::rename(other, &path).expect("the same folder");
        };
        let ended = load_and(engine, cache, folder.path(), &old, replace);
        assert_replaced(&ended.expect_err("replaced"), &path);
        load_and(engine, cache, folder.path(), &old, || {}).expect("the new one");
    }
}

#[test]
fn file_removed_during_load_is_read_to_end() {
    let old = even("t", 1, 4, MIB);
    for (engine, cache) in variants() {
        let folder = folder();
        let path = write(&folder.path().join("m.safetensors"), &old);
        load_and(engine, cache, &path, &old, || {
            std::fs::remove_file(&path).expect("ours");
        })
        .expect("whole");
    }
}

#[test]
fn file_replaced_before_single_read_is_error() {
    let folder = folder();
    let path = write(&folder.path().join("m.safetensors"), &even("t", 1, 4, 4096));
    let checkpoint = Checkpoint::open(location(&path)).expect("opens");
    let read = || checkpoint.read("t0", &Slice::default(), &options(|_| {}));
    read().expect("is there");
    let other = write(&folder.path().join("new"), &even("t", 2, 4, 4096));
    std::fs::rename(other, &path).expect("the same folder");
    assert_replaced(&read().expect_err("replaced"), &path);
}

#[test]
fn file_written_to_during_load_has_changed() {
    let folder = folder();
    let path = write(&folder.path().join("m.safetensors"), &even("t", 1, 4, 4096));
    for round in 0..40 {
        let lanes = 1 + round % 4;
        let loader = Loader::open(location(&path)).expect("opens");
        let loader = loader.options(tight(EngineChoice::Auto, CacheMode::Buffered, lanes));
        let file = OpenOptions::new().write(true).open(&path).expect("ours");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + round as u64);
        file.set_modified(time).expect("ours");
        let error = failure(loader.stream().expect("starts"));
        assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
        assert!(error.message().contains("modification time"), "{error}");
        assert!(error.hint().is_some());
    }
}

#[test]
fn cancelled_load_ends_immediately_for_good() {
    let folder = folder();
    let path = write(&folder.path().join("m.safetensors"), &even("t", 1, 32, MIB));
    for (engine, cache) in variants() {
        for received in [0, 1, 7, 31] {
            let loader = Loader::open(location(&path)).expect("opens");
            let loader = loader.options(tight(engine, cache, 2));
            let mut stream = loader.stream().expect("starts");
            let kept: Vec<_> = stream.by_ref().take(received).collect();
            assert!(kept.iter().all(Result::is_ok));
            let canceller = stream.canceller();
            stream.cancel();
            canceller.cancel();
            let error = failure(stream);
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            canceller.cancel();
        }
    }
}

/// Returns a simulation of one read, on a lane of its own, that ends when the sender is dropped.
fn stalled() -> (Simulation, Sender<()>) {
    let (end, ended) = channel();
    let (has_begun, ended) = (AtomicBool::new(false), Mutex::new(ended));
    // Called when the read begins, and when it ends.
    let stall = move || {
        if has_begun.swap(true, Ordering::Relaxed) {
            let ended = ended.lock().expect("locked by this thread only");
            let _ = ended.recv();
        }
    };
    let simulation = Simulation {
        sources: vec![MemorySource::new("slow", [1; 4096])],
        layouts: vec![Layout {
            extent_bytes: 4096,
            alignment: 1,
            gap_bytes: 0,
        }],
        tensors: vec![tensor_info("t", Dtype::U8, vec![4096], 0, 0..4096)],
        order: Order::Ready,
        depth: Depth::fixed(1, 4096),
        memory_limit: 4096,
        engines: vec![SimConfig {
            moments: Moments::new(stall),
            ..SimConfig::new(3, 1)
        }],
    };
    (simulation, end)
}

#[test]
fn cancel_wakes_waiting_caller() {
    let (simulation, end) = stalled();
    let (mut stream, watched) = simulation.stream();
    let canceller = stream.canceller();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The read is in flight, so only the cancellation ends the wait below.
            while watched.in_flight().jobs == 0 {
                tload_testbed::pause_between_looks();
            }
            canceller.cancel();
        });
        let error = stream.next().expect("an error").expect_err("nothing came");
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    });
    assert_eq!(
        watched.in_flight().jobs,
        1,
        "the wait ended before the read did"
    );
    drop(stream);
    assert_eq!(
        watched.in_flight().jobs,
        1,
        "dropping does not wait for storage that hangs"
    );
    drop(end);
}

#[test]
fn wait_ends_after_its_timeout() {
    let (simulation, end) = stalled();
    let (mut stream, watched) = simulation.stream();
    assert!(matches!(stream.try_next(), Poll::Pending));
    let wait = Duration::from_millis(20);
    let started = Instant::now();
    assert!(stream.wait(wait).is_pending());
    assert!(started.elapsed() >= wait);
    drop(stream);
    drop(watched);
    drop(end);
}

/// Receives a few of many tensors, after increasing pauses, until the error. The budget thus keeps
/// the load from completing before the thread that enforces the timeout has run.
fn late_failure(mut stream: TensorStream) -> Error {
    let pauses = (0..16).map(|doublings| Duration::from_millis(1 << doublings));
    let failure = pauses.into_iter().find_map(|pause| {
        std::thread::park_timeout(pause);
        stream.next().expect("there are more tensors").err()
    });
    failure.expect("the timeout has expired")
}

#[test]
fn load_longer_than_its_timeout_fails() {
    let folder = folder();
    let path = write(&folder.path().join("m.safetensors"), &even("t", 1, 64, MIB));
    for (engine, cache) in variants() {
        let mut options = tight(engine, cache, 1);
        // Any stage may be the one that it ends.
        options.timeout = Some(Duration::from_nanos(1));
        let loader = Loader::open(location(&path))
            .expect("opens")
            .options(options);
        let error = loader.stream().map_or_else(|error| error, late_failure);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.message().contains("timeout"), "{error}");
    }
    // A timeout that does not expire does not delay the end.
    let options = options(|it| it.timeout = Some(Duration::from_secs(3600)));
    let started = Instant::now();
    let loader = Loader::open(location(&path))
        .expect("opens")
        .options(options);
    assert_eq!(loader.stream().expect("starts").flatten().count(), 64);
    assert!(started.elapsed() < Duration::from_secs(600));
}

/// A stream may be moved to another thread and dropped there at any time.
#[test]
fn tensors_survive_stream_dropped_on_any_thread() {
    let folder = folder();
    let file = Arc::new(even("t", 1, 16, MIB));
    let path = write(&folder.path().join("m.safetensors"), &file);
    for (engine, cache) in variants() {
        for received in 0..6 {
            let loader = Loader::open(location(&path)).expect("opens");
            let mut stream = loader
                .options(tight(engine, cache, 2))
                .stream()
                .expect("starts");
            let kept: Vec<_> = stream.by_ref().take(received).collect();
            std::thread::spawn(move || drop(stream))
                .join()
                .expect("drops");
            for tensor in kept {
                crate::files::assert_same(&tensor.expect("loads"), &file);
            }
        }
    }
}
