//! Waiting for the core without making Python wait: other threads run, and Ctrl-C is honoured.
//!
//! Python only takes a note when a signal arrives, and acts on it when its main thread asks. So every wait here is cut
//! into steps of [`SIGNAL_STEP`] with a look at the signals between two of them.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tload::{Error, ErrorKind};

use crate::error;

/// Longest time between two looks at the signals: a quarter of the 0.2 s within which we promise to honour Ctrl-C.
pub(crate) const SIGNAL_STEP: Duration = Duration::from_millis(50);

/// Runs `work`, which cannot be cut into steps (it may hang on a dead network file system), on a thread of its own.
///
/// After Ctrl-C the thread is left alone: it ends when `work` does, and its result is dropped there.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> tload::Result<T> + Send + 'static,
) -> PyResult<T> {
    let (answer, mut receiver) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("tload-call".to_owned())
        .spawn(move || {
            // Nobody listens any more after Ctrl-C.
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
                    "a thread of tload panicked; this is a bug",
                ));
            }
        }
    }
}
