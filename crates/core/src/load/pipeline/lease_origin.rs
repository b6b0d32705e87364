//! Memory that the reads of one destination fill: how a region begins there, and which window each
//! extent gets.

use std::sync::Arc;

use super::not_begun::{DeviceOf, DeviceWait, NotBegun};
use super::published::PublishedMemory;
use crate::memory::{FileView, Lease, Pool, RegionWriter, Slab};
use crate::plan::Plan;
use crate::sink::{DeviceRegions, DeviceStart};
use crate::sync::lock::Mutex;
use tload_ranks::Link;

/// Origin of leases.
#[derive(Debug)]
pub enum LeaseOrigin {
    /// Final memory of tensors: that of slices with gaps by way of the slots of the feed's slab.
    Regions(Pool),
    /// Slots of the feed's slab; the sink knows the final place of the bytes.
    Slots,
    /// Slots of the feed's slab, for device memory that regions get when they begin.
    Device(Arc<DeviceRegions>),
    /// Memory that other processes can map.
    Published(PublishedMemory),
    /// Memory that another process fills, where the plan's regions can show it; else final memory.
    Received {
        /// By region of the plan: the region of the node that it shows.
        shows: Vec<Option<usize>>,
        /// Connection to the process that fills it.
        link: Arc<Link>,
        /// Budget, and memory for the rest.
        pool: Pool,
    },
    /// Final memory that exists already: the files themselves.
    Views {
        /// By source.
        views: Vec<Arc<FileView>>,
        /// For tensors that no view can align.
        pool: Pool,
    },
    /// One region for everything, filled in the order of the reads.
    Whole(Mutex<RegionWriter>),
}

impl LeaseOrigin {
    /// Allocates memory for a region. Returns whether there was any. `waited` is the lane's last
    /// wait for a full device, which may be that of another region.
    pub(super) fn begin(
        &self,
        plan: &Plan,
        region: usize,
        writer: &mut Option<RegionWriter>,
        waited: Option<DeviceWait>,
    ) -> Result<bool, NotBegun> {
        let planned = &plan.regions[region];
        match self {
            Self::Regions(pool) => {
                NotBegun::unless(pool.begin_region(planned.bytes, planned.tensors)?, writer)
            }
            Self::Published(memory) => memory.begin(region, planned, writer),
            Self::Received { shows, link, pool } => {
                let begun = match shows[region] {
                    None => pool.begin_region(planned.bytes, planned.tensors)?,
                    Some(shown) => {
                        let first = &plan.extents[planned.extents.start];
                        let offset = usize::try_from(first.offset).expect("mapped, so it fits");
                        let view = link.view(shown).expect("released after its last use");
                        pool.begin_received(&view, offset, planned.bytes, planned.tensors)
                    }
                };
                NotBegun::unless(begun, writer)
            }
            Self::Views { views, pool } => {
                if plan.is_realigned(planned) {
                    let begun = pool.begin_region(planned.bytes, planned.tensors)?;
                    return NotBegun::unless(begun, writer);
                }
                let first = &plan.extents[planned.extents.start];
                let offset = usize::try_from(first.offset).expect("mapped, so it fits");
                let (view, len) = (&views[planned.source], planned.bytes);
                *writer = Some(RegionWriter::over(view, offset, len, planned.tensors));
                Ok(true)
            }
            Self::Device(regions) => {
                let destination = planned.destination;
                let waited = waited.filter(|waited| waited.destination == destination);
                match regions.try_begin(region, waited.map(|waited| waited.wait))? {
                    DeviceStart::Begun => Ok(true),
                    DeviceStart::NotYet => Ok(false),
                    DeviceStart::NoRoom => Err(NotBegun::NoRoom(DeviceOf {
                        destination,
                        regions: Arc::clone(regions),
                    })),
                }
            }
            // These windows are taken when each extent begins.
            Self::Slots | Self::Whole(_) => Ok(true),
        }
    }

    /// Takes the window of an extent, whose region has begun with `writer`.
    pub(super) fn lease(
        &self,
        plan: &Plan,
        index: usize,
        writer: &mut Option<RegionWriter>,
        slab: Option<&Arc<Slab>>,
    ) -> Lease {
        let extent = &plan.extents[index];
        let region = &plan.regions[extent.region];
        let slot = || {
            slab.and_then(|slab| slab.try_lease(extent.window))
                .expect("a slot was free, and only this lock's owner takes any")
        };
        match self {
            Self::Published(memory) if !memory.bands.of(extent.region).is_empty() => {
                let is_last = index + 1 == region.extents.end;
                memory.bands.carve(extent, is_last);
                slot()
            }
            Self::Regions(_) | Self::Published(_) | Self::Received { .. } | Self::Views { .. } => {
                let begun = writer.as_mut().expect("admitted before its extents");
                let slice = plan.slice_in(extent);
                let lease = begun.carve(slice.map_or(extent.window, |piece| piece.len));
                if index + 1 == region.extents.end {
                    *writer = None;
                }
                let is_copied =
                    slice.is_some() || matches!(self, Self::Published(memory) if memory.is_copied);
                let slot = slab
                    .filter(|_| is_copied)
                    .and_then(|slab| slab.try_lease(extent.window));
                assert!(
                    slot.is_some() || slice.is_none(),
                    "slices with gaps are read into slots"
                );
                match slot {
                    Some(slot) => slot.on_the_way_to(lease),
                    None => lease,
                }
            }
            Self::Slots | Self::Device(_) => slot(),
            Self::Whole(whole) => whole.lock().carve(extent.window),
        }
    }

    /// Frees the memory kept for later reads.
    pub(super) fn close(&self) {
        match self {
            Self::Regions(pool) | Self::Received { pool, .. } | Self::Views { pool, .. } => {
                pool.close();
            }
            Self::Published(memory) => memory.close(),
            Self::Device(regions) => regions.close(),
            Self::Slots | Self::Whole(_) => {}
        }
    }
}
