//! Calls with a deadline and with progress: copies, verifications and other long calls.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tload::{Error, ErrorKind, Result};
use tload_pymemory::error::exception;

use crate::interrupt::{Running, SIGNAL_STEP};

/// Time between two calls of the function that shows progress.
const PROGRESS_STEP: Duration = Duration::from_millis(100);

/// Time for a cancelled call to end, so that it can save its state: as in the command.
const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// Limit of a call, and its callbacks.
pub(crate) struct Watch<'a, 'py> {
    pub(crate) timeout: Option<Duration>,
    /// Called with the bytes done and their total, as soon as the total is known.
    pub(crate) show: Option<Bound<'py, PyAny>>,
    /// Returns the bytes done and their total; 0 as long as that is unknown.
    pub(crate) progress: &'a dyn Fn() -> (u64, u64),
    pub(crate) cancel: &'a dyn Fn(),
    /// Returns the error for an expired timeout. Called once the call has ended, if it ends.
    pub(crate) late: &'a dyn Fn(Duration) -> Error,
}

impl Watch<'_, '_> {
    /// Runs `work`. After Ctrl-C, and after an exception of the function that shows progress, it is
    /// cancelled, and not waited for.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let outcome = Running::start(py, |_| work()).and_then(|running| self.follow(py, running));
        // Has no effect on a call that has ended.
        outcome.inspect_err(|_| (self.cancel)())
    }

    fn follow<T: Send + 'static>(&self, py: Python<'_>, mut running: Running<T>) -> PyResult<T> {
        let started = Instant::now();
        let mut shown = started;
        loop {
            let left = self.timeout.map(|it| it.saturating_sub(started.elapsed()));
            if let (Some(Duration::ZERO), Some(timeout)) = (left, self.timeout) {
                return self.end(py, running, timeout);
            }
            match running.step(py, left.unwrap_or(SIGNAL_STEP))? {
                Ok(outcome) => {
                    let done = outcome.map_err(|error| exception(py, &error))?;
                    self.show()?;
                    return Ok(done);
                }
                Err(still) => running = still,
            }
            if shown.elapsed() >= PROGRESS_STEP && (self.progress)().1 > 0 {
                shown = Instant::now();
                self.show()?;
            }
        }
    }

    fn show(&self) -> PyResult<()> {
        match &self.show {
            Some(show) => show.call1((self.progress)()).map(drop),
            None => Ok(()),
        }
    }

    /// Cancels the call, whose timeout has expired.
    fn end<T: Send + 'static>(
        &self,
        py: Python<'_>,
        mut running: Running<T>,
        timeout: Duration,
    ) -> PyResult<T> {
        (self.cancel)();
        let cancelled = Instant::now();
        while cancelled.elapsed() < CANCEL_GRACE {
            match running.step(py, SIGNAL_STEP)? {
                Ok(Err(error)) if error.kind() != ErrorKind::Cancelled => {
                    return Err(exception(py, &error));
                }
                Ok(Err(_)) => break,
                Ok(Ok(done)) => return Ok(done),
                Err(still) => running = still,
            }
        }
        Err(exception(py, &(self.late)(timeout)))
    }
}
