//! Names and texts from Python as the core's options of object stores.
//!
//! `python/tload/_store.py` makes texts of what callers write and of `TLOAD_STORE`; which names there are and what form a value
//! has to have is for the core to say. Nothing here is shown: values may be secrets.

use pyo3::prelude::*;
use tload::StoreOptions;

use crate::error::exception;

/// Keys and values. Of a key that comes twice, the last value holds.
#[derive(FromPyObject)]
#[pyo3(transparent)]
pub(crate) struct StoreArgument(Vec<(String, String)>);

impl StoreArgument {
    pub(crate) fn read(self) -> tload::Result<StoreOptions> {
        StoreOptions::from_pairs(self.0)
    }
}

/// Fails if a key is unknown or a value has not the form that its key wants.
#[pyfunction]
pub(crate) fn check_store(py: Python<'_>, store: StoreArgument) -> PyResult<()> {
    store
        .read()
        .map(drop)
        .map_err(|error| exception(py, &error))
}

/// Key and value of `key=value`.
#[pyfunction]
pub(crate) fn parse_store_option(py: Python<'_>, text: &str) -> PyResult<(String, String)> {
    StoreOptions::parse(text).map_err(|error| exception(py, &error))
}
