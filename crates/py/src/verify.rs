//! Verification of whole checkpoints for Python.
//!
//! `python/tload/_verify.py` gives it its face, and checks signatures.

use std::path::PathBuf;

use pyo3::prelude::*;
use tload::OpenOptions;
use tload::verify::{ManifestTarget, Verification, VerifyOptions};

use crate::checkpoint::LocationArgument;
use crate::interrupt;
use crate::store::StoreArgument;

/// Where a manifest is to be written: beside the checkpoint (`True`) or at a path.
#[derive(FromPyObject)]
pub(crate) enum WriteArgument {
    Beside(bool),
    Path(PathBuf),
}

/// Compares a location with what is known of it. Returns the report as JSON, and the error if something of it is bad.
#[pyfunction]
#[pyo3(signature = (location, *, manifest, write, force, store, follow_symlinks))]
pub(crate) fn verify(
    py: Python<'_>,
    location: LocationArgument,
    manifest: Option<LocationArgument>,
    write: Option<WriteArgument>,
    force: bool,
    store: StoreArgument,
    follow_symlinks: bool,
) -> PyResult<(String, Option<Py<PyAny>>)> {
    let failed = |error| crate::error::exception(py, &error);
    let mut options = VerifyOptions::default();
    let manifest = manifest.map(LocationArgument::parse).transpose();
    options.manifest = manifest.map_err(failed)?;
    options.write = match write {
        None | Some(WriteArgument::Beside(false)) => None,
        Some(WriteArgument::Beside(true)) => Some(ManifestTarget::Beside),
        Some(WriteArgument::Path(path)) => Some(ManifestTarget::Path(path)),
    };
    options.force = force;
    let mut opening = OpenOptions::from(store.read().map_err(failed)?);
    opening.follow_symlinks = follow_symlinks;
    let verification = Verification::new(&location.parse().map_err(failed)?)
        .options(options)
        .opening(opening);
    let control = verification.control();
    let verified = interrupt::run(py, move || verification.run());
    // After Ctrl-C it is not waited for, but ends.
    let report = verified.inspect_err(|_| control.cancel())?;
    let error = report.error();
    let error = error.map(|error| {
        crate::error::exception(py, &error)
            .into_value(py)
            .into_any()
    });
    Ok((serde_json::to_string(&report).unwrap_or_default(), error))
}
