//! Whatever happens to a load, its threads, descriptors and mappings are gone afterwards. A process of its own: it counts them.

use std::time::{Duration, Instant};

use tload::source::Cache;
use tload::testing::fixtures::{FileBuilder, Rng};
use tload::{Ceiling, Dtype, EngineChoice, Loader, Location, Options};

/// Open descriptors, threads and mappings of this process.
fn counts() -> (usize, usize, usize) {
    let entries = |folder| std::fs::read_dir(folder).expect("procfs").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    (
        entries("/proc/self/fd"),
        entries("/proc/self/task"),
        maps.lines().count(),
    )
}

/// The kernel takes rings apart after they are closed: their mappings are gone at once, their threads soon.
fn settled(wanted: (usize, usize, usize)) -> (usize, usize, usize) {
    let started = Instant::now();
    loop {
        let now = counts();
        if (now.0 <= wanted.0 && now.1 <= wanted.1) || started.elapsed() > Duration::from_secs(10) {
            return now;
        }
        std::thread::yield_now();
    }
}

/// Four shards of large and small tensors.
fn checkpoint() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made the folder");
    let mut rng = Rng::new(1);
    for shard in 0..4 {
        let mut file = FileBuilder::new();
        for tensor in 0..12 {
            let bytes = if tensor % 3 == 0 { 2 << 20 } else { 20_000 };
            let name = format!("{shard}.{tensor}");
            file = file.tensor(&name, Dtype::U8, &[bytes], &rng.bytes(bytes));
        }
        std::fs::write(
            folder.path().join(format!("{shard}.safetensors")),
            file.build(),
        )
        .expect("the temporary folder takes files");
    }
    folder
}

/// One load that ends in one of [`ENDINGS`] ways, after some of its 48 tensors.
fn load(rng: &mut Rng, location: &Location, engine: EngineChoice, ending: usize) {
    let mut options = Options::default();
    options.engine = engine;
    options.cache = rng.pick(&[Cache::Auto, Cache::Buffered]);
    options.lanes = Some(1 + rng.index(4));
    options.memory_limit = Some(rng.pick(&[3 << 20, 64 << 20]));
    options.timeout = rng.once_in(3).then_some(Duration::from_secs(100));
    let loader = Loader::open(location).expect("opens").options(options);
    if ending == 5 {
        let ceiling = rng.pick(&[Ceiling::Recycled, Ceiling::Fresh]);
        loader.ceiling(ceiling).expect("reads");
        return;
    }
    let mut stream = loader.stream().expect("starts");
    let canceller = stream.canceller();
    let received = rng.index(49);
    let kept: Vec<_> = stream.by_ref().take(received).collect();
    match ending {
        0 => drop(stream),
        1 => canceller.cancel(),
        2 => drop((stream, loader)),
        3 => assert!(stream.all(|tensor| tensor.is_ok())),
        _ => {
            canceller.cancel();
            assert!(stream.next().is_none_or(|tensor| tensor.is_err()));
        }
    }
    assert!(kept.iter().all(Result::is_ok));
}

const ENDINGS: usize = 6;

#[test]
fn nothing_is_left_of_a_load() {
    let folder = checkpoint();
    let location = Location::from(folder.path());
    let mut engines = vec![EngineChoice::Pread];
    // Other tests say loudly when there is no ring.
    if tload::probe::ring().available {
        engines.push(EngineChoice::Uring);
        if cfg!(feature = "tokio-uring") {
            engines.push(EngineChoice::TokioUring);
        }
    }
    let mut rng = Rng::new(2);
    let mut rounds = |count: usize| {
        for round in 0..count {
            let engine = engines[round % engines.len()];
            load(&mut rng, &location, engine, round / engines.len() % ENDINGS);
        }
    };
    // What the process needs once: the allocator's arenas, the standard library's own.
    rounds(2 * ENDINGS);
    let before = counts();
    rounds(240);
    let after = settled(before);
    assert!(
        after.0 <= before.0,
        "descriptors: {} before, {} after",
        before.0,
        after.0
    );
    assert!(
        after.1 <= before.1,
        "threads: {} before, {} after",
        before.1,
        after.1
    );
    // A new thread may cost the allocator an arena: some slack, but not one mapping per load.
    assert!(
        after.2 <= before.2 + 60,
        "mappings: {} before, {} after",
        before.2,
        after.2
    );
}
