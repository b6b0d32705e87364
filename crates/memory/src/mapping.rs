//! One anonymous memory mapping: requests huge pages, unmapped on drop.
//!
//! The only file that maps anonymous memory. Everything above works with whole mappings;
//! `file_view.rs` maps files.

#![expect(unsafe_code, reason = "mmap, madvise and munmap of anonymous memory")]

use std::mem::ManuallyDrop;
#[cfg(not(miri))]
use std::ptr;
use std::ptr::NonNull;

#[cfg(all(target_os = "linux", not(miri)))]
use rustix::mm::{Advice, madvise};
#[cfg(not(miri))]
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::param::page_size;

#[cfg(miri)]
use super::miri_alloc::{map, unmap};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::address_space::require;
use crate::sync::threads::Builder;

/// Alignment and minimum size of mappings that request huge pages: reading 4 GiB into fresh memory
/// took 1.24 CPU seconds with 4 KiB pages and 0.55 with huge ones (measured 2026-11; x86-64 and 4
/// KiB-page arm64).
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Maximum number of threads that touch fresh memory in parallel: with about this many, clearing
/// pages is bound by memory bandwidth.
const POPULATE_THREADS_MAX: usize = 8;

/// Bytes in all live mappings of the process.
static MAPPED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Returns the bytes in all live mappings of the process, for tests that check for leaks. Views of
/// files are not counted.
pub fn mapped_bytes() -> usize {
    MAPPED.load(std::sync::atomic::Ordering::Relaxed)
}

/// Zeroed, page-aligned anonymous memory, at least as long as requested.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory with one owner; unmapping works from any thread.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` only gives out the address and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Returns the number of bytes that a mapping for `len` bytes takes: whole pages, at least one.
    #[inline]
    pub fn charge(len: usize) -> usize {
        len.max(1).next_multiple_of(page_size())
    }

    /// Maps at least `len` bytes. Pages are allocated when they are first touched.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the kernel refuses.
    pub fn anonymous(len: usize) -> Result<Self> {
        let len = Self::charge(len);
        let huge = len >= HUGE_PAGE_BYTES;
        // Example: for 3 MiB, 5 MiB are mapped at 0x7f00_0010_0000; the next 2 MiB boundary is
        // 0x7f00_0020_0000, so 1 MiB is cut off in front and 1 MiB behind.
        let mapped_len = if huge { len + HUGE_PAGE_BYTES } else { len };
        let mapped = require(mapped_len).and_then(|()| {
            let mapped = map(mapped_len)?;
            // Another thread may have mapped the same addresses.
            require(0).inspect_err(|_| unmap(mapped, mapped_len))?;
            Ok(mapped)
        });
        let mapped = mapped.map_err(|error| {
            Error::new(
                ErrorKind::OutOfMemory,
                format!("cannot map {len} bytes of memory"),
            )
            .with_hint(
                "load less at a time, or raise the process's address-space limit (ulimit -v) or its number of mappings \
                 (sysctl vm.max_map_count)",
            )
            .with_source(error)
        })?;
        let front = if huge {
            mapped.align_offset(HUGE_PAGE_BYTES)
        } else {
            0
        };
        let start = mapped.wrapping_add(front);
        if huge {
            unmap(mapped, front);
            unmap(start.wrapping_add(len), mapped_len - front - len);
            // SAFETY: the range was just mapped and belongs to this function.
            unsafe { advise_huge_pages(start, len) };
        }
        let start = NonNull::new(start).expect("mmap never returns null");
        MAPPED.fetch_add(len, std::sync::atomic::Ordering::Relaxed);
        Ok(Self { start, len })
    }

    /// Pointer to the first byte.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes, whole pages.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Allocates every page, with a few threads that take one range each: a single thread would
    /// otherwise touch all memory that is about to be pinned. Pages come from the given NUMA node,
    /// if one is given and the system allows the choice.
    ///
    /// Silently does less on kernels older than 5.14 and where the memory policy is refused.
    pub(super) fn populate(&self, node: Option<u32>) {
        if let Some(node) = node {
            // SAFETY: the range is the mapping's own, and nothing is in it yet.
            unsafe { prefer_node(self.start.as_ptr(), self.len, node) };
        }
        let threads = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(POPULATE_THREADS_MAX);
        let step = self.len.div_ceil(threads).next_multiple_of(HUGE_PAGE_BYTES);
        let populate_from = |from: usize| {
            let len = step.min(self.len - from);
            // SAFETY: inside the mapping, which this call borrows; its bytes are not accessed
            // meanwhile.
            unsafe { populate(self.start.as_ptr().wrapping_add(from), len) };
        };
        std::thread::scope(|scope| {
            for from in (step..self.len).step_by(step) {
                let here = move || populate_from(from);
                let thread = Builder::new().spawn_scoped(scope, here);
                if thread.is_err() {
                    // The system refused another thread.
                    populate_from(from);
                }
            }
            populate_from(0);
        });
    }

    /// Keeps the memory out of forked child processes: a page that the kernel or a GPU writes to
    /// must not become a copy. A child that touches the memory dies.
    pub(super) fn keep_from_forks(&self) {
        // SAFETY: the range is the mapping's own.
        unsafe { advise_no_fork(self.start.as_ptr(), self.len) };
    }

    /// Frees the pages from `len` on (whole pages), which keep their addresses. Returns the number
    /// of bytes freed: 0 where the system cannot.
    ///
    /// # Safety
    ///
    /// Their bytes must not be accessed meanwhile. They are zero afterwards.
    pub(super) unsafe fn discard_from(&self, len: usize) -> usize {
        assert!(
            len <= self.len && len.is_multiple_of(page_size()),
            "freed from {len} of {}",
            self.len
        );
        let rest = self.len - len;
        // SAFETY: inside the mapping, asserted above; the caller's promise.
        let is_freed = rest > 0 && unsafe { discard(self.start.as_ptr().wrapping_add(len), rest) };
        if is_freed { rest } else { 0 }
    }

    /// Splits off everything from `len` on (whole pages, inside the mapping) as a mapping of its
    /// own.
    pub(super) fn split_off(&mut self, len: usize) -> Self {
        assert!(
            0 < len && len < self.len && len.is_multiple_of(page_size()),
            "cut at {len} of {}",
            self.len
        );
        // SAFETY: inside the mapping, asserted above.
        let start = unsafe { self.start.add(len) };
        let rest = Self {
            start,
            len: self.len - len,
        };
        self.len = len;
        rest
    }

    /// Appends `next` if it begins where this mapping ends; otherwise returns it.
    pub(super) fn try_join(&mut self, next: Self) -> Result<(), Self> {
        if self.end() != next.start.as_ptr().addr() {
            return Err(next);
        }
        self.len += next.len;
        // Its pages now belong to this mapping; it must not unmap them.
        let _ = ManuallyDrop::new(next);
        Ok(())
    }

    /// Address behind the last byte.
    fn end(&self) -> usize {
        self.start.as_ptr().addr() + self.len
    }
}

/// Faults in and frees `bytes` of memory, with huge pages where the kernel grants them: for
/// measurements on virtual machines, whose host may have reclaimed the guest's free memory. A
/// measurement that follows then pays only for the guest's own first touch.
///
/// Silently does less when there is too little memory or the kernel is older than 5.14.
pub fn prefault(bytes: usize) {
    if let Ok(mapping) = Mapping::anonymous(bytes) {
        // SAFETY: the range is the mapping's own, and its bytes are not accessed.
        unsafe { populate(mapping.start.as_ptr(), mapping.len) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.len, std::sync::atomic::Ordering::Relaxed);
        unmap(self.start.as_ptr(), self.len);
    }
}

#[cfg(not(miri))]
fn map(len: usize) -> rustix::io::Result<*mut u8> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a null hint and an anonymous private mapping: no existing memory is touched.
    let mapped = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags) };
    mapped.map(<*mut _>::cast)
}

/// Unmaps `len` bytes of a mapping of this module; does nothing for 0.
#[cfg(not(miri))]
fn unmap(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: callers pass ranges of a mapping that they made and own, and give up every
        // pointer into it.
        let _ = unsafe { munmap(start.cast(), len) };
    }
}

/// Requests huge pages. Only advice: without them everything works, more slowly.
///
/// # Safety
///
/// The range must be a mapping that the caller owns.
#[cfg(all(target_os = "linux", not(miri)))]
unsafe fn advise_huge_pages(start: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the advice changes no byte.
    let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
}

/// Allocates every page of the range.
///
/// # Safety
///
/// The range must be a mapping that the caller owns.
#[cfg(all(target_os = "linux", not(miri)))]
unsafe fn populate(start: *mut u8, len: usize) {
    // SAFETY: the caller's promise; populating anonymous memory changes no byte.
    let _ = unsafe { madvise(start.cast(), len, Advice::LinuxPopulateWrite) };
}

/// Keeps the range out of forked processes. Only advice: if it is refused, a fork costs more.
///
/// # Safety
///
/// The range must be a mapping that the caller owns.
#[cfg(all(target_os = "linux", not(miri)))]
unsafe fn advise_no_fork(start: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the advice changes no byte.
    let _ = unsafe { madvise(start.cast(), len, Advice::LinuxDontFork) };
}

/// Prefers pages of one NUMA node; the kernel uses others when that node has none.
///
/// # Safety
///
/// The range must be a mapping that the caller owns.
#[cfg(all(target_os = "linux", not(miri)))]
unsafe fn prefer_node(start: *mut u8, len: usize, node: u32) {
    /// `MPOL_PREFERRED` of `set_mempolicy(2)`.
    const PREFERRED: libc::c_int = 1;
    let mut mask = [0_u64; 16];
    let Some(word) = mask.get_mut(node as usize / 64) else {
        return;
    };
    *word = 1 << (node % 64);
    let bits = mask.len() * 64;
    // SAFETY: the caller's promise; the mask has as many bits as the call is told.
    let _ = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start,
            len,
            PREFERRED,
            mask.as_ptr(),
            bits,
            0,
        )
    };
}

/// Frees the pages of the range. Returns whether the system did.
///
/// # Safety
///
/// The range must be a mapping that the caller owns, and its bytes must not be accessed meanwhile.
#[cfg(all(target_os = "linux", not(miri)))]
unsafe fn discard(start: *mut u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { madvise(start.cast(), len, Advice::LinuxDontNeed) }.is_ok()
}

#[cfg(any(not(target_os = "linux"), miri))]
unsafe fn discard(_start: *mut u8, _len: usize) -> bool {
    false
}

#[cfg(any(not(target_os = "linux"), miri))]
unsafe fn advise_no_fork(_start: *mut u8, _len: usize) {}

#[cfg(any(not(target_os = "linux"), miri))]
unsafe fn prefer_node(_start: *mut u8, _len: usize, _node: u32) {}

#[cfg(any(not(target_os = "linux"), miri))]
unsafe fn populate(_start: *mut u8, _len: usize) {}

#[cfg(any(not(target_os = "linux"), miri))]
unsafe fn advise_huge_pages(_start: *mut u8, _len: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_mappings_start_on_a_huge_page_boundary() {
        let mapping = Mapping::anonymous((3 << 20) + 1).expect("3 MiB can be mapped");
        assert_eq!(mapping.start().as_ptr().addr() % HUGE_PAGE_BYTES, 0);
        assert_eq!(mapping.len(), (3 << 20) + 4096);
    }

    #[test]
    fn small_mappings_are_whole_pages() {
        assert_eq!(
            Mapping::anonymous(1).expect("one page can be mapped").len(),
            4096
        );
        assert_eq!(Mapping::charge(0), 4096);
    }

    #[test]
    fn mapping_join_requires_adjacent_order() {
        let mut front = Mapping::anonymous(8192).expect("two pages can be mapped");
        let back = front.split_off(4096);
        assert_eq!((front.len(), back.len()), (4096, 4096));
        let mut back = back;
        let front = back
            .try_join(front)
            .expect_err("the front does not follow the back");
        let mut front = front;
        front.try_join(back).expect("the back follows the front");
        assert_eq!(front.len(), 8192);
    }

    #[test]
    fn oversized_mapping_returns_out_of_memory() {
        let error = Mapping::anonymous(1 << 60).expect_err("an exbibyte cannot be mapped");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    }
}
