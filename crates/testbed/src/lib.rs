//! Storage for tests: object stores, which are real servers, started on free ports and stopped when
//! dropped, and one that fails on command; a slow file system; and comparisons with generated files
//! of the repository.
//!
//! Does not depend on `tload`. `tools/servers` documents the servers and their sources.

mod black_hole;
mod faulty;
mod forward_proxy;
mod polling;
mod recorded;
mod servers;
#[cfg(target_os = "linux")]
pub mod slowfs;
mod token_service;

pub use black_hole::BlackHole;
pub use faulty::*;
pub use forward_proxy::ForwardProxy;
pub use polling::pause_between_looks;
pub use recorded::{assert_recorded, assert_recorded_between};
pub use servers::*;
pub use token_service::{TokenRequest, TokenService};
