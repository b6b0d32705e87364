//! The exclusive right to one window of memory.
//!
//! ```text
//!  Region::carve / Slab::lease ──▶ Lease ──engine: submit … reap──▶ Filled ──sink──▶ dropped: the window is free
//!                                    └──────────── failed ──────────────────────────▶ dropped: the window is free
//! ```
//!
//! The engine owns the lease while the kernel may write, so a read can never outlive its memory. A [`Filled`] is a lease whose
//! first bytes are known to be written; only engines can make one.

#![expect(
    unsafe_code,
    reason = "hands out memory that the kernel fills, without initialising it first"
)]

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::region::Region;
use super::slab::SlotGuard;
use crate::sync::Arc;

/// The exclusive right to a window; dropping it gives the window back.
#[derive(Debug)]
pub struct Lease {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// What keeps the window's memory alive.
#[derive(Debug)]
pub(super) enum Owner {
    /// Final memory of tensors, and where in it the window starts.
    Region { region: Arc<Region>, offset: usize },
    /// Staging memory, used again after the lease.
    Slot(SlotGuard),
}

// SAFETY: the window is reachable through this lease alone (`Region::carve` and `Slab::lease` hand out each window to one
// lease at a time), and the owners are `Send`.
unsafe impl Send for Lease {}
// SAFETY: `&Lease` gives out no access to the bytes.
unsafe impl Sync for Lease {}

impl Lease {
    /// A lease of `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// The window must lie in memory that `owner` keeps mapped, and no other lease and no reader may reach it until this
    /// lease is dropped.
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize, owner: Owner) -> Self {
        Self { start, len, owner }
    }

    /// The address of the first byte: what tells one window from another.
    pub(crate) fn start(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Bytes in the window.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the window shows a file: its bytes are there already, and nobody may write to it.
    pub fn is_view(&self) -> bool {
        match &self.owner {
            Owner::Region { region, .. } => region.view().is_some(),
            Owner::Slot(_) => false,
        }
    }

    /// Brings the pages of a view into memory and maps them, `needed` bytes of it.
    ///
    /// # Errors
    ///
    /// What the system says, and the lease: `EFAULT` when the file has become shorter than that, or its pages could not be read.
    pub fn populate(self, needed: usize) -> Result<Filled, (Self, std::io::Error)> {
        assert!(needed <= self.len, "a view leaves its window");
        let Owner::Region { region, offset } = &self.owner else {
            unreachable!("only views are populated, and slots are none");
        };
        let (view, start) = region.view().expect("only views are populated");
        let populated = view.populate(start + offset, needed);
        if let Err(error) = populated {
            return Err((self, error));
        }
        // SAFETY: the file's bytes are mapped so far, as the system has just said.
        Ok(unsafe { self.assume_filled(needed) })
    }

    /// The first byte, for the kernel to write to. Valid for writes of [`Self::len`] bytes while the lease lives.
    ///
    /// # Panics
    ///
    /// For a view.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        assert!(!self.is_view(), "nobody writes to a view of a file");
        self.start.as_ptr()
    }

    /// The window as memory that may not be initialised yet.
    ///
    /// # Panics
    ///
    /// For a view.
    pub fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        assert!(!self.is_view(), "nobody writes to a view of a file");
        // SAFETY: `new`'s caller promised a mapped window that only this lease reaches; `&mut self` makes it exclusive,
        // and `MaybeUninit` says nothing about its contents.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len) }
    }

    /// The index under which an engine may have registered the window's memory with the kernel.
    pub fn registration(&self) -> Option<u16> {
        match &self.owner {
            Owner::Region { .. } => None,
            Owner::Slot(slot) => slot.registration(),
        }
    }

    /// Says that the first `len` bytes have been written.
    ///
    /// # Safety
    ///
    /// The first `len` bytes must be initialised, and nobody may write to the window any more.
    pub unsafe fn assume_filled(self, len: usize) -> Filled {
        assert!(
            len <= self.len,
            "filled {len} bytes of a window of {}",
            self.len
        );
        Filled { lease: self, len }
    }

    /// Fills the window's first bytes from memory: for engines that have the bytes already.
    pub fn fill_from(self, bytes: &[u8]) -> Filled {
        let mut filling = self.filling();
        filling.push(bytes);
        filling.finish()
    }

    /// Fills the window from memory, front to back: for engines that get the bytes bit by bit.
    ///
    /// # Panics
    ///
    /// For a view.
    pub fn filling(self) -> Filling {
        assert!(!self.is_view(), "nobody writes to a view of a file");
        Filling {
            lease: self,
            len: 0,
        }
    }
}

/// A lease of which the first bytes are written.
#[derive(Debug)]
pub struct Filling {
    lease: Lease,
    len: usize,
}

impl Filling {
    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes the next bytes.
    ///
    /// # Panics
    ///
    /// When the window has no room for them.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = self.lease.len - self.len;
        assert!(
            bytes.len() <= room,
            "{} bytes for {room} of a window",
            bytes.len()
        );
        // SAFETY: `len` is inside the window.
        let end = unsafe { self.lease.start.add(self.len) };
        // SAFETY: the window has room for so many bytes, only this lease reaches them, and so `bytes` lies elsewhere.
        unsafe { end.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.len += bytes.len();
    }

    /// The lease with what was written.
    pub fn finish(self) -> Filled {
        // SAFETY: `push` wrote the first `len` bytes, and nobody can call it any more.
        unsafe { self.lease.assume_filled(self.len) }
    }
}

/// A lease whose first bytes have been read from storage.
#[derive(Debug)]
pub struct Filled {
    lease: Lease,
    len: usize,
}

impl Filled {
    /// The bytes that were read.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `assume_filled`'s caller promised that these bytes are initialised and no longer written to.
        unsafe { std::slice::from_raw_parts(self.lease.start.as_ptr(), self.len) }
    }

    /// The bytes that were read, to be moved about.
    ///
    /// # Panics
    ///
    /// For a view.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.lease.is_view(), "nobody writes to a view of a file");
        // SAFETY: as `bytes`; the lease is the only one that reaches them, and `&mut self` makes this exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lease.start.as_ptr(), self.len) }
    }

    /// The address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.lease.start()
    }

    /// The region that the window lies in, and where in it; none for staging memory.
    pub fn region(&self) -> Option<(&Arc<Region>, usize)> {
        match &self.lease.owner {
            Owner::Region { region, offset } => Some((region, *offset)),
            Owner::Slot(_) => None,
        }
    }
}
