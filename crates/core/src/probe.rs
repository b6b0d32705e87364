//! Questions about this machine and its files, for `tload bench` and `tload doctor`.
//!
//! Nothing of a load depends on the answers: engines and sources find out for themselves by trying.

use std::path::Path;

use crate::engine;
use crate::error::Result;
use crate::source::{FileSource, Location, ReadFile};

pub use crate::buffer::prefault;
pub use crate::room::{GroupLimit, group_limit};
pub use crate::source::{DirectIo, FileSystem, Residency, evict, residency};

/// Whether a ring can be set up here, and with what.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ring {
    /// Whether a load would use one.
    pub available: bool,
    /// Why not.
    pub error: Option<String>,
    /// What would help.
    pub hint: Option<String>,
    /// The kernel's error number, if it gave one.
    pub errno: Option<i32>,
    /// What of the kernel's offers it would use.
    pub features: Vec<String>,
    /// The largest buffer, of a few sizes tried up to 64 MiB, that could be registered, bytes.
    pub registered_bytes_max: Option<u64>,
}

/// Sets up a ring as a load would, and takes it down again.
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

/// Descriptors that a process wants, to load a checkpoint of so many files.
pub fn descriptors(files: usize) -> u64 {
    crate::source::descriptors(files)
}

/// What the file system says of direct I/O on this file.
///
/// # Errors
///
/// The file cannot be opened at all.
pub fn direct_io(path: &Path) -> Result<DirectIo> {
    ReadFile::probe_direct(&FileSource::open(&Location::from(path))?)
}

/// The file system that a file or folder is on.
///
/// # Errors
///
/// It cannot be opened or asked.
pub fn file_system(path: &Path) -> Result<FileSystem> {
    crate::source::file_system(path)
}
