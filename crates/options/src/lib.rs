//! Options of a load: limits, preferences and verification.
//!
//! Plain values, checked when they are created. Nothing here reads the environment; the command and
//! the Python package translate theirs. Options of stores and locations are in `tload-base`.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.

mod keys;
mod load_options;
mod share;
mod trial;
mod variables;

// Paths that the crates of tload share.
pub(crate) use tload_base::error;
pub(crate) use tload_format as format;
pub use tload_verify as verify;

pub use keys::{OptionKey, OptionKind, OptionValue};
pub use load_options::{EngineChoice, LoadOptions};
pub use share::{OnPeerLoss, Share};
pub use tload_base::options::*;
pub use tload_plan::Order;
pub use trial::{Trial, VARIABLE as TRIAL_VARIABLE};
pub use variables::unknown_variables;
