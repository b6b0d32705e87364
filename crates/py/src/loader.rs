//! A load for Python before it starts: what it would bring, and the start.

use pyo3::prelude::*;

use crate::checkpoint::{Checkpoint, Described, describe};
use crate::error::exception;
use crate::forked::Owned;
use crate::interrupt;
use crate::options::{OptionsArgument, selection};
use crate::stream::Stream;

/// A load that has not started.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Loader {
    inner: Owned<tload::Loader>,
}

#[pymethods]
impl Loader {
    /// Loads what any name, glob or regular expression selects; without any of them, everything.
    #[new]
    #[pyo3(signature = (checkpoint, *, names, globs, regexes, device, options))]
    fn new(
        py: Python<'_>,
        checkpoint: &Bound<'_, Checkpoint>,
        names: Vec<String>,
        globs: Vec<String>,
        regexes: Vec<String>,
        device: &str,
        options: OptionsArgument<'_>,
    ) -> PyResult<Self> {
        let inner = tload::Loader::new(checkpoint.get().share(py)?)
            .tensors(selection(py, names, globs, regexes)?)
            .device(device.parse().map_err(|error| exception(py, &error))?)
            .options(options.read()?);
        Ok(Self {
            inner: Owned::new(inner),
        })
    }

    /// What will come, in file order.
    fn selected<'py>(&self, py: Python<'py>) -> PyResult<Vec<Described<'py>>> {
        let selected = self
            .inner
            .selected()
            .map_err(|error| exception(py, &error))?;
        selected.iter().map(|info| describe(py, info)).collect()
    }

    /// Starts to read.
    fn stream(&self, py: Python<'_>) -> PyResult<Stream> {
        let loader = self.inner.clone();
        interrupt::run(py, move || loader.stream()).map(Stream::new)
    }
}
