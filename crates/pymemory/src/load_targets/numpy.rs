//! Numpy arrays as load targets.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use tload::{Device, Dtype, LoadTargetLayout};

use super::{Described, Read};

/// Reads arrays. Exists only if numpy is imported: otherwise no value is an array.
pub(super) struct Reader<'py> {
    array: Bound<'py, PyAny>,
    /// Dtypes as safetensors files write them, by numpy's names.
    names: Bound<'py, PyDict>,
    /// The last array's dtype, and its name for errors: most arrays of a model have the same.
    last: Option<(Bound<'py, PyAny>, Option<Dtype>, String)>,
}

impl<'py> Reader<'py> {
    pub(super) fn new(py: Python<'py>) -> PyResult<Option<Self>> {
        let modules = py.import("sys")?.getattr("modules")?;
        let numpy = modules.get_item("numpy").ok();
        // `None` stands for a module that must not be imported.
        let Some(numpy) = numpy.filter(|numpy| !numpy.is_none()) else {
            return Ok(None);
        };
        let names = py
            .import("tload._tensors.numpy_arrays")?
            .getattr("dtype_names")?
            .call0()?;
        Ok(Some(Self {
            array: numpy.getattr("ndarray")?,
            names: names.cast_into()?,
            last: None,
        }))
    }

    pub(super) fn owns(&self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        value.is_instance(&self.array)
    }

    pub(super) fn read(&mut self, array: &Bound<'py, PyAny>) -> PyResult<Read> {
        let py = array.py();
        let flags = array.getattr(intern!(py, "flags"))?;
        if !flags.getattr(intern!(py, "writeable"))?.is_truthy()? {
            return Ok(Err("is read-only".to_owned()));
        }
        let shape: Vec<usize> = array.getattr(intern!(py, "shape"))?.extract()?;
        let strides: Vec<isize> = array.getattr(intern!(py, "strides"))?.extract()?;
        let (dtype, elements) = self.dtype(array)?;
        let ctypes = array.getattr(intern!(py, "ctypes"))?;
        let layout = LoadTargetLayout {
            address: ctypes.getattr(intern!(py, "data"))?.extract()?,
            element_bytes: array.getattr(intern!(py, "itemsize"))?.extract()?,
            dims: shape.iter().copied().zip(strides).collect(),
            elements,
        };
        if layout.may_overlap_itself() {
            return Ok(Err("has overlapping elements in memory".to_owned()));
        }
        Ok(Ok(Described {
            dtype,
            shape,
            device: Device::Cpu,
            layout,
            stream: 0,
            is_lazy: false,
        }))
    }

    /// Returns the dtype, if safetensors files have it, and its name for errors.
    fn dtype(&mut self, array: &Bound<'py, PyAny>) -> PyResult<(Option<Dtype>, String)> {
        let py = array.py();
        let dtype = array.getattr(intern!(py, "dtype"))?;
        if let Some((last, known, name)) = &self.last
            && last.is(&dtype)
        {
            return Ok((*known, name.clone()));
        }
        // Bytes written in native order would be misread in a foreign byte order.
        let known = if dtype.getattr("isnative")?.is_truthy()? {
            let name = self
                .names
                .get_item(dtype.getattr("name")?)?
                .map(Bound::cast_into::<PyString>)
                .transpose()?;
            name.and_then(|name| name.to_str().ok().and_then(Dtype::from_name))
        } else {
            None
        };
        let name = match known {
            Some(known) => known.name().to_owned(),
            None => dtype.getattr("str")?.extract()?,
        };
        self.last = Some((dtype, known, name.clone()));
        Ok((known, name))
    }
}
