//! Device memory of tensors: one large tensor or a run of small neighbours, charged to the budget
//! of its device.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::target::KeepAlive;
use crate::cuda::Allocation;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::sync::per_process::process_id;

/// Budget for bytes of one device that a load holds and the caller has not received yet.
#[derive(Clone, Debug)]
pub struct DeviceBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ordinal: usize,
    limit: u64,
    usage: Mutex<Usage>,
    events: Arc<EventCount>,
    process: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    charged: u64,
    peak: u64,
}

/// Charge against a device budget, released on drop.
#[derive(Debug)]
pub struct DeviceCharge {
    budget: DeviceBudget,
    bytes: u64,
}

impl DeviceBudget {
    /// Creates a budget of `limit` bytes on GPU `ordinal`, which notifies `events` whenever bytes
    /// come back.
    pub fn new(ordinal: usize, limit: u64, events: Arc<EventCount>) -> Self {
        Self(Arc::new(Inner {
            ordinal,
            limit,
            usage: Mutex::default(),
            events,
            process: process_id(),
        }))
    }

    /// Charges `bytes` bytes, or returns `None` while the budget is used up.
    pub fn try_charge(&self, bytes: u64) -> Option<DeviceCharge> {
        let mut usage = self.0.usage.lock();
        let charged = usage.charged.checked_add(bytes)?;
        if charged > self.0.limit {
            return None;
        }
        usage.charged = charged;
        usage.peak = usage.peak.max(charged);
        let budget = self.clone();
        Some(DeviceCharge { budget, bytes })
    }

    /// Returns whether `bytes` bytes could be charged now.
    pub fn has_room(&self, bytes: u64) -> bool {
        let charged = self.0.usage.lock().charged;
        bytes <= self.0.limit.saturating_sub(charged)
    }

    /// Ordinal of the GPU.
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// Size of the budget in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Peak of the charged bytes.
    pub fn peak(&self) -> u64 {
        self.0.usage.lock().peak
    }
}

impl Drop for DeviceCharge {
    fn drop(&mut self) {
        if self.budget.0.process != process_id() {
            // After a fork, a thread that does not exist in this process may hold the lock.
            return;
        }
        self.budget.0.usage.lock().charged -= self.bytes;
        self.budget.0.events.notify();
    }
}

/// Device memory allocated by the caller's own allocator.
pub struct ForeignMemory {
    /// Address of the first byte on the device.
    pub address: u64,
    /// Length in bytes.
    pub len: usize,
    /// Keeps the memory alive.
    pub owner: KeepAlive,
}

/// Owner of the bytes.
#[derive(Debug)]
enum Memory {
    Own(Allocation),
    Foreign(ForeignMemory),
}

/// Device memory that tensors own together.
pub struct DeviceRegion {
    memory: Memory,
    ordinal: usize,
    /// Tensors that the caller has not received yet. At 0 the region's bytes leave the budget.
    unreceived: AtomicU32,
    charge: Mutex<Option<DeviceCharge>>,
}

impl DeviceRegion {
    /// Creates a region for `tensors` tensors (at least one) over memory that the load allocated.
    pub fn own(memory: Allocation, tensors: u32, charge: DeviceCharge) -> Self {
        Self::new(Memory::Own(memory), tensors, charge)
    }

    /// Creates a region for `tensors` tensors (at least one) over memory of the caller's allocator.
    pub fn foreign(memory: ForeignMemory, tensors: u32, charge: DeviceCharge) -> Self {
        Self::new(Memory::Foreign(memory), tensors, charge)
    }

    fn new(memory: Memory, tensors: u32, charge: DeviceCharge) -> Self {
        assert!(tensors > 0, "a region belongs to at least one tensor");
        Self {
            memory,
            ordinal: charge.budget.ordinal(),
            unreceived: AtomicU32::new(tensors),
            charge: Mutex::new(Some(charge)),
        }
    }

    /// Address of the first byte on the device.
    #[inline]
    pub fn address(&self) -> u64 {
        match &self.memory {
            Memory::Own(memory) => memory.address(),
            Memory::Foreign(memory) => memory.address,
        }
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        match &self.memory {
            Memory::Own(memory) => memory.len(),
            Memory::Foreign(memory) => memory.len,
        }
    }

    /// Records that the caller has received one of the region's tensors.
    #[inline]
    pub fn tensor_received(&self) {
        if self.unreceived.fetch_sub(1, Ordering::AcqRel) == 1 {
            drop(self.charge.lock().take());
        }
    }
}

/// Completed bytes of a device region, never written again.
#[derive(Clone, Debug)]
pub struct DeviceBytes {
    region: Arc<DeviceRegion>,
    offset: usize,
    len: usize,
}

impl DeviceBytes {
    /// Creates a handle to the `len` bytes at `offset` of `region`, all of which have been copied
    /// there.
    #[inline]
    pub fn new(region: Arc<DeviceRegion>, offset: usize, len: usize) -> Self {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= region.len()),
            "a tensor leaves its region"
        );
        Self {
            region,
            offset,
            len,
        }
    }

    /// Address of the first byte on the device.
    #[inline]
    pub fn address(&self) -> u64 {
        self.region.address() + self.offset as u64
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Ordinal of the GPU that holds them.
    pub fn ordinal(&self) -> usize {
        self.region.ordinal
    }

    /// Returns the owner of the memory given by the caller's allocator, and the offset of these
    /// bytes in it; `None` for memory that the load allocated.
    pub fn owner(&self) -> Option<(&KeepAlive, usize)> {
        match &self.region.memory {
            Memory::Own(_) => None,
            Memory::Foreign(memory) => Some((&memory.owner, self.offset)),
        }
    }

    /// Region that the bytes lie in.
    #[inline]
    pub fn region(&self) -> &Arc<DeviceRegion> {
        &self.region
    }
}

impl fmt::Debug for DeviceRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceRegion")
            .field("ordinal", &self.ordinal)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignMemory({:#x}, {} bytes)", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_charge_released_on_drop_peak_kept() {
        let budget = DeviceBudget::new(0, 100, Arc::default());
        let first = budget.try_charge(60).expect("fits");
        assert!(budget.try_charge(41).is_none());
        let second = budget.try_charge(40).expect("fits exactly");
        drop(first);
        drop(budget.try_charge(60).expect("came back"));
        drop(second);
        let usage = *budget.0.usage.lock();
        assert_eq!((usage.charged, usage.peak), (0, 100));
    }

    #[test]
    fn released_charge_notifies_waiters() {
        let events = Arc::<EventCount>::default();
        let budget = DeviceBudget::new(0, 1, Arc::clone(&events));
        let before = events.count();
        drop(budget.try_charge(1).expect("fits"));
        assert_ne!(events.count(), before);
        assert!(budget.try_charge(u64::MAX).is_none());
    }
}
