//! Copies of whole directories for Python, and file listings.
//!
//! `python/tload/_copy.py` is their public interface.

use pyo3::prelude::*;
use tload::copy::{Copy, CopyOptions, list_files as list};

use crate::checkpoint::LocationArgument;
use crate::interrupt;
use crate::store::StoreArgument;

/// Copies a location into a local directory. Returns the report as JSON.
#[pyfunction]
#[pyo3(signature = (source, target, *, names, include, exclude, hidden, force, depth, store))]
#[expect(
    clippy::too_many_arguments,
    reason = "keywords; Python gives each by its name"
)]
pub(crate) fn copy(
    py: Python<'_>,
    source: LocationArgument,
    target: std::path::PathBuf,
    names: Option<Vec<String>>,
    include: Vec<String>,
    exclude: Vec<String>,
    hidden: bool,
    force: bool,
    depth: Option<usize>,
    store: StoreArgument,
) -> PyResult<String> {
    let failed = |error| crate::error::exception(py, &error);
    let mut options = CopyOptions::default();
    options.names = names;
    options.include = include;
    options.exclude = exclude;
    options.hidden = hidden;
    options.force = force;
    options.depth = depth.unwrap_or(options.depth);
    let copy = Copy::new(&source.parse().map_err(failed)?, target)
        .options(options)
        .store(store.read().map_err(failed)?);
    let control = copy.control();
    let copied = interrupt::run(py, move || copy.run());
    // Ctrl-C does not wait for the copy, but ends it.
    let report = copied.inspect_err(|_| control.cancel())?;
    Ok(serde_json::to_string(&report).unwrap_or_default())
}

/// Returns a location as messages show it: without secrets.
#[pyfunction]
pub(crate) fn show_location(location: LocationArgument) -> String {
    // Invalid text is not shown at all: it may contain a secret.
    let shown = location.parse().map(|location| location.to_string());
    shown.unwrap_or_else(|_| "…".to_owned())
}

/// Returns whether a location has parts that are not shown. Invalid text may be a secret.
#[pyfunction]
pub(crate) fn has_secret(location: LocationArgument) -> bool {
    location
        .parse()
        .map_or(true, |location| location.has_secret())
}

/// Lists the files below a location: paths and lengths.
#[pyfunction]
#[pyo3(signature = (source, *, store))]
pub(crate) fn list_files(
    py: Python<'_>,
    source: LocationArgument,
    store: StoreArgument,
) -> PyResult<Vec<(String, Option<u64>)>> {
    let listed = interrupt::run(py, move || list(&source.parse()?, &store.read()?))?;
    let listed = listed.into_iter().map(|file| (file.name, file.bytes));
    Ok(listed.collect())
}
