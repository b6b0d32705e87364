//! Staging memory: one mapping cut into slots of equal size that are used again and again.
//!
//! Long-lived, so engines may register it with the kernel, one entry a slot. Used where bytes do not stay: reading without
//! making tensors (the ceiling that `tload bench` compares with).

#![expect(
    unsafe_code,
    reason = "hands out each slot of the mapping to one lease at a time"
)]

use std::sync::{Arc, Mutex, PoisonError};

use super::bell::Bell;
use super::lease::{Lease, Owner};
use super::mapping::Mapping;
use crate::error::Result;

/// The most entries that the kernel takes in one table of registered buffers (`IORING_MAX_REG_BUFFERS`, Linux 5.13+).
const REGISTRATIONS_MAX: usize = 16_384;

/// All slots.
#[derive(Debug)]
pub struct Slab {
    mapping: Mapping,
    slot_bytes: usize,
    slots: usize,
    free: Mutex<Vec<usize>>,
    bell: Arc<Bell>,
}

impl Slab {
    /// `slots` slots of `slot_bytes` bytes (rounded up to whole pages); rings `bell` when one comes back.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::OutOfMemory`] when the system has no memory to map.
    pub fn new(slot_bytes: usize, slots: usize, bell: Arc<Bell>) -> Result<Arc<Self>> {
        let slot_bytes = Mapping::charge(slot_bytes);
        let mapping = Mapping::anonymous(slot_bytes * slots)?;
        // Popped from the back: the lowest slots are used first, so an over-sized slab stays untouched at its end.
        let free = Mutex::new((0..slots).rev().collect());
        Ok(Arc::new(Self {
            mapping,
            slot_bytes,
            slots,
            free,
            bell,
        }))
    }

    /// Every slot's address and length, to register with the kernel in this order; none when there are too many.
    pub fn registrations(&self) -> Vec<(*mut u8, usize)> {
        if self.slots > REGISTRATIONS_MAX {
            return Vec::new();
        }
        let start = self.mapping.start().as_ptr();
        (0..self.slots)
            .map(|index| (start.wrapping_add(index * self.slot_bytes), self.slot_bytes))
            .collect()
    }

    /// The first `len` bytes of a free slot, or none while all are out.
    pub fn try_lease(self: &Arc<Self>, len: usize) -> Option<Lease> {
        assert!(len <= self.slot_bytes, "an extent is larger than a slot");
        let index = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()?;
        let guard = SlotGuard {
            slab: Arc::clone(self),
            index,
        };
        // SAFETY: `index < slots`, so the slot lies inside the mapping.
        let start = unsafe { self.mapping.start().add(index * self.slot_bytes) };
        // SAFETY: the index was just taken out of `free` and returns there only when the guard, which the lease owns, is
        // dropped; the guard keeps the slab.
        Some(unsafe { Lease::new(start, len, Owner::Slot(guard)) })
    }
}

/// Gives the slot back when dropped.
#[derive(Debug)]
pub(super) struct SlotGuard {
    slab: Arc<Slab>,
    index: usize,
}

impl SlotGuard {
    pub(super) fn registration(&self) -> Option<u16> {
        u16::try_from(self.index).ok()
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.slab
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.index);
        self.slab.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_out_once_and_comes_back() {
        let slab = Slab::new(5000, 2, Arc::default()).expect("maps");
        let first = slab.try_lease(5000).expect("free");
        let second = slab.try_lease(1).expect("free");
        assert_ne!(first.registration(), second.registration());
        assert!(slab.try_lease(1).is_none());
        drop(first);
        assert!(slab.try_lease(8192).is_some());
        assert_eq!(slab.registrations().len(), 2);
    }
}
