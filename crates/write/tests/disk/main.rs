//! Checkpoints written to disk, read by the crate `safetensors`, and killed writers.

#![expect(clippy::disallowed_methods, reason = "tests read whole files")]

#[path = "../expected/mod.rs"]
mod expected;
mod files;
mod kill;
mod layout;
mod replace;
