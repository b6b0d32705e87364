//! Heap memory in place of mappings under Miri, which does not support unmapping a mapping in
//! pieces. It is freed when all of its pieces have been unmapped.
//!
//! Unlike a mapping, the memory is not zeroed: Miri reports every read of bytes that were never
//! written.

#![expect(
    unsafe_code,
    reason = "allocates, and frees when every piece was unmapped"
)]

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

use rustix::param::page_size;

use crate::sync::per_process::PerProcess;

/// Live mappings by address.
static MAPPED: PerProcess<BTreeMap<usize, Mapped>> = PerProcess::new();

struct Mapped {
    start: *mut u8,
    layout: Layout,
    /// Bytes not yet unmapped.
    left: usize,
}

// SAFETY: plain memory, freed once, under the lock.
unsafe impl Send for Mapped {}

/// Allocates `len` bytes, at least one, that begin on a page.
pub(super) fn map(len: usize) -> rustix::io::Result<*mut u8> {
    // An unused page follows each mapping, so that two mappings never touch.
    let layout = Layout::from_size_align(len + page_size(), page_size());
    let layout = layout.map_err(|_| rustix::io::Errno::NOMEM)?;
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc(layout) };
    let left = len;
    let found = Mapped {
        start,
        layout,
        left,
    };
    MAPPED.lock().insert(start.addr(), found);
    Ok(start)
}

/// Unmaps `len` bytes of a mapping, which the caller no longer uses.
pub(super) fn unmap(start: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    let mut all = MAPPED.lock();
    let (address, found) = all
        .range_mut(..=start.addr())
        .next_back()
        .expect("was mapped");
    assert!(len <= found.left, "unmapped twice");
    found.left -= len;
    if found.left == 0 {
        // SAFETY: allocated with this layout, and the last piece was unmapped.
        unsafe { dealloc(found.start, found.layout) };
        let address = *address;
        all.remove(&address);
    }
}
