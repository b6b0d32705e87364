//! Records the source, and its state, from which a finished file was copied: the next copy skips
//! the file only if the record matches and the file has not been changed since.
//!
//! A record is an extended attribute of the file, so it is moved and removed with it, and a
//! directory holds nothing but the copied files. Where a file system has no such attributes (ramfs,
//! tmpfs before Linux 6.6, NFS before 4.2, some FUSE), it is a hidden file beside it. Called by
//! `target`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, Mode, OFlags, Stat, XattrFlags, fgetxattr, fremovexattr, fsetxattr, fstat, openat,
    renameat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::journal::Origin;
use super::paths;

/// Permissions of new files, before the umask.
pub(super) const READ_WRITE: Mode = Mode::from_raw_mode(0o666);

/// Format version. Raised when the meaning of a record changes: files with older ones are copied
/// again.
const FORMAT: u32 = 2;

/// Name of the extended attribute.
const ATTRIBUTE: &str = "user.tload.copied";

/// Maximum length of a record, bytes. Records larger than a file system accepts as an attribute (4
/// KiB on ext4) are files.
const BYTES_MAX: usize = 64 << 10;

/// Source of a finished file, and its state.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    format: u32,
    origin: Origin,
    /// State of the file when it was finished; it may have been changed or replaced since.
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Record {
    /// Creates the record of a file that was just finished and has the state `stat`.
    pub(super) fn new(origin: &Origin, stat: &Stat) -> Self {
        Self {
            format: FORMAT,
            origin: origin.clone(),
            inode: stat.st_ino,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: modified_of(stat),
        }
    }

    /// Returns the source of the file with the state `stat`, unless the file was changed.
    pub(super) fn origin_of(self, stat: &Stat) -> Option<Origin> {
        let unchanged = Self::new(&self.origin, stat) == self;
        unchanged.then_some(self.origin)
    }

    /// Reads the record of the open file called `name` in `folder`. `None` if it has no valid
    /// record: the file is then copied again.
    pub(super) fn read(file: &OwnedFd, stat: &Stat, folder: &OwnedFd, name: &str) -> Option<Self> {
        let mut text = vec![0; BYTES_MAX];
        let text = match fgetxattr(file, ATTRIBUTE, &mut text[..]) {
            Ok(len) => {
                text.truncate(len);
                text
            }
            Err(_) => read_beside(folder, name, stat.st_uid)?,
        };
        serde_json::from_slice(&text).ok()
    }

    /// Adds the record to a file that has no name yet. Returns whether the file system accepted it.
    pub(super) fn attach(&self, file: &File) -> bool {
        // A record only saves work. Whatever the error is, a file beside it serves as well.
        let is_attached = fsetxattr(file, ATTRIBUTE, &self.text(), XattrFlags::empty()).is_ok();
        if !is_attached {
            // An old record, if a crash stopped a copy right before the file got its name.
            let _ = fremovexattr(file, ATTRIBUTE);
        }
        is_attached
    }

    /// Writes the record beside the file called `name`.
    pub(super) fn put_beside(&self, folder: &OwnedFd, name: &str) -> io::Result<()> {
        let (record, fresh) = (paths::record(name), paths::next_record(name));
        unlink(folder, &fresh)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(folder, &fresh, flags, READ_WRITE)?);
        file.write_all(&self.text())?;
        file.sync_data()?;
        Ok(renameat(folder, &fresh, folder, &record)?)
    }

    /// Removes the record beside the file called `name`, if there is one.
    pub(super) fn remove_beside(folder: &OwnedFd, name: &str) -> io::Result<()> {
        unlink(folder, &paths::record(name))
    }

    fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings are JSON")
    }
}

/// Reads the hidden file if it belongs to `owner`: another user's file is not trusted.
fn read_beside(folder: &OwnedFd, name: &str, owner: u32) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, paths::record(name), flags, Mode::empty()).ok()?;
    let stat = fstat(&file).ok()?;
    if !is_regular(&stat) || stat.st_uid != owner {
        return None;
    }
    let mut text = Vec::new();
    let limit = u64::try_from(BYTES_MAX).ok()?;
    File::from(file).take(limit).read_to_end(&mut text).ok()?;
    Some(text)
}

pub(super) fn is_regular(stat: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
}

/// Returns the time of the last change, seconds and nanoseconds since 1970.
fn modified_of(stat: &Stat) -> (i64, i64) {
    let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    (stat.st_mtime, nanoseconds)
}

fn unlink(folder: &OwnedFd, name: &str) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
