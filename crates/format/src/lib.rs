//! The safetensors format: bytes in, tensors or an exact error out. No I/O.
//!
//! Owns the rules of the file format and of the index file that joins shards. Pure: it does no I/O,
//! reads no clock and starts no threads; `storage` fetches the bytes, `checkpoint` joins the two.
//! Files are untrusted, so every number in them is checked before it is used, and memory stays
//! within a small multiple of the header's length.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.

mod bands;
mod dtype;
mod header;
mod header_error;
mod index;
mod model_files;
mod other_format;
mod shards;
mod slice;
mod tensor_info;

// The path that the crates of tload share.
pub(crate) use tload_base::error;

pub use bands::Band;
pub use dtype::Dtype;
pub use header::{Entry, Header, LENGTH_BYTES, header_len, parse};
pub use header_error::HeaderError;
pub use index::{INDEX_BYTES_MAX, Index, listed_twice, parse_index, read_index};
pub use model_files::{
    Choice, INDEX_NAME, INDEX_SUFFIX, KEY_FILE_NAME, ModelFiles, Precedence, SINGLE_NAME,
    choose_files, listed,
};
pub use shards::{Gap, SUFFIX, missing_shard, natural_cmp};
pub use slice::{Cut, Indices, Shown, Slice, Strides};
pub use tensor_info::TensorInfo;

/// Longest header that the format allows, so that a damaged length cannot make a reader allocate
/// without bound.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;
