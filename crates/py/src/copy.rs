//! Copies of whole directories for Python, and file listings.
//!
//! `python/tload/_files/copy.py` is their public interface.

use std::borrow::Cow;

use pyo3::prelude::*;
use tload::copy::{AnyCopy, CopyOptions, list_files as list};
use tload::{Error, ErrorKind};
use tload_pymemory::error::exception;

use crate::checkpoint::LocationArgument;
use crate::interrupt;
use crate::store::StoreArgument;
use crate::watch::Watch;

/// Copies a location into a local directory, or to a store if there are options for that. Returns
/// the report as JSON.
#[pyfunction]
#[pyo3(signature = (
    source, target, *, names, include, exclude, hidden, force, skip_unusable, dry_run, options, store,
    target_store, progress
))]
#[expect(
    clippy::fn_params_excessive_bools,
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
    skip_unusable: bool,
    dry_run: bool,
    options: &Bound<'_, PyAny>,
    store: StoreArgument,
    target_store: Option<StoreArgument>,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    let failed = |error| exception(py, &error);
    let limits = crate::options::read(options)?;
    let mut options = CopyOptions::default();
    options.names = names;
    options.include = include;
    options.exclude = exclude;
    options.hidden = hidden;
    options.force = force;
    options.skip_unusable = skip_unusable;
    options.dry_run = dry_run;
    options.depth = limits.depth.unwrap_or(options.depth);
    options.range_bytes = limits.extent_bytes.unwrap_or(options.range_bytes);
    let (source, store) = (source.parse().map_err(failed)?, store.read());
    let target_store = target_store.map(StoreArgument::read).transpose();
    let (store, target_store) = (store.map_err(failed)?, target_store.map_err(failed)?);
    let copy = AnyCopy::new(source, target, options, store, target_store).map_err(failed)?;
    let control = copy.control();
    let watch = Watch {
        timeout: limits.timeout,
        show: progress,
        progress: &|| {
            let now = control.progress();
            (now.bytes_done, now.bytes_total)
        },
        cancel: &|| control.cancel(),
        late: &|timeout| control.timed_out(timeout),
    };
    let report = watch.run(py, move || copy.run())?;
    Ok(serde_json::to_string(&report).unwrap_or_default())
}

/// Returns the content of a small file in the directory of a checkpoint; `None` if there is none.
#[pyfunction]
#[pyo3(signature = (location, name, *, bytes_max, options, store))]
pub(crate) fn read_beside(
    py: Python<'_>,
    location: LocationArgument,
    name: &str,
    bytes_max: u64,
    options: &Bound<'_, PyAny>,
    store: StoreArgument,
) -> PyResult<Option<Cow<'static, [u8]>>> {
    let failed = |error| exception(py, &error);
    let timeout = crate::options::read(options)?.timeout;
    let location = location.parse().map_err(failed)?;
    let shown = location.to_string();
    let late = |timeout| {
        let message = format!("reading {name:?} took longer than the timeout of {timeout:?}");
        Error::new(ErrorKind::TimedOut, message)
            .with_location(&shown)
            .with_hint("raise ‹timeout›, or check the storage: tload doctor LOCATION")
    };
    let watch = Watch {
        timeout,
        show: None,
        progress: &|| (0, 0),
        cancel: &|| (),
        late: &late,
    };
    let (store, name) = (store.read().map_err(failed)?, name.to_owned());
    let found = watch.run(py, move || {
        match tload::copy::read_beside(&location, &name, bytes_max, &store) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    })?;
    Ok(found.map(Cow::Owned))
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
    let location = location.parse();
    location.map_or(true, |location| location.has_secret())
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
    let rows = listed.into_iter().map(|file| (file.name, file.bytes));
    Ok(rows.collect())
}
