//! Loads that end at every moment: while a read begins or ends, before the first read, after the
//! last, by any caller and on any thread. Moments are counted in reads, so a seed determines the
//! moment.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tload::{Canceller, ErrorKind, Tensor, TensorStream};
use tload_testing::fixtures::Rng;
use tload_testing::sim::Moments;
use tload_testing::simulation::{Simulation, Watched};

use crate::requirement::variable;
use crate::simulated::{
    PATIENCE, assert_nothing_is_left, assert_right, for_every_seed, simulation,
};

/// Ways to end a load.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    /// On the lane's own thread, from within the engine.
    CancelInside,
    /// By another thread, while the caller waits.
    CancelElsewhere,
    /// By the caller, between two tensors.
    Cancel,
    Drop,
    /// By another thread, to which the stream was moved.
    DropElsewhere,
    /// While the stream holds a waker.
    DropPolled,
    /// By a panic of the caller.
    Panic,
}

const ENDINGS: [Ending; 7] = [
    Ending::CancelInside,
    Ending::CancelElsewhere,
    Ending::Cancel,
    Ending::Drop,
    Ending::DropElsewhere,
    Ending::DropPolled,
    Ending::Panic,
];

/// Moment of the end, as the number of reads that have begun or ended.
#[derive(Default)]
struct Moment {
    seen: AtomicU64,
    has_come: AtomicBool,
    /// Canceller of the load to cancel at that moment.
    canceller: OnceLock<Canceller>,
    inside: bool,
}

impl Moment {
    fn tell(&self, at: u64) {
        if self.seen.fetch_add(1, Ordering::SeqCst) != at {
            return;
        }
        if self.inside {
            // The test sets it as soon as the load has begun.
            self.canceller.wait().cancel();
        }
        self.has_come.store(true, Ordering::SeqCst);
    }

    fn has_come(&self) -> bool {
        self.has_come.load(Ordering::SeqCst)
    }
}

/// Receives items until the end or the moment. Returns whether the stream has ended.
fn receive(stream: &mut TensorStream, moment: &Moment, kept: &mut Vec<Tensor>) -> bool {
    while !moment.has_come() {
        match stream.wait(Duration::from_micros(200)) {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(tensor))) => {
                if kept.len() < 3 {
                    kept.push(tensor);
                }
            }
            Poll::Ready(Some(Err(error))) => {
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", error.chain());
                assert!(stream.next().is_none(), "an error is the end");
                return true;
            }
            Poll::Ready(None) => return true,
        }
    }
    false
}

/// Asserts that only an error follows the moment or, if the load was complete by then, the end.
fn assert_cancelled(stream: &mut TensorStream) {
    match stream.next() {
        Some(Err(error)) => {
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", error.chain());
            // A load that had handed out all its tensors is complete.
            let outcome = stream.report().outcome;
            assert!(
                ["cancelled", "complete"].contains(&outcome.as_str()),
                "{outcome}"
            );
            assert!(stream.next().is_none(), "an error is the end");
        }
        Some(Ok(tensor)) => unreachable!("{tensor:?} came after the end"),
        None => assert_eq!(stream.report().outcome, "complete"),
    }
}

fn end(ending: Ending, mut stream: TensorStream, moment: &Moment, kept: &mut Vec<Tensor>) {
    match ending {
        Ending::CancelElsewhere => {
            let canceller = stream.canceller();
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !moment.has_come() && !is_over.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    canceller.cancel();
                });
                // Wait without a timeout, as callers do.
                let mut rest = stream.by_ref().inspect(|item| {
                    if let Err(error) = item {
                        assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", error.chain());
                    }
                });
                kept.extend(rest.by_ref().map_while(Result::ok).take(3));
                rest.for_each(drop);
                is_over.store(true, Ordering::SeqCst);
            });
        }
        Ending::CancelInside | Ending::Cancel => {
            if !receive(&mut stream, moment, kept) {
                stream.cancel();
                assert_cancelled(&mut stream);
            }
        }
        Ending::Drop => {
            receive(&mut stream, moment, kept);
            drop(stream);
        }
        Ending::DropElsewhere => {
            receive(&mut stream, moment, kept);
            let dropping = std::thread::spawn(move || drop(stream));
            dropping.join().expect("drops anywhere");
        }
        Ending::DropPolled => {
            receive(&mut stream, moment, kept);
            let mut context = Context::from_waker(Waker::noop());
            let polled = poll(&mut stream, &mut context);
            kept.extend(match polled {
                Poll::Ready(Some(Ok(tensor))) => Some(tensor),
                Poll::Ready(Some(Err(_)) | None) | Poll::Pending => None,
            });
            drop(stream);
        }
        Ending::Panic => {
            let consumer = AssertUnwindSafe(|| {
                receive(&mut stream, moment, kept);
                let _unwound = stream;
                std::panic::resume_unwind(Box::new("the caller's"));
            });
            assert!(catch_unwind(consumer).is_err());
        }
    }
}

fn poll(
    stream: &mut TensorStream,
    context: &mut Context<'_>,
) -> Poll<Option<tload::Result<Tensor>>> {
    futures_util::Stream::poll_next(Pin::new(stream), context)
}

fn assert_settles(simulation: &Simulation, watched: &Watched) {
    // Dropping a stream waits for its lanes for a limited time; a busy machine may need longer.
    let started = Instant::now();
    while watched.usage().charged > 0 && started.elapsed() < PATIENCE {
        tload_testbed::pause_between_looks();
    }
    assert_nothing_is_left(simulation, watched);
}

#[test]
fn load_can_be_cancelled_at_any_read() {
    let came = AtomicU64::new(0);
    for_every_seed(|seed| {
        let mut rng = Rng::new(seed ^ 0xE4D);
        let mut simulation = simulation(&mut rng);
        let ending = rng.pick(&ENDINGS);
        // Each read begins once and ends once; some moments are after the last.
        let reads = simulation.plan().extents.len() as u64;
        let at = rng.below(2 * reads + 2);
        let moment = Arc::new(Moment {
            inside: ending == Ending::CancelInside,
            ..Moment::default()
        });
        for engine in &mut simulation.engines {
            let moment = Arc::clone(&moment);
            engine.moments = Moments::new(move || moment.tell(at));
        }
        let (stream, watched) = simulation.stream();
        assert!(moment.canceller.set(stream.canceller()).is_ok());
        let mut kept = Vec::new();
        end(ending, stream, &moment, &mut kept);
        came.fetch_add(u64::from(moment.has_come()), Ordering::SeqCst);
        for tensor in &kept {
            assert_right(&simulation, tensor);
        }
        drop(kept);
        assert_settles(&simulation, &watched);
    });
    // With a single seed the moment may never come.
    assert!(came.load(Ordering::SeqCst) > 1000 || variable("TLOAD_SEED").is_some());
}
