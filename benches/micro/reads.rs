//! Reads: the pipeline over simulated storage, and the engines over a file.

use std::any::Any;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput};
use tload::CacheMode;
use tload::internal::engine::{self, Engine, EngineSetup, Job, Wait};
use tload::internal::memory::{EventCount, Slab};
use tload::internal::plan::Layout;
use tload::internal::schedule::Depth;
use tload::internal::storage::{FileSource, MemorySource, ReadFile, RefusedDirect};
use tload::{Dtype, EngineChoice, Location, Order, Result};
#[cfg(target_os = "linux")]
use tload_testing::conformance::EngineRequest;
use tload_testing::fixtures::tensor_info;
use tload_testing::null::NullEngine;
use tload_testing::sim::SimConfig;
use tload_testing::simulation::Simulation;

use crate::is_measuring;

const MIB: usize = 1 << 20;

/// Bytes of one read of an engine.
const READ_BYTES: usize = MIB;

/// Reads in flight.
const DEPTH: usize = 16;

/// Measures a load without a disk: the overhead of the whole core beside the reads, which matters
/// most for small extents. The storage copies the bytes.
pub(crate) fn pipeline(criterion: &mut Criterion) {
    const SOURCES: usize = 4;
    const TENSORS: usize = 16;
    const TENSOR_BYTES: usize = MIB;
    let tensors = (0..SOURCES * TENSORS).map(|index| {
        let (source, start) = (index / TENSORS, index % TENSORS * TENSOR_BYTES);
        let range = start as u64..(start + TENSOR_BYTES) as u64;
        let shape = vec![TENSOR_BYTES];
        tensor_info(format!("t{index}"), Dtype::U8, shape, source, range)
    });
    let tensors: Vec<_> = tensors.collect();
    let contents: Arc<[u8]> = vec![7; TENSORS * TENSOR_BYTES].into();
    let mut group = criterion.benchmark_group("pipeline");
    group.throughput(Throughput::Bytes((SOURCES * TENSORS * TENSOR_BYTES) as u64));
    for extent_bytes in [64 << 10, 1 << 20] {
        let layout = Layout {
            extent_bytes,
            alignment: 4096,
            gap_bytes: 0,
        };
        let simulation = Simulation {
            sources: vec![MemorySource::new("m", Arc::clone(&contents)); SOURCES],
            layouts: vec![layout; SOURCES],
            tensors: tensors.clone(),
            order: Order::Ready,
            depth: Depth::fixed(DEPTH, 1 << 30),
            memory_limit: 64 << 20,
            engines: vec![SimConfig {
                delay_max: 0,
                short_once_in: 0,
                ..SimConfig::new(1, DEPTH)
            }],
        };
        group.bench_function(BenchmarkId::new("extents", extent_bytes), |bencher| {
            bencher.iter(|| {
                let (result, _) = simulation.run_alone(&|_, tensor| {
                    tload_testing::receive(&tensor);
                });
                result.expect("nothing fails");
            });
        });
    }
}

/// Measures loads that read nothing, by several lanes: the ceiling that the core's own work sets,
/// and the cost of lanes that meet at the same locks.
pub(crate) fn hand_over(criterion: &mut Criterion) {
    const SOURCES: usize = 4;
    const TENSOR_BYTES: usize = 4 * MIB;
    let tensors_each = if is_measuring() { 256 } else { 4 };
    let source_bytes = tensors_each * TENSOR_BYTES;
    let tensors = (0..SOURCES * tensors_each).map(|index| {
        let (source, start) = (index / tensors_each, index % tensors_each * TENSOR_BYTES);
        let range = start as u64..(start + TENSOR_BYTES) as u64;
        tensor_info(
            format!("t{index}"),
            Dtype::U8,
            vec![TENSOR_BYTES],
            source,
            range,
        )
    });
    let mut simulation = Simulation {
        sources: Vec::new(),
        layouts: Vec::new(),
        tensors: tensors.collect(),
        order: Order::Ready,
        depth: Depth::fixed(64, 1 << 30),
        memory_limit: 1 << 30,
        engines: Vec::new(),
    };
    let mut group = criterion.benchmark_group("hand-over");
    group.throughput(Throughput::Bytes((SOURCES * source_bytes) as u64));
    group.sample_size(20);
    for extent_bytes in [256 << 10, 1 << 20, 4 << 20] {
        let layout = Layout {
            extent_bytes,
            alignment: 4096,
            gap_bytes: 0,
        };
        simulation.layouts = vec![layout; SOURCES];
        for lanes in [1, 2, 8] {
            let name = BenchmarkId::new(format!("{lanes} lanes"), extent_bytes);
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    let engines = (0..lanes).map(|_| NullEngine::new(64));
                    for tensor in simulation.stream_over(engines) {
                        drop(tensor.expect("nothing fails"));
                    }
                });
            });
        }
    }
}

/// Writes a file on the disk that cargo builds on. Its pages are then in the page cache.
fn file(folder: &Path, bytes: usize) -> FileSource {
    let path = folder.join("bytes");
    let mut file = std::fs::File::create(&path).expect("the directory is writable");
    let piece: Vec<u8> = (0..=u8::MAX).cycle().take(MIB).collect();
    for _ in 0..bytes / MIB {
        file.write_all(&piece).expect("the disk has room");
    }
    file.sync_all().expect("the disk has room");
    FileSource::open(&Location::from_path(&path)).expect("just written")
}

/// Reads of a source by an engine, from the first byte to the last, into reused memory.
struct Reading {
    engine: Box<dyn Engine>,
    slab: Arc<Slab>,
    bytes: usize,
    /// Value that is dropped after the engine.
    _keep: Box<dyn Any>,
}

impl Reading {
    fn open(source: &FileSource, cache: CacheMode, choice: EngineChoice) -> Result<Self> {
        let file = ReadFile::open(source.clone(), cache, &RefusedDirect::default())?;
        let bytes = usize::try_from(source.file().metadata().map_or(0, |it| it.len()));
        let (kind, _) = engine::choose(choice, &[], None);
        let setup = EngineSetup::new(vec![file].into(), DEPTH);
        Ok(Self {
            engine: engine::open(kind, true, &setup)?.engine,
            slab: Slab::new(READ_BYTES, DEPTH, Arc::<EventCount>::default())?,
            bytes: bytes.expect("it is small"),
            _keep: Box::new(()),
        })
    }

    /// Opens the engine of a rank that copies from its leader's memory.
    #[cfg(target_os = "linux")]
    fn shared(contents: &[Vec<u8>], copiers: usize) -> Result<Self> {
        let slab = Slab::new(READ_BYTES, DEPTH, Arc::<EventCount>::default())?;
        let request = EngineRequest {
            contents,
            shrink: None,
            depth: DEPTH,
            slab: Arc::clone(&slab),
        };
        let opened = tload_testing::shared_engine(&request, copiers);
        Ok(Self {
            engine: opened.engine,
            slab,
            bytes: contents[0].len(),
            _keep: opened.keep,
        })
    }

    fn run(&mut self) {
        let mut done = Vec::new();
        let mut next = 0;
        loop {
            while next < self.bytes && self.engine.in_flight() < DEPTH {
                let Some(lease) = self.slab.try_lease(READ_BYTES) else {
                    break;
                };
                self.engine.submit(Job {
                    extent: next / READ_BYTES,
                    source: 0,
                    offset: next as u64,
                    needed: READ_BYTES,
                    lease,
                });
                next += READ_BYTES;
            }
            if self.engine.in_flight() == 0 {
                return;
            }
            self.engine.reap(Wait::ForOne, &mut done);
            for done in done.drain(..) {
                done.result.expect("the file is there");
            }
        }
    }
}

pub(crate) fn engines(criterion: &mut Criterion) {
    let bytes = if is_measuring() { 256 * MIB } else { 8 * MIB };
    let folder =
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo creates the directory");
    let source = file(folder.path(), bytes);
    let mut group = criterion.benchmark_group("engine");
    group.throughput(Throughput::Bytes(bytes as u64));
    // One iteration takes as long as many of the other benches.
    group.sample_size(20);
    for cache in [CacheMode::Auto, CacheMode::Buffered] {
        for name in EngineChoice::NAMES {
            let choice = name.parse().expect("its own name");
            if choice == EngineChoice::Auto {
                continue;
            }
            match Reading::open(&source, cache, choice) {
                Ok(mut reading) => {
                    group.bench_function(BenchmarkId::new(*name, cache), |bencher| {
                        bencher.iter(|| reading.run());
                    });
                }
                Err(error) => say(&format!("SKIPPED: needs {name}: {}", error.chain())),
            }
        }
    }
}

/// Measures copies of one rank from its leader's memory, which is filled already.
#[cfg(target_os = "linux")]
pub(crate) fn shared(criterion: &mut Criterion) {
    let bytes = if is_measuring() { 256 * MIB } else { 8 * MIB };
    let contents = [(0..=u8::MAX).cycle().take(bytes).collect()];
    let mut group = criterion.benchmark_group("shared memory");
    group.throughput(Throughput::Bytes(bytes as u64));
    group.sample_size(20);
    for copiers in [1, 2, 4] {
        let mut reading = Reading::shared(&contents, copiers).expect("memory is there");
        // All of it is published by then.
        reading.run();
        group.bench_function(BenchmarkId::new("copiers", copiers), |bencher| {
            bencher.iter(|| reading.run());
        });
    }
}

fn say(line: &str) {
    // A closed standard error is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}
