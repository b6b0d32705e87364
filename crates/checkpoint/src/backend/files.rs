//! Files and directories of file systems.

use std::path::Path;
use std::sync::Arc;

use super::{Found, OpenedSource};
use crate::error::{Error, Result};
use crate::format::SUFFIX;
use crate::options::Location;
use crate::storage::{ConfinedDir, FileSource, Source, cannot_open, path_of};

/// Most entries of a directory in which safetensors files are looked for.
const ENTRIES_MAX: usize = 1024;

/// Opens a file, which must be inside `root`, if one is given.
pub(super) fn open(
    location: &Location,
    root: Option<&ConfinedDir>,
    first: usize,
    retries: Option<u32>,
) -> Result<OpenedSource> {
    let file = FileSource::open_in(root, location, retries)?;
    let bytes = file.fetch(0, first)?;
    Ok((Arc::new(file), bytes))
}

/// Looks up whether `location` is a file or a directory, and lists a directory.
pub(super) fn find(location: &Location) -> Result<Found> {
    let path = path_of(location)?;
    let metadata = std::fs::metadata(path).map_err(|error| cannot_open(error, location))?;
    if metadata.is_dir() {
        let (names, below) = names_in(location, path)?;
        Ok(Found::Folder { names, below })
    } else {
        Ok(Found::File)
    }
}

/// Returns whether safetensors files are among the first entries of a directory.
pub(super) fn holds_weights(folder: &Path) -> bool {
    let is_weights = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_str()
            .is_some_and(|name| !name.starts_with('.') && name.ends_with(SUFFIX))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.take(ENTRIES_MAX).flatten().any(is_weights)
}

/// Returns the names of files, and of directories. A link counts as a file: opening it tells more.
fn names_in(location: &Location, folder: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let unreadable =
        |error| Error::from_io("cannot list the directory", error).with_location(location);
    let (mut names, mut below) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        // A name that is not UTF-8 has neither suffix that counts here, or cannot be decoded
        // without guessing.
        if let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) {
            // A directory with the name of a shard or an index is an error of its own.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let is_below = is_folder && ![SUFFIX, ".json"].iter().any(|end| name.ends_with(end));
            let list = if is_below { &mut below } else { &mut names };
            list.push(name.to_owned());
        }
    }
    names.sort();
    below.sort();
    Ok((names, below))
}
