//! One loaded tensor for Python: what it is, and its bytes by DLPack.

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use tload::Dtype;

use crate::dlpack::{self, Layout, Request};
use crate::forked::Owned;

/// A loaded tensor, in memory of its own that stays valid as long as this or anything made of it lives.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Tensor {
    inner: Owned<tload::Tensor>,
}

impl Tensor {
    pub(crate) fn new(inner: tload::Tensor) -> Self {
        Self {
            inner: Owned::new(inner),
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

    /// The element type as safetensors files write it.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.inner.dtype().name()
    }

    /// Elements along each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.shape())
    }

    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.inner.byte_len()
    }

    /// The same memory as one row of bytes, for libraries whose DLPack lacks the dtype.
    fn flat(&self) -> FlatBytes {
        FlatBytes {
            inner: Owned::new(tload::Tensor::clone(&self.inner)),
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
        let layout = Layout::of(self.inner.dtype(), self.inner.shape())?;
        let request = Request {
            max_version,
            copy,
            dl_device,
            has_stream: stream.is_some(),
        };
        dlpack::export(py, &self.inner, layout, &request)
    }

    #[expect(clippy::unused_self, reason = "a method of the protocol")]
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    fn __repr__(&self) -> String {
        let shape: Vec<String> = self.inner.shape().iter().map(usize::to_string).collect();
        format!(
            "<tload.Tensor {:?} {} [{}]>",
            self.name(),
            self.dtype(),
            shape.join(", ")
        )
    }
}

/// A tensor's bytes as a one-dimensional array of `uint8`.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct FlatBytes {
    inner: Owned<tload::Tensor>,
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
        let layout = Layout::of(Dtype::U8, &[self.inner.bytes().len()])?;
        let request = Request {
            max_version,
            copy,
            dl_device,
            has_stream: stream.is_some(),
        };
        dlpack::export(py, &self.inner, layout, &request)
    }

    #[expect(clippy::unused_self, reason = "a method of the protocol")]
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }
}
