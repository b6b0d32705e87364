//! Throws bytes away: reading at full speed without making tensors, as the ceiling to compare loads with.

use super::Sink;
use crate::buffer::Filled;
use crate::engine::Wait;
use crate::error::Result;
use crate::plan::Extent;

/// Takes leases and completes nothing.
#[derive(Debug, Default)]
pub struct DiscardSink {
    /// Windows that are kept to the end instead of being used again.
    kept: Option<Vec<Filled>>,
}

impl DiscardSink {
    /// Gives every window back at once.
    pub fn recycling() -> Self {
        Self::default()
    }

    /// Keeps every window, so that all bytes end up in memory of their own.
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
