//! Scheduling policy of a load: the order of extents, and the depth. Pure.
//!
//! This module reads no clock and does no I/O: the pipeline requests the next extent and reports
//! starts and ends of reads. All lanes share one schedule, so that work is balanced and shards are
//! read in parallel. Sources that share limits, such as all files of a file system, are a group; a
//! lane reads the sources of one group.

mod controller;
mod depth;
mod depth_report;
mod groups;
mod lane_groups;
mod lanes;
mod least_loaded;
mod meter;
mod queues;

#[cfg(test)]
mod tests;

use std::time::Duration;

use controller::Controller;
pub use depth::{Depth, InFlight};
pub use depth_report::{DepthReport, LimitReason};
pub use groups::{Division, Groups, Member};
pub use lane_groups::{LaneGroup, LaneGroups};
pub use lanes::{LaneCount, WINDOW};
use queues::{Candidate, Queues};

use crate::order::Order;
pub use crate::read_hints::ReadHints;
use crate::{Extent, Plan};

/// Order of the reads, and state of what is in flight.
#[derive(Debug)]
pub struct Schedule {
    groups: Groups,
    /// Indexed by group.
    queues: Vec<Queues>,
    /// Indexed by group.
    controllers: Vec<Controller>,
    /// By region: its group, and the index of its source in the queues of that group.
    queue_of: Vec<(usize, usize)>,
    /// With file order over several groups: the region that is next to begin. Without it, a group
    /// that is ahead could fill the budget with tensors that are not due yet, and no memory would
    /// be left for the tensor that is due.
    turn: Option<usize>,
    stopped: bool,
}

/// Next step of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read this extent.
    Extent(usize),
    /// Wait until a read ends: the depth limit is reached.
    Deep,
    /// Wait until memory is freed, or until another group has begun an earlier region.
    Starved,
    /// Nothing is left to start.
    Done,
}

impl Schedule {
    /// Creates a schedule for `plan`. [`Order::Ready`] reads sources in parallel, [`Order::File`]
    /// one after another.
    pub fn new(plan: &Plan, order: Order, groups: Groups) -> Self {
        let (queues, queue_of) = queues(plan, order, &groups);
        let depths = (0..groups.len()).map(|group| groups.limits(group));
        let controllers = depths.map(Controller::new).collect();
        let turns = order == Order::File && groups.len() > 1;
        Self {
            groups,
            queues,
            controllers,
            queue_of,
            turn: turns.then_some(0),
            stopped: false,
        }
    }

    /// Returns the next extent for `group` to read, which counts as in flight from here on. `now`
    /// is the time since the load's start.
    ///
    /// `admit` allocates memory for a region that begins; it returns whether there was any.
    ///
    /// # Errors
    ///
    /// Errors of `admit` are returned unchanged.
    pub fn next<E>(
        &mut self,
        group: usize,
        now: Duration,
        plan: &Plan,
        mut admit: impl FnMut(usize) -> Result<bool, E>,
    ) -> Result<Next, E> {
        if self.stopped {
            return Ok(Next::Done);
        }
        let controller = &mut self.controllers[group];
        let turn = &mut self.turn;
        let candidate = self.queues[group].candidate(
            plan,
            |window| controller.admits(window),
            |region| {
                let begins = turn.is_none_or(|turn| turn == region) && admit(region)?;
                if begins {
                    *turn = turn.map(|turn| turn + 1);
                }
                Ok(begins)
            },
        )?;
        Ok(match candidate {
            Candidate::Of(source) => {
                let stride = self.groups.limits(group).stride();
                let extent = self.queues[group].take(plan, source, stride);
                controller.began(plan.extents[extent].window, now);
                Next::Extent(extent)
            }
            Candidate::NoRoom => {
                controller.full();
                Next::Deep
            }
            Candidate::NoMemory => {
                self.starved(group);
                Next::Starved
            }
            Candidate::Nothing => Next::Done,
        })
    }

    /// Records that the read of an extent returned by [`Self::next`] has ended. `now` is the time
    /// since the load's start.
    pub fn ended(&mut self, extent: &Extent, now: Duration) {
        let (group, source) = self.queue_of[extent.region];
        self.queues[group].ended(source);
        let remaining = self.queues[group].remaining();
        self.controllers[group].ended(extent.window, remaining, now);
    }

    /// Records that an extent that had ended is read again. `now` is the time since the load's
    /// start.
    pub fn again(&mut self, extent: &Extent, now: Duration) {
        let (group, source) = self.queue_of[extent.region];
        self.queues[group].again(source);
        self.controllers[group].began(extent.window, now);
    }

    /// Stops handing out extents: the load failed or was cancelled.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Returns whether a group has nothing left to start.
    pub fn is_exhausted(&self, group: usize) -> bool {
        self.stopped || self.queues[group].remaining() == 0
    }

    /// Returns whether the schedule was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns what is in flight now, over all groups.
    pub fn in_flight(&self) -> InFlight {
        let each = self.controllers.iter().map(Controller::in_flight);
        each.fold(InFlight::default(), |sum, in_flight| sum + in_flight)
    }

    /// Returns the limit of a group at the moment, probes included.
    pub fn limit(&self, group: usize) -> InFlight {
        self.controllers[group].limit()
    }

    /// Returns the number of groups.
    pub fn groups(&self) -> usize {
        self.queues.len()
    }

    /// Records that a group could have started more reads, had there been memory.
    pub fn starved(&mut self, group: usize) {
        self.controllers[group].starved();
    }

    /// Returns the depth of a group and the reason why it is not deeper.
    pub fn explain(&self, group: usize) -> DepthReport {
        self.controllers[group].explain()
    }

    /// Records that a lane could have started more reads, had it not had its share of those that
    /// are in flight in its group, or all that its engine takes.
    pub fn shared(&mut self, group: usize) {
        let controller = &mut self.controllers[group];
        // This lane has no room, but another one may.
        let window = controller.in_flight().read_bytes();
        if !controller.admits(usize::try_from(window).unwrap_or(usize::MAX)) {
            controller.full();
        }
    }

    /// Returns a marker of the regions that have begun. It changes whenever another group may begin
    /// a region; it is constant if no group waits for another.
    pub fn turn(&self) -> Option<usize> {
        self.turn
    }

    /// Returns the index of a source in the engines of its group.
    pub fn index_of(&self, source: usize) -> usize {
        self.groups.member(source).index
    }

    /// Returns the group that reads an extent.
    pub fn group_of(&self, extent: &Extent) -> usize {
        self.queue_of[extent.region].0
    }
}

/// Creates the queues of all groups. Also returns, by region, its group and the index of its source
/// in the queues of that group.
fn queues(plan: &Plan, order: Order, groups: &Groups) -> (Vec<Queues>, Vec<(usize, usize)>) {
    let in_order = |group| order == Order::File || groups.is_sequential(group);
    Queues::new(plan, groups.len(), in_order, |region| {
        groups.group_of(region)
    })
}

/// Returns the order in which regions may be given memory ahead of the reads. Whatever each
/// destination's budget is, and in whatever order the reads of sources complete, the first region
/// in this order that has not begun is the next of its queue, so the load can always make progress.
pub fn beginnings(plan: &Plan, order: Order, groups: &Groups) -> Vec<usize> {
    if order == Order::File {
        return (0..plan.regions.len()).collect();
    }
    let (queues, _) = queues(plan, order, groups);
    // Regions at the same place of their queues stay in file order.
    let mut regions: Vec<_> = queues.iter().flat_map(Queues::places).collect();
    regions.sort_unstable();
    regions.into_iter().map(|(_, region)| region).collect()
}
