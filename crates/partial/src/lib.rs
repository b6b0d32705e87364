//! Files and directories that appear under their names when they are complete.
//!
//! Programs depend on the crate `tload`. This one is of its commands, is released with it, and may
//! change in any release.
//!
//! A file in progress lies beside its name, `.NAME.0123456789ab.tload-partial`. No two processes
//! share such a path, so that neither writes into a file that the other has given its name. A file
//! in progress is locked: those that killed processes have left are not, and are removed by the
//! next process that writes the name. File systems without locks keep them, and so do directories.
//!
//! ```
//! use std::io::Write as _;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("manifest.json");
//! let mut partial = tload_partial::Partial::new(&path)?;
//! partial.create_file()?.write_all(b"{}")?;
//! assert!(!path.exists());
//! partial.complete(false)?;
//! assert!(path.exists());
//! # Ok(())
//! # }
//! ```

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use tload_base::error::{Error, Result};

/// Suffix of what is in progress.
const SUFFIX: &str = ".tload-partial";

/// Hexadecimal digits of the number of a process.
const DIGITS: usize = 12;

/// A file or directory in progress. Dropping it removes what was written.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    beside: PathBuf,
    /// File or directory, whose lock this holds; the permissions that a directory gets.
    made: Option<(File, Option<Permissions>)>,
}

impl Partial {
    /// Plans to write `path`. Nothing is created yet.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`](tload_base::error::ErrorKind::InvalidRequest) if `path` ends in `..`.
    pub fn new(path: &Path) -> Result<Self> {
        if path.file_name().is_none() {
            let error = Error::invalid_request("is not the path of a file or directory to write");
            return Err(error.with_location(path.display()));
        }
        Ok(Self {
            path: path.to_owned(),
            beside: beside(path),
            made: None,
        })
    }

    /// Returns the name that it gets.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns where it is until then.
    pub fn beside(&self) -> &Path {
        &self.beside
    }

    /// Returns an error if something has the name already.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`](tload_base::error::ErrorKind::InvalidRequest).
    pub fn refuse_existing(&self) -> Result<()> {
        let found = self.path.symlink_metadata();
        found.map_or(Ok(()), |_| Err(exists(&self.path)))
    }

    /// Creates the file, and removes what is in progress of this name and no process writes.
    ///
    /// # Errors
    ///
    /// Those of creating a file, for example if this process writes the same name already.
    pub fn create_file(&mut self) -> Result<File> {
        let file = self.create(|| File::create_new(&self.beside))?;
        let own = file.try_clone();
        self.made = Some((file, None));
        own.map_err(|error| self.failed(error))
    }

    /// Creates the directory, as [`Self::create_file`] does.
    ///
    /// # Errors
    ///
    /// Those of creating a directory, for example if this process writes the same name already.
    pub fn create_folder(&mut self) -> Result<()> {
        let make = || fs::create_dir(&self.beside).and_then(|()| open_folder(&self.beside));
        let folder = self.create(make)?;
        let failed = |error| self.failed(error);
        let given = folder.metadata().map_err(failed)?.permissions();
        let private = folder.set_permissions(Permissions::from_mode(0o700));
        private.map_err(failed)?;
        self.made = Some((folder, Some(given)));
        Ok(())
    }

    fn create(&self, make: impl Fn() -> io::Result<File>) -> Result<File> {
        remove_leftovers(&self.path);
        loop {
            let file = make().map_err(|error| self.failed(error))?;
            // Waits only for a process that looks for leftovers, and may have removed this one.
            // Without locks, what killed processes leave stays.
            let _ = flock(&file, FlockOperation::LockExclusive);
            if self.beside.exists() {
                return Ok(file);
            }
        }
    }

    /// Waits until storage has it, and gives it its name. It replaces a file if `may_replace`.
    /// Files in a directory have to be on storage already.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`](tload_base::error::ErrorKind::InvalidRequest) if something has the name
    /// by now; those of writing. What was written is gone then.
    pub fn complete(mut self, may_replace: bool) -> Result<()> {
        let store = || {
            let (made, permissions) = self.made.as_ref().ok_or(io::ErrorKind::NotFound)?;
            let mut given = permissions.iter().cloned();
            given.try_for_each(|given| made.set_permissions(given))?;
            synced(made)
        };
        store().map_err(|error| self.failed(error))?;
        self.rename(may_replace)?;
        self.made = None;
        let folder = open_folder(folder_of(&self.path));
        let synced = folder.and_then(|folder| synced(&folder));
        synced.map_err(|error| self.failed(error))
    }

    fn rename(&self, may_replace: bool) -> Result<()> {
        let rename = || fs::rename(&self.beside, &self.path).map_err(|error| self.failed(error));
        if may_replace {
            return rename();
        }
        match renameat_with(CWD, &self.beside, CWD, &self.path, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(exists(&self.path)),
            // Not every file system supports RENAME_NOREPLACE.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                self.refuse_existing()?;
                rename()
            }
            Err(errno) => Err(self.failed(errno.into())),
        }
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::from_write("cannot write", error).with_location(self.path.display())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // The error that ended the writing counts.
        let _ = match &self.made {
            Some((_, Some(_))) => fs::remove_dir_all(&self.beside),
            Some((_, None)) => fs::remove_file(&self.beside),
            None => Ok(()),
        };
    }
}

/// Returns where this process writes `path` until it is complete.
pub fn beside(path: &Path) -> PathBuf {
    // The keys of the standard library's hash tables are the system's random numbers.
    static PROCESS: OnceLock<String> = OnceLock::new();
    let process = PROCESS.get_or_init(|| {
        let random = RandomState::new().hash_one(()) >> (64 - 4 * DIGITS);
        format!("{random:0DIGITS$x}")
    });
    let mut name = prefix(path);
    name.push(process);
    name.push(SUFFIX);
    path.with_file_name(name)
}

fn prefix(path: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    prefix
}

/// Removes what is in progress of this name and no process has locked. Returns what it was.
pub fn remove_leftovers(path: &Path) -> Vec<PathBuf> {
    let prefix = prefix(path);
    let entries = fs::read_dir(folder_of(path)).into_iter().flatten();
    let own = entries
        .flatten()
        .filter(|it| is_of(&it.file_name(), &prefix));
    let paths = own.map(|entry| entry.path());
    // Others stay, as after an error of the process that has left them.
    paths.filter(|path| remove_leftover(path).is_ok()).collect()
}

/// Returns whether `name` is that of something in progress, of the name that `prefix` is made of.
fn is_of(name: &OsStr, prefix: &OsStr) -> bool {
    let rest = name.as_bytes().strip_prefix(prefix.as_bytes());
    let process = rest.and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
    process.is_some_and(|it| it.len() == DIGITS && it.iter().all(u8::is_ascii_hexdigit))
}

fn remove_leftover(path: &Path) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.custom_flags(flags.bits().cast_signed()).read(true);
    // A network file system lets writers lock a file exclusively, and others not.
    let file = options.write(!path.is_dir()).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    // It may have got its name meanwhile.
    let (opened, named) = (file.metadata()?, path.symlink_metadata()?);
    match (opened.dev(), opened.ino()) == (named.dev(), named.ino()) {
        true if opened.is_dir() => fs::remove_dir_all(path),
        true => fs::remove_file(path),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a directory, whose contents are not read"
)]
fn open_folder(folder: &Path) -> io::Result<File> {
    File::open(folder)
}

/// Waits until storage has a file, or the names in a directory on file systems that can.
fn synced(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

fn exists(path: &Path) -> Error {
    Error::invalid_request("exists already, and is not replaced")
        .with_location(path.display())
        .with_hint("choose another name, or remove it")
}

#[cfg(test)]
mod tests;
