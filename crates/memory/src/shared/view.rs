//! View of memory that another process fills.

#![expect(unsafe_code, reason = "maps memory of other processes")]

use std::fmt;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

use super::cannot_map;
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::{HUGE_PAGE_BYTES, Mapping};
use crate::sync::address_space::require;
use crate::sync::per_process::forks;

/// Reference to a view: to memory of another process, which no model of this one has.
pub(crate) type ViewRef = Arc<SharedView>;

/// End of a view, in two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewEnd {
    /// All of its uses have ended; the bytes that it shows may still be needed.
    Released,
    /// It shows the memory no more, and neither does a fork of this process: other bytes may be
    /// written there.
    Unmapped,
}

/// Callback for a view that ends.
type OnEnd = Box<dyn Fn(ViewEnd) + Send + Sync>;

/// View of memory that another process fills, at an address that is known before the memory exists.
/// Writes of this process, where they are allowed, are private to it.
pub struct SharedView {
    start: NonNull<u8>,
    len: usize,
    is_writable: bool,
    /// Uses that have not ended.
    users: AtomicUsize,
    /// Number of forks of this process before the view showed memory.
    shown_at: OnceLock<usize>,
    on_end: OnEnd,
}

// SAFETY: a view is plain memory; unmapping works from any thread.
unsafe impl Send for SharedView {}
// SAFETY: `&SharedView` gives out the address and the length. What it maps replaces memory that no
// reference points to: see `show` and `make_private`.
unsafe impl Sync for SharedView {}

impl SharedView {
    /// Reserves addresses for `len` bytes, whole pages. `on_end` is called once `users` uses have
    /// ended, and once the view has shown memory and no longer does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the process has no addresses left.
    pub fn reserve(len: usize, users: usize, on_end: OnEnd) -> Result<Self> {
        let len = Mapping::charge(len);
        // A huge page of the memory is mapped as one only where the address is a multiple of its
        // length, as the offset in the memory is.
        let alignment = if len >= HUGE_PAGE_BYTES {
            HUGE_PAGE_BYTES
        } else {
            0
        };
        let mapped_len = len + alignment;
        require(mapped_len).map_err(|error| cannot_map(len, error))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint and an anonymous mapping: no existing memory is touched.
        let mapped =
            unsafe { mmap_anonymous(ptr::null_mut(), mapped_len, ProtFlags::empty(), flags) };
        let mapped: *mut u8 = mapped.map_err(|errno| cannot_map(len, errno))?.cast();
        let front = mapped.align_offset(alignment.max(1));
        let start = mapped.wrapping_add(front);
        for (unused, len) in [
            (mapped, front),
            (start.wrapping_add(len), alignment - front),
        ] {
            if len > 0 {
                // SAFETY: whole pages of the range that was just mapped, outside of the view.
                let _ = unsafe { munmap(unused.cast(), len) };
            }
        }
        let start = NonNull::new(start).expect("mmap never returns null");
        Ok(Self {
            start,
            len,
            is_writable: false,
            users: AtomicUsize::new(users),
            shown_at: OnceLock::new(),
            on_end,
        })
    }

    /// Lets this process write to the view, once all of the memory has been filled: the kernel then
    /// copies each page that is written to.
    #[must_use]
    pub fn writable(mut self, is_writable: bool) -> Self {
        self.is_writable = is_writable;
        self
    }

    /// Returns whether this process may write to the view.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Shows `memory` at the reserved addresses, all of it. To be called once, before any byte is
    /// accessed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`] when the memory is shorter than the view,
    /// [`ErrorKind::OutOfMemory`] when it cannot be mapped.
    pub fn show(&self, memory: impl AsFd) -> Result<()> {
        let found = rustix::fs::fstat(&memory).map_err(|errno| cannot_map(self.len, errno))?;
        // A page behind the end of the memory would kill the process.
        if u64::try_from(found.st_size).unwrap_or(0) < self.len as u64 {
            let message = format!(
                "the shared memory has {} bytes, and its region {}",
                found.st_size, self.len
            );
            return Err(Error::new(ErrorKind::Peer, message));
        }
        let (protection, kind) = if self.is_writable {
            let private = MapFlags::PRIVATE | MapFlags::NORESERVE;
            (ProtFlags::READ | ProtFlags::WRITE, private)
        } else {
            (ProtFlags::READ, MapFlags::SHARED)
        };
        let flags = kind | MapFlags::FIXED;
        let start = self.start.as_ptr().cast();
        self.shown_at.get_or_init(forks);
        // SAFETY: replaces the view's own reservation, which nothing can have accessed.
        let mapped = unsafe { mmap(start, self.len, protection, flags, memory, 0) };
        mapped.map_err(|errno| cannot_map(self.len, errno))?;
        Ok(())
    }

    /// Replaces the whole pages `range` by private memory, to be filled by this process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the kernel refuses.
    ///
    /// # Safety
    ///
    /// No reference to these pages may exist, and none of their bytes may be needed.
    pub unsafe fn make_private(&self, range: Range<usize>) -> Result<()> {
        let page = page_size();
        assert!(
            range.start <= range.end && range.end <= self.len,
            "pages outside of the view"
        );
        assert!(
            range.start.is_multiple_of(page) && range.len().is_multiple_of(page),
            "parts of pages cannot be replaced"
        );
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: inside the view, asserted above.
        let start = unsafe { self.start.add(range.start) };
        // SAFETY: replaces the view's own pages, which the caller promised are not in use.
        let mapped =
            unsafe { mmap_anonymous(start.as_ptr().cast(), range.len(), protection, flags) };
        mapped.map_err(|errno| cannot_map(range.len(), errno))?;
        Ok(())
    }

    /// Pointer to the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes, whole pages.
    #[expect(clippy::len_without_is_empty, reason = "a view is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes of a range.
    ///
    /// # Safety
    ///
    /// The view must show memory whose `range` has been filled and is no longer written to.
    pub unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "bytes outside of the view"
        );
        // SAFETY: inside the view, asserted above.
        let start = unsafe { self.start.add(range.start) };
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), range.len()) }
    }

    /// Ends one use.
    pub fn user_done(&self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            (self.on_end)(ViewEnd::Released);
        }
    }
}

impl Drop for SharedView {
    fn drop(&mut self) {
        // SAFETY: mapped in `reserve`, and no other owner is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        // A fork of this process would see what is written there next.
        if unmapped.is_ok() && self.shown_at.get() == Some(&forks()) {
            (self.on_end)(ViewEnd::Unmapped);
        }
    }
}

impl fmt::Debug for SharedView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedView")
            .field("len", &self.len)
            .field("users", &self.users)
            .finish_non_exhaustive()
    }
}
