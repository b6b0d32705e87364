//! Early end of a load: failure, deadline or cancellation. None of them waits for storage.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;

use super::state::Abandoned;
use super::{Handover, TensorStream};
use crate::error::{Error, ErrorKind, Result};
use crate::load::lane::{self, Refused};
use crate::load::orphaned;
use crate::load::pipeline::Waiting;
use crate::sync::threads::Builder;

/// Time for which a load that has failed, or whose deadline has passed, waits for its reads in
/// flight before it reports the error. Reads that can be cancelled, or that storage completes,
/// return in that time; others are orphaned. Longer than a read takes on any working storage that
/// is not overloaded (2026-11), and short compared with deadlines, which are seconds.
const GRACE: Duration = Duration::from_millis(500);

impl TensorStream {
    /// Creates the stream of a load that has nothing to read. Other processes are told that it has
    /// finished, which no lane does.
    pub(crate) fn empty(handover: Arc<Handover>) -> Result<Self> {
        handover.setup.end.verify(false)?;
        Ok(Self::new(handover, Vec::new()))
    }

    /// Drops the stream of a load that cannot begin. Lanes that have begun may already be reading;
    /// reads that cannot be cancelled are orphaned.
    pub(crate) fn refused(handover: Arc<Handover>, refused: Refused) -> Error {
        let none_reads = handover.lock().state.lanes_missing(refused.missing);
        if none_reads {
            // The last lane closes the feed; if no lane reads, it is closed here.
            handover.setup.feed.close();
        }
        // Record the error first: dropping the stream would make cancellation the reason for the
        // end.
        handover.abandon(refused.error.again());
        drop(Self::new(handover, refused.threads));
        refused.error
    }
}

impl Handover {
    /// Records that a lane has failed and waits for its reads in flight. The other threads wait no
    /// longer than `GRACE` for it.
    pub fn lane_failing(self: &Arc<Self>, error: &Error) {
        let ended = self.lock().state.lane_failing(error);
        let Some(ended) = ended else {
            return;
        };
        // The reference is weak, because the load must belong to its owner alone once the lanes
        // have ended.
        let handover = Arc::downgrade(self);
        let started = Builder::new()
            .name("tload-grace".to_owned())
            .spawn(move || {
                let waited = ended.recv_timeout(GRACE);
                if waited == Err(RecvTimeoutError::Timeout)
                    && let Some(handover) = handover.upgrade()
                {
                    handover.orphan();
                }
            });
        if started.is_err() {
            self.orphan();
        }
    }

    /// Ends a failed load: reads that have not returned by now are orphaned.
    fn orphan(&self) {
        let has_begun = self.lock().state.orphan();
        if has_begun {
            // A panic of a write that the failure has stopped is ignored: the failure says more.
            let _ = self.close_gate();
            self.tell(None);
        }
    }

    /// Stops new reads and further writes to the caller's memory. A panic becomes an error, because
    /// the caller waits until the gate is closed.
    fn close_gate(&self) -> Result<()> {
        let closed = lane::caught(|| {
            self.setup.feed.stop();
            self.setup.gate.close();
            Ok(())
        });
        // The deadline thread is no longer needed.
        self.lanes_news.notify_all();
        closed
    }

    /// Lets the caller know of an early end, once the gate is closed. `better` replaces the error.
    fn tell(&self, better: Option<Error>) {
        orphaned::register(&self.setup.feed);
        let mut inner = self.lock();
        inner.state.gate_closed(better);
        self.wake(inner);
    }

    /// Ends the load with `error` unless it has ended: starts no more reads and frees queued
    /// tensors.
    pub(in crate::load) fn abandon(&self, error: Error) {
        if let Some(stopped) = self.stop(error) {
            self.tell(stopped.closed.err());
        }
    }

    /// Begins to end the load with `error`, unless it has ended.
    fn stop(&self, error: Error) -> Option<Stopped> {
        let abandoned = self.lock().state.abandon(error);
        let Abandoned {
            discarded,
            is_cause,
        } = abandoned?;
        drop(discarded);
        let closed = self.close_gate();
        Some(Stopped { is_cause, closed })
    }

    /// Waits until all lanes have ended, for `timeout` at most. Returns whether they have.
    pub(in crate::load) fn wait_for_lanes(&self, timeout: Duration) -> bool {
        let inner = self
            .lanes_news
            .wait_timeout_while(self.lock(), timeout, |inner| !inner.state.lanes_ended());
        inner.state.lanes_ended()
    }

    /// Ends the load if `timeout` passes before it has ended by itself.
    pub(in crate::load) fn watch(&self, timeout: Duration) {
        let Some(deadline) = self.setup.started.checked_add(timeout) else {
            return;
        };
        let mut inner = self.lock();
        while inner.state.is_active() && !inner.state.lanes_ended() {
            let now = Instant::now();
            if now >= deadline {
                drop(inner);
                return self.expire(timeout);
            }
            inner = self.lanes_news.wait_timeout(inner, deadline - now);
        }
    }

    /// Ends a load whose `timeout` has passed. The error says which reads have not returned.
    fn expire(&self, timeout: Duration) {
        let feed = &self.setup.feed;
        let waited = feed.waiting();
        let (location, is_checking) = {
            let inner = self.lock();
            (inner.report.location.clone(), inner.state.is_checking())
        };
        let waits = if is_checking {
            CHECKING.to_owned()
        } else {
            waited.to_string()
        };
        let timed_out = |held| timed_out(timeout, &waits, held).with_location(&location);
        let Some(stopped) = self.stop(timed_out(None)) else {
            return;
        };
        // Reads may return a moment after they were cancelled.
        let all_back = self.wait_for_lanes(GRACE);
        let held = feed.waiting();
        let is_held = stopped.is_cause && !all_back && held.reads > 0;
        let held = is_held.then(|| timed_out(Some(&held)));
        self.tell(stopped.closed.err().or(held));
    }
}

/// Result of stopping a load early, before the caller is told.
struct Stopped {
    /// False if an earlier failure is the error that the caller receives.
    is_cause: bool,
    /// Result of closing the write gate.
    closed: Result<()>,
}

/// Stage of a load that has read everything.
const CHECKING: &str =
    "everything has been read, but the final checks of files, objects and ranks have not ended";

/// Error of a load that exceeded its timeout. `waits` says what the load was waiting for at the
/// deadline, `held` which of its reads cannot be cancelled.
fn timed_out(timeout: Duration, waits: &str, held: Option<&Waiting>) -> Error {
    let held = held.map_or_else(String::new, |held| format!("; {}", held.held()));
    let message = format!("the load took longer than its timeout of {timeout:?}; {waits}{held}");
    let hint = if held.is_empty() {
        "raise ‹timeout›, or see the stages in the report for the bottleneck"
    } else {
        "check the storage, which does not respond; or raise ‹timeout›"
    };
    Error::new(ErrorKind::TimedOut, message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::task::Poll;

    use tload_memory::convert::Conversions;

    use super::*;
    use crate::format::{Dtype, Entry};
    use crate::load::pipeline::Feed;
    use crate::load::stream::{Canceller, LastSteps, StreamSetup};
    use crate::memory::WriteGate;
    use crate::options::Order;
    use crate::plan::{Arrangement, build};
    use crate::report::Report;
    use crate::schedule::{Depth, Groups, Schedule};
    use crate::sync::event_count::EventCount;
    use crate::tensor::TensorInfo;

    /// Shared state of a load without tensors, with this number of lanes.
    fn handover(lanes: usize, gate: &Arc<WriteGate>) -> Arc<Handover> {
        verified(lanes, gate, |_| Ok(()))
    }

    /// Like `handover`; the last lane ends with `verify`.
    fn verified(
        lanes: usize,
        gate: &Arc<WriteGate>,
        verify: impl Fn(bool) -> Result<()> + Send + Sync + 'static,
    ) -> Arc<Handover> {
        Handover::new(setup(lanes, gate, verify))
    }

    fn setup(
        lanes: usize,
        gate: &Arc<WriteGate>,
        verify: impl Fn(bool) -> Result<()> + Send + Sync + 'static,
    ) -> StreamSetup {
        let plan = Arc::new(build(&[], &[], &[Arrangement::InPlace]));
        let schedule = Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(1, 1)));
        let events = Arc::<EventCount>::default();
        StreamSetup {
            started: Instant::now(),
            feed: Arc::new(Feed::new(plan, schedule, Vec::new(), None, events)),
            gate: Arc::clone(gate),
            counters: Arc::default(),
            tensors: Arc::new([]),
            conversions: Conversions::default(),
            order: Order::Ready,
            lanes,
            report: Report::default(),
            end: Box::new(Verifies(verify)),
        }
    }

    /// Last steps that only verify.
    struct Verifies<F>(F);

    impl<F: Fn(bool) -> Result<()> + Send + Sync> LastSteps for Verifies<F> {
        fn verify(&self, is_whole: bool) -> Result<()> {
            self.0(is_whole)
        }

        fn complete(&self, _report: &mut Report) {}
    }

    fn error(message: &str) -> Error {
        Error::new(ErrorKind::Io, message).with_source(format!("why {message}"))
    }

    #[test]
    fn first_failing_lane_determines_error_in_any_end_order() {
        for first_ends_first in [true, false] {
            let handover = handover(3, &Arc::default());
            handover.lane_failing(&error("first"));
            handover.lane_failing(&error("second"));
            let endings = if first_ends_first {
                ["first", "second"]
            } else {
                ["second", "first"]
            };
            for ending in endings {
                handover.lane_ended(Err(error(ending)));
            }
            handover.lane_ended(Ok(()));
            let mut stream = TensorStream::new(handover, Vec::new());
            let told = stream.next().expect("an item").expect_err("has failed");
            assert_eq!(told.chain(), "first\n  caused by: why first");
            assert!(stream.next().is_none());
        }
    }

    #[test]
    fn panic_in_final_check_becomes_load_error() {
        for (ending, wanted) in [
            (Ok(()), "a lane panicked: compared too late"),
            // A read that failed before says more.
            (Err(error("failed")), "failed"),
        ] {
            let handover = verified(2, &Arc::default(), |_| panic!("compared too late"));
            let lanes = [Ok(()), ending].map(|ending| {
                let handover = Arc::clone(&handover);
                std::thread::spawn(move || handover.lane_ended(ending))
            });
            for lane in lanes {
                // Irrelevant here: whether the panic propagates.
                let _ = lane.join();
            }
            let mut stream = TensorStream::new(handover, Vec::new());
            let Poll::Ready(Some(Err(told))) = stream.try_next() else {
                panic!("the load has not ended");
            };
            assert_eq!(told.message(), wanted);
            assert_eq!(stream.report().outcome, told.kind().name());
            assert!(stream.next().is_none());
        }
    }

    #[test]
    fn panic_while_closing_gate_ends_load() {
        let gate = Arc::<WriteGate>::default();
        gate.on_close(|| panic!("cannot drain"));
        let handover = handover(1, &gate);
        let mut stream = TensorStream::new(Arc::clone(&handover), Vec::new());
        let cancelled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stream.cancel()));
        let Poll::Ready(Some(Err(told))) = stream.try_next() else {
            panic!("the load has not ended");
        };
        assert_eq!(told.message(), "a lane panicked: cannot drain");
        cancelled.expect("told once, as the load's error");
        handover.lane_ended(Ok(()));
    }

    #[test]
    fn load_without_deadline_thread_fails() {
        let handover = handover(1, &Arc::default());
        let mut stream = TensorStream::new(Arc::clone(&handover), Vec::new());
        let refused = stream.limited(Err(std::io::ErrorKind::WouldBlock.into()));
        let kind = refused.expect_err("no thread").kind();
        drop(stream);
        assert_eq!(handover.report().outcome, kind.name());
        handover.lane_ended(Ok(()));
    }

    #[test]
    fn dropped_load_was_cancelled_unless_it_has_handed_out_all_tensors() {
        let entry = Entry {
            name: "empty".to_owned(),
            dtype: Dtype::U8,
            shape: vec![0],
            range: 0..0,
        };
        for (received, outcome) in [(0, "cancelled"), (1, "complete")] {
            let tensors = Arc::new([TensorInfo::new(entry.clone(), 0)]);
            let setup = setup(1, &Arc::default(), |_| Ok(()));
            let handover = Handover::new(StreamSetup { tensors, ..setup });
            let mut stream = TensorStream::new(Arc::clone(&handover), Vec::new());
            for _ in 0..received {
                assert!(matches!(stream.try_next(), Poll::Ready(Some(Ok(_)))));
                assert!(stream.try_next().is_pending(), "files are not checked yet");
            }
            drop(stream);
            assert_eq!(handover.report().outcome, outcome);
            handover.lane_ended(Ok(()));
        }
    }

    #[test]
    fn load_that_was_cancelled_while_it_started_is_refused() {
        let handover = handover(2, &Arc::default());
        let canceller = Canceller::default();
        canceller.cancel();
        let refused = canceller.begin(&handover, 2).expect_err("cancelled");
        assert_eq!(refused.kind(), ErrorKind::Cancelled);
        assert!(handover.setup.gate.enter().is_none());
        assert!(handover.lock().state.lanes_ended());
    }

    /// The caller has its memory back once the stream is dropped, no matter which thread ended the
    /// load and how long queued writes take.
    #[test]
    fn drop_waits_until_gate_is_closed() {
        let gate = Arc::<WriteGate>::default();
        let (begins, draining) = channel();
        let (dropped, was_dropped) = channel();
        let was_dropped = std::sync::Mutex::new(was_dropped);
        gate.on_close(move || {
            begins.send(()).expect("the test waits");
            let was_dropped = was_dropped.lock().expect("not poisoned");
            // Nothing arrives: the length of the wait only decides whether a mistake is noticed.
            let early = was_dropped.recv_timeout(Duration::from_millis(300));
            assert!(early.is_err(), "dropped before all was written");
        });
        let stream = TensorStream::new(handover(1, &gate), Vec::new());
        let canceller = stream.canceller();
        std::thread::scope(|scope| {
            let cancelling = scope.spawn(move || canceller.cancel());
            draining.recv().expect("the gate is being closed");
            drop(stream);
            // The receiver may be gone already.
            let _ = dropped.send(());
            cancelling.join().expect("drained first");
        });
    }

    /// One lane has begun a read that never completes; another lane could not be started.
    #[test]
    fn rejected_load_does_not_wait_for_hung_lane() {
        let handover = handover(2, &Arc::default());
        let (never, hung) = channel::<()>();
        let lane = std::thread::spawn(move || {
            let _ = hung.recv();
        });
        let refused = Refused {
            error: error("no more threads"),
            threads: vec![lane],
            missing: 1,
        };
        let told = TensorStream::refused(Arc::clone(&handover), refused);
        assert_eq!(told.message(), "no more threads");
        {
            let state = &handover.lock().state;
            assert!(state.is_early() && !state.lanes_ended());
        }
        assert_eq!(handover.report().outcome, "io");
        drop(never);
        handover.lane_ended(Ok(()));
        assert!(handover.lock().state.lanes_ended());
    }
}
