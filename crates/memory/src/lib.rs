//! The one rule: a window of memory has exactly one owner.
//!
//! Owns allocations and budgets; knows nothing of files and tensors. A [`Lease`] is the exclusive
//! right to one window of memory: an engine holds it while the kernel may write there, a sink while
//! the bytes are being copied out. Windows come from a [`Region`] (final memory of tensors, or a
//! [`FileView`]) or from a [`Slab`] (staging memory, reused).
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.

pub mod cgroup;

mod boxes;
mod device;
mod file_view;
mod in_place;
mod lease;
mod mapping;
#[cfg(miri)]
mod miri_alloc;
mod pool;
mod prefixes;
mod published;
#[doc(hidden)]
pub mod read_extents;
mod region;
mod shared;
mod slab;
mod staging;
mod streaming;
mod strip;
mod target;
mod transform;
mod write_gate;

// Paths that the crates of tload share.
pub(crate) use tload_base::{crc, error, sync};
pub use tload_cuda as cuda;

#[doc(inline)]
pub use crate::sync::event_count::EventCount;
pub use boxes::{BoxDim, BoxMemory, Cast, Rows, TargetBox};
pub use device::{DeviceBudget, DeviceBytes, DeviceCharge, DeviceRegion, ForeignMemory};
pub use file_view::FileView;
pub use lease::{Filled, Filling, Lease};
pub use mapping::mapped_bytes;
pub use mapping::{HUGE_PAGE_BYTES, Mapping, prefault};
pub use pool::{Evicted, Pool, PoolUsage, RegionCache, RegionStart};
pub use prefixes::{PREFIX_STEP, Prefixes};
pub use published::{PublishedPool, RegionsStart};
pub use region::{Region, RegionBytes, RegionWriter};
pub use shared::{SharedMemory, SharedView, ViewEnd};
pub use slab::Slab;
pub use staging::{
    Staging, StagingFacts, StagingNeed, kept_staging, release_staging, release_untaken_staging,
};
pub use strip::Strip;
pub use target::{KeepAlive, OnGpu, Target};
pub use tload_convert as convert;
pub use transform::{Transform, Unit};
pub use write_gate::{WriteGate, WritePermit};
