//! Private mapping of a file: all processes that map the file share its pages in the page cache,
//! and nothing is copied.
//!
//! No loader can remove one hazard: when the file is truncated, touching the missing pages kills
//! the process (`SIGBUS`). While a load runs, a truncated file is an error
//! ([`FileView::populate`]); afterwards the owner of the tensors must keep the file whole.

#![expect(unsafe_code, reason = "maps files and populates their pages")]

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::address_space::require;

/// A private mapping of a whole file.
#[derive(Debug)]
pub struct FileView {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: a view is plain memory; unmapping works from any thread.
unsafe impl Send for FileView {}
// SAFETY: `&FileView` gives out the address and the length, and populating changes no byte.
unsafe impl Sync for FileView {}

impl FileView {
    /// Maps the first `bytes` bytes of `file`, at least one, to the end of the last page. Writes to
    /// a `writable` view go to private pages of the process; a write to any other view kills the
    /// process (`SIGSEGV`).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] when the file system does not support mappings,
    /// [`ErrorKind::OutOfMemory`] when the kernel has no room for one.
    pub fn new(file: impl AsFd, bytes: u64, writable: bool) -> Result<Self> {
        let len = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| bytes.max(1).checked_next_multiple_of(page_size()))
            .ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "the file is too large to map"))?;
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // NORESERVE: a page takes memory only once it is written to.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let mapped = require(len).and_then(|()| {
            // SAFETY: a null hint and a fresh mapping: no existing memory is touched.
            let mapped = unsafe { mmap(ptr::null_mut(), len, protection, flags, file, 0) };
            Ok(mapped?)
        });
        let start = mapped.map_err(|error| {
            let kind = match error.raw_os_error() {
                Some(libc::ENODEV | libc::EACCES) => ErrorKind::Unsupported,
                Some(libc::ENOMEM) => ErrorKind::OutOfMemory,
                _ => ErrorKind::Io,
            };
            Error::new(kind, "cannot map the file")
                .with_hint("use ‹cache=auto›")
                .with_source(error)
        })?;
        let start = NonNull::new(start.cast()).expect("mmap never returns null");
        Ok(Self {
            start,
            len,
            writable,
        })
    }

    /// Pointer to the file's first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes, whole pages.
    #[expect(clippy::len_without_is_empty, reason = "a view is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the owner may write to it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Reads the pages of `len` bytes at `offset` into memory and maps them, so that touching them
    /// does not fault.
    ///
    /// Does nothing, silently, on kernels older than 5.14: the pages are then read at first touch.
    ///
    /// # Errors
    ///
    /// `EFAULT` when the file has become shorter, or cannot be read.
    pub fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "pages outside of the view"
        );
        let inner = offset % page_size();
        // SAFETY: inside the view, asserted above.
        let from = unsafe { self.start.add(offset - inner) };
        // SAFETY: the range is the view's own; reading pages in changes no byte.
        unsafe { populate(from.as_ptr(), len + inner) }
    }
}

impl Drop for FileView {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and no other owner is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Reads and maps every page of the range.
///
/// # Safety
///
/// The range must be a mapping that the caller owns.
#[cfg(target_os = "linux")]
unsafe fn populate(start: *mut u8, len: usize) -> io::Result<()> {
    use rustix::io::Errno;
    use rustix::mm::{Advice, madvise};
    loop {
        // SAFETY: the caller's promise; populating for reads changes no byte.
        match unsafe { madvise(start.cast(), len, Advice::LinuxPopulateRead) } {
            Ok(()) | Err(Errno::INVAL) => return Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the Linux version can fail")]
unsafe fn populate(_start: *mut u8, _len: usize) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::*;
    use crate::RegionWriter;

    fn file(len: usize) -> std::fs::File {
        let mut file = tempfile::tempfile().expect("a temporary file");
        let bytes: Vec<u8> = (0..len)
            .map(|at| u8::try_from(at % 251).expect("small"))
            .collect();
        file.write_all(&bytes).expect("room");
        file
    }

    #[test]
    fn view_region_exposes_file_bytes_read_only() {
        let view = FileView::new(file(10_000), 10_000, false).expect("maps");
        let mut writer = RegionWriter::over(&Arc::new(view), 4096, 5904, 1);
        let lease = writer.carve(5904);
        assert!(lease.is_view());
        let filled = lease.populate(5904).expect("is there");
        let expected: Vec<u8> = (4096..10_000)
            .map(|at| u8::try_from(at % 251).expect("small"))
            .collect();
        assert_eq!(filled.bytes(), expected);
        assert!(!filled.region().expect("a region").0.is_writable());
    }

    #[test]
    #[should_panic(expected = "a load never writes to a view")]
    fn view_as_uninit_panics() {
        let view = FileView::new(file(4096), 4096, true).expect("maps");
        let _ = RegionWriter::over(&Arc::new(view), 0, 4096, 1)
            .carve(4096)
            .as_uninit();
    }

    #[test]
    fn view_populate_truncated_file_returns_efault() {
        let file = file(3 * 4096);
        let view = FileView::new(&file, 3 * 4096, false).expect("maps");
        file.set_len(4096).expect("truncates");
        view.populate(0, 4096).expect("still there");
        let error = view.populate(4096, 4096).expect_err("gone");
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
