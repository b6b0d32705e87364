//! Loads from a file system that is slow, answers with short reads, fails or hangs: FUSE, with a
//! server that injects faults (`tload_testbed::slowfs`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tload::CacheMode;
use tload::{EngineChoice, Error, ErrorKind, LoadOptions, Loader, Report, Tensor};
use tload_testbed::slowfs::{Fault, Mount, Options as Slowness, Rule, serve_if_asked};

use crate::files::{assert_all, assert_same, even, folder, location, mixed, options, write};
use crate::growing_timeouts::until_it_stalls;
use crate::requirement;

const MIB: usize = 1 << 20;

/// Offset behind all headers and behind the kernel's readahead of them: the first MiB of each file.
const PAST_HEADERS: u64 = 1 << 20;

/// Longer than any step here takes; only a failure waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Not a test: the process that [`Mount::start`] starts runs this function to serve the file
/// system.
#[test]
fn serves() {
    serve_if_asked();
}

/// Checkpoint on a disk, and a slow mount that shows it.
struct Slow {
    files: Vec<Vec<u8>>,
    mount: Mount,
    _backing: TempDir,
}

impl Slow {
    fn start(files: &[Vec<u8>], set: impl FnOnce(&mut Slowness)) -> Option<Self> {
        let backing = folder();
        for (shard, file) in files.iter().enumerate() {
            write(&backing.path().join(shard_name(shard)), file);
        }
        let mut slowness = Slowness {
            latency: Duration::from_millis(1),
            ..Slowness::default()
        };
        set(&mut slowness);
        let mount = Mount::start("slow::serves", backing.path(), &slowness);
        Some(Self {
            files: files.to_vec(),
            mount: requirement::requirement("fuse", mount)?,
            _backing: backing,
        })
    }

    fn path(&self, shard: usize) -> PathBuf {
        self.mount.path().join(shard_name(shard))
    }

    /// Loads the checkpoint. Returns the tensors received, the error if any, and the report.
    fn load(&self, options: LoadOptions) -> (Vec<Tensor>, Option<Error>, Report) {
        let loader = Loader::open(location(self.mount.path())).expect("headers have no faults");
        let mut stream = match loader.options(options).stream() {
            Ok(stream) => stream,
            Err(error) => return (Vec::new(), Some(error), Report::default()),
        };
        let mut tensors = Vec::new();
        let mut failure = None;
        for next in stream.by_ref() {
            match next {
                Ok(tensor) => tensors.push(tensor),
                Err(error) => failure = Some(error),
            }
        }
        (tensors, failure, stream.report())
    }

    fn assert_all(&self, tensors: &[Tensor]) {
        let files: Vec<_> = self.files.iter().map(Vec::as_slice).collect();
        assert_all(tensors, &files);
    }

    /// Asserts that all bytes of `tensors` are those of their files.
    fn assert_right(&self, tensors: &[Tensor]) {
        for tensor in tensors {
            let shard = tensor.name().split('.').next().expect("named so");
            assert_same(
                tensor,
                &self.files[shard.parse::<usize>().expect("named so")],
            );
        }
    }
}

fn shard_name(shard: usize) -> String {
    format!("m-{shard}.safetensors")
}

/// Returns three shards of small tensors, and one whose reads the kernel splits into several
/// requests.
fn assorted() -> Vec<Vec<u8>> {
    let small = |shard: u64| mixed(&format!("{shard}."), shard, 20, 200_000);
    let mut files: Vec<_> = (0..3).map(small).collect();
    files.push(even("3.", 3, 2, 5 * MIB + 4097));
    files
}

fn large() -> Vec<Vec<u8>> {
    (0..2)
        .map(|shard| even(&format!("{shard}."), shard, 3, 4 * MIB + 12_345))
        .collect()
}

fn variants() -> Vec<(EngineChoice, CacheMode)> {
    let caches = [
        CacheMode::Auto,
        CacheMode::Direct,
        CacheMode::Buffered,
        CacheMode::Drop,
    ];
    let with = |engine| caches.map(|cache| (engine, cache));
    requirement::engines().into_iter().flat_map(with).collect()
}

fn wanted(engine: EngineChoice, cache: CacheMode) -> LoadOptions {
    options(|it| (it.engine, it.cache) = (engine, cache))
}

/// Asserts that an error names the file as the caller knows it, and a range of bytes inside it.
fn assert_placed(error: &Error, slow: &Slow) {
    let path = error.location().expect("names the file");
    let shard = (0..slow.files.len()).find(|&shard| slow.path(shard) == Path::new(path));
    let shard = shard.expect("names a file of the checkpoint");
    let range = error.range().expect("names the bytes");
    let len = slow.files[shard].len() as u64;
    assert!(
        range.start < range.end && range.end <= len,
        "{range:?} of {len}"
    );
}

#[test]
fn every_mount_mode_returns_right_bytes() {
    for (direct, async_dio) in [(false, true), (false, false), (true, true), (true, false)] {
        let set = |it: &mut Slowness| (it.direct, it.async_dio) = (direct, async_dio);
        let Some(slow) = Slow::start(&assorted(), set) else {
            return;
        };
        for (engine, cache) in variants() {
            let (tensors, failure, report) = slow.load(wanted(engine, cache));
            assert!(failure.is_none(), "{engine:?}, {cache}: {failure:?}");
            slow.assert_all(&tensors);
            let is_direct = cache != CacheMode::Buffered;
            assert_eq!(report.direct_bytes > 0, is_direct, "{engine:?}, {cache}");
        }
        let served = slow.mount.stop().expect("reports its counts");
        assert!(served.reads > 0 && served.faults == 0, "{served}");
    }
}

/// Many reads in flight make slow storage fast.
#[test]
fn ring_keeps_many_direct_reads_in_flight() {
    if requirement::uring().is_none() {
        return;
    }
    let Some(slow) = Slow::start(&large(), |_| ()) else {
        return;
    };
    let options = options(|it| {
        (it.engine, it.cache) = (EngineChoice::Uring, CacheMode::Direct);
        it.extent_bytes = Some(MIB as u64);
    });
    // No read is answered before eight are in flight.
    slow.mount
        .fault(&Rule::always(Fault::Hold).from_byte(PAST_HEADERS));
    let (tensors, failure, _) = std::thread::scope(|scope| {
        let load = scope.spawn(|| slow.load(options));
        let are_held = slow.mount.wait_for_held(8, PATIENCE);
        slow.mount.clear_faults();
        assert!(are_held, "{}", slow.mount.served());
        load.join().expect("loads")
    });
    assert!(failure.is_none(), "{failure:?}");
    slow.assert_all(&tensors);
}

#[test]
fn short_read_is_continued() {
    let faults = |it: &mut Slowness| {
        // No read is answered from the page cache, which takes a short answer for the end of the
        // file.
        it.direct = true;
        (it.short_every, it.fault_from) = (2, PAST_HEADERS);
    };
    let Some(slow) = Slow::start(&large(), faults) else {
        return;
    };
    for (engine, cache) in variants() {
        let (tensors, failure, report) = slow.load(wanted(engine, cache));
        assert!(failure.is_none(), "{engine:?}, {cache}: {failure:?}");
        slow.assert_all(&tensors);
        assert!(report.short_reads > 0, "{engine:?}, {cache}");
    }
}

/// Short reads of readers that use direct I/O by themselves. Few answers are short, because the
/// rest of a read may come through the page cache, which bears one short answer but not a second
/// one (see below). The kernel reads the end of a `pread` through it (`generic_file_read_iter`); we
/// read through it when a read was short so often that less than one unit of direct I/O is left
/// (1 MiB, eight times).
#[test]
fn short_direct_read_is_continued() {
    for engine in requirement::engines() {
        let fault_max = if engine == EngineChoice::Uring { 4 } else { 1 };
        let faults = |it: &mut Slowness| {
            (it.short_every, it.fault_from, it.fault_max) = (2, PAST_HEADERS, fault_max);
        };
        let Some(slow) = Slow::start(&large(), faults) else {
            return;
        };
        let (tensors, failure, report) = slow.load(wanted(engine, CacheMode::Direct));
        assert!(failure.is_none(), "{engine:?}: {failure:?}");
        slow.assert_all(&tensors);
        assert!(report.short_reads > 0 || engine == EngineChoice::Pread);
        let served = slow.mount.stop().expect("reports its counts");
        assert!(served.faults > 0, "{served}");
    }
}

/// The kernel takes a short answer for the new end of the file, and returns zeros for bytes behind
/// it in the same page. Only one answer is short: with several at the same time the kernel forgets
/// some of the ends and returns zeros as contents of the file (seen with plain `pread` on Linux
/// 6.18), which no reader can detect.
#[test]
fn short_answer_to_page_cache_never_yields_wrong_bytes() {
    for engine in requirement::engines() {
        let faults = |it: &mut Slowness| {
            (it.short_every, it.fault_from, it.fault_max) = (5, PAST_HEADERS, 1);
        };
        let Some(slow) = Slow::start(&large(), faults) else {
            return;
        };
        let (tensors, failure, _) = slow.load(wanted(engine, CacheMode::Buffered));
        slow.assert_right(&tensors);
        match failure {
            None => slow.assert_all(&tensors),
            Some(error) => {
                assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
                assert_placed(&error, &slow);
            }
        }
        let served = slow.mount.stop().expect("reports its counts");
        assert_eq!(served.faults, 1);
    }
}

#[test]
fn failed_read_is_error_naming_file_and_range() {
    for (engine, cache) in variants() {
        let faults = |it: &mut Slowness| {
            it.direct = true;
            // Every read fails: the kernel turns a `pread` whose second request failed into a short
            // read, and the rest is read again.
            (it.eio_every, it.fault_from) = (1, PAST_HEADERS);
        };
        let Some(slow) = Slow::start(&large(), faults) else {
            return;
        };
        let mut asked = wanted(engine, cache);
        // More retries would only take longer.
        asked.retries = Some(1);
        let (tensors, failure, report) = slow.load(asked);
        slow.assert_right(&tensors);
        let error = failure.expect("a read failed");
        assert_eq!(error.kind(), ErrorKind::Io, "{}", error.chain());
        assert_eq!(report.outcome, "io");
        assert!(
            error.chain().contains("Input/output error"),
            "{}",
            error.chain()
        );
        assert_placed(&error, &slow);
    }
}

/// A read that is never answered keeps its memory, and delays neither the caller nor other reads.
#[test]
fn load_times_out_while_storage_hangs() {
    for engine in requirement::engines() {
        let faults = |it: &mut Slowness| (it.hang_every, it.fault_from) = (3, PAST_HEADERS);
        let Some(slow) = Slow::start(&large(), faults) else {
            return;
        };
        let (tensors, failure, _) = until_it_stalls(|timeout| {
            let mut options = wanted(engine, CacheMode::Direct);
            options.timeout = Some(timeout);
            let ended = slow.load(options);
            (ended.2.parked_reads > 0).then_some(ended)
        });
        slow.assert_right(&tensors);
        let error = failure.expect("some tensors never come");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
        // Ends the reads that hang, and with them the remaining threads of the load.
        let served = slow.mount.stop().expect("reports its counts");
        assert!(served.faults > 0, "{served}");
    }
}
