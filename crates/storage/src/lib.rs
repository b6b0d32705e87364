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
#[cfg(feature = "object")]
pub mod guarded_dir;
mod memory_source;
mod mirror_report;
#[cfg(not(feature = "object"))]
#[path = "no_objects.rs"]
mod object;
#[cfg(feature = "object")]
pub mod object;
mod source;
mod store_probe;

// Paths that the crates of tload share.
pub(crate) use tload_base::{error, files, options, sync};
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
pub use object::{
    Folder, ObjectSource, OpenedState, Remote, StoreClient, TILE_BYTES, cached, commit_in_cache,
    is_in_snapshot, open_deadline, unversioned_note,
};
pub use source::Source;
pub use store_probe::{ConnectionRate, StoreProbe};
pub use sync::retry::Retries;
pub use tload_plan::ReadHints;
