//! Removal of what killed and replaced writes have left: an explicit step, since only the user
//! knows that no program reads it any more.

use std::fs;

use serde::Serialize;

use crate::disk::{file_error, stage};
use crate::error::Result;
use crate::options::{Location, StoreOptions};

/// Files that a write has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Leftover {
    /// Path or URL.
    pub location: String,
    /// True if it was removed. A writer that still runs keeps its own.
    pub removed: bool,
}

/// Removes what writes to `location` have left: files of killed writers, and checkpoints that were
/// replaced.
///
/// # Errors
///
/// The kinds of I/O, and of the store.
pub fn remove_incomplete(location: &Location, store: &StoreOptions) -> Result<Vec<Leftover>> {
    let Some(path) = location.as_path() else {
        #[cfg(feature = "object")]
        return crate::objects::leftovers::remove(location, store);
        #[cfg(not(feature = "object"))]
        return Err(crate::target::without_stores(location));
    };
    let _ = store;
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    if parent.is_some_and(|it| matches!(it.try_exists(), Ok(false))) {
        return Ok(Vec::new());
    }
    let path = stage::resolved(path)?;
    let mut found = Vec::new();
    for (path, lock) in stage::leftovers(&path)? {
        if lock.is_some() {
            fs::remove_dir_all(&path).map_err(|error| file_error("cannot remove", &path, error))?;
        }
        found.push(Leftover {
            location: path.display().to_string(),
            removed: lock.is_some(),
        });
    }
    Ok(found)
}
