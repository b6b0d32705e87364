//! Loads from storage that hangs or has transient errors: retries of reads, timeouts, memory that
//! the kernel still holds.
//!
//! A FUSE mount stands for network file systems: the rules for retries are the same for all of
//! them.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use tload::CacheMode;
use tload::{
    Checkpoint, EngineChoice, ErrorKind, LoadOptions, Loader, StoreOptions, TensorStream,
    orphaned_bytes,
};
use tload_testbed::slowfs::{Mount, Options as Slowness};

use crate::files::{assert_all, even, folder, location, options, write};
use crate::growing_timeouts::{TIMEOUTS, until_it_stalls};
use crate::requirement;

const MIB: usize = 1 << 20;

/// Offset behind the header and behind the kernel's readahead of it.
const PAST_HEADERS: u64 = 1 << 20;

/// Longer than any step here takes on a busy machine; only a failure waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// One file, and a mount that shows it with injected faults.
struct Faulty {
    file: Vec<u8>,
    mount: Mount,
    backing: TempDir,
}

impl Faulty {
    fn start(set: impl FnOnce(&mut Slowness)) -> Option<Self> {
        let backing = folder();
        let file = even("t", 7, 4, 3 * MIB + 12_345);
        write(&backing.path().join("m.safetensors"), &file);
        let mut slowness = Slowness::default();
        set(&mut slowness);
        // The process that the mount starts runs the function `serves` of `slow.rs`.
        let mount = Mount::start("slow::serves", backing.path(), &slowness);
        Some(Self {
            file,
            mount: requirement::requirement("fuse", mount)?,
            backing,
        })
    }

    fn path(&self) -> PathBuf {
        self.mount.path().join("m.safetensors")
    }

    fn stream(&self, options: LoadOptions) -> TensorStream {
        self.try_stream(options).expect("starts")
    }

    fn try_stream(&self, options: LoadOptions) -> tload::Result<TensorStream> {
        let loader = Loader::open(location(&self.path())).expect("headers have no faults");
        loader.options(options).stream()
    }
}

/// Returns the ways to read a file: by every engine, directly and through the page cache, and
/// mapped.
fn variants() -> Vec<(EngineChoice, CacheMode)> {
    let read = requirement::engines()
        .into_iter()
        .flat_map(|engine| [(engine, CacheMode::Direct), (engine, CacheMode::Buffered)]);
    read.chain([(EngineChoice::Auto, CacheMode::Map)]).collect()
}

fn wanted(engine: EngineChoice, cache: CacheMode) -> LoadOptions {
    options(|it| (it.engine, it.cache) = (engine, cache))
}

/// Receives items until the error, and returns it.
fn failure(stream: &mut TensorStream) -> tload::Error {
    stream.find_map(Result::err).expect("the load must fail")
}

/// Waits until no orphaned memory of the load is left.
fn wait_until_freed(stream: &TensorStream) {
    let start = Instant::now();
    while stream.report().parked_bytes > 0 {
        assert!(start.elapsed() < PATIENCE, "{}", stream.report());
        tload_testbed::pause_between_looks();
    }
}

#[test]
fn failed_read_of_network_file_system_is_retried_and_counted() {
    for (engine, cache) in variants() {
        let Some(faulty) = Faulty::start(|it| {
            // Reads through the page cache are requests of the kernel.
            it.direct = cache == CacheMode::Buffered;
            (it.eio_every, it.fault_from, it.fault_max) = (1, PAST_HEADERS, 3);
        }) else {
            return;
        };
        let mut stream = faulty.stream(wanted(engine, cache));
        let tensors: Result<Vec<_>, _> = stream.by_ref().collect();
        let tensors = match tensors {
            Ok(tensors) => tensors,
            Err(error) => panic!("{engine:?}, {cache}: {}", error.chain()),
        };
        assert_all(&tensors, &[&faulty.file]);
        let report = stream.report();
        if cache == CacheMode::Map && report.read_retries == 0 {
            // The faults hit the kernel's readahead, which reports no errors: the kernel reads such
            // pages again on demand.
            continue;
        }
        assert!(report.read_retries > 0, "{engine:?}, {cache}: {report}");
        assert!(report.retries >= report.read_retries);
        let last = report.last_retry.as_deref().expect("names the read");
        assert!(last.contains("m.safetensors ["), "{last}");
        assert!(last.contains("os error 5"), "{last}");
        assert!(report.to_string().contains(last), "{report}");
    }
}

#[test]
fn read_retries_can_be_disabled_and_exhausted() {
    for (engine, cache) in variants() {
        for retries in [0, 2] {
            let Some(faulty) = Faulty::start(|it| {
                it.direct = cache == CacheMode::Buffered;
                (it.eio_every, it.fault_from) = (1, PAST_HEADERS);
            }) else {
                return;
            };
            let mut asked = wanted(engine, cache);
            asked.retries = Some(retries);
            let mut stream = faulty.stream(asked);
            let error = failure(&mut stream);
            assert_eq!(error.kind(), ErrorKind::Io, "{}", error.chain());
            assert!(error.range().is_some(), "{}", error.chain());
            let report = stream.report();
            assert_eq!(report.read_retries > 0, retries > 0, "{engine:?}: {report}");
        }
    }
}

/// A disk has already retried by itself when it reports EIO. No disk fails here, so the test checks
/// the number of retries that is configured.
#[test]
fn reads_of_local_disks_are_retried_only_on_request() {
    use tload::internal::storage::{FileSource, Retries};
    let folder = folder();
    let path = write(&folder.path().join("m"), b"abc");
    let source = FileSource::open(&location(&path)).expect("opens");
    if source.file_system().network {
        return;
    }
    assert_eq!(source.retries(), Retries::NONE);
    let source = FileSource::open_with(&location(&path), Some(3)).expect("opens");
    assert_eq!(source.retries(), Retries::up_to(3));
    let Some(faulty) = Faulty::start(|_| ()) else {
        return;
    };
    let source = FileSource::open(&location(&faulty.path())).expect("opens");
    assert_eq!(source.retries().max, Retries::default().max);
}

#[test]
fn failed_header_read_is_retried() {
    let Some(faulty) = Faulty::start(|it| {
        it.direct = true;
        (it.eio_every, it.fault_max) = (1, 2);
    }) else {
        return;
    };
    let checkpoint = Checkpoint::open(location(&faulty.path())).expect("the third read succeeds");
    assert_eq!(checkpoint.tensors().len(), 4);
    let Some(faulty) = Faulty::start(|it| (it.direct, it.eio_every) = (true, 1)) else {
        return;
    };
    let store = StoreOptions::new().with("retries", "1").expect("an option");
    let error =
        Checkpoint::open_with(location(&faulty.path()), &store).expect_err("every read fails");
    assert_eq!(error.kind(), ErrorKind::Io, "{}", error.chain());
    let served = faulty.mount.stop().expect("reports its counts");
    assert_eq!(served.faults, 2, "one read and one retry");
}

#[test]
fn hung_mount_ends_in_timeout_and_memory_is_kept_until_answer() {
    for engine in requirement::engines() {
        let Some(faulty) = Faulty::start(|it| {
            (it.hang_every, it.fault_from, it.fault_max) = (1, PAST_HEADERS, 3);
        }) else {
            return;
        };
        let (error, stream) = until_it_stalls(|timeout| {
            let mut asked = wanted(engine, CacheMode::Direct);
            asked.timeout = Some(timeout);
            // The timeout may expire before the files are open.
            let mut stream = faulty.try_stream(asked).ok()?;
            let error = failure(&mut stream);
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
            (stream.report().parked_reads > 0).then_some((error, stream))
        });
        let message = error.message();
        assert!(message.contains("m.safetensors ["), "{message}");
        assert!(message.contains("are still held for"), "{message}");
        let report = stream.report();
        assert_eq!(report.outcome, "timed_out");
        assert!(orphaned_bytes() >= report.parked_bytes);
        assert!(report.to_string().contains("\norphaned "), "{report}");
        // The reads are answered with errors, because the mount ends.
        let served = faulty.mount.stop().expect("reports its counts");
        assert!(served.faults > 0, "{served}");
        wait_until_freed(&stream);
    }
}

/// A failed read is reported although other reads never return.
#[test]
fn error_does_not_wait_for_hung_reads() {
    for engine in requirement::engines() {
        let Some(faulty) = Faulty::start(|it| {
            // The first read hangs before the second one fails.
            (it.hang_every, it.eio_every, it.fault_from) = (1, 2, PAST_HEADERS);
        }) else {
            return;
        };
        let mut asked = wanted(engine, CacheMode::Direct);
        asked.retries = Some(0);
        // Each read is one request to the file system: of two, one fails and one hangs.
        asked.extent_bytes = Some(128 << 10);
        asked.timeout = Some(PATIENCE);
        let mut stream = faulty.stream(asked);
        let error = failure(&mut stream);
        assert_eq!(error.kind(), ErrorKind::Io, "{}", error.chain());
        assert_eq!(error.errno(), Some(5), "{}", error.chain());
        assert!(stream.next().is_none(), "an error is the end");
        let report = stream.report();
        assert!(report.parked_reads > 0, "{engine:?}: {report}");
        drop(faulty.mount);
        wait_until_freed(&stream);
    }
}

#[test]
fn cancel_and_drop_do_not_wait_for_hung_mount() {
    for engine in requirement::engines() {
        let Some(faulty) = Faulty::start(|it| {
            (it.hang_every, it.fault_from) = (1, PAST_HEADERS);
        }) else {
            return;
        };
        let mut stream = faulty.stream(wanted(engine, CacheMode::Direct));
        stream.cancel();
        assert_eq!(failure(&mut stream).kind(), ErrorKind::Cancelled);
        assert!(stream.next().is_none());
        drop(faulty.stream(wanted(engine, CacheMode::Direct)));
        drop(faulty.mount);
        wait_until_freed(&stream);
    }
}

#[test]
fn open_timeout_is_kept_and_names_hung_file() {
    let Some(faulty) = Faulty::start(|it| it.hang_every = 1) else {
        return;
    };
    let store = |timeout: Duration| {
        let seconds = timeout.as_secs_f64().to_string();
        let store = StoreOptions::new().with("open_timeout", seconds);
        store.expect("an option")
    };
    for path in [faulty.path(), faulty.mount.path().to_owned()] {
        until_it_stalls(|timeout| {
            let opened = Checkpoint::open_with(location(&path), store(timeout));
            let error = opened.expect_err("hangs");
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
            (error.location() == faulty.path().to_str()).then_some(())
        });
    }
    let all = [location(&faulty.path())];
    let error = Checkpoint::open_all_with(&all, store(TIMEOUTS[0])).expect_err("hangs");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
}

#[test]
fn backoff_of_read_ends_with_load() {
    for engine in requirement::engines() {
        let Some(faulty) = Faulty::start(|it| {
            (it.eio_every, it.fault_from) = (1, PAST_HEADERS);
        }) else {
            return;
        };
        let mut asked = wanted(engine, CacheMode::Direct);
        // Enough retries for backoffs of many seconds.
        asked.retries = Some(1_000_000);
        // One read after another, each of them one request to the file system.
        (asked.depth, asked.extent_bytes) = (Some(1), Some(128 << 10));
        let mut stream = faulty.stream(asked);
        // The second failure was a retry, so one backoff has passed and another is under way.
        let start = Instant::now();
        while faulty.mount.served().faults < 2 {
            assert!(start.elapsed() < PATIENCE, "{}", stream.report());
        }
        assert!(stream.try_next().is_pending());
        stream.cancel();
        assert_eq!(failure(&mut stream).kind(), ErrorKind::Cancelled);
        // The mount still works: none of its reads hangs.
        wait_until_freed(&stream);
        assert!(stream.report().read_retries > 0, "{}", stream.report());
    }
}

#[test]
fn file_written_to_or_grown_behind_mount_has_changed() {
    for engine in requirement::engines() {
        for grows in [false, true] {
            let Some(faulty) = Faulty::start(|_| ()) else {
                return;
            };
            let loader = Loader::open(location(&faulty.path())).expect("opens");
            let path = faulty.backing.path().join("m.safetensors");
            let file = OpenOptions::new().write(true).open(path).expect("ours");
            if grows {
                file.set_len(faulty.file.len() as u64 + 1).expect("ours");
            } else {
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
                file.set_modified(time).expect("ours");
            }
            // The kernel would answer from the attributes that it received when the file was
            // opened.
            let asked = wanted(engine, CacheMode::Buffered);
            let error = match loader.options(asked).stream() {
                Ok(mut stream) => failure(&mut stream),
                Err(error) => error,
            };
            assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
        }
    }
}
