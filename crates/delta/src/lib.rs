//! Differences of checkpoints: patches as safetensors files, made ([`diff`]) and applied ([`apply`]
//! to files, [`Patch::apply_in_place`] to memory).
//!
//! A patch is one plain file. A tensor in which few elements differ is two tensors of it,
//! `NAME.indices` (ascending positions in the flattened tensor, `I32` or `I64`) and `NAME.values`
//! (the new elements, of its dtype): what a sparse `CheckpointWeightPatch` of vLLM (vllm#50723)
//! consists of. Any other changed tensor is there as a whole, by its name. `__metadata__` has the
//! record: digests of every tensor before and after the patch, and the files, whose headers are
//! tensors of the patch.
//!
//! ```text
//! diff    base, new ─▶ compare (digests, changed elements) ─▶ plan ─▶ write ─▶ rename
//! apply   base, patch ─▶ check against the record ─▶ write (digests) ─▶ rename
//! memory  tensors, patch ─▶ check all digests, before and after ─▶ put the elements
//! ```
//!
//! `pieces` reads ranges of tensors with little memory, `record` is the record, `patch` opens and
//! checks a patch, which is untrusted, and `changes` reads its elements. Nothing is ever in memory
//! as a whole, except headers, indexes of files, and patches below [`KEPT_BYTES_MAX`].
//!
//! Programs depend on the crate `tload`; this crate is a part of the command and of the package.

#![forbid(unsafe_code)]

mod apply;
mod changes;
mod control;
mod diff;
mod memory;
mod output;
mod patch;
mod pieces;
mod record;
mod summary;
#[cfg(test)]
mod tests;
mod workers;

pub use apply::apply;
pub use changes::Kept;
pub use control::Control;
pub use diff::diff;
pub use memory::TensorMemory;
pub use output::discard;
pub use patch::Patch;
pub use summary::Summary;
pub use tload_partial::beside as temporary;

/// Most bytes of changes that are kept in memory, so that they are read once. Larger ones are read
/// again. An update of 1 % of a model of 16 GB is half of it.
pub const KEPT_BYTES_MAX: u64 = 1 << 30;
