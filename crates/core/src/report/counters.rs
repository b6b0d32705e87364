//! Counters that lanes increment while they run, and their transfer to a report.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::Report;
use crate::engine::Transfer;

/// Failures and delays that did not end the load.
#[derive(Debug, Default)]
pub(crate) struct RetryStats {
    read_retries: u64,
    request_retries: u64,
    last_retry: Option<Arc<str>>,
    stalls: u64,
    hedges: u64,
    hedges_won: u64,
}

impl From<Transfer> for RetryStats {
    fn from(transfer: Transfer) -> Self {
        Self {
            read_retries: u64::from(transfer.read_retries),
            request_retries: u64::from(transfer.request_retries),
            last_retry: transfer.last_retry,
            stalls: u64::from(transfer.stalls),
            hedges: u64::from(transfer.hedges),
            hedges_won: u64::from(transfer.hedges_won),
        }
    }
}

/// Counters that lanes increment while they run.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Time when the first lane began to read, after its engine was open and its memory registered.
    pub(crate) reading_since: OnceLock<Instant>,
    pub(crate) extents: AtomicU64,
    pub(crate) direct_bytes: AtomicU64,
    pub(crate) buffered_bytes: AtomicU64,
    pub(crate) mapped_bytes: AtomicU64,
    pub(crate) remote_bytes: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) short_reads: AtomicU64,
    pub(crate) retries: AtomicU64,
    retry_stats: Mutex<RetryStats>,
    submit_nanos: AtomicU64,
    storage_wait_nanos: AtomicU64,
    memory_wait_nanos: AtomicU64,
    copy_wait_nanos: AtomicU64,
    deliver_nanos: AtomicU64,
    verify_nanos: AtomicU64,
}

/// Activity of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Submit,
    StorageWait,
    MemoryWait,
    CopyWait,
    Deliver,
    Verify,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        // The counters are only read for display: no ordering is needed.
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn spent(&self, stage: Stage, time: Duration) {
        let counter = match stage {
            Stage::Submit => &self.submit_nanos,
            Stage::StorageWait => &self.storage_wait_nanos,
            Stage::MemoryWait => &self.memory_wait_nanos,
            Stage::CopyWait => &self.copy_wait_nanos,
            Stage::Deliver => &self.deliver_nanos,
            Stage::Verify => &self.verify_nanos,
        };
        Self::add(counter, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the retries, stalls and hedges of one extent, if any.
    pub(crate) fn count_retries(&self, new: RetryStats) {
        let count = new.read_retries + new.request_retries + new.stalls + new.hedges;
        if count + new.hedges_won == 0 {
            return;
        }
        let mut all = self
            .retry_stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.read_retries += new.read_retries;
        all.request_retries += new.request_retries;
        all.stalls += new.stalls;
        all.hedges += new.hedges;
        all.hedges_won += new.hedges_won;
        if new.last_retry.is_some() {
            all.last_retry = new.last_retry;
        }
    }

    /// Returns the bytes that have arrived from storage so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        [
            &self.direct_bytes,
            &self.buffered_bytes,
            &self.mapped_bytes,
            &self.remote_bytes,
        ]
        .map(|counter| counter.load(Ordering::Relaxed))
        .into_iter()
        .sum()
    }

    pub(crate) fn fill(&self, report: &mut Report) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let seconds = |counter: &AtomicU64| Duration::from_nanos(load(counter)).as_secs_f64();
        report.extents = load(&self.extents);
        report.direct_bytes = load(&self.direct_bytes);
        report.buffered_bytes = load(&self.buffered_bytes);
        report.mapped_bytes = load(&self.mapped_bytes);
        report.remote_bytes = load(&self.remote_bytes);
        report.requests = load(&self.requests);
        report.read_bytes = self.read_bytes();
        report.short_reads = load(&self.short_reads);
        report.retries = load(&self.retries);
        self.fill_troubles(report);
        report.stages.submit = seconds(&self.submit_nanos);
        report.stages.storage_wait = seconds(&self.storage_wait_nanos);
        report.stages.memory_wait = seconds(&self.memory_wait_nanos);
        report.stages.copy_wait = seconds(&self.copy_wait_nanos);
        report.stages.deliver = seconds(&self.deliver_nanos);
        report.stages.verify = seconds(&self.verify_nanos);
    }

    fn fill_troubles(&self, report: &mut Report) {
        let retry_stats = self
            .retry_stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        report.read_retries = retry_stats.read_retries;
        report.request_retries = retry_stats.request_retries;
        report.last_retry = retry_stats.last_retry.as_deref().map(str::to_owned);
        report.stalls = retry_stats.stalls;
        report.hedges = retry_stats.hedges;
        report.hedges_won = retry_stats.hedges_won;
    }
}
