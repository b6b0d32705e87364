//! Which bytes of a file are in the page cache, and dropping them from it.
//!
//! For loads, which copy what is there; for benches, which must prove "cold"; for `tload doctor`. Linux answers; other systems say
//! that they cannot.

#![cfg_attr(
    target_os = "linux",
    expect(
        unsafe_code,
        reason = "cachestat(2) has no safe wrapper; mincore(2) needs a mapping"
    )
)]

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rustix::param::page_size;

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

/// How many bytes of the pages that hold `len` bytes at `offset` are in the page cache, if the kernel counts them (`cachestat`, Linux
/// 6.5).
pub(super) fn resident_bytes(file: &File, offset: u64, len: u64) -> Option<u64> {
    linux::cachestat(file, offset, len).map(|pages| pages * page_size() as u64)
}

/// Drops pages of `file` from the page cache, those that lie in the range as a whole. Advice only.
pub(super) fn let_go(file: &File, offset: u64, len: u64) {
    linux::let_go(file, offset, len);
}

/// Begins to read a range into the page cache. Advice only.
pub(super) fn read_ahead(file: &File, offset: u64, len: u64) {
    linux::read_ahead(file, offset, len);
}

/// Which pages of a file were in the page cache when it was asked (`mincore`).
#[derive(Debug)]
pub(super) struct PageMap {
    /// One bit a page.
    pages: Vec<u64>,
    resident_pages: u64,
    total_bytes: u64,
}

/// How many pages are looked at before a map is believed.
const SAMPLES: usize = 4;

/// Copying a page from the page cache takes less than this even on a slow machine, reading one from a disk more.
const COPIED_WITHIN: Duration = Duration::from_micros(30);

impl PageMap {
    /// Asks about all of `file`; none if the system does not answer.
    pub(super) fn of(file: &File, total_bytes: u64) -> Option<Self> {
        let bytes = linux::mincore(file, total_bytes).ok()?;
        Some(Self::new(&bytes, total_bytes))
    }

    /// A map of what `mincore` said: the lowest bit of one byte a page.
    fn new(bytes: &[u8], total_bytes: u64) -> Self {
        let mut pages = vec![0_u64; bytes.len().div_ceil(64)];
        for (page, byte) in bytes.iter().enumerate() {
            pages[page / 64] |= u64::from(byte & 1) << (page % 64);
        }
        let resident_pages = pages.iter().map(|word| u64::from(word.count_ones())).sum();
        Self {
            pages,
            resident_pages,
            total_bytes,
        }
    }

    fn has(&self, page: u64) -> bool {
        usize::try_from(page / 64)
            .ok()
            .and_then(|word| self.pages.get(word))
            .is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// Bytes of the pages that hold `len` bytes at `offset`: those that were there, and all.
    pub(super) fn counts(&self, offset: u64, len: usize) -> (u64, u64) {
        let page = page_size() as u64;
        let end = (offset + len as u64).min(self.total_bytes);
        let pages = offset / page..end.div_ceil(page);
        let all = pages.clone().count() as u64;
        let there = pages.filter(|page| self.has(*page)).count() as u64;
        (there * page, all * page)
    }

    /// How many bytes were there.
    pub(super) fn resident_bytes(&self) -> u64 {
        (self.resident_pages * page_size() as u64).min(self.total_bytes)
    }

    /// Of how many.
    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Whether a few pages that should be there really are: since Linux 5.0 `mincore` says "resident" of every page of a file that
    /// the caller could not write to, and file systems of sandboxes say what they like.
    pub(super) fn is_trustworthy(&self, file: &File) -> bool {
        let total = self.pages.len() as u64 * 64;
        let step = (total / SAMPLES as u64).max(1);
        let first_of = |from: u64| (from..(from + step).min(total)).find(|page| self.has(*page));
        (0..total)
            .step_by(usize::try_from(step).unwrap_or(usize::MAX))
            .filter_map(first_of)
            .all(|page| linux::is_resident(file, page * page_size() as u64, COPIED_WITHIN))
    }
}

fn open(path: &Path) -> Result<File> {
    super::file::open_plain(path)
        .map_err(|error| Error::from_io("cannot open", error).with_location(path.display()))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::IoSliceMut;
    use std::num::NonZeroU64;
    use std::os::fd::AsRawFd;
    use std::ptr;
    use std::time::{Duration, Instant};

    use rustix::fs::Advice;
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
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
        let (pages, method) = if let Some(pages) = cachestat(file, 0, total_bytes) {
            (pages, "cachestat")
        } else {
            let pages = mincore(file, total_bytes)?;
            let resident = pages.iter().map(|page| u64::from(page & 1)).sum();
            (resident, "mincore")
        };
        let resident_bytes = (pages * page_size() as u64).min(total_bytes);
        Ok(Residency {
            resident_bytes,
            total_bytes,
            method,
        })
    }

    /// How many pages of the range are there. The kernel takes a length of 0 for "to the end".
    pub(super) fn cachestat(file: &File, offset: u64, len: u64) -> Option<u64> {
        if len == 0 {
            return Some(0);
        }
        let range = Range { offset, len };
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

    /// What `mincore` says of each page.
    pub(super) fn mincore(file: &File, len: u64) -> Result<Vec<u8>> {
        let bytes = usize::try_from(len)
            .map_err(|_| Error::new(ErrorKind::Unsupported, "the file is too large to map"))?;
        if bytes == 0 {
            return Ok(Vec::new());
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
        Ok(pages)
    }

    /// Whether a page comes without waiting for a device.
    pub(super) fn is_resident(file: &File, offset: u64, copied_within: Duration) -> bool {
        let mut byte = [0_u8];
        let mut read = |flags| preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, flags);
        match read(ReadWriteFlags::NOWAIT) {
            Ok(_) => true,
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                let since = Instant::now();
                read(ReadWriteFlags::empty()).is_ok() && since.elapsed() < copied_within
            }
            Err(_) => false,
        }
    }

    pub(super) fn let_go(file: &File, offset: u64, len: u64) {
        // Pages that somebody maps or writes stay, whatever is asked.
        let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(len), Advice::DontNeed);
    }

    pub(super) fn read_ahead(file: &File, offset: u64, len: u64) {
        // Without it reads come one after another.
        let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(len), Advice::WillNeed);
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
    use std::time::Duration;

    use super::Residency;
    use crate::error::{Error, ErrorKind, Result};

    pub(super) fn residency(_file: &File) -> Result<Residency> {
        Err(unsupported())
    }

    pub(super) fn evict(_file: &File) -> Result<()> {
        Err(unsupported())
    }

    pub(super) fn cachestat(_file: &File, _offset: u64, _len: u64) -> Option<u64> {
        None
    }

    pub(super) fn mincore(_file: &File, _len: u64) -> Result<Vec<u8>> {
        Err(unsupported())
    }

    pub(super) fn is_resident(_file: &File, _offset: u64, _copied_within: Duration) -> bool {
        false
    }

    pub(super) fn let_go(_file: &File, _offset: u64, _len: u64) {}

    pub(super) fn read_ahead(_file: &File, _offset: u64, _len: u64) {}

    fn unsupported() -> Error {
        Error::new(
            ErrorKind::Unsupported,
            "only Linux tells which pages of a file are cached",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_counts_pages_up_to_the_end_of_the_file() {
        let page = page_size() as u64;
        let mut said = vec![1_u8; 130];
        said[64] = 0;
        let map = PageMap::new(&said, 129 * page + 5);
        assert_eq!(map.counts(0, page_size() * 64), (64 * page, 64 * page));
        assert_eq!(map.counts(0, page_size() * 64 + 1), (64 * page, 65 * page));
        assert_eq!(map.counts(64 * page + 1, 1), (0, page));
        let to_the_end = map.counts(65 * page, page_size() * 100);
        assert_eq!(to_the_end, (65 * page, 65 * page));
        assert_eq!(map.resident_bytes(), 129 * page);
    }

    #[test]
    fn what_mincore_says_is_believed_only_after_a_look() {
        use std::io::Write;
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&vec![1; 1 << 20]).expect("room");
        let map = PageMap::of(&file, 1 << 20).expect("mincore answers");
        if map.resident_bytes() > 0 {
            assert!(map.is_trustworthy(&file), "just written");
        }
        let lie = PageMap::new(&[1; 256], 1 << 20);
        file.sync_all().expect("written back");
        let_go(&file, 0, 1 << 20);
        let gone = resident_bytes(&file, 0, 1 << 20).is_none_or(|bytes| bytes == 0);
        if gone && !linux::is_resident(&file, 0, Duration::ZERO) {
            assert!(!lie.is_trustworthy(&file));
        }
    }
}
