//! Report of the cache of objects.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::error::printable;
use crate::options::format_bytes;
use crate::sync::per_process::PerProcess;

/// Totals of all caches of this process.
pub static CACHE_TOTALS: PerProcess<CacheTotals> = PerProcess::new();

/// Counts of all caches of a process together.
#[derive(Clone, Debug, Default)]
pub struct CacheTotals {
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes that were not written because a disk was slower than the store.
    pub dropped_bytes: u64,
    /// Bytes whose checksum was wrong.
    pub damaged_bytes: u64,
    /// Bytes on disk of evicted entries.
    pub evicted_bytes: u64,
    /// Time of all reads that waited for a disk.
    pub disk_wait: Duration,
    /// Time of all reads that waited for what another opening requests.
    pub claim_wait: Duration,
}

/// Cache of objects (store option `cache_dir`): statistics since the checkpoint was opened, by this
/// load and by others of it. `Report::cached_bytes` counts what this load read
/// from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CacheReport {
    /// Its directory.
    pub directory: String,
    /// Bytes written to it so far. Writing goes on after the load.
    pub written_bytes: u64,
    /// Bytes that were not written because the disk was slower than the store.
    pub dropped_bytes: u64,
    /// Bytes that were found damaged, and were requested again.
    pub damaged_bytes: u64,
    /// Reason why nothing more is written, or why an object is not cached.
    pub reason: Option<String>,
}

impl CacheReport {
    /// Returns why not everything that was read is in the cache; `None` if it is.
    pub fn shortfall(&self) -> Option<String> {
        if self.reason.is_none() && self.dropped_bytes > 0 {
            let dropped = format_bytes(self.dropped_bytes);
            return Some(format!("its disk was too slow for {dropped}"));
        }
        self.reason.clone()
    }
}

impl fmt::Display for CacheReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = printable(&self.directory);
        let written = format_bytes(self.written_bytes);
        write!(f, "cache    {written} written to {directory}")?;
        if self.dropped_bytes > 0 {
            let dropped = format_bytes(self.dropped_bytes);
            write!(f, ", {dropped} not: the disk is slower than the store")?;
        }
        if self.damaged_bytes > 0 {
            let damaged = format_bytes(self.damaged_bytes);
            write!(f, ", {damaged} damaged and requested again")?;
        }
        match &self.reason {
            Some(reason) => write!(f, "; {}", printable(reason)),
            None => Ok(()),
        }
    }
}
