//! Leased memory as the buffers that `tokio-uring` takes.
//!
//! ```text
//!  window of a region, or of a slot that is not registered ──▶ read_at:       the lease itself goes along, as a `Stretch`
//!  window of a registered slot ─────────────────────────────▶ read_fixed_at: the slot's `FixedBuf`; the lease waits beside it
//! ```
//!
//! A future that is dropped while its read is in flight leaks the lease, both ways: `tokio-uring` 0.5.0 gives up such a read's
//! buffer when its runtime goes, before it has waited for the kernel (`Driver::drop`). The engine drops no such future unless it
//! is being torn down by a panic.

#![expect(
    unsafe_code,
    reason = "says that leased memory stays where it is for as long as the kernel has its address"
)]

use std::io;
use std::sync::Arc;

use tokio_uring::buf::fixed::{FixedBuf, FixedBufRegistry};
use tokio_uring::buf::{BoundedBuf, IoBuf, IoBufMut};
use tokio_uring::fs::File;

use super::super::fill::Read;
use super::super::give_up;
use crate::buffer::{Lease, Slab};

/// The most buffers that a [`FixedBufRegistry`] takes (`UIO_MAXIOV`); it drops what is beyond without a word.
const REGISTRATIONS_MAX: usize = 1024;

/// Bytes at an address that never changes, with what keeps them there. Nobody sees them through it.
struct Stretch<K> {
    start: *mut u8,
    len: usize,
    keep: K,
}

// SAFETY: `keep` is what keeps these bytes mapped at this address, wherever the value itself is moved (`of_lease` and `of_slots`
// put it there); no byte is said to be initialised, so nobody makes a slice of them.
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

// SAFETY: as above. Writing is the lease's right: it is either in `keep`, or beside the future that has checked out the slot.
unsafe impl<K: Unpin + 'static> IoBufMut for Stretch<K> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }

    /// Nobody asks: `Fill` counts what came.
    unsafe fn set_init(&mut self, _pos: usize) {}
}

/// A lease whose window the kernel may write to: leaked, unless it is taken out first.
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
    /// What `read` is to fill of a window.
    fn of_lease(mut lease: Lease, read: Read) -> Self {
        Self {
            start: lease.as_mut_ptr().wrapping_add(read.window_offset),
            len: read.len,
            keep: InKernel(Some(lease)),
        }
    }

    /// After the read.
    fn into_lease(self) -> Lease {
        self.keep.take()
    }
}

impl Stretch<Arc<Slab>> {
    /// All slots, each under the index that its leases know.
    fn of_slots(slab: &Arc<Slab>) -> Vec<Self> {
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

/// The slots of a slab, registered with the runtime's ring. Keeps the slab.
pub(super) struct RegisteredSlots(FixedBufRegistry<Stretch<Arc<Slab>>>);

impl RegisteredSlots {
    /// Registers all slots or none: none when there are too many, or not enough locked memory is allowed (`ulimit -l`). In the
    /// runtime's context.
    pub(super) fn register(slab: &Arc<Slab>) -> Option<Self> {
        let stretches = Stretch::of_slots(slab);
        if stretches.is_empty() || stretches.len() > REGISTRATIONS_MAX {
            return None;
        }
        let registry = FixedBufRegistry::new(stretches);
        registry.register().ok().map(|()| Self(registry))
    }

    /// Closing a ring gives its locked memory back only later; the next ring may need it at once. In the runtime's context.
    pub(super) fn unregister(&self) {
        // It was registered with this runtime; if it is no longer, that is what was wanted.
        let _ = self.0.unregister();
    }

    /// The registered buffer that is the lease's slot. The registry goes by index, so this checks that the index means the same
    /// memory: a lease of another slab is read into as it is.
    fn check_out(&self, lease: &Lease) -> Option<FixedBuf> {
        let slot = self.0.check_out(usize::from(lease.registration()?))?;
        let same = IoBuf::stable_ptr(&slot).addr() == lease.start()
            && lease.len() <= IoBuf::bytes_total(&slot);
        same.then_some(slot)
    }
}

/// Reads once, and gives back the lease when the kernel writes there no more. In the runtime's context.
pub(super) async fn read_once(
    slots: Option<&RegisteredSlots>,
    lease: Lease,
    file: &File,
    read: Read,
) -> (io::Result<usize>, Lease) {
    let end = read.window_offset + read.len;
    assert!(end <= lease.len(), "a read leaves its window");
    // The crate cuts longer ones short without a word.
    assert!(
        u32::try_from(read.len).is_ok(),
        "windows are at most about 1 GiB"
    );
    if let Some(slot) = slots.and_then(|slots| slots.check_out(&lease)) {
        let kept = InKernel(Some(lease));
        let window = slot.slice(read.window_offset..end);
        let (result, window) = file.read_fixed_at(window, read.offset).await;
        // Back into the registry before the lease goes back to the slab.
        drop(window);
        (result, kept.take())
    } else {
        let stretch = Stretch::of_lease(lease, read);
        let (result, stretch) = file.read_at(stretch, read.offset).await;
        (result, stretch.into_lease())
    }
}
