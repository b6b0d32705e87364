//! Which extent next, and how deep: all policy of a load. Pure.
//!
//! Reads no clock and does no I/O: the pipeline asks, and tells what started and what ended. Lanes share one schedule, so work
//! balances itself and shards are read side by side.

mod depth;

use std::collections::VecDeque;

pub use depth::{Depth, InFlight};

use crate::plan::{Extent, Plan};
use crate::request::Order;

/// The order of reads and what is in flight.
#[derive(Debug)]
pub struct Schedule {
    /// Regions that have not begun, by source.
    waiting: VecDeque<VecDeque<usize>>,
    /// Regions that have begun and still have extents to read; the front is next.
    open: VecDeque<OpenRegion>,
    /// Most regions open at a time: enough to keep every read in flight in another source, and no more memory than that.
    width: usize,
    depth: Depth,
    in_flight: InFlight,
    stopped: bool,
}

#[derive(Debug)]
struct OpenRegion {
    source_queue: Option<VecDeque<usize>>,
    region: usize,
    next_extent: usize,
}

/// What a lane should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read this extent.
    Extent(usize),
    /// Wait until a read ends: the load is as deep as it may be.
    Deep,
    /// Wait until memory comes back: there is none for another region.
    Starved,
    /// Nothing is left to start.
    Done,
}

impl Schedule {
    /// A schedule for `plan`. [`Order::Ready`] reads sources side by side, [`Order::File`] one after another.
    pub fn new(plan: &Plan, order: Order, depth: Depth) -> Self {
        let mut waiting: VecDeque<VecDeque<usize>> = VecDeque::new();
        let mut last_source = None;
        for (index, region) in plan.regions.iter().enumerate() {
            // Regions come in file order, so a new source begins a new queue.
            if last_source != Some(region.source) && (order == Order::Ready || waiting.is_empty()) {
                waiting.push_back(VecDeque::new());
            }
            last_source = Some(region.source);
            waiting
                .back_mut()
                .expect("pushed for the first region")
                .push_back(index);
        }
        let width = depth
            .reads_of(plan.window_bytes_max())
            .min(waiting.len())
            .max(1);
        Self {
            waiting,
            open: VecDeque::new(),
            width,
            depth,
            in_flight: InFlight::default(),
            stopped: false,
        }
    }

    /// The next extent to read, which counts as in flight from here on.
    ///
    /// `admit` gets memory for a region that begins; it answers whether there was any.
    ///
    /// # Errors
    ///
    /// Whatever `admit` fails with.
    pub fn next<E>(
        &mut self,
        plan: &Plan,
        mut admit: impl FnMut(usize) -> Result<bool, E>,
    ) -> Result<Next, E> {
        if self.stopped || (self.open.is_empty() && self.waiting.is_empty()) {
            return Ok(Next::Done);
        }
        // A source whose next region does not fit now lets the others pass. It cannot be passed for ever: the budget holds
        // every region alone, and the others come to an end.
        let mut starved = false;
        for _ in 0..self.waiting.len() {
            if self.open.len() == self.width {
                break;
            }
            let region = self.waiting[0][0];
            if admit(region)? {
                self.begin(plan, region);
            } else {
                starved = true;
                self.waiting.rotate_left(1);
            }
        }
        let Some(front) = self.open.front_mut() else {
            return Ok(if starved { Next::Starved } else { Next::Done });
        };
        let extent = front.next_extent;
        let window = window(plan, extent);
        if !self.depth.admits(self.in_flight, window) {
            return Ok(Next::Deep);
        }
        front.next_extent += 1;
        self.in_flight.begin(window);
        self.advance(plan);
        Ok(Next::Extent(extent))
    }

    /// Takes the first waiting region, which got its memory, and opens it.
    fn begin(&mut self, plan: &Plan, region: usize) {
        let mut queue = self
            .waiting
            .pop_front()
            .expect("the caller looked at its front");
        queue.pop_front();
        let next_extent = plan.regions[region].extents.start;
        let source_queue = (!queue.is_empty()).then_some(queue);
        self.open.push_back(OpenRegion {
            source_queue,
            region,
            next_extent,
        });
    }

    /// After the front's next extent was taken: the next source's turn; a finished region makes room for its source's next.
    fn advance(&mut self, plan: &Plan) {
        let Some(mut front) = self.open.pop_front() else {
            return;
        };
        if front.next_extent < plan.regions[front.region].extents.end {
            self.open.push_back(front);
        } else if let Some(queue) = front.source_queue.take() {
            self.waiting.push_back(queue);
        }
    }

    /// An extent that [`Self::next`] gave out has come back, filled or failed.
    pub fn ended(&mut self, extent: &Extent) {
        self.in_flight.end(extent.window);
    }

    /// No further extent: the load failed or was cancelled.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// What is in flight now.
    pub fn in_flight(&self) -> InFlight {
        self.in_flight
    }
}

fn window(plan: &Plan, extent: usize) -> usize {
    plan.extents[extent].window
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::plan::{Layout, Wanted, build};

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// `sources` files of four 2 MiB tensors each, read in 1 MiB extents.
    fn plan(sources: usize) -> Plan {
        let wanted: Vec<_> = (0..sources)
            .flat_map(|source| {
                (0..4u64).map(move |tensor| Wanted {
                    source,
                    range: tensor * 2 * MIB..(tensor + 1) * 2 * MIB,
                    alignment: 1,
                })
            })
            .collect();
        let layout = Layout {
            extent_bytes: MIB,
            alignment: 4 * KIB,
            gap_bytes: 0,
        };
        build(&wanted, &vec![layout; sources])
    }

    fn take(schedule: &mut Schedule, plan: &Plan, memory: bool) -> Next {
        schedule
            .next(plan, |_| Ok::<_, Infallible>(memory))
            .expect("infallible")
    }

    fn drain(schedule: &mut Schedule, plan: &Plan) -> Vec<usize> {
        let mut extents = Vec::new();
        loop {
            match take(schedule, plan, true) {
                Next::Extent(extent) => {
                    extents.push(extent);
                    schedule.ended(&plan.extents[extent]);
                }
                Next::Done => return extents,
                stall @ (Next::Deep | Next::Starved) => panic!("stalled: {stall:?}"),
            }
        }
    }

    #[test]
    fn every_extent_is_given_out_once_and_in_order_within_its_region() {
        let plan = plan(3);
        for order in [Order::Ready, Order::File] {
            let mut schedule = Schedule::new(&plan, order, Depth::fixed(4, 64 * MIB));
            let mut extents = drain(&mut schedule, &plan);
            for region in &plan.regions {
                let of_region: Vec<_> = extents
                    .iter()
                    .filter(|extent| region.extents.contains(extent))
                    .collect();
                assert!(of_region.is_sorted());
            }
            extents.sort_unstable();
            assert_eq!(extents, (0..plan.extents.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn sources_are_interleaved_unless_file_order_is_asked_for() {
        let plan = plan(3);
        let sources = |order| {
            let mut schedule = Schedule::new(&plan, order, Depth::fixed(8, 64 * MIB));
            let first: Vec<_> = drain(&mut schedule, &plan)[..6]
                .iter()
                .map(|&extent| plan.extents[extent].source)
                .collect();
            first
        };
        let mut ready = sources(Order::Ready);
        ready.sort_unstable();
        assert_eq!(ready, [0, 0, 1, 1, 2, 2]);
        assert_eq!(sources(Order::File), [0; 6]);
    }

    #[test]
    fn depth_bounds_jobs_and_bytes_but_never_stops_everything() {
        let plan = plan(1);
        let mut schedule = Schedule::new(&plan, Order::Ready, Depth::fixed(2, 64 * MIB));
        assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
        assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
        assert_eq!(take(&mut schedule, &plan, true), Next::Deep);

        let mut schedule = Schedule::new(&plan, Order::Ready, Depth::fixed(9, 1));
        let Next::Extent(first) = take(&mut schedule, &plan, true) else {
            panic!("one is allowed")
        };
        assert_eq!(take(&mut schedule, &plan, true), Next::Deep);
        schedule.ended(&plan.extents[first]);
        assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
    }

    #[test]
    fn without_memory_open_regions_go_on_and_then_the_lane_waits() {
        let plan = plan(2);
        let mut schedule = Schedule::new(&plan, Order::Ready, Depth::fixed(16, 64 * MIB));
        let only_first = schedule.next(&plan, |region| Ok::<_, Infallible>(region == 0));
        assert_eq!(only_first, Ok(Next::Extent(0)));
        assert_eq!(take(&mut schedule, &plan, false), Next::Extent(1));
        assert_eq!(take(&mut schedule, &plan, false), Next::Starved);
        assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
    }

    #[test]
    fn a_stopped_schedule_is_done() {
        let plan = plan(1);
        let mut schedule = Schedule::new(&plan, Order::Ready, Depth::fixed(2, MIB));
        schedule.stop();
        assert_eq!(take(&mut schedule, &plan, true), Next::Done);
    }
}
