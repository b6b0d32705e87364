//! Memory of the caller's that a load writes into.

#![expect(
    unsafe_code,
    reason = "writes into memory that the caller has vouched for"
)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Whatever keeps memory of the caller's alive.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// Where one tensor's bytes are to go: contiguous memory of the caller's, on the host or on a GPU.
#[derive(Clone)]
pub struct Target {
    place: Place,
    len: usize,
    owner: Option<KeepAlive>,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Host(NonNull<u8>),
    Cuda {
        ordinal: usize,
        address: u64,
        stream: u64,
    },
}

// SAFETY: `host`'s caller promised that only the load uses the memory, from whichever thread; the owner is `Send` and `Sync`.
unsafe impl Send for Target {}
// SAFETY: as above; `write` says what it needs.
unsafe impl Sync for Target {}

impl Target {
    /// `len` bytes of host memory at `start`.
    ///
    /// # Safety
    ///
    /// The memory must be valid for writes while `owner` lives, and nobody else may use it until the load's stream has ended or
    /// handed out the tensor.
    pub unsafe fn host(start: NonNull<u8>, len: usize, owner: Option<KeepAlive>) -> Self {
        let place = Place::Host(start);
        Self { place, len, owner }
    }

    /// `len` bytes at `address` of GPU `ordinal`. Copies begin behind what `stream` has been given by the time the load starts:
    /// `0` or `1` is the default stream, `2` the calling thread's own, else its address.
    ///
    /// # Safety
    ///
    /// The memory must be the device's, and valid while `owner` lives; nobody else may use it, but in work given to `stream`
    /// before, until the load's stream has ended or handed out the tensor. `stream` must be live when the load starts.
    pub unsafe fn cuda(
        ordinal: usize,
        address: u64,
        len: usize,
        stream: u64,
        owner: Option<KeepAlive>,
    ) -> Self {
        let place = Place::Cuda {
            ordinal,
            address,
            stream,
        };
        Self { place, len, owner }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The GPU; none for host memory.
    pub fn ordinal(&self) -> Option<usize> {
        match self.place {
            Place::Host(_) => None,
            Place::Cuda { ordinal, .. } => Some(ordinal),
        }
    }

    /// The stream that its memory is ordered with, on a GPU.
    pub(crate) fn stream(&self) -> Option<u64> {
        match self.place {
            Place::Host(_) => None,
            Place::Cuda { stream, .. } => Some(stream),
        }
    }

    /// Where it begins: an address of the host or of its GPU.
    pub fn address(&self) -> u64 {
        match self.place {
            Place::Host(start) => start.as_ptr().expose_provenance() as u64,
            Place::Cuda { address, .. } => address,
        }
    }

    /// Writes `bytes` at `offset`, into host memory.
    ///
    /// # Safety
    ///
    /// Nobody else may write to these bytes meanwhile: a load writes each byte of a tensor once.
    ///
    /// # Panics
    ///
    /// For memory of a GPU, and when the bytes leave the target.
    #[expect(clippy::panic, reason = "documented; the sink for GPUs never calls it")]
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        let Place::Host(start) = self.place else {
            panic!("the processor cannot write to memory of a GPU");
        };
        let end = offset.checked_add(bytes.len());
        assert!(
            end.is_some_and(|end| end <= self.len),
            "a tensor leaves its target"
        );
        // SAFETY: inside the target, asserted above.
        let to = unsafe { start.add(offset) };
        // SAFETY: `host`'s caller promised memory that is valid for writes and that only the load uses; the bytes come from staging
        // memory, which is elsewhere.
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
