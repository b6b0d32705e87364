//! One load with random options and a random end; every tensor is compared with what was written.

#![expect(unsafe_code, reason = "reads memory that the stub calls a device")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use tload::{Error, ErrorKind, Tensor, TensorStream};
use tload_testing::fixtures::Rng;
use tload_testing::sim::INJECTED;
use tload_testing::simulation::Simulation;

use crate::copies;
use crate::counting::{Ended, Outcome};
use crate::places::{Contents, Land, Place};

/// Elements of the longest simulated tensor.
const ELEMENTS_MAX: usize = 60_000;

/// Planned end of a load.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Complete,
    /// Cancelled by another thread after so many yields.
    Cancel {
        turns: u64,
    },
    /// Dropped after so many tensors.
    Drop {
        after: usize,
    },
}

impl Ending {
    fn random(rng: &mut Rng) -> Self {
        match rng.below(4) {
            0 => Self::Cancel {
                turns: rng.below(300),
            },
            1 => Self::Drop {
                after: rng.index(70),
            },
            _ => Self::Complete,
        }
    }
}

/// Runs one load. Panics on wrong bytes, and on failures where no fault is injected.
pub(crate) fn run(land: &Land, place: Place, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    if place == Place::Simulated {
        return simulated(&mut rng);
    }
    if place == Place::Copies {
        return copies::run(land, &mut rng, seed);
    }
    let ending = Ending::random(&mut rng);
    let started = land
        .loader(&mut rng, place)
        .and_then(|loader| loader.stream());
    let stream = match started {
        Ok(stream) => stream,
        Err(error) => {
            assert_fair(place, &error, seed);
            return Outcome {
                ended: Ended::Failed,
                tensors: 0,
                bytes: 0,
            };
        }
    };
    let (outcome, error) = receive(stream, ending, &mut rng, |tensor| {
        assert_right(&land.contents, tensor, seed);
    });
    if let Some(error) = &error {
        assert_fair(place, error, seed);
    }
    if outcome.ended == Ended::Complete {
        assert_eq!(outcome.tensors, land.contents.len() as u64, "seed {seed}");
    }
    outcome
}

/// Asserts that a failure is expected at this place and names its location.
pub(crate) fn assert_fair(place: Place, error: &Error, seed: u64) {
    assert!(
        place.may_fail(),
        "{place:?}, seed {seed}: {}",
        error.chain()
    );
    let kinds = [
        ErrorKind::Io,
        ErrorKind::Remote,
        ErrorKind::TimedOut,
        ErrorKind::Changed,
    ];
    let is_fair = if place.is_garbled() {
        error.kind() == ErrorKind::Corrupt && error.tensor().is_some()
    } else {
        kinds.contains(&error.kind())
    };
    assert!(
        is_fair && error.location().is_some(),
        "{place:?}, seed {seed}: {}",
        error.chain()
    );
}

/// Calls `cancel` after so many yields, unless it is over before.
pub(crate) fn after(turns: u64, is_over: &AtomicBool, cancel: impl FnOnce()) {
    for _ in 0..turns {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        std::thread::yield_now();
    }
    cancel();
}

/// Receives tensors, keeps some of them for a while, and compares all of them.
fn receive(
    mut stream: TensorStream,
    ending: Ending,
    rng: &mut Rng,
    check: impl Fn(&Tensor),
) -> (Outcome, Option<Error>) {
    let mut outcome = Outcome {
        ended: Ended::Complete,
        tensors: 0,
        bytes: 0,
    };
    let (canceller, is_over) = (stream.canceller(), AtomicBool::new(false));
    let failure = std::thread::scope(|scope| {
        if let Ending::Cancel { turns } = ending {
            let is_over = &is_over;
            scope.spawn(move || after(turns, is_over, || canceller.cancel()));
        }
        let most = match ending {
            Ending::Drop { after } => after,
            Ending::Complete | Ending::Cancel { .. } => usize::MAX,
        };
        let mut kept = Vec::new();
        let mut failure = None;
        let mut received = 0;
        while received < most {
            match stream.next() {
                None => break,
                Some(Err(error)) => failure = Some(error),
                Some(Ok(tensor)) => {
                    received += 1;
                    check(&tensor);
                    outcome.tensors += 1;
                    outcome.bytes += tensor.byte_len();
                    if rng.once_in(4) && kept.len() < 8 {
                        kept.push(tensor);
                    }
                }
            }
        }
        if received == most {
            outcome.ended = Ended::Dropped;
        }
        drop(stream);
        is_over.store(true, Ordering::Relaxed);
        // Kept tensors are still right after the load.
        kept.iter().for_each(check);
        failure
    });
    match failure {
        None => (outcome, None),
        Some(error) if error.kind() == ErrorKind::Cancelled => {
            outcome.ended = Ended::Cancelled;
            (outcome, None)
        }
        Some(error) => {
            outcome.ended = Ended::Failed;
            (outcome, Some(error))
        }
    }
}

fn assert_right(contents: &Contents, tensor: &Tensor, seed: u64) {
    let name = tensor.name();
    let wanted = &contents[name];
    assert_eq!(tensor.byte_len(), wanted.len() as u64, "{name}");
    if wanted.is_empty() {
        return;
    }
    let found = if tensor.ordinal().is_some() {
        // SAFETY: the stub's memory is host memory, the tensor keeps it alive, and all of its bytes
        // have arrived.
        unsafe { std::slice::from_raw_parts(tensor.as_ptr(), wanted.len()) }
    } else {
        tensor.bytes()
    };
    assert!(found == wanted, "{name}, seed {seed}: wrong bytes");
}

/// Runs a load on simulated storage, of which some reads fail.
fn simulated(rng: &mut Rng) -> Outcome {
    let seed = rng.bits();
    let mut simulation = Simulation::random(&mut Rng::new(seed), ELEMENTS_MAX);
    let extents = simulation.plan().extents.len();
    let fails = extents > 0 && rng.once_in(4);
    if fails {
        let faults = BTreeSet::from([rng.index(extents)]);
        for engine in &mut simulation.engines {
            engine.faults.clone_from(&faults);
        }
    }
    let (stream, watched) = simulation.stream();
    let (outcome, error) = receive(stream, Ending::random(rng), rng, |tensor| {
        let range = tensor.info().file_range();
        let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
        let source = &simulation.sources[tensor.info().shard()];
        let wanted = &source.bytes()[start.expect("small")..end.expect("small")];
        assert!(
            tensor.bytes() == wanted,
            "{tensor:?}, simulated seed {seed}"
        );
    });
    if let Some(error) = error {
        assert!(fails && error.message() == INJECTED, "{}", error.chain());
    }
    let usage = watched.usage();
    assert!(usage.peak <= simulation.memory_limit, "{usage:?}");
    outcome
}
