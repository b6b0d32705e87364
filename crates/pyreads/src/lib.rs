//! Reads into memory of the caller, for the extension module `tload._tload` in `crates/py`.
//!
//! `buffers` is the memory of a call that reads single tensors with the core's reader; `scatter`
//! reads many tensors of local files itself.

mod buffers;
mod scatter;

pub use buffers::Buffer;
pub use scatter::{Memory, scatter};
