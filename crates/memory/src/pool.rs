//! The budget, and reuse of regions.
//!
//! A pool charges regions whose tensors the caller has not received, and free mappings kept for the
//! next region. Tensors that the caller has received are the caller's. First touch of fresh memory
//! is expensive (a zeroed page per fault), so returned mappings are reused while they fit into the
//! budget. A [`RegionCache`] keeps them for the next load.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use super::mapping::{HUGE_PAGE_BYTES, Mapping};
use super::published::PublishedPool;
use super::region::RegionWriter;
use super::shared::{SharedMemory, ViewRef};
use crate::error::Result;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::sync::per_process::process_id;

/// Minimum size of a mapping if the load has as many bytes and the budget allows it. Small regions
/// then share huge pages: with a mapping of 4 KiB pages for each region, 6,000 small tensors were
/// read at 0.6 of the raw speed, at 65 ms of CPU per GiB (2026-11, `benches/results/`). A process
/// is also limited to 65,530 mappings (`vm.max_map_count`), fewer than the tensors of some models.
const STRIDE_BYTES: usize = 32 * HUGE_PAGE_BYTES;

/// Allocates regions within a budget of bytes.
#[derive(Debug)]
pub struct Pool {
    link: PoolLink,
    /// Region cache that takes the memory when the load is over.
    region_cache: Weak<Mutex<Option<CachedRegions>>>,
    /// Usage at the end of the load.
    ended: OnceLock<PoolUsage>,
}

/// Cache that keeps the memory of dropped tensors from one load to the next. Clones share the
/// cache.
///
/// It is empty in a forked child process: the parent's threads may hold its locks.
#[derive(Clone, Debug)]
pub struct RegionCache {
    cached: Arc<Mutex<Option<CachedRegions>>>,
    process: u32,
}

impl Default for RegionCache {
    fn default() -> Self {
        Self {
            cached: Arc::new(Mutex::new(None)),
            process: process_id(),
        }
    }
}

/// Pool between two loads; frees everything unless the next load takes it.
#[derive(Debug)]
struct CachedRegions(Option<PoolLink>);

impl Drop for CachedRegions {
    fn drop(&mut self) {
        if let Some(link) = &self.0
            && link.0.is_here()
        {
            link.0.close();
        }
    }
}

impl RegionCache {
    /// Returns the pool of the last load if it had the same limit and the caller has received or
    /// dropped everything from it, else a new pool. `bytes`: the sum of all regions of the load.
    pub fn pool(&self, limit: u64, bytes: usize) -> Pool {
        let pool = self.with_limit(limit);
        pool.link.0.state.lock().stride_bytes = bytes.min(STRIDE_BYTES);
        pool
    }

    fn with_limit(&self, limit: u64) -> Pool {
        if self.process != process_id() {
            return Pool::new(limit, Arc::default());
        }
        let cached = self.cached.lock().take();
        let link = cached.and_then(|mut cached| {
            let reusable = cached.0.as_ref().is_some_and(|link| link.0.restart(limit));
            if reusable { cached.0.take() } else { None }
        });
        let mut pool = match link {
            Some(link) => Pool {
                link,
                region_cache: Weak::new(),
                ended: OnceLock::new(),
            },
            None => Pool::new(limit, Arc::default()),
        };
        pool.region_cache = Arc::downgrade(&self.cached);
        pool
    }

    /// Bytes kept for the next load.
    pub fn kept_bytes(&self) -> u64 {
        if self.process != process_id() {
            // After a fork, the parent's threads may hold the lock forever.
            return 0;
        }
        let cached = self.cached.lock();
        let link = cached.as_ref().and_then(|cached| cached.0.as_ref());
        link.map_or(0, |link| link.0.state.lock().free_bytes())
    }
}

/// Reference from a region to its pool.
#[derive(Clone, Debug)]
pub(super) struct PoolLink(Arc<Inner>);

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
    /// Minimum size of a mapping, if the budget allows it.
    stride_bytes: usize,
    /// Free mappings by address; no two are adjacent.
    free: BTreeMap<usize, Mapping>,
    closed: bool,
    peak: u64,
    fresh: u64,
    recycled: u64,
}

/// Usage of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Size of the budget in bytes.
    pub limit: u64,
    /// Bytes charged now.
    pub charged: u64,
    /// Peak of the charged bytes.
    pub peak: u64,
    /// Number of regions for which memory was mapped.
    pub fresh: u64,
    /// Number of regions cut from memory that was already mapped.
    pub recycled: u64,
}

/// Result of a request for a region.
#[derive(Debug)]
pub enum RegionStart {
    /// Memory for its bytes, charged.
    Region(RegionWriter),
    /// There will be room once this is dropped.
    Evicts(Evicted),
    /// The budget is used up.
    Full,
}

/// Free memory that is too small for a region and makes room for it. Dropping it unmaps it, which
/// can take a while: 2.7 ms per GiB.
#[derive(Debug)]
pub struct Evicted(EvictedMemory);

/// Memory and the pool that it is charged to until it is unmapped.
#[derive(Debug)]
enum EvictedMemory {
    Own(Vec<Mapping>, PoolLink),
    Published(Vec<SharedMemory>, PublishedPool),
}

impl Evicted {
    pub(super) fn published(memories: Vec<SharedMemory>, pool: PublishedPool) -> Self {
        Self(EvictedMemory::Published(memories, pool))
    }
}

impl Drop for Evicted {
    fn drop(&mut self) {
        match &mut self.0 {
            EvictedMemory::Own(mappings, pool) => {
                let bytes = mappings.drain(..).map(|mapping| mapping.len()).sum();
                pool.uncharge(bytes);
            }
            EvictedMemory::Published(memories, pool) => {
                let bytes = memories.drain(..).map(|memory| memory.len()).sum();
                pool.uncharge(bytes);
            }
        }
    }
}

impl Pool {
    /// Creates a pool of at most `limit` bytes that notifies `events` whenever memory comes back.
    pub fn new(limit: u64, events: Arc<EventCount>) -> Self {
        let link = PoolLink(Arc::new(Inner {
            limit,
            state: Mutex::default(),
            events,
            process: process_id(),
        }));
        Self {
            link,
            region_cache: Weak::new(),
            ended: OnceLock::new(),
        }
    }

    /// Returns the event count that is notified whenever memory comes back.
    pub fn events(&self) -> &Arc<EventCount> {
        &self.link.0.events
    }

    /// Allocates a region of `len` bytes for `tensors` tensors, or returns `None` while the budget
    /// is used up.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::error::ErrorKind::OutOfMemory) when the system has no
    /// memory to map.
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
    /// [`ErrorKind::OutOfMemory`](crate::error::ErrorKind::OutOfMemory) when the system has no
    /// memory to map.
    pub fn begin_region(&self, len: usize, tensors: u32) -> Result<RegionStart> {
        let inner = &*self.link.0;
        let wanted = Mapping::charge(len);
        let mut state = inner.state.lock();
        let mapping = if let Some(mapping) = state.take_fitting(wanted) {
            state.recycled += 1;
            mapping
        } else {
            match state.make_room(wanted as u64, inner.limit) {
                None => return Ok(RegionStart::Full),
                Some(evicted) if !evicted.is_empty() => {
                    return Ok(RegionStart::Evicts(self.evicted(evicted)));
                }
                Some(_) => {}
            }
            let mapped_len = state.stride(wanted, inner.limit);
            state.charged += mapped_len as u64;
            state.peak = state.peak.max(state.charged);
            state.fresh += 1;
            drop(state);
            let mut mapping =
                Mapping::anonymous(mapped_len).inspect_err(|_| self.link.uncharge(mapped_len))?;
            if mapped_len > wanted {
                inner.state.lock().keep(mapping.split_off(wanted));
            }
            mapping
        };
        let region = RegionWriter::new(mapping, tensors, self.link.clone());
        Ok(RegionStart::Region(region))
    }

    fn evicted(&self, mappings: Vec<Mapping>) -> Evicted {
        Evicted(EvictedMemory::Own(mappings, self.link.clone()))
    }

    /// Creates a region over `len` bytes at `offset` of memory that another process fills, for
    /// `tensors` tensors, as [`Self::begin_region`] does.
    pub fn begin_received(
        &self,
        view: &ViewRef,
        offset: usize,
        len: usize,
        tensors: u32,
    ) -> RegionStart {
        let inner = &*self.link.0;
        let mut state = inner.state.lock();
        match state.make_room(len as u64, inner.limit) {
            None => return RegionStart::Full,
            Some(evicted) if !evicted.is_empty() => {
                return RegionStart::Evicts(self.evicted(evicted));
            }
            Some(_) => {}
        }
        state.charged += len as u64;
        state.peak = state.peak.max(state.charged);
        state.fresh += 1;
        drop(state);
        let link = self.link.clone();
        RegionStart::Region(RegionWriter::received(view, offset, len, tensors, link))
    }

    /// Returns the usage until now, or until the load was over; `charged` is always the current
    /// value.
    pub fn usage(&self) -> PoolUsage {
        let now = self.link.0.usage();
        self.ended.get().map_or(now, |ended| PoolUsage {
            charged: now.charged,
            ..*ended
        })
    }

    /// Ends the load: frees unused memory unless a region cache keeps it.
    pub fn close(&self) {
        let mut first = false;
        self.ended.get_or_init(|| {
            first = true;
            self.link.0.usage()
        });
        if !first {
            return;
        }
        match self.region_cache.upgrade() {
            Some(keeper) => {
                let cached = CachedRegions(Some(self.link.clone()));
                let before = keeper.lock().replace(cached);
                drop(before);
            }
            None => self.link.0.close(),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    /// Returns whether this process made the pool: in a forked child, a thread that does not exist
    /// there may hold the lock.
    fn is_here(&self) -> bool {
        self.process == process_id()
    }

    fn usage(&self) -> PoolUsage {
        let state = self.state.lock();
        PoolUsage {
            limit: self.limit,
            charged: state.charged,
            peak: state.peak,
            fresh: state.fresh,
            recycled: state.recycled,
        }
    }

    /// Prepares the pool for another load, and returns whether that is possible. It is not if the
    /// limit differs, or while the caller has not received everything from the last load: a caller
    /// who never takes it would hold the new load's budget.
    fn restart(&self, limit: u64) -> bool {
        let mut state = self.state.lock();
        let idle = self.limit == limit && state.charged == state.free_bytes();
        if idle {
            (state.peak, state.fresh, state.recycled) = (state.charged, 0, 0);
        }
        idle
    }

    fn close(&self) {
        let free = {
            let mut state = self.state.lock();
            state.closed = true;
            state.charged -= state.free_bytes();
            std::mem::take(&mut state.free)
        };
        // The lock is released first, because unmapping can take a while.
        drop(free);
        self.events.notify();
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            charged: 0,
            stride_bytes: STRIDE_BYTES,
            free: BTreeMap::new(),
            closed: false,
            peak: 0,
            fresh: 0,
            recycled: 0,
        }
    }
}

impl State {
    fn free_bytes(&self) -> u64 {
        self.free.values().map(|mapping| mapping.len() as u64).sum()
    }

    /// Returns the number of bytes to map for `wanted` bytes: small regions are cut from a stride
    /// if the budget has room for one.
    fn stride(&self, wanted: usize, limit: u64) -> usize {
        let fits = self.charged + self.stride_bytes as u64 <= limit;
        if wanted <= STRIDE_BYTES / 2 && fits {
            self.stride_bytes.max(wanted)
        } else {
            wanted
        }
    }

    /// Removes as much free memory as `wanted` bytes need to fit under `limit`, still charged;
    /// `None` if all of it is not enough.
    fn make_room(&mut self, wanted: u64, limit: u64) -> Option<Vec<Mapping>> {
        let mut missing = (self.charged + wanted).saturating_sub(limit);
        if missing > self.free_bytes() {
            return None;
        }
        let mut evicted = Vec::new();
        while missing > 0 {
            let (_, mapping) = self.free.pop_first()?;
            missing = missing.saturating_sub(mapping.len() as u64);
            evicted.push(mapping);
        }
        Some(evicted)
    }

    /// Takes `wanted` bytes from the smallest free mapping that has them; the rest of it stays
    /// free.
    fn take_fitting(&mut self, wanted: usize) -> Option<Mapping> {
        let fitting = self
            .free
            .iter()
            .filter(|(_, mapping)| mapping.len() >= wanted);
        let (&address, _) = fitting.min_by_key(|(_, mapping)| mapping.len())?;
        let mut mapping = self.free.remove(&address)?;
        if mapping.len() > wanted {
            let rest = mapping.split_off(wanted);
            self.free.insert(rest.start().as_ptr().addr(), rest);
        }
        Some(mapping)
    }

    /// Adds a mapping to the free ones and joins it with its neighbours.
    fn keep(&mut self, mapping: Mapping) {
        let address = mapping.start().as_ptr().addr();
        let mut mapping = mapping;
        if let Some(next) = self.free.remove(&(address + mapping.len())) {
            mapping.try_join(next).expect("begins where this one ends");
        }
        let unjoined = match self.free.range_mut(..address).next_back() {
            Some((_, before)) => before.try_join(mapping).err(),
            None => Some(mapping),
        };
        if let Some(mapping) = unjoined {
            self.free.insert(address, mapping);
        }
    }
}

impl PoolLink {
    /// Returns whether this process made the pool.
    pub(super) fn is_here(&self) -> bool {
        self.0.is_here()
    }

    /// Removes `len` bytes from the charge: they now belong to the caller, or were never mapped.
    pub(super) fn uncharge(&self, len: usize) {
        self.0.state.lock().charged -= len as u64;
        self.0.events.notify();
    }

    /// Takes back the memory of a dropped region, of which `charged` bytes are charged: none if all
    /// of its tensors had been received.
    pub(super) fn give_back(&self, mapping: Mapping, charged: usize) {
        if !self.0.is_here() {
            // A forked child only unmaps its own copy.
            return;
        }
        let len = mapping.len() as u64;
        let unmapped = {
            let mut state = self.0.state.lock();
            state.charged -= charged as u64;
            if !state.closed && state.charged + len <= self.0.limit {
                state.charged += len;
                state.peak = state.peak.max(state.charged);
                state.keep(mapping);
                None
            } else {
                Some(mapping)
            }
        };
        drop(unmapped);
        self.0.events.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(limit: u64) -> Pool {
        Pool::new(limit, Arc::default())
    }

    /// Returns a pool of 64 KiB with 4 and 56 KiB free, and the region between them: mappings that
    /// the system happens to place side by side would be joined.
    fn scattered() -> (Pool, RegionWriter) {
        let pool = pool(64 << 10);
        let region = |len| pool.try_region(len, 1).expect("maps").expect("fits");
        drop(region(64 << 10));
        let [front, between, back] = [4 << 10, 4 << 10, 56 << 10].map(region);
        drop((front, back));
        assert_eq!((pool.usage().fresh, pool.usage().recycled), (1, 3));
        (pool, between)
    }

    #[test]
    fn pool_at_limit_rejects_until_region_dropped() {
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
    fn received_region_uncharged_then_recycled() {
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
    fn closed_pool_keeps_no_memory() {
        let pool = pool(8192);
        let writer = pool.try_region(4096, 1).expect("maps").expect("fits");
        pool.close();
        drop(writer);
        assert_eq!(pool.usage().charged, 0);
    }

    #[test]
    fn mappings_are_no_larger_than_the_load() {
        let region_cache = RegionCache::default();
        let pool = region_cache.pool(1 << 30, 3 * 4096);
        let regions: Vec<_> = (0..3)
            .map(|_| pool.try_region(512, 1).expect("maps").expect("fits"))
            .collect();
        let usage = pool.usage();
        assert_eq!((usage.peak, usage.fresh, usage.recycled), (3 * 4096, 1, 2));
        drop(regions);
        let large = RegionCache::default().pool(1 << 30, 1 << 30);
        drop(large.try_region(512, 1).expect("maps").expect("fits"));
        assert_eq!(large.usage().peak, STRIDE_BYTES as u64);
    }

    #[test]
    fn region_cache_same_limit_reuses_memory() {
        let region_cache = RegionCache::default();
        let first = region_cache.pool(8192, 8192);
        drop(first.try_region(8192, 1).expect("maps").expect("fits"));
        first.close();
        let second = region_cache.pool(8192, 8192);
        drop(second.try_region(8192, 1).expect("maps").expect("fits"));
        assert_eq!((second.usage().fresh, second.usage().recycled), (0, 1));
        assert_eq!(
            (first.usage().fresh, first.usage().recycled),
            (1, 0),
            "its report stays"
        );
        second.close();
        assert_eq!(second.usage().charged, 8192);
        let other = region_cache.pool(4096, 8192);
        assert_eq!(
            (second.usage().charged, other.usage().charged),
            (0, 0),
            "another limit frees"
        );
    }

    #[test]
    fn region_cache_frees_on_drop_and_skips_pool_with_unreceived_regions() {
        let region_cache = RegionCache::default();
        let owing = region_cache.pool(8192, 4096);
        let unreceived = owing.try_region(4096, 1).expect("maps").expect("fits");
        owing.close();
        let pool = region_cache.pool(8192, 4096);
        assert_eq!(pool.usage().charged, 0, "a new one");
        drop(unreceived);
        assert_eq!(owing.usage().charged, 0);
        drop(pool.try_region(4096, 1).expect("maps").expect("fits"));
        pool.close();
        assert_eq!(pool.usage().charged, 4096);
        drop(region_cache);
        assert_eq!(pool.usage().charged, 0);
    }

    #[test]
    fn small_regions_within_budget_share_stride() {
        let pool = pool(STRIDE_BYTES as u64);
        let two: Vec<_> = (0..2)
            .map(|_| pool.try_region(1 << 20, 1).expect("maps").expect("fits"))
            .collect();
        assert_eq!((pool.usage().fresh, pool.usage().recycled), (1, 1));
        assert_eq!(pool.usage().charged, STRIDE_BYTES as u64);
        drop(two);
        assert!(
            pool.try_region(STRIDE_BYTES, 1).expect("maps").is_some(),
            "joined again"
        );
    }

    #[test]
    fn free_mapping_split_and_rejoined() {
        let pool = pool(64 << 10);
        drop(pool.try_region(64 << 10, 1).expect("maps").expect("fits"));
        let halves: Vec<_> = (0..2)
            .map(|_| pool.try_region(32 << 10, 1).expect("maps").expect("fits"))
            .collect();
        assert!(pool.try_region(1, 1).expect("no system error").is_none());
        drop(halves);
        drop(pool.try_region(64 << 10, 1).expect("maps").expect("fits"));
        assert_eq!((pool.usage().fresh, pool.usage().recycled), (1, 3));
    }

    #[test]
    fn evicted_memory_is_charged_until_it_is_unmapped() {
        let (pool, _between) = scattered();
        let begun = pool.begin_region(60 << 10, 1).expect("no system error");
        let RegionStart::Evicts(evicted) = begun else {
            panic!("both are too small")
        };
        assert_eq!(pool.usage().charged, 64 << 10);
        // Another lane waits meanwhile.
        let other = pool.begin_region(4096, 1).expect("no system error");
        assert!(matches!(other, RegionStart::Full));
        let events = pool.events().count();
        drop(evicted);
        assert_eq!(pool.usage().charged, 4 << 10);
        assert_ne!(pool.events().count(), events, "it is woken");
        let begun = pool.begin_region(60 << 10, 1).expect("maps");
        assert!(matches!(begun, RegionStart::Region(_)));
    }

    #[test]
    fn free_mapping_too_small_is_evicted() {
        let (pool, _between) = scattered();
        assert!(pool.try_region(60 << 10, 1).expect("maps").is_some());
        assert_eq!((pool.usage().fresh, pool.usage().recycled), (2, 3));
    }
}
