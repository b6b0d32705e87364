//! Byte sources: files and objects, retried, cached and mirrored.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! Sources know nothing of tensors or plans. This is the control plane: few calls, checked, allowed
//! to be slow. [`FileSource`] is a shard as the checkpoint holds it; [`ReadFile`] is that file
//! opened for one load, as engines take it; [`MemorySource`] stands in for storage in tests.

mod cache_report;
mod file;
#[cfg_attr(
    not(feature = "object"),
    expect(dead_code, reason = "the cache uses it, too")
)]
pub mod guarded_dir;
mod memory_source;
mod mirror_report;
#[cfg(feature = "object")]
pub mod object;
mod store_probe;

// Paths that the crates of tload share.
#[cfg(feature = "object")]
pub(crate) use tload_base::crc;
pub(crate) use tload_base::{error, files, options, sync};
#[cfg(feature = "object")]
pub(crate) use tload_format as format;
pub(crate) use tload_memory as memory;

pub use crate::files::{FileSystem, file_system, is_network};
pub use cache_report::{CACHE_TOTALS, CacheReport, CacheTotals};
pub use file::confined_dir::{ConfinedDir, ConfinedEntry};
pub use file::identity::Identity;
pub use file::read_file::{Access, DirectIo, ReadFile, RefusedDirect};
pub use file::residency::{Residency, evict, residency};
pub use file::{FileSource, cannot_open, descriptors, of_many, path_of};
pub use memory_source::MemorySource;
pub use mirror_report::MirrorReport;
#[cfg(feature = "object")]
pub use object::cache::{CacheDirectory, CacheEntry, CacheRemoval, Pruning, finish_caching};
#[cfg(feature = "object")]
pub use object::folder::{Folder, level};
#[cfg(all(feature = "object", feature = "testing"))]
pub use object::kept::end_idle_threads;
#[cfg(feature = "object")]
pub use object::remote::{Remote, open_deadline};
#[cfg(feature = "object")]
pub use object::{
    Events, Hedging, ObjectIdentity, ObjectSite, ObjectSource, OpenedState, Provenance, Receive,
    unversioned_note, with_retries,
};
pub use store_probe::{ConnectionRate, StoreProbe};
pub use sync::retry::Retries;
pub use tload_plan::ReadHints;
#[cfg(feature = "object")]
pub use tload_store::{
    Level, Listed, cached, cached_copy, commit_in_cache, is_hub_offline, is_in_snapshot,
    object_path, repository_folder, snapshot,
};
#[cfg(all(feature = "object", feature = "testing"))]
pub use tload_store::{assert_content_store_is_bounded, assert_levels_are_whole};

use crate::error::Result;
use crate::options::Location;

/// Fetches small ranges, for headers: the common interface of every kind of source.
pub trait Source: std::fmt::Debug + Send + Sync {
    /// Returns the source's location.
    fn location(&self) -> &Location;

    /// Returns the length in bytes, as seen when the source was opened.
    fn len(&self) -> u64;

    /// Returns whether the source has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes at `offset`: `len` of them, or up to the end of the source.
    fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>>;

    /// Checks that the source is unchanged since it was opened, where fetches have not checked
    /// that.
    ///
    /// # Errors
    ///
    /// [`crate::error::ErrorKind::Changed`], and any error of the check itself.
    fn verify_unchanged(&self) -> Result<()> {
        Ok(())
    }
}
