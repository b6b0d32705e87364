//! One request to one store, with an error that says what to do. No retries.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! A [`Store`] is opened from a URL and options. Each call is one attempt. The caller decides
//! whether to retry ([`Fault::transient`], [`tload_base::sync::retry`]), adds location and range to
//! errors, and reads bodies.
//!
//! `store` opens a store by the row of its protocol, from what `builder` and `environment` gather,
//! and `backend` is what protocols implement: `protocols` has a file or folder for each. `requests`
//! sends one request to a `server`, over `http`; `explain` turns a failure into an error, in the
//! words of `errors`. `credentials`, `lists` and `answers` are what they say.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(all(feature = "oci", feature = "xet")),
    expect(dead_code, reason = "shared by protocols that this build leaves out")
)]

mod answers;
mod backend;
mod builder;
mod credentials;
mod environment;
mod errors;
mod explain;
mod http;
mod lists;
mod objects;
mod path;
mod protocols;
mod requests;
mod server;
mod steps;
mod store;
#[cfg(test)]
mod tests;

// Paths that the crates of tload share.
pub(crate) use tload_base::{error, files, options, sync};
pub(crate) use tload_format as format;

pub use self::answers::{AnswerCache, AnswerPlace, Check, check};
pub use self::backend::{Arrived, Attempt, Writable};
pub use self::explain::failure::Fault;
pub use self::http::client::READ_TIMEOUT;
pub use self::http::obs_text;
pub use self::http::proxy::UsedProxy;
pub use self::http::ranged_response::{EndsAt, KnownLen, NoRange};
pub use self::http::repr_digest::Sha256;
pub use self::http::response_capture::{Connection, ResponseCapture};
pub use self::lists::tree::{Level, Listed};
pub use self::path::object_path;
#[cfg(feature = "testing")]
pub use self::protocols::hub::{assert_content_store_is_bounded, assert_levels_are_whole};
pub use self::protocols::hub_cache::{
    cached, cached_copy, commit_in_cache, is_hub_offline, is_in_snapshot, repository_folder,
    snapshot,
};
pub use self::store::Store;
