//! An engine over the crate `tokio-uring`, for comparison with tload's own. Empty on systems other
//! than Linux.
//!
//! Programs depend on the crate `tload`, which opens the engine on request. The crates are released
//! together, and anything here may change in any release.

#![cfg(target_os = "linux")]

mod engine;
mod files;
mod memory;
mod turns;

pub use engine::open;
