//! Engines fill leases: the interface between the pipeline and storage, and the engines for files.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! An engine knows files and memory, not tensors. It owns a lease from `submit` until `reap` hands
//! it back, so the kernel never writes to memory that has another owner. `submit` never blocks on
//! storage. `reap` returns a lease filled whole or as failed, never short, in any order. Short
//! reads, `EINTR`, `EAGAIN`, refused direct I/O and transient errors end below this interface
//! (`fill.rs`). A [`Done`] carries `Result<Filled, Error>`: only an engine makes a `Filled`, so
//! memory that was not read cannot become a tensor
//! ([0001](../../../docs/design/0001-filled-leases.md)). The interface is modelled on
//! completions, not on `async fn`: work completes out of order and holds memory meanwhile.
//!
//! # Windows
//!
//! An engine fills two kinds of window and does not distinguish them.
//!
//! *In place*, for tensors in host memory: a window lies in the region that the tensor will own, so
//! direct I/O needs no copy. A region begins on a page and at an aligned file offset, so every
//! address in it is congruent to its file offset modulo the alignment of direct I/O. Windows are
//! rounded outwards to it; bytes at their edges are read twice.
//!
//! *Staged*, for tensors on a GPU or in the caller's memory, and for slices with gaps: a window is
//! a slot of a slab, which is populated once, registered with the ring, pinned for the GPU, and
//! kept for the next load. The sink owns a filled slot until the copy's event has fired. A tensor
//! larger than the slab streams through it ([0003](../../../docs/design/0003-gpu-memory.md)).
//!
//! A third kind is a view of the file, whose lease refuses writes (`cache=map`,
//! [0006](../../../docs/design/0006-page-cache.md)).
//!
//! # Engines
//!
//! * [`uring`]: one ring per lane; `preadv2` for cached bytes to verify; direct I/O, registered
//!   files and slabs and `DEFER_TASKRUN` where permitted.
//! * [`PreadEngine`]: threads that call `pread`, or that populate the pages of views.
//!
//! [`Copiers`] are threads that copy for engines in crates above, from memory. [`copier_count`]
//! decides how many.
//!
//! [`Fill`] judges the result of each read, for these and for engines for files in crates above.

pub mod copier_count;
mod copiers;
mod fill;
mod pread;
mod priority;
mod setup;
mod strips;
mod transfer;
#[cfg(not(all(target_os = "linux", feature = "uring")))]
#[path = "no_uring.rs"]
pub mod uring;
#[cfg(all(target_os = "linux", feature = "uring"))]
pub mod uring;
mod work;

// Paths that the crates of tload share.
pub(crate) use tload_base::{crc, error, sync};
pub(crate) use {tload_memory as memory, tload_storage as storage};

pub use copiers::{Copiers, CopyTask, copy_panicked};
pub use fill::{Fill, Read, Step, Window};
pub use pread::PreadEngine;
pub use setup::{EngineSetup, Refusal, RingProbe};
pub use tload_numa as numa;
pub use transfer::Transfer;
pub use work::Work;

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind};
use crate::memory::{Filled, Lease};
use crate::sync::cancel::CancelFlag;

/// Extent on its way to an engine.
#[derive(Debug)]
pub struct Job {
    /// Index chosen by the caller, returned in [`Done`].
    pub extent: usize,
    /// Index of the engine's source.
    pub source: usize,
    /// Offset in the source where the read begins; aligned as the source requires.
    pub offset: u64,
    /// Number of bytes that must arrive, at most the window's length.
    pub needed: usize,
    /// Window to fill.
    pub lease: Lease,
}

/// Extent on its way back from an engine.
#[derive(Debug)]
pub struct Done {
    /// The job's `extent`.
    pub extent: usize,
    /// The window with at least the needed bytes in it; or an error, and then the window is free
    /// again, unless it is in `window`.
    pub result: Result<Filled, Error>,
    /// The window of a job that failed, if the engine hands it back: another engine may fill it.
    pub window: Option<Lease>,
    /// Statistics of the job's reads.
    pub transfer: Transfer,
}

impl Done {
    /// Returns the result of a job that failed before anything was read.
    pub fn failed(extent: usize, error: Error) -> Self {
        Self {
            extent,
            result: Err(error),
            window: None,
            transfer: Transfer::default(),
        }
    }
}

/// Mode of waiting for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Take the completions that are available.
    No,
    /// Wait until at least one job has ended; return at once when none is in flight.
    ForOne,
}

/// Turns jobs into filled leases, in any order.
///
/// Dropping an engine waits for the reads in flight, or leaks their memory: it never frees memory
/// that the kernel may still write to.
pub trait Engine {
    /// Returns the maximum number of jobs in flight.
    fn depth(&self) -> usize;

    /// Returns the number of jobs submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Starts a job. Never blocks on storage; the engine owns the lease until [`Self::reap`] hands
    /// it back. The caller keeps [`Self::in_flight`] below [`Self::depth`].
    fn submit(&mut self, job: Job);

    /// Moves every finished job into `done`: completely filled, or failed. Never short.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>);

    /// Confirms a completion before its bytes are used, for engines that compare them with
    /// something. `None` if they differ: the engine then reads the job again. Takes time, so the
    /// caller starts other jobs first.
    fn confirm(&mut self, done: Done) -> Option<Done> {
        Some(done)
    }

    /// Sets the number of bytes that may be in flight from now on, over all lanes, for engines that
    /// scale other resources with it.
    fn allow(&mut self, _bytes: u64) {}

    /// Makes the engine stop when `cancel` is set: jobs that wait for a read or for a retry fail
    /// as cancelled, and reads that the system can cancel are cancelled. The other reads end when
    /// the system completes them. Called once, before the first job.
    fn stop_when(&mut self, _over: &CancelFlag) {}
}

/// Bytes of windows that are never freed because the kernel may write to them at any time.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Leaks windows that were handed to a ring which no longer reports completions.
pub fn give_up(leases: impl IntoIterator<Item = Lease>) {
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

/// Returns the bytes of windows that were leaked because their ring failed.
#[must_use]
pub fn given_up_bytes() -> u64 {
    GIVEN_UP.load(Ordering::Relaxed)
}

/// Returns the error of jobs that end because the load is over. The stream knows the reason for
/// that.
#[must_use]
pub fn cancelled() -> Error {
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

    fn confirm(&mut self, done: Done) -> Option<Done> {
        (**self).confirm(done)
    }

    fn allow(&mut self, bytes: u64) {
        (**self).allow(bytes);
    }

    fn stop_when(&mut self, cancel: &CancelFlag) {
        (**self).stop_when(cancel);
    }
}
