//! Engine for objects that are mostly in the cache: an engine for files reads them from there, and
//! the store sends what is missing, or turns out to be damaged or unreadable.
//!
//! ```text
//!  submit ─▶ files ─ read ─▶ every tile matches its checksum ─▶ Filled
//!       │        └─ damaged, or cannot be read ─▶ store ─▶ Filled
//!       └─ a tile is missing ─▶ store ─▶ Filled
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::ObjectEngine;
use crate::engine::{Done, Engine, Job, ObjectSetup, Wait};
use crate::error::ErrorKind;
use crate::memory::Lease;
use crate::storage::Source;
use crate::storage::object::cache::{Entry, TILE_CRC};
use crate::sync::cancel::CancelFlag;
use crate::sync::latency::LatencyHistogram;

/// Engine that reads objects from the cache.
pub(super) struct CachedEngine {
    /// Reads the files of the cache, in the order of the objects.
    files: Box<dyn Engine>,
    store: ObjectEngine,
    setup: Arc<ObjectSetup>,
    /// Jobs that `files` has or has read, by extent, until they are confirmed.
    reading: HashMap<usize, Reading>,
    /// Latencies of `files`. The store is slower, and its engine watches it.
    latencies: LatencyHistogram,
}

/// Job of a file, until its bytes are known to be right.
struct Reading {
    source: usize,
    offset: u64,
    /// Bytes that the caller needs.
    needed: usize,
    /// Bytes that are read: whole tiles.
    verified: usize,
    since: Instant,
}

impl Reading {
    fn job(&self, extent: usize, lease: Lease) -> Job {
        Job {
            extent,
            source: self.source,
            offset: self.offset,
            needed: self.needed,
            lease,
        }
    }
}

impl CachedEngine {
    /// Reads `files`, the cached files of the objects of `setup`.
    pub(super) fn new(files: Box<dyn Engine>, setup: &Arc<ObjectSetup>) -> Self {
        Self {
            files,
            store: ObjectEngine::open(Arc::clone(setup)),
            setup: Arc::clone(setup),
            reading: HashMap::new(),
            latencies: LatencyHistogram::default(),
        }
    }

    fn entry(&self, source: usize) -> &Entry {
        let entry = self.setup.objects[source].entry();
        entry.expect("objects without an entry are requested")
    }

    /// Passes on what has been read. The store sends what could not be read.
    fn receive(&mut self, mut ended: Done, done: &mut Vec<Done>) {
        // A cancelled read is over, like its load.
        if let Err(error) = &ended.result
            && error.kind() != ErrorKind::Cancelled
            && let Some(lease) = ended.window.take()
        {
            tracing::debug!(%error, "cannot read from the cache");
            return self.request(ended.extent, lease);
        }
        let reading = self.reading.get(&ended.extent);
        let took = reading.expect("submitted").since.elapsed();
        ended.transfer.stalls += u64::from(took > self.latencies.limit());
        self.latencies.observe(took);
        done.push(ended);
    }

    /// Requests a job whose bytes the cache does not have.
    fn request(&mut self, extent: usize, lease: Lease) {
        let reading = self
            .reading
            .remove(&extent)
            .expect("engines return what was submitted");
        self.store.submit(reading.job(extent, lease));
    }
}

impl Engine for CachedEngine {
    fn depth(&self) -> usize {
        self.files.depth()
    }

    fn in_flight(&self) -> usize {
        self.files.in_flight() + self.store.in_flight()
    }

    fn submit(&mut self, mut job: Job) {
        let entry = self.entry(job.source);
        let behind = self.setup.objects[job.source].len() - job.offset;
        let verified =
            usize::try_from(behind).map_or(job.lease.len(), |it| it.min(job.lease.len()));
        let reading = Reading {
            source: job.source,
            offset: job.offset,
            needed: job.needed,
            verified,
            since: Instant::now(),
        };
        if !entry.holds(job.offset, verified) {
            return self.store.submit(job);
        }
        job.needed = verified;
        job.lease.want_crc(Some(TILE_CRC));
        self.reading.insert(job.extent, reading);
        self.files.submit(job);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        loop {
            if self.files.in_flight() > 0 {
                let passed = done.len();
                self.files.reap(wait, done);
                for one in done.split_off(passed) {
                    self.receive(one, done);
                }
            }
            // Wait for files first, because they are quick.
            let is_last = done.len() == before && self.files.in_flight() == 0;
            self.store.reap(if is_last { wait } else { Wait::No }, done);
            if wait == Wait::No || done.len() > before || self.in_flight() == 0 {
                return;
            }
        }
    }

    fn confirm(&mut self, mut done: Done) -> Option<Done> {
        // Bytes of the store have no tile checksums to compare with.
        let Some(reading) = self.reading.get(&done.extent) else {
            return Some(done);
        };
        done.result = match done.result {
            Ok(filled) => {
                let (offset, len) = (reading.offset, reading.verified);
                if !self.entry(reading.source).verify(offset, &filled, len) {
                    self.request(done.extent, filled.into_lease());
                    return None;
                }
                let transfer = &mut done.transfer;
                let direct = std::mem::take(&mut transfer.direct_bytes);
                transfer.cached_bytes = direct + std::mem::take(&mut transfer.buffered_bytes);
                self.setup.objects[reading.source].add_cached_bytes();
                Ok(filled)
            }
            Err(error) => Err(error),
        };
        self.reading.remove(&done.extent);
        Some(done)
    }

    fn allow(&mut self, bytes: u64) {
        self.files.allow(bytes);
    }

    fn stop_when(&mut self, cancel: &CancelFlag) {
        self.files.stop_when(cancel);
        self.store.stop_when(cancel);
    }
}
