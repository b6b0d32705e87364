//! Indices of tensors from Python: numbers, slices and an ellipsis, as in numpy.

use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PySlice, PyTuple};
use tload::{Indices, Slice};

/// Reads `index` for a tensor of this shape.
///
/// # Errors
///
/// `IndexError` for an index out of range and for steps that are not positive; `TypeError` for
/// anything else than integers, slices and one ellipsis.
pub(crate) fn slice(index: &Bound<'_, PyAny>, shape: &[usize]) -> PyResult<Slice> {
    let items: Vec<Bound<'_, PyAny>> = match index.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().collect(),
        Err(_) => vec![index.clone()],
    };
    let is_ellipsis = |item: &Bound<'_, PyAny>| item.is_instance_of::<PyEllipsis>();
    let ellipses = items.iter().filter(|item| is_ellipsis(item)).count();
    let named = items.len() - ellipses;
    if ellipses > 1 {
        return Err(PyIndexError::new_err(
            "an index can only have a single ellipsis ('...')",
        ));
    }
    if named > shape.len() {
        return Err(PyIndexError::new_err(format!(
            "too many indices: the tensor has {} dimensions, and {named} were indexed",
            shape.len()
        )));
    }
    let mut steps = Vec::new();
    for item in &items {
        let dim = steps.len();
        if is_ellipsis(item) {
            let passed = &shape[dim..][..shape.len() - named];
            steps.extend(passed.iter().map(|len| Indices::from(0..*len)));
        } else {
            steps.push(one(item, dim, shape[dim])?);
        }
    }
    Ok(Slice::new(steps))
}

fn one(item: &Bound<'_, PyAny>, dim: usize, len: usize) -> PyResult<Indices> {
    let signed = isize::try_from(len).map_err(|_| {
        PyIndexError::new_err(format!("dimension {dim} is too large to be indexed"))
    })?;
    if let Ok(slice) = item.cast::<PySlice>() {
        let indices = slice.indices(signed)?;
        let (Ok(start), Ok(step)) = (indices.start.try_into(), indices.step.try_into()) else {
            return Err(PyIndexError::new_err(format!(
                "the step along dimension {dim} is {}; it has to be positive",
                indices.step
            )));
        };
        let count = indices.slicelength;
        return Ok(Indices {
            start,
            count,
            step,
            single: false,
        });
    }
    let wrong_type = || -> PyResult<Indices> {
        Err(PyTypeError::new_err(format!(
            "an index can be an int, a slice or an ellipsis, or a tuple of them; found {}",
            item.get_type().qualname()?
        )))
    };
    if item.is_instance_of::<PyBool>() {
        return wrong_type();
    }
    let number = match item.extract::<isize>() {
        Ok(number) => number,
        Err(error) if error.is_instance_of::<PyTypeError>(item.py()) => return wrong_type(),
        Err(error) if error.is_instance_of::<PyOverflowError>(item.py()) => {
            return Err(PyIndexError::new_err(format!(
                "an index of more than 64 bits is out of bounds for dimension {dim}, which has {len}"
            )));
        }
        Err(error) => return Err(error),
    };
    let index = if number < 0 { number + signed } else { number };
    match usize::try_from(index) {
        Ok(start) if start < len => Ok(Indices::at(start)),
        _ => Err(PyIndexError::new_err(format!(
            "index {number} is out of bounds for dimension {dim}, which has {len}"
        ))),
    }
}
