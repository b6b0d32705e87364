//! Device memory from the caller's allocator, on the caller's thread.
//!
//! The allocator is called whenever the budget has room: before the first read, and when the caller
//! has received a tensor. The budget gets room at no other moment, so reads never wait for an
//! allocation that the caller could already make.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::destinations::{Destination, Destinations};
use super::pipeline::Feed;
use crate::cuda::MemoryKind;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{DeviceMemory, DeviceRegions};

/// Allocator of GPU memory for a load to fill. Called only on the thread that calls the loader or
/// the stream.
///
/// # Examples
///
/// ```no_run
/// use std::sync::Arc;
/// use tload::{Checkpoint, Device, DeviceAllocator, DeviceMemory, Result};
///
/// struct Arena {
///     next: u64,
/// }
///
/// impl DeviceAllocator for Arena {
///     fn allocate(&mut self, _: usize, bytes: usize) -> Result<DeviceMemory> {
///         let address = self.next;
///         self.next += bytes.next_multiple_of(512) as u64;
///         // SAFETY: memory of the device that lives as long as the process, for this alone.
///         Ok(unsafe { DeviceMemory::new(address, bytes, 0, Arc::new(())) })
///     }
/// }
///
/// # let address = 0;
/// let arena = Box::new(Arena { next: address });
/// let loader = Checkpoint::open("model_dir")?.load().device(Device::Cuda(0));
/// for tensor in loader.stream_with(arena)? {
///     let bytes = tensor?.device_bytes().map(|bytes| (bytes.address(), bytes.len()));
///     println!("{bytes:?}");
/// }
/// # Ok::<(), tload::Error>(())
/// ```
pub trait DeviceAllocator: Send {
    /// Allocates `bytes` bytes (at least 1) of GPU `ordinal`.
    ///
    /// # Errors
    ///
    /// An error ends the load. To [`ErrorKind::OutOfMemory`] the load adds the requested size, the
    /// tensor and the free memory.
    fn allocate(&mut self, ordinal: usize, bytes: usize) -> Result<DeviceMemory>;

    /// Returns the bytes of GPU `ordinal` that it could allocate, if it knows; otherwise the
    /// driver's figure of free memory counts.
    fn free_bytes(&mut self, ordinal: usize) -> Option<u64> {
        let _ = ordinal;
        None
    }
}

/// Returns how much memory a load can get on each GPU that it allocates memory of, by destination:
/// what `allocator` could provide, if it knows that. In memory that is the host's as well, the page
/// cache gives way, of which an allocator that asks the driver does not know.
///
/// # Errors
///
/// [`ErrorKind::Device`].
pub(crate) fn free_bytes(
    destinations: &Destinations,
    mut allocator: Option<&mut (dyn DeviceAllocator + 'static)>,
) -> Result<Vec<Option<u64>>> {
    let free = |destination: &Destination| {
        let Destination::Cuda(context) = destination else {
            return Ok(None);
        };
        let known = allocator.as_mut();
        let known = known.and_then(|allocator| allocator.free_bytes(context.ordinal()));
        let is_shared = context.memory().kind() == MemoryKind::Shared;
        Ok(Some(match known {
            Some(free) if !is_shared => free,
            known => context.available_memory()?.max(known.unwrap_or(0)),
        }))
    };
    destinations.list().iter().map(free).collect()
}

/// The caller's allocator and the regions that need memory.
pub(crate) struct AllocatorBridge {
    allocator: Box<dyn DeviceAllocator>,
    regions: Vec<Arc<DeviceRegions>>,
    feed: Arc<Feed>,
}

impl AllocatorBridge {
    /// Allocates the first regions from `allocator`.
    ///
    /// # Errors
    ///
    /// The allocator's error.
    pub(crate) fn begin(
        allocator: Box<dyn DeviceAllocator>,
        regions: Vec<Arc<DeviceRegions>>,
        feed: Arc<Feed>,
    ) -> Result<Self> {
        let mut bridge = Self {
            allocator,
            regions,
            feed,
        };
        bridge.top_up()?;
        Ok(bridge)
    }

    /// Returns whether a region needs memory for which the budgets have room.
    pub(crate) fn has_request(&self) -> bool {
        self.regions.iter().any(|regions| regions.has_request())
    }

    /// Allocates regions as far as the budgets allow; a failure ends the load.
    pub(crate) fn serve(allocator_bridge: &mut Option<Self>, end: impl Fn(Error)) {
        // The bridge is taken out during the call, so that an allocator that panics is not called
        // again and its load does not wait for it.
        let Some(mut taken) = allocator_bridge.take() else {
            return;
        };
        match catch_unwind(AssertUnwindSafe(|| taken.top_up())) {
            Ok(Ok(())) => *allocator_bridge = Some(taken),
            Ok(Err(error)) => end(error),
            Err(panic) => {
                let message = "the caller's allocator panicked";
                end(Error::new(ErrorKind::Cancelled, message));
                resume_unwind(panic);
            }
        }
    }

    /// Allocates regions as far as the budgets allow.
    ///
    /// # Errors
    ///
    /// The allocator's error.
    fn top_up(&mut self) -> Result<()> {
        let mut given = false;
        for regions in &self.regions {
            while let Some(request) = regions.next_request() {
                let ordinal = regions.budget().ordinal();
                let memory = match self.allocator.allocate(ordinal, request.bytes()) {
                    Ok(memory) => memory,
                    Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                        return Err(regions.no_room_for(&request).with_source(error));
                    }
                    Err(error) => return Err(error),
                };
                regions.give(request, memory)?;
                given = true;
            }
        }
        if given {
            self.feed.ring();
        }
        Ok(())
    }
}

impl std::fmt::Debug for AllocatorBridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AllocatorBridge").finish_non_exhaustive()
    }
}
