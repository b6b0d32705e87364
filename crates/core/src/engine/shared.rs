//! Engine of a rank that another rank reads for: fills jobs from shared memory.
//!
//! A window that is a view of the shared memory is filled once the leader says so; into any other
//! window the bytes are copied. Regions that the leader does not keep for this rank are read from
//! storage by the engines of a load without a group.

#![expect(
    unsafe_code,
    reason = "says which bytes of a lease another process has filled"
)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Done, Engine, Job, Wait, cancelled};
use crate::error::{Error, ErrorKind, Result};
use crate::options::OnPeerLoss;
use crate::ranks::link::{Availability, Link};
use crate::report::Transfer;
use crate::sync::cancel::CancelFlag;

/// Configuration of a shared engine.
pub(crate) struct SharedSetup {
    /// Connection to the leader.
    pub(crate) link: Arc<Link>,
    /// By source: the region that it stands for.
    pub(crate) regions: Vec<usize>,
    /// Number of jobs in flight that the engine must accept.
    pub(crate) depth: usize,
    pub(crate) on_peer_loss: OnPeerLoss,
    /// The leader verifies what it reads; nothing does so here.
    pub(crate) is_verified: bool,
    /// Bytes that have been read in place of the leader.
    pub(crate) reread_bytes: Arc<AtomicU64>,
    /// Opens what reads from storage, on the thread that uses it.
    pub(crate) open_storage: Box<OpenStorage>,
    pub(crate) cancel: Arc<CancelFlag>,
}

/// Opens the engines that read from storage.
pub(crate) type OpenStorage = dyn Fn() -> Result<StorageEngines> + Send + Sync;

/// Engines that read regions from storage.
pub(crate) struct StorageEngines {
    pub(crate) engines: Vec<Box<dyn Engine>>,
    /// By region: its engine, the source there, and the offset in that source.
    pub(crate) places: Vec<(usize, usize, u64)>,
}

impl fmt::Debug for SharedSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSetup")
            .field("link", &self.link)
            .field("regions", &self.regions.len())
            .finish_non_exhaustive()
    }
}

/// Engine that waits for the leader of a node.
pub(super) struct SharedEngine {
    setup: Arc<SharedSetup>,
    /// Jobs that wait for the leader.
    waiting: Vec<Job>,
    storage: Option<StorageEngines>,
    cancel: Option<Arc<CancelFlag>>,
}

impl SharedEngine {
    pub(super) fn open(setup: &Arc<SharedSetup>) -> Self {
        Self {
            setup: Arc::clone(setup),
            waiting: Vec::new(),
            storage: None,
            cancel: None,
        }
    }

    fn engines(&mut self) -> impl Iterator<Item = &mut Box<dyn Engine>> {
        let storage = self.storage.iter_mut();
        storage.flat_map(|storage| storage.engines.iter_mut())
    }

    /// Ends the jobs whose bytes are there, and those that have failed.
    fn look(&mut self, done: &mut Vec<Done>) {
        let mut still = Vec::with_capacity(self.waiting.len());
        for job in std::mem::take(&mut self.waiting) {
            let region = self.setup.regions[job.source];
            let start = usize::try_from(job.offset).expect("inside a mapping");
            let range = start..start + job.needed;
            if self.setup.cancel.is_cancelled() {
                done.push(Done::failed(job.extent, cancelled()));
                continue;
            }
            match self.setup.link.availability(region, &range) {
                Availability::Filled => done.push(self.receive(job, region)),
                Availability::Pending => still.push(job),
                Availability::Gone if self.setup.is_verified => {
                    done.push(Done::failed(job.extent, fell_behind()));
                }
                Availability::Gone => self.read(job, region, done),
                Availability::Failed(error)
                    if error.kind() == ErrorKind::Peer
                        && self.setup.on_peer_loss == OnPeerLoss::Read =>
                {
                    self.read(job, region, done);
                }
                Availability::Failed(error) => done.push(Done::failed(job.extent, error)),
            }
        }
        self.waiting.append(&mut still);
    }

    /// Fills a job from shared memory that holds its bytes.
    fn receive(&self, job: Job, region: usize) -> Done {
        let transfer = Transfer {
            received_bytes: job.needed as u64,
            ..Transfer::default()
        };
        let result = if job.lease.is_view() {
            // SAFETY: the lease is a view of this region, whose bytes the leader has filled and
            // does not write again.
            Ok(unsafe { job.lease.assume_filled(job.needed) })
        } else {
            let start = usize::try_from(job.offset).expect("inside a mapping");
            self.view(region).map(|view| {
                // SAFETY: the view shows the region, as above.
                let bytes = unsafe { view.bytes(start..start + job.needed) };
                let filled = job.lease.fill_from(bytes);
                view.user_done();
                filled
            })
        };
        Done {
            extent: job.extent,
            result,
            transfer,
        }
    }

    fn view(&self, region: usize) -> Result<Arc<crate::memory::SharedView>> {
        let view = self.setup.link.view(region);
        view.ok_or_else(|| Error::new(ErrorKind::Io, "a shared region was released too early"))
    }

    /// Reads a job from storage.
    fn read(&mut self, mut job: Job, region: usize, done: &mut Vec<Done>) {
        let extent = job.extent;
        if let Err(error) = self.open_storage() {
            done.push(Done::failed(extent, error));
            return;
        }
        if job.lease.is_view() {
            if let Err(error) = job.lease.make_private() {
                done.push(Done::failed(extent, error));
                return;
            }
        } else if let Ok(view) = self.view(region) {
            view.user_done();
        }
        let storage = self.storage.as_mut().expect("opened above");
        let (engine, source, offset) = storage.places[region];
        job.source = source;
        job.offset += offset;
        let engine = &mut storage.engines[engine];
        while engine.in_flight() >= engine.depth() {
            engine.reap(Wait::ForOne, done);
        }
        engine.submit(job);
    }

    fn count_reread(&self, done: &[Done]) {
        let bytes: u64 = done.iter().map(|done| done.transfer.read_bytes()).sum();
        self.setup.reread_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn open_storage(&mut self) -> Result<()> {
        if self.storage.is_none() {
            let mut storage = (self.setup.open_storage)()?;
            if let Some(cancel) = &self.cancel {
                for engine in &mut storage.engines {
                    engine.stop_when(cancel);
                }
            }
            self.storage = Some(storage);
        }
        Ok(())
    }
}

/// Returns the error of a rank that would have to read by itself what must be verified.
fn fell_behind() -> Error {
    let message =
        "this rank fell behind; the others went on, and it cannot verify what it would read itself";
    Error::new(ErrorKind::Peer, message)
        .with_hint("take tensors sooner, raise ‹memory_limit›, or use ‹verify=off›")
}

impl Engine for SharedEngine {
    fn depth(&self) -> usize {
        self.setup.depth
    }

    fn in_flight(&self) -> usize {
        let storage = self.storage.iter();
        let engines = storage.flat_map(|storage| &storage.engines);
        self.waiting.len() + engines.map(Engine::in_flight).sum::<usize>()
    }

    fn submit(&mut self, job: Job) {
        self.setup.link.claim(self.setup.regions[job.source]);
        self.waiting.push(job);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        let changes = self.setup.link.events().count();
        self.look(done);
        for engine in self.engines() {
            engine.reap(Wait::No, done);
        }
        if done.len() == before && wait == Wait::ForOne && self.in_flight() > 0 {
            let reading = self.engines().find(|engine| engine.in_flight() > 0);
            if let Some(engine) = reading {
                engine.reap(Wait::ForOne, done);
            } else {
                // Once only: the lane may have memory for another region by now, and the leader
                // none for what this one waits for until that has been taken.
                self.setup.link.events().wait_past(changes);
                self.look(done);
            }
        }
        self.count_reread(&done[before..]);
    }

    fn stop_when(&mut self, _cancel: &CancelFlag) {
        let link = Arc::downgrade(&self.setup.link);
        self.setup.cancel.on_cancel(move || {
            if let Some(link) = link.upgrade() {
                link.events().notify();
            }
        });
        self.cancel = Some(Arc::clone(&self.setup.cancel));
    }
}

impl fmt::Debug for SharedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedEngine")
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}
