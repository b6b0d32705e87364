//! Device memory from the caller's own allocator, on the caller's own thread.
//!
//! Asked whenever the budget has room: before the first read, and when the caller has received something. At no other moment does
//! the budget get room, so reads never wait for a caller that has something to give.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Feed;
use crate::sink::{DeviceMemory, DeviceRegions};

/// Allocates memory of GPUs, for a load to fill. Called on the thread that calls the loader or the stream, and on no other.
pub trait DeviceAllocator: Send {
    /// `bytes` bytes (at least 1) of GPU `ordinal`.
    ///
    /// # Errors
    ///
    /// Ends the load. [`ErrorKind::OutOfMemory`] is completed with what was asked for, by which tensor, and what is free.
    fn allocate(&mut self, ordinal: usize, bytes: usize) -> Result<DeviceMemory>;

    /// Bytes that it could give of GPU `ordinal`, if it knows; else what the driver calls free counts.
    fn free_bytes(&mut self, ordinal: usize) -> Option<u64> {
        let _ = ordinal;
        None
    }
}

/// The caller's allocator and those who want something of it.
pub(crate) struct Provider {
    allocator: Box<dyn DeviceAllocator>,
    regions: Vec<Arc<DeviceRegions>>,
    feed: Arc<Feed>,
}

impl Provider {
    pub(crate) fn new(
        allocator: Box<dyn DeviceAllocator>,
        regions: Vec<Arc<DeviceRegions>>,
        feed: Arc<Feed>,
    ) -> Self {
        Self {
            allocator,
            regions,
            feed,
        }
    }

    /// Gives the load what its budgets have room for; a failure ends it.
    pub(crate) fn serve(provider: &mut Option<Self>, end: impl Fn(Error)) {
        // Taken out meanwhile: an allocator that panics is not asked again, and its load does not wait for it.
        let Some(mut taken) = provider.take() else {
            return;
        };
        match catch_unwind(AssertUnwindSafe(|| taken.top_up())) {
            Ok(Ok(())) => *provider = Some(taken),
            Ok(Err(error)) => end(error),
            Err(panic) => {
                let message = "the caller's allocator panicked";
                end(Error::new(ErrorKind::Cancelled, message));
                resume_unwind(panic);
            }
        }
    }

    /// Allocates as much as the budgets have room for.
    ///
    /// # Errors
    ///
    /// Whatever the allocator fails with.
    pub(crate) fn top_up(&mut self) -> Result<()> {
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

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").finish_non_exhaustive()
    }
}
