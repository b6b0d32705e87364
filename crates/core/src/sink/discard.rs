//! Discards bytes: reads at full speed without making tensors, as the ceiling to compare loads
//! with.

use super::Sink;
use crate::engine::Wait;
use crate::error::Result;
use crate::memory::Filled;
use crate::plan::Extent;

/// Sink that takes leases and completes no tensor.
#[derive(Debug, Default)]
pub struct DiscardSink {
    /// Windows kept to the end instead of being reused.
    kept: Option<Vec<Filled>>,
}

impl DiscardSink {
    /// Creates a sink that returns every window at once.
    pub fn recycling() -> Self {
        Self::default()
    }

    /// Creates a sink that retains every window, like a caller that keeps all tensors.
    pub fn keeping() -> Self {
        Self {
            kept: Some(Vec::new()),
        }
    }
}

impl Sink for DiscardSink {
    type Tensor = ();

    fn in_flight(&self) -> usize {
        0
    }

    fn submit(&mut self, _extent: &Extent, filled: Filled) -> Result<()> {
        if let Some(kept) = &mut self.kept {
            kept.push(filled);
        }
        Ok(())
    }

    fn reap(&mut self, _wait: Wait, _ready: &mut Vec<()>) -> Result<()> {
        Ok(())
    }
}
