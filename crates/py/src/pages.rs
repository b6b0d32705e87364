//! Reports as HTML, which the crate `tload-html` makes of their JSON.
//!
//! `python/tload/report.py` and `python/tload/_files/verify.py` are the public interface.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::Value;
use tload_html::Run;

fn parsed(document: &str) -> PyResult<Value> {
    serde_json::from_str(document).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Returns the page of a report: its JSON, its text, and the present time, seconds since 1970.
#[pyfunction]
pub(crate) fn report_page(document: &str, text: &str, unix_seconds: u64) -> PyResult<String> {
    let run = Run {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        unix_seconds,
        ..Run::default()
    };
    Ok(tload_html::report_page(parsed(document)?, text, Some(run)))
}

/// Returns a report, as JSON and text, for a cell of a notebook.
#[pyfunction]
pub(crate) fn report_fragment(document: &str, text: &str) -> PyResult<String> {
    Ok(tload_html::report_fragment(parsed(document)?, text))
}

/// Returns the report of a verification, as JSON with `ok`, for a cell of a notebook.
#[pyfunction]
pub(crate) fn verified_fragment(document: &str) -> PyResult<String> {
    Ok(tload_html::verified_fragment(parsed(document)?))
}
