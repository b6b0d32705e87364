//! Tests of the crate's public API: real files, real engines, simulated storage.

mod checkpoints;
mod depth;
mod engines;
mod expectations;
mod fallbacks;
mod faults;
mod files;
mod fuzz;
mod hostile;
mod language;
mod links;
mod load;
mod memory;
mod moments;
mod overlay;
mod page_cache;
mod promises;
mod requirement;
mod signed;
mod simulated;
mod sinks;
#[cfg(target_os = "linux")]
mod slow;
#[cfg(target_os = "linux")]
mod steady;
mod tidy;
mod verified;
mod whole;
