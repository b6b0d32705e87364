//! Memory for other processes, within a budget, and its reuse.
//!
//! ```text
//!  charged: filled, and kept for ranks ─▶ lent: only the ranks that show it need it
//!      ▲                                        │ all of them have unmapped it
//!      └──────────── free, charged ◀────────────┘
//! ```
//!
//! First touch of shared memory costs several times a read from the page cache: 0.82 s of CPU per
//! GiB, against 0.13 for memory that has been touched before (2026-11, `benches/results/`). A pool
//! therefore begins with a small window of its budget, which its users widen when reads wait for
//! ranks that are slow.

use std::sync::Arc;

use super::mapping::Mapping;
use super::pool::{Evicted, RegionStart};
use super::region::RegionWriter;
use super::shared::SharedMemory;
use crate::error::Result;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::sync::per_process::process_id;

/// Allocates regions that other processes can map. Clones share the pool.
#[derive(Clone, Debug)]
pub struct PublishedPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: u64,
    state: Mutex<State>,
    events: Arc<EventCount>,
    process: u32,
}

#[derive(Debug)]
struct State {
    charged: u64,
    /// Bytes that may be charged now.
    window: u64,
    /// Memory that nothing shows, charged.
    free: Vec<SharedMemory>,
    is_closed: bool,
    fresh: u64,
    recycled: u64,
}

/// Number of regions that a pool has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishedUsage {
    /// Bytes charged now.
    pub charged: u64,
    /// Regions in new memory.
    pub fresh: u64,
    /// Regions in memory of earlier regions.
    pub recycled: u64,
}

/// Outcome of an attempt to begin several regions.
#[derive(Debug)]
pub enum RegionsStart {
    /// Memory for the bytes of each, charged.
    Regions(Vec<RegionWriter>),
    /// There will be room once this is dropped.
    Evicts(Evicted),
    /// The budget is used up.
    Full,
}

/// Memory for several regions.
enum Taken {
    /// All of it is charged: free memory, or the length of memory that is still to be made.
    Memory(Vec<std::result::Result<SharedMemory, usize>>),
    /// Free memory that makes room, still charged.
    Evicted(Vec<SharedMemory>),
    Nothing,
}

impl PublishedPool {
    /// Creates a pool of at most `limit` bytes, of which it uses `window` at first. Notifies
    /// `events` whenever memory comes back.
    pub fn new(limit: u64, window: u64, events: Arc<EventCount>) -> Self {
        Self(Arc::new(Inner {
            limit,
            state: Mutex::new(State {
                charged: 0,
                window: window.min(limit),
                free: Vec::new(),
                is_closed: false,
                fresh: 0,
                recycled: 0,
            }),
            events,
            process: process_id(),
        }))
    }

    /// Returns what the pool has made.
    pub fn usage(&self) -> PublishedUsage {
        let state = self.0.state.lock();
        PublishedUsage {
            charged: state.charged,
            fresh: state.fresh,
            recycled: state.recycled,
        }
    }

    /// Allocates a region of `len` bytes for `tensors` tensors, or returns `None` while the window
    /// is used up, or many descriptors of the process.
    ///
    /// # Errors
    ///
    /// Those of [`SharedMemory::new`].
    pub fn try_region(&self, len: usize, tensors: u32) -> Result<Option<RegionWriter>> {
        loop {
            match self.begin_region(len, tensors)? {
                RegionStart::Region(region) => return Ok(Some(region)),
                RegionStart::Evicts(evicted) => drop(evicted),
                RegionStart::Full => return Ok(None),
            }
        }
    }

    /// As [`Self::try_region`], but leaves it to the caller to unmap what makes room: without its
    /// locks.
    ///
    /// # Errors
    ///
    /// Those of [`SharedMemory::new`].
    pub fn begin_region(&self, len: usize, tensors: u32) -> Result<RegionStart> {
        Ok(match self.begin_regions(&[len], tensors)? {
            RegionsStart::Regions(mut regions) => {
                RegionStart::Region(regions.pop().expect("one for each length"))
            }
            RegionsStart::Evicts(evicted) => RegionStart::Evicts(evicted),
            RegionsStart::Full => RegionStart::Full,
        })
    }

    /// As [`Self::begin_region`], for several regions of `tensors` tensors each: all or none. All
    /// together, they may exceed the window as a single one may.
    ///
    /// # Errors
    ///
    /// Those of [`SharedMemory::new`].
    pub fn begin_regions(&self, lens: &[usize], tensors: u32) -> Result<RegionsStart> {
        let wanted: Vec<usize> = lens.iter().map(|len| Mapping::charge(*len)).collect();
        let is_scarce = SharedMemory::takes_many_descriptors();
        let taken = self.0.state.lock().take(&wanted, self.0.limit, is_scarce);
        let mut taken = match taken {
            Taken::Memory(taken) => taken.into_iter(),
            Taken::Evicted(evicted) => {
                let evicted = Evicted::published(evicted, self.clone());
                return Ok(RegionsStart::Evicts(evicted));
            }
            Taken::Nothing => return Ok(RegionsStart::Full),
        };
        let mut regions = Vec::with_capacity(lens.len());
        while let Some(memory) = taken.next() {
            let memory = match memory {
                Ok(memory) => memory,
                Err(len) => SharedMemory::new(len).inspect_err(|_| {
                    let rest = taken
                        .by_ref()
                        .map(|it| it.map_or_else(|len| len, |it| it.len()));
                    self.uncharge(len + rest.sum::<usize>());
                })?,
            };
            regions.push(RegionWriter::published(memory, tensors, self.clone()));
        }
        Ok(RegionsStart::Regions(regions))
    }

    /// Uses twice as much of the budget from now on. Returns false if all of it is in use already.
    pub fn widen(&self) -> bool {
        let mut state = self.0.state.lock();
        let wider = state.window.saturating_mul(2).min(self.0.limit);
        let is_wider = wider > state.window;
        state.window = wider;
        drop(state);
        if is_wider {
            self.0.events.notify();
        }
        is_wider
    }

    /// Ends the load: frees the memory that nothing shows.
    pub fn close(&self) {
        let free = {
            let mut state = self.0.state.lock();
            state.is_closed = true;
            let free = std::mem::take(&mut state.free);
            state.charged -= bytes_of(&free);
            free
        };
        drop(free);
        self.0.events.notify();
    }

    /// Returns whether this process made the pool.
    pub(super) fn is_here(&self) -> bool {
        self.0.process == process_id()
    }

    /// Removes `len` bytes from the charge.
    pub(super) fn uncharge(&self, len: usize) {
        self.0.state.lock().charged -= len as u64;
        self.0.events.notify();
    }

    /// Takes back memory that no process shows and that is not charged.
    pub(super) fn give_back(&self, memory: SharedMemory) {
        let unwanted = {
            let mut state = self.0.state.lock();
            if !state.is_closed && state.charged + memory.len() as u64 <= state.window {
                state.charged += memory.len() as u64;
                state.free.push(memory);
                None
            } else {
                Some(memory)
            }
        };
        drop(unwanted);
        self.0.events.notify();
    }
}

impl State {
    /// Takes the smallest free memory that has `wanted` bytes.
    fn take_fitting(&mut self, wanted: usize) -> Option<SharedMemory> {
        let free = self.free.iter().enumerate();
        let fitting = free.filter(|(_, memory)| memory.len() >= wanted);
        let (index, _) = fitting.min_by_key(|(_, memory)| memory.len())?;
        Some(self.free.swap_remove(index))
    }

    /// Takes memory of these lengths.
    fn take(&mut self, wanted: &[usize], limit: u64, is_scarce: bool) -> Taken {
        let of_free = |len: &usize| self.take_fitting(*len).ok_or(*len);
        let mut taken: Vec<_> = wanted.iter().map(of_free).collect();
        let held = taken.iter().flatten().map(|it| it.len() as u64).sum();
        let mut fresh: Vec<usize> = taken
            .iter()
            .filter_map(|it| it.as_ref().err().copied())
            .collect();
        let mut made = self.make_room(&fresh, held, limit, is_scarce);
        if made.as_ref().is_none_or(|evicted| !evicted.is_empty()) {
            self.free.extend(taken.drain(..).flatten());
        }
        if made.is_none() && held > 0 {
            // Free memory may be much longer than what it was taken for.
            fresh = wanted.to_vec();
            made = self.make_room(&fresh, 0, limit, is_scarce);
            taken = wanted.iter().map(|len| Err(*len)).collect();
        }
        match made {
            None => Taken::Nothing,
            Some(evicted) if !evicted.is_empty() => Taken::Evicted(evicted),
            Some(_) => {
                self.recycled += (taken.len() - fresh.len()) as u64;
                Taken::Memory(taken)
            }
        }
    }

    /// Charges memory of these lengths if it fits beside `held` bytes of free memory that have been
    /// taken for the same purpose. Otherwise removes as much free memory as it needs, still
    /// charged, or one if descriptors are scarce: each memory has one. `None` if that is not
    /// enough. The first regions may exceed the window, but not `limit`.
    fn make_room(
        &mut self,
        fresh: &[usize],
        held: u64,
        limit: u64,
        is_scarce: bool,
    ) -> Option<Vec<SharedMemory>> {
        let wanted = fresh.iter().map(|len| *len as u64).sum::<u64>();
        if fresh.is_empty() {
            return Some(Vec::new());
        }
        let used = self.charged - bytes_of(&self.free) - held;
        let room = if used == 0 { limit } else { self.window };
        if used + held + wanted > room || (used > 0 && is_scarce && self.free.is_empty()) {
            return None;
        }
        let mut missing = (self.charged + wanted).saturating_sub(room);
        let mut evicted = Vec::new();
        while missing > 0 || (is_scarce && evicted.is_empty()) {
            let Some(memory) = self.free.pop() else { break };
            missing = missing.saturating_sub(memory.len() as u64);
            evicted.push(memory);
        }
        if evicted.is_empty() {
            self.charged += wanted;
            self.fresh += fresh.len() as u64;
        }
        Some(evicted)
    }
}

fn bytes_of(memories: &[SharedMemory]) -> u64 {
    memories.iter().map(|memory| memory.len() as u64).sum()
}

#[cfg(all(target_os = "linux", not(miri)))]
#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn pool(limit: usize, window: usize) -> PublishedPool {
        PublishedPool::new(limit as u64, window as u64, Arc::default())
    }

    fn region(pool: &PublishedPool, len: usize) -> Option<Arc<super::super::Region>> {
        let writer = pool.try_region(len, 1).expect("room")?;
        let filled = writer_region(writer);
        Some(filled)
    }

    /// Returns the region of a writer whose only window has been filled.
    fn writer_region(mut writer: RegionWriter) -> Arc<super::super::Region> {
        let filled = writer.carve(PAGE).fill_from(b"bytes");
        let (region, _) = filled.region().expect("carved from one");
        Arc::clone(region)
    }

    #[test]
    fn lent_region_is_uncharged_and_recycled_once_it_is_reusable() {
        let pool = pool(4 * PAGE, 4 * PAGE);
        let first = region(&pool, 2 * PAGE).expect("fits");
        assert_eq!(pool.usage().charged, 2 * PAGE as u64);
        first.lend();
        assert_eq!(pool.usage().charged, 0);
        let address = first.published().expect("published").start();
        first.allow_reuse();
        drop(first);
        assert_eq!(pool.usage().charged, 2 * PAGE as u64);
        let second = region(&pool, PAGE).expect("fits");
        assert_eq!(second.published().expect("published").start(), address);
        let usage = pool.usage();
        assert_eq!((usage.fresh, usage.recycled), (1, 1));
    }

    #[test]
    fn region_that_may_be_shown_elsewhere_is_not_recycled() {
        let pool = pool(4 * PAGE, 4 * PAGE);
        let lent = region(&pool, PAGE).expect("fits");
        lent.lend();
        drop(lent);
        drop(region(&pool, PAGE).expect("fits"));
        let usage = pool.usage();
        assert_eq!((usage.fresh, usage.recycled, usage.charged), (2, 0, 0));
    }

    #[test]
    fn window_is_widened_up_to_limit() {
        let pool = pool(3 * PAGE, PAGE);
        let _first = region(&pool, PAGE).expect("fits");
        assert!(region(&pool, PAGE).is_none());
        assert!(pool.widen());
        let _second = region(&pool, PAGE).expect("fits");
        assert!(pool.widen());
        assert!(!pool.widen(), "at the limit");
        let _third = region(&pool, PAGE).expect("fits");
        assert!(region(&pool, PAGE).is_none());
    }

    #[test]
    fn first_region_may_exceed_window() {
        let pool = pool(3 * PAGE, PAGE);
        assert!(region(&pool, 3 * PAGE).is_some());
        assert!(region(&pool, 4 * PAGE).is_none());
    }

    #[test]
    fn free_memory_that_is_too_small_makes_room() {
        let pool = pool(2 * PAGE, 2 * PAGE);
        let small = region(&pool, PAGE).expect("fits");
        small.lend();
        small.allow_reuse();
        drop(small);
        let large = region(&pool, 2 * PAGE).expect("takes the place of the free memory");
        assert_eq!(pool.usage().charged, large.len() as u64);
    }

    #[test]
    fn free_memory_that_is_too_small_gives_its_descriptor() {
        let pool = pool(8 * PAGE, 8 * PAGE);
        let used = region(&pool, PAGE).expect("fits");
        let small = region(&pool, PAGE).expect("fits");
        small.lend();
        small.allow_reuse();
        drop(small);
        let (wanted, limit) = (2 * PAGE, pool.0.limit);
        let make_room = |is_scarce| {
            let mut state = pool.0.state.lock();
            state.make_room(&[wanted], 0, limit, is_scarce)
        };
        let evicted = make_room(true).expect("one is free");
        assert_eq!(evicted.len(), 1);
        assert!(make_room(true).is_none(), "no other one is free");
        drop(Evicted::published(evicted, pool.clone()));
        assert_eq!(pool.usage().charged, PAGE as u64);
        assert!(make_room(false).is_some_and(|evicted| evicted.is_empty()));
        assert_eq!(pool.usage().charged, 3 * PAGE as u64);
        drop(used);
    }

    #[test]
    fn evicted_memory_is_charged_until_caller_unmaps_it() {
        let pool = pool(2 * PAGE, 2 * PAGE);
        let small = region(&pool, PAGE).expect("fits");
        small.lend();
        small.allow_reuse();
        drop(small);
        let begin = || pool.begin_region(2 * PAGE, 1).expect("memory");
        let RegionStart::Evicts(evicted) = begin() else {
            panic!("the free memory is too small");
        };
        assert_eq!(pool.usage().charged, PAGE as u64);
        assert!(matches!(begin(), RegionStart::Full));
        drop(evicted);
        assert!(matches!(begin(), RegionStart::Region(_)));
    }

    /// Returns the addresses of several regions, which have been filled.
    fn regions(pool: &PublishedPool, lens: &[usize]) -> Option<Vec<Arc<super::super::Region>>> {
        loop {
            match pool.begin_regions(lens, 1).expect("memory") {
                RegionsStart::Regions(writers) => {
                    return Some(writers.into_iter().map(writer_region).collect());
                }
                RegionsStart::Evicts(evicted) => drop(evicted),
                RegionsStart::Full => return None,
            }
        }
    }

    fn give_back(regions: Vec<Arc<super::super::Region>>) {
        for region in regions {
            region.lend();
            region.allow_reuse();
        }
    }

    #[test]
    fn several_regions_begin_together_or_not_at_all() {
        let pool = pool(8 * PAGE, 4 * PAGE);
        let first = regions(&pool, &[2 * PAGE; 3]).expect("the first may exceed the window");
        assert_eq!(pool.usage().charged, 6 * PAGE as u64);
        assert!(regions(&pool, &[PAGE, PAGE]).is_none(), "beyond the window");
        assert_eq!(pool.usage().charged, 6 * PAGE as u64);
        give_back(first);
        // Four pages stay, which is the window: two of these regions are made again.
        let second = regions(&pool, &[2 * PAGE; 3]).expect("nothing is in use");
        let usage = pool.usage();
        assert_eq!((usage.charged, usage.recycled), (6 * PAGE as u64, 2));
        drop(second);
        assert!(regions(&pool, &[3 * PAGE; 3]).is_none(), "beyond the limit");
        assert_eq!(pool.usage().charged, 0);
    }

    #[test]
    fn free_memory_that_is_too_long_does_not_stop_several_regions() {
        let pool = pool(6 * PAGE, 6 * PAGE);
        give_back(regions(&pool, &[5 * PAGE]).expect("fits"));
        // One of two pages would take the five.
        let two = regions(&pool, &[PAGE, 3 * PAGE]).expect("fits");
        assert_eq!(pool.usage().charged, 4 * PAGE as u64);
        drop(two);
    }

    #[test]
    fn closed_pool_keeps_nothing() {
        let pool = pool(2 * PAGE, 2 * PAGE);
        let late = region(&pool, PAGE).expect("fits");
        late.lend();
        late.allow_reuse();
        pool.close();
        drop(late);
        assert_eq!(pool.usage().charged, 0);
    }
}
