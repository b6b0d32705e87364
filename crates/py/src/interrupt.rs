//! Waits for the core without blocking Python: other threads run, and Ctrl-C interrupts.
//!
//! When a signal arrives, Python only sets a flag, and acts on it when its main thread checks. So
//! every wait here is cut into steps of [`SIGNAL_STEP`] with a check for signals after each.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tload::{Error, ErrorKind};

use crate::error;

/// Longest time between two checks for signals: a quarter of the promised 0.2 s for Ctrl-C.
pub(crate) const SIGNAL_STEP: Duration = Duration::from_millis(50);

/// Runs `work`, which cannot be cut into steps (it may hang on a dead network file system), on a
/// thread of its own.
///
/// After Ctrl-C the thread is left running: it ends when `work` does, and drops the result.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> tload::Result<T> + Send + 'static,
) -> PyResult<T> {
    let (answer, mut receiver) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("tload-call".to_owned())
        .spawn(move || {
            // After Ctrl-C the receiver is gone.
            drop(answer.send(work()));
        })
        .map_err(|cause| {
            let failed = Error::new(ErrorKind::OutOfMemory, "cannot start a thread")
                .with_hint("raise the limit of processes (ulimit -u)")
                .with_source(cause);
            error::exception(py, &failed)
        })?;
    loop {
        let answered;
        (answered, receiver) = py.detach(move || (receiver.recv_timeout(SIGNAL_STEP), receiver));
        match answered {
            Ok(outcome) => return outcome.map_err(|cause| error::exception(py, &cause)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(
                    "a tload thread panicked; this is a bug",
                ));
            }
        }
    }
}
