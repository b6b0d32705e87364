//! Memory under Miri, which knows no mapping that is unmapped in pieces: from the heap, and given back when all pieces have been.
//!
//! Not zeroed, as mappings are: Miri reports whoever looks at bytes that nobody has written.

#![expect(unsafe_code, reason = "allocates, and frees when nobody has any of it")]

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::param::page_size;

/// By address.
static MAPPED: Mutex<BTreeMap<usize, Mapped>> = Mutex::new(BTreeMap::new());

struct Mapped {
    start: *mut u8,
    layout: Layout,
    /// Bytes that have not been unmapped.
    left: usize,
}

// SAFETY: plain memory, which is freed once, under the lock.
unsafe impl Send for Mapped {}

fn mapped() -> MutexGuard<'static, BTreeMap<usize, Mapped>> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `len` bytes, at least one, that begin on a page.
pub(super) fn map(len: usize) -> rustix::io::Result<*mut u8> {
    // A page that nobody has behind them: two mappings never touch.
    let layout = Layout::from_size_align(len + page_size(), page_size());
    let layout = layout.map_err(|_| rustix::io::Errno::NOMEM)?;
    // SAFETY: the layout has bytes.
    let start = unsafe { alloc(layout) };
    let left = len;
    let found = Mapped {
        start,
        layout,
        left,
    };
    mapped().insert(start.addr(), found);
    Ok(start)
}

/// `len` bytes of a mapping, which nobody has any more.
pub(super) fn unmap(start: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    let mut all = mapped();
    let (address, found) = all
        .range_mut(..=start.addr())
        .next_back()
        .expect("was mapped");
    assert!(len <= found.left, "unmapped twice");
    found.left -= len;
    if found.left == 0 {
        // SAFETY: allocated with this layout, and the last of it goes.
        unsafe { dealloc(found.start, found.layout) };
        let address = *address;
        all.remove(&address);
    }
}
