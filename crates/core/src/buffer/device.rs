//! Device memory of tensors: one large tensor, or a run of small neighbours, charged to the budget of its device.

use std::fmt;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bell::Bell;
use super::target::KeepAlive;
use crate::cuda::Allocation;

/// How many bytes of one device a load may hold that the caller has not received yet.
#[derive(Clone, Debug)]
pub struct DeviceBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    ordinal: usize,
    limit: u64,
    usage: Mutex<Usage>,
    bell: Arc<Bell>,
    process: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    charged: u64,
    peak: u64,
}

/// The right to bytes of a device; dropping it gives them back to the budget.
#[derive(Debug)]
pub struct DeviceCharge {
    budget: DeviceBudget,
    bytes: u64,
}

impl DeviceBudget {
    /// `limit` bytes of GPU `ordinal`; rings `bell` whenever some come back.
    pub fn new(ordinal: usize, limit: u64, bell: Arc<Bell>) -> Self {
        Self(Arc::new(Shared {
            ordinal,
            limit,
            usage: Mutex::default(),
            bell,
            process: process::id(),
        }))
    }

    /// The right to `bytes` bytes, or none while the budget is used up.
    pub fn try_charge(&self, bytes: u64) -> Option<DeviceCharge> {
        let mut usage = self.usage();
        let charged = usage.charged.checked_add(bytes)?;
        if charged > self.0.limit {
            return None;
        }
        usage.charged = charged;
        usage.peak = usage.peak.max(charged);
        let budget = self.clone();
        Some(DeviceCharge { budget, bytes })
    }

    /// The GPU.
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// Bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// The most that was ever charged, bytes.
    pub fn peak(&self) -> u64 {
        self.usage().peak
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.0.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DeviceCharge {
    fn drop(&mut self) {
        if self.budget.0.process != process::id() {
            // Forked: a thread that is not here may hold the lock.
            return;
        }
        self.budget.usage().charged -= self.bytes;
        self.budget.0.bell.ring();
    }
}

/// Device memory that the caller's own allocator has given.
pub struct ForeignMemory {
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) owner: KeepAlive,
}

/// Where the bytes are.
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
    /// Memory of our own for `tensors` tensors (at least one).
    pub fn own(memory: Allocation, tensors: u32, charge: DeviceCharge) -> Self {
        Self::new(Memory::Own(memory), tensors, charge)
    }

    /// The same with memory of the caller's allocator.
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

    /// Where it begins on the device.
    pub fn address(&self) -> u64 {
        match &self.memory {
            Memory::Own(memory) => memory.address(),
            Memory::Foreign(memory) => memory.address,
        }
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        match &self.memory {
            Memory::Own(memory) => memory.len(),
            Memory::Foreign(memory) => memory.len,
        }
    }

    /// One of the region's tensors now belongs to the caller.
    pub(crate) fn tensor_received(&self) {
        if self.unreceived.fetch_sub(1, Ordering::AcqRel) == 1 {
            drop(
                self.charge
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take(),
            );
        }
    }
}

/// Bytes of a device region that are there for good.
#[derive(Clone, Debug)]
pub struct DeviceBytes {
    region: Arc<DeviceRegion>,
    offset: usize,
    len: usize,
}

impl DeviceBytes {
    /// The `len` bytes at `offset` of `region`, all of which have been copied there.
    pub(crate) fn new(region: Arc<DeviceRegion>, offset: usize, len: usize) -> Self {
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

    /// Where they begin on the device.
    pub fn address(&self) -> u64 {
        self.region.address() + self.offset as u64
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The GPU that they are on.
    pub fn ordinal(&self) -> usize {
        self.region.ordinal
    }

    /// What the caller's allocator gave for the region that they lie in, and where in it they begin; none for memory of our own.
    pub fn owner(&self) -> Option<(&KeepAlive, usize)> {
        match &self.region.memory {
            Memory::Own(_) => None,
            Memory::Foreign(memory) => Some((&memory.owner, self.offset)),
        }
    }

    pub(crate) fn region(&self) -> &Arc<DeviceRegion> {
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
    fn charges_end_with_their_owner_and_the_peak_stays() {
        let budget = DeviceBudget::new(0, 100, Arc::default());
        let first = budget.try_charge(60).expect("fits");
        assert!(budget.try_charge(41).is_none());
        let second = budget.try_charge(40).expect("fits exactly");
        drop(first);
        drop(budget.try_charge(60).expect("came back"));
        drop(second);
        let usage = *budget.usage();
        assert_eq!((usage.charged, usage.peak), (0, 100));
    }

    #[test]
    fn the_bell_rings_when_bytes_come_back() {
        let bell = Arc::<Bell>::default();
        let budget = DeviceBudget::new(0, 1, Arc::clone(&bell));
        let before = bell.count();
        drop(budget.try_charge(1).expect("fits"));
        assert_ne!(bell.count(), before);
        assert!(budget.try_charge(u64::MAX).is_none());
    }
}
