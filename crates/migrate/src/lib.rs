//! Writes checkpoints of other formats as safetensors: `tload convert`.
//!
//! Programs depend on the crate `tload`. This one is of its command, is released with it, and may
//! change in any release.
//!
//! Reads files of Tensorizer, plain and encrypted, from every source. Each tensor is read,
//! decrypted and compared with its digests a few MiB at a time, several tensors at once: memory
//! does not depend on their sizes. The file appears under its name when everything in it has
//! matched.
//!
//! `convert.rs` owns the order of steps, `tensors.rs` reads one tensor, `keys.rs` keeps keys,
//! `target.rs` writes.

mod convert;
mod keys;
mod target;
mod tensors;

// Paths that the crates of tload share.
pub(crate) use tload_base::{error, options, sync};
pub(crate) use tload_storage as storage;

pub use convert::{Control, Convert, Converted, Progress};
pub use keys::read_secret;
pub use target::temporary;
pub use tload_boxed::{key_of, passphrase_of};
pub use tload_tensorizer::Secret;
