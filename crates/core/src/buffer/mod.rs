//! Memory for reads: who owns which window, and how many bytes a load may hold.
//!
//! Owns allocations and the budget; knows nothing of files, tensors or devices. A [`Lease`] is the exclusive right to one
//! window of memory: an engine holds it while the kernel may write there, a sink while the bytes are on their way out.
//! Windows come from a [`Region`] (final memory of tensors) or from a [`Slab`] (staging memory that is used again).

mod bell;
mod lease;
mod mapping;
mod pool;
mod region;
mod slab;

pub use bell::Bell;
pub use lease::{Filled, Filling, Lease};
pub use mapping::{HUGE_PAGE_BYTES, Mapping, prefault};
pub use pool::{Pool, PoolUsage, Shelf};
pub use region::{Region, RegionBytes, RegionWriter};
pub use slab::Slab;
