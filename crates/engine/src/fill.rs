//! State of one extent and the interpretation of read results. Shared by the engines that read
//! files; pure except for what it learns about the file and copies from the page cache.
//!
//! ```text
//!            ┌────────────── short read, EINTR, EAGAIN, direct I/O refused ──────────────┐
//!            ▼                                                                           │
//!   Fill ─▶ Read ─▶ after(result) ─┬─ needed bytes are there ─▶ Filled                   │
//!            ▲                     ├─ more to read ──────────────────────────────────────┘
//!            └── Later, a pause ◀──┼─ a transient error (`retry.rs`)
//!                                  └─ end of file, any other error ─▶ Failed
//! ```
//!
//! Engines implement pauses in their own ways, none of them on the lane's thread. Filled bytes are
//! kept during a pause.

use std::io;
use std::ops::Range;
use std::time::Duration;

use rustix::io::Errno;

use crate::crc::Polynomial;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Lease, Prefixes, Strip};
use crate::storage::{Access, ReadFile, Source};
use crate::strips::Shared;
use crate::sync::retry::{PROGRESS_BYTES, Transient};
use crate::{Job, Transfer};

/// Maximum number of consecutive `EAGAIN` and `EINTR` without a byte of progress: beyond this
/// something is broken, and an error is better than a loop.
const RETRIES_MAX: u32 = 10_000;

/// [`PROGRESS_BYTES`] as an offset in a window.
const PROGRESS: usize = PROGRESS_BYTES as usize;

/// Maximum number of consecutive direct reads that returned less than one unit: a file system with
/// more bytes would have returned them by now.
const STUMPS_MAX: u32 = 100;

/// Number of bytes that are copied from memory before their CRC is computed: they are still in the
/// core's cache then. (One thread, a copy at 0.22 s per GiB: the CRC took another 0.02 s for 64 to
/// 256 KiB, 0.06 for 1 MiB, 0.08 for 4 MiB; 2026-11, `benches/results/2core-intel-2026-11-27`.)
const COPY_BYTES: usize = 256 << 10;

/// Memory that reads fill.
pub trait Window {
    /// Returns bytes of the window, counted from its start.
    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8];
}

#[doc(hidden)]
impl Window for Lease {
    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        Self::bytes_mut(self, range)
    }
}

impl<T> Window for Strip<T> {
    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        Self::bytes_mut(self, range)
    }
}

/// State of one extent, or of one strip of it.
#[derive(Debug)]
pub struct Fill {
    /// Bytes of the source that the whole extent needs, for errors.
    range: Range<u64>,
    offset: u64,
    window: usize,
    needed: usize,
    filled: usize,
    access: Access,
    retries_in_row: u32,
    stumps_in_row: u32,
    /// Consecutive transient errors, and the bytes that were filled at the first of them.
    failed_in_row: u32,
    failed_at: usize,
    /// Number of the opening of the file that the last read used.
    opening: usize,
    /// Number of bytes that the last read requested.
    requested: usize,
    /// CRCs of the bytes, if they are wanted and copied from memory.
    prefixes: Option<Prefixes>,
    /// Statistics of the reads so far.
    pub transfer: Transfer,
}

/// Next read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Offset of the bytes in the window.
    pub window_offset: usize,
    /// Offset of the bytes in the file.
    pub offset: u64,
    /// Number of bytes to request.
    pub len: usize,
    /// Descriptor to use.
    pub access: Access,
}

/// Next step after the result of a read.
#[derive(Debug)]
pub enum Step {
    /// Read again.
    Read(Read),
    /// Read again after a pause.
    Later(Read, Duration),
    /// This many bytes of the window are filled, and that is enough.
    Filled(usize),
    /// The extent cannot be read.
    Failed(Error),
}

/// Returns the error for pages of a file that cannot be mapped.
pub(crate) fn not_shown(file: &ReadFile, offset: u64, needed: usize, error: io::Error) -> Error {
    // The system returns the same error for unreadable pages and for pages beyond a truncated end.
    let error = match file.source().verify_unchanged() {
        Err(changed) if error.raw_os_error() == Some(libc::EFAULT) => return changed,
        _ if error.raw_os_error() == Some(libc::EFAULT) => Error::new(
            ErrorKind::Io,
            "cannot read: the system could not bring in its pages",
        )
        .with_hint(
            "check the disk, or the mount and its server; the kernel log (dmesg) may say more",
        )
        .with_source(error),
        _ => Error::from_io("cannot read", error),
    };
    error
        .with_location(file.source().location())
        .with_range(offset..offset + needed as u64)
}

impl Fill {
    /// Creates the state of an extent that has not been read. Also returns its first read.
    pub fn new(job: &Job, file: &ReadFile) -> (Self, Read) {
        let crc = job.lease.wanted_crc().filter(|_| !job.lease.is_view());
        let range = job.offset..job.offset + job.needed as u64;
        Self::begin(range, job.offset, job.lease.len(), job.needed, crc, file)
    }

    /// Creates the state of a strip that has not been read. Also returns its first read.
    pub(crate) fn of_strip(strip: &Strip<Shared>, file: &ReadFile) -> (Self, Read) {
        let (job, range) = (strip.shared(), strip.range());
        let (offset, needed) = job.wanted(&range);
        let crc = job.wanted_crc();
        Self::begin(job.job_range(), offset, range.len(), needed, crc, file)
    }

    fn begin(
        range: Range<u64>,
        offset: u64,
        window: usize,
        needed: usize,
        crc: Option<Polynomial>,
        file: &ReadFile,
    ) -> (Self, Read) {
        let access = file.access(offset, needed);
        let is_copied = access == Access::Buffered && file.is_copied() && !file.must_be_punted();
        let crc = crc.filter(|_| is_copied);
        let mut new = Self {
            range,
            offset,
            window,
            needed,
            filled: 0,
            access,
            retries_in_row: 0,
            stumps_in_row: 0,
            failed_in_row: 0,
            failed_at: 0,
            opening: 0,
            requested: 0,
            prefixes: crc.map(|crc| Prefixes::new(crc, window)),
            transfer: Transfer::default(),
        };
        let first = new.read(file);
        (new, first)
    }

    /// Returns the next read, for the file's current opening.
    fn read(&mut self, file: &ReadFile) -> Read {
        let left = self.window - self.filled;
        let len = if self.has_steps() {
            left.min(COPY_BYTES)
        } else {
            left
        };
        self.read_up_to(file, len)
    }

    /// Copies bytes of `read` from the page cache, if the extent is read in steps. Returns `None`
    /// if `read` has to be made otherwise: it is then one of all that is missing, unless the
    /// system cannot tell which bytes are there.
    pub fn copy(
        &mut self,
        file: &ReadFile,
        window: &mut impl Window,
        read: &mut Read,
    ) -> Option<Step> {
        if !self.has_steps() {
            return None;
        }
        let bytes = window.bytes_mut(read.window_offset..read.window_offset + read.len);
        match file.copy_cached(bytes, read.offset) {
            // Linux 5.9 and 5.10 may return 0 before the end of the file (preadv2(2)).
            Ok(0) | Err(Errno::AGAIN) => {
                *read = self.read_rest(file);
                None
            }
            Ok(count) => {
                // Fewer bytes mean that the next ones are not cached, not that the file ends.
                self.requested = count;
                Some(self.after(file, window, Ok(count)))
            }
            Err(_) => None,
        }
    }

    /// Returns the next read, of all that is missing.
    pub fn read_rest(&mut self, file: &ReadFile) -> Read {
        self.read_up_to(file, self.window - self.filled)
    }

    fn read_up_to(&mut self, file: &ReadFile, len: usize) -> Read {
        self.opening = file.openings();
        self.requested = len;
        Read {
            window_offset: self.filled,
            offset: self.offset + self.filled as u64,
            len,
            access: self.access,
        }
    }

    /// Returns whether the extent is read in small steps, each followed by its CRC.
    pub fn has_steps(&self) -> bool {
        self.prefixes.is_some()
    }

    /// Returns the CRCs of the bytes of a filled window.
    pub fn take_prefixes(&mut self) -> Option<Prefixes> {
        self.prefixes.take()
    }

    /// Processes the result of the last read, into the job's window: a count of bytes or an error
    /// number.
    pub fn after(
        &mut self,
        file: &ReadFile,
        window: &mut impl Window,
        result: Result<usize, i32>,
    ) -> Step {
        match result {
            Ok(0) if self.filled < self.needed => Step::Failed(self.ended_early(file)),
            Ok(count) => {
                let step = self.advance(file, count);
                if let Some(prefixes) = &mut self.prefixes {
                    prefixes.extend(window.bytes_mut(0..self.filled));
                }
                step
            }
            Err(errno) => self.failed(file, errno),
        }
    }

    fn advance(&mut self, file: &ReadFile, count: usize) -> Step {
        self.retries_in_row = 0;
        match self.access {
            Access::Direct => self.transfer.direct_bytes += count as u64,
            Access::Buffered => self.transfer.buffered_bytes += count as u64,
        }
        let before = self.filled;
        self.filled += count;
        if self.filled >= self.needed {
            if self.access == Access::Buffered {
                file.was_read(self.offset, self.filled);
            }
            return Step::Filled(self.filled);
        }
        self.transfer.short_reads += u64::from(count < self.requested);
        if self.access == Access::Direct {
            // Worked example (alignment 4096): 5000 of 12288 bytes arrived. Direct reads begin on a
            // multiple, so the next one begins at 4096 and reads 904 bytes again.
            let alignment = usize::try_from(file.alignment()).expect("alignments are small");
            let aligned = self.filled / alignment * alignment;
            if aligned > before {
                self.filled = aligned;
                self.stumps_in_row = 0;
            } else if !file.demands_direct() {
                // Less than one whole unit arrived: the rest of this extent goes through the page
                // cache.
                self.access = Access::Buffered;
            } else if self.stumps_in_row < STUMPS_MAX {
                self.filled = before;
                self.stumps_in_row += 1;
            } else {
                return Step::Failed(self.stuck(file, count));
            }
        }
        Step::Read(self.read(file))
    }

    fn failed(&mut self, file: &ReadFile, errno: i32) -> Step {
        let may_pass = file.failure(errno);
        let again = errno == libc::EINTR || (errno == libc::EAGAIN && may_pass.is_none());
        let direct_refused =
            self.access == Access::Direct && matches!(errno, libc::EINVAL | libc::EOPNOTSUPP);
        if again && self.retries_in_row < RETRIES_MAX {
            self.retries_in_row += 1;
        } else if direct_refused {
            if let Err(error) = file.refuse_direct() {
                return Step::Failed(error);
            }
            self.access = Access::Buffered;
        } else if let Some(what) = may_pass {
            return match self.later(file, what, errno) {
                Ok(pause) => Step::Later(self.read(file), pause),
                Err(error) => Step::Failed(error),
            };
        } else {
            let error = Error::from_io("cannot read", io::Error::from_raw_os_error(errno));
            return Step::Failed(self.placed(file, error));
        }
        self.transfer.retries += 1;
        Step::Read(self.read(file))
    }

    /// Returns the pause after a transient error, or an error if there have been too many.
    fn later(&mut self, file: &ReadFile, what: Transient, errno: i32) -> Result<Duration> {
        if self.filled >= self.failed_at + PROGRESS {
            self.failed_in_row = 0;
        }
        if self.failed_in_row == 0 {
            self.failed_at = self.filled;
        }
        self.failed_in_row += 1;
        if Transient::wants_reopening(errno) {
            // A failure to open the file may be transient as well; a replaced file is not.
            if let Err(error) = file.reopen(self.opening)
                && error.kind() == ErrorKind::Changed
            {
                return Err(error);
            }
        }
        let random = fastrand::u32(..);
        let pause = file.retries().wait(what, self.failed_in_row, None, random);
        let cause = io::Error::from_raw_os_error(errno);
        let Some(pause) = pause else {
            let attempts = self.failed_in_row;
            let message = format!("cannot read: failed after {attempts} attempts without progress");
            return Err(self.placed(file, Error::from_io(message, cause)).with_hint(
                "check the mount and its server; ‹retries› sets the number of retries",
            ));
        };
        self.transfer.retries += 1;
        self.transfer.read_retries += 1;
        let at = self.offset + self.filled as u64;
        let end = self.range.end;
        let location = file.source().location();
        self.transfer.last_retry = Some(format!("read of {location} [{at}..{end}]: {cause}"));
        Ok(pause)
    }

    /// Returns the pause before the next attempt to bring in the pages of a view; `None` if the
    /// error is permanent.
    pub fn not_shown(&mut self, file: &ReadFile, error: &io::Error) -> Option<Duration> {
        // The kernel reports `EFAULT` for pages that could not be read, and also for pages beyond
        // the end of a truncated file. Checking the file tells which.
        let unread = error.raw_os_error() == Some(libc::EFAULT);
        let what = file.failure(libc::EIO).filter(|_| unread)?;
        file.source().verify_unchanged().ok()?;
        self.later(file, what, libc::EIO).ok()
    }

    /// Returns the error for required direct I/O that returns less than its own unit.
    fn stuck(&self, file: &ReadFile, count: usize) -> Error {
        if let Err(changed) = file.source().verify_unchanged() {
            return changed;
        }
        let message = format!("direct reads repeatedly return {count} bytes, less than a unit");
        self.placed(file, Error::new(ErrorKind::Io, message))
            .with_hint("use ‹cache=auto› or ‹cache=buffered›")
    }

    fn ended_early(&self, file: &ReadFile) -> Error {
        let found = self.offset + self.filled as u64;
        let error = Error::new(
            ErrorKind::Changed,
            format!(
                "the file ends at byte {found}; it was {} bytes long when it was opened",
                file.source().len()
            ),
        );
        self.placed(file, error).with_hint(
            "the file was truncated while it was read; load again when no process is writing to it",
        )
    }

    fn placed(&self, file: &ReadFile, error: Error) -> Error {
        error
            .with_location(file.source().location())
            .with_range(self.range.clone())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::crc::Polynomial;
    use crate::memory::{RegionWriter, Slab};
    use crate::storage::{FileSource, RefusedDirect, evict, residency};
    use crate::{Engine, EngineSetup, PreadEngine, Wait, uring};
    use tload_base::options::{CacheMode, Location};

    pub(crate) const CRC: Polynomial = Polynomial::Crc64Nvme;
    const LEN: usize = 3 * COPY_BYTES + 777;

    /// File in the page cache, its bytes and its folder.
    pub(crate) fn copied_file() -> (ReadFile, Vec<u8>, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, mut bytes) = (folder.path().join("m"), vec![0; LEN]);
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        std::fs::write(&path, &bytes).expect("ours");
        let source = FileSource::open(&Location::from_path(&path)).expect("opens");
        let refused = RefusedDirect::default();
        let file = ReadFile::open(source, CacheMode::Auto, &refused).expect("opens");
        assert!(file.is_copied(), "just written");
        (file, bytes, folder)
    }

    /// Drops the pages of a file in `folder`. Returns whether reads that do not wait notice that:
    /// those of file systems in memory, of overlays and of old kernels do not.
    pub(crate) fn lets_go(file: &ReadFile, folder: &Path) -> bool {
        let path = folder.join("m");
        file.copy_cached(&mut [0], 0) == Ok(1)
            && evict(&path).is_ok()
            && residency(&path).is_ok_and(|found| found.resident_bytes == 0)
    }

    pub(crate) fn job(crc: Option<Polynomial>) -> Job {
        let slab = Slab::new(1 << 20, 1, Arc::default()).expect("little memory");
        job_into(slab.try_lease(1 << 20).expect("free"), crc)
    }

    fn job_into(mut lease: Lease, crc: Option<Polynomial>) -> Job {
        lease.want_crc(crc);
        Job {
            extent: 0,
            source: 0,
            offset: 0,
            needed: LEN,
            lease,
        }
    }

    #[test]
    fn bytes_that_left_page_cache_are_read_at_once() {
        let (file, bytes, folder) = copied_file();
        let mut job = job(Some(CRC));
        let (mut state, mut read) = Fill::new(&job, &file);
        if !lets_go(&file, folder.path()) {
            return;
        }
        assert_eq!(read.len, COPY_BYTES);
        if state.copy(&file, &mut job.lease, &mut read).is_some() {
            // The disk was faster than this thread.
            return;
        }
        assert_eq!((read.window_offset, read.len), (0, job.lease.len()));
        job.lease.bytes_mut(0..LEN).copy_from_slice(&bytes);
        let step = state.after(&file, &mut job.lease, Ok(LEN));
        assert!(matches!(step, Step::Filled(LEN)), "{step:?}");
        let prefixes = state.take_prefixes().expect("wanted");
        assert_eq!(
            prefixes.remainder(&bytes, 1..LEN),
            CRC.remainder(0, &bytes[1..])
        );
    }

    #[test]
    fn views_get_no_crcs() {
        let (mut file, _bytes, _folder) = copied_file();
        let view = Arc::clone(file.map(false).expect("maps"));
        let lease = RegionWriter::over(&view, 0, LEN, 1).carve(LEN);
        let (mut state, _) = Fill::new(&job_into(lease, Some(CRC)), &file);
        assert!(state.take_prefixes().is_none());
    }

    #[test]
    fn crcs_are_those_of_bytes_that_came_in_steps_and_short_reads() {
        let (file, bytes, _folder) = copied_file();
        let mut job = job(Some(CRC));
        let (mut state, mut read) = Fill::new(&job, &file);
        let results = [
            Ok(100),
            Err(libc::EINTR),
            Ok(COPY_BYTES),
            Ok(COPY_BYTES - 1),
        ];
        let mut results = results.into_iter().chain([Ok(COPY_BYTES), Ok(678)]);
        let len = loop {
            assert!(read.len <= COPY_BYTES, "{read:?}");
            let result = results.next().expect("enough for all");
            if let Ok(count) = result {
                let window = read.window_offset..read.window_offset + count;
                job.lease
                    .bytes_mut(window.clone())
                    .copy_from_slice(&bytes[window]);
            }
            match state.after(&file, &mut job.lease, result) {
                Step::Read(next) => read = next,
                Step::Filled(len) => break len,
                Step::Later(..) | Step::Failed(_) => unreachable!("nothing else fails"),
            }
        };
        assert_eq!((len, results.next()), (LEN, None));
        let transfer = &state.transfer;
        assert_eq!((transfer.short_reads, transfer.retries), (2, 1));
        let prefixes = state.take_prefixes().expect("wanted");
        for range in [0..LEN, 1..LEN, 0..COPY_BYTES, 100_000..700_000] {
            let right = CRC.remainder(0, &bytes[range.clone()]);
            assert_eq!(
                prefixes.remainder(&bytes, range.clone()),
                right,
                "{range:?}"
            );
        }
    }

    #[test]
    fn engines_compute_crcs_of_copied_bytes_if_they_are_wanted() {
        let (file, bytes, _folder) = copied_file();
        let files: Arc<[ReadFile]> = [file].into();
        let setup = EngineSetup::new(files, 2);
        let threads = PreadEngine::open(&setup, 2).expect("opens");
        let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(threads)];
        engines.extend(uring::open(&setup).ok().map(|(ring, _)| ring));
        for (index, engine) in engines.iter_mut().enumerate() {
            for crc in [None, Some(CRC)] {
                let mut done = Vec::new();
                engine.submit(job(crc));
                engine.reap(Wait::ForOne, &mut done);
                let mut filled = done.remove(0).result.expect("read");
                assert_eq!(filled.has_crcs(), crc.is_some(), "engine {index}");
                assert_eq!(filled.bytes(), bytes);
                let right = CRC.remainder(0, &bytes);
                assert_eq!(filled.remainder(CRC, 0..LEN), right);
                // CRCs of bytes that may have been replaced are not used.
                filled.bytes_mut()[LEN / 2] ^= 1;
                assert_ne!(filled.remainder(CRC, 0..LEN), right);
            }
        }
    }
}
