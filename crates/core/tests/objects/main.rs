//! Object stores: the contracts, whole loads, failures and secrets, with real servers and one that
//! fails on command.
//!
//! Servers come from `tload-lab`; a test whose server is not installed is skipped with a message
//! (`TLOAD_REQUIRE=servers` forbids that).

mod alone;
mod changes;
mod checksums;
mod contract;
mod credentials;
mod denials;
mod echoes;
mod fixtures;
mod hosts;
mod hubs;
mod layouts;
mod lifecycle;
mod listener;
mod loads;
mod network;
mod recoveries;
mod redirects;
mod refusals;
mod requests;
mod secrets;
mod sites;
mod stalls;
mod tampered;
mod unversioned;
mod verified;
