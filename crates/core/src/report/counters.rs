//! Counters that lanes increment while they run, and their snapshot in a report.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::{Report, StageTimes, Transfer};
use crate::sync::lock::Mutex;

/// Counters that lanes increment while they run.
#[derive(Debug, Default)]
pub struct Counters {
    /// Time when the first lane began to read, after its engine was open and its memory registered.
    pub(crate) reading_since: OnceLock<Instant>,
    /// Time when the first extent had been read.
    pub(crate) first_read: OnceLock<Instant>,
    extents: AtomicU64,
    /// Bytes that requests to stores have received, also those of extents that are not complete.
    arrived: Arc<AtomicU64>,
    transfer: Mutex<Transfer>,
    stage_nanos: [AtomicU64; Stage::Verify as usize + 1],
}

/// Activity of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Submit,
    StorageWait,
    MemoryWait,
    CopyWait,
    Deliver,
    /// The last one: its number is the size of the counters.
    Verify,
}

impl Counters {
    /// Adds the statistics of one extent.
    pub(crate) fn count(&self, transfer: Transfer) {
        self.first_read.get_or_init(Instant::now);
        add(&self.extents, 1);
        *self.transfer.lock() += transfer;
    }

    pub(crate) fn spent(&self, stage: Stage, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        add(&self.stage_nanos[stage as usize], nanos);
    }

    /// Returns the bytes that have arrived from storage so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.transfer.lock().read_bytes()
    }

    /// Returns the counter of the bytes that requests receive.
    pub(crate) fn arrived(&self) -> &Arc<AtomicU64> {
        &self.arrived
    }

    /// Returns the bytes that have arrived so far: from storage, also of requests that are not
    /// complete, and from other ranks.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        let transfer = self.transfer.lock();
        let complete = transfer.remote_bytes + transfer.cached_bytes;
        let arrived = self.arrived.load(Ordering::Relaxed).max(complete);
        transfer.read_bytes() - complete + arrived + transfer.received_bytes
    }

    /// Returns the bytes that have been received from other ranks so far.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.transfer.lock().received_bytes
    }

    /// Adds the reads to a report that has the reads of other lanes. Bytes from other ranks are not
    /// added, because they are counted for the whole node.
    pub(crate) fn add_to(&self, report: &mut Report) {
        let transfer = self.transfer.lock().clone();
        report.extents += self.extents.load(Ordering::Relaxed);
        report.add_transfer(Transfer {
            received_bytes: 0,
            ..transfer
        });
    }

    pub(crate) fn fill(&self, report: &mut Report) {
        report.extents = self.extents.load(Ordering::Relaxed);
        report.set_transfer(self.transfer.lock().clone());
        let seconds = |stage: Stage| {
            let nanos = &self.stage_nanos[stage as usize];
            Duration::from_nanos(nanos.load(Ordering::Relaxed)).as_secs_f64()
        };
        report.stages = StageTimes {
            submit: seconds(Stage::Submit),
            storage_wait: seconds(Stage::StorageWait),
            memory_wait: seconds(Stage::MemoryWait),
            copy_wait: seconds(Stage::CopyWait),
            deliver: seconds(Stage::Deliver),
            verify: seconds(Stage::Verify),
            consumer_wait: report.stages.consumer_wait,
        };
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    // The counters are only read for display: no ordering is needed.
    counter.fetch_add(amount, Ordering::Relaxed);
}
