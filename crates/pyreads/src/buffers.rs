//! Memory that Python callers lend to single reads: tensors, arrays, other objects with a buffer.

#![expect(
    unsafe_code,
    reason = "vouches for memory that Python says is a buffer"
)]

use std::ptr::NonNull;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tload::Target;
use tload_pymemory::load_targets::LoadTargets;

/// Memory of one read. Python keeps the buffer exported while this lives, so it is dropped after
/// the read has ended, attached to the interpreter.
#[derive(Debug)]
pub struct Buffer {
    target: Target,
    _exported: Option<PyUntypedBuffer>,
}

impl Buffer {
    /// Reads the address and the length of `value`, which an error calls `name`.
    ///
    /// # Errors
    ///
    /// `TypeError` if it has no memory to write to, `BufferError` if that is read-only or in
    /// several pieces.
    pub fn new(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = value.py();
        let alone = PyDict::new(py);
        alone.set_item(name, value)?;
        let mut known = LoadTargets::read(alone.as_any())?;
        if let Some(tensor) = known.valid.pop() {
            let memory = match tensor.memory {
                Some(memory) => memory,
                None if tensor.layout.is_none() => empty(),
                None => return Err(PyBufferError::new_err(in_pieces(name))),
            };
            return Ok(Self {
                target: memory,
                _exported: None,
            });
        }
        let Ok(buffer) = PyUntypedBuffer::get(value) else {
            let reason = known.reason().unwrap_or("has no writable buffer");
            return Err(PyTypeError::new_err(format!("{name:?} {reason}")));
        };
        if buffer.readonly() {
            return Err(PyBufferError::new_err(format!("{name:?} is read-only")));
        }
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(in_pieces(name)));
        }
        let target = match NonNull::new(buffer.buf_ptr().cast()) {
            // SAFETY: Python keeps the buffer where it is while it is exported, which is as long as
            // this value lives. The docs of the reader forbid other use of it during the read.
            Some(start) => unsafe { Target::host(start, buffer.len_bytes(), None) },
            None => empty(),
        };
        Ok(Self {
            target,
            _exported: Some(buffer),
        })
    }

    /// Returns the memory, which must not be used after `self` is gone.
    pub fn target(&self) -> Target {
        self.target.clone()
    }
}

fn empty() -> Target {
    // SAFETY: there is nothing to write to.
    unsafe { Target::host(NonNull::dangling(), 0, None) }
}

fn in_pieces(name: &str) -> String {
    format!("{name:?} is not contiguous in memory")
}
