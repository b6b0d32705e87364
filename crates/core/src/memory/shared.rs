//! Memory that several processes map: filled by one of them, read by all.
//!
//! A memfd: it has no name that could be left behind, no limit of `/dev/shm`, and lives as long as
//! any process maps it. The process that fills it maps it for writing; it is then sealed, so that
//! every other mapping of it can only be read.

#![expect(unsafe_code, reason = "maps memory of other processes")]

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::mapping::Mapping;
use crate::error::{Error, ErrorKind, Result};

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
        let memory = create(len).map_err(|error| {
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
        seal(&shared.memory).map_err(|error| {
            Error::new(ErrorKind::Unsupported, "cannot seal shared memory")
                .with_hint("use ‹share=none›")
                .with_source(error)
        })?;
        Ok(shared)
    }

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
        // SAFETY: mapped in `new`, and no other owner is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(target_os = "linux")]
fn create(len: usize) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("tload", flags)?;
    ftruncate(&memory, len as u64)?;
    Ok(memory)
}

#[cfg(not(target_os = "linux"))]
fn create(_len: usize) -> io::Result<OwnedFd> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
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

fn cannot_map(len: usize, errno: rustix::io::Errno) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        format!("cannot map {len} bytes of shared memory"),
    )
    .with_hint(
        "raise the process's address-space limit (ulimit -v) or its number of mappings (sysctl vm.max_map_count)",
    )
    .with_source(io::Error::from(errno))
}

/// Reference to a view: to memory of another process, which no model of this one has.
pub(super) type ViewRef = Arc<SharedView>;

/// Callback for a view that is no longer used.
type Released = Box<dyn Fn() + Send + Sync>;

/// Read-only view of memory that another process fills, at an address that is known before the
/// memory exists.
pub struct SharedView {
    start: NonNull<u8>,
    len: usize,
    /// Uses that have not ended.
    users: AtomicUsize,
    released: Released,
}

// SAFETY: a view is plain memory; unmapping works from any thread.
unsafe impl Send for SharedView {}
// SAFETY: `&SharedView` gives out the address and the length. What it maps replaces memory that no
// reference points to: see `show` and `make_private`.
unsafe impl Sync for SharedView {}

impl SharedView {
    /// Reserves addresses for `len` bytes, whole pages. `released` is called once `users` uses have
    /// ended.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the process has no addresses left.
    pub fn reserve(len: usize, users: usize, released: Released) -> Result<Self> {
        let len = Mapping::charge(len);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint and an anonymous mapping: no existing memory is touched.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags) };
        let start = mapped.map_err(|errno| cannot_map(len, errno))?;
        let start = NonNull::new(start.cast()).expect("mmap never returns null");
        Ok(Self {
            start,
            len,
            users: AtomicUsize::new(users),
            released,
        })
    }

    /// Shows `memory` at the reserved addresses, all of it. To be called once, before any byte is
    /// accessed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidFormat`] when the memory is shorter than the view,
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
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let start = self.start.as_ptr().cast();
        // SAFETY: replaces the view's own reservation, which nothing can have accessed.
        let mapped = unsafe { mmap(start, self.len, ProtFlags::READ, flags, memory, 0) };
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
        assert!(
            range.start <= range.end && range.end <= self.len,
            "pages outside of the view"
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
            (self.released)();
        }
    }
}

impl Drop for SharedView {
    fn drop(&mut self) {
        // SAFETY: mapped in `reserve`, and no other owner is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
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
        let view = SharedView::reserve(10_000, 1, Box::new(|| ())).expect("addresses");
        view.show(&memory).expect("maps");
        // SAFETY: written above, by this thread.
        assert_eq!(unsafe { view.bytes(0..6) }, b"before");
        write(&memory, b"after ");
        // SAFETY: as above.
        assert_eq!(unsafe { view.bytes(0..6) }, b"after ");
    }

    #[test]
    fn view_outlives_memory_of_its_writer() {
        let memory = SharedMemory::new(4096).expect("room");
        write(&memory, b"kept");
        let view = SharedView::reserve(4096, 1, Box::new(|| ())).expect("addresses");
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
        let view = SharedView::reserve(8192, 1, Box::new(|| ())).expect("addresses");
        let error = view.show(&memory).expect_err("too short");
        assert_eq!(
            error.message(),
            "the shared memory has 4096 bytes, and its region 8192"
        );
    }

    #[test]
    fn private_pages_leave_other_pages_shared() {
        let memory = SharedMemory::new(8192).expect("room");
        write(&memory, b"shared");
        let view = SharedView::reserve(8192, 1, Box::new(|| ())).expect("addresses");
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
        let count = move || {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let view = SharedView::reserve(1, 2, Box::new(count)).expect("addresses");
        view.user_done();
        assert_eq!(released.load(Ordering::SeqCst), 0);
        view.user_done();
        assert_eq!(released.load(Ordering::SeqCst), 1);
    }
}
