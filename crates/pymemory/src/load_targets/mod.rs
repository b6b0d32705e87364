//! The caller's memory that a load writes into: torch tensors and numpy arrays by name.
//!
//! Reads what the core has to know of each, in one pass; the core decides what fits. Also finds
//! what is no valid target, whatever the checkpoint has.

#![expect(
    unsafe_code,
    reason = "vouches for memory that torch or numpy says is a tensor's"
)]

mod numpy;
mod torch;

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use tload::{Device, Dtype, Error, ErrorKind, KeepAlive, LoadTarget, LoadTargetLayout, Target};

use crate::error::exception;

/// End of the names under which modules keep state that is not a tensor; checkpoints do not have
/// it.
const EXTRA_STATE: &str = "_extra_state";

/// Maximum number of targets that an error names: a whole model on "meta" has thousands.
const SHOWN: usize = 10;

/// The caller's tensors and arrays by name.
#[derive(Debug, Default)]
pub struct LoadTargets {
    /// Targets that are memory, whatever the checkpoint has.
    pub valid: Vec<LoadTarget>,
    /// Names of invalid targets, each with the reason.
    invalid: Vec<(String, String)>,
}

/// Properties of a tensor or array, as its library tells them.
struct Described {
    dtype: Option<Dtype>,
    shape: Vec<usize>,
    device: Device,
    layout: LoadTargetLayout,
    /// Stream that orders access to the memory, on a GPU.
    stream: u64,
    /// The bytes in memory differ from the values, as in a conjugate.
    is_lazy: bool,
}

/// A tensor or array, or the reason why it is an invalid target.
type Read = Result<Described, String>;

/// Address and length of a piece of memory; on a GPU, also its ordinal and a stream.
type Piece = (usize, usize, Option<(usize, u64)>);

/// Pieces of memory, conversions and dimensions of boxes, the table of
/// [`tload::Loader::into_boxes`] in native numbers of 8 bytes, and the owner of the memory.
pub type Boxes<'py> = (
    Vec<Piece>,
    Vec<(String, String)>,
    usize,
    &'py [u8],
    Py<PyAny>,
);

/// Loads `names` into boxes.
pub fn into_boxes(
    py: Python<'_>,
    loader: tload::Loader,
    names: &[String],
    (memory, casts, dims, table, owner): Boxes<'_>,
) -> PyResult<tload::Loader> {
    let (numbers, _) = table.as_chunks();
    let table: Vec<i64> = numbers.iter().copied().map(i64::from_ne_bytes).collect();
    let owner: KeepAlive = Arc::new(owner);
    // SAFETY: the package gives the memory of torch tensors that `owner` has, and boxes of a plan
    // that it has checked. The docs of `run` forbid other use of the tensors during the load.
    let boxed = unsafe { loader.into_boxes(names, &memory, &casts, dims, &table, &owner) };
    boxed.map_err(|error| exception(py, &error))
}

impl LoadTargets {
    /// Reads a mapping of names.
    ///
    /// # Errors
    ///
    /// `TypeError` for a name that is not text.
    pub fn read(target: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = target.py();
        let mut torch = torch::Reader::new(py)?;
        let mut numpy = numpy::Reader::new(py)?;
        let mut targets = Self::default();
        for item in target.call_method0("items")?.try_iter()? {
            let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item?.extract()?;
            let Ok(name) = name.cast::<PyString>() else {
                let found = name.get_type().qualname()?;
                let message = format!("target: wanted names (str) as keys, found {found}");
                return Err(PyTypeError::new_err(message));
            };
            let name = name.to_str()?.to_owned();
            let read = if let Some(torch) = &mut torch
                && torch.owns(&value)?
            {
                torch.read(&value)?
            } else if let Some(numpy) = &mut numpy
                && numpy.owns(&value)?
            {
                numpy.read(&value)?
            } else {
                let found = value.get_type().qualname()?;
                Err(format!("is not a tensor or array but a {found}"))
            };
            match read {
                Ok(described) => targets.valid.push(described.into_target(name, value)),
                Err(_) if name.ends_with(EXTRA_STATE) => {}
                Err(reason) => targets.invalid.push((name, reason)),
            }
        }
        Ok(targets)
    }

    /// Raises an error for invalid targets: for any if `selected` is `None`, else for those that
    /// it selects.
    pub fn check(&self, py: Python<'_>, selected: Option<&HashSet<&str>>) -> PyResult<()> {
        let is_selected = |name: &str| selected.is_none_or(|selected| selected.contains(name));
        let mut faults = (self.invalid.iter()).filter(|(name, _)| is_selected(name));
        let mut shown = Vec::new();
        for (name, reason) in faults.by_ref().take(SHOWN) {
            shown.push(format!("{} {reason}", PyString::new(py, name).repr()?));
        }
        if shown.is_empty() {
            return Ok(());
        }
        let left = faults.count();
        if left > 0 {
            shown.push(format!("and {left} more"));
        }
        let message = format!("cannot load into these targets: {}", shown.join("; "));
        let hint = "allocate their memory first (module.to_empty(device=…), DTensor.to_local(), array.copy()), or leave them out";
        let error = Error::new(ErrorKind::InvalidRequest, message).with_hint(hint);
        Err(exception(py, &error))
    }

    /// Returns why the first invalid target is one.
    pub fn reason(&self) -> Option<&str> {
        self.invalid.first().map(|(_, reason)| reason.as_str())
    }

    /// Returns whether there are invalid targets.
    pub fn has_invalid(&self) -> bool {
        !self.invalid.is_empty()
    }
}

impl Described {
    fn into_target(self, name: String, value: Bound<'_, PyAny>) -> LoadTarget {
        let Self {
            dtype,
            shape,
            device,
            layout,
            stream,
            is_lazy,
        } = self;
        let elements: usize = layout.dims.iter().map(|&(len, _)| len).product();
        let bytes = elements * layout.element_bytes;
        let start = usize::try_from(layout.address)
            .ok()
            .and_then(|at| NonNull::new(std::ptr::with_exposed_provenance_mut(at)));
        let memory = if bytes > 0 && !is_lazy && layout.is_contiguous() {
            // Also kept if a load is abandoned while a read hangs: the read may still complete.
            let owner: KeepAlive = Arc::new(value.unbind());
            if let Device::Cuda(ordinal) = device {
                // SAFETY: torch gave the address and the shape of a tensor that `owner` keeps
                // alive, and the stream that orders work on it. The docs of `load_into` forbid
                // other use of the tensor during the load.
                Some(unsafe { Target::cuda(ordinal, layout.address, bytes, stream, Some(owner)) })
            } else {
                // SAFETY: as above, of a writable array or tensor in host memory.
                start.map(|start| unsafe { Target::host(start, bytes, Some(owner)) })
            }
        } else {
            None
        };
        LoadTarget {
            name,
            dtype,
            shape,
            device,
            memory,
            layout: (bytes > 0).then_some(layout),
        }
    }
}
