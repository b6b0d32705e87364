//! Storage to test against: object stores, which are real servers, started on free ports and stopped when dropped, and one that fails
//! on command; and a file system that is slow.
//!
//! Knows nothing of `tload`. What the servers are and where they come from is written in `tools/servers`.

mod black_hole;
mod faulty;
mod servers;
#[cfg(target_os = "linux")]
pub mod slowfs;

pub use black_hole::BlackHole;
pub use faulty::*;
pub use servers::*;
