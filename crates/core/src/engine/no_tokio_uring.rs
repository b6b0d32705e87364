//! Replacement for the `tokio-uring` engine on other systems and in builds without the feature.

use super::{Engine, EngineSetup, Refusal};

pub(super) fn open(_setup: &EngineSetup) -> Result<(Box<dyn Engine>, Vec<String>), Refusal> {
    Err(Refusal {
        reason: "this build has no tokio-uring".to_owned(),
        hint: "build on Linux with the feature tokio-uring".to_owned(),
        errno: None,
    })
}
