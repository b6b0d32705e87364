//! One rank's share of a checkpoint for Python. `python/tload/_load/sharding.py` wraps it.

use pyo3::prelude::*;
use pyo3::types::{PySlice, PyTuple};
use tload_pymemory::error::{exception, invalid_request};

use crate::checkpoint::Checkpoint;
use crate::index::slice;

/// One rank's share of a checkpoint: the tensors that it loads, and the slices of those that are
/// split.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Sharding {
    inner: tload::Sharding,
}

#[pymethods]
impl Sharding {
    /// Splits tensors along a dimension: pairs of a glob and a dimension.
    #[staticmethod]
    fn tp(py: Python<'_>, rank: isize, size: isize, dims: Vec<(String, isize)>) -> PyResult<Self> {
        let (rank, size) = position(py, rank, size)?;
        let dims = dims
            .into_iter()
            .map(|(glob, dim)| Ok((glob, count(py, "a dimension", dim)?)))
            .collect::<PyResult<Vec<_>>>()?;
        Self::new(py, tload::Sharding::tp(rank, size, dims))
    }

    /// Divides whole experts, by a glob with `{}` in the place of the number.
    #[staticmethod]
    fn ep(py: Python<'_>, rank: isize, size: isize, pattern: &str) -> PyResult<Self> {
        let (rank, size) = position(py, rank, size)?;
        Self::new(py, tload::Sharding::ep(rank, size, pattern))
    }

    /// Divides whole layers, by a glob with `{}` in the place of the number.
    #[staticmethod]
    fn pp(
        py: Python<'_>,
        rank: isize,
        size: isize,
        pattern: &str,
        first: Vec<String>,
        last: Vec<String>,
    ) -> PyResult<Self> {
        let (rank, size) = position(py, rank, size)?;
        Self::new(py, tload::Sharding::pp(rank, size, pattern, first, last))
    }

    /// Takes slices of tensors: name, shape of the whole tensor, and index.
    #[staticmethod]
    fn from_slices(slices: Vec<(String, Vec<usize>, Bound<'_, PyAny>)>) -> PyResult<Self> {
        let slices = slices
            .into_iter()
            .map(|(name, shape, index)| {
                let mine = slice(&index, &shape)?;
                Ok((name, shape, mine))
            })
            .collect::<PyResult<Vec<_>>>()?;
        let inner = tload::Sharding::from_slices(slices);
        Ok(Self { inner })
    }

    /// Returns the combination of both.
    fn both(&self, other: &Bound<'_, Self>) -> Self {
        let inner = self.inner.clone().and(other.get().inner.clone());
        Self { inner }
    }

    /// Returns the names of the rank's tensors, in file order.
    fn names(&self, py: Python<'_>, checkpoint: &Bound<'_, Checkpoint>) -> PyResult<Vec<String>> {
        let mine = self.apply(&checkpoint.get().share());
        Ok(mine.map_err(|error| exception(py, &error))?.names)
    }

    /// Returns the indices of the rank's tensors that are split, by name.
    fn slices<'py>(
        &self,
        py: Python<'py>,
        checkpoint: &Bound<'_, Checkpoint>,
    ) -> PyResult<Vec<(String, Bound<'py, PyTuple>)>> {
        let mine = self.apply(&checkpoint.get().share());
        let slices = mine
            .map_err(|error| exception(py, &error))?
            .slices
            .into_iter()
            .map(|(name, slice)| {
                let ranges = slice.dims().iter().map(|steps| {
                    // Rows and columns of a safetensors file are fewer than addresses.
                    let last = steps.count.saturating_sub(1) * steps.step;
                    let end = steps.start + steps.count.min(1) + last;
                    let [start, end, step] = [steps.start, end, steps.step].map(usize::cast_signed);
                    PySlice::new(py, start, end, step)
                });
                Ok((name, PyTuple::new(py, ranges.collect::<Vec<_>>())?))
            });
        slices.collect()
    }
}

impl Sharding {
    fn new(py: Python<'_>, made: tload::Result<tload::Sharding>) -> PyResult<Self> {
        let inner = made.map_err(|error| exception(py, &error))?;
        Ok(Self { inner })
    }

    /// Returns the rank's tensors and slices.
    pub(crate) fn apply(&self, checkpoint: &tload::Checkpoint) -> tload::Result<tload::Sharded> {
        let tensors = checkpoint.tensors().iter();
        self.inner
            .apply(tensors.map(|tensor| (tensor.name(), tensor.shape())))
    }
}

fn position(py: Python<'_>, rank: isize, size: isize) -> PyResult<(usize, usize)> {
    Ok((count(py, "rank", rank)?, count(py, "size", size)?))
}

/// Returns a number that must not be negative. `name` is for messages.
pub(crate) fn count(py: Python<'_>, name: &str, number: isize) -> PyResult<usize> {
    usize::try_from(number)
        .map_err(|_| invalid_request(py, format!("{name} is {number}; it must not be negative")))
}
