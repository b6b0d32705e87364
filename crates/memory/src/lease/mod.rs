//! Exclusive right to one window of memory.
//!
//! ```text
//! Region::carve / Slab::try_lease ─▶ Lease ─ engine: submit … reap ─▶ Filled ─ sink ─▶ dropped
//!                                      └────────────── failed ───────────────────────▶ dropped
//! ```
//!
//! Dropping the lease frees the window. The engine owns the lease while the kernel may write, so a
//! read can never outlive its memory. A [`Filled`] is a lease whose first bytes are known to be
//! written; only engines can make one. `filled` has that, and `filling` the lease whose bytes come
//! from memory.

#![expect(
    unsafe_code,
    reason = "hands out memory that the kernel fills, without initialising it first"
)]

mod filled;
mod filling;

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;

use filled::Elsewhere;
pub use filled::Filled;
pub use filling::Filling;

use super::region::Region;
use super::slab::SlotGuard;
use super::target::{KeepAlive, Target};
use crate::crc::Polynomial;
use crate::sync::Arc;

/// Exclusive right to a window, which is released on drop.
#[derive(Debug)]
pub struct Lease {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
    /// The window was a view, whose pages are the lease's own now.
    private: bool,
    /// Window that the bytes are copied to in the end.
    destination: Option<Box<Lease>>,
    /// CRC that the bytes are compared by.
    crc: Option<Polynomial>,
    /// The bytes are digested next.
    is_checked: bool,
}

/// Owner that keeps the window's memory alive.
#[derive(Debug)]
pub(super) enum Owner {
    /// Final memory of tensors, and the offset of the window in it.
    Region { region: Arc<Region>, offset: usize },
    /// Staging memory, reused after the lease.
    Slot(SlotGuard),
    /// Memory of the caller, and what keeps it alive.
    Target { _target: Box<Target> },
}

// SAFETY: the window is reachable through this lease alone (`Region::carve` and
// `Slab::try_lease` hand out each window to one lease at a time), and the owners are `Send`.
unsafe impl Send for Lease {}
// SAFETY: `&Lease` gives out no access to the bytes.
unsafe impl Sync for Lease {}

impl Lease {
    /// Creates a lease of `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// The window must lie in memory that `owner` keeps mapped, and no other lease and no reader
    /// may reach it until this lease is dropped.
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize, owner: Owner) -> Self {
        Self {
            start,
            len,
            owner,
            private: false,
            destination: None,
            crc: None,
            is_checked: false,
        }
    }

    /// Makes this window the first place of bytes that go to `destination`. See
    /// [`Filled::arrived`].
    #[must_use]
    pub fn on_the_way_to(mut self, destination: Self) -> Self {
        self.destination = Some(Box::new(destination));
        self
    }

    /// Declares that the bytes are digested as soon as the window is filled.
    #[doc(hidden)]
    #[inline]
    pub fn checked(&mut self) {
        self.is_checked = true;
    }

    /// Asks the engine for CRCs of the bytes, which it may compute while they are in the core's
    /// cache. See [`Filled::remainder`].
    #[inline]
    pub fn want_crc(&mut self, crc: Option<Polynomial>) {
        self.crc = crc;
    }

    /// CRC that the engine is asked for.
    #[inline]
    pub fn wanted_crc(&self) -> Option<Polynomial> {
        self.crc
    }

    /// Address of the first byte, which identifies the window.
    #[inline]
    pub fn start(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// First byte, for code of this crate that knows who may write there.
    #[inline]
    pub(super) fn window(&self) -> NonNull<u8> {
        self.start
    }

    /// Length of the window in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the window is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the window is a view of a file or of memory that another process fills. It
    /// is never written to.
    #[inline]
    pub fn is_view(&self) -> bool {
        match &self.owner {
            Owner::Region { region, .. } => region.is_view() && !self.private,
            Owner::Slot(_) | Owner::Target { .. } => false,
        }
    }

    /// Makes the window of a view of shared memory, whole pages, private to this process, so that
    /// it can be filled here.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::error::ErrorKind::OutOfMemory) when the kernel refuses.
    pub fn make_private(&mut self) -> crate::error::Result<()> {
        if let Owner::Region { region, offset } = &self.owner
            && self.is_view()
        {
            // SAFETY: only this lease reaches the window, and none of it has been filled.
            unsafe { region.make_private(*offset, self.len) }?;
            self.private = true;
        }
        Ok(())
    }

    /// Reads the first `needed` bytes of a view into memory and maps their pages.
    ///
    /// # Errors
    ///
    /// The lease and the system's error: `EFAULT` when the file has become shorter than that, or
    /// its pages could not be read.
    pub fn populate(self, needed: usize) -> Result<Filled, (Self, std::io::Error)> {
        assert!(needed <= self.len, "a view leaves its window");
        let Owner::Region { region, offset } = &self.owner else {
            unreachable!("only views are populated, and other memory is none");
        };
        let (view, start) = region.view().expect("only views are populated");
        let populated = view.populate(start + offset, needed);
        if let Err(error) = populated {
            return Err((self, error));
        }
        // SAFETY: the system has just confirmed that these bytes of the file are mapped.
        Ok(unsafe { self.assume_filled(needed) })
    }

    /// Pointer to the first byte, for the kernel to write to. Valid for writes of [`Self::len`]
    /// bytes while the lease lives.
    ///
    /// # Panics
    ///
    /// For a view.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        assert!(!self.is_view(), "a load never writes to a view");
        self.start.as_ptr()
    }

    /// Returns the window as memory that may not be initialised yet.
    ///
    /// # Panics
    ///
    /// For a view.
    #[inline]
    pub fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        assert!(!self.is_view(), "a load never writes to a view");
        // SAFETY: `new`'s caller promised a mapped window that only this lease reaches; `&mut self`
        // makes it exclusive, and `MaybeUninit` makes no claim about its contents.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len) }
    }

    /// Returns bytes of the window, for engines that write to it in any order. Bytes that were not
    /// written have any value.
    ///
    /// # Panics
    ///
    /// For a view, and for bytes outside of the window.
    #[inline]
    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(!self.is_view(), "a load never writes to a view");
        assert!(
            range.start <= range.end && range.end <= self.len,
            "bytes outside of the window"
        );
        // SAFETY: inside the window, asserted above.
        let start = unsafe { self.start.add(range.start) };
        // SAFETY: windows lie in mappings, whose bytes the system has initialised; only this lease
        // reaches them, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), range.len()) }
    }

    /// Converts a lease whose first `len` bytes have been written through [`Self::bytes_mut`].
    #[inline]
    pub fn written(self, len: usize) -> Filled {
        assert!(!self.is_view(), "a load never writes to a view");
        // SAFETY: initialised, as in `bytes_mut`.
        unsafe { self.assume_filled(len) }
    }

    /// Index under which an engine may have registered the window's memory with the kernel.
    #[inline]
    pub fn registration(&self) -> Option<u16> {
        match &self.owner {
            Owner::Region { .. } | Owner::Target { .. } => None,
            Owner::Slot(slot) => slot.registration(),
        }
    }

    /// Converts a lease whose first `len` bytes have been written.
    ///
    /// # Safety
    ///
    /// The first `len` bytes must be initialised, and nothing may write to the window any more.
    #[inline]
    pub unsafe fn assume_filled(self, len: usize) -> Filled {
        assert!(
            len <= self.len,
            "filled {len} bytes of a window of {}",
            self.len
        );
        // SAFETY: the caller's promise.
        unsafe { Filled::new(self, len, None) }
    }

    /// Converts a lease whose bytes are in other memory, `len` of them at `start`: nothing is
    /// written to its window, which is kept with them.
    ///
    /// # Safety
    ///
    /// They must be initialised, readable while `owner` lives, and nothing may write to them
    /// meanwhile.
    #[doc(hidden)]
    pub unsafe fn filled_elsewhere(
        self,
        start: NonNull<u8>,
        len: usize,
        owner: KeepAlive,
    ) -> Filled {
        assert!(
            len <= self.len,
            "{len} bytes in place of a window of {}",
            self.len
        );
        let elsewhere = Elsewhere {
            start,
            _owner: owner,
        };
        // SAFETY: the caller's promise.
        unsafe { Filled::new(self, len, Some(elsewhere)) }
    }

    /// Fills the start of the window from memory: for engines that already have the bytes.
    pub fn fill_from(self, bytes: &[u8]) -> Filled {
        let mut filling = self.filling();
        filling.push(bytes);
        filling.finish()
    }

    /// Fills the window from memory, front to back: for engines that receive the bytes in parts.
    ///
    /// # Panics
    ///
    /// For a view.
    #[inline]
    pub fn filling(self) -> Filling {
        assert!(!self.is_view(), "a load never writes to a view");
        Filling::new(self)
    }

    /// Returns whether the bytes are read again as soon as the window is filled: for their digest,
    /// or to move them out of staging memory.
    #[doc(hidden)]
    #[inline]
    pub fn is_read_soon(&self) -> bool {
        self.is_checked || matches!(self.owner, Owner::Slot(_))
    }
}
