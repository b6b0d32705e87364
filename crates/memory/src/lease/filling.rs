//! Lease that is filled from memory, front to back.

#![expect(unsafe_code, reason = "knows which bytes of a lease it has written")]

use super::{Filled, Lease};
use crate::streaming::{copy, copy_streaming};

/// Lease whose first bytes are written.
#[derive(Debug)]
pub struct Filling {
    lease: Lease,
    len: usize,
    /// Long copies bypass the processor's caches.
    is_streaming: bool,
}

impl Filling {
    pub(super) fn new(lease: Lease) -> Self {
        Self {
            lease,
            len: 0,
            is_streaming: false,
        }
    }

    /// Writes past the processor's caches from now on: for bytes that nothing reads soon.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub fn streaming(mut self) -> Self {
        self.is_streaming = true;
        self
    }

    /// Number of bytes written so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no byte has been written.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends bytes.
    ///
    /// # Panics
    ///
    /// When the window has no room for them.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let room = self.lease.len - self.len;
        assert!(
            bytes.len() <= room,
            "{} bytes for {room} of a window",
            bytes.len()
        );
        let next = &mut self.lease.as_uninit()[self.len..][..bytes.len()];
        if self.is_streaming {
            copy_streaming(bytes, next);
        } else {
            copy(bytes, next);
        }
        self.len += bytes.len();
    }

    /// Returns the lease with the written bytes.
    #[inline]
    pub fn finish(self) -> Filled {
        // SAFETY: `push` wrote the first `len` bytes and cannot be called any more.
        unsafe { self.lease.assume_filled(self.len) }
    }
}
