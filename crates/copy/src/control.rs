//! Progress and cancellation of a copy that runs, seen from other threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::cancel::Stop;
use crate::error::{Error, ErrorKind};
use crate::options::{Location, format_bytes};
use crate::sync::lock::Mutex;

/// Observes a copy, and cancels it, from another thread.
#[derive(Clone, Debug)]
pub struct CopyControl {
    pub(super) ongoing: Arc<Ongoing>,
    pub(super) source: Location,
    pub(super) target: PathBuf,
}

/// Progress of a copy. Values only grow, except the totals, which are discovered step by step where
/// sources cannot be listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress {
    /// Bytes of the files to copy, without skipped files; with `hf_cache`, bytes to download and
    /// those to copy from the cache.
    pub bytes_total: u64,
    /// Bytes of these that have arrived, including those from earlier copies.
    pub bytes_done: u64,
    /// Bytes of incomplete files that the next copy need not request again; set once the copy has
    /// failed or was cancelled, and then grows until it has ended.
    pub bytes_kept: u64,
}

/// Cancellation flag and counters of a copy.
#[derive(Debug, Default)]
pub struct Ongoing {
    /// Flag.
    pub stop: Stop,
    /// True if the caller set the flag.
    pub cancelled: AtomicBool,
    /// Bytes of the files to copy.
    pub bytes_total: AtomicU64,
    /// Bytes that have arrived.
    pub bytes_read: AtomicU64,
    /// Bytes of an earlier copy.
    pub bytes_resumed: AtomicU64,
    /// Bytes that the next copy need not read.
    pub bytes_kept: AtomicU64,
    /// Bytes of incomplete files that their journals have.
    pub bytes_recorded: AtomicU64,
    /// Files that are complete.
    pub copied_files: AtomicU64,
    /// Files that existed.
    pub skipped_files: AtomicU64,
    /// Their bytes.
    pub skipped_bytes: AtomicU64,
    /// Requests.
    pub requests: AtomicU64,
    /// Requests that were sent again.
    pub retries: AtomicU64,
    /// Files without a validator.
    pub unversioned_files: AtomicU64,
    /// Download into a hub's cache, which precedes the copy from there.
    pub(super) download: Mutex<Option<Arc<Ongoing>>>,
}

impl Ongoing {
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.stop.cancel();
        if let Some(download) = &*self.download.lock() {
            download.cancel();
        }
    }

    /// Returns the state of a download for this copy, which is cancelled with it.
    pub(super) fn begin_download(&self) -> Arc<Self> {
        let begun = Arc::<Self>::default();
        *self.download.lock() = Some(Arc::clone(&begun));
        // The download is stored first, so that a concurrent cancellation either shows here or
        // finds the download.
        if self.cancelled.load(Ordering::SeqCst) {
            begun.cancel();
        }
        begun
    }

    /// Notes that the download for this copy has ended. Its requests count as those of the copy. If
    /// it has failed, what it keeps is not what the copy continues from.
    pub(super) fn end_download(&self) {
        let download = self.download.lock();
        let Some(download) = &*download else { return };
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let done = load(&download.bytes_read) + load(&download.bytes_resumed);
        download.bytes_total.store(done, Ordering::Relaxed);
        for kept in [&download.bytes_kept, &download.bytes_recorded] {
            kept.store(0, Ordering::Relaxed);
        }
        Self::add(&self.requests, load(&download.requests));
        Self::add(&self.retries, load(&download.retries));
    }

    /// Returns the progress of the download for this copy.
    pub(super) fn of_download(&self) -> CopyProgress {
        if let Some(download) = &*self.download.lock() {
            return download.progress();
        }
        CopyProgress::default()
    }

    /// Returns the progress, including that of the download.
    pub(super) fn progress(&self) -> CopyProgress {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // A copy that hangs in its storage cannot report what it keeps, but its journal has
        // recorded some of it.
        let recorded = if self.stop.is_cancelled() {
            load(&self.bytes_recorded)
        } else {
            0
        };
        let before = self.of_download();
        CopyProgress {
            bytes_total: before.bytes_total + load(&self.bytes_total),
            bytes_done: before.bytes_done + load(&self.bytes_read) + load(&self.bytes_resumed),
            bytes_kept: before.bytes_kept + load(&self.bytes_kept).max(recorded),
        }
    }

    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// Counts a file that exists.
    pub fn skip(&self, len: u64) {
        Self::add(&self.skipped_files, 1);
        Self::add(&self.skipped_bytes, len);
    }
}

impl CopyControl {
    /// Cancels the copy; it ends soon. The bytes that have arrived are kept for the next copy.
    pub fn cancel(&self) {
        self.ongoing.cancel();
    }

    /// Returns the progress.
    pub fn progress(&self) -> CopyProgress {
        self.ongoing.progress()
    }

    /// Returns the error for a copy that the caller ends because it took longer than `timeout`. It
    /// says how far the copy got, and, once the copy was cancelled, how much is kept.
    pub fn timed_out(&self, timeout: Duration) -> Error {
        let now = self.progress();
        let far = match now.bytes_total {
            0 => "the source was still being listed".to_owned(),
            total => format!(
                "{} of {} had been copied",
                // Files of an earlier copy that have not been looked at yet are kept, too.
                format_bytes(now.bytes_done.max(now.bytes_kept)),
                format_bytes(total)
            ),
        };
        let place = match self.ongoing.of_download().bytes_kept {
            0 => self.target.display().to_string(),
            _ => "the hub's cache".to_owned(),
        };
        let hint = match now.bytes_kept {
            0 => "raise ‹timeout›, or check the storage: tload doctor LOCATION".to_owned(),
            kept => format!(
                "copy again to resume, as {} are kept in {place}; or raise ‹timeout›",
                format_bytes(kept)
            ),
        };
        let message = format!("the copy took longer than its timeout of {timeout:?}; {far}");
        Error::new(ErrorKind::TimedOut, message)
            .with_location(&self.source)
            .with_hint(hint)
    }
}
