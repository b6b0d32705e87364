//! Identity of a file in one state.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identity of a file in one state: equal only for the same unchanged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Length, bytes.
    pub len: u64,
    /// Time of the last modification, seconds and nanoseconds since 1970.
    pub modified: (i64, i64),
}

impl Identity {
    /// Returns the identity of an open file as it is now. Bypasses the attribute cache of a network
    /// file system.
    pub(crate) fn now(file: &File) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if let Some(found) = ask(file, Path::new(""), rustix::fs::AtFlags::EMPTY_PATH)? {
            return Ok(found);
        }
        file.metadata()
            .map(|metadata| Self::from_metadata(&metadata))
    }

    /// Returns the identity of the file at a path now, following links. Bypasses caches as
    /// [`Self::now`] does.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if let Some(found) = ask(rustix::fs::CWD, path, rustix::fs::AtFlags::empty())? {
            return Ok(found);
        }
        std::fs::metadata(path).map(|metadata| Self::from_metadata(&metadata))
    }

    pub(crate) fn from_metadata(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    /// Returns whether both identify one file, in whatever state.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Calls `statx`. Returns `None` on old kernels, and in sandboxes that know only the older call.
#[cfg(target_os = "linux")]
fn ask(
    folder: impl std::os::fd::AsFd,
    path: &Path,
    flags: rustix::fs::AtFlags,
) -> io::Result<Option<Identity>> {
    use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
    use rustix::io::Errno;

    let flags = flags | AtFlags::STATX_FORCE_SYNC;
    let wanted = StatxFlags::INO | StatxFlags::SIZE | StatxFlags::MTIME;
    match rustix::io::retry_on_intr(|| statx(&folder, path, flags, wanted)) {
        Ok(found) if StatxFlags::from_bits_retain(found.stx_mask).contains(wanted) => {
            Ok(Some(Identity {
                device: makedev(found.stx_dev_major, found.stx_dev_minor),
                inode: found.stx_ino,
                len: found.stx_size,
                modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec.into()),
            }))
        }
        Ok(_) | Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
