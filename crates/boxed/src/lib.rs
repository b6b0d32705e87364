//! Files of Tensorizer as sources: their index and headers, and tensors as a key opens them.
//!
//! Programs depend on the crate `tload`. The crates are released together, and anything here may
//! change in any release.
//!
//! An encrypted tensor is a row of *boxes*, each of which opens on its own; their authenticators
//! are in the header before the tensor. `reading.rs` reads index and headers, `keys.rs` finds out
//! which key opens the boxes, `opened.rs` opens them, and `source.rs` shows the file as if its
//! tensors were not encrypted: index and headers stay as they are.

mod keys;
mod opened;
mod reading;
mod source;

// Paths that the crates of tload share.
pub(crate) use tload_base::{error, options, sync};
pub(crate) use tload_storage as storage;

pub use keys::{DERIVED_MAX, key_of, passphrase_of};
pub use reading::{fetch, index_of, read_header, require_opened};
pub use source::open;
pub use tload_tensorizer::begins;
