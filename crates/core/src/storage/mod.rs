//! Byte sources: opening, identity, read hints and small fetches. The control plane: few calls,
//! checked, allowed to be slow.
//!
//! Knows nothing of tensors or plans. [`FileSource`] is a shard as the checkpoint holds it;
//! [`ReadFile`] is that file opened for one load, as engines take it; [`MemorySource`] stands in
//! for storage in tests.

mod cache_report;
pub(crate) mod file;
#[cfg_attr(
    not(feature = "object"),
    expect(dead_code, reason = "the cache uses it, too")
)]
pub(crate) mod guarded_dir;
mod memory;
mod mirror_report;
#[cfg(feature = "object")]
pub(crate) mod object;
mod read_hints;
mod store_probe;

pub(crate) use crate::files::is_network;
pub use crate::files::{FileSystem, file_system};
pub use crate::storage::file::confined_dir::{ConfinedDir, ConfinedEntry};
pub use crate::storage::file::identity::Identity;
pub use crate::storage::file::read_file::{Access, DirectIo, ReadFile, RefusedDirect};
pub use crate::storage::file::residency::{Residency, evict, residency};
#[cfg(feature = "object")]
pub(crate) use crate::storage::object::folder::{Folder, level};
#[cfg(all(feature = "object", feature = "testing"))]
pub(crate) use crate::storage::object::kept::end_idle_threads;
#[cfg(feature = "object")]
pub(crate) use crate::storage::object::remote::{Remote, open_deadline};
#[cfg(feature = "object")]
pub(crate) use crate::storage::object::store::{
    Level, Listed, cached, cached_copy, commit_in_cache, is_hub_offline, is_in_snapshot,
    object_path, repository_folder, snapshot,
};
#[cfg(all(feature = "object", feature = "testing"))]
pub(crate) use crate::storage::object::store::{
    assert_content_store_is_bounded, assert_levels_are_whole,
};
pub use crate::sync::retry::Retries;
pub(crate) use cache_report::CACHE_TOTALS;
pub use cache_report::CacheReport;
pub use file::FileSource;
pub(crate) use file::{cannot_open, descriptors, of_many, path_of};
pub use memory::MemorySource;
pub use mirror_report::MirrorReport;
#[cfg(feature = "object")]
pub use object::cache::{CacheDirectory, CacheEntry, CacheRemoval, Pruning, finish_caching};
#[cfg(feature = "object")]
pub(crate) use object::{
    Events, Hedging, OpenedState, Provenance, Receive, unversioned_note, with_retries,
};
#[cfg(feature = "object")]
pub use object::{ObjectIdentity, ObjectSite, ObjectSource};
pub use read_hints::ReadHints;
pub use store_probe::{ConnectionRate, StoreProbe};

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
    /// [`crate::ErrorKind::Changed`], and any error of the check itself.
    fn verify_unchanged(&self) -> Result<()> {
        Ok(())
    }
}
