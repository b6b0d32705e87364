//! Preparation of the page cache: drops or reads in the files' pages, then asks the kernel which
//! are resident. Cold means verified cold.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use serde::Serialize;
use tload::Result;
use tload::internal::probe;

use super::CacheState;
use crate::interrupt::Interrupt;
use crate::output::error::file as file_error;

/// Attempts to drop pages. A page may be busy (being written, or mapped by a process) at first; one
/// that is still busy at the third attempt stays.
const ATTEMPTS: u32 = 3;
/// Tolerance: one page in this many may be in the wrong state, because the kernel reads ahead and
/// keeps pages on the lists of other cores.
const STRAY_SHARE: u64 = 1000;
const BUFFER_BYTES: usize = 1 << 20;

/// State in which the page cache was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Found {
    Cold,
    Warm,
    /// Part of the files is cached, or the requested state could not be reached.
    Mixed,
    /// No file of the checkpoint is on a file system.
    Remote,
    /// The kernel does not tell.
    Unverified,
}

impl Found {
    /// Returns whether this is the requested state.
    pub(crate) fn is(self, wanted: CacheState) -> bool {
        match wanted {
            CacheState::Cold => self == Self::Cold,
            CacheState::Warm => self == Self::Warm,
            CacheState::Remote => self == Self::Remote,
        }
    }
}

/// Residency of the files right before a run, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Residency {
    pub(crate) found: Found,
    pub(crate) resident_bytes: u64,
    pub(crate) total_bytes: u64,
    /// System call that reported it.
    pub(crate) method: Option<&'static str>,
}

/// Page cache of the files of one checkpoint.
#[derive(Debug)]
pub(crate) struct PageCache {
    paths: Vec<PathBuf>,
}

impl PageCache {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths }
    }

    /// Establishes the state `wanted` as far as the kernel permits. [`Self::residency`] returns the
    /// state reached.
    pub(crate) fn prepare(&self, wanted: CacheState, interrupt: &Interrupt) -> Result<()> {
        for _ in 0..ATTEMPTS {
            if self.residency().found.is(wanted) {
                break;
            }
            for path in &self.paths {
                interrupt.check()?;
                match wanted {
                    // If the cache cannot be dropped, `residency` shows it.
                    CacheState::Cold => drop(probe::evict(path)),
                    CacheState::Warm => read(path)?,
                    CacheState::Remote => {}
                }
            }
        }
        Ok(())
    }

    /// Asks the kernel for the current state.
    pub(crate) fn residency(&self) -> Residency {
        let mut residency = Residency {
            found: Found::Unverified,
            resident_bytes: 0,
            total_bytes: 0,
            method: None,
        };
        if self.paths.is_empty() {
            residency.found = Found::Remote;
            return residency;
        }
        for path in &self.paths {
            let Ok(file) = probe::residency(path) else {
                return residency;
            };
            residency.resident_bytes += file.resident_bytes;
            residency.total_bytes += file.total_bytes;
            residency.method = Some(file.method);
        }
        residency.found = classify(residency.resident_bytes, residency.total_bytes);
        residency
    }
}

fn classify(resident: u64, total: u64) -> Found {
    let stray = total / STRAY_SHARE;
    if resident <= stray {
        Found::Cold
    } else if total.saturating_sub(resident) <= stray {
        Found::Warm
    } else {
        Found::Mixed
    }
}

/// Reads a file through the page cache.
fn read(path: &PathBuf) -> Result<()> {
    let failed = |error| file_error("cannot read", path, error);
    let mut file = File::open(path).map_err(failed)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    while file.read(&mut buffer).map_err(failed)? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residency_tolerates_stray_pages_only() {
        assert_eq!(classify(0, 4 << 30), Found::Cold);
        assert_eq!(classify(4 << 20, 4 << 30), Found::Cold);
        assert_eq!(classify(5 << 20, 4 << 30), Found::Mixed);
        assert_eq!(classify(4 << 30, 4 << 30), Found::Warm);
        assert_eq!(classify(4096, 8192), Found::Mixed);
        assert!(!Found::Unverified.is(CacheState::Cold));
        let remote = PageCache::new(Vec::new()).residency();
        assert!(remote.found.is(CacheState::Remote) && !remote.found.is(CacheState::Cold));
    }
}
