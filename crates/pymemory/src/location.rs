//! Locations as Python callers write them.

use pyo3::prelude::*;
use tload::Location;

/// A location as Python callers write it.
#[derive(Debug, FromPyObject)]
pub enum LocationArgument {
    /// A path or URL. Text that is not Unicode (surrogates) falls through to the next arm.
    Text(String),
    /// A path.
    Path(std::path::PathBuf),
}

impl LocationArgument {
    /// Returns the location.
    ///
    /// # Errors
    ///
    /// Those of [`Location::parse`].
    pub fn parse(self) -> tload::Result<Location> {
        match self {
            Self::Text(text) => Location::parse(&text),
            Self::Path(path) => Ok(Location::from_path(path)),
        }
    }
}
