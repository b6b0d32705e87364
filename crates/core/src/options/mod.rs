//! Options of a load: limits, preferences and verification.
//!
//! Plain values, checked when they are created. Nothing here reads the environment; the command and
//! the Python package translate theirs.

pub(crate) mod cache_mode;
pub(crate) mod flag;
pub(crate) mod hub_id;
pub(crate) mod location;
pub(crate) mod oci_reference;
pub(crate) mod store_options;

mod bytes;
mod duration;
mod keys;
mod load_options;
mod share;
mod store_keys;
mod variables;

pub use bytes::{format_bytes, parse_bytes};
pub use cache_mode::CacheMode;
pub use duration::parse_duration;
#[cfg(feature = "object")]
pub(crate) use hub_id::HubId;
pub use keys::{OptionKey, OptionKind, OptionValue};
pub use load_options::{Device, EngineChoice, Options, Order};
pub use location::{Location, Protocol};
pub use share::{OnPeerLoss, Share};
pub use store_keys::StoreKey;
pub use store_options::StoreOptions;
#[cfg(feature = "object")]
pub(crate) use store_options::split_locations;
pub use variables::unknown_variables;
