//! Which extent next, and how deep: all policy of a load. Pure.
//!
//! Reads no clock and does no I/O: the pipeline asks, and tells what started and what ended. Lanes share one schedule, so work
//! balances itself and shards are read side by side. Sources that share limits, such as all files, are a group; a lane reads those
//! of one group.

mod controller;
mod depth;
mod explain;
mod groups;
mod lanes;
mod meter;
mod queues;
mod turns;

#[cfg(test)]
mod tests;

use std::time::Duration;

use controller::Controller;
pub use depth::{Depth, InFlight};
pub use explain::{DepthReport, Settled};
pub use groups::{Groups, Member};
pub use lanes::{LaneCount, WINDOW};
use queues::{Candidate, Queues};

use crate::plan::{Extent, Plan};
use crate::request::Order;

/// The order of reads and what is in flight.
#[derive(Debug)]
pub struct Schedule {
    groups: Groups,
    /// By group.
    queues: Vec<Queues>,
    /// By group.
    controllers: Vec<Controller>,
    /// Each source's number in the queues of its group.
    numbers: Vec<usize>,
    /// File order over several groups: the region whose turn it is to begin. Otherwise a group that is ahead could fill the budget
    /// with tensors that wait for their turn, and none would be left for the tensor whose turn it is.
    turn: Option<usize>,
    stopped: bool,
}

/// What a lane should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read this extent.
    Extent(usize),
    /// Wait until a read ends: the load is as deep as it may be.
    Deep,
    /// Wait until memory comes back, or until another group has begun what comes first.
    Starved,
    /// Nothing is left to start.
    Done,
}

impl Schedule {
    /// A schedule for `plan`. [`Order::Ready`] reads sources side by side, [`Order::File`] one after another.
    pub fn new(plan: &Plan, order: Order, groups: Groups) -> Self {
        let group_of = |source| groups.member(source).group;
        let (queues, numbers) = Queues::new(plan, order, groups.len(), group_of);
        let depths = (0..groups.len()).map(|group| groups.limits(group));
        let controllers = depths.map(Controller::new).collect();
        let turns = order == Order::File && groups.len() > 1;
        Self {
            groups,
            queues,
            controllers,
            numbers,
            turn: turns.then_some(0),
            stopped: false,
        }
    }

    /// The next extent that `group` is to read, which counts as in flight from here on. `now` is the time since the load's start.
    ///
    /// `admit` gets memory for a region that begins; it answers whether there was any.
    ///
    /// # Errors
    ///
    /// Whatever `admit` fails with.
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

    /// An extent that [`Self::next`] gave out has come back, filled or failed. `now` is the time since the load's start.
    pub fn ended(&mut self, extent: &Extent, now: Duration) {
        let group = self.groups.member(extent.source).group;
        self.queues[group].ended(self.numbers[extent.source]);
        let remaining = self.queues[group].remaining();
        self.controllers[group].ended(extent.window, remaining, now);
    }

    /// No further extent: the load failed or was cancelled.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether a group has nothing left to start.
    pub fn is_exhausted(&self, group: usize) -> bool {
        self.stopped || self.queues[group].remaining() == 0
    }

    /// Whether nothing more is to begin.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// What is in flight now, over all groups.
    pub fn in_flight(&self) -> InFlight {
        let each = self.controllers.iter().map(Controller::in_flight);
        each.fold(InFlight::default(), |sum, in_flight| sum + in_flight)
    }

    /// What a group may have in flight at this moment, probes included.
    pub fn limit(&self, group: usize) -> InFlight {
        self.controllers[group].limit()
    }

    /// How many groups there are.
    pub fn groups(&self) -> usize {
        self.queues.len()
    }

    /// A group could have started more, had there been memory.
    pub fn starved(&mut self, group: usize) {
        self.controllers[group].starved();
    }

    /// What is known of the depth of a group: how deep, why not deeper.
    pub fn explain(&self, group: usize) -> DepthReport {
        self.controllers[group].explain()
    }

    /// Which regions have begun, as a mark that changes whenever that lets another group begin one; always the same when no group
    /// waits for another.
    pub fn turn(&self) -> Option<usize> {
        self.turn
    }

    /// Where a source is read.
    pub fn member(&self, source: usize) -> Member {
        self.groups.member(source)
    }
}

/// The order in which regions may be given memory ahead of the reads: whatever each destination's budget, and however reads of
/// sources overtake one another, the first of them that has not begun is the next of its source, so something can always go on.
pub fn beginnings(plan: &Plan, order: Order) -> Vec<usize> {
    let mut regions: Vec<usize> = (0..plan.regions.len()).collect();
    if order == Order::Ready {
        let mut places = Vec::with_capacity(regions.len());
        let mut place = 0;
        for (index, region) in plan.regions.iter().enumerate() {
            let same = index > 0 && plan.regions[index - 1].source == region.source;
            place = if same { place + 1 } else { 0 };
            places.push(place);
        }
        // Stable: of regions at the same place, in the order of their sources.
        regions.sort_by_key(|region| places[*region]);
    }
    regions
}
