//! Shared memory that GPUs of a rank read directly.
//!
//! The leader of a node fills the same memory many times. A rank maps it read-only and registers it
//! with the CUDA driver when it sees it for the first time, and keeps the registration: from then
//! on, the driver copies from there to a GPU without staging. Registering takes longer than one
//! copy (85 ms per GiB on an H100, 2026-11, `benches/results/`), so it pays only if it is kept.
//!
//! `mapping.rs` is one registration, `cache.rs` keeps those that are idle, and
//! [`RegisteredRegions`] are the regions of a load, which an engine fills jobs from.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.

mod cache;
mod mapping;
mod regions;

// Paths that the crates of tload share.
pub(crate) use tload_base::{error, sync};

pub use cache::RegisteredUsage;
pub use regions::RegisteredRegions;
