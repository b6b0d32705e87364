//! Reads that have begun, for the caller who waits for them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::error::{Error, ErrorKind, Result};
use crate::sync::cancel::CancelFlag;
use crate::sync::lock::Mutex;

/// Reads of one call of [`Reader::submit`](super::Reader::submit).
///
/// Dropping it cancels them and waits until the last has ended: from then on nothing writes to
/// their memory. A read of a disk ends when the disk responds; a request to a store ends at once.
#[must_use = "dropping it cancels the reads"]
pub struct Reading {
    outcome: Receiver<Result<()>>,
    stop: Arc<Stop>,
    has_ended: bool,
}

/// Tells the lane that serves a call to stop.
#[derive(Default)]
pub(super) struct Stop(Mutex<Stopping>);

#[derive(Default)]
struct Stopping {
    is_wanted: bool,
    /// Flag of the engines of the lane that serves the call now.
    lane: Option<Arc<CancelFlag>>,
}

impl Reading {
    pub(super) fn new(outcome: Receiver<Result<()>>, stop: Arc<Stop>) -> Self {
        Self {
            outcome,
            stop,
            has_ended: false,
        }
    }

    /// Waits until all bytes are there.
    ///
    /// # Errors
    ///
    /// The first error of a read; [`ErrorKind::Cancelled`].
    pub fn wait(mut self) -> Result<()> {
        self.has_ended = true;
        self.outcome.recv().unwrap_or_else(|_| Err(lost()))
    }

    /// Waits for at most `timeout`. Returns `None` if the reads have not ended by then, and also
    /// once it has returned their result.
    pub fn wait_for(&mut self, timeout: Duration) -> Option<Result<()>> {
        if self.has_ended {
            return None;
        }
        let result = match self.outcome.recv_timeout(timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => Err(lost()),
        };
        self.has_ended = true;
        Some(result)
    }

    /// Cancels the reads, without waiting for them to end.
    pub fn cancel(&self) {
        self.stop.stop();
    }
}

/// A lane answers every call, unless a bug kills it: engines that it drops then have ended.
fn lost() -> Error {
    Error::new(ErrorKind::Io, "a reading thread is gone")
        .with_hint("this is a bug in tload; please report it")
}

impl Drop for Reading {
    fn drop(&mut self) {
        if !self.has_ended {
            self.cancel();
            // An error means that no lane has the memory any more.
            let _ = self.outcome.recv();
        }
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading")
            .field("has_ended", &self.has_ended)
            .finish_non_exhaustive()
    }
}

impl Stop {
    fn stop(&self) {
        let lane = {
            let mut state = self.0.lock();
            state.is_wanted = true;
            state.lane.clone()
        };
        if let Some(lane) = lane {
            lane.cancel();
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.0.lock().is_wanted
    }

    /// Begins to serve the call with engines that `lane` stops.
    pub(super) fn serve(&self, lane: &Arc<CancelFlag>) {
        self.0.lock().lane = Some(Arc::clone(lane));
    }

    /// Ends it: later orders reach no engine.
    pub(super) fn served(&self) {
        self.0.lock().lane = None;
    }
}
