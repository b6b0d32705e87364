//! Bytes that Python callers lend to writes: any object with a buffer.

#![expect(
    unsafe_code,
    reason = "vouches for memory that Python says is a buffer"
)]

use std::ptr::NonNull;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// Calls `work` with the bytes of a buffer, detached from the interpreter.
///
/// # Errors
///
/// `BufferError` if they are in several pieces, and what Python raises for an object without a
/// buffer.
pub fn with_bytes<T: Send>(
    value: &Bound<'_, PyAny>,
    work: impl FnOnce(&[u8]) -> T + Send,
) -> PyResult<T> {
    let buffer = PyUntypedBuffer::get(value)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err(
            "\"the buffer\" is not contiguous in memory",
        ));
    }
    let bytes = match NonNull::new(buffer.buf_ptr().cast::<u8>()) {
        // SAFETY: Python keeps the buffer where it is while it is exported, which is until this
        // function returns. The docs of `tload.save` forbid to change it during the call.
        Some(start) => unsafe { std::slice::from_raw_parts(start.as_ptr(), buffer.len_bytes()) },
        None => &[],
    };
    Ok(value.py().detach(|| work(bytes)))
}
