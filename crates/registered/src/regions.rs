//! Regions of a load whose memory is registered, and jobs that are filled from them without a copy.

#![expect(
    unsafe_code,
    reason = "hands out bytes of shared memory that another process has filled"
)]

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::cache::{RegisteredMemory, RegisteredUsage, Registrations};
use crate::error::Error;
use crate::sync::lock::Mutex;
use tload_cuda::Context;
use tload_memory::{Filled, Lease, SharedView};
use tload_ranks::RegionListener;

/// Registered memory of the regions that a rank takes from its leader.
pub struct RegisteredRegions {
    /// By region: a GPU reads it.
    wanted: Vec<bool>,
    registrations: Arc<Registrations>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By region, while it is shown and has uses left.
    memory: Vec<Option<Arc<RegisteredMemory>>>,
    /// Reason of the first region that is not registered.
    refusal: Option<String>,
}

/// Use of a region by one job. Its end is announced after the GPU has read the bytes, and before
/// the memory may be idle: once no view is left, the leader fills it again.
struct RegionUse {
    _memory: Arc<RegisteredMemory>,
    view: Arc<SharedView>,
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        self.view.user_done();
    }
}

impl RegisteredRegions {
    /// Prepares the registration of the `wanted` regions, by number, for the GPU of `context`.
    /// Keeps no memory between two regions until [`Self::keep`] allows it.
    ///
    /// The device must allow it: [`Context::registers_read_only`].
    #[must_use]
    pub fn new(context: &Context, wanted: Vec<bool>) -> Self {
        Self {
            registrations: Registrations::new(context.clone()),
            state: Mutex::new(State {
                memory: wanted.iter().map(|_| None).collect(),
                refusal: None,
            }),
            wanted,
        }
    }

    /// Returns the reason for a device that cannot read such memory.
    #[must_use]
    pub fn unsupported(context: &Context) -> String {
        format!(
            "cuda:{} cannot read registered memory of another process",
            context.ordinal()
        )
    }

    /// Sets the maximum of the registered bytes that no region uses. They count towards the rank's
    /// memory: the leader may have freed them.
    pub fn keep(&self, idle_bytes_max: usize) {
        self.registrations.keep(idle_bytes_max);
    }

    /// Fills a job with bytes of a region that `view` shows, without a copy: the use of the view
    /// ends when the result is dropped. Returns the lease if the region is not registered.
    ///
    /// # Safety
    ///
    /// The leader must have filled these bytes, and must not write there while a view shows them.
    ///
    /// # Errors
    ///
    /// Returns the lease.
    pub unsafe fn fill(
        &self,
        region: usize,
        range: Range<usize>,
        view: &Arc<SharedView>,
        lease: Lease,
    ) -> Result<Filled, Lease> {
        let Some(memory) = self.state.lock().memory[region].clone() else {
            return Err(lease);
        };
        assert!(
            range.start <= range.end && range.end <= memory.len(),
            "bytes outside of the region"
        );
        // SAFETY: inside the mapping, asserted above.
        let start = unsafe { memory.start().add(range.start) };
        let owner = Arc::new(RegionUse {
            _memory: memory,
            view: Arc::clone(view),
        });
        // SAFETY: the caller's promise; the owner keeps the mapping and the view.
        Ok(unsafe { lease.filled_elsewhere(start, range.len(), owner) })
    }

    /// Number of times that memory was registered, and used again.
    pub fn usage(&self) -> RegisteredUsage {
        self.registrations.usage()
    }

    /// Reason why the driver has refused memory, if it has.
    pub fn refusal(&self) -> Option<String> {
        self.state.lock().refusal.clone()
    }
}

impl RegionListener for RegisteredRegions {
    fn shown(&self, region: usize, memory: BorrowedFd<'_>) {
        if !self.wanted[region] {
            return;
        }
        let registered = self.registrations.register(memory);
        let mut state = self.state.lock();
        match registered {
            Ok(memory) => state.memory[region] = Some(Arc::new(memory)),
            Err(error) => {
                state.refusal.get_or_insert_with(|| reason(&error));
            }
        }
    }

    fn released(&self, region: usize) {
        let memory = self.state.lock().memory[region].take();
        // The lock is released first, because ending a registration takes a while.
        drop(memory);
    }
}

/// Returns an error and its cause, on one line.
fn reason(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

impl fmt::Debug for RegisteredRegions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredRegions")
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}
