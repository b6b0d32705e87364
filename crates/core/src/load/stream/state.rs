//! State machine of a stream: the phase of its load, the lanes that are left, and the finished
//! tensors. No locks, threads or I/O; `handover.rs` and `ending.rs` apply it.
//!
//! Each transition is a method. A transition that does not apply to the current phase changes
//! nothing: several threads may end a load, and the first one decides.

use std::task::Poll;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::queue::FinishedQueue;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Order;

/// Outcome of a load that has handed out all its tensors.
pub(super) const COMPLETE: &str = "complete";

/// State of a stream of tensors `T`.
pub(super) struct State<T> {
    phase: Phase,
    lanes: Lanes,
    finished: FinishedQueue<T>,
    /// Number of tensors that the load yields.
    total: u64,
    /// Number of tensors that the caller has received.
    received: u64,
    /// The caller has all tensors and has begun to wait for the result of the final checks.
    awaits_end: bool,
}

/// Phase of a load as its caller sees it. Lanes may outlast it.
enum Phase {
    /// No lane has failed. The lanes may have ended already, with finished tensors left to take.
    Running,
    /// A lane has failed: reads in flight are awaited, but not for long.
    Failed {
        error: Error,
        /// Ends the thread that limits the wait; dropped when nothing is left to wait for.
        grace: Option<Sender<()>>,
    },
    /// A lane has failed and reads have not returned in time. Finished tensors can still be taken
    /// before the error.
    Orphaned { error: Error, gate: Gate },
    /// The load was cancelled or exceeded its timeout, or the caller's allocator failed. Finished
    /// tensors are discarded.
    Abandoned {
        error: Error,
        gate: Gate,
        /// The caller cancelled the load after it had received all tensors.
        is_complete: bool,
    },
    /// The caller has received the last item.
    Ended(End),
}

/// Progress of closing the write gate after an early end. The caller is told of the end once
/// nothing more is written to its memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Closing,
    Closed,
}

/// Lanes of a load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lanes {
    /// This number of lanes, at least one, may have reads in flight.
    Reading(usize),
    /// All reads have returned; the last lane closes the load and checks the files.
    Checking,
    Ended,
}

/// End of a stream.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) at: Instant,
    /// `complete`, or the name of the error's kind.
    pub(super) outcome: &'static str,
    /// True if lanes may have been left with reads in flight.
    is_early: bool,
}

/// Result of [`State::abandon`].
pub(super) struct Abandoned<T> {
    /// To be dropped without the lock: this may unmap memory.
    pub(super) discarded: FinishedQueue<T>,
    /// False if an earlier failure is the error that the caller receives.
    pub(super) is_cause: bool,
}

impl<T> State<T> {
    /// Creates the state of a load of `total` tensors with this number of lanes.
    pub(super) fn new(lanes: usize, total: u64, order: Order) -> Self {
        Self {
            phase: Phase::Running,
            lanes: match lanes {
                0 => Lanes::Ended,
                lanes => Lanes::Reading(lanes),
            },
            finished: FinishedQueue::new(order),
            total,
            received: 0,
            awaits_end: false,
        }
    }

    /// Returns the number of tensors that the caller has received.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Returns whether the load has neither ended nor been ended early.
    pub(super) fn is_active(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Failed { .. })
    }

    /// Returns whether the load was ended before its lanes were: reads may still be in flight.
    pub(super) fn is_early(&self) -> bool {
        match &self.phase {
            Phase::Running | Phase::Failed { .. } => false,
            Phase::Orphaned { .. } | Phase::Abandoned { .. } => true,
            Phase::Ended(end) => end.is_early,
        }
    }

    /// Returns how the stream ended, if it has.
    pub(super) fn end(&self) -> Option<End> {
        match self.phase {
            Phase::Ended(end) => Some(end),
            Phase::Running
            | Phase::Failed { .. }
            | Phase::Orphaned { .. }
            | Phase::Abandoned { .. } => None,
        }
    }

    /// Returns the outcome of the load once nothing can change it: `complete`, or the name of the
    /// error's kind.
    pub(super) fn outcome(&self) -> Option<&'static str> {
        match &self.phase {
            Phase::Ended(end) => Some(end.outcome),
            Phase::Abandoned {
                error, is_complete, ..
            } => Some(outcome_of(error, *is_complete)),
            Phase::Running | Phase::Failed { .. } | Phase::Orphaned { .. } => None,
        }
    }

    /// Returns whether everything has been read, and only the final checks are left.
    pub(super) fn is_checking(&self) -> bool {
        self.lanes == Lanes::Checking
    }

    /// Returns whether all lanes have ended.
    pub(super) fn lanes_ended(&self) -> bool {
        self.lanes == Lanes::Ended
    }

    /// Queues tensors that a lane has finished. Returns whether there is one to take.
    pub(super) fn push(&mut self, finished: impl Iterator<Item = (usize, T)>) -> bool {
        self.finished.extend(finished);
        !self.finished.is_empty()
    }

    /// Returns the next tensor if there is one to take.
    pub(super) fn next_ready(&mut self) -> Option<T> {
        if self.end().is_some() {
            return None;
        }
        let tensor = self.finished.pop()?;
        self.received += 1;
        Some(tensor)
    }

    /// Returns the next item if there is one, or if the load has ended.
    pub(super) fn next(&mut self) -> Poll<Option<Result<T>>> {
        if self.end().is_some() {
            return Poll::Ready(None);
        }
        if let Some(tensor) = self.next_ready() {
            return Poll::Ready(Some(Ok(tensor)));
        }
        let (outcome, is_over) = match &self.phase {
            Phase::Running | Phase::Ended(_) => (COMPLETE, self.lanes_ended()),
            Phase::Failed { error, .. } => (error.kind().name(), self.lanes_ended()),
            Phase::Orphaned { error, gate } => (error.kind().name(), *gate == Gate::Closed),
            Phase::Abandoned {
                error,
                gate,
                is_complete,
            } => (outcome_of(error, *is_complete), *gate == Gate::Closed),
        };
        if !is_over {
            return Poll::Pending;
        }
        let end = End {
            at: Instant::now(),
            outcome,
            is_early: self.is_early(),
        };
        match std::mem::replace(&mut self.phase, Phase::Ended(end)) {
            Phase::Failed { error, .. }
            | Phase::Orphaned { error, .. }
            | Phase::Abandoned { error, .. } => Poll::Ready(Some(Err(error))),
            Phase::Running | Phase::Ended(_) => {
                let is_complete = self.has_all();
                assert!(is_complete, "all lanes ended well but tensors are missing");
                Poll::Ready(None)
            }
        }
    }

    /// Records that the caller waits for the next item. After the last tensor, that is the result
    /// of the final checks.
    pub(super) fn awaited(&mut self) {
        self.awaits_end = self.has_all();
    }

    /// Returns whether the caller has received all tensors.
    fn has_all(&self) -> bool {
        self.received == self.total
    }

    /// Takes the tensors that an ended load has not yielded: in file order, those that completed
    /// before their turn, which an error has prevented. To be dropped without the lock: this may
    /// unmap memory.
    pub(super) fn take_unyielded(&mut self) -> Option<FinishedQueue<T>> {
        self.end().map(|_| self.finished.take())
    }

    /// Records the failure of a lane that waits for its reads in flight. For the first failure,
    /// returns a channel that is closed when no wait is left to limit.
    pub(super) fn lane_failing(&mut self, error: &Error) -> Option<Receiver<()>> {
        if self.lanes_ended() {
            return None;
        }
        let (sender, closed) = bounded(0);
        match &mut self.phase {
            Phase::Running => {
                self.phase = Phase::Failed {
                    error: error.again(),
                    grace: Some(sender),
                }
            }
            Phase::Failed { grace, .. } if grace.is_none() => *grace = Some(sender),
            Phase::Failed { .. }
            | Phase::Orphaned { .. }
            | Phase::Abandoned { .. }
            | Phase::Ended(_) => return None,
        }
        Some(closed)
    }

    /// Records that a lane's reads have all returned. For the last lane, returns whether the load
    /// was successful; that lane calls [`Self::checked`] in the end.
    pub(super) fn lane_returned(&mut self, result: Result<()>) -> Option<bool> {
        self.record(result);
        self.lanes = match self.lanes {
            Lanes::Reading(1) => Lanes::Checking,
            Lanes::Reading(lanes) => Lanes::Reading(lanes - 1),
            Lanes::Checking | Lanes::Ended => unreachable!("each lane returns once"),
        };
        let is_last = self.lanes == Lanes::Checking;
        is_last.then_some(matches!(self.phase, Phase::Running))
    }

    /// Records that the last lane has closed the load, and the result of its final checks.
    pub(super) fn checked(&mut self, result: Result<()>) {
        self.record(result);
        self.end_lanes();
    }

    /// Records that lanes could not be started. Returns whether no lane may have reads in flight.
    pub(super) fn lanes_missing(&mut self, missing: usize) -> bool {
        match self.lanes {
            Lanes::Reading(lanes) if lanes == missing => self.end_lanes(),
            Lanes::Reading(lanes) => self.lanes = Lanes::Reading(lanes - missing),
            Lanes::Checking | Lanes::Ended => {}
        }
        !matches!(self.lanes, Lanes::Reading(_))
    }

    fn end_lanes(&mut self) {
        self.lanes = Lanes::Ended;
        if let Phase::Failed { grace, .. } = &mut self.phase {
            *grace = None;
        }
    }

    /// Records the result of a lane. The first failure is the cause, even if its lane ends later.
    fn record(&mut self, result: Result<()>) {
        let Err(error) = result else {
            return;
        };
        match &mut self.phase {
            Phase::Running => self.phase = Phase::Failed { error, grace: None },
            // The error with which a lane ends has more of the cause than the copy in
            // `lane_failing`.
            Phase::Failed { error: first, .. } if first.to_string() == error.to_string() => {
                *first = error;
            }
            Phase::Failed { .. }
            | Phase::Orphaned { .. }
            | Phase::Abandoned { .. }
            | Phase::Ended(_) => {}
        }
    }

    /// Ends a failed load whose reads have not returned in time. Returns whether that was to be
    /// done; then [`Self::gate_closed`] follows.
    pub(super) fn orphan(&mut self) -> bool {
        if self.lanes_ended() {
            return false;
        }
        match std::mem::replace(&mut self.phase, Phase::Running) {
            Phase::Failed { error, .. } => {
                let gate = Gate::Closing;
                self.phase = Phase::Orphaned { error, gate };
                true
            }
            other @ (Phase::Running
            | Phase::Orphaned { .. }
            | Phase::Abandoned { .. }
            | Phase::Ended(_)) => {
                self.phase = other;
                false
            }
        }
    }

    /// Ends the load with `error`, or with an earlier failure that the caller has not received: it
    /// explains more than the early end that it caused. Returns nothing if the load has ended or
    /// was abandoned before; otherwise [`Self::gate_closed`] follows.
    ///
    /// A load that is cancelled after its last tensor is complete, although the next item is the
    /// error: closing a stream is how callers end a load from which they need no more. It was
    /// cancelled if the caller was waiting for the final checks.
    pub(super) fn abandon(&mut self, error: Error) -> Option<Abandoned<T>> {
        let (error, is_cause) = match std::mem::replace(&mut self.phase, Phase::Running) {
            Phase::Running => (error, true),
            Phase::Failed { error, .. } | Phase::Orphaned { error, .. } => (error, false),
            over @ (Phase::Abandoned { .. } | Phase::Ended(_)) => {
                self.phase = over;
                return None;
            }
        };
        let is_cancelled = error.kind() == ErrorKind::Cancelled;
        self.phase = Phase::Abandoned {
            error,
            gate: Gate::Closing,
            is_complete: is_cancelled && self.has_all() && !self.awaits_end,
        };
        Some(Abandoned {
            discarded: self.finished.take(),
            is_cause,
        })
    }

    /// Records that nothing more is written to the caller's memory: the caller may be told of the
    /// early end, with `better` as the error if there is one.
    pub(super) fn gate_closed(&mut self, better: Option<Error>) {
        if let Phase::Abandoned { is_complete, .. } = &mut self.phase {
            *is_complete &= better.is_none();
        }
        if let Phase::Orphaned { error, gate } | Phase::Abandoned { error, gate, .. } =
            &mut self.phase
        {
            *gate = Gate::Closed;
            if let Some(better) = better {
                *error = better;
            }
        }
    }
}

/// Returns the outcome of an abandoned load.
fn outcome_of(error: &Error, is_complete: bool) -> &'static str {
    if is_complete {
        COMPLETE
    } else {
        error.kind().name()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_channel::TryRecvError;

    use super::*;

    /// State of a load of two tensors, which are their indices.
    fn state(lanes: usize) -> State<usize> {
        State::new(lanes, 2, Order::Ready)
    }

    fn error(message: &str) -> Error {
        Error::new(ErrorKind::Io, message).with_source(format!("why {message}"))
    }

    fn push(state: &mut State<usize>, tensor: usize) -> bool {
        state.push(std::iter::once((tensor, tensor)))
    }

    /// Takes the next item: a tensor, the message of an error, `end` or `pending`.
    fn next(state: &mut State<usize>) -> String {
        match state.next() {
            Poll::Pending => "pending".to_owned(),
            Poll::Ready(None) => "end".to_owned(),
            Poll::Ready(Some(Ok(tensor))) => tensor.to_string(),
            Poll::Ready(Some(Err(error))) => error.message().to_owned(),
        }
    }

    #[test]
    fn complete_load_ends_after_last_check_and_last_tensor() {
        let mut state = state(2);
        assert!(push(&mut state, 0) && push(&mut state, 1));
        assert_eq!(next(&mut state), "0");
        assert_eq!(state.lane_returned(Ok(())), None);
        assert_eq!(state.lane_returned(Ok(())), Some(true));
        assert_eq!(next(&mut state), "1");
        assert_eq!(next(&mut state), "pending", "files are being checked");
        state.checked(Ok(()));
        assert!(state.end().is_none() && state.lanes_ended());
        assert_eq!(next(&mut state), "end");
        assert_eq!(state.end().map(|end| end.outcome), Some("complete"));
        assert!(!state.is_early());
        assert_eq!(next(&mut state), "end");
    }

    #[test]
    fn load_without_lanes_ends_after_its_tensors() {
        let mut state = state(0);
        push(&mut state, 0);
        push(&mut state, 1);
        assert_eq!([(); 3].map(|()| next(&mut state)), ["0", "1", "end"]);
    }

    #[test]
    #[should_panic(expected = "tensors are missing")]
    fn missing_tensor_is_never_a_complete_load() {
        let mut state = state(0);
        push(&mut state, 0);
        assert_eq!(next(&mut state), "0");
        let _ = state.next();
    }

    #[test]
    fn failed_check_is_the_error_of_a_load_that_read_everything() {
        let mut state = state(1);
        push(&mut state, 0);
        assert_eq!(state.lane_returned(Ok(())), Some(true));
        state.checked(Err(error("changed")));
        let items = [(); 3].map(|()| next(&mut state));
        assert_eq!(items, ["0", "changed", "end"]);
        assert_eq!(state.end().map(|end| end.outcome), Some("io"));
    }

    /// Freeing them may unmap memory, which must not happen under the lock.
    #[test]
    fn tensors_before_their_turn_outlive_the_error() {
        let mut state = State::new(1, 2, Order::File);
        let tensor = Arc::new(());
        state.push(std::iter::once((1, Arc::clone(&tensor))));
        assert!(state.take_unyielded().is_none(), "not ended");
        let _ = state.lane_returned(Err(error("failed")));
        state.checked(Ok(()));
        assert!(matches!(state.next(), Poll::Ready(Some(Err(_)))));
        assert_eq!(Arc::strong_count(&tensor), 2);
        drop(state.take_unyielded());
        assert_eq!(Arc::strong_count(&tensor), 1);
    }

    #[test]
    fn failed_load_yields_tensors_then_first_error_when_lanes_have_ended() {
        let mut state = state(2);
        push(&mut state, 0);
        let grace = state.lane_failing(&error("first")).expect("begins");
        assert!(state.lane_failing(&error("second")).is_none());
        assert_eq!(next(&mut state), "0");
        assert!(push(&mut state, 1), "reads in flight still complete");
        assert_eq!(state.lane_returned(Err(error("second"))), None);
        assert_eq!(state.lane_returned(Err(error("first"))), Some(false));
        assert_eq!(grace.try_recv(), Err(TryRecvError::Empty));
        state.checked(Err(error("checked too late")));
        assert_eq!(grace.try_recv(), Err(TryRecvError::Disconnected));
        assert!(!state.orphan(), "all reads have returned");
        assert!(!state.is_early());
        let items = [(); 3].map(|()| next(&mut state));
        assert_eq!(items, ["1", "first", "end"]);
    }

    #[test]
    fn failure_in_progress_begins_grace_period_after_another_lane_has_ended() {
        let mut state = state(2);
        assert_eq!(state.lane_returned(Err(error("first"))), None);
        assert!(state.lane_failing(&error("second")).is_some());
        assert!(state.orphan());
        state.gate_closed(None);
        assert_eq!(next(&mut state), "first");
    }

    #[test]
    fn orphaned_load_yields_tensors_then_error_once_gate_is_closed() {
        let mut state = state(1);
        push(&mut state, 0);
        let grace = state.lane_failing(&error("failed")).expect("begins");
        assert!(state.orphan() && !state.orphan());
        assert_eq!(grace.try_recv(), Err(TryRecvError::Disconnected));
        assert!(!state.is_active() && state.is_early());
        assert_eq!(next(&mut state), "0");
        assert_eq!(next(&mut state), "pending", "the gate is being closed");
        state.gate_closed(None);
        assert_eq!([(); 2].map(|()| next(&mut state)), ["failed", "end"]);
        // The lane ends whenever storage lets it.
        assert!(state.is_early() && !state.lanes_ended());
        assert_eq!(state.lane_returned(Err(error("failed"))), Some(false));
        state.checked(Ok(()));
        assert!(state.lanes_ended());
        assert_eq!(next(&mut state), "end");
    }

    #[test]
    fn running_load_is_not_orphaned() {
        let mut state = state(1);
        assert!(!state.orphan());
        assert!(state.is_active());
    }

    #[test]
    fn abandoned_load_discards_tensors_and_ends_once() {
        let mut state = state(1);
        push(&mut state, 0);
        let mut abandoned = state.abandon(error("cancelled")).expect("runs");
        assert!(abandoned.is_cause);
        assert_eq!(state.outcome(), Some("io"));
        assert_eq!(abandoned.discarded.pop(), Some(0));
        assert!(state.abandon(error("again")).is_none());
        assert!(state.lane_failing(&error("failed")).is_none() && !state.orphan());
        assert_eq!(next(&mut state), "pending", "the gate is being closed");
        state.gate_closed(Some(error("cancelled, held")));
        assert_eq!(state.lane_returned(Ok(())), Some(false));
        state.checked(Ok(()));
        let items = [(); 2].map(|()| next(&mut state));
        assert_eq!(items, ["cancelled, held", "end"]);
        assert!(state.abandon(error("again")).is_none());
        assert!(state.is_early());
    }

    #[test]
    fn failure_before_cancellation_is_the_error() {
        for is_orphaned in [false, true] {
            let mut state = state(1);
            push(&mut state, 0);
            let grace = state.lane_failing(&error("failed")).expect("begins");
            if is_orphaned {
                assert!(state.orphan());
            }
            let abandoned = state.abandon(error("cancelled")).expect("not ended");
            assert!(!abandoned.is_cause && !abandoned.discarded.is_empty());
            assert_eq!(grace.try_recv(), Err(TryRecvError::Disconnected));
            state.gate_closed(None);
            assert_eq!([(); 2].map(|()| next(&mut state)), ["failed", "end"]);
        }
    }

    #[test]
    fn complete_load_can_be_cancelled_until_its_end_is_received() {
        let mut state = state(0);
        push(&mut state, 0);
        push(&mut state, 1);
        assert!(state.abandon(error("cancelled")).is_some());
        state.gate_closed(None);
        assert_eq!([(); 2].map(|()| next(&mut state)), ["cancelled", "end"]);
    }

    #[test]
    fn load_cancelled_after_its_last_tensor_is_complete() {
        let cancelled = || Error::new(ErrorKind::Cancelled, "cancelled");
        // Received tensors; whether the caller waits; the error of the end; the outcome.
        let table = [
            (2, false, cancelled(), None, "complete"),
            (1, false, cancelled(), None, "cancelled"),
            (1, true, cancelled(), None, "cancelled"),
            (2, true, cancelled(), None, "cancelled"),
            (2, false, error("late"), None, "io"),
            (2, false, cancelled(), Some(error("panicked")), "io"),
        ];
        for (received, waits, error, better, outcome) in table {
            let mut state = state(1);
            push(&mut state, 0);
            push(&mut state, 1);
            (0..received).for_each(|_| assert_ne!(next(&mut state), "pending"));
            if waits {
                state.awaited();
            }
            assert!(state.abandon(error).is_some());
            state.gate_closed(better);
            assert_eq!(state.outcome(), Some(outcome), "{received} received");
            assert!(matches!(state.next(), Poll::Ready(Some(Err(_)))));
            assert_eq!(state.outcome(), Some(outcome), "{received} received");
        }
    }

    #[test]
    fn failed_check_after_the_last_tensor_is_the_outcome_of_a_closed_load() {
        let mut state = state(1);
        push(&mut state, 0);
        push(&mut state, 1);
        assert_eq!([(); 2].map(|()| next(&mut state)), ["0", "1"]);
        assert_eq!(state.lane_returned(Ok(())), Some(true));
        state.checked(Err(error("changed")));
        let cancelled = Error::new(ErrorKind::Cancelled, "cancelled");
        assert!(state.abandon(cancelled).is_some());
        assert_eq!(state.outcome(), Some("io"));
    }

    #[test]
    fn lanes_that_never_began_are_not_awaited() {
        let mut begun = state(3);
        assert!(!begun.lanes_missing(2));
        assert_eq!(begun.lane_returned(Ok(())), Some(true));
        assert!(begun.lanes_missing(0));
        let mut none = state(3);
        assert_eq!(none.lane_returned(Err(error("refused"))), None);
        assert!(none.lanes_missing(2) && none.lanes_ended());
    }
}
