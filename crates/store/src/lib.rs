//! One request to one store, with an error that says what to do. No retries.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! A [`Store`] is opened from a URL and options. Each call is one attempt. The caller decides
//! whether to retry ([`Fault::transient`], [`tload_base::sync::retry`]), adds location and range to
//! errors, and reads bodies.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(all(feature = "oci", feature = "xet")),
    expect(dead_code, reason = "shared by protocols that this build leaves out")
)]

mod addresses;
mod answers;
#[cfg(feature = "aws-config")]
mod aws;
#[cfg(feature = "aws-config")]
mod aws_http;
mod azure;
mod backend;
mod builder;
mod checksums;
mod classification;
mod client;
mod connector;
mod credential_cache;
mod credentials;
mod current_request;
mod environment;
mod error_body;
mod failure;
mod first_connection;
mod gcs;
#[cfg(feature = "hub")]
mod hub;
mod hub_cache;
mod object_list;
mod objects;
pub mod obs_text;
#[cfg(feature = "oci")]
mod oci;
mod pages;
mod path;
mod program;
mod protocols;
mod proxy;
mod proxy_exempt;
mod ranged_response;
mod redactor;
mod redirects;
mod repr_digest;
mod requests;
mod response_capture;
mod rules;
mod s3;
mod s3_access_point;
mod s3_endpoint;
mod server;
mod signing;
mod steps;
mod store;
#[cfg(test)]
mod tests;
mod transport_rules;
mod tree;
mod trust;
mod web;

// Paths that the crates of tload share.
pub(crate) use tload_base::{error, files, options, sync};
pub(crate) use tload_format as format;

pub use self::answers::{AnswerCache, AnswerPlace, Check, check};
pub use self::backend::{Arrived, Attempt};
pub use self::client::READ_TIMEOUT;
pub use self::failure::Fault;
#[cfg(feature = "testing")]
pub use self::hub::{assert_content_store_is_bounded, assert_levels_are_whole};
pub use self::hub_cache::{
    cached, cached_copy, commit_in_cache, is_hub_offline, is_in_snapshot, repository_folder,
    snapshot,
};
pub use self::path::object_path;
pub use self::ranged_response::{EndsAt, KnownLen, NoRange};
pub use proxy::UsedProxy;
pub use repr_digest::Sha256;
pub use response_capture::{Connection, ResponseCapture};
pub use store::Store;
pub use tree::{Level, Listed};
