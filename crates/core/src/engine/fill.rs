//! State of one extent and the interpretation of read results. Shared by the engines that read
//! files; pure except for what it learns about the file.
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
use std::time::Duration;

use super::{Job, Transfer};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{Access, ReadFile, Source};
use crate::sync::retry::{PROGRESS_BYTES, Transient};

/// Maximum number of consecutive `EAGAIN` and `EINTR` without a byte of progress: beyond this
/// something is broken, and an error is better than a loop.
const RETRIES_MAX: u32 = 10_000;

/// [`PROGRESS_BYTES`] as an offset in a window.
const PROGRESS: usize = PROGRESS_BYTES as usize;

/// Maximum number of consecutive direct reads that returned less than one unit: a file system with
/// more bytes would have returned them by now.
const STUMPS_MAX: u32 = 100;

/// State of one extent.
#[derive(Debug)]
pub(super) struct Fill {
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
    pub(super) transfer: Transfer,
}

/// Next read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    /// Offset of the bytes in the window.
    pub(super) window_offset: usize,
    /// Offset of the bytes in the file.
    pub(super) offset: u64,
    /// Number of bytes to request.
    pub(super) len: usize,
    /// Descriptor to use.
    pub(super) access: Access,
}

/// Next step after the result of a read.
#[derive(Debug)]
pub(super) enum Step {
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
pub(super) fn not_shown(file: &ReadFile, offset: u64, needed: usize, error: io::Error) -> Error {
    // The system returns the same error for unreadable pages and for pages beyond a truncated end.
    let error = match file.source().verify_unchanged() {
        Err(changed) if error.raw_os_error() == Some(libc::EFAULT) => return changed,
        _ if error.raw_os_error() == Some(libc::EFAULT) => Error::new(
            ErrorKind::Io,
            "cannot read: the system could not bring in its pages",
        )
        .with_hint("look at the disk, or at the mount and its server; the kernel's log (dmesg) may say more")
        .with_source(error),
        _ => Error::from_io("cannot read", error),
    };
    error
        .with_location(file.source().location())
        .with_range(offset..offset + needed as u64)
}

impl Fill {
    /// Creates the state of an extent that has not been read. Also returns its first read.
    pub(super) fn new(job: &Job, file: &ReadFile) -> (Self, Read) {
        let mut new = Self {
            offset: job.offset,
            window: job.lease.len(),
            needed: job.needed,
            filled: 0,
            access: file.access(job.offset, job.needed),
            retries_in_row: 0,
            stumps_in_row: 0,
            failed_in_row: 0,
            failed_at: 0,
            opening: 0,
            transfer: Transfer::default(),
        };
        let first = new.read(file);
        (new, first)
    }

    /// Returns the next read, for the file's current opening.
    fn read(&mut self, file: &ReadFile) -> Read {
        self.opening = file.openings();
        Read {
            window_offset: self.filled,
            offset: self.offset + self.filled as u64,
            len: self.window - self.filled,
            access: self.access,
        }
    }

    /// Processes the result of the last read: a count of bytes or an error number.
    pub(super) fn after(&mut self, file: &ReadFile, result: Result<usize, i32>) -> Step {
        match result {
            Ok(0) if self.filled < self.needed => Step::Failed(self.ended_early(file)),
            Ok(count) => self.advance(file, count),
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
        self.transfer.short_reads += 1;
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
            let message = format!("cannot read, tried {attempts} times without progress");
            return Err(self.placed(file, Error::from_io(message, cause)).with_hint(
                "look at the mount and its server; ‹retries› sets the number of retries",
            ));
        };
        self.transfer.retries += 1;
        self.transfer.read_retries += 1;
        let at = self.offset + self.filled as u64;
        let end = self.offset + self.needed as u64;
        let location = file.source().location();
        self.transfer.last_retry = Some(format!("read of {location} [{at}..{end}]: {cause}"));
        Ok(pause)
    }

    /// Returns the pause before the next attempt to bring in the pages of a view; `None` if the
    /// error is permanent.
    pub(super) fn not_shown(&mut self, file: &ReadFile, error: &io::Error) -> Option<Duration> {
        // `EFAULT` is the only report of pages that could not be read. Truncated pages cause the
        // same, so the file is checked.
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
            "the file was truncated while it was read; load again when no process writes to it",
        )
    }

    fn placed(&self, file: &ReadFile, error: Error) -> Error {
        let range = self.offset..self.offset + self.needed as u64;
        error
            .with_location(file.source().location())
            .with_range(range)
    }
}
