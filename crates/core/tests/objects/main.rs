//! Object stores: contracts, whole loads, failures and secrets, against real servers and one that
//! fails on command.
//!
//! Servers come from `tload-testbed`; a test whose server is not installed is skipped loudly
//! (`TLOAD_REQUIRE=servers` makes that a failure).

mod alone;
mod ambient;
mod answers;
mod boxed;
mod cache_children;
mod cache_damage;
mod cache_kills;
mod cache_sharing;
mod cache_stalls;
mod caching;
mod certificates;
mod changes;
mod checksums;
mod contract;
mod credentials;
mod denials;
mod echoes;
mod external_accounts;
mod fixtures;
mod forgetting;
#[path = "../it/growing_timeouts.rs"]
mod growing_timeouts;
mod guarded;
mod hosts;
mod hubs;
mod kept;
mod late_checks;
mod layouts;
mod lifecycle;
mod listener;
mod lists;
mod loads;
mod mirrors;
mod near_names;
mod network;
mod openings;
mod passed_on;
mod proxies;
mod recoveries;
mod redirects;
mod refusals;
mod registries;
mod registry_access;
mod requests;
mod sealed;
#[cfg(target_os = "linux")]
#[path = "../it/seccomp.rs"]
mod seccomp;
mod secrets;
#[cfg(target_os = "linux")]
mod sharing;
mod sites;
mod stages;
mod stalls;
mod tampered;
mod tokens;
mod unversioned;
mod verified;
mod wrong_senders;
mod xet;
mod xet_proxies;
