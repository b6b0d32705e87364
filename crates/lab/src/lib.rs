//! Object stores to test against: real servers, started on free ports and stopped when dropped, and one that fails on command.
//!
//! Knows nothing of `tload`. What the servers are and where they come from is written in `tools/servers`.

mod faulty;
mod servers;

pub use faulty::*;
pub use servers::*;
