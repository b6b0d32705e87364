//! Adapter between the core and a GPU memory allocator that is a Python object.
//!
//! The allocator runs on the thread that waits in `Loader.stream` or `Stream.receive`: it uses the
//! current device and stream of that thread. The start of a load is on a thread of its own, which
//! passes its calls on; `Stream.receive` is detached from the interpreter and attaches again here.
//! An exception of the allocator ends the load.
//! `python/tload/_tensors/cuda.py` has the allocator that uses PyTorch.

#![expect(
    unsafe_code,
    reason = "vouches for memory that the caller's allocator gave"
)]

use std::sync::Arc;
use std::thread::{self, ThreadId};

use pyo3::prelude::*;
use tload::{DeviceAllocator, DeviceMemory, ErrorKind};

use crate::interrupt::Caller;
use crate::raised::{Raised, is_order, shutting_down};

/// Allocator object with `allocate(ordinal, nbytes) -> (owner, address, stream)` and
/// `free_bytes(ordinal) -> int`.
pub(crate) struct PythonAllocator {
    python: Arc<InPython>,
    /// Thread that starts the load.
    starting: ThreadId,
    /// Thread that waits for it.
    caller: Caller,
}

struct InPython {
    object: Py<PyAny>,
    raised: Raised,
}

impl PythonAllocator {
    /// Creates the allocator of the load that this thread starts for `caller`.
    pub(crate) fn new(object: Py<PyAny>, raised: Raised, caller: Caller) -> Self {
        Self {
            python: Arc::new(InPython { object, raised }),
            starting: thread::current().id(),
            caller,
        }
    }

    /// Makes a call on the thread of the caller. Returns `None` if that no longer waits, or if
    /// Python shuts down.
    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&InPython, Python<'_>) -> T + Send + 'static,
    ) -> Option<T> {
        let python = Arc::clone(&self.python);
        if thread::current().id() == self.starting {
            self.caller.call(move |py| call(&python, py))
        } else {
            Python::try_attach(|py| call(&python, py))
        }
    }
}

impl InPython {
    fn allocate(&self, py: Python<'_>, ordinal: usize, bytes: usize) -> PyResult<DeviceMemory> {
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
        let allocated = self.call(move |python, py| {
            python.allocate(py, ordinal, bytes).map_err(|raised| {
                let failed = "the allocator of GPU memory failed";
                python.raised.keep(py, raised, ErrorKind::Device, failed)
            })
        });
        allocated.unwrap_or_else(|| Err(shutting_down()))
    }

    fn free_bytes(&mut self, ordinal: usize) -> Option<u64> {
        self.call(move |python, py| {
            let free = python
                .object
                .bind(py)
                .call_method1("free_bytes", (ordinal,));
            match free.and_then(|free| free.extract()) {
                Ok(free) => Some(free),
                Err(raised) => {
                    // The driver is queried instead, unless the exception is an order to stop.
                    if is_order(py, &raised) {
                        python.raised.put(raised);
                    }
                    None
                }
            }
        })
        .flatten()
    }
}
