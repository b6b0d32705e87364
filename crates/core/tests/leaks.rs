//! Whatever happens to a load, and at whatever moment: its threads, descriptors, mappings and memory are gone afterwards. A process
//! of its own: it counts them.
//!
//! `TLOAD_LOADS=20000 cargo test -p tload --test leaks` loads so many times.

#![expect(unsafe_code, reason = "counts what the allocator gives out")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::{Duration, Instant};

use tload::source::Cache;
use tload::testing::fixtures::{FileBuilder, Rng};
use tload::{Ceiling, Dtype, EngineChoice, Loader, Location, Options, TensorStream};

/// Loads, after those that make what the process needs once.
const LOADS: usize = 1000;

/// What may be left on the heap of all of them, bytes and pieces: less than one for each.
const HEAP_BYTES_MAX: isize = 64 << 10;
const HEAP_PIECES_MAX: isize = 200;

/// Resident memory that may be there in addition, bytes: the allocator's own slack, and less than the smallest region for each.
const RESIDENT_BYTES_MAX: usize = 16 << 20;

const SHARDS: usize = 4;
const TENSORS: usize = 12;
const LARGE: usize = 400 << 10;

/// The system's allocator, and what it has given out.
struct Counted;

static BYTES: AtomicIsize = AtomicIsize::new(0);
static PIECES: AtomicIsize = AtomicIsize::new(0);

fn count(size: usize, sign: isize) {
    let size = isize::try_from(size).unwrap_or(isize::MAX);
    BYTES.fetch_add(sign * size, Ordering::Relaxed);
    PIECES.fetch_add(sign, Ordering::Relaxed);
}

// SAFETY: everything is the system's allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

/// What a process has.
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

    /// What `self` has beyond `before`, if that is more than the little it may be.
    fn excess(&self, before: &Self) -> Option<&'static str> {
        let excesses = [
            ("descriptors", self.descriptors > before.descriptors),
            ("threads", self.threads > before.threads),
            // A new thread may cost the allocator an arena: some slack, but not one mapping per load.
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

    /// The kernel takes rings apart after they are closed: their mappings are gone at once, their threads soon.
    fn settled(before: &Self) -> Self {
        let started = Instant::now();
        loop {
            let now = Self::now();
            if now.excess(before).is_none() || started.elapsed() > Duration::from_secs(60) {
                return now;
            }
            std::thread::yield_now();
        }
    }
}

/// Shards of large and small tensors.
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

/// Every way of reading that this machine has.
fn ways() -> Vec<(EngineChoice, Cache)> {
    let mut engines = vec![EngineChoice::Pread];
    // Other tests say loudly when there is no ring.
    if tload::probe::ring().available {
        engines.push(EngineChoice::Uring);
        if cfg!(feature = "tokio-uring") {
            engines.push(EngineChoice::TokioUring);
        }
    }
    let mut ways = vec![(EngineChoice::Auto, Cache::Map)];
    for engine in engines {
        ways.extend([(engine, Cache::Auto), (engine, Cache::Buffered)]);
    }
    ways
}

/// In the midst of the reads that bring the next tensors: when some of their bytes have come.
fn wait_for_bytes(rng: &mut Rng, stream: &TensorStream) {
    let progress = stream.progress();
    let wanted = progress.bytes_read + rng.below(LARGE as u64);
    for _ in 0..rng.below(20_000) {
        if stream.progress().bytes_read >= wanted {
            return;
        }
        // Not a yield: on a busy machine that is milliseconds.
        std::hint::spin_loop();
    }
}

const ENDINGS: usize = 9;

/// One load that ends in one of [`ENDINGS`] ways, after some of its tensors: before the first, after the last, or between.
fn load(rng: &mut Rng, folder: &Path, (engine, cache): (EngineChoice, Cache), ending: usize) {
    let mut options = Options::default();
    (options.engine, options.cache) = (engine, cache);
    options.lanes = Some(1 + rng.index(4));
    options.extent_bytes = Some(rng.pick(&[64 << 10, 256 << 10, 4 << 20]));
    options.memory_limit = Some(rng.pick(&[2 << 20, 64 << 20]));
    options.timeout = rng.once_in(3).then_some(Duration::from_secs(100));
    let loader = Loader::open(&Location::from(folder)).expect("opens");
    let loader = loader.options(options);
    if ending == 5 && cache != Cache::Map {
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

/// A file that has become shorter since it was opened: an error, in the midst of other reads.
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
    // The contents of what is behind do not matter here.
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
fn nothing_is_left_of_a_load() {
    let folder = checkpoint();
    let ways = ways();
    let mut rng = Rng::new(2);
    let mut rounds = |count: usize| {
        for round in 0..count {
            let way = ways[round % ways.len()];
            load(&mut rng, folder.path(), way, round / ways.len() % ENDINGS);
        }
    };
    // What the process needs once: the allocator's arenas, the standard library's own.
    rounds(2 * ENDINGS * ways.len());
    tload::release_staging();
    let before = Counts::now();
    rounds(loads());
    tload::release_staging();
    let after = Counts::settled(&before);
    let excess = after.excess(&before);
    assert!(excess.is_none(), "{excess:?}: {before:?}, {after:?}");
}
