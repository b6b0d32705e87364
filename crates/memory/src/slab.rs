//! Staging memory, cut into reusable slots of equal size.
//!
//! A slab is long-lived, so engines may register it with the kernel, one entry per slot. It is used
//! where bytes do not stay: on their way to a GPU, to the caller's memory or to the cache's files,
//! and when reading without making tensors (the ceiling that `tload bench` compares with).

#![expect(
    unsafe_code,
    reason = "hands out each slot of its memory to one lease at a time"
)]

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::lease::{Lease, Owner};
use super::mapping::Mapping;
use super::staging::{Staging, StagingFacts};
use crate::error::Result;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;

/// Maximum number of entries in the kernel's table of registered buffers (`IORING_MAX_REG_BUFFERS`,
/// Linux 5.13+).
const REGISTRATIONS_MAX: usize = 16_384;

/// Staging memory of one load, or of the caches of a process.
#[derive(Debug)]
pub struct Slab {
    memory: Memory,
    slot_bytes: usize,
    /// Offset of each slot in the memory.
    offsets: Vec<usize>,
    free: Mutex<Vec<usize>>,
    events: Arc<EventCount>,
}

#[derive(Debug)]
enum Memory {
    /// Memory owned by the slab and freed with it.
    Own(Mapping),
    /// Memory kept for the next load.
    Staging(ManuallyDrop<Staging>),
}

impl Slab {
    /// Creates `slots` slots of `slot_bytes` bytes (rounded up to whole pages), and notifies
    /// `events` when one comes back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::error::ErrorKind::OutOfMemory) when the system has no
    /// memory to map.
    pub fn new(slot_bytes: usize, slots: usize, events: Arc<EventCount>) -> Result<Arc<Self>> {
        let slot_bytes = Mapping::charge(slot_bytes);
        let mapping = Mapping::anonymous(slot_bytes * slots)?;
        let offsets = (0..slots).map(|index| index * slot_bytes).collect();
        Ok(Self::over(
            Memory::Own(mapping),
            slot_bytes,
            offsets,
            events,
        ))
    }

    /// Creates `slots` slots of `slot_bytes` bytes (rounded up to whole pages), or as many as
    /// `staging` has room for, and notifies `events` when one comes back.
    pub fn staging(
        staging: Staging,
        slot_bytes: usize,
        slots: usize,
        events: Arc<EventCount>,
    ) -> Arc<Self> {
        let slot_bytes = Mapping::charge(slot_bytes);
        let mut offsets = staging.offsets(slot_bytes);
        offsets.truncate(slots);
        let memory = Memory::Staging(ManuallyDrop::new(staging));
        Self::over(memory, slot_bytes, offsets, events)
    }

    fn over(
        memory: Memory,
        slot_bytes: usize,
        offsets: Vec<usize>,
        events: Arc<EventCount>,
    ) -> Arc<Self> {
        // Popped from the back: the lowest slots are used first, so the end of an oversized slab
        // stays untouched.
        let free = Mutex::new((0..offsets.len()).rev().collect());
        Arc::new(Self {
            memory,
            slot_bytes,
            offsets,
            free,
            events,
        })
    }

    /// Returns every slot's address and length, in the order to register them with the kernel;
    /// empty when there are too many.
    pub fn registrations(&self) -> Vec<(*mut u8, usize)> {
        if self.offsets.len() > REGISTRATIONS_MAX {
            return Vec::new();
        }
        let start = self.mapping().start().as_ptr();
        let slots = self.offsets.iter();
        slots
            .map(|offset| (start.wrapping_add(*offset), self.slot_bytes))
            .collect()
    }

    /// Returns whether a slot is free. Leases are taken under the caller's lock; other threads only
    /// return slots.
    #[inline]
    pub fn has_free_slot(&self) -> bool {
        self.free_slots() > 0
    }

    /// Returns the number of free slots.
    #[inline]
    pub fn free_slots(&self) -> usize {
        self.free.lock().len()
    }

    /// Leases the first `len` bytes of a free slot, or returns `None` while all are in use.
    pub fn try_lease(self: &Arc<Self>, len: usize) -> Option<Lease> {
        assert!(len <= self.slot_bytes, "an extent is larger than a slot");
        let index = self.free.lock().pop()?;
        let guard = SlotGuard {
            slab: Arc::clone(self),
            index,
        };
        // SAFETY: every slot lies inside the mapping.
        let start = unsafe { self.mapping().start().add(self.offsets[index]) };
        // SAFETY: the index was just taken out of `free` and returns there only when the guard,
        // which the lease owns, is dropped; the guard keeps the slab.
        Some(unsafe { Lease::new(start, len, Owner::Slot(guard)) })
    }

    /// Number of slots.
    #[inline]
    pub fn slots(&self) -> usize {
        self.offsets.len()
    }

    /// Properties of its memory, if it is staging memory.
    pub fn facts(&self) -> Option<&StagingFacts> {
        match &self.memory {
            Memory::Own(_) => None,
            Memory::Staging(staging) => Some(staging.facts()),
        }
    }

    fn mapping(&self) -> &Mapping {
        match &self.memory {
            Memory::Own(mapping) => mapping,
            Memory::Staging(staging) => staging.mapping(),
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Memory::Staging(staging) = &mut self.memory {
            // SAFETY: taken once, here; no other reference to the slab is left.
            let staging = unsafe { ManuallyDrop::take(staging) };
            staging.keep();
        }
    }
}

/// Returns the slot when dropped.
#[derive(Debug)]
pub(super) struct SlotGuard {
    slab: Arc<Slab>,
    index: usize,
}

impl SlotGuard {
    /// Length of the slot in bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slab.slot_bytes
    }

    #[inline]
    pub(super) fn registration(&self) -> Option<u16> {
        u16::try_from(self.index).ok()
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.slab.free.lock().push(self.index);
        self.slab.events.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    #[test]
    fn slot_leased_once_until_dropped() {
        let slab = Slab::new(5000, 2, Arc::default()).expect("maps");
        let first = slab.try_lease(5000).expect("free");
        let second = slab.try_lease(1).expect("free");
        assert_ne!(first.registration(), second.registration());
        assert!(slab.try_lease(1).is_none() && !slab.has_free_slot());
        drop(first);
        assert!(slab.has_free_slot());
        assert!(slab.try_lease(8192).is_some());
        assert_eq!(slab.registrations().len(), 2);
    }

    #[test]
    fn room_behind_window_is_rest_of_slot() {
        let slab = Slab::new(8192, 2, Arc::default()).expect("maps");
        let mut first = slab.try_lease(5000).expect("free").fill_from(&[1; 4000]);
        let (read, room) = first.with_room();
        assert!(read == [1; 4000] && room.len() >= 3192);
        room.fill(2);
        assert!(first.bytes() == [1; 4000] && first.room().iter().all(|byte| *byte == 2));
        let mut whole = slab
            .try_lease(slab.slot_bytes)
            .expect("free")
            .fill_from(&[3]);
        assert!(whole.with_room().1.is_empty() && whole.room().is_empty());
    }
    #[test]
    fn bytes_elsewhere_are_read_beside_the_room() {
        let slab = Slab::new(8192, 1, Arc::default()).expect("maps");
        let bytes: Arc<[u8]> = vec![7; 4000].into();
        let start = NonNull::from(&bytes[..]).cast();
        let lease = slab.try_lease(5000).expect("free");
        // SAFETY: the bytes live as long as their owner, and nothing writes to them.
        let mut filled = unsafe { lease.filled_elsewhere(start, bytes.len(), Arc::new(bytes)) };
        let (read, room) = filled.with_room();
        assert_eq!(read, [7; 4000]);
        room.fill(1);
        assert_eq!(filled.bytes(), [7; 4000]);
    }
}
