//! Host memory that a GPU reads in place, where both share one memory.
//!
//! The load's own allocator, and with it the kernel, may reuse such memory as soon as its tensor is
//! dropped, whereas work that the caller has queued on the GPU may still read it. A dropped tensor
//! therefore waits for the GPU first, as the driver does in `cuMemFree`.

use std::sync::atomic::{AtomicBool, Ordering};

use super::region::RegionBytes;
use crate::cuda::{Context, wait_for_work};
use crate::sync::per_process::{PerProcess, process_id};

/// Memory whose GPUs could not be waited for, for example because a graph was being captured. Each
/// entry keeps its context, whose work may use it.
static UNFREED: PerProcess<Vec<(Context, RegionBytes)>> = PerProcess::new();

/// Bytes of one tensor, freed when no GPU uses them any more.
#[derive(Debug)]
pub(super) struct InPlace {
    /// Only `None` while being dropped.
    bytes: Option<RegionBytes>,
    context: Context,
    /// The caller has the tensor, so a GPU may use it.
    is_received: AtomicBool,
    process: u32,
}

impl InPlace {
    pub(super) fn new(bytes: RegionBytes, context: Context) -> Self {
        Self {
            bytes: Some(bytes),
            context,
            is_received: AtomicBool::new(false),
            process: process_id(),
        }
    }

    pub(super) fn bytes(&self) -> &RegionBytes {
        let bytes = self.bytes.as_ref();
        bytes.expect("the bytes leave only in drop")
    }

    /// Records that the caller has received the tensor.
    pub(super) fn received(&self) {
        self.is_received.store(true, Ordering::Release);
        self.bytes().region().tensor_received();
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        // In a forked process, the GPU reads the parent's memory, not this copy.
        let is_here = self.process == process_id();
        let Some(bytes) = self.bytes.take() else {
            return;
        };
        if !is_here || !*self.is_received.get_mut() {
            return;
        }
        // Taken before the wait: memory that other threads add meanwhile may be in use afterwards.
        let mut freed = std::mem::take(&mut *UNFREED.lock());
        freed.push((self.context.clone(), bytes));
        if let Err(error) = wait_for_work(&self.context) {
            tracing::debug!(%error, "cannot free memory that a GPU reads in place yet, retrying later");
            UNFREED.lock().extend(freed);
        }
    }
}
