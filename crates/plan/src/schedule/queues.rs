//! Regions that one group has to read, and the choice of the next source.
//!
//! A region begins when another read may start and every source with a begun region is busier than
//! the region's own source: `k` reads in flight are from `k` sources if there are as many, and no
//! more memory is allocated than that takes.

use std::collections::VecDeque;

use super::least_loaded::LeastLoaded;
use crate::{Plan, RegionPlan};

/// Maximum number of regions without memory that are skipped in one call while something else can
/// be read: there may be a thousand sources.
const PASSED_MAX: usize = 8;

/// Regions that one group has to read.
#[derive(Debug)]
pub(super) struct Queues {
    sources: Vec<SourceQueue>,
    /// Sources whose next region has not begun.
    waiting: VecDeque<usize>,
    /// Sources with a begun region that has extents left to read.
    open: LeastLoaded,
    /// Source that continues its turn, until it has read its stride.
    current: Option<usize>,
    /// Bytes of extents that have not been taken.
    remaining: u64,
}

#[derive(Debug, Default)]
struct SourceQueue {
    /// Regions that have not begun.
    regions: VecDeque<usize>,
    /// Begun region and its next extent.
    open: Option<(usize, usize)>,
    /// Bytes taken since the source's turn began.
    taken: u64,
    reads: usize,
}

/// Result of the search for the next read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Candidate {
    /// The next extent of this source of the group.
    Of(usize),
    /// There is an extent, but the depth limit does not allow it.
    NoRoom,
    /// Regions are left, but there was no memory for any of them.
    NoMemory,
    Nothing,
}

impl Queues {
    /// Creates the queues of `groups` groups. Also returns, by region, its group and the index of
    /// its source there. A group that is read in file order counts as one source.
    pub(super) fn new(
        plan: &Plan,
        groups: usize,
        in_file_order: impl Fn(usize) -> bool,
        group_of: impl Fn(&RegionPlan) -> usize,
    ) -> (Vec<Self>, Vec<(usize, usize)>) {
        let mut queues: Vec<Vec<SourceQueue>> = (0..groups).map(|_| Vec::new()).collect();
        let mut remaining = vec![0; groups];
        let mut queue_of = Vec::with_capacity(plan.regions.len());
        let mut last_source = vec![None; groups];
        for (index, region) in plan.regions.iter().enumerate() {
            let group = group_of(region);
            let sources = &mut queues[group];
            // Regions come in file order, so a new source begins a new queue.
            let is_new = last_source[group].replace(region.source) != Some(region.source);
            if is_new && (!in_file_order(group) || sources.is_empty()) {
                sources.push(SourceQueue::default());
            }
            queue_of.push((group, sources.len() - 1));
            let last = sources.last_mut().expect("pushed for the first region");
            last.regions.push_back(index);
            let windows = plan.extents[region.extents.clone()].iter();
            remaining[group] += windows.map(|extent| extent.window as u64).sum::<u64>();
        }
        let queues = queues.into_iter().zip(remaining);
        let queues = queues.map(|(sources, remaining)| Self {
            waiting: (0..sources.len()).collect(),
            open: LeastLoaded::new(sources.len()),
            current: None,
            remaining,
            sources,
        });
        (queues.collect(), queue_of)
    }

    /// Returns the regions that have not begun, each behind its place in the queue of its source.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let sources = self.sources.iter();
        sources.flat_map(|source| source.regions.iter().copied().enumerate())
    }

    /// Returns the bytes for which no read has begun.
    pub(super) fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the source to read next. `has_room` returns whether a read of the given size may
    /// start; `admit` allocates memory for a region.
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
        // A source that continues its turn without an open region is at the front of `waiting`.
        let idlest = self.open.first().and_then(|source| self.with_open(source));
        if let Some((source, open)) = idlest
            && on_turn.is_none()
            && (self.sources[source].reads == 0 || self.waiting.is_empty())
        {
            return Ok(fits(source, open));
        }
        // A source whose next region does not fit now lets the others pass. It is not passed for
        // ever: the budget holds every region alone, and the others come to an end.
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

    /// Takes the next extent of `source`, which has an open region. The source's turn ends once it
    /// has had `stride` bytes; when a region is finished, its source may begin the next.
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

    /// Records the end of a read of `source`.
    pub(super) fn ended(&mut self, source: usize) {
        self.sources[source].reads -= 1;
        self.sort_in(source);
    }

    /// Records that a read of `source` that had ended is repeated.
    pub(super) fn again(&mut self, source: usize) {
        self.sources[source].reads += 1;
        self.sort_in(source);
    }

    /// Moves a source with an open region to its place by the number of its reads.
    fn sort_in(&mut self, source: usize) {
        if self.open.contains(source) {
            self.open.put(source, self.sources[source].reads);
        }
    }
}
