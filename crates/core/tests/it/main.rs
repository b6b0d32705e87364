//! The crate's tests from outside: real files, real engines, simulated storage.

mod checkpoints;
mod engines;
mod fallbacks;
mod faults;
mod files;
mod hostile;
mod load;
mod memory;
mod requirement;
mod simulated;
mod sinks;
mod tidy;
