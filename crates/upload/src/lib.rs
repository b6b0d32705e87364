//! Copies a checkpoint with everything beside it, from any source, to an object store: all or
//! nothing, and resumably.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! `job` owns the order of steps. The crate `copy` lists and reads the source, the client of the
//! crate `write` sends what is read. `prefix` is the target with its claim, which keeps others off
//! and is the journal (`ledger`, pure); `workers` keep many requests in flight, and `recorder`
//! writes the journal meanwhile. `dry_run` says what a copy would do. `small_object` is a file of
//! its own: a manifest, a configuration.

#![forbid(unsafe_code)]

mod any_copy;
mod dry_run;
mod job;
mod ledger;
mod prefix;
mod recorder;
mod small_object;
mod workers;

// Paths that the crates of tload share.
pub(crate) use tload_base::{error, options, sync};

pub use any_copy::AnyCopy;
pub use job::UploadJob;
pub use small_object::{SmallObject, publish_fragments};
