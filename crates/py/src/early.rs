//! Early start of loads to GPUs for Python: `python/tload/_load/early.py` decides when.

use pyo3::prelude::*;
use tload::internal;

use crate::checkpoint::LocationArgument;
use crate::options;

/// Preparation of a load to GPUs, by a thread, while its checkpoint is opened.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct EarlyStart {
    pub(crate) inner: internal::EarlyStart,
}

#[pymethods]
impl EarlyStart {
    /// Begins to prepare a load of `locations` to the GPUs `ordinals`. Returns `None` if nothing
    /// is prepared. Errors are those of the load, at its own time.
    #[staticmethod]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "arguments from Python are owned"
    )]
    fn begin(
        locations: Vec<LocationArgument>,
        ordinals: Vec<usize>,
        options: &Bound<'_, PyAny>,
    ) -> Option<Self> {
        let options = options::read(options).ok()?;
        let parsed = locations.into_iter().map(LocationArgument::parse);
        let locations = parsed.collect::<tload::Result<_>>().ok()?;
        let inner = internal::EarlyStart::begin(&ordinals, locations, &options)?;
        Some(Self { inner })
    }

    /// Frees what no load has taken.
    fn end(&self, py: Python<'_>) {
        py.detach(|| self.inner.end());
    }
}
