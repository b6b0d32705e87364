//! Destinations of a load's tensors on a device: the load's own regions, or memory of the caller.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::regions::{DeviceRegions, OpenRegion};
use crate::cuda::{Context, Event, Stream};
use crate::error::Result;
use crate::memory::{DeviceBytes, DeviceRegion, Target, WriteGate};
use crate::plan::Plan;
use crate::tensor::{TensorBytes, TensorInfo};

/// Destinations of tensors on one device.
#[derive(Debug)]
pub enum CudaPlaces {
    /// Memory of the load.
    Regions(Arc<DeviceRegions>),
    /// Memory of the caller.
    Targets(TargetPlaces),
}

/// The caller's memory, by tensor, and the events that must fire before it is written to.
#[derive(Debug)]
pub struct TargetPlaces {
    targets: Arc<[Option<Target>]>,
    usable: Vec<Event>,
    gate: Arc<WriteGate>,
}

impl TargetPlaces {
    /// Collects the memory in `targets` on the device of `context`. It may be written to behind the
    /// work that its streams have now, and as long as `gate` is open.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Device`].
    pub fn new(
        context: &Context,
        targets: Arc<[Option<Target>]>,
        gate: Arc<WriteGate>,
    ) -> Result<Self> {
        let here = |target: &&Target| target.ordinal() == Some(context.ordinal());
        let streams: BTreeSet<u64> = targets
            .iter()
            .flatten()
            .filter(here)
            .filter_map(Target::stream)
            .collect();
        let usable = streams
            .into_iter()
            .map(|stream| crate::sink::cuda::record_foreign(context, stream));
        Ok(Self {
            usable: usable.collect::<Result<_>>()?,
            targets,
            gate,
        })
    }
}

impl CudaPlaces {
    /// Makes `stream` begin when the caller's memory may be written to, and end before the write
    /// gate has closed.
    pub(super) fn order(&self, stream: &Arc<Stream>) -> Result<()> {
        let Self::Targets(places) = self else {
            // Each region has its own event, and no memory of the caller is written to.
            return Ok(());
        };
        let queued = Arc::clone(stream);
        places.gate.on_close(move || {
            // A stream that cannot be waited for has stopped.
            let _ = queued.synchronize();
        });
        let mut usable = places.usable.iter();
        usable.try_for_each(|event| stream.wait(event))
    }

    /// Write gate of the caller's memory.
    pub(super) fn gate(&self) -> Option<&WriteGate> {
        match self {
            Self::Regions(_) => None,
            Self::Targets(places) => Some(&places.gate),
        }
    }

    /// Returns a region that has begun; `None` when its tensors go to the caller's memory.
    pub(super) fn open(&self, region: usize) -> Option<Arc<OpenRegion>> {
        match self {
            Self::Regions(regions) => Some(regions.open(region)),
            Self::Targets(_) => None,
        }
    }

    /// Address of a tensor's first byte on the device.
    pub(super) fn start(&self, plan: &Plan, region: Option<&DeviceRegion>, tensor: usize) -> u64 {
        match (self, region) {
            (Self::Regions(_), Some(region)) => region.address() + offset(plan, tensor) as u64,
            (Self::Targets(places), _) => places.target(tensor).address(),
            (Self::Regions(_), None) => unreachable!("`open` found the region"),
        }
    }

    /// Returns the bytes of a completed tensor.
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

    /// Records that an extent of a region has been copied to the device.
    pub(super) fn copied(&self, region: usize) {
        if let Self::Regions(regions) = self {
            regions.copied(region);
        }
    }
}

impl TargetPlaces {
    /// Memory that a tensor goes to.
    pub(super) fn target(&self, tensor: usize) -> &Target {
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
