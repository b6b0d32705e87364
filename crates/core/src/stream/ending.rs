//! How a load ends before everything has come: a failure, a deadline, a caller who has enough. Nobody waits for storage.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::{Shared, TensorStream};
use crate::error::{Error, ErrorKind, Result};
use crate::lane::{self, Refused};
use crate::parked;
use crate::pipeline::Waiting;

/// How long a load that has failed, or whose time is over, waits for what it has in flight before it says so. Reads that can be taken
/// back, or that storage answers, come back in that time; others are parked. Longer than any working storage takes for a read but
/// one that is overloaded (2026-11), and short beside deadlines, which are seconds.
const GRACE: Duration = Duration::from_millis(500);

impl TensorStream {
    /// The load cannot begin, and its stream is dropped as ever: lanes that have begun may read by now, and what cannot be taken back
    /// is left behind.
    pub(crate) fn refused(shared: Arc<Shared>, refused: Refused) -> Error {
        let nobody_reads = {
            let mut state = shared.lock();
            state.lanes_reading -= refused.missing;
            state.lanes_running -= refused.missing;
            state.lanes_reading == 0
        };
        if nobody_reads {
            // The last lane would have, or has.
            shared.feed.close();
        }
        drop(Self::new(shared, refused.threads));
        refused.error
    }
}

impl Shared {
    /// A lane has failed, and waits for what it has in flight. Others do not wait for it longer than [`GRACE`].
    pub(crate) fn lane_failing(self: &Arc<Self>, error: &Error) {
        let (grace, ended) = bounded::<()>(0);
        {
            let mut state = self.lock();
            if state.abandoned || state.grace.is_some() || state.lanes_running == 0 {
                return;
            }
            state.failing = Some(error.again());
            state.grace = Some(grace);
        }
        // Keeps nothing of the load: when its lanes have ended, it is its owner's alone.
        let shared = Arc::downgrade(self);
        let started = std::thread::Builder::new()
            .name("tload-grace".to_owned())
            .spawn(move || {
                let waited = ended.recv_timeout(GRACE);
                if waited == Err(RecvTimeoutError::Timeout)
                    && let Some(shared) = shared.upgrade()
                {
                    shared.park();
                }
            });
        if started.is_err() {
            self.park();
        }
    }

    /// A lane has failed: whatever has not come back by now is left behind.
    fn park(&self) {
        {
            let mut state = self.lock();
            if state.abandoned || state.parked || state.lanes_running == 0 {
                return;
            }
            state.parked = true;
            state.closing = true;
            if let Some(error) = state.failing.take() {
                state.error.get_or_insert(error);
            }
        }
        let closed = self.close_gate();
        parked::leave(&self.feed);
        // Whoever watches the clock need not any more.
        self.lane_ended.notify_all();
        let mut state = self.lock();
        state.closing = false;
        if let Err(error) = closed {
            state.error.get_or_insert(error);
        }
        self.wake(state);
    }

    /// Starts nothing more, and lets nothing more be written to memory of the caller's. A panic is an
    /// error: the caller waits for `closing` to end.
    fn close_gate(&self) -> Result<()> {
        lane::caught(|| {
            self.feed.stop();
            self.gate.close();
            Ok(())
        })
    }

    /// Ends the load with `error` unless it has ended: nothing more is started, what waits is freed.
    pub(super) fn abandon(&self, error: Error) {
        self.end_early(error, |_| None);
    }

    /// The same; `amended` may say more of it when it is known what has not come back.
    fn end_early(&self, error: Error, amended: impl FnOnce(&Self) -> Option<Error>) {
        let ours;
        let (queue, early) = {
            let mut state = self.lock();
            if state.abandoned || state.ended.is_some() {
                return;
            }
            state.abandoned = true;
            state.closing = true;
            // A failure that the caller has not seen yet says more than the end it led to.
            if let Some(error) = state.failing.take() {
                state.error.get_or_insert(error);
            }
            ours = state.error.is_none();
            state.error.get_or_insert(error);
            (
                std::mem::take(&mut state.queue),
                std::mem::take(&mut state.early),
            )
        };
        drop((queue, early));
        let closed = self.close_gate();
        self.lane_ended.notify_all();
        let amended = amended(self).filter(|_| ours);
        parked::leave(&self.feed);
        let mut state = self.lock();
        state.closing = false;
        if let Some(error) = closed.err().or(amended) {
            state.error = Some(error);
        }
        self.wake(state);
    }

    /// Waits until all lanes have ended, at most `timeout`. Whether they have.
    pub(super) fn wait_for_lanes(&self, timeout: Duration) -> bool {
        let state = self.lock();
        let (state, _) = self
            .lane_ended
            .wait_timeout_while(state, timeout, |state| state.lanes_running > 0)
            .unwrap_or_else(PoisonError::into_inner);
        state.lanes_running == 0
    }

    /// Ends the load when `deadline` passes before it has ended by itself.
    pub(super) fn watch(&self, timeout: Duration) {
        let Some(deadline) = self.started.checked_add(timeout) else {
            return;
        };
        let mut state = self.lock();
        while state.lanes_running > 0 && !state.abandoned && !state.parked {
            let now = Instant::now();
            if now >= deadline {
                drop(state);
                let waited = self.feed.waiting();
                self.end_early(timed_out(timeout, &waited, None), |shared| {
                    // They may come back a moment after they have been asked for.
                    let all_back = shared.wait_for_lanes(GRACE);
                    let held = shared.feed.waiting();
                    (!all_back && held.reads > 0).then(|| timed_out(timeout, &waited, Some(&held)))
                });
                return;
            }
            state = self
                .lane_ended
                .wait_timeout(state, deadline - now)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// `waited`: what was in flight when the time was over; `held`: what of it cannot be taken back.
fn timed_out(timeout: Duration, waited: &Waiting, held: Option<&Waiting>) -> Error {
    let held = held.map_or_else(String::new, |held| format!("; {}", held.held()));
    let message = format!("the load took longer than its timeout of {timeout:?}; {waited}{held}");
    let hint = if held.is_empty() {
        "raise timeout, or see the report's stages for what is slow"
    } else {
        "look at the storage, which does not answer; or raise timeout"
    };
    Error::new(ErrorKind::TimedOut, message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::task::Poll;

    use super::*;
    use crate::buffer::{Bell, Gate};
    use crate::pipeline::Feed;
    use crate::plan::{Arrangement, build};
    use crate::report::Report;
    use crate::request::Order;
    use crate::schedule::{Depth, Groups, Schedule};
    use crate::stream::StreamSetup;

    /// What lanes and the caller share of a load of nothing, with so many lanes.
    fn shared(lanes: usize, gate: &Arc<Gate>) -> Arc<Shared> {
        verified(lanes, gate, |_| Ok(()))
    }

    /// As above; the last lane ends with `verify`.
    fn verified(
        lanes: usize,
        gate: &Arc<Gate>,
        verify: impl Fn(bool) -> Result<()> + Send + Sync + 'static,
    ) -> Arc<Shared> {
        let plan = Arc::new(build(&[], &[], &[Arrangement::InPlace]));
        let schedule = Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(1, 1)));
        let bell = Arc::<Bell>::default();
        let setup = StreamSetup {
            feed: Arc::new(Feed::new(plan, schedule, Vec::new(), None, bell)),
            gate: Arc::clone(gate),
            counters: Arc::default(),
            tensors: Arc::new([]),
            order: Order::Ready,
            lanes,
            report: Report::default(),
            complete: Box::new(|_| ()),
            verify: Box::new(verify),
        };
        Shared::new(setup, Instant::now())
    }

    fn error(message: &str) -> Error {
        Error::new(ErrorKind::Io, message).with_source(format!("why {message}"))
    }

    #[test]
    fn the_first_lane_that_fails_says_why_whichever_ends_first() {
        for first_ends_first in [true, false] {
            let shared = shared(3, &Arc::default());
            shared.lane_failing(&error("first"));
            shared.lane_failing(&error("second"));
            let endings = if first_ends_first {
                ["first", "second"]
            } else {
                ["second", "first"]
            };
            for ending in endings {
                shared.lane_ended(Err(error(ending)));
            }
            shared.lane_ended(Ok(()));
            let mut stream = TensorStream::new(shared, Vec::new());
            let told = stream.next().expect("an item").expect_err("has failed");
            assert_eq!(told.chain(), "first\n  caused by: why first");
            assert!(stream.next().is_none());
        }
    }

    #[test]
    fn a_panic_of_the_last_check_is_an_error_of_the_load() {
        for (ending, wanted) in [
            (Ok(()), "a lane panicked: compared too late"),
            // A read that failed before says more.
            (Err(error("failed")), "failed"),
        ] {
            let shared = verified(2, &Arc::default(), |_| panic!("compared too late"));
            let lanes = [Ok(()), ending].map(|ending| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.lane_ended(ending))
            });
            for lane in lanes {
                // Whether the panic goes on is not what is asked here.
                let _ = lane.join();
            }
            let mut stream = TensorStream::new(shared, Vec::new());
            let Poll::Ready(Some(Err(told))) = stream.try_next() else {
                panic!("the load has not ended");
            };
            assert_eq!(told.message(), wanted);
            assert_eq!(stream.report().outcome, told.kind().name());
            assert!(stream.next().is_none());
        }
    }

    #[test]
    fn a_panic_while_the_gate_closes_ends_the_load() {
        let gate = Arc::<Gate>::default();
        gate.on_close(|| panic!("cannot drain"));
        let shared = shared(1, &gate);
        let mut stream = TensorStream::new(Arc::clone(&shared), Vec::new());
        let cancelled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stream.cancel()));
        let Poll::Ready(Some(Err(told))) = stream.try_next() else {
            panic!("the load has not ended");
        };
        assert_eq!(told.message(), "a lane panicked: cannot drain");
        cancelled.expect("told once, as the load's error");
        shared.lane_ended(Ok(()));
    }

    /// The caller has its memory back when the stream is dropped, whoever ended it, and however long what was queued takes.
    #[test]
    fn dropping_waits_for_who_closes_the_gate() {
        let gate = Arc::<Gate>::default();
        let (begins, draining) = channel();
        let (dropped, was_dropped) = channel();
        let was_dropped = std::sync::Mutex::new(was_dropped);
        gate.on_close(move || {
            begins.send(()).expect("the test waits");
            let was_dropped = was_dropped.lock().expect("nobody panics with it");
            // Nothing comes: how long is waited decides only whether a mistake is seen.
            let early = was_dropped.recv_timeout(Duration::from_millis(300));
            assert!(early.is_err(), "dropped before all was written");
        });
        let stream = TensorStream::new(shared(1, &gate), Vec::new());
        let canceller = stream.canceller();
        std::thread::scope(|scope| {
            let cancelling = scope.spawn(move || canceller.cancel());
            draining.recv().expect("the gate is being closed");
            drop(stream);
            // Nobody may be waiting for it any more.
            let _ = dropped.send(());
            cancelling.join().expect("drained first");
        });
    }

    /// A lane that began reads what nobody answers; another one could not be started.
    #[test]
    fn a_load_that_cannot_begin_waits_for_no_lane_that_has() {
        let shared = shared(2, &Arc::default());
        let (never, hung) = channel::<()>();
        let lane = std::thread::spawn(move || {
            let _ = hung.recv();
        });
        let refused = Refused {
            error: error("no more threads"),
            threads: vec![lane],
            missing: 1,
        };
        let told = TensorStream::refused(Arc::clone(&shared), refused);
        assert_eq!(told.message(), "no more threads");
        {
            let state = shared.lock();
            assert_eq!((state.lanes_running, state.lanes_reading), (1, 1));
            assert!(state.abandoned);
        }
        drop(never);
        shared.lane_ended(Ok(()));
        assert_eq!(shared.lock().lanes_running, 0);
    }
}
