//! Patches of checkpoints for Python: made, applied to files, and applied to tensors in place.
//!
//! `python/tload/_files/delta.py` is their public interface.

use std::path::PathBuf;

use pyo3::prelude::*;
use tload_pydelta::{After, Control, Work};

use crate::checkpoint::Checkpoint;
use crate::interrupt;
use crate::watch::Watch;

/// Writes the checkpoint that the patch `second` makes of `first`; with `differs`, a patch of what
/// differs between the two. Returns the summary as JSON.
#[pyfunction]
#[pyo3(signature = (first, second, out, *, options, progress, differs))]
pub(crate) fn patch_files(
    py: Python<'_>,
    first: &Bound<'_, Checkpoint>,
    second: &Bound<'_, Checkpoint>,
    out: PathBuf,
    options: &Bound<'_, PyAny>,
    progress: Option<Bound<'_, PyAny>>,
    differs: bool,
) -> PyResult<String> {
    let (first, second) = (first.get().share(), second.get().share());
    let call = if differs {
        tload_pydelta::diff(first, second, out)
    } else {
        tload_pydelta::apply(first, second, out)
    };
    watched(py, call, options, progress)
}

/// Applies a patch to tensors in host memory, by name. Returns the summary as JSON.
#[pyfunction]
#[pyo3(signature = (targets, patch, *, options, progress))]
pub(crate) fn apply_into(
    py: Python<'_>,
    targets: &Bound<'_, PyAny>,
    patch: &Bound<'_, Checkpoint>,
    options: &Bound<'_, PyAny>,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    let checkpoint = patch.get().share();
    let patch = interrupt::run(py, move || tload_pydelta::Patch::open(&checkpoint))?;
    watched(
        py,
        tload_pydelta::apply_into(targets, patch)?,
        options,
        progress,
    )
}

/// Runs a call until it ends, is cancelled or late.
fn watched(
    py: Python<'_>,
    (work, after): (Work, After),
    options: &Bound<'_, PyAny>,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    let control = Control::default();
    let watch = Watch {
        timeout: crate::options::read(options)?.timeout,
        show: progress,
        progress: &|| (control.bytes_done(), control.bytes_total()),
        cancel: &|| control.cancel(),
        late: &|timeout| control.timed_out(timeout),
    };
    let shared = control.clone();
    let ran = watch.run(py, move || work(&shared));
    after.run(py, ran.is_err());
    ran
}
