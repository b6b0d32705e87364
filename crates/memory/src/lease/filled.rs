//! Lease whose first bytes have been read from storage, in its window or elsewhere.

#![expect(unsafe_code, reason = "gives access to bytes that have been read")]

use std::ops::Range;
use std::ptr::NonNull;

use super::{Lease, Owner};
use crate::crc::Polynomial;
use crate::prefixes::Prefixes;
use crate::region::Region;
use crate::sync::Arc;
use crate::target::KeepAlive;

/// Lease whose first bytes have been read from storage.
#[derive(Debug)]
pub struct Filled {
    lease: Lease,
    len: usize,
    is_gathered: bool,
    /// CRCs that the engine has computed of the bytes.
    prefixes: Option<Prefixes>,
    /// Memory that the bytes are in, if it is not the window.
    elsewhere: Option<Elsewhere>,
}

/// Bytes in memory that no lease owns.
#[derive(Debug)]
pub(super) struct Elsewhere {
    pub(super) start: NonNull<u8>,
    /// Keeps the bytes as they are.
    pub(super) _owner: KeepAlive,
}

// SAFETY: the bytes are only read, which any thread may do, and their owner is `Send`.
unsafe impl Send for Elsewhere {}
// SAFETY: as above.
unsafe impl Sync for Elsewhere {}

impl Filled {
    /// Creates one of the first `len` bytes of the window, or of `elsewhere`.
    ///
    /// # Safety
    ///
    /// They must be initialised, and nothing may write to them any more.
    #[inline]
    pub(super) unsafe fn new(lease: Lease, len: usize, elsewhere: Option<Elsewhere>) -> Self {
        Self {
            lease,
            len,
            is_gathered: false,
            prefixes: None,
            elsewhere,
        }
    }

    /// Adds CRCs of the bytes.
    #[must_use]
    #[inline]
    pub fn with_prefixes(mut self, prefixes: Option<Prefixes>) -> Self {
        self.prefixes = prefixes;
        self
    }

    /// Returns whether the engine has computed CRCs of the bytes.
    #[inline]
    pub fn has_crcs(&self) -> bool {
        self.prefixes.is_some()
    }

    /// Returns the CRC of a range of the bytes, as [`Self::remainder`] does.
    pub fn crc(&self, polynomial: Polynomial, range: Range<usize>) -> u64 {
        let len = range.len() as u64;
        polynomial.finalize(self.remainder(polynomial, range), len)
    }

    /// Returns the [remainder](Polynomial::remainder) of a range of the bytes, which is read only
    /// where the engine has not computed its CRC.
    pub fn remainder(&self, polynomial: Polynomial, range: Range<usize>) -> u64 {
        match &self.prefixes {
            Some(known) if known.polynomial() == polynomial => known.remainder(self.bytes(), range),
            Some(_) | None => polynomial.remainder(0, &self.bytes()[range]),
        }
    }

    /// Declares that the engine has joined the bytes of slices, as `Plan::gather` does.
    #[must_use]
    #[inline]
    pub fn gathered(mut self) -> Self {
        self.is_gathered = true;
        self
    }

    /// Returns whether the engine has joined the bytes of slices.
    #[inline]
    pub fn is_gathered(&self) -> bool {
        self.is_gathered
    }

    /// Returns whether the bytes are in other memory than the window.
    #[doc(hidden)]
    #[inline]
    pub fn is_elsewhere(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// Gives up the bytes, for the window to be filled again.
    #[inline]
    pub fn into_lease(self) -> Lease {
        self.lease
    }

    /// Bytes that were read.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let elsewhere = self.elsewhere.as_ref().map(|elsewhere| elsewhere.start);
        let start = elsewhere.unwrap_or(self.lease.start);
        // SAFETY: the caller of `assume_filled` or `filled_elsewhere` promised that these bytes are
        // initialised and no longer written to.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len) }
    }

    /// Bytes that were read, for moving them within the window. Their CRCs are computed anew.
    ///
    /// # Panics
    ///
    /// For a view, and for bytes elsewhere.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.lease.is_view(), "a load never writes to a view");
        assert!(!self.is_elsewhere(), "the bytes are not in the window");
        self.prefixes = None;
        // SAFETY: as in `bytes`; only this lease reaches them, and `&mut self` makes the access
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lease.start.as_ptr(), self.len) }
    }

    /// Bytes that were read, and those of the slot behind the window, which have any value: room to
    /// join some of the former. None if the window is no slot.
    #[doc(hidden)]
    #[inline]
    pub fn with_room(&mut self) -> (&[u8], &mut [u8]) {
        let window_len = self.lease.len;
        let room = self.slot_len() - window_len;
        // SAFETY: inside the slot, or at its end.
        let behind = unsafe { self.lease.start.add(window_len) };
        // SAFETY: slots lie in mappings, whose bytes the system has initialised; the slot belongs
        // to this lease alone, and `&mut self` makes the access exclusive. The bytes that were read
        // end before these, or are elsewhere.
        let behind = unsafe { std::slice::from_raw_parts_mut(behind.as_ptr(), room) };
        (self.bytes(), behind)
    }

    /// Bytes behind the window, as [`Self::with_room`] returns them.
    #[doc(hidden)]
    #[inline]
    pub fn room(&self) -> &[u8] {
        let (start, len) = (self.lease.start, self.lease.len);
        // SAFETY: inside the slot, or at its end.
        let behind = unsafe { start.add(len) };
        // SAFETY: as in `with_room`, for reading.
        unsafe { std::slice::from_raw_parts(behind.as_ptr(), self.slot_len() - len) }
    }

    fn slot_len(&self) -> usize {
        match &self.lease.owner {
            Owner::Region { .. } | Owner::Target { .. } => self.lease.len,
            Owner::Slot(slot) => slot.len(),
        }
    }

    /// Address of the window.
    #[inline]
    pub fn start(&self) -> usize {
        self.lease.start()
    }

    /// Copies a range of the bytes to the window that they are on the way to, and returns that; or
    /// the window itself, if they go nowhere else.
    ///
    /// # Panics
    ///
    /// When that window has no room for them.
    #[must_use]
    #[inline]
    pub fn arrived(mut self, range: Range<usize>) -> Self {
        match self.lease.destination.take() {
            Some(destination) => destination.fill_from(&self.bytes()[range]),
            None => self,
        }
    }

    /// Returns the region that the window lies in and its offset there; `None` for staging memory.
    #[inline]
    pub fn region(&self) -> Option<(&Arc<Region>, usize)> {
        match &self.lease.owner {
            Owner::Region { region, offset } => Some((region, *offset)),
            Owner::Slot(_) | Owner::Target { .. } => None,
        }
    }
}
