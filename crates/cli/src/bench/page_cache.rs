//! Cold means verified cold: drops or fills the files' pages, then asks the kernel what is there.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use serde::Serialize;
use tload::{Result, probe};

use super::CacheState;
use crate::interrupt::Interrupt;
use crate::output::error::file as file_error;

/// A page may be busy (being written, or mapped by someone) the first time; if it still is the third time, it stays.
const ATTEMPTS: u32 = 3;
/// One page in this many may be in the wrong state: the kernel reads ahead, and keeps pages on other cores' lists.
const STRAY_SHARE: u64 = 1000;
const BUFFER_BYTES: usize = 1 << 20;

/// What the page cache was found to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Found {
    Cold,
    Warm,
    /// Some of it, or what was asked for could not be brought about.
    Mixed,
    /// No file of the checkpoint is on a file system.
    Remote,
    /// The kernel would not say.
    Unverified,
}

impl Found {
    /// Whether this is the state that was asked for.
    pub(crate) fn is(self, wanted: CacheState) -> bool {
        match wanted {
            CacheState::Cold => self == Self::Cold,
            CacheState::Warm => self == Self::Warm,
            CacheState::Remote => self == Self::Remote,
        }
    }
}

/// The kernel's answer, right before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Residency {
    pub(crate) found: Found,
    pub(crate) resident_bytes: u64,
    pub(crate) total_bytes: u64,
    /// The system call that was asked.
    pub(crate) method: Option<&'static str>,
}

/// The page cache, as far as it concerns the files of one checkpoint.
#[derive(Debug)]
pub(crate) struct PageCache {
    paths: Vec<PathBuf>,
}

impl PageCache {
    pub(crate) fn of(paths: Vec<PathBuf>) -> Self {
        Self { paths }
    }

    /// Brings about `wanted`, as far as the kernel lets us. [`Self::residency`] says how far.
    pub(crate) fn prepare(&self, wanted: CacheState, interrupt: &Interrupt) -> Result<()> {
        for _ in 0..ATTEMPTS {
            if self.residency().found.is(wanted) {
                break;
            }
            for path in &self.paths {
                interrupt.check()?;
                match wanted {
                    // Where the cache cannot be dropped, `residency` tells.
                    CacheState::Cold => drop(probe::evict(path)),
                    CacheState::Warm => read(path)?,
                    CacheState::Remote => {}
                }
            }
        }
        Ok(())
    }

    /// What is there now.
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
    fn only_stray_pages_are_forgiven() {
        assert_eq!(classify(0, 4 << 30), Found::Cold);
        assert_eq!(classify(4 << 20, 4 << 30), Found::Cold);
        assert_eq!(classify(5 << 20, 4 << 30), Found::Mixed);
        assert_eq!(classify(4 << 30, 4 << 30), Found::Warm);
        assert_eq!(classify(4096, 8192), Found::Mixed);
        assert!(!Found::Unverified.is(CacheState::Cold));
        let remote = PageCache::of(Vec::new()).residency();
        assert!(remote.found.is(CacheState::Remote) && !remote.found.is(CacheState::Cold));
    }
}
