//! Memory that other processes can map, for the regions of a leader: whole, or in bands.

use std::sync::Arc;

use super::not_begun::NotBegun;
use crate::memory::{PublishedPool, RegionWriter, RegionsStart};
use crate::plan::RegionPlan;
use crate::sink::PublishedBands;

/// Memory that other processes can map.
#[derive(Clone, Debug)]
pub struct PublishedMemory {
    /// Budget, and the memory.
    pub pool: PublishedPool,
    /// Regions that are published in bands, to which the slots of the feed's slab are scattered.
    pub bands: Arc<PublishedBands>,
    /// Reads of the other regions go by way of slots, too.
    pub is_copied: bool,
}

impl PublishedMemory {
    /// Allocates memory for a region: in `writer`, or for each of its bands. Returns whether there
    /// was any.
    pub(super) fn begin(
        &self,
        region: usize,
        planned: &RegionPlan,
        writer: &mut Option<RegionWriter>,
    ) -> Result<bool, NotBegun> {
        let Some(lens) = self.bands.lens(region) else {
            let begun = self.pool.begin_region(planned.bytes, planned.tensors)?;
            return NotBegun::unless(begun, writer);
        };
        match self.pool.begin_regions(&lens, planned.tensors)? {
            RegionsStart::Regions(writers) => self.bands.begun(region, writers),
            RegionsStart::Evicts(evicted) => return Err(NotBegun::Evicts(evicted)),
            RegionsStart::Full => return Ok(false),
        }
        Ok(true)
    }

    /// Ends the load: frees the memory that nothing shows.
    pub(super) fn close(&self) {
        self.bands.close();
        self.pool.close();
    }
}
