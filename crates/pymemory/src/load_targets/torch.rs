//! Torch tensors as load targets.
//!
//! A model may have 100,000 tensors: each attribute of one takes some 50 ns, so that only those
//! are read that can matter.

use std::collections::hash_map::{Entry, HashMap};

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};
use tload::{Device, Dtype, LoadTargetLayout};

use super::{Described, Read};
use crate::error::exception;

/// Reads tensors. Exists only if torch is imported: otherwise no value is a tensor.
pub(super) struct Reader<'py> {
    tensor: Bound<'py, PyType>,
    parameter: Bound<'py, PyAny>,
    strided: Bound<'py, PyAny>,
    is_lazy: Bound<'py, PyAny>,
    dtypes: Vec<(Bound<'py, PyAny>, Dtype)>,
    device_of: Bound<'py, PyAny>,
    current_stream: Bound<'py, PyAny>,
    /// Current stream by GPU.
    streams: HashMap<usize, u64>,
}

impl<'py> Reader<'py> {
    pub(super) fn new(py: Python<'py>) -> PyResult<Option<Self>> {
        let modules = py.import("sys")?.getattr("modules")?;
        let torch = modules.get_item("torch").ok();
        // `None` stands for a module that must not be imported.
        let Some(torch) = torch.filter(|torch| !torch.is_none()) else {
            return Ok(None);
        };
        let tensors = py.import("tload._tensors.torch_tensors")?;
        let names = tensors.call_method0("dtype_names")?;
        let mut dtypes = Vec::new();
        for (dtype, name) in names.cast::<PyDict>()?.iter() {
            let name = name.cast::<PyString>()?;
            if let Some(known) = Dtype::from_name(name.to_str()?) {
                dtypes.push((dtype, known));
            }
        }
        let cuda = py.import("tload._tensors.cuda")?;
        let parameters = torch.getattr("nn")?.getattr("parameter")?;
        Ok(Some(Self {
            tensor: torch.getattr("Tensor")?.cast_into()?,
            parameter: parameters.getattr("Parameter")?,
            strided: torch.getattr("strided")?,
            is_lazy: parameters.getattr("is_lazy")?,
            dtypes,
            device_of: cuda.getattr("device_of")?,
            current_stream: cuda.getattr("current_stream")?,
            streams: HashMap::new(),
        }))
    }

    pub(super) fn owns(&self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        value.is_instance(&self.tensor)
    }

    /// Returns the device and the dtype of a tensor, or the reason why it cannot be loaded into.
    fn placement(
        &self,
        tensor: &Bound<'py, PyAny>,
    ) -> PyResult<Result<(Device, Option<Dtype>), String>> {
        let py = tensor.py();
        let is = |name| tensor.getattr(name)?.is_truthy();
        let kind = tensor.get_type();
        let is_plain = kind.is(&self.tensor) || kind.is(&self.parameter);
        // No other property of a lazy tensor may be read.
        if !is_plain && self.is_lazy.call1((tensor,))?.is_truthy()? {
            return Ok(Err("is not initialised yet, so it has no shape".to_owned()));
        }
        let device = self.device_of.call1((tensor,))?;
        let device = device.cast::<PyString>()?.to_str()?;
        if device != "cpu" && is(intern!(py, "is_meta"))? {
            return Ok(Err("is on the meta device, which has no memory".to_owned()));
        }
        let dtype = tensor.getattr(intern!(py, "dtype"))?;
        let mut dtypes = self.dtypes.iter();
        let known = dtypes.find_map(|(one, known)| one.is(&dtype).then_some(*known));
        if known.is_none() && is(intern!(py, "is_quantized"))? {
            return Ok(Err("is quantized".to_owned()));
        }
        if is(intern!(py, "is_nested"))? {
            return Ok(Err("is nested".to_owned()));
        }
        let layout = tensor.getattr(intern!(py, "layout"))?;
        if !layout.is(&self.strided) {
            let name = layout.to_string();
            let layout = name.strip_prefix("torch.").unwrap_or(&name);
            return Ok(Err(format!("is sparse ({layout})")));
        }
        let device = match device {
            "cpu" => Device::Cpu,
            gpu if gpu.starts_with("cuda") => gpu.parse().map_err(|error| exception(py, &error))?,
            other => return Ok(Err(format!("is on {other}"))),
        };
        Ok(Ok((device, known)))
    }

    pub(super) fn read(&mut self, tensor: &Bound<'py, PyAny>) -> PyResult<Read> {
        let py = tensor.py();
        let (device, known) = match self.placement(tensor)? {
            Ok(placement) => placement,
            Err(reason) => return Ok(Err(reason)),
        };
        let own_shape: Vec<usize> = tensor.getattr(intern!(py, "shape"))?.extract()?;
        let strides: Vec<isize> = tensor.call_method0(intern!(py, "stride"))?.extract()?;
        let is_pairs = known == Some(Dtype::F4);
        let size = intern!(py, "element_size");
        let element_bytes = match known {
            Some(_) if is_pairs => 1,
            Some(known) => known.bits() / 8,
            None => tensor.call_method0(size)?.extract()?,
        };
        let width = isize::try_from(element_bytes).unwrap_or(isize::MAX);
        let strides = strides.iter().map(|stride| stride.saturating_mul(width));
        let mut layout = LoadTargetLayout {
            address: 0,
            element_bytes,
            dims: own_shape.iter().copied().zip(strides).collect(),
            elements: String::new(),
        };
        if layout.may_overlap_itself() {
            return Ok(Err("has overlapping elements in memory".to_owned()));
        }
        if !own_shape.contains(&0) {
            // Subclasses that wrap other tensors have no memory.
            layout.address = address(tensor, &layout)?;
            if layout.address == 0 {
                let kind = tensor.get_type().name()?;
                return Ok(Err(format!("is a {kind} without memory of its own")));
            }
        }
        let is_lazy;
        (layout.elements, is_lazy) = elements(tensor, known)?;
        let mut shape = own_shape;
        if let (true, Some(last)) = (is_pairs, shape.last_mut()) {
            *last *= 2;
        }
        Ok(Ok(Described {
            dtype: known,
            shape,
            device,
            layout,
            stream: self.stream(device)?,
            is_lazy,
        }))
    }

    fn stream(&mut self, device: Device) -> PyResult<u64> {
        let Device::Cuda(ordinal) = device else {
            return Ok(0);
        };
        Ok(match self.streams.entry(ordinal) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(self.current_stream.call1((ordinal,))?.extract()?),
        })
    }
}

/// Returns the address of the first element; zero unless the tensor's storage has all elements:
/// that of a wrapper has none, and any may have been freed or shortened.
fn address(tensor: &Bound<'_, PyAny>, layout: &LoadTargetLayout) -> PyResult<u64> {
    let py = tensor.py();
    let read = || -> PyResult<[u64; 3]> {
        let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
        let (place, len) = (intern!(py, "data_ptr"), intern!(py, "nbytes"));
        let calls = [(tensor, place), (&storage, place), (&storage, len)];
        let [start, first, held] = calls.map(|(of, name)| of.call_method0(name)?.extract());
        Ok([start?, first?, held?])
    };
    let [start, first, held] = match read() {
        Err(error) if error.is_instance_of::<PyRuntimeError>(py) => return Ok(0),
        found => found?,
    };
    let reach = |&(len, stride): &(usize, isize)| (len - 1).saturating_mul(stride.unsigned_abs());
    let reaches = layout.dims.iter().map(reach);
    let extent = reaches.fold(layout.element_bytes, usize::saturating_add) as u64;
    let is_whole = extent.saturating_add(start.wrapping_sub(first)) <= held;
    Ok(if is_whole { start } else { 0 })
}

/// Returns a text that differs for elements that the same bytes represent differently, and whether
/// torch conjugates or negates them when they are read.
fn elements(tensor: &Bound<'_, PyAny>, known: Option<Dtype>) -> PyResult<(String, bool)> {
    let py = tensor.py();
    let call = |name| tensor.call_method0(name)?.is_truthy();
    let is_complex = known.is_none_or(|known| known == Dtype::C64);
    let is_conjugated = is_complex && call(intern!(py, "is_conj"))?;
    let is_negated = call(intern!(py, "is_neg"))?;
    let mut elements = match known {
        Some(known) => known.name().to_owned(),
        None => tensor.getattr(intern!(py, "dtype"))?.to_string(),
    };
    // A conjugate shares the memory of its base, but has other values.
    for (holds, lazy) in [(is_conjugated, " conjugated"), (is_negated, " negated")] {
        if holds {
            elements.push_str(lazy);
        }
    }
    Ok((elements, is_conjugated || is_negated))
}
