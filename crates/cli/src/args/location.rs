//! Help on locations, with the schemes that the core accepts.

use tload::Location;

/// Returns the help of an argument that takes a path or a URL `of` something.
pub(super) fn help(of: &str) -> String {
    format!("Path or URL ({}) {of}", schemes())
}

/// Returns the schemes of URLs: `file, s3, …`.
pub(super) fn schemes() -> String {
    Location::schemes().collect::<Vec<_>>().join(", ")
}
