//! Device memory of our own, for loads whose caller brings none.
//!
//! Comes from the device's memory pool, in the order of a stream, so that nothing waits for it. Freed behind everything that the
//! process had given to its GPUs by then: its user may have given work with it to a stream that we know nothing of,
//! also to one of another GPU, which copies from it.

#![expect(unsafe_code, reason = "allocates and frees memory of the driver")]

use cudarc::driver::result;
use cudarc::driver::sys::CUresult;

use super::context::Context;
use super::event::Event;
use super::stream::Stream;
use crate::error::Result;
use crate::per_process::PerProcess;

/// Memory that could not be freed when it was let go of, because a graph was being captured for example. It keeps its context:
/// where that is gone, the address may be somebody else's.
static UNFREED: PerProcess<Vec<(Context, u64)>> = PerProcess::new();

/// Device memory. Dropping it frees it once the GPU is done with it.
#[derive(Debug)]
pub struct Allocation {
    context: Context,
    address: u64,
    len: usize,
}

impl Allocation {
    /// `len` bytes (at least 1) of the device of `context`, to be used by `stream` from here on, and by others behind an event of
    /// it; none when the device has not so many.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Device`].
    pub fn new(context: &Context, len: usize, stream: &Stream) -> Result<Option<Self>> {
        let _bound = context.bind()?;
        free_leftovers();
        let allocate = || {
            if context.has_pools() {
                // SAFETY: the stream is live, and nobody has the memory yet.
                unsafe { result::malloc_async(stream.raw(), len) }
            } else {
                // SAFETY: nobody has the memory yet.
                unsafe { result::malloc_sync(len) }
            }
        };
        let allocated = match allocate() {
            Err(error) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                // What was let go of may be free now.
                if let Ok(freeing) = context.freeing() {
                    let _ = freeing.synchronize();
                }
                allocate()
            }
            allocated => allocated,
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

    /// Where it begins on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "an allocation is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.context.is_here() {
            // The parent's, and so is the stream to free it on, which the parent may just have been making.
            return;
        }
        let Err(error) = free(&self.context, self.address) else {
            return;
        };
        // A context that answers nothing is lost, and its memory with it: it must not be kept for ever.
        if self.context.free_memory().is_ok() {
            tracing::debug!(%error, "memory of the GPU is to be freed later");
            let left = (self.context.clone(), self.address);
            UNFREED.lock().push(left);
        }
    }
}

/// Tries again to free device memory that could not be freed when it was let go of. Every allocation does the same.
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
        // SAFETY: allocated by `malloc_sync`, and freed once. Waits for its own device by itself.
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

/// Orders what `freeing` is given next behind everything that `context` has been given.
fn wait_for_all(freeing: &Stream, context: &Context) -> Result<()> {
    let event = Event::new(context)?;
    match event.record_context() {
        Some(Ok(())) => freeing.wait(&event),
        // A driver older than CUDA 12.5, or one that will not, cannot name all streams but by waiting for them.
        Some(Err(_)) | None => context.synchronize(),
    }
}

/// A GPU that has stopped copies nothing any more.
fn unless_lost(context: &Context, waited: Result<()>) -> Result<()> {
    waited.or_else(|error| {
        if context.is_lost(&error) {
            Ok(())
        } else {
            Err(error)
        }
    })
}
