//! Where on a device the tensors of a load go: regions of the load's, or memory of the caller's.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::regions::{DeviceRegions, OpenRegion};
use crate::buffer::{DeviceBytes, DeviceRegion, Gate, Target};
use crate::cuda::{Context, Event, Stream};
use crate::error::Result;
use crate::plan::Plan;
use crate::tensor::{TensorBytes, TensorInfo};

/// Where tensors go.
#[derive(Debug)]
pub enum CudaPlaces {
    /// Memory of the load's.
    Regions(Arc<DeviceRegions>),
    /// Memory of the caller's.
    Targets(TargetPlaces),
}

/// Memory of the caller's, by tensor, and what must have happened before it is written to.
#[derive(Debug)]
pub struct TargetPlaces {
    targets: Arc<[Option<Target>]>,
    usable: Vec<Event>,
    gate: Arc<Gate>,
}

impl TargetPlaces {
    /// The memory in `targets` that is on the device of `context`. It may be written to behind what its streams have been given by
    /// now, and as long as `gate` is open.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Device`].
    pub fn new(context: &Context, targets: Arc<[Option<Target>]>, gate: Arc<Gate>) -> Result<Self> {
        let here = |target: &&Target| target.ordinal() == Some(context.ordinal());
        let streams = targets.iter().flatten().filter(here);
        let streams: BTreeSet<u64> = streams.filter_map(Target::stream).collect();
        let usable = streams
            .into_iter()
            .map(|stream| super::record_foreign(context, stream));
        Ok(Self {
            usable: usable.collect::<Result<_>>()?,
            targets,
            gate,
        })
    }
}

impl CudaPlaces {
    /// Lets `stream` begin once the caller's memory may be written to, and end before it may not.
    pub(super) fn order(&self, stream: &Arc<Stream>) -> Result<()> {
        let Self::Targets(places) = self else {
            // Each region has an event of its own, and nobody else's memory is written to.
            return Ok(());
        };
        let queued = Arc::clone(stream);
        places.gate.on_close(move || {
            // What cannot be waited for has stopped.
            let _ = queued.synchronize();
        });
        let mut usable = places.usable.iter();
        usable.try_for_each(|event| stream.wait(event))
    }

    /// The gate of memory of the caller's.
    pub(super) fn gate(&self) -> Option<&Gate> {
        match self {
            Self::Regions(_) => None,
            Self::Targets(places) => Some(&places.gate),
        }
    }

    /// A region that has begun; none when its tensors have memory of the caller's.
    pub(super) fn open(&self, region: usize) -> Option<Arc<OpenRegion>> {
        match self {
            Self::Regions(regions) => Some(regions.open(region)),
            Self::Targets(_) => None,
        }
    }

    /// Whether one copy may bring several tensors, and what is between them: in memory of the caller's, something else may be
    /// between them, or the end of an allocation.
    pub(super) fn joins_tensors(&self) -> bool {
        matches!(self, Self::Regions(_))
    }

    /// Where a tensor begins on the device.
    pub(super) fn start(&self, plan: &Plan, region: Option<&DeviceRegion>, tensor: usize) -> u64 {
        match (self, region) {
            (Self::Regions(_), Some(region)) => region.address() + offset(plan, tensor) as u64,
            (Self::Targets(places), _) => places.target(tensor).address(),
            (Self::Regions(_), None) => unreachable!("`open` found the region"),
        }
    }

    /// The bytes of a tensor that has arrived.
    pub(super) fn complete(
        &self,
        plan: &Plan,
        region: Option<&Arc<DeviceRegion>>,
        tensor: usize,
        info: &TensorInfo,
    ) -> TensorBytes {
        let len = usize::try_from(info.byte_len()).expect("allocated, so it fits");
        match (self, region) {
            (Self::Regions(_), Some(region)) => {
                let region = Arc::clone(region);
                TensorBytes::Device(DeviceBytes::new(region, offset(plan, tensor), len))
            }
            (Self::Targets(places), _) => TensorBytes::Target(places.target(tensor).clone()),
            (Self::Regions(_), None) => unreachable!("`open` found the region"),
        }
    }

    /// An extent of a region is on the device.
    pub(super) fn copied(&self, region: usize) {
        if let Self::Regions(regions) = self {
            regions.copied(region);
        }
    }
}

impl TargetPlaces {
    fn target(&self, tensor: usize) -> &Target {
        self.targets[tensor]
            .as_ref()
            .expect("tensors of this destination have targets")
    }
}

fn offset(plan: &Plan, tensor: usize) -> usize {
    let (_, offset) = plan.targets[tensor]
        .place
        .expect("a tensor with pieces has a place");
    offset
}
