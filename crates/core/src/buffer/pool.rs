//! The budget, and regions that are used again.
//!
//! Charged are regions whose tensors the caller has not received, and free mappings kept for the next region. What the caller
//! has received is the caller's. First touch of fresh memory is expensive (a zeroed page per fault), so mappings that come
//! back are handed out again while they fit into the budget.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bell::Bell;
use super::mapping::Mapping;
use super::region::RegionWriter;
use crate::error::Result;

/// Hands out regions within a budget of bytes.
#[derive(Debug)]
pub struct Pool {
    link: PoolLink,
}

/// What a region keeps of its pool.
#[derive(Clone, Debug)]
pub(super) struct PoolLink(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: u64,
    state: Mutex<State>,
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct State {
    charged: u64,
    /// Sorted by length.
    free: Vec<Mapping>,
    closed: bool,
    peak: u64,
    fresh: u64,
    recycled: u64,
}

/// How the budget was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// The budget, bytes.
    pub limit: u64,
    /// Charged now, bytes.
    pub charged: u64,
    /// The most that was ever charged, bytes.
    pub peak: u64,
    /// Regions made of fresh memory.
    pub fresh: u64,
    /// Regions made of memory that had been used before.
    pub recycled: u64,
}

impl Pool {
    /// A pool of at most `limit` bytes that rings `bell` whenever memory comes back.
    pub fn new(limit: u64, bell: Arc<Bell>) -> Self {
        Self {
            link: PoolLink(Arc::new(Shared {
                limit,
                state: Mutex::default(),
                bell,
            })),
        }
    }

    /// A region of `len` bytes for `tensors` tensors, or none while the budget is used up.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::OutOfMemory`] when the system has no memory to map.
    pub fn try_region(&self, len: usize, tensors: u32) -> Result<Option<RegionWriter>> {
        let shared = &*self.link.0;
        let wanted = Mapping::charge(len);
        let mut state = shared.lock();
        let mapping = if let Some(mapping) = state.take_fitting(wanted) {
            state.recycled += 1;
            Some(mapping)
        } else {
            // Free mappings of other sizes make room. They are unmapped after the lock is gone: that can take a while.
            let mut evicted = Vec::new();
            while state.charged + wanted as u64 > shared.limit {
                let Some(mapping) = state.free.pop() else {
                    break;
                };
                state.charged -= mapping.len() as u64;
                evicted.push(mapping);
            }
            let fits = state.charged + wanted as u64 <= shared.limit;
            if fits {
                state.charged += wanted as u64;
                state.peak = state.peak.max(state.charged);
                state.fresh += 1;
            }
            drop(state);
            drop(evicted);
            if !fits {
                return Ok(None);
            }
            let mapped = Mapping::anonymous(wanted);
            if mapped.is_err() {
                self.link.uncharge(wanted);
            }
            Some(mapped?)
        };
        Ok(mapping.map(|mapping| RegionWriter::new(mapping, tensors, self.link.clone())))
    }

    /// How the budget was used so far.
    pub fn usage(&self) -> PoolUsage {
        let state = self.link.0.lock();
        PoolUsage {
            limit: self.link.0.limit,
            charged: state.charged,
            peak: state.peak,
            fresh: state.fresh,
            recycled: state.recycled,
        }
    }

    /// Frees what is kept, and keeps nothing more: the load is over.
    pub fn close(&self) {
        let free = {
            let mut state = self.link.0.lock();
            state.closed = true;
            let free = std::mem::take(&mut state.free);
            state.charged -= free.iter().map(|mapping| mapping.len() as u64).sum::<u64>();
            free
        };
        drop(free);
        self.link.0.bell.ring();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every update is complete before anything can panic, so a poisoned state is still true.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A free mapping of `wanted` bytes up to a quarter more: a tensor must not hold much memory that nobody uses.
    fn take_fitting(&mut self, wanted: usize) -> Option<Mapping> {
        let index = self.free.partition_point(|mapping| mapping.len() < wanted);
        let fits = self
            .free
            .get(index)
            .is_some_and(|found| found.len() - wanted <= wanted / 4);
        fits.then(|| self.free.remove(index))
    }
}

impl PoolLink {
    /// `len` bytes now belong to the caller, or were never mapped.
    pub(super) fn uncharge(&self, len: usize) {
        self.0.lock().charged -= len as u64;
        self.0.bell.ring();
    }

    /// A region is gone. `charged`: its tensors had not all been received.
    pub(super) fn give_back(&self, mapping: Mapping, charged: bool) {
        let len = mapping.len() as u64;
        let unmapped = {
            let mut state = self.0.lock();
            if charged {
                state.charged -= len;
            }
            if !state.closed && state.charged + len <= self.0.limit {
                state.charged += len;
                state.peak = state.peak.max(state.charged);
                let index = state
                    .free
                    .partition_point(|other| other.len() < mapping.len());
                state.free.insert(index, mapping);
                None
            } else {
                Some(mapping)
            }
        };
        drop(unmapped);
        self.0.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(limit: u64) -> Pool {
        Pool::new(limit, Arc::default())
    }

    #[test]
    fn refuses_beyond_the_limit_and_recovers_when_a_region_is_dropped() {
        let pool = pool(64 << 10);
        let first = pool.try_region(48 << 10, 1).expect("maps").expect("fits");
        assert!(
            pool.try_region(32 << 10, 1)
                .expect("no system error")
                .is_none()
        );
        drop(first);
        assert!(pool.try_region(32 << 10, 1).expect("maps").is_some());
        assert!(pool.usage().peak <= 64 << 10);
    }

    #[test]
    fn received_regions_leave_the_budget_and_come_back_recycled() {
        let pool = pool(8192);
        let mut writer = pool.try_region(8192, 2).expect("maps").expect("fits");
        let lease = writer.carve(8192);
        let filled = lease.fill_from(&[7; 8192]);
        let region = Arc::clone(filled.region().expect("a region lease").0);
        region.tensor_received();
        assert_eq!(pool.usage().charged, 8192);
        region.tensor_received();
        assert_eq!(pool.usage().charged, 0);
        drop((writer, filled));
        assert_eq!(pool.usage().charged, 0, "the caller still has it");
        drop(region);
        assert_eq!(pool.usage().charged, 8192, "kept for the next region");
        assert!(pool.try_region(7000, 1).expect("maps").is_some());
        assert_eq!((pool.usage().fresh, pool.usage().recycled), (1, 1));
    }

    #[test]
    fn a_closed_pool_keeps_nothing() {
        let pool = pool(8192);
        let writer = pool.try_region(4096, 1).expect("maps").expect("fits");
        pool.close();
        drop(writer);
        assert_eq!(pool.usage().charged, 0);
    }

    #[test]
    fn free_memory_of_another_size_makes_room() {
        let pool = pool(64 << 10);
        drop(pool.try_region(4096, 1).expect("maps").expect("fits"));
        drop(pool.try_region(60 << 10, 1).expect("maps").expect("fits"));
        assert!(pool.try_region(64 << 10, 1).expect("maps").is_some());
        assert_eq!(pool.usage().charged, 64 << 10);
    }
}
