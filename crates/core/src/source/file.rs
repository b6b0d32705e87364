//! A file of a checkpoint: opened once, its identity kept.
//!
//! The only file of the crate that opens shards on disk. Reading tensors is the engines' work ([`super::ReadFile`]).

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::file_system::is_network;
use super::{FileSystem, Identity, Location, Root, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::retry::{Retries, Transient};
use crate::tally::Tally;

/// An open file and the state it was in.
#[derive(Debug)]
pub struct FileSource {
    location: Location,
    /// Where it was opened, also for a process that goes to another folder.
    path: PathBuf,
    file: File,
    identity: Identity,
    file_system: FileSystem,
    retries: Retries,
    tally: Tally,
}

impl FileSource {
    /// Opens a regular file.
    ///
    /// # Errors
    ///
    /// Not there, not readable, or not a regular file ([`ErrorKind::InvalidRequest`]).
    pub fn open(location: &Location) -> Result<Self> {
        Self::open_with(location, None)
    }

    /// The same. `retries` says how often what fails is tried again, also of reads of it; if it does not, 8 times on network file
    /// systems, where failures may pass, and never on others.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_with(location: &Location, retries: Option<u32>) -> Result<Self> {
        Self::open_in(None, location, retries)
    }

    /// The same for a file that must be in a folder, wherever links lead, if there is one.
    ///
    /// # Errors
    ///
    /// As [`Self::open`]; [`ErrorKind::PermissionDenied`] for a file that is elsewhere.
    pub(crate) fn open_in(
        root: Option<&Root>,
        location: &Location,
        retries: Option<u32>,
    ) -> Result<Self> {
        let (path, tally) = (path_of(location)?, Tally::default());
        let (file, metadata) = again_if_it_may_pass(
            &tally,
            || retries.map_or_else(|| usual_retries(is_network(path)), Retries::up_to),
            || open_regular(root, location),
        )?;
        let file_system = FileSystem::of(&file).map_err(|error| error.with_location(location))?;
        Ok(Self {
            location: location.clone(),
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            identity: Identity::of(&metadata),
            file,
            retries: retries.map_or_else(|| usual_retries(file_system.network), Retries::up_to),
            file_system,
            tally,
        })
    }

    /// What was tried again beside reads of tensors.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// How often what fails is tried again.
    pub fn retries(&self) -> Retries {
        self.retries
    }

    /// The state it was in when it was opened.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The file system it is on.
    pub fn file_system(&self) -> &FileSystem {
        &self.file_system
    }

    /// The open file, for buffered reads.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether the file is still in the state in which it was opened, and no other is at its path. One that was removed is whole.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] when somebody wrote to it since, or put another file in its place.
    pub fn verify_unchanged(&self) -> Result<()> {
        self.verify_unless_in_place(|| {
            let once = || status(&self.file, &self.location);
            self.verify(again_if_it_may_pass(&self.tally, || self.retries, once)?)
        })
    }

    /// The same, where `opened` asks the open file. That takes a second question only if what is at the path is not what was opened.
    pub(super) fn verify_unless_in_place(&self, opened: impl FnOnce() -> Result<()>) -> Result<()> {
        let found = Identity::at(&self.path);
        if found.as_ref().is_ok_and(|found| *found == self.identity) {
            return Ok(());
        }
        opened()?;
        found.map_or(Ok(()), |found| self.verify(found))
    }

    /// The same, and whether it is still there: for who says something of what is at the path.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] also when it was removed since.
    pub(crate) fn verify_in_place(&self) -> Result<()> {
        self.verify_unchanged()?;
        let once = || Identity::at(&self.path).map_err(|error| cannot_open(error, &self.location));
        match again_if_it_may_pass(&self.tally, || self.retries, once) {
            Ok(found) => self.verify(found),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::new(
                ErrorKind::Changed,
                "changed while it was read: it is no longer there",
            )
            .with_location(&self.location)
            .with_hint("load again when nobody writes to the checkpoint")),
            Err(error) => Err(error),
        }
    }

    pub(super) fn verify(&self, found: Identity) -> Result<()> {
        if found == self.identity {
            return Ok(());
        }
        let mixed = "load again when nobody writes to the checkpoint; what was loaded may mix old and new bytes";
        let (what, hint) = if !found.is_same_file(&self.identity) {
            (
                "another file took its place".to_owned(),
                "load again; nothing was read of the new file, but other files of the checkpoint may be new ones already",
            )
        } else if found.len != self.identity.len {
            let (was, is) = (self.identity.len, found.len);
            (format!("its length went from {was} to {is} bytes"), mixed)
        } else {
            ("its modification time moved".to_owned(), mixed)
        };
        Err(Error::new(
            ErrorKind::Changed,
            format!("changed while it was read: {what}"),
        )
        .with_location(&self.location)
        .with_hint(hint))
    }
}

impl Source for FileSource {
    fn location(&self) -> &Location {
        &self.location
    }

    fn len(&self) -> u64 {
        self.identity.len
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let available = self.identity.len.saturating_sub(offset);
        let len = usize::try_from(available).map_or(len, |available| len.min(available));
        let range = offset..offset + len as u64;
        let bytes = again_if_it_may_pass(
            &self.tally,
            || self.retries,
            || {
                let mut bytes = vec![0; len];
                self.file
                    .read_exact_at(&mut bytes, offset)
                    .map(|()| bytes)
                    .map_err(|error| {
                        if error.kind() == io::ErrorKind::UnexpectedEof {
                            let message = "the file ended before its length at opening";
                            Error::new(ErrorKind::Changed, message)
                                .with_hint("load again when nobody writes to it")
                        } else {
                            Error::from_io("cannot read", error)
                        }
                    })
            },
        );
        bytes.map_err(|error| error.with_location(&self.location).with_range(range))
    }
}

/// As long as whoever looks after the server needs, where that may help.
fn usual_retries(is_network: bool) -> Retries {
    if is_network {
        Retries::default().in_mid_load()
    } else {
        Retries::NONE
    }
}

/// The state of a file that was opened at `location`.
pub(super) fn status(file: &File, location: &Location) -> Result<Identity> {
    Identity::now(file).map_err(|error| {
        Error::from_io("cannot read the file's status", error).with_location(location)
    })
}

/// Does `once`, and again after a pause while it fails in a way that may pass. On the calling thread: few and small reads.
pub(super) fn again_if_it_may_pass<T>(
    tally: &Tally,
    retries: impl Fn() -> Retries,
    once: impl Fn() -> Result<T>,
) -> Result<T> {
    let mut failed = 0;
    loop {
        let error = match once() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let Some(what) = error.errno().and_then(Transient::of_errno) else {
            return Err(error);
        };
        failed += 1;
        let Some(pause) = retries().wait(what, failed, None, fastrand::u32(..)) else {
            return Err(given_up(error, failed));
        };
        tracing::debug!(%error, ?pause, "tried again");
        tally.tried_again(&error);
        // Nobody ever sends anything.
        let _ = crossbeam_channel::never::<()>().recv_timeout(pause);
    }
}

/// The error of the last of so many tries.
fn given_up(error: Error, tries: u32) -> Error {
    if tries < 2 {
        return error;
    }
    let what = error.hint().unwrap_or("look at the mount and its server");
    let hint = format!("it was tried {tries} times (retries=): {what}");
    error.with_hint(hint)
}

/// The path of a location that is on a file system.
pub(crate) fn path_of(location: &Location) -> Result<&Path> {
    location.as_path().ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "is not on a file system").with_location(location)
    })
}

/// Opens a regular file for buffered reads, in a folder if one is given, and says in what state it is.
pub(super) fn open_regular(
    root: Option<&Root>,
    location: &Location,
) -> Result<(File, std::fs::Metadata)> {
    let file = match root {
        Some(root) => root.open_file(location)?,
        None => open_plain(path_of(location)?).map_err(|error| cannot_open(error, location))?,
    };
    let metadata = file.metadata().map_err(|error| {
        Error::from_io("cannot read the file's status", error).with_location(location)
    })?;
    if !metadata.is_file() {
        return Err(irregular(metadata.file_type(), location));
    }
    // From here on a read may wait. Left on, the flag makes io_uring answer EAGAIN instead of waiting wherever the file
    // system cannot read without blocking (overlayfs, squashfs, FUSE).
    rustix::fs::fcntl_setfl(&file, OFlags::empty()).map_err(|errno| {
        Error::from_io("cannot set the file's flags", errno.into()).with_location(location)
    })?;
    Ok((file, metadata))
}

/// The error for what is no file, or not one that stays as it is.
fn irregular(kind: std::fs::FileType, location: &Location) -> Error {
    let (what, hint) = if kind.is_dir() {
        (
            "a folder",
            "a list names safetensors files; give a folder alone",
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
            "a checkpoint is read out of order: copy the bytes into a file",
        )
    };
    let message = format!("is not a regular file but {what}");
    Error::new(ErrorKind::InvalidRequest, message)
        .with_location(location)
        .with_hint(hint)
}

/// Opens a file for buffered reads. A FIFO does not block: it is refused by what it is, not by waiting for a writer.
pub(super) fn open_plain(path: &Path) -> io::Result<File> {
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
}

/// Opens the file that `file` is, which was once found at `path`, for reads past the page cache.
#[cfg(target_os = "linux")]
pub(super) fn open_direct(file: &File, path: &Path) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    let mut options = std::fs::OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC);
    // The same inode, wherever the path leads by now. Without /proc the path must do; the caller compares identities.
    match options.open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => options.open(path),
        opened => opened,
    }
}

/// Only Linux has direct I/O by a flag of opening.
#[cfg(not(target_os = "linux"))]
pub(super) fn open_direct(_file: &File, _path: &Path) -> io::Result<File> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// What to try when a path leads nowhere.
fn missing_hint(location: &Location) -> &'static str {
    let path = location.as_path();
    let is_id = path.is_some_and(|path| path.is_relative() && path.components().count() == 2);
    if is_id {
        "check the path; a model of the Hugging Face Hub is hf://org/name"
    } else {
        "check the path; is the volume mounted?"
    }
}

/// Descriptors that a load takes beside those of its files: rings, sockets, what the program has open. (An estimate of 2026-11.)
const OTHER_DESCRIPTORS: u64 = 64;

/// Most descriptors of one file: for reads through the page cache, and past it.
const DESCRIPTORS_EACH: u64 = 2;

/// Descriptors that a process wants for a checkpoint of so many files.
pub(crate) fn descriptors(files: usize) -> u64 {
    OTHER_DESCRIPTORS + DESCRIPTORS_EACH * files as u64
}

/// The same error of opening one of `files` files. If there are too few descriptors, with how many are wanted.
pub(crate) fn of_many(error: Error, files: usize) -> Error {
    if error.errno() != Some(libc::EMFILE) {
        return error;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    error.with_hint(more_descriptors(files, limit.current, limit.maximum))
}

/// What to do about a limit of `current` descriptors, which an unprivileged process may raise to `most`.
fn more_descriptors(files: usize, current: Option<u64>, most: Option<u64>) -> String {
    let shown =
        |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |it| it.to_string());
    let wanted = descriptors(files);
    let hint = format!(
        "the limit of open files is {}; a checkpoint of {files} files wants {wanted}: ulimit -n {wanted}",
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

/// The error for a file that cannot be opened.
pub(crate) fn cannot_open(error: io::Error, location: &Location) -> Error {
    if error.raw_os_error() == Some(libc::ENXIO) {
        // A socket, or a device that is not there.
        let found = location.as_path().map(std::fs::metadata);
        if let Some(Ok(metadata)) = found {
            return irregular(metadata.file_type(), location).with_source(error);
        }
    }
    let hint = match error.raw_os_error() {
        Some(libc::ENOENT) => Some(missing_hint(location)),
        Some(libc::EACCES | libc::EPERM) => {
            Some("let this user read the file and enter its folders")
        }
        Some(libc::EMFILE) => Some("raise the limit of open files (ulimit -n)"),
        Some(libc::ENFILE) => {
            Some("the whole system has too many files open: raise sysctl fs.file-max")
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
    fn the_limit_and_what_is_wanted_are_named() {
        assert_eq!(
            more_descriptors(100, Some(64), Some(4096)),
            "the limit of open files is 64; a checkpoint of 100 files wants 264: ulimit -n 264"
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
