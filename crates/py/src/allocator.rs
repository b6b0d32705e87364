//! Adapter between the core and a GPU memory allocator that is a Python object.
//!
//! The core allocates on the thread that waits in `Loader.stream` or `Stream.receive`, which is
//! detached from the interpreter and attaches again here. An exception of the allocator ends the
//! load; the exception itself is kept in [`Raised`] until that end is reported.
//! `python/tload/_cuda.py` has the allocator that uses PyTorch.

#![expect(
    unsafe_code,
    reason = "vouches for memory that the caller's allocator gave"
)]

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::prelude::*;
use tload::{DeviceAllocator, DeviceMemory, Error, ErrorKind};

use crate::error::exception;

/// Allocator object with `allocate(ordinal, nbytes) -> (owner, address, stream)` and
/// `free_bytes(ordinal) -> int`.
pub(crate) struct PythonAllocator {
    object: Py<PyAny>,
    raised: Raised,
}

/// Last exception of an allocator that has not been reported yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl PythonAllocator {
    pub(crate) fn new(object: Py<PyAny>, raised: Raised) -> Self {
        Self { object, raised }
    }

    fn ask(&self, py: Python<'_>, ordinal: usize, bytes: usize) -> PyResult<DeviceMemory> {
        let given = self
            .object
            .bind(py)
            .call_method1("allocate", (ordinal, bytes))?;
        let (owner, address, stream): (Py<PyAny>, u64, u64) = given.extract()?;
        // Dropped by the last thread that releases the memory, attached or not: if it is not
        // attached, pyo3 defers the drop to the next thread that is.
        let owner = Arc::new(owner);
        // SAFETY: the allocator is part of this package. Its memory is the device's, at least as
        // long as requested, alive as long as its owner, and ordered with its stream, which is
        // live: it is the device's current one.
        Ok(unsafe { DeviceMemory::new(address, bytes, stream, owner) })
    }
}

impl DeviceAllocator for PythonAllocator {
    fn allocate(&mut self, ordinal: usize, bytes: usize) -> tload::Result<DeviceMemory> {
        let asked = Python::try_attach(|py| {
            self.ask(py, ordinal, bytes)
                .map_err(|raised| self.raised.keep(py, raised))
        });
        asked.unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::Cancelled,
                "the interpreter is shutting down, and the load needs memory from it",
            ))
        })
    }

    fn free_bytes(&mut self, ordinal: usize) -> Option<u64> {
        Python::try_attach(|py| {
            let free = self.object.bind(py).call_method1("free_bytes", (ordinal,));
            match free.and_then(|free| free.extract()) {
                Ok(free) => Some(free),
                Err(raised) => {
                    // The driver is queried instead, unless the exception is an order to stop.
                    if is_order(py, &raised) {
                        self.raised.put(raised);
                    }
                    None
                }
            }
        })
        .flatten()
    }
}

impl Raised {
    /// Returns the exception for an error that ended a load, with the allocator's exception as its
    /// cause.
    pub(crate) fn exception(&self, py: Python<'_>, error: &Error) -> PyErr {
        let cause = self.take();
        if cause.as_ref().is_some_and(|cause| is_order(py, cause)) {
            return cause.expect("just seen");
        }
        let made = exception(py, error);
        if cause.is_some() {
            made.set_cause(py, cause);
        }
        made
    }

    /// Returns an order to stop, such as Ctrl-C, that arrived while the allocator ran.
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        let mut raised = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match raised.take_if(|raised| is_order(py, raised)) {
            Some(order) => Err(order),
            None => Ok(()),
        }
    }

    /// Keeps an exception, and returns the core's error for it.
    fn keep(&self, py: Python<'_>, raised: PyErr) -> Error {
        let value = raised.value(py);
        let class = value.get_type().name();
        let class = class.map_or_else(|_| "an exception".to_owned(), |class| class.to_string());
        let text = value
            .str()
            .map_or_else(|_| "?".to_owned(), |text| text.to_string());
        let text = format!("{class}: {text}");
        let error = if raised.is_instance_of::<PyMemoryError>(py) {
            // The core adds the requested size and the free memory.
            Error::new(ErrorKind::OutOfMemory, text)
        } else if is_order(py, &raised) {
            Error::new(ErrorKind::Cancelled, text)
        } else {
            Error::new(ErrorKind::Device, "the allocator of GPU memory failed").with_source(text)
        };
        self.put(raised);
        error
    }

    fn put(&self, raised: PyErr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
    }

    fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Returns whether an exception is an order to stop, not a failure: `KeyboardInterrupt`,
/// `SystemExit`.
fn is_order(py: Python<'_>, raised: &PyErr) -> bool {
    !raised.is_instance_of::<PyException>(py)
}
