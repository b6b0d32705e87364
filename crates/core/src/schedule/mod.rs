//! Which extent next, and how deep: all policy of a load. Pure.
//!
//! Reads no clock and does no I/O: the pipeline asks, and tells what started and what ended. Lanes share one schedule, so work
//! balances itself and shards are read side by side. Sources that share limits, such as all files, are a group; a lane reads those
//! of one group.

mod depth;
mod groups;

use std::collections::VecDeque;

pub use depth::{Depth, InFlight};
pub use groups::{Groups, Member};

use crate::plan::{Extent, Plan};
use crate::request::Order;

/// The order of reads and what is in flight.
#[derive(Debug)]
pub struct Schedule {
    groups: Groups,
    /// By group.
    queues: Vec<Queues>,
    /// File order over several groups: the region whose turn it is to begin. Otherwise a group that is ahead could fill the budget
    /// with tensors that wait for their turn, and none would be left for the tensor whose turn it is.
    turn: Option<usize>,
    stopped: bool,
}

/// What one group has to read.
#[derive(Debug)]
struct Queues {
    /// Regions that have not begun, by source.
    waiting: VecDeque<SourceQueue>,
    /// Regions that have begun and still have extents to read; the front is next.
    open: VecDeque<OpenRegion>,
    /// Most regions open at a time: enough to keep every read in flight in another source, and no more memory than that.
    width: usize,
    in_flight: InFlight,
}

#[derive(Debug, Default)]
struct SourceQueue {
    regions: VecDeque<usize>,
    /// Bytes taken since it was last another source's turn.
    taken: u64,
}

#[derive(Debug)]
struct OpenRegion {
    queue: SourceQueue,
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
    /// Wait until memory comes back, or until another group has begun what comes first.
    Starved,
    /// Nothing is left to start.
    Done,
}

impl Schedule {
    /// A schedule for `plan`. [`Order::Ready`] reads sources side by side, [`Order::File`] one after another.
    pub fn new(plan: &Plan, order: Order, groups: Groups) -> Self {
        let mut queues: Vec<Queues> = (0..groups.len()).map(|_| Queues::default()).collect();
        let mut last_source = None;
        for (index, region) in plan.regions.iter().enumerate() {
            let waiting = &mut queues[groups.member(region.source).group].waiting;
            // Regions come in file order, so a new source begins a new queue.
            if last_source != Some(region.source) && (order == Order::Ready || waiting.is_empty()) {
                waiting.push_back(SourceQueue::default());
            }
            last_source = Some(region.source);
            let last = waiting.back_mut().expect("pushed for the first region");
            last.regions.push_back(index);
        }
        for (group, queues) in queues.iter_mut().enumerate() {
            let side_by_side = groups.limits(group).reads_of(plan.window_bytes_max());
            queues.width = side_by_side.min(queues.waiting.len()).max(1);
        }
        let turns = order == Order::File && groups.len() > 1;
        Self {
            groups,
            queues,
            turn: turns.then_some(0),
            stopped: false,
        }
    }

    /// The next extent that `group` is to read, which counts as in flight from here on.
    ///
    /// `admit` gets memory for a region that begins; it answers whether there was any.
    ///
    /// # Errors
    ///
    /// Whatever `admit` fails with.
    pub fn next<E>(
        &mut self,
        group: usize,
        plan: &Plan,
        mut admit: impl FnMut(usize) -> Result<bool, E>,
    ) -> Result<Next, E> {
        let queues = &mut self.queues[group];
        if self.stopped || (queues.open.is_empty() && queues.waiting.is_empty()) {
            return Ok(Next::Done);
        }
        // A source whose next region does not fit now lets the others pass. It cannot be passed for ever: the budget holds
        // every region alone, and the others come to an end.
        let mut starved = false;
        for _ in 0..queues.waiting.len() {
            if queues.open.len() == queues.width {
                break;
            }
            let region = queues.waiting[0].regions[0];
            if self.turn.is_none_or(|turn| turn == region) && admit(region)? {
                queues.begin(plan, region);
                self.turn = self.turn.map(|turn| turn + 1);
            } else {
                starved = true;
                queues.waiting.rotate_left(1);
            }
        }
        let Some(front) = queues.open.front_mut() else {
            return Ok(if starved { Next::Starved } else { Next::Done });
        };
        let extent = front.next_extent;
        let window = window(plan, extent);
        let limits = self.groups.limits(group);
        if !limits.admits(queues.in_flight, window) {
            return Ok(Next::Deep);
        }
        front.next_extent += 1;
        front.queue.taken += window as u64;
        queues.in_flight.begin(window);
        queues.advance(plan, limits.stride());
        Ok(Next::Extent(extent))
    }

    /// An extent that [`Self::next`] gave out has come back, filled or failed.
    pub fn ended(&mut self, extent: &Extent) {
        let group = self.groups.member(extent.source).group;
        self.queues[group].in_flight.end(extent.window);
    }

    /// No further extent: the load failed or was cancelled.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether nothing more is to begin.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// What is in flight now, over all groups.
    pub fn in_flight(&self) -> InFlight {
        self.queues
            .iter()
            .fold(InFlight::default(), |sum, queues| sum + queues.in_flight)
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

impl Default for Queues {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            open: VecDeque::new(),
            width: 1,
            in_flight: InFlight::default(),
        }
    }
}

impl Queues {
    /// Takes the first waiting region, which got its memory, and opens it.
    fn begin(&mut self, plan: &Plan, region: usize) {
        let mut queue = self
            .waiting
            .pop_front()
            .expect("the caller looked at its front");
        queue.regions.pop_front();
        let still_its_turn = queue.taken > 0;
        let open = OpenRegion {
            queue,
            region,
            next_extent: plan.regions[region].extents.start,
        };
        if still_its_turn {
            self.open.push_front(open);
        } else {
            self.open.push_back(open);
        }
    }

    /// After the front's next extent was taken: the next source's turn, once this one has had its stride; a finished region makes
    /// room for its source's next.
    fn advance(&mut self, plan: &Plan, stride: u64) {
        let Some(mut front) = self.open.pop_front() else {
            return;
        };
        let turn_is_over = front.queue.taken >= stride;
        if turn_is_over {
            front.queue.taken = 0;
        }
        let finished = front.next_extent == plan.regions[front.region].extents.end;
        match (finished, turn_is_over) {
            (false, true) => self.open.push_back(front),
            (false, false) => self.open.push_front(front),
            (true, _) if front.queue.regions.is_empty() => {}
            (true, true) => self.waiting.push_back(front.queue),
            (true, false) => self.waiting.push_front(front.queue),
        }
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
                    destination: 0,
                })
            })
            .collect();
        let layout = Layout {
            extent_bytes: MIB,
            alignment: 4 * KIB,
            gap_bytes: 0,
        };
        build(
            &wanted,
            &vec![layout; sources],
            &[crate::plan::Arrangement::InPlace],
        )
    }

    fn take(schedule: &mut Schedule, plan: &Plan, memory: bool) -> Next {
        schedule
            .next(0, plan, |_| Ok::<_, Infallible>(memory))
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
            let mut schedule = Schedule::new(&plan, order, Groups::one(Depth::fixed(4, 64 * MIB)));
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
            let mut schedule = Schedule::new(&plan, order, Groups::one(Depth::fixed(8, 64 * MIB)));
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
        let mut schedule =
            Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(2, 64 * MIB)));
        assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
        assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
        assert_eq!(take(&mut schedule, &plan, true), Next::Deep);

        let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(9, 1)));
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
        let mut schedule =
            Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(16, 64 * MIB)));
        let only_first = schedule.next(0, &plan, |region| Ok::<_, Infallible>(region == 0));
        assert_eq!(only_first, Ok(Next::Extent(0)));
        assert_eq!(take(&mut schedule, &plan, false), Next::Extent(1));
        assert_eq!(take(&mut schedule, &plan, false), Next::Starved);
        assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
    }

    #[test]
    fn a_stopped_schedule_is_done() {
        let plan = plan(1);
        let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(2, MIB)));
        schedule.stop();
        assert_eq!(take(&mut schedule, &plan, true), Next::Done);
    }

    /// Two groups: sources 0 and 2 in the first, 1 in the second.
    fn two_groups(stride: u64) -> Groups {
        let depth = Depth::fixed(64, 64 * MIB).with_stride(stride);
        let members = [(0, 0), (1, 0), (0, 1)].map(|(group, index)| Member { group, index });
        Groups::new(vec![depth, depth], members.to_vec())
    }

    #[test]
    fn a_group_reads_its_own_sources_within_its_own_limits() {
        let plan = plan(3);
        let mut schedule = Schedule::new(&plan, Order::Ready, two_groups(0));
        let mut seen = [Vec::new(), Vec::new()];
        for (group, seen) in seen.iter_mut().enumerate() {
            while let Next::Extent(extent) = schedule
                .next(group, &plan, |_| Ok::<_, Infallible>(true))
                .expect("infallible")
            {
                seen.push(plan.extents[extent].source);
            }
        }
        assert!(seen[0].iter().all(|source| *source != 1) && seen[0].len() == 16);
        assert_eq!(seen[1], [1; 8]);
        assert_eq!(schedule.in_flight().jobs, 24);
    }

    #[test]
    fn in_file_order_a_group_waits_for_what_comes_first() {
        let plan = plan(3);
        let mut schedule = Schedule::new(&plan, Order::File, two_groups(0));
        let mut next = |group| {
            schedule
                .next(group, &plan, |_| Ok::<_, Infallible>(true))
                .expect("infallible")
        };
        assert_eq!(next(1), Next::Starved, "source 0 comes first");
        while let Next::Extent(extent) = next(0) {
            assert_eq!(plan.extents[extent].source, 0);
        }
        assert_eq!(next(0), Next::Starved, "source 1 comes first");
        while let Next::Extent(extent) = next(1) {
            assert_eq!(plan.extents[extent].source, 1);
        }
        assert!(matches!(next(0), Next::Extent(_)));
    }

    #[test]
    fn memory_comes_in_the_order_of_sources_side_by_side_or_of_the_file() {
        let plan = plan(3);
        assert_eq!(
            beginnings(&plan, Order::Ready),
            [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
        );
        assert_eq!(beginnings(&plan, Order::File), (0..12).collect::<Vec<_>>());
    }

    #[test]
    fn a_source_keeps_its_turn_for_a_stride() {
        let plan = plan(2);
        let depth = Depth::fixed(64, 64 * MIB).with_stride(3 * MIB);
        let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(depth));
        let sources: Vec<_> = drain(&mut schedule, &plan)
            .into_iter()
            .map(|extent| plan.extents[extent].source)
            .collect();
        assert_eq!(sources, [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1]);
    }
}
