//! Directory beside a destination in which its files are written: `.NAME.tload-0123456789ab`.
//!
//! It is locked while it is written, so that leftovers of a killed writer can be told from the
//! files of one that runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, XattrFlags, flock, fsetxattr};

use super::{file_error, open_directory};
use crate::error::{Error, Result};
use crate::step;
use crate::write_id::WriteId;

/// Name of the attribute of what a write has made, with the write's identifier.
pub(crate) const ATTRIBUTE: &str = "user.tload.write";

/// Directory of files that are not published yet. Dropping it removes them.
#[derive(Debug)]
pub(crate) struct Stage {
    path: PathBuf,
    directory: File,
    is_published: bool,
}

impl Stage {
    /// Creates the directory.
    pub(super) fn create(destination: &Path, id: &WriteId) -> Result<Self> {
        let name = file_name(destination);
        let path = destination.with_file_name(format!(".{name}.tload-{id}"));
        fs::create_dir(&path)
            .map_err(|error| file_error("cannot create the directory", &path, error))?;
        step::reach();
        let failed = |error| file_error("cannot open the directory", &path, error);
        let directory = open_directory(&path).map_err(failed)?;
        // A file system without locks or attributes only tells less about leftovers.
        let _ = flock(&directory, FlockOperation::NonBlockingLockExclusive);
        let _ = fsetxattr(
            &directory,
            ATTRIBUTE,
            id.to_string().as_bytes(),
            XattrFlags::empty(),
        );
        Ok(Self {
            path,
            directory,
            is_published: false,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the names of its files are stored.
    pub(super) fn sync(&self) -> Result<()> {
        self.directory
            .sync_all()
            .map_err(|error| file_error("cannot store the directory", &self.path, error))
    }

    /// Notes that the directory is at the destination, and another one has its name.
    pub(super) fn became_destination(&mut self) {
        self.is_published = true;
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "cannot remove an unfinished checkpoint");
        }
    }
}

/// Returns the directories that writes of `destination` have left, and whether each is in use.
pub(crate) fn leftovers(destination: &Path) -> Result<Vec<(PathBuf, bool)>> {
    let prefix = format!(".{}.tload-", file_name(destination));
    let parent = destination.parent().unwrap_or(Path::new("."));
    let failed = |error| file_error("cannot list", parent, error);
    let mut found = Vec::new();
    for entry in fs::read_dir(parent).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        if id.and_then(WriteId::parse).is_none() {
            continue;
        }
        let path = entry.path();
        found.push((path.clone(), is_locked(&path)?));
    }
    found.sort();
    Ok(found)
}

fn is_locked(path: &Path) -> Result<bool> {
    let directory = open_directory(path)
        .map_err(|error| file_error("cannot open the directory", path, error))?;
    let lock = flock(&directory, FlockOperation::NonBlockingLockExclusive);
    Ok(lock == Err(rustix::io::Errno::WOULDBLOCK))
}

/// Returns the last component of a path that has one, as text.
fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the path with links followed, also of something that does not exist yet, and creates the
/// directory that it is in.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf> {
    let failed = |error| file_error("cannot open", path, error);
    if fs::symlink_metadata(path).is_ok() {
        return fs::canonicalize(path).map_err(failed);
    }
    let Some(name) = path.file_name() else {
        return Err(
            Error::invalid_request("is not the path of a directory to write")
                .with_location(path.display()),
        );
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent)
        .map_err(|error| file_error("cannot create the directory", parent, error))?;
    Ok(fs::canonicalize(parent).map_err(failed)?.join(name))
}
