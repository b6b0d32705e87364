//! Waits for the core without blocking Python: other threads run, and Ctrl-C interrupts.
//!
//! When a signal arrives, Python only sets a flag, and acts on it when its main thread checks. So
//! every wait here is cut into steps of [`SIGNAL_STEP`] with a check for signals after each. Events
//! of the core are logged then, too.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tload::Error;
use tload_base::sync::threads::Builder;
use tload_pymemory::error;

use crate::events;

/// Longest time between two checks for signals: a quarter of the promised 0.2 s for Ctrl-C.
pub(crate) const SIGNAL_STEP: Duration = Duration::from_millis(50);

/// Call that runs on a thread of its own, as it cannot be cut into steps (it may hang on a dead
/// network file system).
///
/// If this is dropped, the thread is left running: it ends when the call does, and drops the
/// result.
pub(crate) struct Running<T> {
    messages: Receiver<Message<T>>,
}

/// Message of the thread of a [`Running`] to the one that waits for it.
enum Message<T> {
    Call(Call),
    Ended(tload::Result<T>),
}

type Call = Box<dyn FnOnce(Python<'_>) + Send>;

/// Thread that waits for a [`Running`], and makes calls for it meanwhile.
#[derive(Clone)]
pub(crate) struct Caller(Arc<dyn Fn(Call) -> bool + Send + Sync>);

impl Caller {
    /// Makes a call on the thread that waits. Returns `None` once it no longer does.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(Python<'_>) -> T + Send + 'static,
    ) -> Option<T> {
        let (give, answer) = mpsc::sync_channel(1);
        // The receiver is there until the call has returned.
        let is_waiting = (self.0)(Box::new(move |py| drop(give.send(call(py)))));
        is_waiting.then(|| answer.recv().ok()).flatten()
    }
}

impl<T: Send + 'static> Running<T> {
    pub(crate) fn start(
        py: Python<'_>,
        work: impl FnOnce(Caller) -> tload::Result<T> + Send + 'static,
    ) -> PyResult<Self> {
        events::listen();
        let (give, messages) = mpsc::channel();
        let caller = give.clone();
        let caller = Caller(Arc::new(move |call| {
            caller.send(Message::Call(call)).is_ok()
        }));
        Builder::new()
            .name("tload-call".to_owned())
            .spawn(move || {
                // The receiver may be gone.
                drop(give.send(Message::Ended(work(caller))));
            })
            .map_err(|cause| error::exception(py, &Error::cannot_start_thread(cause)))?;
        Ok(Self { messages })
    }

    /// Waits for at most [`SIGNAL_STEP`] and `longest`, and then checks for signals. Makes the call
    /// that arrives meanwhile. Returns the outcome, or itself if there is none yet.
    pub(crate) fn step(
        self,
        py: Python<'_>,
        longest: Duration,
    ) -> PyResult<Result<tload::Result<T>, Self>> {
        let step = SIGNAL_STEP.min(longest);
        let Self { messages } = self;
        let (message, messages) = py.detach(move || (messages.recv_timeout(step), messages));
        match message {
            Ok(Message::Ended(outcome)) => match events::forward(py) {
                Ok(()) => Ok(Ok(outcome)),
                Err(raised) => {
                    // Dropping a load waits for its lanes.
                    py.detach(|| drop(outcome));
                    Err(raised)
                }
            },
            Ok(Message::Call(call)) => {
                call(py);
                attend(py)?;
                Ok(Err(Self { messages }))
            }
            Err(RecvTimeoutError::Timeout) => {
                attend(py)?;
                Ok(Err(Self { messages }))
            }
            Err(RecvTimeoutError::Disconnected) => Err(PyRuntimeError::new_err(
                "a tload thread panicked; this is a bug",
            )),
        }
    }
}

/// Runs `work` as [`Running`]. After Ctrl-C its thread is left running.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> tload::Result<T> + Send + 'static,
) -> PyResult<T> {
    run_calling(py, move |_| work())
}

/// Runs `work` as [`run`]; it may have this thread make calls meanwhile.
pub(crate) fn run_calling<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(Caller) -> tload::Result<T> + Send + 'static,
) -> PyResult<T> {
    let mut running = Running::start(py, work)?;
    loop {
        match running.step(py, SIGNAL_STEP)? {
            Ok(outcome) => return outcome.map_err(|cause| error::exception(py, &cause)),
            Err(still) => running = still,
        }
    }
}

/// Calls `finish`, which waits for the given time at most, until it returns true or `timeout`
/// seconds have passed. Returns its last result. Events are logged at least once.
pub(crate) fn wait_in_steps(
    py: Python<'_>,
    timeout: f64,
    finish: impl Fn(Duration) -> bool + Send + Sync,
) -> PyResult<bool> {
    let timeout = Duration::try_from_secs_f64(timeout).unwrap_or_default();
    let started = Instant::now();
    loop {
        let left = timeout.saturating_sub(started.elapsed());
        let is_finished = py.detach(|| finish(SIGNAL_STEP.min(left)));
        attend(py)?;
        if is_finished || left.is_zero() {
            return Ok(is_finished);
        }
    }
}

/// Logs the events of the core, and checks for signals.
pub(crate) fn attend(py: Python<'_>) -> PyResult<()> {
    events::forward(py)?;
    py.check_signals()
}
