//! A file opened for one load: how its bytes are reached, directly, through the page cache, or as a view of it.
//!
//! Engines read through it; `prepare` makes it. What the page cache holds is copied from there, read by read. When the kernel refuses direct I/O, at opening or only at the first read
//! (overlayfs on squashfs does that), the file is read buffered from then on, and so is every file of the same file system.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::param::page_size;

use super::cached::Cached;
use super::file::{again_if_it_may_pass, cannot_open, open_direct, open_regular, path_of, status};
use super::{Cache, FileSource, Identity, ReadHints, Source, residency};
use crate::buffer::FileView;
use crate::error::{Error, ErrorKind, Result};
use crate::retry::{Retries, Transient};

/// Assumed when the file system does not say: covers disks with 4 KiB sectors.
const ALIGNMENT_UNKNOWN: u64 = 4096;

/// Largest read of a file, bytes. On the 2-core virtual machine of `benches/results/2core-virtio-2026-11-20` extents of 1 to
/// 16 MiB were within 4 % of each other in throughput, and 4 MiB took 0.7 of the CPU time of 1 MiB.
const EXTENT_BYTES: u64 = 4 << 20;

/// Bytes in flight to begin with on a disk. There 8 to 49 MiB made no difference beyond that; arrays want more, which the controller
/// finds (`schedule/depth.rs`).
const IN_FLIGHT_BYTES: u64 = 16 << 20;

/// The same on a network file system, and where files come from a user-space server: 5 ms at 10 GB/s are as much.
const FAR_IN_FLIGHT_BYTES: u64 = 48 << 20;

/// Most bytes in flight. Eight fast disks at 0.1 ms and 7 GB/s each need 6 MiB, and some queue a hundred times as long.
const IN_FLIGHT_BYTES_MAX: u64 = 256 << 20;

/// Reads in flight to begin with: reaches `IN_FLIGHT_BYTES` with extents down to 512 KiB.
const DEPTH: usize = 32;

/// How a read reaches the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Past the page cache, by the device's own transfers.
    Direct,
    /// Copied from the page cache.
    Buffered,
}

/// What a file system says of direct I/O on one file.
#[derive(Clone, Debug)]
pub struct DirectIo {
    /// Whether the file opens with `O_DIRECT`.
    pub accepted: bool,
    /// Multiple that memory addresses must be of, bytes, if the file system says.
    pub memory_alignment: Option<u32>,
    /// Multiple that offsets and lengths must be of, bytes, if the file system says.
    pub offset_alignment: Option<u32>,
    /// Why it does not open so.
    pub error: Option<String>,
}

/// The file systems that refused direct I/O during this load, by device number.
#[derive(Debug, Default)]
pub struct RefusedDirect(Mutex<HashMap<u64, Arc<AtomicBool>>>);

impl RefusedDirect {
    fn of(&self, source: &FileSource) -> Arc<AtomicBool> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(source.identity().device).or_default())
    }
}

/// A file opened for one load.
#[derive(Debug)]
pub struct ReadFile {
    source: Arc<FileSource>,
    direct: Option<File>,
    cache: Cache,
    /// Whether a ring must hand its reads to threads of the kernel's.
    punted: bool,
    /// What the page cache held when the file was opened.
    cached: Cached,
    /// The file as memory, if it is to be that.
    view: Option<Arc<FileView>>,
    /// Shared by all files of the file system.
    refused: Arc<AtomicBool>,
    alignment: u64,
    retries: Retries,
    /// The same file, opened again.
    again: Again,
}

/// What a file was opened as when its descriptors had gone stale. A list that only grows, so that reads under way keep theirs.
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
    /// Opens `source` for reads as `cache` asks; `refused` carries what the load has learned of its file systems.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] when another file has taken the path; [`ErrorKind::Unsupported`] when direct I/O is demanded
    /// and refused, or the file cannot be mapped.
    pub fn open(source: Arc<FileSource>, cache: Cache, refused: &RefusedDirect) -> Result<Self> {
        let (retries, len) = (source.retries(), source.len());
        Self::open_with(source, cache, refused, retries, slice::from_ref(&(0..len)))
    }

    /// As [`Self::open`], for reads of `wanted` alone: the page cache is asked for no other bytes. What fails is tried again as `retries`
    /// says, reads as well.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_with(
        source: Arc<FileSource>,
        cache: Cache,
        refused: &RefusedDirect,
        retries: Retries,
        wanted: &[Range<u64>],
    ) -> Result<Self> {
        let refused = refused.of(&source);
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
            Cache::Buffered => false,
            Cache::Map => {
                opened.alignment = page_size() as u64;
                false
            }
            // Memory has no device to read past it.
            Cache::Auto | Cache::Drop => {
                !opened.source.file_system().in_memory && !opened.is_refused()
            }
            Cache::Direct if opened.source.file_system().in_memory => {
                return Err(refused_error(&opened.source));
            }
            Cache::Direct => true,
        };
        if cache != Cache::Direct {
            opened.cached = Cached::of(&opened.source, wanted);
        }
        if !is_direct {
            return Ok(opened);
        }
        let (location, tally) = (opened.source.location(), opened.source.tally());
        let path = path_of(location)?;
        let once = || match open_direct(opened.source.file(), path) {
            Err(error) if !refuses_direct(&error) => Err(cannot_open(error, location)),
            opened_or_refused => Ok(opened_or_refused),
        };
        match again_if_it_may_pass(tally, || opened.retries, once)? {
            Ok(file) => {
                let found =
                    again_if_it_may_pass(tally, || opened.retries, || status(&file, location))?;
                opened.source.verify(found)?;
                opened.alignment = alignment(&file);
                opened.direct = Some(file);
            }
            Err(error) if cache == Cache::Direct => {
                return Err(refused_error(&opened.source).with_source(error));
            }
            Err(_) => opened.refused.store(true, Ordering::Relaxed),
        }
        Ok(opened)
    }

    /// The file.
    pub fn source(&self) -> &Arc<FileSource> {
        &self.source
    }

    /// How a read of `len` bytes at `offset` that starts now should reach them.
    pub fn access(&self, offset: u64, len: usize) -> Access {
        if self.reads_direct() && !self.cached.holds(&self.source, offset, len) {
            Access::Direct
        } else {
            Access::Buffered
        }
    }

    /// Whether anything is read past the page cache.
    fn reads_direct(&self) -> bool {
        self.direct.is_some() && !self.is_refused()
    }

    /// Whether nearly all of it is to be copied from memory, as far as is known: cores are the limit then, and no device.
    pub fn is_copied(&self) -> bool {
        let in_memory = self.source.file_system().in_memory;
        in_memory || self.cached.holds_nearly_all()
    }

    /// Whether reads go over a network or to a server in user space.
    pub fn is_far(&self) -> bool {
        self.source.file_system().network
    }

    /// Whether a ring must hand its reads to threads of the kernel's. A FUSE file system says of its files that they can always be read
    /// without waiting, so the ring reads at once, one after another, unless the server takes reads without an answer to the last
    /// (`FUSE_ASYNC_DIO`). Whether it does, nobody can ask. (64 files at 5 ms, 100 MB/s each, 2026-11: 52 MB/s, or all of it.)
    pub fn must_be_punted(&self) -> bool {
        self.punted
    }

    /// How often failed reads are tried again.
    pub fn retries(&self) -> Retries {
        self.retries
    }

    /// What a failure of a read means for trying it again; none if it is not to be.
    pub(crate) fn failure(&self, errno: i32) -> Option<Transient> {
        Transient::of_errno(errno).filter(|_| self.retries != Retries::NONE)
    }

    /// How often it has been opened again.
    pub fn openings(&self) -> usize {
        self.again.iter().count()
    }

    /// Opens the file again by its path, because descriptors of opening number `stale` are of no use any more, unless somebody
    /// has since.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] when another file is there, or another state of it; whatever opening runs into.
    pub fn reopen(&self, stale: usize) -> Result<()> {
        if self.openings() != stale {
            return Ok(());
        }
        let location = self.source.location();
        let path = path_of(location)?;
        let (file, metadata) = open_regular(None, location)?;
        self.source.verify(Identity::of(&metadata))?;
        let mut direct = None;
        if self.direct.is_some() {
            let opened = open_direct(&file, path).map_err(|error| cannot_open(error, location))?;
            // Without /proc the path was followed once more.
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
        // If somebody else was faster, theirs does as well.
        let _ = last.0.set(reopened);
        Ok(())
    }

    /// Whether the file is still in the state in which the checkpoint opened it, and no other is at its path.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] when somebody wrote to it since, or put another file in its place.
    pub fn verify_unchanged(&self) -> Result<()> {
        let once = || {
            let last = self.again.iter().last();
            let file = last.map_or(self.source.file(), |last| &last.file);
            match status(file, self.source.location()) {
                Ok(found) => self.source.verify(found),
                // Opening it again compares, too.
                Err(error) if error.errno().is_some_and(Transient::wants_reopening) => {
                    self.reopen(self.openings())
                }
                Err(error) => Err(error),
            }
        };
        self.source.verify_unless_in_place(|| {
            again_if_it_may_pass(self.source.tally(), || self.retries, once)
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

    /// The file as memory, if it has been mapped.
    pub fn view(&self) -> Option<&Arc<FileView>> {
        self.view.as_ref()
    }

    /// So many bytes have been read through the page cache: nothing of them stays there, if that was asked for.
    pub fn was_read(&self, offset: u64, len: usize) {
        if self.cache == Cache::Drop {
            residency::let_go(self.source.file(), offset, len as u64);
        }
    }

    /// Nothing more will be read: what the last reads and the header left in the page cache goes too, if that was asked for.
    pub fn finish(&self) {
        if self.cache == Cache::Drop {
            residency::let_go(self.source.file(), 0, self.source.len());
        }
    }

    /// Begins to bring bytes into the page cache, without waiting for them.
    pub fn read_ahead(&self, offset: u64, len: usize) {
        residency::read_ahead(self.source.file(), offset, len as u64);
    }

    /// The descriptor for such a read.
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

    /// The kernel refused a well-aligned direct read: this file system is read buffered from now on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] when direct I/O was demanded.
    pub fn refuse_direct(&self) -> Result<()> {
        if self.cache == Cache::Direct {
            return Err(refused_error(&self.source));
        }
        self.refused.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether reads must not go through the page cache.
    pub fn demands_direct(&self) -> bool {
        self.cache == Cache::Direct
    }

    /// Whether direct I/O was refused on this file system.
    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Offsets, lengths and addresses of direct reads are multiples of this, bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// How the file likes to be read.
    pub fn hints(&self) -> ReadHints {
        let (in_flight_bytes, in_flight_bytes_max) = if self.is_copied() {
            // Each core copies one extent at a time, and the next one waits for it.
            let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
            let bytes = IN_FLIGHT_BYTES.max(2 * cores * EXTENT_BYTES);
            (bytes, bytes)
        } else if self.is_far() {
            (FAR_IN_FLIGHT_BYTES, IN_FLIGHT_BYTES_MAX)
        } else {
            (IN_FLIGHT_BYTES, IN_FLIGHT_BYTES_MAX)
        };
        ReadHints {
            extent_bytes: EXTENT_BYTES,
            request_bytes: EXTENT_BYTES,
            alignment: self.alignment,
            // Skipping less than this saves no read: neighbours share a page or two.
            gap_bytes: 64 << 10,
            depth: DEPTH,
            in_flight_bytes,
            in_flight_bytes_max,
        }
    }

    /// What the file system says of direct I/O on `source`.
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

/// Whether an error of opening is about direct I/O, and not about the file.
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
    .with_hint("use cache=auto or cache=buffered")
}

/// Returns the alignment of direct reads of `file`.
fn alignment(file: &File) -> u64 {
    aligned_to(stated_alignment(file), page_size() as u64)
}

/// Never less than 4 KiB: a block of a file system; reading its other half costs nothing, a
/// read-modify cycle does. Nor than a page: the kernel and devices write to whole pages, and one
/// that two reads share would be copied for one of them when a process forks.
fn aligned_to(stated: Option<(u32, u32)>, page_bytes: u64) -> u64 {
    let stated = stated.map_or(ALIGNMENT_UNKNOWN, |(memory, offset)| {
        u64::from(memory.max(offset))
    });
    stated.max(ALIGNMENT_UNKNOWN).max(page_bytes)
}

/// Memory and offset alignment by `statx(STATX_DIOALIGN)` (Linux 6.1), if the file system fills it in.
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

    use super::super::Location;
    use super::*;

    fn read(file: &ReadFile) -> Vec<u8> {
        let mut bytes = [0; 16];
        let read = rustix::io::pread(file.descriptor(Access::Buffered), &mut bytes, 0);
        let read = read.expect("reads");
        bytes[..read].to_vec()
    }

    #[test]
    fn alignment_is_at_least_a_page_and_what_the_file_system_states() {
        const KIB: u64 = 1 << 10;
        assert_eq!(aligned_to(Some((4, 512)), 4 * KIB), 4 * KIB);
        assert_eq!(aligned_to(Some((4, 512)), 64 * KIB), 64 * KIB);
        assert_eq!(aligned_to(None, 64 * KIB), 64 * KIB);
        assert_eq!(aligned_to(Some((4, 16 << 10)), 4 * KIB), 16 * KIB);
        assert_eq!(aligned_to(None, 512), 4 * KIB);
    }

    #[test]
    fn a_file_is_opened_again_if_it_is_still_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m");
        std::fs::write(&path, "old").expect("ours");
        let source = FileSource::open(&Location::from_path(&path)).expect("opens");
        let refused = RefusedDirect::default();
        let file = ReadFile::open(Arc::new(source), Cache::Buffered, &refused).expect("opens");
        assert_eq!((file.openings(), read(&file)), (0, b"old".to_vec()));
        file.reopen(0).expect("the same file");
        assert_eq!((file.openings(), read(&file)), (1, b"old".to_vec()));
        file.reopen(0).expect("somebody has");
        assert_eq!(file.openings(), 1);
        file.reopen(1).expect("the same file");
        assert_eq!(file.openings(), 2);

        // Another file of the same length, under the same name.
        let other = folder.path().join("other");
        std::fs::write(&other, "new").expect("ours");
        std::fs::rename(&other, &path).expect("the same folder");
        let error = file.reopen(2).expect_err("another file");
        assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
        assert_eq!((file.openings(), read(&file)), (2, b"old".to_vec()));
        std::fs::remove_file(&path).expect("ours");
        let error = file.reopen(2).expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
    }

    #[test]
    fn what_is_written_to_has_changed_however_it_was_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m");
        std::fs::write(&path, "old").expect("ours");
        let source = FileSource::open(&Location::from_path(&path)).expect("opens");
        let refused = RefusedDirect::default();
        let file = ReadFile::open(Arc::new(source), Cache::Buffered, &refused).expect("opens");
        file.reopen(0).expect("the same file");
        file.verify_unchanged().expect("nobody wrote");
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
