//! The safetensors format: bytes in, tensors or an exact error out.
//!
//! Owns the rules of the file format and of the index file that joins shards. Pure: it does no I/O,
//! reads no clock and starts no threads; `storage` fetches the bytes, `checkpoint` joins the two.
//! Files are untrusted, so every number in them is checked before it is used, and memory stays
//! within a small multiple of the header's length.

mod dtype;
mod header;
mod header_error;
mod model_files;
mod other_format;
mod shards;
mod slice;
mod tensor_info;

pub use dtype::Dtype;
pub(crate) use header::{Entry, Header, LENGTH_BYTES, header_len, parse};
pub use header_error::HeaderError;
pub use model_files::Precedence;
pub(crate) use model_files::{Choice, INDEX_NAME, ModelFiles, choose_files};
#[cfg(feature = "object")]
pub(crate) use model_files::{INDEX_SUFFIX, SINGLE_NAME};
pub(crate) use shards::{INDEX_BYTES_MAX, Index, SUFFIX, missing_shard, natural_cmp, parse_index};
pub use slice::{Slice, Steps, Strides};
pub use tensor_info::TensorInfo;

/// Longest header that the format allows, so that a damaged length cannot make a reader allocate
/// without bound.
pub(crate) const HEADER_BYTES_MAX: u64 = 100_000_000;
