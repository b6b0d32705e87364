//! Which bytes of a file are in the page cache, and dropping them from it.
//!
//! For benches that must prove "cold", and for `tload doctor`. Linux answers; other systems say that they cannot.

#![cfg_attr(
    target_os = "linux",
    expect(
        unsafe_code,
        reason = "cachestat(2) has no safe wrapper; mincore(2) needs a mapping"
    )
)]

use std::path::Path;

use crate::error::{Error, Result};

/// How much of a file the page cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Bytes in the page cache, in whole pages, at most `total_bytes`.
    pub resident_bytes: u64,
    /// The file's length, bytes.
    pub total_bytes: u64,
    /// `"cachestat"` (Linux 6.5) or `"mincore"`.
    pub method: &'static str,
}

/// How much of the file at `path` the page cache holds.
///
/// # Errors
///
/// The file cannot be opened, or the system cannot tell ([`crate::ErrorKind::Unsupported`]).
pub fn residency(path: &Path) -> Result<Residency> {
    let file = open(path)?;
    linux::residency(&file).map_err(|error| error.with_location(path.display()))
}

/// Writes the file back and drops its pages from the page cache (`posix_fadvise(POSIX_FADV_DONTNEED)`).
///
/// Advice only: pages that somebody maps or writes stay. Ask [`residency`] afterwards.
///
/// # Errors
///
/// The file cannot be opened, written back or advised on.
pub fn evict(path: &Path) -> Result<()> {
    let file = open(path)?;
    linux::evict(&file).map_err(|error| error.with_location(path.display()))
}

fn open(path: &Path) -> Result<std::fs::File> {
    super::file::open_plain(path)
        .map_err(|error| Error::from_io("cannot open", error).with_location(path.display()))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::ptr;

    use rustix::fs::Advice;
    use rustix::mm::{MapFlags, ProtFlags};
    use rustix::param::page_size;

    use super::Residency;
    use crate::error::{Error, ErrorKind, Result};

    /// The same number on every machine but alpha (unified since 424).
    const SYS_CACHESTAT: libc::c_long = 451;

    #[repr(C)]
    struct Range {
        offset: u64,
        len: u64,
    }

    #[repr(C)]
    #[derive(Default)]
    struct CacheStat {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }

    pub(super) fn residency(file: &File) -> Result<Residency> {
        let total_bytes = file
            .metadata()
            .map_err(|error| Error::from_io("cannot read its length", error))?
            .len();
        let (pages, method) = match cachestat(file, total_bytes) {
            Some(pages) => (pages, "cachestat"),
            None => (mincore(file, total_bytes)?, "mincore"),
        };
        let resident_bytes = (pages * page_size() as u64).min(total_bytes);
        Ok(Residency {
            resident_bytes,
            total_bytes,
            method,
        })
    }

    fn cachestat(file: &File, len: u64) -> Option<u64> {
        let range = Range { offset: 0, len };
        let mut stat = CacheStat::default();
        // SAFETY: both structs have the kernel's layout (linux/mman.h) and outlive the call; the kernel writes `stat` only.
        let result = unsafe {
            libc::syscall(
                SYS_CACHESTAT,
                file.as_raw_fd(),
                ptr::from_ref(&range),
                ptr::from_mut(&mut stat),
                0,
            )
        };
        (result == 0).then_some(stat.cached)
    }

    fn mincore(file: &File, len: u64) -> Result<u64> {
        let bytes = usize::try_from(len)
            .map_err(|_| Error::new(ErrorKind::Unsupported, "the file is too large to map"))?;
        if bytes == 0 {
            return Ok(0);
        }
        // SAFETY: a null hint and a fresh mapping: no existing memory is touched, and the pages are never read.
        let mapped = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                0,
            )
        }
        .map_err(|errno| {
            Error::from_io("cannot map the file to ask for its pages", errno.into())
        })?;
        let mut pages = vec![0u8; bytes.div_ceil(page_size())];
        // SAFETY: the range is mapped, and the vector has one byte for each of its pages.
        let result = unsafe { libc::mincore(mapped, bytes, pages.as_mut_ptr()) };
        let failed = (result != 0).then(std::io::Error::last_os_error);
        // SAFETY: mapped above and not used any more.
        let _ = unsafe { rustix::mm::munmap(mapped, bytes) };
        if let Some(error) = failed {
            return Err(Error::from_io(
                "the system cannot say which pages are cached",
                error,
            ));
        }
        Ok(pages.iter().map(|page| u64::from(page & 1)).sum())
    }

    pub(super) fn evict(file: &File) -> Result<()> {
        // Dirty pages cannot be dropped.
        rustix::fs::fdatasync(file)
            .map_err(|errno| Error::from_io("cannot write the file back", errno.into()))?;
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)
            .map_err(|errno| Error::from_io("cannot drop its pages", errno.into()))
    }
}

#[cfg(not(target_os = "linux"))]
mod linux {
    use std::fs::File;

    use super::Residency;
    use crate::error::{Error, ErrorKind, Result};

    pub(super) fn residency(_file: &File) -> Result<Residency> {
        Err(unsupported())
    }

    pub(super) fn evict(_file: &File) -> Result<()> {
        Err(unsupported())
    }

    fn unsupported() -> Error {
        Error::new(
            ErrorKind::Unsupported,
            "only Linux tells which pages of a file are cached",
        )
    }
}
