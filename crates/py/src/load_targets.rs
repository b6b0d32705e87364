//! The caller's memory that a load writes into, as Python describes it.
//!
//! `python/tload/_load_targets.py` describes modules, tensors and arrays; the core decides what
//! fits.

#![expect(
    unsafe_code,
    reason = "vouches for memory that Python says is a tensor's"
)]

use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::prelude::*;
use tload::{Device, Dtype, KeepAlive, LoadTarget, LoadTargetLayout, Target};

use crate::error::{exception, invalid_request};

/// Name, dtype as safetensors files write it (none if they cannot), shape, device, its memory if
/// that is contiguous, and the positions of its elements if it has any.
type Described = (
    String,
    Option<String>,
    Vec<usize>,
    String,
    Option<MemoryDescribed>,
    Option<LayoutDescribed>,
);

/// Address, bytes of an element, length and stride in bytes of each dimension, and the element type
/// in words.
type LayoutDescribed = (u64, usize, Vec<(usize, isize)>, String);

/// Address, bytes, the stream that it is ordered with (on a GPU), and the object that keeps it.
type MemoryDescribed = (u64, usize, u64, Py<PyAny>);

/// The caller's memory for one tensor.
#[derive(FromPyObject)]
#[pyo3(transparent)]
pub(crate) struct LoadTargetArgument(Described);

impl LoadTargetArgument {
    pub(crate) fn read(self, py: Python<'_>) -> PyResult<LoadTarget> {
        let (name, dtype, shape, device, memory, layout) = self.0;
        let device: Device = device.parse().map_err(|error| exception(py, &error))?;
        let dtype = dtype.map(|dtype| named(py, &dtype)).transpose()?;
        let memory = memory
            .map(|memory| target(py, device, memory))
            .transpose()?;
        let layout = layout.map(
            |(address, element_bytes, dims, elements)| LoadTargetLayout {
                address,
                element_bytes,
                dims,
                elements,
            },
        );
        Ok(LoadTarget {
            name,
            dtype,
            shape,
            device,
            memory,
            layout,
        })
    }
}

fn named(py: Python<'_>, name: &str) -> PyResult<Dtype> {
    let found = Dtype::from_name(name);
    found.ok_or_else(|| invalid_request(py, format!("dtype {name:?} is unknown")))
}

fn target(py: Python<'_>, device: Device, memory: MemoryDescribed) -> PyResult<Target> {
    let (address, len, stream, owner) = memory;
    // Also kept if a load is abandoned while a read hangs: the read may still complete.
    let owner: KeepAlive = Arc::new(owner);
    if let Device::Cuda(ordinal) = device {
        // SAFETY: the caller is this package, which read address and length off a tensor that
        // `owner` keeps alive, and the stream off the library that orders work on it. The docs of
        // `load_into` forbid other use of the tensor during the load.
        return Ok(unsafe { Target::cuda(ordinal, address, len, stream, Some(owner)) });
    }
    let address = usize::try_from(address).ok();
    let start =
        address.and_then(|address| NonNull::new(std::ptr::with_exposed_provenance_mut(address)));
    let start =
        start.ok_or_else(|| invalid_request(py, "memory cannot be at address 0".to_owned()))?;
    // SAFETY: as above, of a writable array or tensor in host memory.
    Ok(unsafe { Target::host(start, len, Some(owner)) })
}
