//! Other loaders of safetensors checkpoints: which ones there are, which of them a Python has, and
//! one load by one of them in a process of its own, for `tload bench --against`.
//!
//! ```text
//!  PEERS ─▶ Python::find ─▶ versions          one process, which imports nothing
//!               └─▶ Python::load              one process for each load:
//!                     imports ─▶ ready
//!                                  ◀─ prepare the page cache, then start the clock
//!                     load ─▶ Outcome
//! ```
//!
//! `peers.py` is what runs there, and calls each loader as its documentation does. `process` speaks
//! with it, limits its time, and ends it with everything that it started.
//!
//! Programs depend on the crate `tload`. This one is of its command, is released with it, and may
//! change in any release.

mod process;
mod python;

pub use process::Watch;
pub use python::{Outcome, PeerLoad, Python, default_program, time_limit};

use serde::{Serialize, Serializer};

/// Loader to compare with.
#[derive(Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name that users give.
    pub name: &'static str,
    /// Name of its package on PyPI.
    pub package: &'static str,
    /// True if it reads a converted copy of the checkpoint.
    pub has_own_format: bool,
}

/// Every loader that `peers.py` can call.
pub static PEERS: [Peer; 6] = [
    peer("safetensors", "safetensors", false),
    peer("runai", "runai-model-streamer", false),
    peer("fastsafetensors", "fastsafetensors", false),
    peer("tensorizer", "tensorizer", true),
    peer("instanttensor", "instanttensor", false),
    peer("tload-python", "tload", false),
];

const fn peer(name: &'static str, package: &'static str, has_own_format: bool) -> Peer {
    Peer {
        name,
        package,
        has_own_format,
    }
}

impl Serialize for Peer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}
