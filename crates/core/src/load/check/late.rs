//! The check of a load while it is prepared beside the first reads.
//!
//! Lanes read as soon as the plan is known. Meanwhile a thread looks the digests up and matches
//! them to the plan, which takes 15 ms for 6,000 tensors and round trips for a store (2026-11). No
//! lane passes anything on to its sink before the check is ready, and the start of the load waits
//! for it: a refusal is an error of the start, and no tensor is complete by then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_channel::bounded;

use super::Check;
use crate::crc::Polynomial;
use crate::engine::cancelled;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Lease;
use crate::plan::Extent;
use crate::report::Report;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;

/// Check of a load, which may become known after its first reads have begun.
#[derive(Debug)]
pub struct LateCheck {
    outcome: OnceLock<Outcome>,
    /// Counts the outcome, and the end of the load.
    events: EventCount,
    is_over: AtomicBool,
    /// CRC that engines are asked for until the check is known.
    likely: Option<Polynomial>,
}

#[derive(Debug)]
enum Outcome {
    /// Nothing is compared if there is no check.
    Ready(Option<Arc<Check>>),
    /// The error, until the start of the load takes it.
    Refused(Mutex<Option<Error>>),
}

/// Way of an extent from the engine to the sink.
pub(in crate::load) enum Passage<'a> {
    /// Nothing is compared.
    Open,
    Checked(&'a Check),
    /// The load was refused or has ended: the extent is dropped.
    Closed,
}

impl LateCheck {
    /// Returns the check of a load that compares with `check`, or nothing.
    pub fn ready(check: Option<Arc<Check>>) -> Arc<Self> {
        let late = Self::pending(None);
        late.set(Ok(check));
        late
    }

    /// Returns a check that is not known yet. Engines are asked for the `likely` CRC.
    pub fn pending(likely: Option<Polynomial>) -> Arc<Self> {
        Arc::new(Self {
            outcome: OnceLock::new(),
            events: EventCount::default(),
            is_over: AtomicBool::new(false),
            likely,
        })
    }

    /// Prepares a check on a thread of its own, or on this one if there are no threads. `prepare`
    /// must not panic, because lanes wait for its outcome.
    pub(crate) fn prepare(
        likely: Option<Polynomial>,
        prepare: impl FnOnce() -> Result<Option<Arc<Check>>> + Send + 'static,
    ) -> Arc<Self> {
        let late = Self::pending(likely);
        let own = Arc::clone(&late);
        let work = move || own.set(prepare());
        // A thread that is not created drops its closure.
        let (sender, receiver) = bounded::<Box<dyn FnOnce() + Send>>(1);
        let thread = Builder::new()
            .name("tload-check".to_owned())
            .spawn(move || receiver.into_iter().for_each(|work| work()));
        if thread.is_ok() {
            sender.send(Box::new(work)).expect("the thread waits");
        } else {
            work();
        }
        late
    }

    /// Sets the outcome of the preparation, once.
    pub fn set(&self, prepared: Result<Option<Arc<Check>>>) {
        let outcome = match prepared {
            Ok(check) => Outcome::Ready(check),
            Err(error) => Outcome::Refused(Mutex::new(Some(error))),
        };
        assert!(self.outcome.set(outcome).is_ok(), "prepared once");
        self.events.notify();
        if self.is_over.load(Ordering::SeqCst) {
            self.close_check();
        }
    }

    /// Waits until the check is ready, or until `is_cancelled` after the end of the load.
    ///
    /// # Errors
    ///
    /// The error of the preparation; [`ErrorKind::Cancelled`].
    pub(crate) fn settle(&self, is_cancelled: impl Fn() -> bool) -> Result<()> {
        match self.wait_unless(is_cancelled) {
            Some(Outcome::Ready(_)) => Ok(()),
            Some(Outcome::Refused(error)) => {
                let error = error.lock().take();
                Err(error.unwrap_or_else(not_compared))
            }
            None => Err(cancelled()),
        }
    }

    /// Returns the outcome; `None` if there is none and the load `has_ended`, which is evaluated
    /// again when the load ends.
    fn wait_unless(&self, has_ended: impl Fn() -> bool) -> Option<&Outcome> {
        loop {
            let seen = self.events.count();
            let outcome = self.outcome.get();
            if outcome.is_some() || has_ended() {
                return outcome;
            }
            self.events.wait_past(seen);
        }
    }

    /// Declares what happens to the bytes of an extent once they have been read to `lease`.
    pub(in crate::load) fn announce(&self, lease: &mut Lease, extent: &Extent) {
        let crc = match self.outcome.get() {
            Some(Outcome::Ready(None)) => return,
            Some(Outcome::Ready(Some(check))) => check.polynomial(extent),
            Some(Outcome::Refused(_)) | None => self.likely,
        };
        lease.checked();
        lease.want_crc(crc);
    }

    /// Returns the way of extents, if it is known.
    pub(in crate::load) fn passage(&self) -> Option<Passage<'_>> {
        self.outcome.get().map(Outcome::passage)
    }

    /// Waits until the way of extents is known, or the load ends.
    pub(in crate::load) fn wait(&self) -> Passage<'_> {
        let outcome = self.wait_unless(|| self.is_over.load(Ordering::SeqCst));
        outcome.map_or(Passage::Closed, Outcome::passage)
    }

    /// Checks at the end of a successful load that every planned comparison was made.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if not, which would be a bug.
    pub fn finish(&self) -> Result<()> {
        match self.outcome.get() {
            Some(Outcome::Ready(check)) => check.as_ref().map_or(Ok(()), |check| check.finish()),
            Some(Outcome::Refused(_)) | None => Err(not_compared()),
        }
    }

    /// Adds the result of the comparison to a report.
    pub fn report(&self, report: &mut Report) {
        if let Some(Outcome::Ready(Some(check))) = self.outcome.get() {
            check.report(report);
        }
    }

    /// Ends the waits of lanes, and frees the memory of extents that wait for their turn, after the
    /// end of the load.
    pub(in crate::load) fn close(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.events.notify();
        self.close_check();
    }

    fn close_check(&self) {
        if let Some(Outcome::Ready(Some(check))) = self.outcome.get() {
            check.close();
        }
    }
}

impl Outcome {
    fn passage(&self) -> Passage<'_> {
        match self {
            Self::Ready(None) => Passage::Open,
            Self::Ready(Some(check)) => Passage::Checked(check),
            Self::Refused(_) => Passage::Closed,
        }
    }
}

/// Error of a load some of whose bytes were not compared.
pub(super) fn not_compared() -> Error {
    Error::new(ErrorKind::Io, "some of the bytes read were not compared")
        .with_hint("this is a bug in tload; please report it")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::plan::{Arrangement, build};
    use crate::sync::detached::PendingOps;
    use crate::verify::Verify;

    fn corrupt() -> Error {
        Error::new(ErrorKind::Corrupt, "differs").with_source("why")
    }

    /// Returns the check of a load without tensors.
    fn empty() -> Arc<Check> {
        let plan = Arc::new(build(&[], &[], &[Arrangement::InPlace]));
        let pending = PendingOps::default();
        let check = Check::new(plan, [].into(), &[], &[], &Verify::Auto, &pending);
        Arc::new(check.expect("nothing can differ"))
    }

    fn name(passage: &Passage<'_>) -> &'static str {
        match passage {
            Passage::Open => "open",
            Passage::Checked(_) => "checked",
            Passage::Closed => "closed",
        }
    }

    #[test]
    fn outcome_decides_passage_and_start() {
        // The preparation; the way of extents; the error of the start; whether the end is right.
        let table = [
            (Ok(None), "open", None, true),
            (Ok(Some(empty())), "checked", None, true),
            (Err(corrupt()), "closed", Some(ErrorKind::Corrupt), false),
        ];
        for (prepared, way, error, ends_well) in table {
            let late = LateCheck::pending(None);
            assert!(late.passage().is_none(), "{way}");
            assert!(late.finish().is_err(), "nothing has been compared");
            late.set(prepared);
            assert_eq!(late.passage().as_ref().map(name), Some(way));
            assert_eq!(name(&late.wait()), way);
            let start = late.settle(|| true).err();
            assert_eq!(start.as_ref().map(Error::kind), error, "{way}");
            assert_eq!(late.finish().is_ok(), ends_well, "{way}");
            if let Some(start) = start {
                assert_eq!(start.chain(), corrupt().chain(), "with its cause");
                assert!(late.settle(|| false).is_err(), "a second start fails too");
            }
        }
    }

    #[test]
    fn lanes_and_start_wait_for_preparation() {
        let (go, goes) = channel::<()>();
        let late = LateCheck::prepare(None, move || {
            goes.recv().expect("the test goes on");
            Ok(None)
        });
        assert!(late.passage().is_none(), "not prepared");
        thread::scope(|scope| {
            let waits = scope.spawn(|| late.wait());
            let start = scope.spawn(|| late.settle(|| false));
            go.send(()).expect("prepares");
            assert_eq!(name(&waits.join().expect("no panic")), "open");
            start.join().expect("no panic").expect("prepared");
        });
    }

    #[test]
    fn end_of_load_frees_lanes_and_only_cancellation_the_start() {
        let late = LateCheck::pending(None);
        thread::scope(|scope| {
            let waits = scope.spawn(|| late.wait());
            let start = scope.spawn(|| late.settle(|| late.is_over.load(Ordering::SeqCst)));
            late.close();
            assert_eq!(name(&waits.join().expect("no panic")), "closed");
            let start = start.join().expect("no panic").expect_err("cancelled");
            assert_eq!(start.kind(), ErrorKind::Cancelled);
            // A lane has failed, and the load was not cancelled.
            let start = scope.spawn(|| late.settle(|| false));
            late.set(Err(corrupt()));
            let start = start.join().expect("no panic").expect_err("refused");
            assert_eq!(start.kind(), ErrorKind::Corrupt);
        });
        assert_eq!(name(&late.wait()), "closed");
    }
}
