//! What one group has to read, and whose turn it is.
//!
//! A region is begun when there is room for another read and every source with a begun region is busier than its own: `k` reads in
//! flight are of `k` sources if there are as many, and no more memory is taken than that.

use std::collections::VecDeque;

use super::Order;
use super::turns::Turns;
use crate::plan::Plan;

/// Regions without memory that are passed in one go while something else can be read: there may be a thousand sources.
const PASSED_MAX: usize = 8;

/// What one group has to read.
#[derive(Debug)]
pub(super) struct Queues {
    sources: Vec<SourceQueue>,
    /// Sources whose next region has not begun.
    waiting: VecDeque<usize>,
    /// Sources with a region that has begun and has extents to read.
    open: Turns,
    /// The source whose turn goes on, until it has had its stride.
    current: Option<usize>,
    /// Bytes of extents that have not been taken.
    remaining: u64,
}

#[derive(Debug, Default)]
struct SourceQueue {
    /// Those that have not begun.
    regions: VecDeque<usize>,
    /// The region that has begun and its next extent.
    open: Option<(usize, usize)>,
    /// Bytes taken since its turn began.
    taken: u64,
    reads: usize,
}

/// What can be read next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Candidate {
    /// The next extent of this source of the group.
    Of(usize),
    /// There is one, but no room for it.
    NoRoom,
    /// Regions are left, but none could begin.
    NoMemory,
    Nothing,
}

impl Queues {
    /// The queues of each of `groups` groups, and for every source its number in its group. In file order a group is one source.
    pub(super) fn new(
        plan: &Plan,
        order: Order,
        groups: usize,
        group_of: impl Fn(usize) -> usize,
    ) -> (Vec<Self>, Vec<usize>) {
        let mut queues: Vec<Vec<SourceQueue>> = (0..groups).map(|_| Vec::new()).collect();
        let mut remaining = vec![0; groups];
        let mut numbers = Vec::new();
        let mut last_source = None;
        for (index, region) in plan.regions.iter().enumerate() {
            let group = group_of(region.source);
            let sources = &mut queues[group];
            // Regions come in file order, so a new source begins a new queue.
            if last_source != Some(region.source) && (order == Order::Ready || sources.is_empty()) {
                sources.push(SourceQueue::default());
            }
            last_source = Some(region.source);
            numbers.resize(numbers.len().max(region.source + 1), 0);
            numbers[region.source] = sources.len() - 1;
            let last = sources.last_mut().expect("pushed for the first region");
            last.regions.push_back(index);
            let windows = plan.extents[region.extents.clone()].iter();
            remaining[group] += windows.map(|extent| extent.window as u64).sum::<u64>();
        }
        let queues = queues.into_iter().zip(remaining);
        let queues = queues.map(|(sources, remaining)| Self {
            waiting: (0..sources.len()).collect(),
            open: Turns::new(sources.len()),
            current: None,
            remaining,
            sources,
        });
        (queues.collect(), numbers)
    }

    /// Bytes that no read has begun of.
    pub(super) fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The source whose turn it is. `has_room` says whether a read of so many bytes may start, `admit` gets memory for a region.
    pub(super) fn candidate<E>(
        &mut self,
        plan: &Plan,
        has_room: impl Fn(usize) -> bool,
        mut admit: impl FnMut(usize) -> Result<bool, E>,
    ) -> Result<Candidate, E> {
        let fits = |source: usize, (_, extent): (usize, usize)| {
            if has_room(plan.extents[extent].window) {
                Candidate::Of(source)
            } else {
                Candidate::NoRoom
            }
        };
        let on_turn = self.current;
        if let Some((source, open)) = on_turn.and_then(|source| self.with_open(source)) {
            return Ok(fits(source, open));
        }
        // One on its turn without an open region stands at the front of those that wait.
        let idlest = self.open.first().and_then(|source| self.with_open(source));
        if let Some((source, open)) = idlest
            && on_turn.is_none()
            && (self.sources[source].reads == 0 || self.waiting.is_empty())
        {
            return Ok(fits(source, open));
        }
        // A source whose next region does not fit now lets the others pass. It cannot be passed for ever: the budget holds every
        // region alone, and the others come to an end.
        let tries = match idlest {
            Some(_) => self.waiting.len().min(PASSED_MAX),
            None => self.waiting.len(),
        };
        for _ in 0..tries {
            let source = self.waiting[0];
            let busier = |than: usize| self.sources[source].reads >= self.sources[than].reads;
            if self.current.is_none() && idlest.is_some_and(|(than, _)| busier(than)) {
                self.waiting.rotate_left(1);
                continue;
            }
            let region = self.sources[source].regions[0];
            let begun = (region, plan.regions[region].extents.start);
            if fits(source, begun) == Candidate::NoRoom {
                return Ok(Candidate::NoRoom);
            }
            if admit(region)? {
                self.waiting.pop_front();
                let queue = &mut self.sources[source];
                queue.regions.pop_front();
                queue.open = Some(begun);
                self.open.put(source, queue.reads);
                return Ok(Candidate::Of(source));
            }
            self.waiting.rotate_left(1);
            self.current = None;
        }
        match idlest {
            Some((source, open)) => Ok(fits(source, open)),
            None if self.waiting.is_empty() => Ok(Candidate::Nothing),
            None => Ok(Candidate::NoMemory),
        }
    }

    fn with_open(&self, source: usize) -> Option<(usize, (usize, usize))> {
        Some((source, self.sources[source].open?))
    }

    /// Takes the next extent of `source`, which has a region open. Its turn ends once it has had `stride` bytes; a finished
    /// region makes room for its source's next.
    pub(super) fn take(&mut self, plan: &Plan, source: usize, stride: u64) -> usize {
        let queue = &mut self.sources[source];
        let (region, extent) = queue.open.expect("the candidate has a region open");
        let window = plan.extents[extent].window as u64;
        queue.reads += 1;
        queue.taken += window;
        self.remaining -= window;
        let turn_is_over = queue.taken >= stride;
        if turn_is_over {
            queue.taken = 0;
        }
        self.current = (!turn_is_over).then_some(source);
        if extent + 1 < plan.regions[region].extents.end {
            queue.open = Some((region, extent + 1));
            self.open.put(source, queue.reads);
            return extent;
        }
        queue.open = None;
        self.open.remove(source);
        match (queue.regions.is_empty(), turn_is_over) {
            (true, _) => self.current = None,
            (false, true) => self.waiting.push_back(source),
            (false, false) => self.waiting.push_front(source),
        }
        extent
    }

    /// A read of `source` has ended.
    pub(super) fn ended(&mut self, source: usize) {
        let queue = &mut self.sources[source];
        queue.reads -= 1;
        if self.open.contains(source) {
            self.open.put(source, queue.reads);
        }
    }
}
