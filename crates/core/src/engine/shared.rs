//! Engine of a rank that another rank reads for: fills jobs from shared memory.
//!
//! A window that is a view of the shared memory is filled once the leader says so; into any other
//! window the bytes are copied, by threads of the engine. Regions that the leader does not keep for
//! this rank are read from storage by the engines of a load without a group.

#![expect(
    unsafe_code,
    reason = "says which bytes of a lease another process has filled"
)]

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::reread::{self, RereadSetup, Rereads, Waiting, fell_behind};
use super::{Done, Engine, Job, Wait, cancelled};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Filled, SharedView, Strip};
use crate::plan::Plan;
use crate::report::Transfer;
use crate::sync::cancel::CancelFlag;
use crate::sync::event_count::EventCount;
use tload_engine::{Copiers, CopyTask, copy_panicked};
use tload_ranks::{Availability, Link};
use tload_registered::RegisteredRegions;

/// Configuration of a shared engine.
pub struct SharedSetup {
    /// Plan of the load: of slices, only the wanted bytes are copied.
    pub plan: Arc<Plan>,
    /// Connection to the leader.
    pub link: Arc<Link>,
    /// By source: the region that it stands for.
    pub regions: Vec<usize>,
    /// Number of jobs in flight that the engine must accept.
    pub depth: usize,
    /// Number of threads that copy; with one, the lane's own.
    pub copiers: usize,
    /// Bytes of a job that one thread copies: several copy a longer one.
    pub strip_bytes: usize,
    /// Memory of regions that GPUs read without a copy to the lease.
    pub registered: Option<RegisteredSource>,
    /// Reads in place of a leader that is lost.
    pub reread: RereadSetup,
}

impl fmt::Debug for SharedSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSetup")
            .field("link", &self.link)
            .field("regions", &self.regions.len())
            .finish_non_exhaustive()
    }
}

/// Registered memory of regions, and where it may be used.
#[derive(Clone, Debug)]
pub struct RegisteredSource {
    /// Regions whose memory is registered.
    pub regions: Arc<RegisteredRegions>,
    /// By destination of the plan: its sinks copy to a GPU.
    pub gpus: Vec<bool>,
}

/// Engine that waits for the leader of a node.
pub(super) struct SharedEngine {
    setup: Arc<SharedSetup>,
    /// Jobs that wait for the leader.
    waiting: Vec<Job>,
    copiers: Copiers,
    rereads: Rereads,
}

impl SharedEngine {
    pub(super) fn open(setup: &Arc<SharedSetup>) -> Self {
        Self {
            setup: Arc::clone(setup),
            waiting: Vec::new(),
            copiers: Copiers::new(setup.copiers, Arc::clone(setup.link.events())),
            rereads: Rereads::default(),
        }
    }

    /// Fills a job from shared memory that holds its bytes.
    fn receive(&mut self, mut job: Job, region: usize, done: &mut Vec<Done>) {
        if job.lease.is_view() {
            let received_bytes = job.needed as u64;
            // SAFETY: the lease is a view of this region, whose bytes the leader has filled and
            // does not write again.
            let filled = unsafe { job.lease.assume_filled(job.needed) };
            done.push(received(job.extent, filled, received_bytes));
            return;
        }
        let extent = job.extent;
        let view = match self.view(region) {
            Ok(view) => view,
            Err(error) => {
                done.push(Done::failed(job.extent, error));
                return;
            }
        };
        if self.setup.goes_to_gpu(job.extent)
            && let Some(registered) = &self.setup.registered
        {
            let start = usize::try_from(job.offset).expect("inside a mapping");
            let range = start..start + job.needed;
            // SAFETY: the leader has filled these bytes, and writes there again only once no view
            // shows them.
            match unsafe { registered.regions.fill(region, range, &view, job.lease) } {
                Ok(filled) => {
                    done.push(received(job.extent, filled, job.needed as u64));
                    return;
                }
                Err(lease) => job.lease = lease,
            }
        }
        let copies = copies(&self.setup, &view, job, self.copiers.threads());
        self.copiers.copy(extent, copies, done);
    }

    fn view(&self, region: usize) -> Result<Arc<SharedView>> {
        let view = self.setup.link.view(region);
        view.ok_or_else(|| Error::new(ErrorKind::Io, "a shared region was released too early"))
    }

    /// Reads a job from storage.
    fn read(&mut self, mut job: Job, region: usize, done: &mut Vec<Done>) {
        let extent = job.extent;
        if let Err(error) = self.rereads.open(&self.setup.reread) {
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
        self.rereads.submit(job, region);
    }
}

impl SharedSetup {
    /// Returns what the engine uses, for the report.
    pub(super) fn features(&self) -> Vec<String> {
        let registered = self.registered.iter();
        registered.map(|_| "registered_memory".to_owned()).collect()
    }

    /// Returns whether a sink copies all bytes of a job to a GPU, as they are.
    fn goes_to_gpu(&self, extent: usize) -> bool {
        let plan = &*self.plan;
        plan.extents.get(extent).is_none_or(|extent| {
            let destination = plan.regions[extent.region].destination;
            let registered = self.registered.as_ref();
            let is_gpu = registered.and_then(|it| it.gpus.get(destination).copied());
            is_gpu.unwrap_or(false) && plan.slice_in(extent).is_none()
        })
    }
}

/// Job whose strips are being copied.
#[derive(Debug)]
struct Striped {
    extent: usize,
    /// Offset of its bytes in the region.
    start: usize,
    needed: usize,
    /// Number of bytes that have been copied.
    copied: AtomicUsize,
    has_panicked: AtomicBool,
}

/// Returns the copies of a job from the view of its region: a long one is divided among threads.
fn copies(
    setup: &Arc<SharedSetup>,
    view: &Arc<SharedView>,
    job: Job,
    threads: usize,
) -> Vec<CopyTask> {
    let plan = &*setup.plan;
    let extent = plan.extents.get(job.extent);
    let is_slice = extent.is_some_and(|extent| plan.slice_in(extent).is_some());
    let strip_bytes = setup.strip_bytes.max(1);
    // The last strip ends with the window, which is longer by the pages at its edges.
    let count = job.needed / strip_bytes;
    let (setup, view) = (Arc::clone(setup), Arc::clone(view));
    if is_slice || threads == 0 || count < 2 {
        return vec![Box::new(move || Some(copy(&setup, &view, job)))];
    }
    let striped = Striped {
        extent: job.extent,
        start: usize::try_from(job.offset).expect("inside a mapping"),
        needed: job.needed,
        copied: AtomicUsize::new(0),
        has_panicked: AtomicBool::new(false),
    };
    let strips = job.lease.split(strip_bytes, count, striped);
    let copy = |strip| -> CopyTask {
        let (setup, view) = (Arc::clone(&setup), Arc::clone(&view));
        Box::new(move || copy_strip(&setup, &view, strip))
    };
    strips.map(copy).collect()
}

/// Copies one strip of a job, unless the load is over. The last one returns the result.
fn copy_strip(setup: &SharedSetup, view: &SharedView, mut strip: Strip<Striped>) -> Option<Done> {
    // A job has one result, so a strip that panics joins like the others.
    let copied = catch_unwind(AssertUnwindSafe(|| {
        if setup.reread.cancel.is_cancelled() {
            return;
        }
        let (range, job) = (strip.range(), strip.shared());
        let len = job.needed.min(range.end) - range.start;
        let start = job.start + range.start;
        // SAFETY: the view shows a region whose bytes the leader has filled and does not write
        // again.
        let bytes = unsafe { view.bytes(start..start + len) };
        strip.bytes_mut(0..len).copy_from_slice(bytes);
        strip.shared().copied.fetch_add(len, Ordering::Relaxed);
    }));
    if copied.is_err() {
        strip.shared().has_panicked.store(true, Ordering::Relaxed);
    }
    // The last one to join sees what the others have counted.
    let (lease, job) = strip.join()?;
    if job.has_panicked.into_inner() {
        return Some(Done::failed(job.extent, copy_panicked()));
    }
    if job.copied.into_inner() < job.needed {
        return Some(Done::failed(job.extent, cancelled()));
    }
    view.user_done();
    let filled = lease.written(job.needed);
    Some(received(job.extent, filled, job.needed as u64))
}

/// Copies the bytes of a job from the view of its region, which holds them, unless the load is
/// over.
fn copy(setup: &SharedSetup, view: &SharedView, mut job: Job) -> Done {
    if setup.reread.cancel.is_cancelled() {
        return Done::failed(job.extent, cancelled());
    }
    let plan = &*setup.plan;
    let extent = plan.extents.get(job.extent);
    let slice = extent.and_then(|extent| Some((extent, plan.slice_in(extent)?)));
    let start = usize::try_from(job.offset).expect("inside a mapping");
    // SAFETY: the view shows a region whose bytes the leader has filled and does not write again.
    let bytes = unsafe { view.bytes(start..start + job.needed) };
    let received_bytes = slice.map_or(job.needed, |(_, piece)| piece.len) as u64;
    let filled = match slice {
        None => job.lease.fill_from(bytes),
        // Copy only the rows of the slice: the whole tensor may be many times as long.
        Some((extent, _)) => {
            plan.gather_from(extent, bytes, job.lease.bytes_mut(0..job.needed));
            job.lease.written(job.needed).gathered()
        }
    };
    view.user_done();
    received(job.extent, filled, received_bytes)
}

/// Returns the result of a job that is filled from shared memory.
fn received(extent: usize, filled: Filled, received_bytes: u64) -> Done {
    Done {
        extent,
        result: Ok(filled),
        window: None,
        transfer: Transfer {
            received_bytes,
            ..Transfer::default()
        },
    }
}

impl Waiting for SharedEngine {
    fn setup(&self) -> &RereadSetup {
        &self.setup.reread
    }

    fn rereads(&mut self) -> &mut Rereads {
        &mut self.rereads
    }

    fn events(&self) -> &EventCount {
        self.setup.link.events()
    }

    fn is_copying(&self) -> bool {
        self.copiers.in_flight() > 0
    }

    fn look(&mut self, done: &mut Vec<Done>) {
        self.copiers.take(done);
        let mut still = Vec::with_capacity(self.waiting.len());
        for job in std::mem::take(&mut self.waiting) {
            let region = self.setup.regions[job.source];
            let start = usize::try_from(job.offset).expect("inside a mapping");
            let range = start..start + job.needed;
            if self.setup.reread.cancel.is_cancelled() {
                done.push(Done::failed(job.extent, cancelled()));
                continue;
            }
            match self.setup.link.availability(region, &range) {
                Availability::Filled => self.receive(job, region, done),
                Availability::Pending => still.push(job),
                Availability::Gone if self.setup.reread.is_verified => {
                    done.push(Done::failed(job.extent, fell_behind()));
                }
                Availability::Gone => self.read(job, region, done),
                Availability::Failed(error) => match self.setup.reread.failure(error) {
                    Some(error) => done.push(Done::failed(job.extent, error)),
                    None => self.read(job, region, done),
                },
            }
        }
        self.waiting.append(&mut still);
    }
}

impl Engine for SharedEngine {
    fn depth(&self) -> usize {
        self.setup.depth
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.copiers.in_flight() + self.rereads.in_flight()
    }

    fn submit(&mut self, job: Job) {
        self.setup.link.ask(self.setup.regions[job.source]);
        self.waiting.push(job);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        reread::reap(self, wait, done);
    }

    fn stop_when(&mut self, _cancel: &CancelFlag) {
        let link = Arc::downgrade(&self.setup.link);
        self.setup.reread.cancel.on_cancel(move || {
            if let Some(link) = link.upgrade() {
                link.events().notify();
            }
        });
    }
}

impl fmt::Debug for SharedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedEngine")
            .field("waiting", &self.waiting.len())
            .field("copiers", &self.copiers)
            .finish_non_exhaustive()
    }
}
