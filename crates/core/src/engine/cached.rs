//! Engine for objects that the cache has all bytes of: an engine for files reads them from the
//! cache, and the store sends what turns out to be damaged or unreadable there.
//!
//! ```text
//!  submit ─▶ files ─ read ─▶ every tile matches its checksum ─▶ Filled
//!                └─ damaged, or cannot be read ─▶ store ─▶ Filled
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use super::object::{ObjectEngine, ObjectSetup};
use super::{Done, Engine, Job, Wait};
use crate::error::ErrorKind;
use crate::memory::{Lease, Provenance};
use crate::storage::Source;
use crate::storage::object::cache::Entry;
use crate::sync::cancel::CancelFlag;

/// Engine that reads objects from the cache.
pub(super) struct CachedEngine {
    /// Reads the files of the cache, in the order of the objects.
    files: Box<dyn Engine>,
    store: ObjectEngine,
    setup: Arc<ObjectSetup>,
    /// Jobs that `files` has, by extent.
    reading: HashMap<usize, Reading>,
    /// Jobs that `files` has ended.
    ended: Vec<Done>,
}

/// Job of a file.
struct Reading {
    source: usize,
    offset: u64,
    /// Bytes that the caller needs.
    needed: usize,
    /// Bytes that are read: whole tiles.
    verified: usize,
}

impl CachedEngine {
    /// Reads `files`, the cached files of the objects of `setup`.
    pub(super) fn new(files: Box<dyn Engine>, setup: &Arc<ObjectSetup>) -> Self {
        Self {
            files,
            store: ObjectEngine::open(Arc::clone(setup)),
            setup: Arc::clone(setup),
            reading: HashMap::new(),
            ended: Vec::new(),
        }
    }

    fn entry(&self, source: usize) -> &Entry {
        let entry = self.setup.objects[source].entry();
        entry.expect("objects without an entry are requested")
    }

    /// Passes on what was read, if it is what was written; otherwise requests it.
    fn judge(&mut self, mut ended: Done, done: &mut Vec<Done>) {
        let reading = self.reading.remove(&ended.extent);
        let reading = reading.expect("engines return what was submitted");
        let lease = match ended.result {
            Ok(filled) => {
                let bytes = &filled.bytes()[..reading.verified];
                if self.entry(reading.source).verify(reading.offset, bytes) {
                    let transfer = &mut ended.transfer;
                    let direct = std::mem::take(&mut transfer.direct_bytes);
                    transfer.cached_bytes = direct + std::mem::take(&mut transfer.buffered_bytes);
                    ended.result = Ok(filled.from_places(Provenance::CACHE));
                    return done.push(ended);
                }
                filled.into_lease()
            }
            // The load is over.
            Err(ref error) if error.kind() == ErrorKind::Cancelled => return done.push(ended),
            Err(ref error) => {
                tracing::debug!(%error, "cannot read from the cache");
                let Some(lease) = ended.window.take() else {
                    return done.push(ended);
                };
                lease
            }
        };
        self.request(ended.extent, &reading, lease);
    }

    fn request(&mut self, extent: usize, reading: &Reading, lease: Lease) {
        self.store.submit(Job {
            extent,
            source: reading.source,
            offset: reading.offset,
            needed: reading.needed,
            lease,
        });
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
        };
        if !entry.holds_whole_tiles(job.offset, verified) {
            return self.request(job.extent, &reading, job.lease);
        }
        job.needed = verified;
        self.reading.insert(job.extent, reading);
        self.files.submit(job);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        loop {
            if self.files.in_flight() > 0 {
                let mut ended = std::mem::take(&mut self.ended);
                self.files.reap(wait, &mut ended);
                for one in ended.drain(..) {
                    self.judge(one, done);
                }
                self.ended = ended;
            }
            // Damage is rare: the files are waited for first.
            let is_last = done.len() == before && self.files.in_flight() == 0;
            self.store.reap(if is_last { wait } else { Wait::No }, done);
            if wait == Wait::No || done.len() > before || self.in_flight() == 0 {
                return;
            }
        }
    }

    fn allow(&mut self, bytes: u64) {
        self.files.allow(bytes);
    }

    fn stop_when(&mut self, cancel: &CancelFlag) {
        self.files.stop_when(cancel);
        self.store.stop_when(cancel);
    }
}
