//! Confines the files of a checkpoint to its directory.
//!
//! Directories and index files come from untrusted sources. Names are checked where they are read
//! (`index.rs` of `tload-format`). This module checks where symbolic links lead, for each file
//! that the caller did not name: shards of a directory or an index, and the index of a directory.
//! Always allowed: links that stay in the directory (Kubernetes mounts volumes so), links in the
//! path of the directory itself, and links in a hub's cache from a snapshot to the blobs of its
//! repository, or to those that all repositories of the cache share. Mounts do not count as links.
//!
//! A file is checked before it is opened, and the checked file is the one opened:
//! [`ConfinedDir::find`] takes a descriptor that reads nothing (`O_PATH`), resolves its path
//! through `/proc`, and opens it from there. So a file cannot be replaced by a link in between, and
//! nothing outside is ever opened: opening alone rewinds tapes and wakes writers of FIFOs. Without
//! `/proc`, and on systems without `O_PATH`, the path is resolved and the resolved path opened; a
//! process that may write to the directory could then still exchange a directory in between.
//!
//! `tload serve` confines the requests of its clients in the same way.

use std::fs::{File, Metadata, ReadDir};
use std::io;
use std::path::{Path, PathBuf};

use super::{cannot_open, path_of, regular};
use crate::error::{Error, ErrorKind, Result};
use crate::files::open_plain;
use crate::options::Location;

/// Prefixes of repository directories in the caches of model hubs: `models--org--name`.
const REPOSITORIES: [&str; 3] = ["models--", "datasets--", "spaces--"];

/// File that marks the directory of the blobs that the repositories of a cache share
/// (`huggingface_hub` 2.4, `utils/_shared_blobs.py`).
const SHARED_MARKER: &str = ".huggingface-shared-blobs";

/// A directory, resolved by the kernel, that files are not opened outside of.
#[derive(Debug)]
pub struct ConfinedDir {
    shown: String,
    path: PathBuf,
    /// For a snapshot in a hub's cache, the directories of the files that its links lead to.
    blobs: Vec<PathBuf>,
}

impl ConfinedDir {
    /// Opens the directory at `location`, following links to it. A file in its place contains only
    /// itself.
    ///
    /// # Errors
    ///
    /// There is nothing at `location`, or it is not on a file system.
    pub fn open(location: &Location) -> Result<Self> {
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

    /// Returns the path of the directory, without links: it leads there also after a link to the
    /// directory has been switched.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file inside the directory, for buffered reads.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PermissionDenied`] for a file outside of it.
    pub(crate) fn open_file(&self, location: &Location) -> Result<File> {
        let entry = self.find(location)?;
        entry
            .found
            .open()
            .map_err(|error| cannot_open(error, location))
    }

    /// Finds a file or directory inside the directory, without opening it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PermissionDenied`] for one outside of it.
    pub fn find(&self, location: &Location) -> Result<ConfinedEntry> {
        let found = look(path_of(location)?).map_err(|error| cannot_open(error, location))?;
        if !self.holds(&found.real) {
            return Err(self.refused(location, &found.real));
        }
        Ok(ConfinedEntry {
            found,
            location: location.clone(),
        })
    }

    fn holds(&self, path: &Path) -> bool {
        let mut folders = std::iter::once(&self.path).chain(&self.blobs);
        folders.any(|folder| path.starts_with(folder))
    }

    fn refused(&self, location: &Location, real: &Path) -> Error {
        Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "a symbolic link leads out of the checkpoint's directory {:?}, to {:?}",
                self.shown,
                real.display().to_string()
            ),
        )
        .with_location(location)
        .with_hint(
            "if you trust the author of the directory, set ‹follow_symlinks›; or put the file itself there",
        )
    }
}

/// A file or directory in a [`ConfinedDir`], not opened yet.
#[derive(Debug)]
pub struct ConfinedEntry {
    found: Found,
    location: Location,
}

impl ConfinedEntry {
    /// Returns its path, without links.
    pub fn path(&self) -> &Path {
        &self.found.real
    }

    /// Returns what the file system records about it.
    ///
    /// # Errors
    ///
    /// The file system does not answer with its status.
    pub fn metadata(&self) -> Result<Metadata> {
        let failed = |error| Error::from_io("cannot read the file's status", error);
        let found = self.found.metadata();
        found.map_err(|error| failed(error).with_location(&self.location))
    }

    /// Opens it for buffered reads, if it is a regular file.
    ///
    /// # Errors
    ///
    /// It is not a regular file ([`ErrorKind::InvalidRequest`]), or may not be read.
    pub fn open_file(&self) -> Result<(File, Metadata)> {
        // The type is checked before opening, because opening a device may change its state.
        if !self.metadata()?.is_file() {
            let message = "is not a regular file";
            return Err(Error::invalid_request(message).with_location(&self.location));
        }
        let file = self.found.open();
        regular(
            file.map_err(|error| cannot_open(error, &self.location))?,
            &self.location,
        )
    }

    /// Lists it, if it is a directory.
    ///
    /// # Errors
    ///
    /// It is not a directory, or may not be listed.
    pub fn read_dir(&self) -> Result<ReadDir> {
        let entries = self.found.read_dir();
        entries.map_err(|error| cannot_open(error, &self.location))
    }
}

/// A file or directory at a path, resolved but not opened yet.
#[derive(Debug)]
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

    /// Lists the directory.
    fn read_dir(&self) -> io::Result<ReadDir> {
        #[cfg(target_os = "linux")]
        if let Some(inode) = &self.inode {
            return std::fs::read_dir(in_proc(inode));
        }
        std::fs::read_dir(&self.real)
    }

    fn metadata(&self) -> io::Result<Metadata> {
        #[cfg(target_os = "linux")]
        if let Some(inode) = &self.inode {
            return File::from(inode.try_clone()?).metadata();
        }
        std::fs::symlink_metadata(&self.real)
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
        // Containers and sandboxes may lack /proc.
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

/// Returns `…/models--org--name/blobs` for `…/models--org--name/snapshots/COMMIT` or a directory
/// below it, and `…/blobs` if the repositories share blobs.
fn blobs_of(folder: &Path) -> Vec<PathBuf> {
    let Some(repository) = repository_of(folder) else {
        return Vec::new();
    };
    let mut blobs = vec![repository.join("blobs")];
    let shared = repository.with_file_name("blobs");
    let marker = shared.join(SHARED_MARKER);
    if marker.symlink_metadata().is_ok_and(|found| found.is_file()) {
        blobs.push(shared);
    }
    blobs
}

fn repository_of(folder: &Path) -> Option<&Path> {
    let snapshots = folder.ancestors().find(|one| one.ends_with("snapshots"))?;
    let repository = snapshots.parent()?;
    let name = repository.file_name()?.to_str()?;
    let is_cache = REPOSITORIES.iter().any(|kind| name.starts_with(kind));
    is_cache.then_some(repository)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_of_snapshot_is_blobs_of_its_repository() {
        let blobs = |text| blobs_of(Path::new(text));
        let wanted = [PathBuf::from("/hub/models--o--n/blobs")];
        assert_eq!(blobs("/hub/models--o--n/snapshots/c0"), wanted);
        assert_eq!(blobs("/hub/models--o--n/snapshots/c0/deep/er"), wanted);
        let none: [PathBuf; 0] = [];
        assert_eq!(blobs("/hub/models--o--n"), none);
        assert_eq!(blobs("/var/snapshots/c0"), none);
        assert_eq!(blobs("/hub/my-models--o/snapshots/c0"), none);
    }

    #[test]
    fn root_holds_descendants_and_not_name_prefixes() {
        let root = ConfinedDir {
            shown: "m".to_owned(),
            path: PathBuf::from("/m/a"),
            blobs: vec![PathBuf::from("/m/blobs")],
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

    #[test]
    fn only_entries_inside_are_found_and_only_regular_files_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("root/deep")).expect("takes folders");
        std::fs::write(at("secret"), "x").expect("takes files");
        std::fs::write(at("root/deep/a"), "ab").expect("takes files");
        std::os::unix::fs::symlink("../secret", at("root/out")).expect("takes links");
        std::os::unix::fs::symlink("deep/a", at("root/in")).expect("takes links");
        let root = ConfinedDir::open(&Location::from_path(at("root"))).expect("there");
        let find = |name: &str| root.find(&Location::from_path(at("root").join(name)));
        let kind = |error: Error| error.kind();

        let (_, metadata) = find("in").and_then(|it| it.open_file()).expect("inside");
        assert_eq!(metadata.len(), 2);
        let deep = find("deep").expect("inside");
        assert_eq!(deep.read_dir().expect("a directory").count(), 1);
        let opened = deep.open_file().map_err(kind);
        assert_eq!(
            opened.expect_err("is a directory"),
            ErrorKind::InvalidRequest
        );
        for name in ["out", "..", "../secret"] {
            let found = find(name).map_err(kind);
            assert_eq!(found.expect_err(name), ErrorKind::PermissionDenied);
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
