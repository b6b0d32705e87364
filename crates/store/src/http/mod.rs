//! HTTP below the protocols: the clients, what they send, and what is kept of the responses.
//!
//! `client` and `connector` make a client: `trust` is which certificates it accepts, `proxy` and
//! `proxy_exempt` are which proxy it takes, `redirects` and `addresses` where it lets itself be
//! sent, and `first_connection` is how long it waits for a hub. `current_request` and `signing` go
//! with each request. `response_capture` sees each response: `ranged_response` checks ranges,
//! `pages` bounds lists, and `checksums`, `repr_digest` and `obs_text` read headers.

pub(crate) mod addresses;
pub(crate) mod checksums;
pub(crate) mod client;
pub(crate) mod connector;
pub(crate) mod current_request;
pub(crate) mod first_connection;
pub mod obs_text;
pub(crate) mod pages;
pub(crate) mod proxy;
pub(crate) mod proxy_exempt;
pub(crate) mod ranged_response;
pub(crate) mod redirects;
pub(crate) mod repr_digest;
pub(crate) mod response_capture;
pub(crate) mod signing;
pub(crate) mod trust;
