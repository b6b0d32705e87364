//! Engines fill leases: the seam between the pipeline and storage.
//!
//! An engine knows files and memory, not tensors. It owns a lease from `submit` until `reap` hands it back, so the kernel never
//! writes to memory that somebody else has. The order of extents is not its business.

mod choose;
mod fill;
#[cfg(feature = "object")]
mod object;
mod pread;
#[cfg(all(target_os = "linux", any(feature = "uring", feature = "tokio-uring")))]
mod refused;
#[cfg(all(target_os = "linux", feature = "tokio-uring"))]
mod tokio_uring;
#[cfg(not(all(target_os = "linux", feature = "tokio-uring")))]
#[path = "no_tokio_uring.rs"]
mod tokio_uring;
#[cfg(all(target_os = "linux", feature = "uring"))]
mod uring;
#[cfg(not(all(target_os = "linux", feature = "uring")))]
#[path = "no_uring.rs"]
mod uring;
mod work;

#[cfg(feature = "object")]
pub use choose::open_objects;
pub use choose::{EngineKind, EngineSetup, OpenedEngine, Refusal, are_copied, choose, open};
#[cfg(feature = "object")]
pub use object::ObjectSetup;
pub use uring::{RingProbe, probe_ring};

#[cfg(all(target_os = "linux", any(feature = "uring", feature = "tokio-uring")))]
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::buffer::{Filled, Lease};
use crate::error::{Error, ErrorKind};
use crate::over::Over;

/// An extent on its way to an engine.
#[derive(Debug)]
pub struct Job {
    /// The caller's mark, handed back in [`Done`].
    pub extent: usize,
    /// Which of the engine's sources.
    pub source: usize,
    /// Where the read begins in the source; aligned as the source wants.
    pub offset: u64,
    /// Bytes that must arrive, at most the window's length.
    pub needed: usize,
    /// The window to fill.
    pub lease: Lease,
}

/// An extent on its way back.
#[derive(Debug)]
pub struct Done {
    /// The job's mark.
    pub extent: usize,
    /// The window, with at least the needed bytes in it; or why not, and then the window is free again.
    pub result: Result<Filled, Error>,
    /// What it took.
    pub transfer: Transfer,
}

impl Done {
    /// Of a job that failed before anything was read.
    pub fn failed(extent: usize, error: Error) -> Self {
        Self {
            extent,
            result: Err(error),
            transfer: Transfer::default(),
        }
    }
}

/// What reading one extent took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes read past the page cache.
    pub direct_bytes: u64,
    /// Bytes copied from the page cache.
    pub buffered_bytes: u64,
    /// Bytes that were mapped and not copied.
    pub mapped_bytes: u64,
    /// Bytes received from object stores.
    pub remote_bytes: u64,
    /// Requests to object stores.
    pub requests: u32,
    /// Reads that returned less than they were asked for, before the end of what was needed.
    pub short_reads: u32,
    /// Reads repeated because the system asked for it (`EINTR`, `EAGAIN`), refused direct I/O or failed in a way that may pass;
    /// requests repeated because they failed.
    pub retries: u32,
    /// Those of them that are reads of files tried again after a failure.
    pub read_retries: u32,
    /// Those of them that are requests.
    pub request_retries: u32,
    /// What was tried again last, and why.
    pub last_retry: Option<Arc<str>>,
    /// Requests that took much longer than is usual for so many bytes.
    pub stalls: u32,
    /// Requests sent a second time while the first one stalled.
    pub hedges: u32,
    /// Those of them that were faster.
    pub hedges_won: u32,
}

/// Whether to wait for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Take what is there.
    No,
    /// Until at least one job has ended; at once when none is in flight.
    ForOne,
}

/// Turns jobs into filled leases, in any order.
///
/// Dropping an engine waits for what is in flight, or leaks its memory: it never frees what the kernel may still write to.
pub trait Engine {
    /// The most jobs it takes at a time.
    fn depth(&self) -> usize;

    /// Jobs submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Starts a job. Never blocks on storage; the engine owns the lease until [`Self::reap`] hands it back. The caller keeps
    /// [`Self::in_flight`] below [`Self::depth`].
    fn submit(&mut self, job: Job);

    /// Moves every finished job into `done`: filled whole, or failed. Never short.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>);

    /// So many bytes may be in flight from now on, over all lanes: for engines that have something else to fit to that.
    fn allow(&mut self, _bytes: u64) {}

    /// When `over` is raised, lets go of what it can: what waits to be read, for the first time or again, fails as cancelled, and
    /// reads that the system can take back are taken back. The others end when the system answers. Called once, before the first
    /// job.
    fn stop_when(&mut self, _over: &Over) {}
}

/// Bytes of windows that are never freed, because the kernel may write to them at any time.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Leaks windows that were handed to a ring which no longer says when it is done with them.
#[cfg(all(target_os = "linux", any(feature = "uring", feature = "tokio-uring")))]
fn give_up(leases: impl IntoIterator<Item = Lease>) {
    let mut bytes = 0;
    for lease in leases {
        bytes += lease.len() as u64;
        let _ = ManuallyDrop::new(lease);
    }
    if bytes > 0 {
        GIVEN_UP.fetch_add(bytes, Ordering::Relaxed);
        tracing::error!(
            bytes,
            "a ring failed with reads in flight: their memory is never freed"
        );
    }
}

/// Returns the bytes of windows that failed rings have left to the kernel for good.
pub(crate) fn given_up_bytes() -> u64 {
    GIVEN_UP.load(Ordering::Relaxed)
}

/// The error of what was let go of because the load is over. Why it is, somebody else knows.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the load was cancelled")
}

impl<E: Engine + ?Sized> Engine for Box<E> {
    fn depth(&self) -> usize {
        (**self).depth()
    }

    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }

    fn submit(&mut self, job: Job) {
        (**self).submit(job);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        (**self).reap(wait, done);
    }

    fn allow(&mut self, bytes: u64) {
        (**self).allow(bytes);
    }

    fn stop_when(&mut self, over: &Over) {
        (**self).stop_when(over);
    }
}
