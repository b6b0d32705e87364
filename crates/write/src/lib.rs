//! Writes checkpoints: tensors in, safetensors files with an index out, all of them or none.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! [`Writer`] takes the tensors one after another. `plan` decides which tensors share a file
//! (`split`), in which order, and what the headers are (`header`): pure. `stream` fills buffers
//! with the bytes of one file, through a [`Transform`] if there is one, and `digests` computes the
//! manifest's checksums of what passes. A `target` is where the files go: `disk` writes them beside
//! their destination with direct I/O and exchanges them by a rename, `objects` uploads them under
//! names of their own and switches the index by a conditional request.

mod digests;
mod disk;
mod header;
mod index;
mod leftovers;
#[cfg(feature = "object")]
#[doc(hidden)]
pub mod objects;
mod plan;
mod report;
mod split;
mod step;
mod stream;
mod target;
mod tensor_spec;
mod transform;
mod write_id;
mod write_options;
mod writer;

// Paths that the crates of tload share.
pub(crate) use tload_base::{error, options};
pub(crate) use tload_format as format;

pub use leftovers::{Leftover, remove_incomplete};
pub use report::WriteReport;
#[cfg(feature = "testing")]
pub use step::{kill_at, steps};
pub use tensor_spec::TensorSpec;
pub use transform::{Sealing, SmallFile, Transform};
pub use write_id::WriteId;
pub use write_options::{SHARD_BYTES_MAX, WriteOptions};
pub use writer::Writer;
