//! Lists everything below the directory of a checkpoint, to find files that do not belong there.

use std::path::Path;

use crate::checkpoint::FileSet;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Location;

/// Maximum number of files and directories: more is a mistake, or a store that invents listings.
const NAMES_MAX: usize = 1_000_000;

/// Maximum nesting depth of directories.
const DEPTH_MAX: usize = 64;

/// Returns the paths below the directory of everything that is not a directory, except skipped
/// paths and everything below them; and a note on what was not searched for.
///
/// Does not follow links: each link is a separate entry.
///
/// # Errors
///
/// A directory that cannot be listed, since files may be in it. [`ErrorKind::InvalidRequest`] if
/// there are too many entries or levels.
pub(super) fn below(
    file_set: &FileSet,
    is_skipped: &dyn Fn(&str) -> bool,
) -> Result<(Vec<String>, Option<String>)> {
    let mut names = Vec::new();
    let mut folders = vec![(file_set.folder.clone(), String::new())];
    let mut seen = 0;
    while let Some((folder, prefix)) = folders.pop() {
        let level = match folder.as_path() {
            Some(path) => Some(local(&folder, path)?),
            None => file_set.list(&folder)?,
        };
        let Some(level) = level else {
            let note = "unsigned files were not searched for: web servers do not list directories";
            return Ok((Vec::new(), Some(note.to_owned())));
        };
        let path = |last: &String| format!("{prefix}{last}");
        seen += level.0.len() + level.1.len();
        if seen > NAMES_MAX || prefix.matches('/').count() > DEPTH_MAX {
            return Err(Error::new(
                ErrorKind::InvalidRequest,
                "too many files and directories are below it",
            )
            .with_location(&file_set.folder)
            .with_hint("pass the directory of the model, without anything else in it"));
        }
        names.extend(level.0.iter().map(path).filter(|name| !is_skipped(name)));
        let deeper = level
            .1
            .iter()
            .map(|last| (folder.join(last), path(last)))
            .filter(|(_, name)| !is_skipped(name));
        folders.extend(deeper.map(|(folder, name)| (folder, format!("{name}/"))));
    }
    let is_remote = file_set.folder.as_path().is_none();
    let note = "unsigned hidden files were not searched for: listings of stores leave them out";
    Ok((names, is_remote.then(|| note.to_owned())))
}

/// Lists a directory: everything that is not a directory itself, and the directories.
fn local(location: &Location, folder: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let unreadable =
        |error| Error::from_io("cannot list the directory", error).with_location(location);
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let (mut others, mut folders) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        // No signature holds a name that is not UTF-8, whatever its replacement looks like.
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().map_err(unreadable)?.is_dir() {
            folders.push(name);
        } else {
            others.push(name);
        }
    }
    Ok((others, folders))
}
