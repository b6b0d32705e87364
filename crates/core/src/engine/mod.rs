//! Engines fill leases: the seam between the pipeline and storage.
//!
//! An engine knows files and memory, not tensors. It owns a lease from `submit` until `reap` hands it back, so the kernel never
//! writes to memory that somebody else has. Retries of a whole extent and the order of extents are not its business.

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

#[cfg(feature = "object")]
pub use choose::open_objects;
pub use choose::{EngineKind, EngineSetup, OpenedEngine, Refusal, are_copied, choose, open};
#[cfg(feature = "object")]
pub use object::ObjectSetup;
pub use uring::{RingProbe, probe_ring};

use crate::buffer::{Filled, Lease};
use crate::error::Error;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Reads repeated because the system asked for it (`EINTR`, `EAGAIN`) or refused direct I/O; requests repeated because they
    /// failed.
    pub retries: u32,
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
}
