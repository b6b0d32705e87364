//! Replacement for the ring on other systems and in builds without the `uring` feature.

use crate::Engine;
use crate::setup::{EngineSetup, Refusal, RingProbe};

/// Reports that there is no ring.
pub fn probe_ring() -> RingProbe {
    RingProbe {
        refusal: Some(refusal()),
        ..RingProbe::default()
    }
}

/// Reports that there is no ring.
pub fn open(_setup: &EngineSetup) -> Result<(Box<dyn Engine>, Vec<String>), Refusal> {
    Err(refusal())
}

fn refusal() -> Refusal {
    Refusal {
        reason: "this build has no io_uring".to_owned(),
        hint: "build on Linux with the feature uring".to_owned(),
        errno: None,
    }
}
