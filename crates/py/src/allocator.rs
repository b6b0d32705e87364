//! Adapter between the core and a GPU memory allocator that is a Python object.
//!
//! The core allocates on the thread that waits in `Loader.stream` or `Stream.receive`, which is
//! detached from the interpreter and attaches again here. An exception of the allocator ends the
//! load.
//! `python/tload/_cuda.py` has the allocator that uses PyTorch.

#![expect(
    unsafe_code,
    reason = "vouches for memory that the caller's allocator gave"
)]

use std::sync::Arc;

use pyo3::prelude::*;
use tload::{DeviceAllocator, DeviceMemory, ErrorKind};

use crate::raised::{Raised, is_order, shutting_down};

/// Allocator object with `allocate(ordinal, nbytes) -> (owner, address, stream)` and
/// `free_bytes(ordinal) -> int`.
pub(crate) struct PythonAllocator {
    object: Py<PyAny>,
    raised: Raised,
}

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
            self.ask(py, ordinal, bytes).map_err(|raised| {
                let failed = "the allocator of GPU memory failed";
                self.raised.keep(py, raised, ErrorKind::Device, failed)
            })
        });
        asked.unwrap_or_else(|| Err(shutting_down()))
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
