//! Properties of devices and of the driver.

use super::kind::MemoryAttributes;

/// Free and total memory of a device. Memory that it shares with the host is free if the kernel can
/// make it so: page cache is not in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    /// Unallocated bytes.
    pub free: u64,
    /// Bytes of the device's memory.
    pub total: u64,
}

/// Properties of a device.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// Ordinal of the device in this process.
    pub ordinal: usize,
    /// Name, for example `"NVIDIA H200"`.
    pub name: String,
    /// Bytes of memory.
    pub total_bytes: u64,
    /// NUMA node of host memory closest to the device, where the system reports it.
    pub numa_node: Option<u32>,
    /// Attributes that tell its memory from the host's.
    pub memory: MemoryAttributes,
}

/// Properties of the driver.
#[derive(Clone, Debug)]
pub struct DriverFacts {
    /// Newest CUDA version that it supports, for example `12080`.
    pub version: i32,
    /// Number of devices that it shows to this process.
    pub devices: usize,
}
