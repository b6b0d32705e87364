//! Memory that several processes map: filled by one of them, read by all.
//!
//! A memfd: it has no name that could be left behind, no limit of `/dev/shm`, and lives as long as
//! any process maps it. The process that fills it maps it for writing; it is then sealed, so that
//! every other mapping of it can only be read.

#![expect(unsafe_code, reason = "maps memory of other processes")]

use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

use super::mapping::{HUGE_PAGE_BYTES, Mapping};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::address_space::require;
use crate::sync::per_process::forks;

/// Memories of this process that have not been dropped.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Memory of a memfd, mapped for writing by the process that fills it.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
    memory: OwnedFd,
}

// SAFETY: a mapping is plain memory with one owner; unmapping works from any thread.
unsafe impl Send for SharedMemory {}
// SAFETY: `&SharedMemory` only gives out the address, the length and the descriptor.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Creates memory for at least `len` bytes: whole pages, allocated when they are first touched.
    /// No mapping that is made of it later can be written to.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the kernel has no room, [`ErrorKind::Unsupported`] when it
    /// refuses such memory.
    pub fn new(len: usize) -> Result<Self> {
        let len = Mapping::charge(len);
        require(len).map_err(|error| cannot_map(len, error))?;
        let memory = create(len, !overcommits()).map_err(|error| {
            let kind = match error.raw_os_error() {
                Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL) => {
                    ErrorKind::Unsupported
                }
                _ => ErrorKind::OutOfMemory,
            };
            Error::new(kind, format!("cannot create {len} bytes of shared memory"))
                .with_hint(
                    "use ‹share=none›, or allow memfd_create and more open files (ulimit -n)",
                )
                .with_source(error)
        })?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint and a fresh mapping: no existing memory is touched.
        let mapped = unsafe {
            mmap(
                ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                &memory,
                0,
            )
        };
        let start = mapped.map_err(|errno| cannot_map(len, errno))?;
        let start = NonNull::new(start.cast()).expect("mmap never returns null");
        let shared = Self { start, len, memory };
        shared.ask_for_huge_pages();
        OPEN.fetch_add(1, Ordering::Relaxed);
        seal(&shared.memory).map_err(|error| {
            Error::new(ErrorKind::Unsupported, "cannot seal shared memory")
                .with_hint("use ‹share=none›")
                .with_source(error)
        })?;
        Ok(shared)
    }

    /// Returns whether the process should create no more before one is dropped: each has a
    /// descriptor, also on its way to another process.
    pub(super) fn takes_many_descriptors() -> bool {
        OPEN.load(Ordering::Relaxed) >= Self::open_max()
    }

    /// Returns the number of memories that the process should have at once.
    pub fn open_max() -> usize {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        limit.unwrap_or(usize::MAX) / 4
    }

    /// Returns whether the system gives such memory huge pages. With small ones, a device takes few
    /// bytes in one request.
    pub fn has_huge_pages() -> bool {
        let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        let allows = |setting: String| {
            !["[never]", "[deny]"]
                .iter()
                .any(|off| setting.contains(off))
        };
        setting.is_ok_and(allows)
    }

    /// Has no effect where the system allows none.
    #[cfg(target_os = "linux")]
    fn ask_for_huge_pages(&self) {
        use rustix::mm::{Advice, madvise};
        let start = self.start.as_ptr().cast();
        // SAFETY: the memory's own mapping; the advice changes no byte.
        let _ = unsafe { madvise(start, self.len, Advice::LinuxHugepage) };
    }

    #[cfg(not(target_os = "linux"))]
    fn ask_for_huge_pages(&self) {}

    /// Pointer to the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes, whole pages.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: mapped in `new`, and no other owner is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Creates memory; with `allocates`, all of its pages.
#[cfg(target_os = "linux")]
fn create(len: usize, allocates: bool) -> io::Result<OwnedFd> {
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
    use rustix::io::retry_on_intr;
    const ALLOCATED_BYTES: usize = 4 << 20;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("tload", flags)?;
    ftruncate(&memory, len as u64)?;
    if allocates {
        // In steps: a signal undoes all of a call, and profilers send one every few milliseconds.
        for offset in (0..len).step_by(ALLOCATED_BYTES) {
            let step = ALLOCATED_BYTES.min(len - offset) as u64;
            let none = FallocateFlags::empty();
            retry_on_intr(|| fallocate(&memory, none, offset as u64, step))?;
        }
    }
    Ok(memory)
}

#[cfg(not(target_os = "linux"))]
fn create(_len: usize, _allocates: bool) -> io::Result<OwnedFd> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Returns whether the system lets processes reserve more memory than it has. Where it does not, it
/// counts a page of a memfd when it is touched first, and kills the process if there is none left.
fn overcommits() -> bool {
    static OVERCOMMITS: OnceLock<bool> = OnceLock::new();
    *OVERCOMMITS.get_or_init(|| {
        let setting = fs::read_to_string("/proc/sys/vm/overcommit_memory");
        setting.map_or(true, |setting| setting.trim() != "2")
    })
}

/// Fixes the length and rejects further mappings for writing.
#[cfg(target_os = "linux")]
fn seal(memory: &OwnedFd) -> io::Result<()> {
    use rustix::fs::{SealFlags, fcntl_add_seals};
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    Ok(fcntl_add_seals(memory, seals)?)
}

#[cfg(not(target_os = "linux"))]
fn seal(_memory: &OwnedFd) -> io::Result<()> {
    Ok(())
}

fn cannot_map(len: usize, error: impl Into<io::Error>) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        format!("cannot map {len} bytes of shared memory"),
    )
    .with_hint(
        "raise the process's address-space limit (ulimit -v) or its number of mappings (sysctl vm.max_map_count)",
    )
    .with_source(error.into())
}

/// Reference to a view: to memory of another process, which no model of this one has.
pub(super) type ViewRef = Arc<SharedView>;

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

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Writes `bytes` at the start of the memory.
    fn write(memory: &SharedMemory, bytes: &[u8]) {
        assert!(bytes.len() <= memory.len());
        // SAFETY: inside the mapping, which this test owns.
        unsafe { ptr::copy(bytes.as_ptr(), memory.start().as_ptr(), bytes.len()) };
    }

    #[test]
    fn view_shows_bytes_written_before_and_after() {
        let memory = SharedMemory::new(10_000).expect("room");
        assert_eq!(memory.len(), 12_288);
        write(&memory, b"before");
        let view = SharedView::reserve(10_000, 1, Box::new(|_| ())).expect("addresses");
        view.show(&memory).expect("maps");
        // SAFETY: written above, by this thread.
        assert_eq!(unsafe { view.bytes(0..6) }, b"before");
        write(&memory, b"after ");
        // SAFETY: as above.
        assert_eq!(unsafe { view.bytes(0..6) }, b"after ");
    }

    #[test]
    fn memory_is_allocated_at_once_where_it_could_run_out() {
        for (allocates, bytes) in [(false, 0), (true, 1 << 20)] {
            let memory = create(1 << 20, allocates).expect("room");
            let found = rustix::fs::fstat(&memory).expect("open");
            assert_eq!(found.st_blocks * 512, bytes);
        }
    }

    #[test]
    fn long_views_begin_where_huge_pages_may() {
        // Reservations are made from top to bottom: each one of these moves the next.
        for len in [HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1, 3 << 20, 5 << 20] {
            let page = SharedView::reserve(1, 1, Box::new(|_| ())).expect("addresses");
            let view = SharedView::reserve(len, 1, Box::new(|_| ())).expect("addresses");
            assert!(view.start().addr().get().is_multiple_of(HUGE_PAGE_BYTES));
            let memory = SharedMemory::new(len).expect("room");
            view.show(&memory).expect("maps");
            drop(page);
        }
    }

    #[test]
    fn view_outlives_memory_of_its_writer() {
        let memory = SharedMemory::new(4096).expect("room");
        write(&memory, b"kept");
        let view = SharedView::reserve(4096, 1, Box::new(|_| ())).expect("addresses");
        view.show(&memory).expect("maps");
        drop(memory);
        // SAFETY: written above, by this thread.
        assert_eq!(unsafe { view.bytes(0..4) }, b"kept");
    }

    #[test]
    fn sealed_memory_cannot_be_mapped_for_writing() {
        let memory = SharedMemory::new(4096).expect("room");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint and a fresh mapping.
        let mapped = unsafe {
            mmap(
                ptr::null_mut(),
                4096,
                protection,
                MapFlags::SHARED,
                &memory,
                0,
            )
        };
        assert_eq!(mapped.expect_err("sealed"), rustix::io::Errno::PERM);
        let shorter = rustix::fs::ftruncate(&memory, 0);
        assert_eq!(shorter.expect_err("sealed"), rustix::io::Errno::PERM);
    }

    #[test]
    fn view_rejects_shorter_memory() {
        let memory = SharedMemory::new(4096).expect("room");
        let view = SharedView::reserve(8192, 1, Box::new(|_| ())).expect("addresses");
        let error = view.show(&memory).expect_err("too short");
        assert_eq!(
            error.message(),
            "the shared memory has 4096 bytes, and its region 8192"
        );
    }

    #[test]
    fn writable_view_is_a_copy_of_the_pages_written() {
        let memory = SharedMemory::new(8192).expect("room");
        write(&memory, b"shared");
        let reserve = || SharedView::reserve(8192, 1, Box::new(|_| ())).expect("addresses");
        let (own, other) = (reserve().writable(true), reserve());
        own.show(&memory).expect("maps");
        other.show(&memory).expect("maps");
        // SAFETY: mapped for writing, and no reference to these bytes exists.
        unsafe { own.start().as_ptr().write(b'S') };
        // SAFETY: written above, by this thread.
        assert_eq!(unsafe { own.bytes(0..6) }, b"Shared");
        // SAFETY: as above.
        assert_eq!(unsafe { other.bytes(0..6) }, b"shared");
    }

    #[test]
    fn private_pages_leave_other_pages_shared() {
        let memory = SharedMemory::new(8192).expect("room");
        write(&memory, b"shared");
        let view = SharedView::reserve(8192, 1, Box::new(|_| ())).expect("addresses");
        view.show(&memory).expect("maps");
        // SAFETY: no reference to the second page exists.
        unsafe { view.make_private(4096..8192) }.expect("maps");
        // SAFETY: inside the view.
        let second = unsafe { view.start().add(4096) };
        // SAFETY: private to this test now.
        unsafe { second.write(7) };
        // SAFETY: written above, by this thread.
        assert_eq!(unsafe { view.bytes(0..6) }, b"shared");
        // SAFETY: as above.
        assert_eq!(unsafe { view.bytes(4096..4097) }, [7]);
    }

    #[test]
    fn last_user_releases_view() {
        let released = Arc::<AtomicU32>::default();
        let counted = Arc::clone(&released);
        let count = move |end| {
            assert_eq!(end, ViewEnd::Released, "it never showed anything");
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let view = SharedView::reserve(1, 2, Box::new(count)).expect("addresses");
        view.user_done();
        assert_eq!(released.load(Ordering::SeqCst), 0);
        view.user_done();
        assert_eq!(released.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn view_that_showed_memory_ends_when_it_is_unmapped() {
        let memory = SharedMemory::new(4096).expect("room");
        // Another test may fork meanwhile.
        let ends = loop {
            let before = forks();
            let ends = Arc::<std::sync::Mutex<Vec<_>>>::default();
            let seen = Arc::clone(&ends);
            let note = move |end| seen.lock().expect("not poisoned").push(end);
            let view = SharedView::reserve(4096, 1, Box::new(note)).expect("addresses");
            view.show(&memory).expect("maps");
            view.user_done();
            drop(view);
            if forks() == before {
                break ends.lock().expect("not poisoned").clone();
            }
        };
        assert_eq!(ends, [ViewEnd::Released, ViewEnd::Unmapped]);
    }

    #[test]
    fn view_of_forked_process_is_never_unmapped() {
        let memory = SharedMemory::new(4096).expect("room");
        let note = |end| panic!("ended: {end:?}");
        let view = SharedView::reserve(4096, 1, Box::new(note)).expect("addresses");
        view.show(&memory).expect("maps");
        // SAFETY: the child exits at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child without running what the parent has registered.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, ptr::null_mut(), 0) }, child);
        drop(view);
    }
}
