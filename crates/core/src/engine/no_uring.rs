//! Replacement for the ring on other systems and in builds without the `uring` feature.

use super::Engine;
use super::setup::{EngineSetup, Refusal};

/// Result of setting up a ring.
#[derive(Clone, Debug)]
pub struct RingProbe {
    /// Reason why there is no ring.
    pub refusal: Option<Refusal>,
    /// Kernel features that a ring would use.
    pub features: Vec<String>,
    /// Largest buffer, of the sizes tried, that could be registered, bytes.
    pub registered_bytes_max: Option<u64>,
}

/// Reports that there is no ring.
pub fn probe_ring() -> RingProbe {
    RingProbe {
        refusal: Some(refusal()),
        features: Vec::new(),
        registered_bytes_max: None,
    }
}

pub(super) fn open(_setup: &EngineSetup) -> Result<(Box<dyn Engine>, Vec<String>), Refusal> {
    Err(refusal())
}

fn refusal() -> Refusal {
    Refusal {
        reason: "this build has no io_uring".to_owned(),
        hint: "build on Linux with the feature uring".to_owned(),
        errno: None,
    }
}
