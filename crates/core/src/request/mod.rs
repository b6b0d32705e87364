//! What the caller asks for: which tensors, to where, within what limits.
//!
//! Only values, checked where they are made. Nothing here reads the environment; the command and the wheel translate theirs.

mod bytes;
mod options;
mod verify;

pub use bytes::{format_bytes, parse_bytes};
pub use options::{Device, EngineChoice, Options, Order};
pub use verify::Verify;
