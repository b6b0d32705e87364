//! Defaults of arguments that the configuration file sets: an argument comes first, then its
//! variable. A file that cannot be read sets none, and the command fails before it uses them.

use clap::builder::{OsStr, Resettable};
use tload::Location;

use crate::configuration;

/// Returns the default of an option of loads.
pub(super) fn option(name: &str) -> Resettable<OsStr> {
    let config = configuration::current().unwrap_or_default();
    config
        .option(name)
        .map(|text| text.to_owned().into())
        .into()
}

/// Returns the default of an option of loads, or else `otherwise`.
pub(super) fn option_or(name: &str, otherwise: &'static str) -> Resettable<OsStr> {
    match option(name) {
        Resettable::Reset => Resettable::Value(otherwise.into()),
        value @ Resettable::Value(_) => value,
    }
}

/// Returns the default of an option of all stores.
pub(super) fn store(key: &str) -> Resettable<OsStr> {
    let nowhere: [Location; 0] = [];
    let config = configuration::current().unwrap_or_default();
    let options = config.store_options(&nowhere).unwrap_or_default();
    options.get(key).map(|text| text.to_owned().into()).into()
}

/// Returns the argument in whose absence that of an option is required: none if all stores have
/// the option.
pub(super) fn unless_store(key: &str, argument: &'static str) -> Vec<&'static str> {
    if matches!(store(key), Resettable::Value(_)) {
        return Vec::new();
    }
    vec![argument]
}
