//! Whole loads without a disk, for Miri: everything from a header to a tensor except the system
//! calls. Under Miri, loads are few and small, and mappings are uncleared pieces of the heap:
//! reading a byte that was never written is reported.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tload::internal::plan::Arrangement;
use tload::internal::sink::HostSink;
use tload::{Canceller, Dtype, ErrorKind, Tensor};
use tload_testing::conformance::sink_suite;
use tload_testing::fixtures::{FileBuilder, Rng};
use tload_testing::sim::Moments;
use tload_testing::simulation::{Simulation, Watched};
use tload_testing::{parse_header, receive};

const SEEDS: u64 = if cfg!(miri) { 6 } else { 300 };

/// Number of elements of the longest tensor.
const ELEMENTS_MAX: usize = if cfg!(miri) { 120 } else { 60_000 };

fn simulation(rng: &mut Rng) -> Simulation {
    let mut simulation = Simulation::random(rng, ELEMENTS_MAX);
    // Small enough that regions are not cut from a stride: Miri tracks every byte.
    simulation.memory_limit = simulation.memory_limit.min(4 * simulation.limit_min());
    simulation
}

fn assert_right(simulation: &Simulation, tensor: &Tensor) {
    let range = tensor.info().file_range();
    let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
    let source = &simulation.sources[tensor.info().shard()];
    let wanted = &source.bytes()[start.expect("small")..end.expect("small")];
    assert!(tensor.bytes() == wanted, "{tensor:?}: wrong bytes");
}

fn assert_settles(watched: &Watched) {
    while watched.usage().charged > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn one_lane() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let mut simulation = simulation(&mut rng);
        let extents = simulation.plan().extents.len();
        let fails = extents > 0 && rng.once_in(4);
        if fails {
            simulation.engines[0].faults = BTreeSet::from([rng.index(extents)]);
        }
        let (result, watched) = simulation.run_alone(&|_, tensor| {
            assert_right(&simulation, &tensor);
            receive(&tensor);
        });
        assert_eq!(result.is_err(), fails, "seed {seed}");
        assert_eq!(watched.usage().charged, 0);
    }
}

#[test]
fn stream_read_to_end_returns_all_tensors() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(!seed);
        let simulation = simulation(&mut rng);
        let (stream, watched) = simulation.stream();
        let mut kept = Vec::new();
        for tensor in stream {
            let tensor = tensor.expect("no faults here");
            assert_right(&simulation, &tensor);
            if rng.once_in(2) {
                kept.push(tensor);
            }
        }
        for tensor in &kept {
            assert_right(&simulation, tensor);
        }
        drop(kept);
        assert_settles(&watched);
    }
}

#[test]
fn stream_cancelled_during_read_settles() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed ^ 0xE4D);
        let mut simulation = simulation(&mut rng);
        let at = rng.below(2 * simulation.plan().extents.len() as u64 + 1);
        let moment = Arc::new((AtomicU64::new(0), OnceLock::<Canceller>::new()));
        for engine in &mut simulation.engines {
            let moment = Arc::clone(&moment);
            engine.moments = Moments::new(move || {
                if moment.0.fetch_add(1, Ordering::SeqCst) == at {
                    moment.1.wait().cancel();
                }
            });
        }
        let (stream, watched) = simulation.stream();
        assert!(moment.1.set(stream.canceller()).is_ok());
        for item in stream {
            match item {
                Ok(tensor) => assert_right(&simulation, &tensor),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled),
            }
        }
        assert_settles(&watched);
    }
}

#[test]
fn header_parser_handles_valid_and_corrupt_input() {
    let mut rng = Rng::new(1);
    let file = (0..6).fold(FileBuilder::new(), |file, index| {
        file.tensor(
            &format!("t{index}"),
            Dtype::U8,
            &[3, index],
            &rng.bytes(3 * index),
        )
    });
    let file = file.build();
    let (_, rest) = file.split_at(8);
    let header = &rest[..rest.len() - 3 * (1 + 2 + 3 + 4 + 5)];
    let bytes = file.len() as u64;
    assert_eq!(parse_header(header, bytes).ok(), Some(6));
    for _ in 0..SEEDS {
        let mut broken = header.to_vec();
        let at = rng.index(broken.len());
        broken[at] = rng.bytes(1)[0];
        // Either result is fine.
        let _ = parse_header(&broken, bytes);
        let _ = parse_header(&header[..at], bytes);
    }
}

#[test]
fn host_sink_passes_suite() {
    sink_suite(
        "host",
        Arrangement::InPlace,
        &|request, lanes| {
            let sink = HostSink::new(Arc::clone(&request.plan), Arc::clone(&request.tensors));
            vec![sink; lanes]
        },
        &|(index, tensor)| (*index, tensor.bytes().to_vec()),
    );
}
