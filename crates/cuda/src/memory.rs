//! Device memory that tload allocates, for loads whose caller brings no allocator.
//!
//! Memory comes from the device's memory pool, in stream order, so that nothing waits for it. It is
//! freed behind all work that the process had given to its GPUs by then: its user may have queued
//! work with it on a stream unknown to tload, also on one of another GPU that copies from it.

#![expect(unsafe_code, reason = "allocates and frees memory of the driver")]

use cudarc::driver::result;
use cudarc::driver::sys::CUresult;

use super::context::Context;
use super::event::Event;
use super::stream::Stream;
use crate::error::Result;
use crate::sync::per_process::PerProcess;

/// Memory that could not be freed when it was dropped, for example because a graph was being
/// captured. Each entry keeps its context: once that is gone, the address may belong to another
/// allocation.
static UNFREED: PerProcess<Vec<(Context, u64)>> = PerProcess::new();

/// Device memory, freed on drop once the GPU is done with it.
#[derive(Debug)]
pub struct Allocation {
    context: Context,
    address: u64,
    len: usize,
}

impl Allocation {
    /// Allocates `len` bytes (at least 1) on the device of `context`, for use on `stream` from here
    /// on, and on other streams behind an event of it; returns `None` when the device has too
    /// little memory, of which more may be [about to be freed](wait_for_freed).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device).
    pub fn new(context: &Context, len: usize, stream: &Stream) -> Result<Option<Self>> {
        let _bound = context.bind()?;
        let allocated = if context.has_pools() {
            // SAFETY: the stream is live, and the memory has no other user yet.
            unsafe { result::malloc_async(stream.raw(), len) }
        } else {
            // SAFETY: the memory has no other user yet.
            unsafe { result::malloc_sync(len) }
        };
        match allocated {
            Ok(address) => Ok(Some(Self {
                context: context.clone(),
                address,
                len,
            })),
            Err(error) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
            Err(error) => Err(context.failure("cannot allocate memory", error)),
        }
    }

    /// Address of the first byte on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "an allocation is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.context.is_here() {
            // After a fork, the memory and the stream to free it on belong to the parent, which may
            // have been creating that stream during the fork.
            return;
        }
        let Err(error) = free(&self.context, self.address) else {
            return;
        };
        // A context that fails every call is lost, and its memory with it: it must not be kept
        // forever.
        if self.context.free_memory().is_ok() {
            tracing::debug!(%error, "cannot free GPU memory yet, retrying later");
            let left = (self.context.clone(), self.address);
            UNFREED.lock().push(left);
        }
    }
}

/// Waits until all memory that was dropped so far on the device of `context` is free, which may
/// take as long as the work of any stream, or until `is_over` returns true.
///
/// # Errors
///
/// [`ErrorKind::Device`](crate::error::ErrorKind::Device).
pub fn wait_for_freed(context: &Context, is_over: &dyn Fn() -> bool) -> Result<()> {
    free_leftovers();
    let _bound = context.bind()?;
    let freeing = context.freeing()?;
    let freed = Event::new(context)?;
    freed.record(freeing)?;
    if freed.wait_unless(is_over)? {
        // Pools keep their memory until a thread waits for a stream.
        freeing.synchronize()?;
    }
    Ok(())
}

/// Waits until all work that this process has given to the device of `context` and to other GPUs so
/// far is done. A GPU that has stopped has no work.
///
/// # Errors
///
/// [`ErrorKind::Device`](crate::error::ErrorKind::Device).
pub fn wait_for_work(context: &Context) -> Result<()> {
    for used in context.others().iter().chain([context]) {
        unless_lost(used, used.synchronize())?;
    }
    Ok(())
}

/// Retries freeing the device memory that could not be freed when it was dropped. May wait for the
/// GPUs.
pub fn free_leftovers() {
    let left = std::mem::take(&mut *UNFREED.lock());
    if left.is_empty() {
        return;
    }
    let (still, _freed): (Vec<_>, Vec<_>) = left
        .into_iter()
        .partition(|(context, address)| free(context, *address).is_err());
    UNFREED.lock().extend(still);
}

fn free(context: &Context, address: u64) -> Result<()> {
    let _bound = context.bind()?;
    let cannot = |error| context.failure("cannot free memory", error);
    let others = context.others();
    if !context.has_pools() {
        for other in &others {
            unless_lost(other, other.synchronize())?;
        }
        // SAFETY: allocated by `malloc_sync`, and freed once. The call waits for its own device.
        return unsafe { result::free_sync(address) }.map_err(cannot);
    }
    let freeing = context.freeing()?;
    wait_for_all(freeing, context)?;
    for other in &others {
        unless_lost(other, wait_for_all(freeing, other))?;
    }
    // SAFETY: allocated by `malloc_async`, freed once, and behind everything that may use it.
    unsafe { result::free_async(address, freeing.raw()) }.map_err(cannot)
}

/// Orders the next work of `freeing` behind all work of `context` so far.
fn wait_for_all(freeing: &Stream, context: &Context) -> Result<()> {
    let event = Event::new(context)?;
    match event.record_context() {
        Some(Ok(())) => freeing.wait(&event),
        // A driver older than CUDA 12.5, or one that refuses, can only cover all streams by waiting
        // for the context.
        Some(Err(_)) | None => context.synchronize(),
    }
}

/// Ignores the failure of a GPU that has stopped: it copies nothing any more.
fn unless_lost(context: &Context, waited: Result<()>) -> Result<()> {
    waited.or_else(|error| {
        if context.is_lost(&error) {
            Ok(())
        } else {
            Err(error)
        }
    })
}
