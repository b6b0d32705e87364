//! Stands in for the ring where there is none: other systems, and builds without the `uring` feature.

use super::Engine;
use super::choose::{EngineSetup, Refusal};

/// What setting up a ring gave.
#[derive(Clone, Debug)]
pub struct RingProbe {
    /// Why there is none.
    pub refusal: Option<Refusal>,
    /// What of the kernel's offers a ring would use.
    pub features: Vec<String>,
    /// The largest buffer, of the sizes tried, that could be registered, bytes.
    pub registered_bytes_max: Option<u64>,
}

/// There is no ring.
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
