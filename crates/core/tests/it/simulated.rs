//! Thousands of whole loads on simulated storage: random plans, orders, budgets, lanes, short reads
//! and faults.
//!
//! A failure prints its seed; `TLOAD_SEED=17 cargo test -p tload simulated` runs one seed again.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use tload::internal::schedule::{Depth, InFlight};
use tload::internal::storage::{MemorySource, Retries};
use tload::{ErrorKind, Order, Tensor};
use tload_testing::fixtures::Rng;
use tload_testing::receive;
use tload_testing::sim::{INJECTED, SimConfig};
use tload_testing::simulation::{Simulation, Watched};

/// Time that threads may take before a check gives up on them.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

use crate::requirement::{say, variable};

const SEEDS: u64 = 3000;

/// Number of elements of the longest tensor.
const ELEMENTS_MAX: usize = 60_000;

pub(crate) fn for_every_seed(check: impl Fn(u64)) {
    let one = variable("TLOAD_SEED").map(|text| text.parse().expect("TLOAD_SEED is a number"));
    let seeds = one.map_or(0..SEEDS, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(seed))) {
            say(&format!("repeat with TLOAD_SEED={seed}"));
            resume_unwind(panic);
        }
    }
}

pub(crate) fn simulation(rng: &mut Rng) -> Simulation {
    Simulation::random(rng, ELEMENTS_MAX)
}

/// Adds read faults to a third of the simulations. Returns the extents that fail.
fn add_faults(rng: &mut Rng, simulation: &mut Simulation) -> BTreeSet<usize> {
    let extents = simulation.plan().extents.len();
    if extents == 0 || !rng.once_in(3) {
        return BTreeSet::new();
    }
    let faults: BTreeSet<_> = (0..=rng.index(3)).map(|_| rng.index(extents)).collect();
    for engine in &mut simulation.engines {
        engine.faults.clone_from(&faults);
    }
    faults
}

pub(crate) fn assert_right(simulation: &Simulation, tensor: &Tensor) {
    let range = tensor.info().file_range();
    let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
    let source = &simulation.sources[tensor.info().shard()];
    let wanted = &source.bytes()[start.expect("small")..end.expect("small")];
    assert!(tensor.bytes() == wanted, "{tensor:?}: wrong bytes");
    assert_eq!(
        tensor.as_ptr().addr() % tensor.dtype().alignment(),
        0,
        "{tensor:?}: alignment"
    );
}

pub(crate) fn assert_nothing_is_left(simulation: &Simulation, watched: &Watched) {
    let usage = watched.usage();
    assert!(
        usage.peak <= simulation.memory_limit,
        "{usage:?}: beyond the limit of {}",
        simulation.memory_limit
    );
    // A lane that a busy machine runs late drops its last memory after the stream's end.
    let started = Instant::now();
    while watched.usage().charged > 0 && started.elapsed() < PATIENCE {
        tload_testbed::pause_between_looks();
    }
    assert_eq!(
        watched.usage().charged,
        0,
        "bytes still charged after the load"
    );
    assert_eq!(watched.in_flight(), InFlight::default(), "still in flight");
}

/// Asserts that an error is an injected one and names an extent that was to fail.
fn assert_injected(error: &tload::Error, simulation: &Simulation, faults: &BTreeSet<usize>) {
    assert_eq!((error.kind(), error.message()), (ErrorKind::Io, INJECTED));
    let plan = simulation.plan();
    let named = faults.iter().any(|&extent| {
        let extent = &plan.extents[extent];
        let source = &simulation.sources[extent.source];
        error.range() == Some(extent.offset..extent.offset + extent.needed as u64)
            && error.location()
                == Some(&tload::internal::storage::Source::location(source).to_string())
    });
    assert!(named, "{error}: not one of {faults:?}");
}

/// One lane on this thread: equal seeds run identically.
#[test]
fn one_lane_delivers_every_tensor_once_or_the_injected_error() {
    for_every_seed(|seed| {
        let mut rng = Rng::new(seed);
        let mut simulation = simulation(&mut rng);
        let faults = add_faults(&mut rng, &mut simulation);
        let keeps = rng.once_in(2);
        let received = RefCell::new(BTreeMap::new());
        let (result, watched) = simulation.run_alone(&|index, tensor| {
            assert_right(&simulation, &tensor);
            receive(&tensor);
            let tensor = keeps.then_some(tensor);
            let twice = received.borrow_mut().insert(index, tensor).is_some();
            assert!(!twice, "tensor {index} came twice");
        });
        let mut received = received.into_inner();
        match result {
            Ok(()) => {
                assert!(faults.is_empty(), "a failed read went unnoticed");
                let with_bytes = (0..simulation.tensors.len())
                    .filter(|&index| simulation.tensors[index].byte_len() > 0);
                assert!(received.keys().copied().eq(with_bytes), "all with bytes");
            }
            Err(error) => assert_injected(&error, &simulation, &faults),
        }
        // The tensors kept are still right after everything has been read.
        for tensor in received.values().flatten() {
            assert_right(&simulation, tensor);
        }
        received.clear();
        assert_nothing_is_left(&simulation, &watched);
    });
}

/// Lanes on threads, and the stream that a caller receives.
#[test]
fn stream_delivers_every_tensor_once_or_injected_error() {
    for_every_seed(|seed| {
        let mut rng = Rng::new(!seed);
        let mut simulation = simulation(&mut rng);
        let faults = add_faults(&mut rng, &mut simulation);
        let (stream, watched) = simulation.stream();
        let mut kept = Vec::new();
        let mut names = Vec::new();
        let mut failure = None;
        for item in stream {
            match item {
                Ok(tensor) => {
                    assert_right(&simulation, &tensor);
                    names.push(tensor.name().to_owned());
                    if rng.once_in(2) {
                        kept.push(tensor);
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        let all: Vec<_> = simulation
            .tensors
            .iter()
            .map(|info| info.name().to_owned())
            .collect();
        if simulation.order == Order::File {
            assert_eq!(names, all[..names.len()], "file order");
        }
        match &failure {
            None => {
                assert!(faults.is_empty(), "a failed read went unnoticed");
                names.sort();
                let mut all = all;
                all.sort();
                assert_eq!(names, all, "each once");
                assert_eq!(watched.verifications(), 1, "checked once, at the end");
            }
            Some(error) => assert_injected(error, &simulation, &faults),
        }
        for tensor in kept.drain(..) {
            assert_right(&simulation, &tensor);
        }
        assert_nothing_is_left(&simulation, &watched);
    });
}

/// Reads with transient errors: every byte is right, or the load fails, and either way no memory is
/// left charged.
#[test]
fn transient_failures_are_retried_or_end_in_error() {
    let (retried, failed) = (Cell::new(0), Cell::new(0));
    for_every_seed(|seed| {
        let mut rng = Rng::new(seed ^ 0x5EED);
        let mut simulation = simulation(&mut rng);
        let most = rng.pick(&[0, 1, 8]);
        for engine in &mut simulation.engines {
            engine.passing_once_in = rng.pick(&[0, 2, 20]);
            engine.retries = Retries::up_to(most);
        }
        let (mut stream, watched) = simulation.stream();
        let items: Vec<_> = stream.by_ref().collect();
        let report = stream.report();
        if most == 0 {
            assert_eq!(report.read_retries, 0);
        }
        retried.set(retried.get() + report.read_retries);
        let mut tensors = 0;
        for item in items {
            match item {
                Ok(tensor) => {
                    assert_right(&simulation, &tensor);
                    tensors += 1;
                }
                Err(error) => {
                    assert_eq!((error.kind(), error.message()), (ErrorKind::Io, INJECTED));
                    failed.set(failed.get() + 1);
                    tensors = simulation.tensors.len();
                }
            }
        }
        assert_eq!(tensors, simulation.tensors.len(), "each once");
        drop(stream);
        assert_nothing_is_left(&simulation, &watched);
    });
    let one = variable("TLOAD_SEED").is_some();
    assert!(one || (retried.get() > 0 && failed.get() > 0));
}

/// Lanes without reads end together: exactly one of them is the last.
#[test]
fn load_is_checked_once_when_lanes_end_together() {
    for round in 0..2000 {
        let simulation = Simulation {
            sources: vec![MemorySource::new("empty", [])],
            layouts: Vec::new(),
            tensors: Vec::new(),
            order: Order::Ready,
            depth: Depth::fixed(1, 1),
            memory_limit: 4096,
            engines: vec![SimConfig::new(round, 1); 6],
        };
        let (mut stream, watched) = simulation.stream();
        assert!(stream.next().is_none());
        assert_eq!(watched.verifications(), 1, "round {round}");
    }
}

/// The caller leaves or cancels after some tensors: all memory is released.
#[test]
fn abandoned_stream_returns_all_memory() {
    for_every_seed(|seed| {
        let mut rng = Rng::new(seed ^ 0xABAD);
        let simulation = simulation(&mut rng);
        let (mut stream, watched) = simulation.stream();
        let canceller = stream.canceller();
        let wanted = rng.index(simulation.tensors.len() + 1);
        let kept: Vec<_> = stream
            .by_ref()
            .take(wanted)
            .map(|tensor| tensor.expect("no faults here"))
            .collect();
        if rng.once_in(2) {
            canceller.cancel();
            match stream.next() {
                Some(Err(error)) => {
                    assert_eq!(error.kind(), ErrorKind::Cancelled);
                    assert!(stream.next().is_none(), "an error is the end");
                }
                Some(Ok(tensor)) => panic!("{tensor:?} came after the end"),
                // It was complete already.
                None => assert_eq!(wanted, simulation.tensors.len()),
            }
        }
        drop(stream);
        for tensor in &kept {
            assert_right(&simulation, tensor);
        }
        drop(kept);
        // Dropping a stream waits for its lanes for a limited time; a busy machine may need longer.
        let started = Instant::now();
        while watched.usage().charged > 0 && started.elapsed() < PATIENCE {
            tload_testbed::pause_between_looks();
        }
        // The canceller still exists: it must not keep memory.
        assert_nothing_is_left(&simulation, &watched);
        drop(canceller);
    });
}
