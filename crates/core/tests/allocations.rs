//! Reads make no allocations: a load of many reads makes as many as a load of few. Runs in a
//! process of its own, since it counts allocations.

use tload::CacheMode;
use tload::{Dtype, EngineChoice, LoadOptions, Loader, Location};
use tload_testing::fixtures::{FileBuilder, Rng};

#[global_allocator]
static COUNTED: dhat::Alloc = dhat::Alloc;

const TENSOR_BYTES: usize = 32 << 20;

/// Allowance for the plan's lists and the engines' queues, which grow by doubling.
const GROWTH: u64 = 64;

/// Loads with reads of `extent` bytes. Returns the number of allocations and of reads.
fn allocations(
    location: &Location,
    engine: EngineChoice,
    cache: CacheMode,
    extent: u64,
) -> (u64, u64) {
    let mut options = LoadOptions::default();
    options.engine = engine;
    options.cache = cache;
    options.extent_bytes = Some(extent);
    // Equal numbers of reads in flight: engines reserve room for each.
    options.depth = Some(4);
    options.lanes = Some(1);
    let loader = Loader::open(location).expect("valid").options(options);
    let before = dhat::HeapStats::get().total_blocks;
    let mut stream = loader.stream().expect("starts");
    let bytes: u64 = stream
        .by_ref()
        .map(|tensor| tensor.expect("loads").byte_len())
        .sum();
    assert_eq!(bytes, TENSOR_BYTES as u64);
    let reads = stream.report().extents;
    (dhat::HeapStats::get().total_blocks - before, reads)
}

#[test]
fn read_makes_no_allocation() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made the folder");
    let path = folder.path().join("model.safetensors");
    let bytes = Rng::new(1).bytes(TENSOR_BYTES);
    let file = FileBuilder::new().tensor("large", Dtype::U8, &[TENSOR_BYTES], &bytes);
    std::fs::write(&path, file.build()).expect("the temporary folder takes files");
    let location = Location::from_path(&path);

    for engine in [EngineChoice::Auto, EngineChoice::Pread] {
        for cache in [CacheMode::Buffered, CacheMode::Direct] {
            // Create the state that a process creates once, such as thread-local variables.
            allocations(&location, engine, cache, 1 << 20);
            let (few, few_reads) = allocations(&location, engine, cache, 1 << 20);
            let (many, many_reads) = allocations(&location, engine, cache, 32 << 10);
            assert!(
                many_reads >= few_reads + 800,
                "{engine}, {cache:?}: {few_reads} and {many_reads} reads"
            );
            assert!(
                many <= few + GROWTH,
                "{engine}, {cache:?}: {few} allocations for {few_reads} reads, {many} for {many_reads}"
            );
        }
    }
}
