//! Errors about the names in a directory: none is that of weights, or some are those of another
//! model. Pure: `tload-checkpoint` and `tload-copy` list the directory.
//!
//! Programs depend on the crate `tload`. The crates are released together, and anything here may
//! change in any release.

mod mixed;
mod no_weights;

pub use mixed::require_one_model;
pub use no_weights::no_weights;
