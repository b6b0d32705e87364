//! Loaded tensors for Python: name, dtype, shape, device, and their bytes through DLPack.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use tload::Device;
use tload_pymemory::dlpack::{self, Layout, Request};

use crate::forked::Owned;

/// A loaded tensor, for any library that imports DLPack: `library.from_dlpack(tensor)`.
///
/// Its memory is valid as long as the tensor or an object made from it lives, and may be written to
/// if it is `writable`. Small tensors that are neighbours in the file share memory: keeping one
/// keeps at most about 1 MiB beside it; on a GPU, at most `Options.region_bytes`. A view of a file
/// (`cache="map"`) keeps the whole file mapped, which takes address space and no memory.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Tensor {
    inner: Owned<tload::Tensor>,
    device: Device,
}

/// GPUs of the tensors without bytes of one load. In the core these tensors have no device.
#[derive(Debug, Default)]
pub(crate) struct Empties(HashMap<String, Device>);

impl Empties {
    pub(crate) fn for_loader(loader: &tload::Loader) -> tload::Result<Self> {
        let devices = loader.selected_devices()?;
        if devices.iter().all(|device| *device == Device::Cpu) {
            return Ok(Self(HashMap::new()));
        }
        let selected = loader.selected()?;
        let empties = selected
            .iter()
            .zip(devices)
            .filter(|(info, device)| info.byte_len() == 0 && *device != Device::Cpu);
        let named = empties.map(|(info, device)| (info.name().to_owned(), device));
        Ok(Self(named.collect()))
    }
}

impl Tensor {
    pub(crate) fn new(inner: tload::Tensor, empties: &Empties) -> Self {
        let device = match inner.ordinal() {
            Some(ordinal) => Device::Cuda(ordinal),
            None if inner.byte_len() > 0 => Device::Cpu,
            None => empties.0.get(inner.name()).copied().unwrap_or_default(),
        };
        Self {
            inner: Owned::new(inner),
            device,
        }
    }
}

#[pymethods]
impl Tensor {
    /// The tensor's name.
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// The element type as safetensors files write it, for example `"BF16"`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.inner.dtype().name()
    }

    /// Number of elements along each dimension; `()` for a scalar.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.shape())
    }

    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.inner.byte_len()
    }

    /// The device: `"cpu"`, or for example `"cuda:1"`.
    #[getter]
    fn device(&self) -> Cow<'static, str> {
        if self.device == Device::Cpu {
            Cow::Borrowed("cpu")
        } else {
            Cow::Owned(self.device.to_string())
        }
    }

    /// `True` if the memory may be written to; `False` only for views of a file (`cache="map"`)
    /// and of memory that ranks share (`private=False`).
    #[getter]
    fn writable(&self) -> bool {
        self.inner.is_writable()
    }

    /// Returns the allocation of torch's allocator that holds the tensor, and its offset in bytes.
    ///
    /// `None` for memory of the load's own, and for a tensor without bytes. Tensors that are
    /// yielded with `framework="dlpack"` have no owner.
    fn owner(&self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>, usize)>> {
        let Some((owner, offset)) = self.inner.device_bytes().and_then(|bytes| bytes.owner())
        else {
            return Ok(None);
        };
        let owner = Arc::clone(owner)
            .downcast::<Py<PyAny>>()
            .map_err(|_| PyRuntimeError::new_err("memory of an unknown owner"))?;
        Ok(Some((owner.clone_ref(py), offset)))
    }

    /// Returns the memory as one row of bytes, for libraries that cannot import the dtype.
    fn flat(&self) -> FlatBytes {
        FlatBytes {
            inner: Owned::new(tload::Tensor::clone(&self.inner)),
            device: self.device,
        }
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let layout = Layout::new(self.inner.dtype(), self.inner.shape())?;
        let request = Request {
            max_version,
            dl_device,
            copy,
        };
        let device = dlpack::device(self.device);
        dlpack::check_stream(device, stream)?;
        dlpack::export(py, &self.inner, device, layout, &request)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device(self.device)
    }

    /// Fails: memory of a load is not copied in silence.
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(format!(
            "cannot pickle or copy the tload.Tensor {:?}: import it with a library's from_dlpack, and pickle or copy \
             that tensor; or pass the location, and load it in the other process",
            self.name()
        )))
    }

    fn __repr__(&self) -> String {
        let shape: Vec<String> = self.inner.shape().iter().map(usize::to_string).collect();
        let device = if self.device == Device::Cpu {
            String::new()
        } else {
            format!(" on {}", self.device)
        };
        format!(
            "<tload.Tensor {:?} {} [{}]{device}>",
            self.name(),
            self.dtype(),
            shape.join(", ")
        )
    }
}

/// A tensor's bytes as a one-dimensional array of `uint8`, for `from_dlpack`.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct FlatBytes {
    inner: Owned<tload::Tensor>,
    device: Device,
}

#[pymethods]
impl FlatBytes {
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let layout = Layout::for_bytes(self.inner.byte_len())?;
        let request = Request {
            max_version,
            dl_device,
            copy,
        };
        let device = dlpack::device(self.device);
        dlpack::check_stream(device, stream)?;
        dlpack::export(py, &self.inner, device, layout, &request)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device(self.device)
    }
}
