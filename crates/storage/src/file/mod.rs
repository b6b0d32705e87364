//! Files of a checkpoint: each is opened once, and its identity is kept.
//!
//! The only file of the crate that opens shards on disk. Tensors are read by the engines
//! ([`crate::ReadFile`]).

pub(crate) mod confined_dir;
pub(crate) mod identity;
mod missing;
pub(crate) mod page_cache;
pub(crate) mod read_file;
pub(crate) mod residency;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::{ConfinedDir, FileSystem, Identity, Source, commit_in_cache};
use crate::error::{Error, ErrorKind, Result};
use crate::files::{is_network, open_plain, retry_transient, usual_retries};
use crate::options::Location;
use crate::sync::address_space::vec_for;
use crate::sync::retry::Retries;
use crate::sync::retry_counter::RetryCounter;

/// An open file and the state it was in when it was opened. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FileSource(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    location: Location,
    /// Absolute path at which it was opened: stays valid if the process changes its working
    /// directory.
    path: PathBuf,
    file: File,
    identity: Identity,
    file_system: FileSystem,
    retries: Retries,
    retry_counter: RetryCounter,
}

impl FileSource {
    /// Opens a regular file.
    ///
    /// # Errors
    ///
    /// The file does not exist, is not readable, or is not a regular file
    /// ([`ErrorKind::InvalidRequest`]).
    pub fn open(location: &Location) -> Result<Self> {
        Self::open_with(location, None)
    }

    /// Like [`Self::open`], with the number of retries, which also applies to reads of the file.
    /// `None` means 8 on network file systems, where errors may be transient, and 0 on others.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_with(location: &Location, retries: Option<u32>) -> Result<Self> {
        Self::open_in(None, location, retries)
    }

    /// Like [`Self::open_with`], for a file that must resolve to a path inside `root`, if one is
    /// given.
    ///
    /// # Errors
    ///
    /// As [`Self::open`]; [`ErrorKind::PermissionDenied`] for a file outside of `root`.
    pub fn open_in(
        root: Option<&ConfinedDir>,
        location: &Location,
        retries: Option<u32>,
    ) -> Result<Self> {
        let (path, retry_counter) = (path_of(location)?, RetryCounter::default());
        let (file, metadata) = retry_transient(
            &retry_counter,
            || retries.map_or_else(|| usual_retries(is_network(path)), Retries::up_to),
            || open_regular(root, location),
        )?;
        let file_system =
            FileSystem::for_file(&file).map_err(|error| error.with_location(location))?;
        Ok(Self(Arc::new(Opened {
            location: location.clone(),
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            identity: Identity::from_metadata(&metadata),
            file,
            retries: retries.map_or_else(|| usual_retries(file_system.network), Retries::up_to),
            file_system,
            retry_counter,
        })))
    }

    /// Returns the counter of retries outside the data path.
    pub fn retry_counter(&self) -> &RetryCounter {
        &self.0.retry_counter
    }

    /// Returns how often failed operations are retried.
    pub fn retries(&self) -> Retries {
        self.0.retries
    }

    /// Returns the identity that the file had when it was opened.
    pub fn identity(&self) -> Identity {
        self.0.identity
    }

    /// Returns the file system that holds the file.
    pub fn file_system(&self) -> &FileSystem {
        &self.0.file_system
    }

    /// Returns the open file, for buffered reads.
    pub fn file(&self) -> &File {
        &self.0.file
    }

    /// Like [`Self::verify_unchanged`], with `opened` to check the open file. `opened` is called
    /// only if the path no longer leads to the file as it was opened.
    pub(super) fn verify_unless_in_place(&self, opened: impl FnOnce() -> Result<()>) -> Result<()> {
        let found = Identity::at(&self.0.path);
        if found.as_ref().is_ok_and(|found| *found == self.0.identity) {
            return Ok(());
        }
        opened()?;
        found.map_or(Ok(()), |found| self.verify(found))
    }

    /// Like [`Self::verify_unchanged`], and requires the file to still exist at its path: for
    /// claims about what is at the path.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] also when the file was removed since.
    pub fn verify_present(&self) -> Result<()> {
        self.verify_unchanged()?;
        let once =
            || Identity::at(&self.0.path).map_err(|error| cannot_open(error, &self.0.location));
        match retry_transient(&self.0.retry_counter, || self.0.retries, once) {
            Ok(found) => self.verify(found),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::new(
                ErrorKind::Changed,
                "changed while it was read: it was removed",
            )
            .with_location(&self.0.location)
            .with_hint("load again when no process is writing to the checkpoint")),
            Err(error) => Err(error),
        }
    }

    pub(super) fn verify(&self, found: Identity) -> Result<()> {
        if found == self.0.identity {
            return Ok(());
        }
        let mixed = "load again when no process is writing to the checkpoint; the loaded tensors may mix old and new bytes";
        let (what, hint) = if !found.is_same_file(&self.0.identity) {
            (
                "it was replaced by another file".to_owned(),
                "load again; the new file was not read, but other files of the checkpoint may already be new ones",
            )
        } else if found.len != self.0.identity.len {
            let (was, is) = (self.0.identity.len, found.len);
            (
                format!("its length changed from {was} to {is} bytes"),
                mixed,
            )
        } else {
            ("its modification time changed".to_owned(), mixed)
        };
        Err(Error::new(
            ErrorKind::Changed,
            format!("changed while it was read: {what}"),
        )
        .with_location(&self.0.location)
        .with_hint(hint))
    }
}

impl Source for FileSource {
    fn location(&self) -> &Location {
        &self.0.location
    }

    fn len(&self) -> u64 {
        self.0.identity.len
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let available = self.0.identity.len.saturating_sub(offset);
        let len = usize::try_from(available).map_or(len, |available| len.min(available));
        let range = offset..offset + len as u64;
        let bytes = retry_transient(
            &self.0.retry_counter,
            || self.0.retries,
            || {
                let mut bytes = vec_for(len)?;
                bytes.resize(len, 0);
                self.0
                    .file
                    .read_exact_at(&mut bytes, offset)
                    .map(|()| bytes)
                    .map_err(|error| {
                        if error.kind() == io::ErrorKind::UnexpectedEof {
                            let message = "the file is shorter than when it was opened";
                            Error::new(ErrorKind::Changed, message)
                                .with_hint("load again when no process is writing to it")
                        } else {
                            Error::from_io("cannot read", error)
                        }
                    })
            },
        );
        bytes.map_err(|error| error.with_location(&self.0.location).with_range(range))
    }

    /// Checks that the file is still in the state in which it was opened, and that its path does
    /// not lead to another file. A file that was removed passes.
    fn verify_unchanged(&self) -> Result<()> {
        self.verify_unless_in_place(|| {
            let once = || status(&self.0.file, &self.0.location);
            self.verify(retry_transient(
                &self.0.retry_counter,
                || self.0.retries,
                once,
            )?)
        })
    }

    fn is(&self, other: &dyn Source) -> bool {
        other
            .as_file()
            .is_some_and(|other| other.identity() == self.identity())
    }

    /// Returns the time of the last modification. The numbers of device and inode do not count:
    /// they differ between machines that share a file system.
    fn validator(&self) -> String {
        let (seconds, nanoseconds) = self.identity().modified;
        format!("modified {seconds}.{nanoseconds:09}")
    }

    /// Returns the commit that the file is of, if it is in the cache of a hub.
    fn commit_name(&self) -> Option<&str> {
        commit_in_cache(self.0.location.as_path()?)
    }

    fn as_file(&self) -> Option<&FileSource> {
        Some(self)
    }
}

/// Returns the identity of a file that was opened at `location`.
pub(super) fn status(file: &File, location: &Location) -> Result<Identity> {
    Identity::now(file).map_err(|error| {
        Error::from_io("cannot read the file's status", error).with_location(location)
    })
}

/// Returns the path of a location that is on a file system.
pub fn path_of(location: &Location) -> Result<&Path> {
    location
        .as_path()
        .ok_or_else(|| Error::unsupported("is not on a file system").with_location(location))
}

/// Opens a regular file for buffered reads, confined to `root` if one is given, and returns its
/// metadata.
pub(super) fn open_regular(
    root: Option<&ConfinedDir>,
    location: &Location,
) -> Result<(File, std::fs::Metadata)> {
    let file = match root {
        Some(root) => root.open_file(location)?,
        None => open_plain(path_of(location)?).map_err(|error| cannot_open(error, location))?,
    };
    regular(file, location)
}

/// Returns a file that [`open_plain`] has opened, and its metadata, if it is a regular one.
fn regular(file: File, location: &Location) -> Result<(File, std::fs::Metadata)> {
    let metadata = file.metadata().map_err(|error| {
        Error::from_io("cannot read the file's status", error).with_location(location)
    })?;
    if !metadata.is_file() {
        return Err(irregular(metadata.file_type(), location));
    }
    // Reads may block from here on. Left on, the flag makes io_uring answer EAGAIN instead of
    // waiting wherever the file system cannot read without blocking (overlayfs, squashfs, FUSE).
    rustix::fs::fcntl_setfl(&file, OFlags::empty()).map_err(|errno| {
        Error::from_io("cannot set the file's flags", errno.into()).with_location(location)
    })?;
    Ok((file, metadata))
}

/// Error for a path that is not a regular file.
fn irregular(kind: std::fs::FileType, location: &Location) -> Error {
    let (what, hint) = if kind.is_dir() {
        (
            "a directory",
            "to load it, pass its path alone, as a list names the files of one checkpoint; inside a checkpoint, \
             rename it, because only files may have this name there",
        )
    } else {
        let what = if kind.is_fifo() {
            "a FIFO"
        } else if kind.is_socket() {
            "a socket"
        } else {
            "a device"
        };
        (
            what,
            "checkpoints are read out of order: copy the bytes into a regular file",
        )
    };
    let message = format!("is not a regular file but {what}");
    Error::invalid_request(message)
        .with_location(location)
        .with_hint(hint)
}

/// Opens the file behind `file`, which was once found at `path`, for direct I/O.
#[cfg(target_os = "linux")]
pub(super) fn open_direct(file: &File, path: &Path) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC);
    // Opens the same inode even if the path leads elsewhere by now. Without /proc the path must do;
    // the caller compares identities.
    match options.open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => options.open(path),
        opened => opened,
    }
}

/// Fails: only Linux has direct I/O as a flag of `open`.
#[cfg(not(target_os = "linux"))]
pub(super) fn open_direct(_file: &File, _path: &Path) -> io::Result<File> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Descriptors that a load needs besides those of its files: rings, sockets, files that the program
/// has open. (An estimate of 2026-11.)
const OTHER_DESCRIPTORS: u64 = 64;

/// Most descriptors per file: one for buffered and one for direct reads.
const DESCRIPTORS_EACH: u64 = 2;

/// Returns the number of descriptors that a process needs for a checkpoint of `files` files.
pub fn descriptors(files: usize) -> u64 {
    OTHER_DESCRIPTORS + DESCRIPTORS_EACH * files as u64
}

/// Adds the number of descriptors needed to an error of opening one of `files` files, if it is
/// about too few descriptors; else returns it unchanged.
pub fn of_many(error: Error, files: usize) -> Error {
    if error.errno() != Some(libc::EMFILE) {
        return error;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    error.with_hint(more_descriptors(files, limit.current, limit.maximum))
}

/// Returns the hint for a limit of `current` descriptors, which an unprivileged process may raise
/// to `most`.
fn more_descriptors(files: usize, current: Option<u64>, most: Option<u64>) -> String {
    let shown =
        |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |it| it.to_string());
    let wanted = descriptors(files);
    let hint = format!(
        "the limit of open files is {}; a checkpoint of {files} files needs {wanted}: ulimit -n {wanted}",
        shown(current)
    );
    if most.is_none_or(|most| most >= wanted) {
        return hint;
    }
    let most = shown(most);
    format!(
        "{hint}, as root, since the hard limit is {most} (LimitNOFILE= of a service, docker run --ulimit nofile={wanted})"
    )
}

/// Returns the error for a file that cannot be opened.
pub fn cannot_open(error: io::Error, location: &Location) -> Error {
    if error.raw_os_error() == Some(libc::ENXIO) {
        // ENXIO is the error of a socket, and of a device that does not exist.
        let found = location.as_path().map(std::fs::metadata);
        if let Some(Ok(metadata)) = found {
            return irregular(metadata.file_type(), location).with_source(error);
        }
    }
    let hint = match error.raw_os_error() {
        Some(libc::ENOENT) => Some(missing::missing_hint(location)),
        Some(libc::EACCES | libc::EPERM) => {
            Some("let this user read the file and enter its directories".to_owned())
        }
        Some(libc::EMFILE) => Some("raise the limit of open files (ulimit -n)".to_owned()),
        Some(libc::ENFILE) => {
            Some("the whole system has too many files open: raise sysctl fs.file-max".to_owned())
        }
        _ => None,
    };
    let error = Error::from_io("cannot open", error).with_location(location);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_hint_names_limit_and_need() {
        assert_eq!(
            more_descriptors(100, Some(64), Some(4096)),
            "the limit of open files is 64; a checkpoint of 100 files needs 264: ulimit -n 264"
        );
        let hint = more_descriptors(100, Some(64), Some(64));
        assert!(
            hint.contains("the hard limit is 64 (LimitNOFILE="),
            "{hint}"
        );
        let other = Error::new(ErrorKind::Io, "x").with_hint("y");
        assert_eq!(of_many(other, 3).hint(), Some("y"));
    }
}
