//! Options of a load: limits, preferences and verification.
//!
//! Plain values, checked when they are created. Nothing here reads the environment; the command and
//! the Python package translate theirs.

mod bytes;
mod options;
mod verify;

pub use bytes::{format_bytes, parse_bytes};
pub use options::{Device, EngineChoice, Options, Order};
pub use verify::Verify;
