//! Options of object stores from Python, as keys and values for the core.
//!
//! `python/tload/_options/store_options.py` makes text of the caller's values and of `TLOAD_STORE`;
//! the core decides which keys and values are valid. Nothing here is shown: values may be secrets.

use pyo3::prelude::*;
use tload::StoreOptions;
use tload_pymemory::error::exception;

/// Keys and values. The last value of a repeated key wins.
#[derive(FromPyObject)]
#[pyo3(transparent)]
pub(crate) struct StoreArgument(Vec<(String, String)>);

impl StoreArgument {
    pub(crate) fn read(self) -> tload::Result<StoreOptions> {
        StoreOptions::from_pairs(self.0)
    }
}

/// Fails if a key is unknown or its value malformed.
#[pyfunction]
pub(crate) fn check_store(py: Python<'_>, store: StoreArgument) -> PyResult<()> {
    let read = store.read().map_err(|error| exception(py, &error));
    read.map(drop)
}

/// Returns the keys whose values are secrets or may be.
#[pyfunction]
pub(crate) fn store_secrets(py: Python<'_>, store: StoreArgument) -> PyResult<Vec<String>> {
    let store = store.read().map_err(|error| exception(py, &error))?;
    Ok(store.secrets().map(str::to_owned).collect())
}

/// Splits `key=value` into key and value.
#[pyfunction]
pub(crate) fn parse_store_option(py: Python<'_>, text: &str) -> PyResult<(String, String)> {
    StoreOptions::parse(text).map_err(|error| exception(py, &error))
}
