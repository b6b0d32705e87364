//! Exceptions of Python objects that the core calls during a load: an allocator, a group.
//!
//! The core sees an error in their place. The exception itself is kept in [`Raised`] until the
//! error is reported, and is then its cause.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::prelude::*;
use tload::{Error, ErrorKind};
use tload_pymemory::error::exception;

/// Last exception that has not been reported yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// Returns the exception for an error that ended a load, with the kept exception as its cause.
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

    /// Returns an order to stop, such as Ctrl-C, that arrived while the object ran.
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        let mut raised = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match raised.take_if(|raised| is_order(py, raised)) {
            Some(order) => Err(order),
            None => Ok(()),
        }
    }

    /// Keeps an exception, and returns the core's error for it: of `kind` with `message`, unless
    /// memory is exhausted or the exception is an order to stop.
    pub(crate) fn keep(
        &self,
        py: Python<'_>,
        raised: PyErr,
        kind: ErrorKind,
        message: &'static str,
    ) -> Error {
        let value = raised.value(py);
        let class = value.get_type().name().map_or_else(
            |_| "an exception".to_owned(),
            |class| class.to_string_lossy().into_owned(),
        );
        let text = value.str().map_or_else(
            |_| "?".to_owned(),
            |text| text.to_string_lossy().into_owned(),
        );
        let text = format!("{class}: {text}");
        let error = if raised.is_instance_of::<PyMemoryError>(py) {
            // The core adds the requested size and the free memory.
            Error::new(ErrorKind::OutOfMemory, text)
        } else if is_order(py, &raised) {
            Error::new(ErrorKind::Cancelled, text)
        } else {
            Error::new(kind, message).with_source(text)
        };
        self.put(raised);
        error
    }

    pub(crate) fn put(&self, raised: PyErr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
    }

    fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Returns whether an exception is an order to stop, not a failure: `KeyboardInterrupt`,
/// `SystemExit`.
pub(crate) fn is_order(py: Python<'_>, raised: &PyErr) -> bool {
    !raised.is_instance_of::<PyException>(py)
}

/// Returns the error for a call of a Python object that is no longer possible.
pub(crate) fn shutting_down() -> Error {
    let message = "the interpreter is shutting down, and the load needs it";
    Error::new(ErrorKind::Cancelled, message)
}
