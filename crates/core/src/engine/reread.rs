//! Reads from storage in place of another rank: of bytes that it no longer has for this one, or
//! that were lost with it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Done, Engine, Job, Wait, cancelled};
use crate::error::{Error, ErrorKind, Result};
use crate::options::OnPeerLoss;
use crate::sync::cancel::CancelFlag;
use crate::sync::event_count::EventCount;

/// Configuration of the reads in place of another rank.
pub struct RereadSetup {
    /// Reaction to the loss of that rank.
    pub on_peer_loss: OnPeerLoss,
    /// The other rank verifies what it reads; nothing does so here.
    pub is_verified: bool,
    /// Bytes that have been read in its place.
    pub bytes: Arc<AtomicU64>,
    /// Opens what reads from storage, on the thread that uses it.
    pub open: Box<OpenStorage>,
    /// Ends the reads.
    pub cancel: Arc<CancelFlag>,
}

/// Opens the engines that read from storage.
pub(crate) type OpenStorage = dyn Fn() -> Result<StorageEngines> + Send + Sync;

/// Engines that read from storage.
pub struct StorageEngines {
    /// One for each group of sources.
    pub engines: Vec<Box<dyn Engine>>,
    /// By source of the engine in front: its engine here, the source there, and the offset in that
    /// source.
    pub places: Vec<(usize, usize, u64)>,
}

impl fmt::Debug for StorageEngines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageEngines")
            .field("engines", &self.engines.len())
            .finish_non_exhaustive()
    }
}

impl RereadSetup {
    /// Returns the error of bytes that failed there with `error`; none if they are read here.
    pub(super) fn failure(&self, error: Error) -> Option<Error> {
        if error.kind() != ErrorKind::Peer || self.on_peer_loss == OnPeerLoss::Error {
            return Some(error);
        }
        let hint = "‹on_peer_loss=read› cannot recover a verified load; load again";
        self.is_verified.then(|| error.with_hint(hint))
    }
}

impl fmt::Debug for RereadSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RereadSetup")
            .field("on_peer_loss", &self.on_peer_loss)
            .field("is_verified", &self.is_verified)
            .finish_non_exhaustive()
    }
}

/// Engines that read from storage, opened for the first read.
#[derive(Default)]
pub(super) struct Rereads {
    storage: Option<StorageEngines>,
    /// Jobs that have not begun, and the engine of each.
    waiting: VecDeque<(usize, Job)>,
}

impl Rereads {
    /// Number of reads that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        let storage = self.storage.iter();
        let engines = storage.flat_map(|storage| &storage.engines);
        engines.map(Engine::in_flight).sum::<usize>() + self.waiting.len()
    }

    /// Opens the engines.
    ///
    /// # Errors
    ///
    /// Those of opening files, objects and engines.
    pub(super) fn open(&mut self, setup: &RereadSetup) -> Result<()> {
        if self.storage.is_none() {
            let mut storage = (setup.open)()?;
            for engine in &mut storage.engines {
                engine.stop_when(&setup.cancel);
            }
            self.storage = Some(storage);
        }
        Ok(())
    }

    /// Queues a job of source `number` for engines that have been opened.
    pub(super) fn submit(&mut self, mut job: Job, number: usize) {
        let storage = self.storage.as_ref().expect("opened before");
        let (engine, source, offset) = storage.places[number];
        job.source = source;
        job.offset += offset;
        self.waiting.push_back((engine, job));
    }

    /// Begins the jobs for which their engines have room.
    fn begin(&mut self, cancel: &CancelFlag, done: &mut Vec<Done>) {
        let Some(storage) = &mut self.storage else {
            return;
        };
        for (index, job) in std::mem::take(&mut self.waiting) {
            let engine = &mut storage.engines[index];
            if cancel.is_cancelled() {
                done.push(Done::failed(job.extent, cancelled()));
            } else if engine.in_flight() < engine.depth() {
                engine.submit(job);
            } else {
                self.waiting.push_back((index, job));
            }
        }
    }

    fn engines(&mut self) -> impl Iterator<Item = &mut Box<dyn Engine>> {
        let storage = self.storage.iter_mut();
        storage.flat_map(|storage| storage.engines.iter_mut())
    }
}

/// Engine that waits for other ranks.
pub(super) trait Waiting: Engine {
    fn setup(&self) -> &RereadSetup;

    fn rereads(&mut self) -> &mut Rereads;

    /// Notified when a job may have ended.
    fn events(&self) -> &EventCount;

    /// Returns whether threads of the engine copy, which notify [`Self::events`] soon.
    fn is_copying(&self) -> bool {
        false
    }

    /// Ends the jobs that other ranks have ended, or begins to read them.
    fn look(&mut self, done: &mut Vec<Done>);
}

/// Implements [`Engine::reap`].
pub(super) fn reap(waiting: &mut impl Waiting, wait: Wait, done: &mut Vec<Done>) {
    let before = done.len();
    let cancel = Arc::clone(&waiting.setup().cancel);
    let changes = waiting.events().count();
    waiting.look(done);
    waiting.rereads().begin(&cancel, done);
    for engine in waiting.rereads().engines() {
        engine.reap(Wait::No, done);
    }
    if done.len() == before && wait == Wait::ForOne && waiting.in_flight() > 0 {
        let is_copying = waiting.is_copying();
        let mut engines = waiting.rereads().engines();
        // Storage may take long, and copies do not.
        if let Some(engine) = engines.find(|engine| !is_copying && engine.in_flight() > 0) {
            engine.reap(Wait::ForOne, done);
        } else {
            drop(engines);
            // Wait only once, then let the lane submit jobs that it has memory for by now: the
            // other rank may be unable to send more until those have been taken.
            waiting.events().wait_past(changes);
            waiting.look(done);
        }
    }
    let read = done[before..].iter().map(|done| done.transfer.read_bytes());
    let bytes = &waiting.setup().bytes;
    bytes.fetch_add(read.sum(), Ordering::Relaxed);
}

/// Returns the error of a rank that would have to read by itself what must be verified.
pub(super) fn fell_behind() -> Error {
    let message =
        "this rank fell behind; the others went on, and it cannot verify what it would read itself";
    Error::new(ErrorKind::Peer, message)
        .with_hint("take tensors sooner, raise ‹memory_limit›, or use ‹verify=off›")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Slab;

    /// Engine for one job, which never ends.
    struct Busy(Option<Job>);

    impl Engine for Busy {
        fn depth(&self) -> usize {
            1
        }

        fn in_flight(&self) -> usize {
            self.0.iter().count()
        }

        fn submit(&mut self, job: Job) {
            assert!(self.0.replace(job).is_none(), "more jobs than its depth");
        }

        fn reap(&mut self, wait: Wait, _: &mut Vec<Done>) {
            assert_eq!(wait, Wait::No, "would block");
        }
    }

    #[test]
    fn job_for_a_full_engine_waits_without_blocking_the_lane() {
        let slab = Slab::new(4096, 3, Arc::default()).expect("little memory");
        let mut rereads = Rereads {
            storage: Some(StorageEngines {
                engines: vec![Box::new(Busy(None))],
                places: vec![(0, 0, 0)],
            }),
            waiting: VecDeque::new(),
        };
        let (cancel, mut done) = (CancelFlag::default(), Vec::new());
        for extent in 0..3 {
            let job = Job {
                extent,
                source: 0,
                offset: 0,
                needed: 4096,
                lease: slab.try_lease(4096).expect("free"),
            };
            rereads.submit(job, 0);
            rereads.begin(&cancel, &mut done);
        }
        assert_eq!((rereads.in_flight(), done.len()), (3, 0));
        cancel.cancel();
        rereads.begin(&cancel, &mut done);
        let ended: Vec<_> = done.iter().map(|done| done.extent).collect();
        assert_eq!((rereads.in_flight(), ended), (1, vec![1, 2]));
    }
}
