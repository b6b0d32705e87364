//! Device memory: the owner of each address, and the order of its uses.
//!
//! Each allocation is a mapping of its own, so that a stray access traps. Queued work keeps a freed
//! allocation known: work that finds it dead loses its context, as an access to unmapped device
//! memory does.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::{Clock, Point};
use crate::copy::Work;
use crate::driver::{Driver, Lock};
use crate::mapping::Mapping;
use crate::settings::Kind;
use crate::status::{INVALID_VALUE, OUT_OF_MEMORY, Outcome};
use crate::stream::Touch;

/// Number of freed mappings that keep their addresses, so that a late access does not hit a new
/// allocation.
const QUARANTINE: usize = 64;

/// Origin of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Plain memory from `cuMemAlloc`.
    Plain,
    /// Memory of the stream-ordered allocator, from this pool.
    Pool(u64),
    /// Memory of a test that stands for device memory.
    Adopted,
}

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) ordinal: i32,
    pub(crate) origin: Origin,
    /// Serial number: unlike the address, never reused.
    pub(crate) serial: u64,
    mapping: Mutex<Option<Mapping>>,
    alive: AtomicBool,
    /// Number of copies that access it at this moment.
    running: AtomicUsize,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) memory: Arc<Memory>,
    /// Work behind which it may be used; `None` means at once and on every stream.
    created: Option<Point>,
    uses: Clock,
}

// Relaxed everywhere: the driver's lock is held.
impl Memory {
    pub(crate) fn is_adopted(&self) -> bool {
        self.origin == Origin::Adopted
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Driver {
    /// Returns the live allocation that holds this whole range.
    pub(crate) fn device_range(&self, address: usize, len: usize) -> Outcome<Arc<Memory>> {
        let end = address.checked_add(len).ok_or(INVALID_VALUE)?;
        let (_, entry) = self
            .memory
            .range(..=address)
            .next_back()
            .ok_or(INVALID_VALUE)?;
        let memory = &entry.memory;
        let inside = address < memory.base + memory.len && end <= memory.base + memory.len;
        inside.then(|| Arc::clone(memory)).ok_or(INVALID_VALUE)
    }

    /// Returns whether any byte of the range is device memory.
    pub(crate) fn touches_device(&self, address: usize, len: usize) -> bool {
        let below = self.memory.range(..address.saturating_add(len)).next_back();
        below.is_some_and(|(base, entry)| base + entry.memory.len > address)
    }

    /// Returns the allocated bytes of a device, those of other processes included. Memory that the
    /// host shares holds its pinned memory, too: the driver knows of no other.
    pub(crate) fn taken(&mut self, ordinal: i32) -> usize {
        let reserved = self.reserved(ordinal);
        let plain = self.known(ordinal).plain_bytes;
        let is_shared = self.settings.kind == Kind::Integrated;
        let pinned = self.pinned.values().filter(|_| is_shared);
        let pinned: usize = pinned.map(|pinned| pinned.len).sum();
        plain + reserved + pinned + self.settings.busy
    }

    /// Returns `OUT_OF_MEMORY` unless a device has `len` bytes left.
    pub(crate) fn afford(&mut self, ordinal: i32, len: usize) -> Outcome {
        let wanted = self.taken(ordinal).checked_add(len);
        let affordable = wanted.is_some_and(|wanted| wanted <= self.settings.memory);
        affordable.then_some(()).ok_or(OUT_OF_MEMORY)
    }

    pub(crate) fn allocate(&mut self, ordinal: i32, len: usize) -> Outcome<usize> {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        self.afford(ordinal, len)?;
        let mapping = Mapping::new(len).ok_or(OUT_OF_MEMORY)?;
        self.known(ordinal).plain_bytes += len;
        Ok(self.own(mapping, len, ordinal, Origin::Plain, None))
    }

    /// Implements `cuMemAllocAsync`; if `pool` is `None`, allocates from the current pool of the
    /// stream's device.
    pub(crate) fn allocate_async(
        &mut self,
        len: usize,
        pool: Option<u64>,
        named: u64,
        here: i32,
    ) -> Outcome<usize> {
        let stream = self.stream(named, here)?;
        let ordinal = self.ordinal_of(stream);
        let pool = pool.unwrap_or(self.known(ordinal).pool);
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let ordinal = self.reserve(pool, len)?;
        let Some(mapping) = Mapping::new(len) else {
            self.unreserve(pool, len);
            return Err(OUT_OF_MEMORY);
        };
        let created = self.submit(stream, &Clock::default(), &[], Work::Nothing);
        Ok(self.own(mapping, len, ordinal, Origin::Pool(pool), Some(created)))
    }

    fn own(
        &mut self,
        mapping: Mapping,
        len: usize,
        ordinal: i32,
        origin: Origin,
        created: Option<Point>,
    ) -> usize {
        let base = mapping.start();
        self.insert(base, len, ordinal, origin, created, Some(mapping));
        let bytes = self.allocated_bytes();
        self.counters.highest("peak_allocated_bytes", bytes);
        base
    }

    fn insert(
        &mut self,
        base: usize,
        len: usize,
        ordinal: i32,
        origin: Origin,
        created: Option<Point>,
        mapping: Option<Mapping>,
    ) {
        let memory = Memory {
            base,
            len,
            ordinal,
            origin,
            serial: self.fresh(),
            mapping: Mutex::new(mapping),
            alive: AtomicBool::new(true),
            running: AtomicUsize::new(0),
        };
        let entry = Entry {
            memory: Arc::new(memory),
            created,
            uses: Clock::default(),
        };
        self.memory.insert(base, entry);
    }

    /// Bytes of live allocations, without adopted ones.
    pub(crate) fn allocated_bytes(&self) -> i64 {
        let own = self.memory.values().filter(|it| !it.memory.is_adopted());
        let bytes: usize = own.map(|entry| entry.memory.len).sum();
        i64::try_from(bytes).unwrap_or(i64::MAX)
    }

    /// Removes an allocation from the tables; its mapping and its bytes stay until `release`.
    pub(crate) fn forget(&mut self, base: usize) -> Option<Entry> {
        self.memory.remove(&base)
    }

    /// Records a use of memory, and checks that it is ordered after the allocation.
    pub(crate) fn touch(&mut self, touch: Touch, point: Point, clock: &Clock) {
        let mut unordered = None;
        match touch {
            Touch::Device(base) => {
                let entry = self.memory.get_mut(&base).expect("looked up by the caller");
                unordered = entry.created.filter(|created| !clock.has_seen(*created));
                entry.uses.advance(point);
            }
            Touch::Pinned(start) => {
                if let Some(pinned) = self.pinned.get_mut(&start) {
                    pinned.uses.advance(point);
                }
            }
        }
        if let (Some(created), Touch::Device(base)) = (unordered, touch) {
            self.violation(format!(
                "memory at {base:#x} is used on stream {:#x} without being ordered after its allocation on stream {:#x}",
                point.stream, created.stream
            ));
        }
    }

    /// Records a violation when memory is freed before `clock` covers all its uses.
    fn check_free(&mut self, base: usize, clock: &Clock, what: &str) {
        let entry = &self.memory[&base];
        let missed = clock.misses(&entry.uses);
        let unborn = entry.created.filter(|created| !clock.has_seen(*created));
        if self.lost(entry.memory.ordinal).is_err() {
            // Nothing runs any more in a lost context, and nothing can be waited for.
            return;
        }
        if let Some(point) = missed.or(unborn) {
            self.violation(format!(
                "memory at {base:#x} is freed by {what} without being ordered after its use on stream {:#x}",
                point.stream
            ));
        }
    }

    fn owned(&self, base: usize) -> Outcome<Origin> {
        let entry = self.memory.get(&base).ok_or(INVALID_VALUE)?;
        Ok(entry.memory.origin)
    }

    /// Implements `cuMemFreeAsync`: the addresses are invalid from this call on, the memory is
    /// freed when the stream gets there.
    pub(crate) fn free_async(&mut self, base: usize, named: u64, here: i32) -> Outcome {
        if !matches!(self.owned(base)?, Origin::Pool(_)) {
            return Err(INVALID_VALUE);
        }
        let stream = self.stream(named, here)?;
        let memory = Arc::clone(&self.memory[&base].memory);
        let work = Work::Free(memory);
        self.submit(stream, &Clock::default(), &[], work);
        let clock = self.streams[&stream].clock.clone();
        self.check_free(base, &clock, "cuMemFreeAsync");
        self.forget(base);
        Ok(())
    }

    pub(crate) fn adopt(&mut self, base: usize, len: usize, ordinal: i32) -> Outcome {
        self.device(ordinal)?;
        if base == 0 || len == 0 || self.touches_device(base, len) {
            return Err(INVALID_VALUE);
        }
        self.insert(base, len, ordinal, Origin::Adopted, None, None);
        Ok(())
    }
}

/// Implements `cuMemFree`. It does not wait: the driver mostly does so for such memory, but
/// promises nothing, and requires callers to have waited for stream-ordered memory. So a free
/// without a wait before is a violation, and later work fails.
pub(crate) fn free(driver: &mut Lock, base: usize) -> Outcome {
    if base == 0 {
        return Ok(());
    }
    if driver.owned(base)? == Origin::Adopted {
        return Err(INVALID_VALUE);
    }
    take_back(driver, base, "cuMemFree");
    Ok(())
}

pub(crate) fn disown(driver: &mut Lock, base: usize) -> Outcome {
    if driver.owned(base)? != Origin::Adopted {
        return Err(INVALID_VALUE);
    }
    take_back(driver, base, "its owner");
    Ok(())
}

fn take_back(driver: &mut Lock, base: usize, what: &str) {
    let host = driver.host.clone();
    driver.check_free(base, &host, what);
    if let Some(entry) = driver.forget(base) {
        release(driver, &entry.memory);
    }
}

/// Ends an allocation: its bytes are free, and later accesses trap. Waits for copies that are
/// accessing it.
pub(crate) fn release(driver: &mut Lock, memory: &Memory) {
    memory.alive.store(false, Ordering::Relaxed);
    driver.wait_while(|_| memory.running.load(Ordering::Relaxed) > 0);
    match memory.origin {
        Origin::Plain => driver.known(memory.ordinal).plain_bytes -= memory.len,
        Origin::Pool(pool) => driver.unreserve(pool, memory.len),
        Origin::Adopted => {}
    }
    let mapping = memory
        .mapping
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(mapping) = mapping {
        mapping.seal();
        driver.quarantine.push_back(mapping);
        if driver.quarantine.len() > QUARANTINE {
            driver.quarantine.pop_front();
        }
    }
}
