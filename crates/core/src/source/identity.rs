//! What tells one file, and one state of it, from another.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Length, bytes.
    pub len: u64,
    /// Time of the last change, seconds and nanoseconds since 1970.
    pub modified: (i64, i64),
}

impl Identity {
    /// Of an open file as it is now: a network file system is asked, whatever it said a moment ago.
    pub(super) fn now(file: &File) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if let Some(found) = ask(file, Path::new(""), rustix::fs::AtFlags::EMPTY_PATH)? {
            return Ok(found);
        }
        file.metadata().map(|metadata| Self::of(&metadata))
    }

    /// Of what is at a path now, wherever links lead: in the same way.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if let Some(found) = ask(rustix::fs::CWD, path, rustix::fs::AtFlags::empty())? {
            return Ok(found);
        }
        std::fs::metadata(path).map(|metadata| Self::of(&metadata))
    }

    pub(super) fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    /// Whether both are of one file, in whatever state.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// None from old kernels, and in sandboxes that know only the older call.
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
