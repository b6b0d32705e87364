//! Confines the files of a checkpoint to its folder.
//!
//! Folders and index files come from untrusted sources. Names are checked where they are read
//! (`format/shards.rs`). This module checks where symbolic links lead, for each file that the
//! caller did not name: shards of a folder or an index, and the index of a folder. Always allowed:
//! links that stay in the folder (Kubernetes mounts volumes so), links in the path of the folder
//! itself, and links in a hub's cache from a snapshot to the blobs of its repository. Mounts do not
//! count as links.
//!
//! A file is checked before it is opened, and the checked file is the one opened:
//! [`ConfinedDir::open_file`] takes a descriptor that reads nothing (`O_PATH`), resolves its path
//! through `/proc`, and opens it from there. So a file cannot be replaced by a link in between, and
//! nothing outside is ever opened: opening alone rewinds tapes and wakes writers of FIFOs. Without
//! `/proc`, and on systems without `O_PATH`, the path is resolved and the resolved path opened; a
//! process that may write to the folder could then still exchange a folder in between.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::{cannot_open, open_plain, path_of};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Location;

/// Prefixes of repository folders in the caches of model hubs: `models--org--name`.
const REPOSITORIES: [&str; 3] = ["models--", "datasets--", "spaces--"];

/// A folder, resolved by the kernel.
#[derive(Debug)]
pub(crate) struct ConfinedDir {
    shown: String,
    path: PathBuf,
    /// For a snapshot in a hub's cache, the folder of the files that its links lead to.
    blobs: Option<PathBuf>,
}

impl ConfinedDir {
    /// Opens the folder at `location`, following links to it.
    pub(crate) fn open(location: &Location) -> Result<Self> {
        let path = match path_of(location)? {
            path if path.as_os_str().is_empty() => Path::new("."),
            path => path,
        };
        let found = look(path).map_err(|error| cannot_open(error, location))?;
        Ok(Self {
            shown: path.display().to_string(),
            blobs: blobs_of(&found.real),
            path: found.real,
        })
    }

    /// Opens a file inside the folder, for buffered reads.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PermissionDenied`] for a file outside of it.
    pub(in crate::storage) fn open_file(&self, location: &Location) -> Result<File> {
        let failed = |error| cannot_open(error, location);
        let found = look(path_of(location)?).map_err(failed)?;
        if !self.holds(&found.real) {
            return Err(self.refused(location, &found.real));
        }
        found.open().map_err(failed)
    }

    fn holds(&self, path: &Path) -> bool {
        let mut folders = std::iter::once(&self.path).chain(&self.blobs);
        folders.any(|folder| path.starts_with(folder))
    }

    fn refused(&self, location: &Location, real: &Path) -> Error {
        Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "a symbolic link leads out of the checkpoint's folder {:?}, to {:?}",
                self.shown,
                real.display().to_string()
            ),
        )
        .with_location(location)
        .with_hint(
            "if you trust the author of the folder, set ‹follow_symlinks›; or put the file itself there",
        )
    }
}

/// A file or folder at a path, resolved but not opened yet.
struct Found {
    real: PathBuf,
    /// Descriptor that `/proc` resolved.
    #[cfg(target_os = "linux")]
    inode: Option<std::os::fd::OwnedFd>,
}

impl Found {
    /// Opens the file.
    fn open(&self) -> io::Result<File> {
        #[cfg(target_os = "linux")]
        if let Some(inode) = &self.inode {
            return open_plain(Path::new(&in_proc(inode)));
        }
        open_plain(&self.real)
    }
}

#[cfg(target_os = "linux")]
fn in_proc(inode: &std::os::fd::OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", inode.as_raw_fd())
}

#[cfg(target_os = "linux")]
fn look(path: &Path) -> io::Result<Found> {
    use rustix::fs::{Mode, OFlags, open};

    let inode = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match std::fs::read_link(in_proc(&inode)) {
        Ok(real) => Ok(Found {
            real,
            inode: Some(inode),
        }),
        // There is no /proc: a container without it, or a sandbox.
        Err(_) => resolve(path),
    }
}

#[cfg(not(target_os = "linux"))]
fn look(path: &Path) -> io::Result<Found> {
    resolve(path)
}

fn resolve(path: &Path) -> io::Result<Found> {
    Ok(Found {
        real: path.canonicalize()?,
        #[cfg(target_os = "linux")]
        inode: None,
    })
}

/// Returns `…/models--org--name/blobs` for `…/models--org--name/snapshots/COMMIT` or a folder below
/// it.
fn blobs_of(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.ancestors().find(|one| one.ends_with("snapshots"))?;
    let repository = snapshots.parent()?;
    let name = repository.file_name()?.to_str()?;
    let is_cache = REPOSITORIES.iter().any(|kind| name.starts_with(kind));
    is_cache.then(|| repository.join("blobs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_of_snapshot_is_blobs_of_its_repository() {
        let blobs = |text| blobs_of(Path::new(text));
        let wanted = Some(PathBuf::from("/hub/models--o--n/blobs"));
        assert_eq!(blobs("/hub/models--o--n/snapshots/c0"), wanted);
        assert_eq!(blobs("/hub/models--o--n/snapshots/c0/deep/er"), wanted);
        assert_eq!(blobs("/hub/models--o--n"), None);
        assert_eq!(blobs("/var/snapshots/c0"), None);
        assert_eq!(blobs("/hub/my-models--o/snapshots/c0"), None);
    }

    #[test]
    fn root_holds_descendants_and_not_name_prefixes() {
        let root = ConfinedDir {
            shown: "m".to_owned(),
            path: PathBuf::from("/m/a"),
            blobs: Some(PathBuf::from("/m/blobs")),
        };
        for (path, holds) in [
            ("/m/a/x", true),
            ("/m/a/b/x", true),
            ("/m/blobs/x", true),
            ("/m/ab/x", false),
            ("/m/x", false),
            ("/blobs/x", false),
        ] {
            assert_eq!(root.holds(Path::new(path)), holds, "{path}");
        }
    }

    /// Covers systems without `/proc`.
    #[test]
    fn resolved_path_opens_without_proc() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("a"), "x").expect("takes files");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("a", &link).expect("takes links");
        let found = resolve(&link).expect("there");
        assert!(found.real.ends_with("a"));
        assert_eq!(
            found.open().expect("opens").metadata().expect("open").len(),
            1
        );
    }
}
