//! The user's configuration file, as options that Python merges with the caller's.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use tload::Location;
use tload_config::Config;
use tload_pymemory::error::exception;

use crate::checkpoint::LocationArgument;

/// Returns the options of loads that the file sets, as text like that of their variables.
#[pyfunction]
pub(crate) fn configured_options(py: Python<'_>) -> PyResult<BTreeMap<&'static str, String>> {
    let config = Config::current().map_err(|error| exception(py, &error))?;
    let settings = config.settings().filter(|setting| setting.is_of_loads());
    Ok(settings
        .map(|setting| (setting.option, setting.value.clone()))
        .collect())
}

/// Returns the options of stores that the file sets for a checkpoint at `locations`.
#[pyfunction]
pub(crate) fn configured_store(
    py: Python<'_>,
    locations: Vec<LocationArgument>,
) -> PyResult<Vec<(String, String)>> {
    let options = || {
        let locations = locations.into_iter().map(LocationArgument::parse);
        let locations: Vec<Location> = locations.collect::<tload::Result<_>>()?;
        Config::current()?.store_options(&locations)
    };
    let options = options().map_err(|error| exception(py, &error))?;
    let pairs = options.iter();
    Ok(pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect())
}
