//! File that is written with direct I/O, past the page cache, where its file system can.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::file_error;
use crate::error::Result;
use crate::step;
use crate::target::{ALIGNMENT, Buffer};

/// New file. Several threads write to it.
#[derive(Debug)]
pub(super) struct DirectFile {
    path: PathBuf,
    file: File,
    /// Opened for direct I/O; `None` if the file system has none.
    direct: Option<File>,
    refuses: AtomicBool,
}

impl DirectFile {
    /// Creates the file, and reserves space for `len` bytes: file systems let only writes below the
    /// end of a file run side by side.
    pub(super) fn create(path: &Path, len: Option<u64>) -> Result<Self> {
        let failed = |error: io::Error| file_error("cannot create", path, error);
        let file = File::create_new(path).map_err(failed)?;
        if let Some(len) = len.filter(|&len| len > 0) {
            // A full disk is an error now, not after most of the bytes. Other refusals are those of
            // file systems that cannot reserve.
            let reserved = fallocate(&file, FallocateFlags::empty(), 0, len);
            if let Err(Errno::NOSPC | Errno::DQUOT) = reserved {
                let full = io::Error::from(io::ErrorKind::StorageFull);
                return Err(file_error("no space to write", path, full));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            direct: open_direct(path),
            refuses: AtomicBool::new(false),
        })
    }

    /// Writes the first `len` bytes of `buffer`.
    pub(super) fn write(&self, offset: u64, buffer: &mut Buffer, len: usize) -> io::Result<()> {
        step::reach();
        if let Some(direct) = self.direct.as_ref().filter(|_| self.is_direct()) {
            // The rest of a disk's sector is cut off again at the end.
            let padded = len.next_multiple_of(ALIGNMENT);
            buffer.bytes_mut()[len..padded].fill(0);
            match direct.write_all_at(buffer.bytes(padded), offset) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.refuses.store(true, Ordering::Relaxed);
                }
                written => return written,
            }
        }
        self.file.write_all_at(buffer.bytes(len), offset)
    }

    /// Cuts the file to `len` bytes and waits until it is stored.
    pub(super) fn finish(&self, len: u64) -> Result<()> {
        let failed = |error| file_error("cannot write", &self.path, error);
        step::reach();
        self.file.set_len(len).map_err(failed)?;
        step::reach();
        self.file.sync_all().map_err(failed)?;
        step::reach();
        Ok(())
    }

    /// Returns whether it is written with direct I/O.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_some() && !self.refuses.load(Ordering::Relaxed)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens a file for direct I/O; `None` if its file system or the operating system has none.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;

    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let mut options = File::options();
    options.write(true).custom_flags(flags).open(path).ok()
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path) -> Option<File> {
    None
}
