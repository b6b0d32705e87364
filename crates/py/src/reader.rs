//! Readers of single tensors for Python, and reads of many at once.

#![expect(
    unsafe_code,
    reason = "passes on that the Python package vouches for memory"
)]

use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tload::internal::process_id;
use tload::{ReadRequest, Slice};
use tload_pymemory::error::{exception, invalid_request};
use tload_pyreads::{Buffer, Memory};

use crate::checkpoint::Checkpoint;
use crate::forked::Owned;
use crate::index::slice;
use crate::interrupt::{self, SIGNAL_STEP, attend};
use crate::options;

/// Reads single tensors of a checkpoint into buffers.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Reader {
    checkpoint: Owned<tload::Checkpoint>,
    inner: Owned<tload::Reader>,
}

/// Reads that have begun.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Reading {
    /// `None` once they have ended.
    inner: Mutex<Option<Lent>>,
}

/// Reads, and the buffers that they fill, which are released after them.
#[derive(Debug)]
struct Lent {
    /// `None` once they have ended.
    reading: Option<tload::Reading>,
    _buffers: Vec<Buffer>,
    process: u32,
}

impl Lent {
    /// Waits a little. Returns the result of the reads, once.
    fn step(&mut self) -> Option<tload::Result<()>> {
        self.reading.as_mut()?.wait_for(SIGNAL_STEP)
    }

    /// Cancels the reads, and waits for the last one to end.
    fn end(&mut self) {
        self.reading = None;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.process != process_id() {
            // The threads that would answer are in the parent.
            let _left_alone = ManuallyDrop::new(self.reading.take());
        } else if self.reading.is_some() {
            let ended = Python::try_attach(|py| py.detach(|| self.end()));
            if ended.is_none() {
                self.end();
            }
        }
    }
}

/// Reads rows of a table from local files into host memory, as `tload_pyreads::scatter`. Returns
/// false if it cannot.
#[pyfunction]
#[expect(
    clippy::needless_pass_by_value,
    reason = "converted from objects of Python for this call"
)]
pub(crate) fn scatter(
    py: Python<'_>,
    checkpoint: &Bound<'_, Checkpoint>,
    names: Vec<String>,
    memory: Vec<Memory>,
    table: &[u8],
) -> PyResult<bool> {
    let checkpoint = checkpoint.get().share();
    // SAFETY: the Python package gives address and length of tensors that it holds meanwhile.
    unsafe { tload_pyreads::scatter(py, &checkpoint, &names, &memory, table, attend) }
}

/// Name of a tensor, index of the part to read, and its buffer.
type Request<'py> = (String, Option<Bound<'py, PyAny>>, Bound<'py, PyAny>);

#[pymethods]
impl Reader {
    /// Opens the files of a checkpoint for reads.
    #[new]
    fn new(
        py: Python<'_>,
        checkpoint: &Bound<'_, Checkpoint>,
        options: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (checkpoint, options) = (checkpoint.get().share(), options::read(options)?);
        let opening = checkpoint.clone();
        let inner = interrupt::run(py, move || opening.reader(&options))?;
        Ok(Self {
            checkpoint: Owned::new(checkpoint),
            inner: Owned::new(inner),
        })
    }

    /// Begins to read into buffers.
    fn submit(&self, py: Python<'_>, requests: Vec<Request<'_>>) -> PyResult<Reading> {
        let mut buffers = Vec::with_capacity(requests.len());
        let mut wanted = Vec::with_capacity(requests.len());
        for (name, index, buffer) in requests {
            let buffer = Buffer::new(&name, &buffer)?;
            let slice = match (index, self.checkpoint.get(&name)) {
                (Some(index), Some(info)) => slice(&index, info.shape())?,
                _ => Slice::default(),
            };
            wanted.push(ReadRequest::slice(name, slice, buffer.target()));
            buffers.push(buffer);
        }
        let reading = py.detach(|| self.inner.submit(wanted));
        let reading = reading.map_err(|error| exception(py, &error))?;
        let lent = Lent {
            reading: Some(reading),
            _buffers: buffers,
            process: process_id(),
        };
        Ok(Reading {
            inner: Mutex::new(Some(lent)),
        })
    }
}

impl Reading {
    fn take(&self) -> Option<Lent> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.take()
    }
}

#[pymethods]
impl Reading {
    /// Waits until all bytes are there.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let Some(mut lent) = self.take() else {
            let message = "these reads have been waited for already";
            return Err(invalid_request(py, message.to_owned()));
        };
        loop {
            let step = py.detach(|| lent.step());
            // After Ctrl-C, dropping them cancels the reads and waits for the last.
            attend(py).inspect_err(|_| py.detach(|| lent.end()))?;
            if let Some(result) = step {
                return result.map_err(|error| exception(py, &error));
            }
        }
    }

    /// Cancels the reads, and waits for the last one to end.
    fn cancel(&self, py: Python<'_>) {
        if let Some(mut lent) = self.take() {
            py.detach(|| lent.end());
        }
    }
}
