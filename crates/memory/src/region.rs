//! One destination allocation: one large tensor, or a run of small neighbours.
//!
//! Windows are carved off front to back, so no two can overlap; tensors read the bytes once every
//! window over them has been filled and its lease dropped. The last reference returns the memory to
//! the pool, which may reuse it. A region may also be a view of a file, of which nothing is filled,
//! only its pages are populated; or a view of memory that another process fills.

#![expect(
    unsafe_code,
    reason = "carves disjoint windows and reads what was filled through raw memory"
)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::file_view::FileView;
use super::lease::{Lease, Owner};
use super::mapping::Mapping;
use super::pool::PoolLink;
use super::published::PublishedPool;
use super::shared::{SharedMemory, ViewRef};
use crate::error::Result;
use crate::sync::{Arc, AtomicU32};

/// Memory that tensors own together.
#[derive(Debug)]
pub struct Region {
    memory: Memory,
    /// Tensors that the caller has not received yet. At 0 the region's bytes leave the budget.
    unreceived: AtomicU32,
    /// Bytes at the end that the budget no longer counts: their pages have been freed.
    discarded: AtomicUsize,
}

#[derive(Debug)]
enum Memory {
    /// Memory charged to the budget.
    Pooled {
        /// Only `None` while being dropped.
        mapping: Option<Mapping>,
        pool: PoolLink,
    },
    /// `len` bytes of a file at `offset`.
    View {
        view: Arc<FileView>,
        offset: usize,
        len: usize,
    },
    /// Memory that this process fills for others, charged to the budget.
    Published {
        /// Only `None` while being dropped.
        memory: Option<SharedMemory>,
        pool: PublishedPool,
        /// No process shows it.
        is_reusable: AtomicBool,
    },
    /// `len` bytes at `offset` of memory that another process fills, charged to the budget.
    Received {
        view: ViewRef,
        offset: usize,
        len: usize,
        pool: PoolLink,
    },
}

impl Region {
    fn start(&self) -> NonNull<u8> {
        match &self.memory {
            Memory::Pooled { mapping, .. } => mapping
                .as_ref()
                .expect("the mapping leaves only in drop")
                .start(),
            // SAFETY: `RegionWriter::over` asserted that the range lies inside the view.
            Memory::View { view, offset, .. } => unsafe { view.start().add(*offset) },
            Memory::Published { memory, .. } => memory
                .as_ref()
                .expect("the memory leaves only in drop")
                .start(),
            // SAFETY: `RegionWriter::received` asserted that the range lies inside the view.
            Memory::Received { view, offset, .. } => unsafe { view.start().add(*offset) },
        }
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        match &self.memory {
            Memory::Pooled { mapping, .. } => mapping.as_ref().map_or(0, Mapping::len),
            Memory::View { len, .. } | Memory::Received { len, .. } => *len,
            Memory::Published { memory, .. } => memory.as_ref().map_or(0, SharedMemory::len),
        }
    }

    /// Returns whether the region shows memory that the load does not fill.
    #[inline]
    pub(super) fn is_view(&self) -> bool {
        matches!(self.memory, Memory::View { .. } | Memory::Received { .. })
    }

    /// Returns the view that the region shows and the offset of the region in it, if the region is
    /// a view.
    pub(super) fn view(&self) -> Option<(&Arc<FileView>, usize)> {
        match &self.memory {
            Memory::View { view, offset, .. } => Some((view, *offset)),
            Memory::Pooled { .. } | Memory::Published { .. } | Memory::Received { .. } => None,
        }
    }

    /// Returns the memory for other processes, if the region is that.
    #[inline]
    pub fn published(&self) -> Option<&SharedMemory> {
        match &self.memory {
            Memory::Published { memory, .. } => memory.as_ref(),
            Memory::Pooled { .. } | Memory::View { .. } | Memory::Received { .. } => None,
        }
    }

    /// Removes memory for other processes from the budget: only those that show it need it.
    pub fn lend(&self) {
        if self.unreceived.swap(0, Ordering::AcqRel) > 0
            && let Memory::Published { pool, .. } = &self.memory
        {
            pool.uncharge(self.len());
        }
    }

    /// Allows the reuse of memory that no other process shows any more, once it is dropped.
    pub fn allow_reuse(&self) {
        if let Memory::Published { is_reusable, .. } = &self.memory {
            is_reusable.store(true, Ordering::Release);
        }
    }

    /// Makes `len` bytes at `offset`, whole pages, private to this process, to be filled by it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::error::ErrorKind::OutOfMemory) when the kernel refuses.
    ///
    /// # Safety
    ///
    /// As for [`super::SharedView::make_private`].
    pub(super) unsafe fn make_private(&self, offset: usize, len: usize) -> Result<()> {
        let Memory::Received {
            view,
            offset: start,
            ..
        } = &self.memory
        else {
            unreachable!("other regions are private, or views of files");
        };
        let start = start + offset;
        // SAFETY: the caller's promise.
        unsafe { view.make_private(start..start + len) }
    }

    /// Returns whether the owner of its tensors may write to them.
    #[inline]
    pub fn is_writable(&self) -> bool {
        match &self.memory {
            Memory::Pooled { .. } | Memory::Published { .. } => true,
            Memory::View { view, .. } => view.is_writable(),
            Memory::Received { view, .. } => view.is_writable(),
        }
    }

    /// Bytes that are charged until the tensors have been received.
    fn charged_len(&self) -> usize {
        self.len() - self.discarded.load(Ordering::Acquire)
    }

    /// Frees the whole pages behind the first `len` bytes, and removes them from the budget.
    ///
    /// # Safety
    ///
    /// As for [`RegionBytes::rewrite`].
    unsafe fn discard_behind(&self, len: usize) {
        if let Memory::Pooled { mapping, pool } = &self.memory
            && let Some(mapping) = mapping
        {
            // SAFETY: the caller's promise.
            let freed = unsafe { mapping.discard_from(Mapping::charge(len)) };
            self.discarded.store(freed, Ordering::Release);
            if freed > 0 {
                pool.uncharge(freed);
            }
        }
    }

    /// Records that the caller has received one of the region's tensors.
    #[inline]
    pub fn tensor_received(&self) {
        if self.unreceived.fetch_sub(1, Ordering::AcqRel) == 1 {
            match &self.memory {
                Memory::Pooled { pool, .. } => pool.uncharge(self.charged_len()),
                Memory::Received { view, pool, .. } => {
                    pool.uncharge(self.len());
                    view.user_done();
                }
                Memory::View { .. } | Memory::Published { .. } => {}
            }
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // No other reference to the region is left.
        let charged = self.unreceived.load(Ordering::Relaxed) > 0;
        let len = self.len();
        let charged_len = if charged { self.charged_len() } else { 0 };
        match &mut self.memory {
            Memory::Pooled { mapping, pool } => {
                if let Some(mapping) = mapping.take() {
                    pool.give_back(mapping, charged_len);
                }
            }
            // A forked child only unmaps its own copy.
            Memory::Published {
                memory,
                pool,
                is_reusable,
            } if pool.is_here() => {
                if charged {
                    pool.uncharge(len);
                }
                if let Some(memory) = memory.take()
                    && is_reusable.load(Ordering::Acquire)
                {
                    pool.give_back(memory);
                }
            }
            Memory::Received { view, pool, .. } if charged && pool.is_here() => {
                pool.uncharge(len);
                view.user_done();
            }
            Memory::View { .. } | Memory::Published { .. } | Memory::Received { .. } => {}
        }
    }
}

/// Carves a region into leases, front to back.
#[derive(Debug)]
pub struct RegionWriter {
    region: Arc<Region>,
    next: usize,
}

impl RegionWriter {
    /// Creates a region over `mapping` for `tensors` tensors (at least one); the mapping returns to
    /// `pool`.
    pub(super) fn new(mapping: Mapping, tensors: u32, pool: PoolLink) -> Self {
        assert!(tensors > 0, "a region belongs to at least one tensor");
        let mapping = Some(mapping);
        Self::from_memory(Memory::Pooled { mapping, pool }, tensors)
    }

    /// Creates a region over `len` bytes of a file at `offset`, for `tensors` tensors (at least
    /// one).
    pub fn over(view: &Arc<FileView>, offset: usize, len: usize, tensors: u32) -> Self {
        assert!(tensors > 0, "a region belongs to at least one tensor");
        assert!(
            offset <= view.len() && len <= view.len() - offset,
            "a region leaves its file"
        );
        let view = Arc::clone(view);
        Self::from_memory(Memory::View { view, offset, len }, tensors)
    }

    /// Creates a region over memory for other processes, for `tensors` tensors (at least one),
    /// whose charge returns to `pool`.
    pub(super) fn published(memory: SharedMemory, tensors: u32, pool: PublishedPool) -> Self {
        assert!(tensors > 0, "a region belongs to at least one tensor");
        let memory = Memory::Published {
            memory: Some(memory),
            pool,
            is_reusable: AtomicBool::new(false),
        };
        Self::from_memory(memory, tensors)
    }

    /// Creates a region over `len` bytes at `offset` of memory that another process fills, for
    /// `tensors` tensors (at least one), whose charge returns to `pool`. Once they have been
    /// received, or the region is dropped, one use of `view` ends.
    pub(super) fn received(
        view: &ViewRef,
        offset: usize,
        len: usize,
        tensors: u32,
        pool: PoolLink,
    ) -> Self {
        assert!(tensors > 0, "a region belongs to at least one tensor");
        assert!(
            offset <= view.len() && len <= view.len() - offset,
            "a region leaves its view"
        );
        let view = ViewRef::clone(view);
        let memory = Memory::Received {
            view,
            offset,
            len,
            pool,
        };
        Self::from_memory(memory, tensors)
    }

    fn from_memory(memory: Memory, tensors: u32) -> Self {
        let region = Region {
            memory,
            unreceived: AtomicU32::new(tensors),
            discarded: AtomicUsize::new(0),
        };
        Self {
            region: Arc::new(region),
            next: 0,
        }
    }

    /// Carves off a lease of the next `len` bytes, for one read.
    #[inline]
    pub fn carve(&mut self, len: usize) -> Lease {
        let offset = self.next;
        assert!(
            len <= self.region.len() - offset,
            "a window leaves its region"
        );
        self.next += len;
        let owner = Owner::Region {
            region: Arc::clone(&self.region),
            offset,
        };
        // SAFETY: `offset + len <= len()`, asserted above, so the address stays inside the mapping.
        let start = unsafe { self.region.start().add(offset) };
        // SAFETY: `next` only grows, so no other lease gets these bytes; a `RegionBytes` over them
        // is made only when they are filled and this lease is gone; `owner` keeps the mapping.
        unsafe { Lease::new(start, len, owner) }
    }
}

/// Filled bytes of a region, never written again by the load.
#[derive(Clone, Debug)]
pub struct RegionBytes {
    region: Arc<Region>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the load only reads the bytes from here on, and the region's counters are atomic.
unsafe impl Send for RegionBytes {}
// SAFETY: as above.
unsafe impl Sync for RegionBytes {}

impl RegionBytes {
    /// Creates a handle to the `len` bytes at `offset` of `region`.
    ///
    /// # Safety
    ///
    /// All of them must have been filled, and the leases over them dropped.
    #[inline]
    pub unsafe fn new(region: Arc<Region>, offset: usize, len: usize) -> Self {
        assert!(offset + len <= region.len(), "a tensor leaves its region");
        // SAFETY: inside the mapping, asserted above.
        let start = unsafe { region.start().add(offset) };
        Self { region, start, len }
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `new`'s caller promised that they are initialised and that no lease can write to
        // them; `self.region` keeps them mapped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Pointer to the first byte. The owner of the tensor may read and write there, unless the
    /// bytes are in a view that is not writable: nothing else reaches these bytes.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Region that the bytes lie in.
    #[inline]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Moves the bytes down to the next lower multiple of `alignment` if they are misaligned.
    ///
    /// Returns the number of bytes copied.
    ///
    /// # Panics
    ///
    /// For a view, which a load never writes to.
    ///
    /// # Safety
    ///
    /// No other tensor may live in the region, no lease may be out, and no other reference to these
    /// bytes may exist.
    pub unsafe fn align_down(&mut self, alignment: usize) -> usize {
        let excess = self.start.as_ptr().addr() % alignment;
        if excess == 0 {
            return 0;
        }
        assert!(!self.region.is_view(), "a load never writes to a view");
        // SAFETY: mappings start on a page, so rounding down by less than a page stays inside this
        // one.
        let target = unsafe { self.start.sub(excess) };
        // SAFETY: source and target lie inside the mapping, to which the caller promised exclusive
        // access; `copy_to` allows the overlap.
        unsafe { self.start.copy_to(target, self.len) };
        self.start = target;
        self.len
    }

    /// Replaces the bytes: `rewrite` gets the memory of the region and the place of the bytes in
    /// it, and returns the place of the new bytes there. Frees the pages behind them.
    ///
    /// # Panics
    ///
    /// If the region is not memory of this load alone, or the new place lies outside of it.
    ///
    /// # Safety
    ///
    /// As for [`Self::align_down`].
    pub unsafe fn rewrite(
        &mut self,
        rewrite: impl FnOnce(&mut [u8], Range<usize>) -> Range<usize>,
    ) {
        assert!(
            matches!(self.region.memory, Memory::Pooled { .. }),
            "only memory of the load is rewritten"
        );
        let (start, len) = (self.region.start(), self.region.len());
        // SAFETY: the system has initialised the bytes of mappings, and the caller promised
        // exclusive access to all of this one.
        let memory = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) };
        let offset = self.start.as_ptr().addr() - start.as_ptr().addr();
        let place = rewrite(memory, offset..offset + self.len);
        assert!(
            place.start <= place.end && place.end <= len,
            "a tensor leaves its region"
        );
        // SAFETY: inside the mapping, asserted above.
        self.start = unsafe { start.add(place.start) };
        self.len = place.len();
        // SAFETY: the caller's promise; what is kept ends before.
        unsafe { self.region.discard_behind(place.end) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;

    #[test]
    fn rewritten_region_is_charged_for_what_is_left() {
        let pool = Pool::new(1 << 20, Arc::default());
        let mut writer = pool.try_region(40_000, 1).expect("maps").expect("fits");
        let len = 10 * 4096;
        let filled = writer.carve(len).fill_from(&vec![7; len]);
        let region = Arc::clone(filled.region().expect("a region lease").0);
        drop((writer, filled));
        // SAFETY: all of it has been filled, and the lease is gone.
        let mut bytes = unsafe { RegionBytes::new(Arc::clone(&region), 100, 39_000) };
        let shorten = |memory: &mut [u8], place: Range<usize>| {
            assert_eq!((memory.len(), place.clone()), (len, 100..39_100));
            memory[64..9000].fill(8);
            64..9000
        };
        // SAFETY: nothing else uses the region.
        unsafe { bytes.rewrite(shorten) };
        assert!(bytes.as_slice() == [8; 8936]);
        let kept = if cfg!(all(target_os = "linux", not(miri))) {
            3 * 4096
        } else {
            len
        };
        assert_eq!(pool.usage().charged, kept as u64);
        assert_eq!(pool.usage().peak, len as u64);
        region.tensor_received();
        assert_eq!(pool.usage().charged, 0);
        drop((bytes, region));
        assert_eq!(
            pool.usage().charged,
            len as u64,
            "all of it is kept for the next region"
        );

        let mut writer = pool.try_region(len, 1).expect("maps").expect("fits");
        let filled = writer.carve(len).fill_from(&vec![7; len]);
        let region = Arc::clone(filled.region().expect("a region lease").0);
        drop((writer, filled));
        // SAFETY: as above.
        let mut bytes = unsafe { RegionBytes::new(region, 0, len) };
        // SAFETY: nothing else uses the region.
        unsafe { bytes.rewrite(|_, _| 0..1) };
        drop(bytes);
        assert_eq!(
            pool.usage().charged,
            len as u64,
            "free again, and charged once"
        );
    }
}
