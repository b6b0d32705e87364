//! All that is below the folder of a checkpoint, for who has to know what does not belong there.

use std::path::Path;

use crate::checkpoint::Outline;
use crate::error::{Error, ErrorKind, Result};
use crate::source::Location;

/// Most files and folders: more is a mistake, or a store that makes lists up.
const NAMES_MAX: usize = 1_000_000;

/// Deepest that folders may be nested.
const DEPTH_MAX: usize = 64;

/// Paths below the folder of everything that is no folder, but for what is skipped with all below it; and what was not looked for.
///
/// Links are not followed: each is something that is there.
///
/// # Errors
///
/// A folder that cannot be listed: something may be in it. [`ErrorKind::InvalidRequest`] where there is no end to it.
pub(super) fn below(
    outline: &Outline,
    is_skipped: &dyn Fn(&str) -> bool,
) -> Result<(Vec<String>, Option<String>)> {
    let mut names = Vec::new();
    let mut folders = vec![(outline.folder.clone(), String::new())];
    let mut seen = 0;
    while let Some((folder, prefix)) = folders.pop() {
        let level = match folder.as_path() {
            Some(path) => Some(local(&folder, path)?),
            None => outline.list(&folder)?,
        };
        let Some(level) = level else {
            let note = "files that are not signed were not looked for: web servers list no folders";
            return Ok((Vec::new(), Some(note.to_owned())));
        };
        let path = |last: &String| format!("{prefix}{last}");
        seen += level.0.len() + level.1.len();
        if seen > NAMES_MAX || prefix.matches('/').count() > DEPTH_MAX {
            return Err(Error::new(
                ErrorKind::InvalidRequest,
                "too much is below it to be looked at",
            )
            .with_location(&outline.folder)
            .with_hint("give the folder that the model is in, and nothing else"));
        }
        names.extend(level.0.iter().map(path).filter(|name| !is_skipped(name)));
        let deeper = level.1.iter().map(|last| (folder.join(last), path(last)));
        let deeper = deeper.filter(|(_, name)| !is_skipped(name));
        folders.extend(deeper.map(|(folder, name)| (folder, format!("{name}/"))));
    }
    let is_remote = outline.folder.as_path().is_none();
    let note =
        "hidden files that are not signed were not looked for: the store was asked for others";
    Ok((names, is_remote.then(|| note.to_owned())))
}

/// What is directly in a folder: what is none itself, and the folders.
fn local(location: &Location, folder: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let unreadable =
        |error| Error::from_io("cannot list the folder", error).with_location(location);
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let (mut others, mut folders) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        // No signature has a name that is not UTF-8, whatever is shown for it.
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().map_err(unreadable)?.is_dir() {
            folders.push(name);
        } else {
            others.push(name);
        }
    }
    Ok((others, folders))
}
