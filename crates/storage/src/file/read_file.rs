//! A file opened for one load, read with direct I/O, through the page cache, or as a memory-mapped
//! view.
//!
//! `prepare` opens it and engines read through it. Resident bytes are copied from the page cache,
//! read by read. When the kernel refuses direct I/O, at opening or only at the first read
//! (overlayfs on squashfs does that), the file is read buffered from then on, and so is every file
//! of its file system.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::param::page_size;

use super::page_cache::Cached;
use super::residency;
use super::{cannot_open, open_direct, open_regular, path_of, status};
use crate::error::{Error, ErrorKind, Result};
use crate::files::retry_transient;
use crate::memory::FileView;
use crate::options::CacheMode;
use crate::sync::lock::Mutex;
use crate::sync::retry::{Retries, Transient};
use crate::{FileSource, Identity, ReadHints, Source};

/// Alignment assumed when the file system does not state one: covers disks with 4 KiB sectors.
const ALIGNMENT_UNKNOWN: u64 = 4096;

/// Largest read of a file, bytes. On the 2-core virtual machine of
/// `benches/results/2core-virtio-2026-11-20` extents of 1 to 16 MiB were within 4 % of each other
/// in throughput, and 4 MiB took 0.7 of the CPU time of 1 MiB.
const EXTENT_BYTES: u64 = 4 << 20;

/// Initial bytes in flight on a local disk. Most disks reach their rate with 16 MiB; a virtual one
/// whose host is busy was 1.2 to 1.3 times as fast with 128 MiB (2026-11, `cold.md` in
/// `benches/results/2core-amd-2026-11-26`), and another one lost 2 %
/// (`benches/results/2core-intel-2026-11-22`).
const IN_FLIGHT_BYTES: u64 = 128 << 20;

/// Initial bytes in flight on a network file system or one served from user space: 5 ms at 10 GB/s
/// are as much.
const FAR_IN_FLIGHT_BYTES: u64 = 48 << 20;

/// Minimum of bytes in flight that are copied from memory: four extents.
const COPIED_IN_FLIGHT_BYTES: u64 = 16 << 20;

/// Most bytes in flight. Eight fast disks at 0.1 ms and 7 GB/s each need 6 MiB, and some queue a
/// hundred times as long.
const IN_FLIGHT_BYTES_MAX: u64 = 256 << 20;

/// Initial number of reads in flight on a local disk: reaches `IN_FLIGHT_BYTES` with extents down
/// to 512 KiB.
const DEPTH: usize = 256;

/// Initial number of reads in flight elsewhere: reaches `COPIED_IN_FLIGHT_BYTES` with extents of
/// that length, `FAR_IN_FLIGHT_BYTES` with 1.5 MiB.
const OTHER_DEPTH: usize = 32;

/// Path that a read takes to the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Direct I/O: the device transfers into the caller's memory, bypassing the page cache.
    Direct,
    /// Copied from the page cache.
    Buffered,
}

/// Support for direct I/O that a file system reports for one file.
#[derive(Clone, Debug)]
pub struct DirectIo {
    /// True if the file opens with `O_DIRECT`.
    pub accepted: bool,
    /// Required alignment of memory addresses, bytes, if the file system states it.
    pub memory_alignment: Option<u32>,
    /// Required alignment of offsets and lengths, bytes, if the file system states it.
    pub offset_alignment: Option<u32>,
    /// Error of opening it with `O_DIRECT`, if that failed.
    pub error: Option<String>,
}

/// File systems that refused direct I/O during this load, by device number.
#[derive(Debug, Default)]
pub struct RefusedDirect(Mutex<HashMap<u64, Arc<AtomicBool>>>);

impl RefusedDirect {
    fn for_source(&self, source: &FileSource) -> Arc<AtomicBool> {
        let mut known = self.0.lock();
        Arc::clone(known.entry(source.identity().device).or_default())
    }
}

/// A file opened for one load.
#[derive(Debug)]
pub struct ReadFile {
    source: FileSource,
    direct: Option<File>,
    cache: CacheMode,
    /// True if a ring must punt its reads to kernel threads.
    punted: bool,
    /// Residency in the page cache when the file was opened.
    cached: Cached,
    /// Mapping of the file, if it is read as a view.
    view: Option<Arc<FileView>>,
    /// Set once direct I/O is refused; shared by all files of the file system.
    refused: Arc<AtomicBool>,
    alignment: u64,
    retries: Retries,
    /// Reopened descriptors of the same file.
    again: Again,
}

/// Descriptors that replaced stale ones. An append-only list, so that reads in flight keep theirs.
#[derive(Debug, Default)]
struct Again(OnceLock<Box<Reopened>>);

#[derive(Debug)]
struct Reopened {
    file: File,
    direct: Option<File>,
    next: Again,
}

impl Again {
    fn iter(&self) -> impl Iterator<Item = &Reopened> {
        let first = self.0.get().map(AsRef::as_ref);
        std::iter::successors(first, |opened| opened.next.0.get().map(AsRef::as_ref))
    }
}

impl ReadFile {
    /// Opens `source` in the page cache mode `cache`; `refused` records which file systems refused
    /// direct I/O during the load.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] when another file has taken the path; [`ErrorKind::Unsupported`] when
    /// direct I/O is required and refused, or the file cannot be mapped.
    pub fn open(source: FileSource, cache: CacheMode, refused: &RefusedDirect) -> Result<Self> {
        let (retries, len) = (source.retries(), source.len());
        Self::open_with(source, cache, refused, retries, slice::from_ref(&(0..len)))
    }

    /// Like [`Self::open`], for reads of `wanted` alone: residency of other bytes is not queried.
    /// `retries` applies to opening and to reads.
    pub fn open_with(
        source: FileSource,
        cache: CacheMode,
        refused: &RefusedDirect,
        retries: Retries,
        wanted: &[Range<u64>],
    ) -> Result<Self> {
        let refused = refused.for_source(&source);
        let mut opened = Self {
            punted: source.file_system().name == "fuse",
            retries,
            again: Again::default(),
            source,
            direct: None,
            cache,
            cached: Cached::Nothing,
            view: None,
            refused,
            alignment: 1,
        };
        let is_direct = match cache {
            CacheMode::Buffered => false,
            CacheMode::Map => {
                opened.alignment = page_size() as u64;
                false
            }
            // A file system in memory has no device to read from.
            CacheMode::Auto | CacheMode::Drop => {
                !opened.source.file_system().in_memory && !opened.is_refused()
            }
            CacheMode::Direct if opened.source.file_system().in_memory => {
                return Err(refused_error(&opened.source));
            }
            CacheMode::Direct => true,
        };
        // Counting the cached pages of 12 GiB takes 6 ms. In an in-memory file system every page is
        // cached, so nothing is counted.
        if cache != CacheMode::Direct && !opened.source.file_system().in_memory {
            opened.cached = Cached::new(&opened.source, wanted);
        }
        if !is_direct {
            return Ok(opened);
        }
        let (location, retry_counter) = (opened.source.location(), opened.source.retry_counter());
        let path = path_of(location)?;
        let once = || match open_direct(opened.source.file(), path) {
            Err(error) if !refuses_direct(&error) => Err(cannot_open(error, location)),
            opened_or_refused => Ok(opened_or_refused),
        };
        match retry_transient(retry_counter, || opened.retries, once)? {
            Ok(file) => {
                let found =
                    retry_transient(retry_counter, || opened.retries, || status(&file, location))?;
                opened.source.verify(found)?;
                opened.alignment = alignment(&file);
                opened.direct = Some(file);
                if opened.cached.is_partial() {
                    // A cached range may lack some pages. Read-ahead would then also fetch pages
                    // beyond the range, which are read with direct I/O: twice the work.
                    residency::disable_read_ahead(opened.source.file());
                }
            }
            Err(error) if cache == CacheMode::Direct => {
                return Err(refused_error(&opened.source).with_source(error));
            }
            Err(_) => opened.refused.store(true, Ordering::Relaxed),
        }
        Ok(opened)
    }

    /// Returns the file.
    pub fn source(&self) -> &FileSource {
        &self.source
    }

    /// Returns how a read of `len` bytes at `offset` that starts now should access them.
    pub fn access(&self, offset: u64, len: usize) -> Access {
        if self.reads_direct() && !self.cached.holds(&self.source, offset, len) {
            Access::Direct
        } else {
            Access::Buffered
        }
    }

    /// Returns whether anything is read with direct I/O.
    pub fn reads_direct(&self) -> bool {
        self.direct.is_some() && !self.is_refused()
    }

    /// Returns whether nearly all bytes are copied from memory, as far as is known: the load is
    /// then CPU-bound, not device-bound.
    pub fn is_copied(&self) -> bool {
        let in_memory = self.source.file_system().in_memory;
        in_memory || self.cached.holds_nearly_all()
    }

    /// Returns whether reads go over a network or to a server in user space.
    pub fn is_far(&self) -> bool {
        self.source.file_system().network
    }

    /// Returns whether a ring must punt its reads to kernel threads. FUSE files claim that reads
    /// never block, so the ring issues them inline, one after another, unless the server accepts
    /// parallel direct reads (`FUSE_ASYNC_DIO`), which cannot be queried. (64 files at 5 ms, 100
    /// MB/s each, 2026-11: 52 MB/s, or all of it.)
    pub fn must_be_punted(&self) -> bool {
        self.punted
    }

    /// Returns how often failed reads are retried.
    pub fn retries(&self) -> Retries {
        self.retries
    }

    /// Classifies the error of a read; `None` if it is not to be retried.
    pub fn failure(&self, errno: i32) -> Option<Transient> {
        Transient::from_errno(errno).filter(|_| self.retries != Retries::NONE)
    }

    /// Returns how often the file has been reopened.
    pub fn openings(&self) -> usize {
        self.again.iter().count()
    }

    /// Reopens the file by its path because the descriptors of opening number `stale` are no longer
    /// usable. Does nothing if another thread has reopened it since.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] when the path leads to another file or the file has changed; errors
    /// of opening.
    pub fn reopen(&self, stale: usize) -> Result<()> {
        if self.openings() != stale {
            return Ok(());
        }
        let location = self.source.location();
        let path = path_of(location)?;
        let (file, metadata) = open_regular(None, location)?;
        self.source.verify(Identity::from_metadata(&metadata))?;
        let mut direct = None;
        if self.direct.is_some() {
            let opened = open_direct(&file, path).map_err(|error| cannot_open(error, location))?;
            // Without /proc, `open_direct` resolved the path again, so compare the identities.
            self.source.verify(status(&opened, location)?)?;
            direct = Some(opened);
        }
        let reopened = Box::new(Reopened {
            file,
            direct,
            next: Again::default(),
        });
        let last = self
            .again
            .iter()
            .last()
            .map_or(&self.again, |last| &last.next);
        // If another thread has reopened the file first, its descriptors are used.
        let _ = last.0.set(reopened);
        Ok(())
    }

    /// Checks that the file is still in the state in which the checkpoint opened it, and that its
    /// path does not lead to another file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] when the file was written to since, or was replaced by another.
    pub fn verify_unchanged(&self) -> Result<()> {
        let once = || {
            let last = self.again.iter().last();
            let file = last.map_or(self.source.file(), |last| &last.file);
            match status(file, self.source.location()) {
                Ok(found) => self.source.verify(found),
                // Reopening the file also compares its identity.
                Err(error) if error.errno().is_some_and(Transient::wants_reopening) => {
                    self.reopen(self.openings())
                }
                Err(error) => Err(error),
            }
        };
        self.source.verify_unless_in_place(|| {
            retry_transient(self.source.retry_counter(), || self.retries, once)
        })
    }

    /// Maps the file for views of its bytes.
    ///
    /// # Errors
    ///
    /// As [`FileView::new`], with the location.
    pub fn map(&mut self, writable: bool) -> Result<&Arc<FileView>> {
        let view = FileView::new(self.source.file(), self.source.len(), writable)
            .map_err(|error| error.with_location(self.source.location()))?;
        Ok(self.view.insert(Arc::new(view)))
    }

    /// Returns the mapping, if the file has been mapped.
    pub fn view(&self) -> Option<&Arc<FileView>> {
        self.view.as_ref()
    }

    /// Tells that `len` bytes have been read through the page cache; drops their pages with
    /// [`CacheMode::Drop`].
    pub fn was_read(&self, offset: u64, len: usize) {
        if self.cache == CacheMode::Drop {
            residency::let_go(self.source.file(), offset, len as u64);
        }
    }

    /// Records that reading is done; with [`CacheMode::Drop`] drops the pages that the last reads
    /// and the header left in the page cache.
    pub fn finish(&self) {
        if self.cache == CacheMode::Drop {
            residency::let_go(self.source.file(), 0, self.source.len());
        }
    }

    /// Starts reading bytes into the page cache, without waiting for them.
    pub fn read_ahead(&self, offset: u64, len: usize) {
        residency::read_ahead(self.source.file(), offset, len as u64);
    }

    /// Copies bytes from the page cache without waiting for storage, as many as are there.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if none are there; other errors where the system cannot tell, as on overlays and in
    /// file systems in memory.
    pub fn copy_cached(&self, window: &mut [u8], offset: u64) -> Result<usize, Errno> {
        residency::copy(self.descriptor(Access::Buffered), window, offset)
    }

    /// Returns the descriptor for a read of this kind.
    pub fn descriptor(&self, access: Access) -> BorrowedFd<'_> {
        let last = self.again.iter().last();
        let (file, direct) = match last {
            Some(last) => (&last.file, &last.direct),
            None => (self.source.file(), &self.direct),
        };
        match (direct, access) {
            (Some(direct), Access::Direct) => direct.as_fd(),
            _ => file.as_fd(),
        }
    }

    /// Records that the kernel refused a well-aligned direct read: this file system is read
    /// buffered from now on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] when direct I/O is required.
    pub fn refuse_direct(&self) -> Result<()> {
        if self.cache == CacheMode::Direct {
            return Err(refused_error(&self.source));
        }
        self.refused.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether reads must bypass the page cache.
    pub fn demands_direct(&self) -> bool {
        self.cache == CacheMode::Direct
    }

    /// Returns whether direct I/O was refused on this file system.
    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the alignment of offsets, lengths and addresses of direct reads, bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Returns the file's read hints.
    pub fn hints(&self) -> ReadHints {
        let (depth, in_flight_bytes, in_flight_bytes_max) = if self.is_copied() {
            // Each core copies one extent at a time, and the next one waits for it.
            let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
            let bytes = COPIED_IN_FLIGHT_BYTES.max(2 * cores * EXTENT_BYTES);
            (OTHER_DEPTH, bytes, bytes)
        } else if self.is_far() {
            (OTHER_DEPTH, FAR_IN_FLIGHT_BYTES, IN_FLIGHT_BYTES_MAX)
        } else {
            (DEPTH, IN_FLIGHT_BYTES, IN_FLIGHT_BYTES_MAX)
        };
        ReadHints {
            extent_bytes: EXTENT_BYTES,
            request_bytes: EXTENT_BYTES,
            alignment: self.alignment,
            // Skipping less than this saves no read: neighbours share a page or two.
            gap_bytes: 64 << 10,
            depth,
            in_flight_bytes,
            in_flight_bytes_max,
        }
    }

    /// Returns the support for direct I/O that the file system reports for `source`.
    ///
    /// # Errors
    ///
    /// The location is not a path.
    pub fn probe_direct(source: &FileSource) -> Result<DirectIo> {
        Ok(
            match open_direct(source.file(), path_of(source.location())?) {
                Ok(file) => {
                    let (memory, offset) = stated_alignment(&file).unzip();
                    DirectIo {
                        accepted: true,
                        memory_alignment: memory,
                        offset_alignment: offset,
                        error: None,
                    }
                }
                Err(error) => DirectIo {
                    accepted: false,
                    memory_alignment: None,
                    offset_alignment: None,
                    error: Some(error.to_string()),
                },
            },
        )
    }
}

/// Returns whether an error of opening is about direct I/O, and not about the file.
fn refuses_direct(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

fn refused_error(source: &FileSource) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "the file system ({}) refuses direct I/O",
            source.file_system().name
        ),
    )
    .with_location(source.location())
    .with_hint("use ‹cache=auto› or ‹cache=buffered›")
}

/// Returns the alignment of direct reads of `file`.
fn alignment(file: &File) -> u64 {
    aligned_to(stated_alignment(file), page_size() as u64)
}

/// Returns the larger of the stated alignment, 4 KiB and the page size. 4 KiB is a block of a file
/// system: reading its other half costs nothing, a read-modify cycle does. The kernel and devices
/// write whole pages, and a page that two reads share would be copied for one of them when a
/// process forks.
fn aligned_to(stated: Option<(u32, u32)>, page_bytes: u64) -> u64 {
    let stated = stated.map_or(ALIGNMENT_UNKNOWN, |(memory, offset)| {
        u64::from(memory.max(offset))
    });
    stated.max(ALIGNMENT_UNKNOWN).max(page_bytes)
}

/// Returns memory and offset alignment by `statx(STATX_DIOALIGN)` (Linux 6.1), if the file system
/// fills it in.
#[cfg(target_os = "linux")]
fn stated_alignment(file: &File) -> Option<(u32, u32)> {
    use rustix::fs::{AtFlags, StatxFlags};
    const DIOALIGN: u32 = 0x2000;
    let flags = StatxFlags::from_bits_retain(DIOALIGN);
    let statx = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, flags).ok()?;
    let stated = statx.stx_mask & DIOALIGN != 0 && statx.stx_dio_offset_align > 0;
    stated.then_some((statx.stx_dio_mem_align, statx.stx_dio_offset_align))
}

#[cfg(not(target_os = "linux"))]
fn stated_alignment(_file: &File) -> Option<(u32, u32)> {
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::options::Location;

    fn read(file: &ReadFile) -> Vec<u8> {
        let mut bytes = [0; 16];
        let read = rustix::io::pread(file.descriptor(Access::Buffered), &mut bytes, 0);
        let read = read.expect("reads");
        bytes[..read].to_vec()
    }

    #[test]
    fn alignment_covers_page_and_file_system() {
        const KIB: u64 = 1 << 10;
        assert_eq!(aligned_to(Some((4, 512)), 4 * KIB), 4 * KIB);
        assert_eq!(aligned_to(Some((4, 512)), 64 * KIB), 64 * KIB);
        assert_eq!(aligned_to(None, 64 * KIB), 64 * KIB);
        assert_eq!(aligned_to(Some((4, 16 << 10)), 4 * KIB), 16 * KIB);
        assert_eq!(aligned_to(None, 512), 4 * KIB);
    }

    #[test]
    fn reopen_accepts_same_file_and_rejects_replaced_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m");
        std::fs::write(&path, "old").expect("ours");
        let source = FileSource::open(&Location::from_path(&path)).expect("opens");
        let refused = RefusedDirect::default();
        let file = ReadFile::open(source, CacheMode::Buffered, &refused).expect("opens");
        assert_eq!((file.openings(), read(&file)), (0, b"old".to_vec()));
        file.reopen(0).expect("the same file");
        assert_eq!((file.openings(), read(&file)), (1, b"old".to_vec()));
        file.reopen(0).expect("already reopened");
        assert_eq!(file.openings(), 1);
        file.reopen(1).expect("the same file");
        assert_eq!(file.openings(), 2);

        // Another file of the same length, under the same name.
        let other = folder.path().join("other");
        std::fs::write(&other, "new").expect("ours");
        std::fs::rename(&other, &path).expect("the same directory");
        let error = file.reopen(2).expect_err("another file");
        assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
        assert_eq!((file.openings(), read(&file)), (2, b"old".to_vec()));
        std::fs::remove_file(&path).expect("ours");
        let error = file.reopen(2).expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
    }

    #[test]
    fn written_file_is_changed_after_reopen() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m");
        std::fs::write(&path, "old").expect("ours");
        let source = FileSource::open(&Location::from_path(&path)).expect("opens");
        let refused = RefusedDirect::default();
        let file = ReadFile::open(source, CacheMode::Buffered, &refused).expect("opens");
        file.reopen(0).expect("the same file");
        file.verify_unchanged().expect("not written to");
        let written = std::fs::OpenOptions::new().append(true).open(&path);
        written
            .and_then(|mut file| file.write_all(b"er"))
            .expect("ours");
        let error = file.verify_unchanged().expect_err("longer");
        assert!(error.message().contains("3 to 5 bytes"), "{error}");
        assert_eq!(
            file.reopen(1).expect_err("longer").kind(),
            ErrorKind::Changed
        );
    }
}
