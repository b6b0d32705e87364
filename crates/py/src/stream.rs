//! A running load for Python: receive, cancel, look, close.
//!
//! Nothing here touches a stream in a process that `fork` made: its threads are not there, and its locks may be held by
//! them for ever. `python/tload/_stream.py` makes an iterator of it.

use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use futures_core::Stream as _;
use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use tload::{Canceller, Error, ErrorKind, Progress, Report, TensorInfo, TensorStream};

use crate::allocator::Raised;
use crate::checkpoint::{Described, describe};
use crate::error::exception;
use crate::interrupt::SIGNAL_STEP;
use crate::readiness::Readiness;
use crate::tensor::{Empties, Tensor};

/// How far a load is: tensors in all and received, bytes in all, received and read.
type ProgressValues = (u64, u64, u64, u64, u64);

/// A running load.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Stream {
    /// `None` once closed.
    running: Mutex<Option<Box<TensorStream>>>,
    last: OnceLock<Last>,
    canceller: Canceller,
    /// What comes, in file order.
    tensors: Box<[TensorInfo]>,
    empties: Empties,
    /// What the caller's allocator of GPU memory has raised.
    raised: Raised,
    /// The thread that is in `receive`. Python runs there whenever the allocator does, and with it whatever a signal's handler or
    /// a finalizer calls; the stream is locked then.
    receiving: Mutex<Option<ThreadId>>,
    process: u32,
    /// For event loops; made for the first of them.
    ready: OnceLock<Arc<Readiness>>,
}

/// What is left to tell once the stream and its memory are gone.
#[derive(Debug)]
struct Last {
    progress: Progress,
    report: Report,
    /// Whether it was closed before it had said how it ended.
    cut_short: bool,
}

#[pymethods]
impl Stream {
    /// The next tensor; `None` when none came within `timeout` seconds. At the end: `StopIteration`.
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
        loop {
            let step = deadline.map_or(SIGNAL_STEP, |deadline| {
                deadline
                    .saturating_duration_since(Instant::now())
                    .min(SIGNAL_STEP)
            });
            let polled = py.detach(|| match &mut *self.lock() {
                Some(stream) => {
                    self.receiving_on(Some(thread::current().id()));
                    let polled = stream.wait(step);
                    self.receiving_on(None);
                    polled
                }
                None if self.last.get().is_some_and(|last| last.cut_short) => {
                    Poll::Ready(Some(Err(closed())))
                }
                None => Poll::Ready(None),
            });
            // Ctrl-C is honoured before anything is handed over.
            self.raised.check(py)?;
            match polled {
                Poll::Ready(Some(Ok(tensor))) => {
                    return Ok(Some(Tensor::new(tensor, &self.empties)));
                }
                Poll::Ready(Some(Err(error))) => return Err(self.raised.exception(py, &error)),
                Poll::Ready(None) => return Err(PyStopIteration::new_err(())),
                Poll::Pending => py.check_signals()?,
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    /// The next tensor if it is there; `None` if not: then what `fileno` names becomes readable when it is worth to ask again.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Tensor>> {
        self.check_process(py)?;
        self.check_receiving(py)?;
        let ready = self.ready()?;
        ready.reset()?;
        let waker = Waker::from(Arc::clone(ready));
        let polled = py.detach(|| match &mut *self.lock() {
            Some(stream) => {
                self.receiving_on(Some(thread::current().id()));
                let polled = Pin::new(stream).poll_next(&mut Context::from_waker(&waker));
                self.receiving_on(None);
                polled
            }
            None if self.last.get().is_some_and(|last| last.cut_short) => {
                Poll::Ready(Some(Err(closed())))
            }
            None => Poll::Ready(None),
        });
        self.raised.check(py)?;
        match polled {
            Poll::Ready(Some(Ok(tensor))) => Ok(Some(Tensor::new(tensor, &self.empties))),
            Poll::Ready(Some(Err(error))) => Err(self.raised.exception(py, &error)),
            Poll::Ready(None) => Err(PyStopIteration::new_err(())),
            Poll::Pending => Ok(None),
        }
    }

    /// What comes, in file order.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Described<'py>>> {
        self.tensors.iter().map(|info| describe(py, info)).collect()
    }

    /// The names of that.
    fn names<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyString>> {
        let names = self.tensors.iter().map(TensorInfo::name);
        names.map(|name| PyString::new(py, name)).collect()
    }

    /// The descriptor for an event loop to watch.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.ready()?.fileno())
    }

    /// Stops reading. Whoever waits in `receive` gets a `CancelledError`.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process(py)?;
        // Frees what waits: other threads need not stand still meanwhile.
        py.detach(|| self.canceller.cancel());
        Ok(())
    }

    /// Stops reading and frees everything that was not handed out. In a forked process, does nothing.
    fn close(&self, py: Python<'_>) {
        if self.is_forked() {
            return;
        }
        py.detach(|| {
            self.canceller.cancel();
            if self.is_receiving_here() {
                // From within `receive`, which ends now and has the lock.
                return;
            }
            if let Some(mut stream) = self.lock().take() {
                // The report says how the stream ended once the stream has said so.
                let cut_short = matches!(stream.wait(Duration::ZERO), Poll::Ready(Some(_)));
                let (progress, report) = (stream.progress(), stream.report());
                self.last.get_or_init(|| Last {
                    progress,
                    report,
                    cut_short,
                });
            }
        });
    }

    /// How far it is.
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

    /// The report as JSON and as text for people.
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
            process: process::id(),
            ready: OnceLock::new(),
        }
    }

    /// The pipe for event loops.
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
        self.process != process::id()
    }

    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_forked() {
            return Ok(());
        }
        let message = format!(
            "the stream was started in process {} and is used in process {}, which fork made of it",
            self.process,
            process::id()
        );
        let error = Error::new(ErrorKind::InvalidRequest, message).with_hint(
            "start the stream in the process that reads it, or use multiprocessing's start method \"spawn\"",
        );
        Err(exception(py, &error))
    }

    fn receiving_on(&self, thread: Option<ThreadId>) {
        *self
            .receiving
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = thread;
    }

    fn is_receiving_here(&self) -> bool {
        let receiving = self.receiving.lock();
        *receiving.unwrap_or_else(PoisonError::into_inner) == Some(thread::current().id())
    }

    fn check_receiving(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_receiving_here() {
            return Ok(());
        }
        let message = "the stream is used while it asks for GPU memory on this thread";
        let error = Error::new(ErrorKind::InvalidRequest, message)
            .with_hint("in a signal handler, call cancel() or close(), and nothing else");
        Err(exception(py, &error))
    }

    /// Never called with the interpreter attached: another thread may hold the lock for a [`SIGNAL_STEP`].
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
            // Joining threads that this process does not have would hang it; the memory goes when the process ends.
            let _left_alone = ManuallyDrop::new(running);
        } else if running.is_some() {
            // Waits for reads in flight, and no Python thread shall wait with us. When Python is on its way out, nobody
            // can attach, and what is left is dropped as it is.
            Python::try_attach(|py| py.detach(|| drop(running.take())));
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::InvalidRequest, "the stream is closed")
}
