//! Leased memory as buffers for `tokio-uring`.
//!
//! ```text
//!  window of a region or unregistered slot ─▶ read_at:       the lease itself, as a `Stretch`
//!  window of a registered slot ─────────────▶ read_fixed_at: the slot's `FixedBuf`, and the lease
//! ```
//!
//! A future that is dropped while its read is in flight leaks the lease in both cases:
//! `tokio-uring` 0.5.0 gives up such a read's buffer when its runtime goes, before it has waited
//! for the kernel (`Driver::drop`). The engine drops no such future unless a panic tears it down.

#![expect(
    unsafe_code,
    reason = "says that leased memory stays where it is for as long as the kernel has its address"
)]

use std::io;
use std::sync::Arc;

use tokio_uring::buf::fixed::{FixedBuf, FixedBufRegistry};
use tokio_uring::buf::{BoundedBuf, IoBuf, IoBufMut};
use tokio_uring::fs::File;

use tload_engine::{Read, give_up};
use tload_memory::{Lease, Slab};

/// Maximum number of buffers of a [`FixedBufRegistry`] (`UIO_MAXIOV`); it silently drops any more.
const REGISTRATIONS_MAX: usize = 1024;

/// Bytes at a constant address, with the owner that keeps them there. They are never read through
/// it.
struct Stretch<K> {
    start: *mut u8,
    len: usize,
    keep: K,
}

// SAFETY: `keep` keeps these bytes mapped at this address, wherever the value itself is moved
// (`from_lease` and `from_slots` put it there); no byte is reported as initialised, so no slice of
// them is made.
unsafe impl<K: Unpin + 'static> IoBuf for Stretch<K> {
    fn stable_ptr(&self) -> *const u8 {
        self.start
    }

    fn bytes_init(&self) -> usize {
        0
    }

    fn bytes_total(&self) -> usize {
        self.len
    }
}

// SAFETY: `keep` keeps these bytes mapped at this address. The lease, which has the right to write
// to them, is in `keep` or is held by the future that has checked out the slot.
unsafe impl<K: Unpin + 'static> IoBufMut for Stretch<K> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }

    /// Does nothing: `Fill` counts the bytes that arrived.
    unsafe fn set_init(&mut self, _pos: usize) {}
}

/// Lease whose window the kernel may write to: leaked, unless it is taken out first.
struct InKernel(Option<Lease>);

impl InKernel {
    fn take(mut self) -> Lease {
        self.0.take().expect("taken once")
    }
}

impl Drop for InKernel {
    fn drop(&mut self) {
        give_up(self.0.take());
    }
}

impl Stretch<InKernel> {
    /// Returns the part of a window that `read` fills.
    fn from_lease(mut lease: Lease, read: Read) -> Self {
        Self {
            start: lease.as_mut_ptr().wrapping_add(read.window_offset),
            len: read.len,
            keep: InKernel(Some(lease)),
        }
    }

    /// Returns the lease after the read.
    fn into_lease(self) -> Lease {
        self.keep.take()
    }
}

impl Stretch<Arc<Slab>> {
    /// Returns all slots, each at the index that its leases know.
    fn from_slots(slab: &Arc<Slab>) -> Vec<Self> {
        let slots = slab.registrations().into_iter();
        slots
            .map(|(start, len)| Self {
                start,
                len,
                keep: Arc::clone(slab),
            })
            .collect()
    }
}

/// Slots of a slab, registered with the runtime's ring. Keeps the slab.
pub(crate) struct RegisteredSlots(FixedBufRegistry<Stretch<Arc<Slab>>>);

impl RegisteredSlots {
    /// Registers all slots or none: none when there are too many, or when too little locked memory
    /// is allowed (`ulimit -l`). Must run in the runtime's context.
    pub(crate) fn register(slab: &Arc<Slab>) -> Option<Self> {
        let stretches = Stretch::from_slots(slab);
        if stretches.is_empty() || stretches.len() > REGISTRATIONS_MAX {
            return None;
        }
        let registry = FixedBufRegistry::new(stretches);
        registry.register().ok().map(|()| Self(registry))
    }

    /// Unregisters the slots. Closing a ring releases its locked memory only later, but the next
    /// ring may need it immediately. Must run in the runtime's context.
    pub(crate) fn unregister(&self) {
        // The slots were registered with this runtime; if they no longer are, that is the wanted
        // result.
        let _ = self.0.unregister();
    }

    /// Returns the registered buffer of the lease's slot. The registry is indexed by number, so
    /// this checks that the number means the same memory: a lease of another slab is read into as
    /// it is.
    fn check_out(&self, lease: &Lease) -> Option<FixedBuf> {
        let slot = self.0.check_out(usize::from(lease.registration()?))?;
        let same = IoBuf::stable_ptr(&slot).addr() == lease.start()
            && lease.len() <= IoBuf::bytes_total(&slot);
        same.then_some(slot)
    }
}

/// Reads once, and returns the lease when the kernel no longer writes to it. Must run in the
/// runtime's context.
pub(crate) async fn read_once(
    slots: Option<&RegisteredSlots>,
    lease: Lease,
    file: &File,
    read: Read,
) -> (io::Result<usize>, Lease) {
    let end = read.window_offset + read.len;
    assert!(end <= lease.len(), "a read leaves its window");
    // tokio-uring silently truncates lengths that exceed 32 bits.
    assert!(
        u32::try_from(read.len).is_ok(),
        "windows are at most about 1 GiB"
    );
    if let Some(slot) = slots.and_then(|slots| slots.check_out(&lease)) {
        let kept = InKernel(Some(lease));
        let window = slot.slice(read.window_offset..end);
        let (result, window) = file.read_fixed_at(window, read.offset).await;
        // The slot goes back into the registry before the lease goes back to the slab.
        drop(window);
        (result, kept.take())
    } else {
        let stretch = Stretch::from_lease(lease, read);
        let (result, stretch) = file.read_at(stretch, read.offset).await;
        (result, stretch.into_lease())
    }
}
