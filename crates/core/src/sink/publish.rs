//! Memory for other processes: announces what the leader of a node has read, and drops its leases.

use std::sync::Arc;

use super::{PublishedBands, Sink};
use crate::engine::Wait;
use crate::error::Result;
use crate::memory::{Filled, Region};
use crate::plan::{Extent, Plan};

/// Receiver of what a [`PublishSink`] announces.
pub trait Publisher: Send + Sync {
    /// Takes note that the bytes from `from` to `to` of the published region with this number are
    /// filled. Its memory is the same at every call.
    fn filled(&self, region: usize, memory: &Arc<Region>, from: u64, to: u64);
}

/// Sink that completes no tensors: it announces filled extents to a publisher.
pub struct PublishSink {
    plan: Arc<Plan>,
    bands: Arc<PublishedBands>,
    publisher: Arc<dyn Publisher>,
}

impl PublishSink {
    /// Creates a sink for `plan`, whose leases come from regions that can be published, or from
    /// slots if the region has bands.
    pub fn new(plan: Arc<Plan>, bands: Arc<PublishedBands>, publisher: Arc<dyn Publisher>) -> Self {
        Self {
            plan,
            bands,
            publisher,
        }
    }

    fn submit_whole(&self, extent: &Extent, filled: Filled) {
        let all = 0..filled.bytes().len();
        let filled = filled.arrived(all);
        let (region, _) = filled.region().expect("published loads lease from regions");
        let region = Arc::clone(region);
        // The window's last owner must be gone before others read it.
        drop(filled);
        let first = &self.plan.extents[self.plan.regions[extent.region].extents.start];
        let from = extent.offset - first.offset;
        let to = from + extent.needed as u64;
        let number = self.bands.first(extent.region);
        self.publisher.filled(number, &region, from, to);
    }
}

impl Sink for PublishSink {
    type Tensor = ();

    fn in_flight(&self) -> usize {
        0
    }

    fn submit(&mut self, extent: &Extent, filled: Filled) -> Result<()> {
        assert!(
            filled.bytes().len() >= extent.needed,
            "engines fill whole extents"
        );
        if self.bands.of(extent.region).is_empty() {
            self.submit_whole(extent, filled);
            return Ok(());
        }
        for (number, region, range) in self.bands.scatter(extent, filled) {
            self.publisher
                .filled(number, &region, range.start, range.end);
        }
        Ok(())
    }

    fn reap(&mut self, _wait: Wait, _ready: &mut Vec<()>) -> Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for PublishSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublishSink").finish_non_exhaustive()
    }
}
