//! Places of a cache's files. Nothing below the caller's directory follows links, and another
//! user's files are not used: see [`GuardedDir`].

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::VERSION;
use super::entry::DESCRIPTION;
use crate::guarded_dir::{GuardedDir, Trust};

/// Longest answer, or file of stamps, that is read, bytes: more than a hub's longest answer, as
/// JSON.
pub(super) const TEXT_BYTES_MAX: u64 = 256 << 20;

/// Longest description that is read, bytes: a URL, an `ETag` and a version, which requests and
/// responses have in their heads. A list reads the descriptions of all entries.
pub(super) const DESCRIPTION_BYTES_MAX: u64 = 64 << 10;

/// Directory of a cache, opened anew for each use: it may be replaced meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Root {
    directory: PathBuf,
    trust: Trust,
}

impl Root {
    pub(super) fn new(directory: &Path, trust: Trust) -> Self {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        Self { directory, trust }
    }

    /// Path of the directory of this version's layout.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(VERSION)
    }

    /// Opens the directory of this version's layout.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] if there is none; [`io::ErrorKind::PermissionDenied`] if another
    /// user owns it or may write to it.
    pub(super) fn open(&self) -> io::Result<GuardedDir> {
        GuardedDir::open(&self.directory, self.trust)?.below(VERSION)
    }

    /// Opens it, and creates it if there is none.
    fn make(&self) -> io::Result<GuardedDir> {
        let directory = GuardedDir::create(&self.directory, self.trust)?;
        directory.make_with(VERSION, self.trust.permissions())
    }

    /// Opens it to list and to remove what is there. That trusts nothing, so any user may own it.
    pub(super) fn look(&self) -> io::Result<GuardedDir> {
        GuardedDir::open(&self.directory, Trust::All)?.below(VERSION)
    }

    /// Opens a directory in it, and creates both if `make`.
    pub(super) fn below(&self, names: &[&str], make: bool) -> io::Result<GuardedDir> {
        match self.open() {
            Err(error) if make && error.kind() == io::ErrorKind::NotFound => self.make()?,
            opened => opened?,
        }
        .deep(names, make)
    }
}

/// Place of an entry.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) root: Arc<Root>,
    /// 64 hexadecimal digits.
    pub(super) name: String,
}

impl Place {
    /// Opens the entry's directory, and creates it if `make`.
    pub(super) fn open(&self, make: bool) -> io::Result<GuardedDir> {
        self.root.below(&components(&self.name), make)
    }

    /// Path of the entry's directory.
    pub(super) fn path(&self) -> PathBuf {
        let [group, name] = components(&self.name);
        self.root.path().join(group).join(name)
    }
}

/// Returns the directories of the entry of this name, below that of the layout's version.
pub(super) fn components(name: &str) -> [&str; 2] {
    [name.get(..2).unwrap_or(name), name]
}

/// Opens a file for reading and writing, creating it if necessary; or for reading alone where
/// writing is not permitted. Returns whether it can be written to.
pub(super) fn open_file(folder: &GuardedDir, name: &str) -> io::Result<(File, bool)> {
    let refused = [Errno::ACCESS, Errno::PERM, Errno::ROFS].map(Errno::raw_os_error);
    match folder.file(name, OFlags::RDWR | OFlags::CREATE) {
        Err(error) if error.raw_os_error().is_some_and(|it| refused.contains(&it)) => {
            Ok((folder.file(name, OFlags::RDONLY)?, false))
        }
        opened => Ok((opened?, true)),
    }
}

/// Writes the description of an entry unless it has the same one.
pub(super) fn describe(folder: &GuardedDir, description: &str) -> io::Result<()> {
    let found = folder.read(DESCRIPTION, DESCRIPTION_BYTES_MAX);
    if found.is_ok_and(|found| found == description.as_bytes()) {
        return Ok(());
    }
    folder.replace(DESCRIPTION, description.as_bytes())
}

/// Switches direct I/O of an open file on or off; returns whether it is on.
#[cfg(target_os = "linux")]
pub(super) fn set_direct(file: &File, on: bool) -> bool {
    let Ok(flags) = rustix::fs::fcntl_getfl(file) else {
        return false;
    };
    let flags = if on {
        flags | OFlags::DIRECT
    } else {
        flags - OFlags::DIRECT
    };
    rustix::fs::fcntl_setfl(file, flags).is_ok() && on
}

/// Switches direct I/O on or off: only Linux has it as a flag of open files.
#[cfg(not(target_os = "linux"))]
pub(super) fn set_direct(_file: &File, _on: bool) -> bool {
    false
}
