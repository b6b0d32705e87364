//! Locations, options of stores, and values of options as text.
//!
//! Plain values, checked when they are created. Nothing here reads the environment; the command and
//! the Python package translate theirs.

pub mod cache_mode;
pub mod flag;
pub mod hub_id;
pub mod location;
pub mod oci_reference;
pub mod store_options;

mod bytes;
mod duration;
mod store_keys;
mod with_setters;

pub use bytes::{format_bytes, format_rate, parse_bytes};
pub use cache_mode::CacheMode;
pub use duration::parse_duration;
pub use hub_id::HubId;
pub use location::{Location, Protocol};
pub use store_keys::{Form, StoreKey};
pub use store_options::{StoreOptions, require_clean, split_locations};
pub use with_setters::with_setters;
