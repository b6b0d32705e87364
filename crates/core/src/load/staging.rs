//! Staging memory of a load: one slab, or one for each place of its GPUs.

use std::sync::Arc;

use super::budget::HostBudget;
use super::destinations::{Destination, Destinations};
use super::near_gpu::GpuPlaces;
use super::pipeline::Slabs;
use crate::cuda::Context;
use crate::error::{Error, Result};
use crate::memory::{Slab, Staging, StagingNeed};
use crate::report::StagingReport;
use crate::schedule::LaneGroups;
use crate::sync::event_count::EventCount;
use crate::sync::threads::Builder;

/// Places of a load's lanes and destinations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagingPlaces<'a> {
    pub(crate) destinations: &'a Destinations,
    pub(crate) lane_groups: &'a LaneGroups,
    /// CPUs of each place, if they are chosen.
    pub(crate) gpu_places: Option<&'a GpuPlaces>,
}

/// Allocates the staging memory of a load. Places divide the budget if it has a slot for each.
///
/// # Errors
///
/// [`crate::ErrorKind::OutOfMemory`].
pub(crate) fn slabs(
    places: StagingPlaces<'_>,
    budget: HostBudget,
    events: &Arc<EventCount>,
) -> Result<Slabs> {
    let of_destination = places.lane_groups.places();
    let count = of_destination.iter().max().map_or(1, |most| most + 1);
    if count == 1 || budget.slots < count as u64 {
        let context = places.destinations.gpu();
        return Ok(Some(slab(budget, context, events)?).into());
    }
    let share = HostBudget {
        slots: budget.slots / count as u64,
        staging_max: budget.staging_max / count as u64,
        ..budget
    };
    let list = std::thread::scope(|scope| {
        let allocate = |place| {
            places.bind_to(place);
            slab(share, places.context(place), events)
        };
        let begin = |place| Builder::new().spawn_scoped(scope, move || allocate(place));
        let threads: Vec<_> = (0..count).map(begin).collect();
        let slabs = threads.into_iter().map(|thread| {
            let slab = thread.map_err(Error::cannot_start_thread)?.join();
            slab.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        slabs.collect::<Result<Vec<_>>>()
    })?;
    let of_group = places.lane_groups.list().iter().map(|group| group.place);
    let of_group = of_group.collect();
    Ok(Slabs::by_place(list, of_destination.to_vec(), of_group))
}

impl<'a> StagingPlaces<'a> {
    /// Binds the calling thread to the CPUs of a place. Memory that it touches first comes from
    /// their node, also where the system does not let the process choose one.
    fn bind_to(self, place: usize) {
        if let Some(near) = self.gpu_places.and_then(|places| places.get(place)) {
            near.bind();
        }
    }

    /// Returns the first GPU of a place.
    fn context(self, place: usize) -> Option<&'a Context> {
        let places = self.lane_groups.places().iter();
        let mut here = (self.destinations.list().iter().zip(places))
            .filter(|(_, its_place)| **its_place == place);
        here.find_map(|(destination, _)| Destination::context(destination))
    }
}

/// Allocates one slab, which takes all of the budget for staging.
///
/// # Errors
///
/// [`crate::ErrorKind::OutOfMemory`].
pub(crate) fn slab(
    budget: HostBudget,
    context: Option<&Context>,
    events: &Arc<EventCount>,
) -> Result<Arc<Slab>> {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let staging = Staging::take(&StagingNeed {
        slot_bytes: bytes(budget.slot),
        slots: bytes(budget.slots),
        bytes_max: bytes(budget.staging_max),
        context,
    })?;
    Ok(Slab::staging(
        staging,
        bytes(budget.slot),
        bytes(budget.slots),
        Arc::clone(events),
    ))
}

/// Returns what a report says of the staging memory, if there is any.
pub(crate) fn report(slabs: &Slabs) -> Option<StagingReport> {
    let report = |slab: &Arc<Slab>| {
        let facts = slab.facts()?;
        Some(StagingReport {
            bytes: facts.bytes as u64,
            slots: slab.slots(),
            pinned_bytes: facts.pinned_bytes as u64,
            reused: facts.reused,
            refusal: facts.refusal.clone(),
        })
    };
    slabs.iter().filter_map(report).reduce(StagingReport::and)
}
