//! Copies a checkpoint with everything beside it, from any source, into a local directory.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! `job` owns the order of steps: list, filter, skip existing files, read the rest. `list` finds
//! the files, `paths` checks and maps their names, and `fetch` reads them; `target` writes,
//! `journal` and `record` persist the state, `recording` says when, `executor` keeps many requests
//! in flight, and `cancel` cancels them. `control` shows progress to other threads, and
//! `copy_report` is the result. `plan` is the dry run, `listed` lists without copying, `beside`
//! reads one small file without copying it, `near` knows names near a misspelt one, and `hub_cache`
//! writes into the cache of `huggingface_hub`. The copy does not parse tensors.

mod beside;
mod cancel;
mod control;
mod copy_options;
mod copy_report;
mod executor;
mod fetch;
mod hub_cache;
mod job;
mod journal;
mod list;
mod listed;
mod near;
mod ownership;
mod paths;
mod plan;
mod record;
mod recording;
mod target;
mod unusable;

// Paths that the crates of tload share.
pub use beside::read_beside;
/// Copies to elsewhere than disks list and read with these.
#[doc(hidden)]
pub use cancel::{cancelled, cannot_start, unless_stopped};
#[doc(hidden)]
pub use control::Ongoing;
pub use control::{CopyControl, CopyProgress};
pub use copy_options::CopyOptions;
pub use copy_report::CopyReport;
#[doc(hidden)]
pub use fetch::{Opened, Sources};
pub use hub_cache::fill_all;
pub use job::CopyJob;
#[doc(hidden)]
pub use journal::Origin;
#[doc(hidden)]
pub use list::Entry;
pub use listed::{ListedFile, list_files, list_files_or};
pub use near::suggest_near;
pub use paths::components;
pub use plan::{CopyAction, CopyPlan, PlannedFile};
pub(crate) use tload_base::{error, options, sync};
pub(crate) use tload_format as format;
pub(crate) use tload_storage as storage;
#[doc(hidden)]
pub use unusable::error as unusable_error;
