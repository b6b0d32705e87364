//! Stand-in for the CUDA driver in a build without the feature `cuda`: no context can be opened, so
//! the other methods are unreachable.

use std::convert::Infallible;

use crate::error::{Error, ErrorKind, Result};

/// Stand-in for the type of the same name with the feature `cuda`.
#[derive(Clone, Debug)]
pub struct Context(Infallible);

/// Stand-in for the type of the same name with the feature `cuda`.
#[derive(Debug)]
pub struct Bound(Infallible);

/// Stand-in for the type of the same name with the feature `cuda`.
#[derive(Debug)]
pub struct Stream(Infallible);

/// Stand-in for the type of the same name with the feature `cuda`.
#[derive(Debug)]
pub struct Event(Infallible);

/// Stand-in for the type of the same name with the feature `cuda`.
#[derive(Debug)]
pub struct Allocation(Infallible);

/// Stand-in for the type of the same name with the feature `cuda`.
#[derive(Debug)]
pub struct Pinned(Infallible);

/// Free and total memory of a device.
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
}

/// Properties of the driver.
#[derive(Clone, Debug)]
pub struct DriverFacts {
    /// Newest CUDA version that it supports, for example `12080`.
    pub version: i32,
    /// Number of devices that it shows to this process.
    pub devices: usize,
}

/// Returns an error: this build has no driver.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`].
pub fn driver() -> Result<DriverFacts> {
    Err(no_cuda())
}

fn no_cuda() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "tload was built without the feature `cuda`",
    )
    .with_hint("use device=cpu, or a build with that feature")
}

/// Does nothing: there is no memory to free.
pub fn free_leftovers() {}

impl Context {
    /// Never called.
    pub fn is_lost(&self, _error: &Error) -> bool {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn available_memory(&self) -> Result<u64> {
        match self.0 {}
    }

    /// Returns an error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`].
    pub fn open(_ordinal: usize) -> Result<Self> {
        Err(no_cuda())
    }

    /// Never called.
    pub fn ordinal(&self) -> usize {
        match self.0 {}
    }

    /// Never called.
    pub fn facts(&self) -> DeviceFacts {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn free_memory(&self) -> Result<FreeMemory> {
        match self.0 {}
    }

    /// Never called.
    pub fn numa_node(&self) -> Option<u32> {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn synchronize(&self) -> Result<()> {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn bind(&self) -> Result<Bound> {
        match self.0 {}
    }
}

impl Stream {
    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn new(context: &Context) -> Result<Self> {
        match context.0 {}
    }

    /// Never called.
    ///
    /// # Safety
    ///
    /// Nothing to promise.
    ///
    /// # Errors
    ///
    /// None.
    #[expect(unsafe_code, reason = "the signature of the real one")]
    pub unsafe fn copy_in(&self, _to: u64, _bytes: &[u8]) -> Result<()> {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn wait(&self, _event: &Event) -> Result<()> {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn synchronize(&self) -> Result<()> {
        match self.0 {}
    }
}

impl Event {
    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn new(context: &Context) -> Result<Self> {
        match context.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn record(&self, _stream: &Stream) -> Result<()> {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Safety
    ///
    /// Nothing to promise.
    ///
    /// # Errors
    ///
    /// None.
    #[expect(unsafe_code, reason = "the signature of the real one")]
    pub unsafe fn record_foreign(&self, _stream: u64) -> Result<()> {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn has_fired(&self) -> Result<bool> {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn wait(&self) -> Result<()> {
        match self.0 {}
    }

    /// Never called.
    pub fn seconds_since(&self, _earlier: &Self) -> f64 {
        match self.0 {}
    }
}

impl Allocation {
    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn new(context: &Context, _len: usize, _stream: &Stream) -> Result<Option<Self>> {
        match context.0 {}
    }

    /// Never called.
    pub fn address(&self) -> u64 {
        match self.0 {}
    }

    /// Never called.
    #[expect(clippy::len_without_is_empty, reason = "as the real one")]
    pub fn len(&self) -> usize {
        match self.0 {}
    }
}

impl Pinned {
    /// Never called.
    ///
    /// # Safety
    ///
    /// Nothing to promise.
    ///
    /// # Errors
    ///
    /// None.
    #[expect(unsafe_code, reason = "the signature of the real one")]
    pub unsafe fn register(context: &Context, _start: *mut u8, _len: usize) -> Result<Self> {
        match context.0 {}
    }

    /// Never called.
    #[must_use]
    pub fn end(self) -> bool {
        match self.0 {}
    }
}
