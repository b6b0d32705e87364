//! Leaks of loads that end in any way at any moment: their threads, descriptors, mappings and
//! memory must be gone afterwards. Runs in a process of its own, since it counts them.
//!
//! `TLOAD_LOADS=20000 cargo test -p tload --test leaks` sets the number of loads.

#![expect(unsafe_code, reason = "counts the allocations of the process")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::{Duration, Instant};

use tload::CacheMode;
use tload::internal::Ceiling;
use tload::{Dtype, EngineChoice, LoadOptions, Loader, Location, TensorStream};
use tload_testing::fixtures::{FileBuilder, Rng};

/// Number of loads, after those that create the state that a process creates once.
const LOADS: usize = 1000;

/// Maximum left on the heap after all loads, bytes and allocations: less than one for each load.
const HEAP_BYTES_MAX: isize = 64 << 10;
const HEAP_PIECES_MAX: isize = 200;

/// Maximum growth of resident memory, bytes: the allocator's own slack, and less than the smallest
/// region for each load.
const RESIDENT_BYTES_MAX: usize = 16 << 20;

const SHARDS: usize = 4;
const TENSORS: usize = 12;
const LARGE: usize = 400 << 10;

/// System allocator that counts live allocations.
struct Counted;

static BYTES: AtomicIsize = AtomicIsize::new(0);
static PIECES: AtomicIsize = AtomicIsize::new(0);

fn count(size: usize, sign: isize) {
    let size = isize::try_from(size).unwrap_or(isize::MAX);
    BYTES.fetch_add(sign * size, Ordering::Relaxed);
    PIECES.fetch_add(sign, Ordering::Relaxed);
}

// SAFETY: every call is passed to the system allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

/// Resources of the process.
#[derive(Clone, Copy, Debug)]
struct Counts {
    descriptors: usize,
    threads: usize,
    mappings: usize,
    resident_bytes: usize,
    heap_bytes: isize,
    heap_pieces: isize,
}

impl Counts {
    fn now() -> Self {
        let entries = |folder| std::fs::read_dir(folder).expect("procfs").count();
        let text = |file| std::fs::read_to_string(file).expect("procfs");
        let pages = text("/proc/self/statm");
        let pages: usize = pages
            .split(' ')
            .nth(1)
            .and_then(|pages| pages.parse().ok())
            .expect("procfs");
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            mappings: text("/proc/self/maps").lines().count(),
            resident_bytes: pages * rustix::param::page_size(),
            heap_bytes: BYTES.load(Ordering::Relaxed),
            heap_pieces: PIECES.load(Ordering::Relaxed),
        }
    }

    /// Returns a resource of which `self` exceeds `before` by more than the allowed slack.
    fn excess(&self, before: &Self) -> Option<&'static str> {
        let excesses = [
            ("descriptors", self.descriptors > before.descriptors),
            ("threads", self.threads > before.threads),
            // The allocator may create an arena for a new thread: some slack, but not one mapping
            // per load.
            ("mappings", self.mappings > before.mappings + 60),
            (
                "resident memory",
                self.resident_bytes > before.resident_bytes + RESIDENT_BYTES_MAX,
            ),
            (
                "bytes of the heap",
                self.heap_bytes > before.heap_bytes + HEAP_BYTES_MAX,
            ),
            (
                "pieces of the heap",
                self.heap_pieces > before.heap_pieces + HEAP_PIECES_MAX,
            ),
        ];
        let found = excesses.into_iter().find(|(_, exceeds)| *exceeds);
        found.map(|(what, _)| what)
    }

    /// Waits until no resource exceeds `before`, up to a minute: the kernel removes the mappings of
    /// a closed ring at once, and its threads a little later.
    fn settled(before: &Self) -> Self {
        let started = Instant::now();
        loop {
            let now = Self::now();
            if now.excess(before).is_none() || started.elapsed() > Duration::from_secs(60) {
                return now;
            }
            tload_testbed::pause_between_looks();
        }
    }
}

/// Writes shards of large and small tensors.
fn checkpoint() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made the folder");
    let mut rng = Rng::new(1);
    for shard in 0..SHARDS {
        let mut file = FileBuilder::new();
        for tensor in 0..TENSORS {
            let bytes = if tensor % 3 == 0 { LARGE } else { 10_000 };
            let name = format!("{shard}.{tensor}");
            file = file.tensor(&name, Dtype::U8, &[bytes], &rng.bytes(bytes));
        }
        std::fs::write(shard_path(folder.path(), shard), file.build())
            .expect("the temporary folder takes files");
    }
    folder
}

fn shard_path(folder: &Path, shard: usize) -> std::path::PathBuf {
    folder.join(format!("{shard}.safetensors"))
}

/// Returns every engine and cache mode that this machine supports.
fn ways() -> Vec<(EngineChoice, CacheMode)> {
    let mut ways = vec![(EngineChoice::Auto, CacheMode::Map)];
    for engine in tload::internal::engine::available() {
        ways.extend([(engine, CacheMode::Auto), (engine, CacheMode::Buffered)]);
    }
    ways
}

/// Waits into the reads of the next tensors, until some of their bytes have arrived.
fn wait_for_bytes(rng: &mut Rng, stream: &TensorStream) {
    let progress = stream.progress();
    let wanted = progress.bytes_read + rng.below(LARGE as u64);
    for _ in 0..rng.below(20_000) {
        if stream.progress().bytes_read >= wanted {
            return;
        }
        // Not a yield, which takes milliseconds on a busy machine.
        std::hint::spin_loop();
    }
}

const ENDINGS: usize = 9;

/// Runs one load that ends in one of [`ENDINGS`] ways: before its first tensor, after the last, or
/// in between.
fn load(rng: &mut Rng, folder: &Path, (engine, cache): (EngineChoice, CacheMode), ending: usize) {
    let mut options = LoadOptions::default();
    (options.engine, options.cache) = (engine, cache);
    options.lanes = Some(1 + rng.index(4));
    options.extent_bytes = Some(rng.pick(&[64 << 10, 256 << 10, 4 << 20]));
    options.memory_limit = Some(rng.pick(&[2 << 20, 64 << 20]));
    options.timeout = rng.once_in(3).then_some(Duration::from_secs(100));
    let loader = Loader::open(Location::from(folder)).expect("opens");
    let loader = loader.options(options);
    if ending == 5 && cache != CacheMode::Map {
        let ceiling = rng.pick(&[Ceiling::Recycled, Ceiling::Fresh]);
        loader.ceiling(ceiling).expect("reads");
        return;
    }
    if ending == 6 {
        return fails(rng, folder, &loader);
    }
    let mut stream = loader.stream().expect("starts");
    let canceller = stream.canceller();
    let received = rng.index(SHARDS * TENSORS + 1);
    let kept: Vec<_> = stream.by_ref().take(received).collect();
    wait_for_bytes(rng, &stream);
    match ending {
        0 => drop(stream),
        1 => canceller.cancel(),
        2 => drop((stream, loader)),
        3 => assert!(stream.all(|tensor| tensor.is_ok())),
        7 => {
            let dropping = std::thread::spawn(move || drop(stream));
            dropping.join().expect("drops anywhere");
        }
        8 => std::thread::scope(|scope| {
            scope.spawn(|| canceller.cancel());
            stream.by_ref().for_each(drop);
        }),
        _ => {
            canceller.cancel();
            assert!(stream.next().is_none_or(|tensor| tensor.is_err()));
        }
    }
    assert!(kept.iter().all(Result::is_ok));
}

/// Truncates a file after it was opened: an error, amid other reads.
fn fails(rng: &mut Rng, folder: &Path, loader: &Loader) {
    let path = shard_path(folder, rng.index(SHARDS));
    let file = OpenOptions::new().write(true).open(&path).expect("ours");
    let whole = file.metadata().expect("ours").len();
    let cut = 1000 + rng.below(whole - 1000);
    file.set_len(cut).expect("ours");
    let failed = match loader.stream() {
        Err(_) => true,
        Ok(mut stream) => stream.any(|tensor| tensor.is_err()),
    };
    assert!(failed, "the file ends at {cut} of {whole}");
    // The contents behind the cut do not matter here.
    file.set_len(whole).expect("ours");
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests are steered from outside; the library is not"
)]
fn loads() -> usize {
    std::env::var("TLOAD_LOADS").map_or(LOADS, |text| text.parse().expect("a number"))
}

#[test]
fn load_leaves_no_resources() {
    let folder = checkpoint();
    let ways = ways();
    let mut rng = Rng::new(2);
    let mut rounds = |count: usize| {
        for round in 0..count {
            let way = ways[round % ways.len()];
            load(&mut rng, folder.path(), way, round / ways.len() % ENDINGS);
        }
    };
    // Create the state that a process creates once: arenas of the allocator, state of the standard
    // library.
    rounds(2 * ENDINGS * ways.len());
    tload::release_staging();
    let before = Counts::now();
    rounds(loads());
    tload::release_staging();
    let after = Counts::settled(&before);
    let excess = after.excess(&before);
    assert!(excess.is_none(), "{excess:?}: {before:?}, {after:?}");
}
