//! Running loads for Python: receive, cancel, query, close.
//!
//! Nothing here touches a stream in a forked process: its threads do not exist there, and a lock
//! that one of them held is never released. `python/tload/_load/stream.py` makes an iterator of it.

use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use futures_core::Stream as _;
use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use tload::internal::process_id;
use tload::{Canceller, Error, ErrorKind, Progress, Report, TensorInfo, TensorStream};
use tload_pymemory::error::exception;

use crate::checkpoint::{Described, describe};
use crate::events;
use crate::interrupt::{SIGNAL_STEP, attend};
use crate::raised::Raised;
use crate::readiness::Readiness;
use crate::tensor::{Empties, Tensor};

/// Progress of a load: total and received tensors; total, received and read bytes.
type ProgressValues = (u64, u64, u64, u64, u64);

/// A running load.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Stream {
    /// `None` once closed.
    running: Mutex<Option<Box<TensorStream>>>,
    last: OnceLock<Last>,
    canceller: Canceller,
    /// Tensors of the load, in file order.
    tensors: Box<[TensorInfo]>,
    empties: Empties,
    /// Last exception of the caller's GPU memory allocator.
    raised: Raised,
    /// Thread that is in `receive`. Python code runs there while the allocator does, including
    /// signal handlers and finalizers; the stream is locked then.
    receiving: Mutex<Option<ThreadId>>,
    process: u32,
    /// Pipe for event loops, made on first use.
    ready: OnceLock<Arc<Readiness>>,
}

/// Final values of a stream, kept after the stream and its memory are gone.
#[derive(Debug)]
struct Last {
    progress: Progress,
    report: Report,
    /// The stream was closed before it had reported its end.
    cut_short: bool,
}

type Polled = Poll<Option<tload::Result<tload::Tensor>>>;

#[pymethods]
impl Stream {
    /// Returns the next tensor, or `None` if none arrived within `timeout` seconds. Raises
    /// `StopIteration` at the end. Skips tensors that are in the caller's memory.
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Tensor>> {
        self.check_process(py)?;
        self.check_receiving(py)?;
        let deadline = match timeout {
            None => None,
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds)
                    .ok()
                    .and_then(|timeout| Instant::now().checked_add(timeout))
                    .ok_or_else(|| PyValueError::new_err("timeout is out of range"))?,
            ),
        };
        // Before a tensor is taken, which an exception of a handler would lose.
        events::forward(py)?;
        if let Some(tensor) = self.receive_ready(py)?
            && tensor.target().is_none()
        {
            return Ok(Some(Tensor::new(tensor, &self.empties)));
        }
        loop {
            let step = deadline.map_or(SIGNAL_STEP, |deadline| {
                deadline
                    .saturating_duration_since(Instant::now())
                    .min(SIGNAL_STEP)
            });
            let polled = self.receive_with(py, |stream| next_of_the_load(stream, step));
            // Ctrl-C takes precedence over a tensor that is ready.
            self.raised.check(py)?;
            match polled {
                Poll::Ready(Some(Ok(tensor))) => {
                    return Ok(Some(Tensor::new(tensor, &self.empties)));
                }
                Poll::Ready(Some(Err(error))) => return Err(self.raised.exception(py, &error)),
                Poll::Ready(None) => return Err(PyStopIteration::new_err(())),
                Poll::Pending => attend(py)?,
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    /// Returns the tensors that arrive within a [`SIGNAL_STEP`], perhaps none. Raises
    /// `StopIteration` at the end.
    ///
    /// Another thread that imports a module keeps the interpreter's lock for milliseconds at a
    /// time: waiting for it once per tensor would delay a load of small tensors.
    fn receive_several(&self, py: Python<'_>) -> PyResult<Vec<Tensor>> {
        self.check_process(py)?;
        self.check_receiving(py)?;
        let deadline = Instant::now() + SIGNAL_STEP;
        let mut received = Vec::new();
        let polled = self.receive_with(py, |stream| {
            loop {
                match stream.wait(deadline.saturating_duration_since(Instant::now())) {
                    Poll::Ready(Some(Ok(tensor))) => received.push(tensor),
                    polled @ (Poll::Ready(None | Some(Err(_))) | Poll::Pending) => return polled,
                }
                if Instant::now() >= deadline {
                    return Poll::Pending;
                }
            }
        });
        self.raised.check(py)?;
        match polled {
            Poll::Ready(Some(Err(error))) => return Err(self.raised.exception(py, &error)),
            Poll::Ready(None) if received.is_empty() => return Err(PyStopIteration::new_err(())),
            Poll::Ready(Some(Ok(_)) | None) | Poll::Pending => attend(py)?,
        }
        let tensors = received.into_iter();
        Ok(tensors
            .map(|tensor| Tensor::new(tensor, &self.empties))
            .collect())
    }

    /// Returns the next tensor if it is ready. If it is not, returns `None`, and the descriptor of
    /// `fileno` becomes readable when the next poll may succeed. Skips none.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Tensor>> {
        self.check_process(py)?;
        self.check_receiving(py)?;
        events::forward(py)?;
        if let Some(tensor) = self.receive_ready(py)? {
            return Ok(Some(Tensor::new(tensor, &self.empties)));
        }
        let ready = self.ready()?;
        ready.reset()?;
        let waker = Waker::from(Arc::clone(ready));
        let polled = self.receive_with(py, |stream| {
            Pin::new(stream).poll_next(&mut Context::from_waker(&waker))
        });
        self.raised.check(py)?;
        match polled {
            Poll::Ready(Some(Ok(tensor))) => Ok(Some(Tensor::new(tensor, &self.empties))),
            Poll::Ready(Some(Err(error))) => Err(self.raised.exception(py, &error)),
            Poll::Ready(None) => Err(PyStopIteration::new_err(())),
            Poll::Pending => Ok(None),
        }
    }

    /// Returns the tensors of the load, in file order.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Described<'py>>> {
        self.tensors.iter().map(|info| describe(py, info)).collect()
    }

    /// Returns the names of the tensors, in file order.
    fn names<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyString>> {
        let names = self.tensors.iter().map(TensorInfo::name);
        names.map(|name| PyString::new(py, name)).collect()
    }

    /// Returns the descriptor for an event loop to watch.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.ready()?.fileno())
    }

    /// Stops reading. A thread that waits in `receive` gets a `CancelledError`.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process(py)?;
        // Cancelling frees queued tensors: other Python threads can run meanwhile.
        py.detach(|| self.canceller.cancel());
        Ok(())
    }

    /// Stops reading and frees everything that was not yielded. In a forked process, does nothing.
    fn close(&self, py: Python<'_>) {
        if self.is_forked() {
            return;
        }
        py.detach(|| {
            self.canceller.cancel();
            if self.is_receiving_here() {
                // Called from within `receive`, which holds the lock and ends now.
                return;
            }
            if let Some(mut stream) = self.lock().take() {
                // Not even the error of an early end may be there yet.
                let cut_short = !matches!(stream.wait(Duration::ZERO), Poll::Ready(None));
                let (progress, report) = (stream.progress(), stream.report());
                self.last.get_or_init(|| Last {
                    progress,
                    report,
                    cut_short,
                });
            }
        });
    }

    /// Returns the progress of the load.
    fn progress(&self, py: Python<'_>) -> PyResult<ProgressValues> {
        self.check_process(py)?;
        self.check_receiving(py)?;
        let progress = py
            .detach(|| match &*self.lock() {
                Some(stream) => Some(stream.progress()),
                None => self.last.get().map(|last| last.progress),
            })
            .ok_or_else(|| exception(py, &closed()))?;
        Ok((
            progress.tensors_total,
            progress.tensors_received,
            progress.bytes_total,
            progress.bytes_received,
            progress.bytes_read,
        ))
    }

    /// Returns the report as JSON and as text for people.
    fn report(&self, py: Python<'_>) -> PyResult<(String, String)> {
        self.check_process(py)?;
        self.check_receiving(py)?;
        let report = py
            .detach(|| match &*self.lock() {
                Some(stream) => Some(stream.report()),
                None => self.last.get().map(|last| last.report.clone()),
            })
            .ok_or_else(|| exception(py, &closed()))?;
        let json = serde_json::to_string(&report)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((json, report.to_string()))
    }
}

impl Stream {
    pub(crate) fn new(stream: TensorStream, empties: Empties, raised: Raised) -> Self {
        Self {
            canceller: stream.canceller(),
            tensors: stream.tensors().cloned().collect(),
            empties,
            raised,
            receiving: Mutex::default(),
            running: Mutex::new(Some(Box::new(stream))),
            last: OnceLock::new(),
            process: process_id(),
            ready: OnceLock::new(),
        }
    }

    /// Returns the pipe for event loops.
    fn ready(&self) -> PyResult<&Arc<Readiness>> {
        if self.ready.get().is_none() {
            let made = Arc::new(Readiness::new()?);
            // Another thread may have been faster.
            let _ = self.ready.set(made);
        }
        self.ready
            .get()
            .ok_or_else(|| PyRuntimeError::new_err("just made"))
    }

    fn is_forked(&self) -> bool {
        self.process != process_id()
    }

    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_forked() {
            return Ok(());
        }
        let message = format!(
            "the stream was started in process {} and is used in process {}, a fork of it",
            self.process,
            process_id()
        );
        let error = Error::new(ErrorKind::InvalidRequest, message).with_hint(
            "start the stream in the process that reads it, or use multiprocessing's start method \"spawn\"",
        );
        Err(exception(py, &error))
    }

    /// Calls `poll` with the stream, detached from the interpreter.
    fn receive_with(
        &self,
        py: Python<'_>,
        poll: impl FnOnce(&mut TensorStream) -> Polled + Send,
    ) -> Polled {
        py.detach(|| match &mut *self.lock() {
            Some(stream) => {
                self.receiving_on(Some(thread::current().id()));
                let polled = poll(stream);
                self.receiving_on(None);
                polled
            }
            None if self.last.get().is_some_and(|last| last.cut_short) => {
                Poll::Ready(Some(Err(closed())))
            }
            None => Poll::Ready(None),
        })
    }

    /// Returns the next tensor, if it is ready, without detaching from the
    /// interpreter: each time, another thread could keep its lock for milliseconds. Waits for no
    /// thread that may be receiving.
    fn receive_ready(&self, py: Python<'_>) -> PyResult<Option<tload::Tensor>> {
        let mut running = self.running.try_lock().ok();
        let mut stream = running.as_mut().and_then(|running| running.as_mut());
        let Some(tensor) = stream.as_mut().and_then(|stream| stream.take_ready()) else {
            return Ok(None);
        };
        if let Some(stream) = stream.filter(|stream| stream.wants_memory()) {
            self.receiving_on(Some(thread::current().id()));
            py.detach(|| stream.provide_memory());
            self.receiving_on(None);
            drop(running);
            // Ctrl-C takes precedence over a tensor that is ready.
            self.raised.check(py)?;
        }
        Ok(Some(tensor))
    }

    fn receiving_on(&self, thread: Option<ThreadId>) {
        let mut receiving = self
            .receiving
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *receiving = thread;
    }

    fn is_receiving_here(&self) -> bool {
        let receiving = self.receiving.lock();
        *receiving.unwrap_or_else(PoisonError::into_inner) == Some(thread::current().id())
    }

    fn check_receiving(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_receiving_here() {
            return Ok(());
        }
        let message = "the stream is used while it allocates GPU memory on this thread";
        let error = Error::new(ErrorKind::InvalidRequest, message)
            .with_hint("in a signal handler, call only cancel() or close()");
        Err(exception(py, &error))
    }

    /// Locks the stream. Not to be called while attached to the interpreter: another thread may
    /// hold the lock for a [`SIGNAL_STEP`].
    fn lock(&self) -> MutexGuard<'_, Option<Box<TensorStream>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let forked = self.is_forked();
        let mut running = self
            .running
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if forked {
            // Joining threads that do not exist in this process would hang it; its end frees the
            // memory.
            let _left_alone = ManuallyDrop::new(running);
        } else if running.is_some() {
            // Dropping waits for reads in flight, and must not block other Python threads. During
            // the interpreter's shutdown no thread can attach, and the stream is dropped as it is.
            Python::try_attach(|py| py.detach(|| drop(running.take())));
        }
    }
}

/// Waits for a tensor in memory of the load. The caller need not learn of each of 100,000 tensors
/// in its own memory, one by one.
fn next_of_the_load(stream: &mut TensorStream, timeout: Duration) -> Polled {
    let deadline = Instant::now() + timeout;
    loop {
        let polled = stream.wait(deadline.saturating_duration_since(Instant::now()));
        let is_in_target =
            matches!(&polled, Poll::Ready(Some(Ok(tensor))) if tensor.target().is_some());
        if !is_in_target {
            return polled;
        }
        if Instant::now() >= deadline {
            return Poll::Pending;
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::InvalidRequest, "the stream is closed")
}
