//! Page cache residency of files: queries it, copies resident bytes, and evicts pages.
//!
//! Used by loads, which copy resident bytes; by benches, which must prove "cold"; by
//! `tload doctor`. Supported on Linux; other systems return an error.

#![cfg_attr(
    target_os = "linux",
    expect(
        unsafe_code,
        reason = "cachestat(2) has no safe wrapper; mincore(2) needs a mapping"
    )
)]

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::param::page_size;

use crate::FileSystem;
use crate::error::{Error, Result};
use crate::files::open_plain;

/// Amount of a file that is resident in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Bytes in the page cache, in whole pages, at most `total_bytes`.
    pub resident_bytes: u64,
    /// The file's length, bytes.
    pub total_bytes: u64,
    /// System call that was used: `"cachestat"` (Linux 6.5) or `"mincore"`.
    pub method: &'static str,
}

/// Returns how much of the file at `path` is resident in the page cache.
///
/// # Errors
///
/// The file cannot be opened, or the system cannot report residency
/// ([`crate::error::ErrorKind::Unsupported`]).
pub fn residency(path: &Path) -> Result<Residency> {
    let file = open(path)?;
    ask(&file).map_err(|error| error.with_location(path.display()))
}

fn ask(file: &File) -> Result<Residency> {
    let total_bytes = file
        .metadata()
        .map_err(|error| Error::from_io("cannot read its length", error))?
        .len();
    let method = Method::for_file(file, &FileSystem::for_file(file)?);
    let counted = match method {
        Method::Cachestat => linux::cachestat(file, 0, total_bytes),
        Method::Mincore => None,
    };
    // `cachestat` gives no reason when it fails. `mincore` does.
    let pages = counted.map_or_else(
        || mincore(file, 0, total_bytes).map(|found| found.pages),
        Ok,
    )?;
    Ok(Residency {
        resident_bytes: (pages * page_size() as u64).min(total_bytes),
        total_bytes,
        method: method.name(),
    })
}

/// Writes the file back and drops its pages from the page cache
/// (`posix_fadvise(POSIX_FADV_DONTNEED)`).
///
/// Advisory: pages that are mapped or being written stay. Call [`residency`] afterwards to check.
pub fn evict(path: &Path) -> Result<()> {
    let file = open(path)?;
    linux::evict(&file).map_err(|error| error.with_location(path.display()))
}

/// System call that reports which pages of a file are in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Since Linux 6.5: counts the pages of a range, in time proportional to those that are
    /// resident.
    Cachestat,
    /// Checks each page of a range, resident or not: some 40 ns each (2026-11).
    Mincore,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Cachestat => "cachestat",
            Self::Mincore => "mincore",
        }
    }

    /// Returns the method that works for `file`.
    pub(crate) fn for_file(file: &File, file_system: &FileSystem) -> Self {
        // Pages of a file on overlayfs belong to the file of a lower layer, which only a mapping
        // reaches.
        let is_front = file_system.name == "overlay";
        if !is_front && linux::cachestat(file, 0, 1).is_some() {
            Self::Cachestat
        } else {
            Self::Mincore
        }
    }

    /// Returns how many bytes of the pages that hold `len` bytes at `offset` are in the page cache;
    /// `None` if the system cannot tell.
    pub(crate) fn resident_bytes(self, file: &File, offset: u64, len: u64) -> Option<u64> {
        let pages = match self {
            Self::Cachestat => linux::cachestat(file, offset, len)?,
            Self::Mincore => mincore(file, offset, len).ok()?.pages,
        };
        Some(pages * page_size() as u64)
    }
}

/// Pages of a range that are in the page cache, as `mincore` reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) pages: u64,
    /// Offset in the file of the first of them.
    pub(crate) first: Option<u64>,
}

/// Pages per `mincore` call: each takes one byte of the stack.
const PAGES_AT_A_TIME: usize = 4096;

/// Calls `mincore` for the pages that hold `len` bytes at `offset`, a bounded number at a time.
///
/// # Errors
///
/// The file cannot be mapped, or the system call fails.
pub(crate) fn mincore(file: &File, offset: u64, len: u64) -> Result<Resident> {
    let page = page_size() as u64;
    let mut answers = [0; PAGES_AT_A_TIME];
    let mut found = Resident::default();
    let mut at = offset / page * page;
    let mut left = (offset + len).div_ceil(page) - at / page;
    if len == 0 {
        left = 0;
    }
    while left > 0 {
        let count = usize::try_from(left).map_or(PAGES_AT_A_TIME, |left| left.min(PAGES_AT_A_TIME));
        let answers = &mut answers[..count];
        linux::mincore(file, at, answers)?;
        let mut there = answers
            .iter()
            .zip(0_u64..)
            .filter(|(page, _)| **page & 1 == 1);
        if let Some((_, index)) = there.next() {
            found.first = found.first.or(Some(at + index * page));
            found.pages += 1 + there.count() as u64;
        }
        at += count as u64 * page;
        left -= count as u64;
    }
    Ok(found)
}

/// Longest time that copying a byte from the page cache takes even on a slow machine; reading one
/// from a disk takes longer.
const COPIED_WITHIN: Duration = Duration::from_micros(30);

/// Returns whether the page at `offset` can be read without waiting for a device. `mincore` alone
/// does not tell: since Linux 5.0 it reports "resident" for every page of a file that the caller
/// could not write to, and file systems of sandboxes report anything.
pub(crate) fn is_resident(file: &File, offset: u64) -> bool {
    linux::is_resident(file, offset, COPIED_WITHIN)
}

/// Copies bytes from the page cache without waiting for a device, as many as are there.
///
/// # Errors
///
/// `EAGAIN` if none are there; other errors where the system cannot tell, as on overlays and in
/// file systems in memory.
pub(crate) fn copy(file: BorrowedFd<'_>, window: &mut [u8], offset: u64) -> Result<usize, Errno> {
    linux::copy(file, window, offset)
}

/// Drops the pages of `file` that lie entirely in the range from the page cache. Advisory.
pub(crate) fn let_go(file: &File, offset: u64, len: u64) {
    linux::let_go(file, offset, len);
}

/// Tells the kernel to read nothing ahead of reads through `file`. Advisory.
pub(crate) fn disable_read_ahead(file: &File) {
    linux::disable_read_ahead(file);
}

/// Starts reading a range into the page cache. Advisory.
pub(crate) fn read_ahead(file: &File, offset: u64, len: u64) {
    linux::read_ahead(file, offset, len);
}

fn open(path: &Path) -> Result<File> {
    open_plain(path)
        .map_err(|error| Error::from_io("cannot open", error).with_location(path.display()))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::IoSliceMut;
    use std::num::NonZeroU64;
    use std::os::fd::{AsRawFd, BorrowedFd};
    use std::ptr;
    use std::time::{Duration, Instant};

    use rustix::fs::Advice;
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    use rustix::mm::{MapFlags, ProtFlags};
    use rustix::param::page_size;

    use crate::error::{Error, Result};

    /// System call number, the same on every architecture but alpha (unified since 424).
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

    /// Returns the number of resident pages in the range. The kernel takes a length of 0 for "to
    /// the end".
    pub(crate) fn cachestat(file: &File, offset: u64, len: u64) -> Option<u64> {
        if len == 0 {
            return Some(0);
        }
        let range = Range { offset, len };
        let mut stat = CacheStat::default();
        // SAFETY: both structs have the kernel's layout (linux/mman.h) and outlive the call; the
        // kernel writes `stat` only.
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

    /// Queries the pages of the file from `offset` on, a multiple of the page size. The lowest bit
    /// of each of `answers` is set if that page is resident.
    pub(crate) fn mincore(file: &File, offset: u64, answers: &mut [u8]) -> Result<()> {
        let len = answers.len() * page_size();
        // SAFETY: a null hint and a fresh mapping: no existing memory is touched, and the pages are
        // never read.
        let mapped = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                offset,
            )
        }
        .map_err(|errno| {
            Error::from_io(
                "cannot map the file to query its cached pages",
                errno.into(),
            )
        })?;
        // SAFETY: the range is mapped, and `answers` has one byte for each of its pages.
        let result = unsafe { libc::mincore(mapped, len, answers.as_mut_ptr()) };
        let failed = (result != 0).then(std::io::Error::last_os_error);
        // SAFETY: mapped above and not used any more.
        let _ = unsafe { rustix::mm::munmap(mapped, len) };
        failed.map_or(Ok(()), |error| {
            let what = "cannot query which pages are cached";
            Err(Error::from_io(what, error))
        })
    }

    /// Returns whether a page can be read without waiting for a device.
    pub(crate) fn is_resident(file: &File, offset: u64, copied_within: Duration) -> bool {
        let mut byte = [0_u8];
        let mut read = |flags| preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, flags);
        match read(ReadWriteFlags::NOWAIT) {
            Ok(_) => true,
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                let (before, since) = (Switches::now(), Instant::now());
                let is_read = read(ReadWriteFlags::empty()).is_ok();
                let elapsed = since.elapsed();
                is_read && (elapsed < copied_within || before.show_no_wait(Switches::now()))
            }
            Err(_) => false,
        }
    }

    /// Context switches of a thread since it started.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Switches {
        /// The thread waited: for a device, a lock or a server.
        pub(super) voluntary: i64,
        /// Another thread took its core.
        pub(super) involuntary: i64,
    }

    impl Switches {
        /// Returns the switches of the calling thread; 0 where the system does not count them.
        pub(super) fn now() -> Self {
            // SAFETY: the struct consists of integers, for which zero is a value.
            let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
            // SAFETY: `usage` outlives the call, which writes nothing else.
            let _ = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
            Self {
                voluntary: usage.ru_nvcsw,
                involuntary: usage.ru_nivcsw,
            }
        }

        /// Returns whether the thread has not waited until `after`, however long that took: on a
        /// busy machine it waits for its core between any two instructions. Sandboxes may not count
        /// switches, which shows nothing.
        pub(super) fn show_no_wait(self, after: Self) -> bool {
            let is_counted = after.voluntary > 0 || after.involuntary > 0;
            is_counted && after.voluntary == self.voluntary
        }
    }

    pub(crate) fn copy(
        file: BorrowedFd<'_>,
        window: &mut [u8],
        offset: u64,
    ) -> Result<usize, Errno> {
        let mut windows = [IoSliceMut::new(window)];
        preadv2(file, &mut windows, offset, ReadWriteFlags::NOWAIT)
    }

    pub(crate) fn disable_read_ahead(file: &File) {
        let _ = rustix::fs::fadvise(file, 0, None, Advice::Random);
    }

    pub(crate) fn let_go(file: &File, offset: u64, len: u64) {
        // Pages that are mapped or being written stay in any case.
        let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(len), Advice::DontNeed);
    }

    pub(crate) fn read_ahead(file: &File, offset: u64, len: u64) {
        // Without this advice, the kernel reads one range after another. Errors of advice are
        // ignored.
        let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(len), Advice::WillNeed);
    }

    pub(crate) fn evict(file: &File) -> Result<()> {
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
    use std::os::fd::BorrowedFd;
    use std::time::Duration;

    use rustix::io::Errno;

    use crate::error::{Error, Result};

    pub(crate) fn evict(_file: &File) -> Result<()> {
        Err(unsupported())
    }

    pub(crate) fn cachestat(_file: &File, _offset: u64, _len: u64) -> Option<u64> {
        None
    }

    pub(crate) fn mincore(_file: &File, _offset: u64, _answers: &mut [u8]) -> Result<()> {
        Err(unsupported())
    }

    pub(crate) fn is_resident(_file: &File, _offset: u64, _copied_within: Duration) -> bool {
        false
    }

    pub(crate) fn copy(
        _file: BorrowedFd<'_>,
        _window: &mut [u8],
        _offset: u64,
    ) -> Result<usize, Errno> {
        Err(Errno::NOTSUP)
    }

    pub(crate) fn disable_read_ahead(_file: &File) {}

    pub(crate) fn let_go(_file: &File, _offset: u64, _len: u64) {}

    pub(crate) fn read_ahead(_file: &File, _offset: u64, _len: u64) {}

    fn unsupported() -> Error {
        Error::unsupported("only Linux reports which pages of a file are cached")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn mincore_and_cachestat_agree_on_unaligned_ranges() {
        let page = page_size() as u64;
        let len = (PAGES_AT_A_TIME as u64 + 3) * page;
        let mut file = tempfile::tempfile().expect("a temporary file");
        let bytes = vec![1; usize::try_from(len).expect("16 MiB")];
        file.write_all(&bytes).expect("room");
        let found = mincore(&file, 0, len).expect("mincore answers");
        if found.pages == len / page {
            assert_eq!(found.first, Some(0));
        }
        for (offset, len) in [
            (0, 0),
            (page - 1, 2),
            (page, page),
            (page + 1, len - page - 2),
            (len - 1, 1),
        ] {
            let counted = mincore(&file, offset, len).expect("mincore answers");
            let most = (offset + len).div_ceil(page) - offset / page;
            assert!(counted.pages <= if len == 0 { 0 } else { most });
            if found.pages == bytes.len() as u64 / page {
                let [by_pages, by_count] = [Method::Mincore, Method::Cachestat]
                    .map(|method| method.resident_bytes(&file, offset, len));
                assert_eq!(by_pages, Some(counted.pages * page), "{offset}, {len}");
                assert!(by_count.is_none_or(|bytes| Some(bytes) == by_pages));
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn preempted_reads_have_not_waited() {
        use linux::Switches;
        let switches = |voluntary, involuntary| Switches {
            voluntary,
            involuntary,
        };
        let before = switches(3, 5);
        assert!(before.show_no_wait(switches(3, 6)), "preempted");
        assert!(before.show_no_wait(switches(3, 5)), "a slow machine");
        assert!(!before.show_no_wait(switches(4, 5)), "waited");
        let none = switches(0, 0);
        assert!(!none.show_no_wait(none), "not counted");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn waiting_thread_is_counted() {
        let before = linux::Switches::now();
        // Nothing is ever sent.
        let _ = crossbeam_channel::never::<()>().recv_timeout(Duration::from_millis(1));
        let after = linux::Switches::now();
        assert!(!before.show_no_wait(after));
    }

    #[test]
    fn evicted_page_is_not_resident() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&vec![1; 1 << 20]).expect("room");
        if mincore(&file, 0, 1 << 20).is_ok_and(|found| found.pages > 0) {
            // However long the read takes: a busy machine interrupts it.
            assert!(linux::is_resident(&file, 0, Duration::MAX), "just written");
        }
        file.sync_all().expect("written back");
        // A read counts as one that did not wait if the device answers while the thread has lost
        // its core, so on a busy machine one answer says nothing.
        let is_gone = |_| {
            let_go(&file, 0, 1 << 20);
            let evicted = mincore(&file, 0, 1 << 20).is_ok_and(|found| found.pages == 0);
            !evicted || !linux::is_resident(&file, 0, Duration::ZERO)
        };
        assert!((0..1000).any(is_gone));
    }
}
