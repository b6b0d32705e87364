//! Memory of the caller that a load writes into.

#![expect(
    unsafe_code,
    reason = "writes into memory that the caller has vouched for"
)]

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::boxes::TargetBox;
use crate::lease::{Lease, Owner};

/// Owner that keeps the caller's memory alive.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// Destination of one tensor's bytes: memory of the caller on the host or on a GPU, contiguous or
/// in boxes.
#[derive(Clone)]
pub struct Target {
    place: Place,
    len: usize,
    owner: Option<KeepAlive>,
}

#[derive(Clone, Debug)]
enum Place {
    Host(NonNull<u8>),
    /// Bytes in no box go nowhere.
    Boxes(Arc<[TargetBox]>, Option<OnGpu>),
    Cuda {
        address: u64,
        on: OnGpu,
    },
}

/// GPU of the caller's memory, and the stream that orders access to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnGpu {
    /// Ordinal of the GPU.
    pub ordinal: usize,
    /// `0` or `1` is the default stream, `2` the calling thread's own, else its address.
    pub stream: u64,
}

// SAFETY: the callers of `host` and `boxes` promised that only the load uses the memory, from any
// thread; the owner is `Send` and `Sync`.
unsafe impl Send for Target {}
// SAFETY: as above; `write` documents its requirements.
unsafe impl Sync for Target {}

impl Target {
    /// Creates a target of `len` bytes of host memory at `start`.
    ///
    /// # Safety
    ///
    /// The memory must be valid for writes while `owner` lives, and nothing else may use it until
    /// the load's stream has ended or handed out the tensor.
    pub unsafe fn host(start: NonNull<u8>, len: usize, owner: Option<KeepAlive>) -> Self {
        let place = Place::Host(start);
        Self { place, len, owner }
    }

    /// Creates a target for a tensor of `len` bytes in boxes of host memory, or of memory of a GPU.
    /// Returns `None` for a box that leaves the tensor, and for one that converts elements on a
    /// GPU.
    ///
    /// # Safety
    ///
    /// As for [`Self::host`] or [`Self::cuda`], of the memory of the boxes. No element may be in
    /// two boxes.
    #[doc(hidden)]
    pub unsafe fn boxes(
        boxes: Vec<TargetBox>,
        len: usize,
        on: Option<OnGpu>,
        owner: Option<KeepAlive>,
    ) -> Option<Self> {
        let fits = |it: &TargetBox| it.source_end() <= len && !(on.is_some() && it.is_cast());
        let fits = boxes.iter().all(fits);
        let place = Place::Boxes(boxes.into(), on);
        fits.then_some(Self { place, len, owner })
    }

    /// Creates a target of `len` bytes at `address` of GPU `ordinal`. Copies begin after the work
    /// that was queued on `stream` when the load starts: `0` or `1` is the default stream, `2` the
    /// calling thread's own, else its address.
    ///
    /// # Safety
    ///
    /// The memory must belong to the device and be valid while `owner` lives; until the load's
    /// stream has ended or handed out the tensor, nothing else may use it except work queued on
    /// `stream` before. `stream` must be live when the load starts.
    pub unsafe fn cuda(
        ordinal: usize,
        address: u64,
        len: usize,
        stream: u64,
        owner: Option<KeepAlive>,
    ) -> Self {
        let on = OnGpu { ordinal, stream };
        let place = Place::Cuda { address, on };
        Self { place, len, owner }
    }

    /// Owner that keeps the memory alive, if the caller gave one.
    #[inline]
    pub fn owner(&self) -> Option<&KeepAlive> {
        self.owner.as_ref()
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the target is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ordinal of the GPU; `None` for host memory.
    #[inline]
    pub fn ordinal(&self) -> Option<usize> {
        self.on_gpu().map(|on| on.ordinal)
    }

    /// Stream that orders access to the memory, on a GPU.
    #[inline]
    pub fn stream(&self) -> Option<u64> {
        self.on_gpu().map(|on| on.stream)
    }

    fn on_gpu(&self) -> Option<OnGpu> {
        match self.place {
            Place::Host(_) => None,
            Place::Boxes(_, on) => on,
            Place::Cuda { on, .. } => Some(on),
        }
    }

    /// Boxes that the bytes go to; `None` if they go to contiguous memory.
    #[doc(hidden)]
    pub fn as_boxes(&self) -> Option<&[TargetBox]> {
        match &self.place {
            Place::Boxes(boxes, _) => Some(boxes),
            Place::Host(_) | Place::Cuda { .. } => None,
        }
    }

    /// Address of the first byte, on the host or on the GPU; of the first box, or zero.
    #[inline]
    pub fn address(&self) -> u64 {
        match &self.place {
            Place::Host(start) => start.as_ptr().expose_provenance() as u64,
            Place::Boxes(boxes, _) => boxes.first().map_or(0, TargetBox::address),
            Place::Cuda { address, .. } => *address,
        }
    }

    /// Returns whether the target is one piece of host memory.
    #[doc(hidden)]
    #[inline]
    pub fn is_host(&self) -> bool {
        matches!(self.place, Place::Host(_))
    }

    /// Leases bytes of the target, which an engine then fills in place. The lease keeps the owner.
    ///
    /// # Safety
    ///
    /// Nothing else may use these bytes while the lease lives, and they must be initialised: an
    /// engine may show them before it has written to them.
    ///
    /// # Panics
    ///
    /// Unless the target [is host memory](Self::is_host) and has the bytes.
    #[doc(hidden)]
    #[expect(
        clippy::panic,
        reason = "documented; readers check their targets first"
    )]
    pub unsafe fn lease(&self, range: Range<usize>) -> Lease {
        let Place::Host(start) = self.place else {
            panic!("only one piece of host memory can be leased");
        };
        assert!(
            range.start <= range.end && range.end <= self.len,
            "a window leaves its target"
        );
        // SAFETY: inside the target, asserted above.
        let start = unsafe { start.add(range.start) };
        let owner = Owner::Target {
            _target: Box::new(self.clone()),
        };
        // SAFETY: `host`'s caller promised memory that is valid for writes, which the owner in this
        // clone keeps; this function's caller, that nothing else uses these bytes meanwhile.
        unsafe { Lease::new(start, range.len(), owner) }
    }

    /// Writes `bytes` at `offset`, into host memory.
    ///
    /// # Safety
    ///
    /// Nothing else may write to these bytes meanwhile: a load writes each byte of a tensor once.
    ///
    /// # Panics
    ///
    /// For memory of a GPU, and when the bytes leave the target.
    #[expect(clippy::panic, reason = "documented; the sink for GPUs never calls it")]
    #[inline]
    pub unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len());
        assert!(
            end.is_some_and(|end| end <= self.len),
            "a tensor leaves its target"
        );
        let start = match &self.place {
            Place::Host(start) => *start,
            Place::Boxes(boxes, None) => {
                for it in boxes.iter() {
                    // SAFETY: `boxes`' caller promised memory that is valid for writes and that
                    // only the load uses.
                    unsafe { it.write(offset, bytes) };
                }
                return;
            }
            Place::Boxes(_, Some(_)) | Place::Cuda { .. } => {
                panic!("the processor cannot write to memory of a GPU")
            }
        };
        // SAFETY: inside the target, asserted above.
        let to = unsafe { start.add(offset) };
        // SAFETY: `host`'s caller promised memory that is valid for writes and that only the load
        // uses; the bytes come from staging memory, which is elsewhere.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("place", &self.place)
            .field("len", &self.len)
            .field("owned", &self.owner.is_some())
            .finish()
    }
}
