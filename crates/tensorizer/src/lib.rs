//! The format of Tensorizer: bytes in, tensors or an exact error out. No I/O.
//!
//! Owns the rules of `.tensors` files, protocol versions 1 to 5, as the package `tensorizer` 2.12
//! reads and writes them. Pure: callers fetch the bytes. Files are untrusted, so every number in
//! them is checked before it is used, and memory stays within a small multiple of what was fetched.
//!
//! Programs depend on the crate `tload`, which opens these files. The crates are released together,
//! and anything else here may change in any release.
//!
//! ```text
//! 0        5          9        41      49      57       65        73
//! ├─ magic ┼─ version ┼─ flags ┼─ size ┼─ (…) ─┼─ count ┼─ length ┼─ index, and zeros up to length
//! ├─ header of a tensor ─┬─ its bytes ─┬─ header of a tensor ─┬─ its bytes ─┬─ eight zeros ─┤
//! ```
//!
//! `index.rs` parses everything before the first tensor, which says where each one is; that is all
//! that a load needs. `tensor_header.rs` parses what is directly before a tensor's bytes: digests
//! and the key derivation, nonce and authenticators of encrypted ones. It repeats name, dtype and
//! shape, which must be those of the index. `decrypt.rs` opens the boxes of an encrypted tensor.

mod decrypt;
mod dtype;
mod encryption;
mod error;
mod index;
mod name;
mod reader;
mod tensor_header;

pub use decrypt::{DecryptError, KEY_BYTES, Key, Secret};
pub use encryption::{BOX_BYTES_MAX, Boxes, Derivation, Encryption};
pub use error::FormatError;
pub use index::{INDEX_BYTES_MAX, Index, MAGIC, PREFIX_BYTES, Tensor, begins, index_end, parse};
pub use name::{PathPiece, TensorPath};
pub use tensor_header::{Digests, TensorHeader, Wrong};
