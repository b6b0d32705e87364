//! Checkpoints written to disk, read by the crate `safetensors`, killed writers, and full disks.

#![expect(clippy::disallowed_methods, reason = "tests read whole files")]

#[path = "../expected/mod.rs"]
mod expected;
mod files;
#[cfg(target_os = "linux")]
mod full;
mod kill;
mod layout;
mod replace;
