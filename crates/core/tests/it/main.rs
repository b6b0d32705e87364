//! Tests of the crate's public API: real files, real engines, simulated storage.

mod boxed;
mod cancel_points;
mod checkpoints;
mod child;
mod cluster;
#[cfg(target_os = "linux")]
mod columns;
mod depth;
mod dtype;
mod engines;
mod expectations;
mod fallbacks;
mod faults;
mod files;
mod fuzz;
mod growing_timeouts;
mod hostile;
mod language;
mod links;
mod load;
mod memory;
mod overlay;
mod page_cache;
mod pages;
mod ranks;
#[cfg(target_os = "linux")]
mod ranks_of_processes;
mod reads;
mod recipes;
mod requirement;
#[cfg(target_os = "linux")]
mod retries;
mod sealed;
mod sealing;
mod seccomp;
mod security_md;
#[cfg(target_os = "linux")]
mod sharing;
mod signed;
mod simulated;
mod sinks;
#[cfg(target_os = "linux")]
mod slow;
mod tensorizer;
mod tidy;
mod verified;
mod whole;
