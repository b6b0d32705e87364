//! Options of a load: limits, preferences and verification.
//!
//! Plain values, checked when they are created. Nothing here reads the environment; the command and
//! the Python package translate theirs. Options of stores and locations are in `tload-base`.

mod keys;
mod load_options;
mod share;
mod trial;
mod variables;

pub use keys::{OptionKey, OptionKind, OptionValue};
pub use load_options::{Device, EngineChoice, LoadOptions};
pub use share::{OnPeerLoss, Share};
pub use tload_base::options::*;
pub use tload_plan::Order;
pub use trial::{Trial, VARIABLE as TRIAL_VARIABLE};
pub use variables::unknown_variables;
