//! Queries about this machine and its files, for `tload bench` and `tload doctor`.
//!
//! No load depends on the results: engines and sources find out for themselves by trying.

pub(crate) mod ceiling;

use std::path::Path;
use std::time::Instant;

use crate::checkpoint::{OpenedCheckpoint, Shard};
use crate::engine;
use crate::error::Result;
use crate::options::Location;
use crate::storage::{FileSource, ReadFile};

pub use crate::memory::cgroup::{CgroupMemory, cgroup_memory};
pub use crate::memory::prefault;
pub use crate::storage::residency;
pub use crate::storage::{ConnectionRate, DirectIo, FileSystem, Residency, StoreProbe, evict};

/// Result of setting up a ring.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ring {
    /// True if a load would use a ring.
    pub available: bool,
    /// Reason why a ring is unavailable.
    pub error: Option<String>,
    /// Remedy.
    pub hint: Option<String>,
    /// The kernel's error number, if it gave one.
    pub errno: Option<i32>,
    /// Kernel features that a load would use.
    pub features: Vec<String>,
    /// Size in bytes of the largest buffer, of a few sizes tried up to 64 MiB, that could be
    /// registered.
    pub registered_bytes_max: Option<u64>,
}

/// Sets up a ring as a load would, and tears it down.
pub fn ring() -> Ring {
    let probe = engine::probe_ring();
    let errno = probe.refusal.as_ref().and_then(|refusal| refusal.errno);
    let (error, hint) = probe
        .refusal
        .map(|refusal| (refusal.reason, refusal.hint))
        .unzip();
    Ring {
        available: error.is_none(),
        error,
        hint,
        errno,
        features: probe.features,
        registered_bytes_max: probe.registered_bytes_max,
    }
}

/// Returns the number of file descriptors that a process needs to load a checkpoint of `files`
/// files.
pub fn descriptors(files: usize) -> u64 {
    crate::storage::descriptors(files)
}

/// Returns the file system's support for direct I/O on this file.
///
/// # Errors
///
/// The file cannot be opened at all.
pub fn direct_io(path: &Path) -> Result<DirectIo> {
    ReadFile::probe_direct(&FileSource::open(&Location::from(path))?)
}

/// Returns the file system that a file or directory is on.
///
/// # Errors
///
/// It cannot be opened or queried.
pub fn file_system(path: &Path) -> Result<FileSystem> {
    crate::storage::file_system(path)
}

/// Measures the network to the object store of a checkpoint, until `deadline`: round trips, and the
/// throughput of one connection and of sixteen. Takes at most a few seconds and 256 MiB. Returns
/// `None` if no shard is in an object store. Of shards in several stores, the first counts.
///
/// # Errors
///
/// The store's error; [`crate::ErrorKind::TimedOut`] if it does not answer in time.
pub fn store(checkpoint: &OpenedCheckpoint, deadline: Instant) -> Result<Option<StoreProbe>> {
    let sources = checkpoint.shards().iter().map(Shard::source);
    let objects: Vec<_> = sources.filter_map(|it| it.as_object().cloned()).collect();
    let first = objects.first();
    first.map(|it| it.measure(&objects, deadline)).transpose()
}
