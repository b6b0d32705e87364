//! Memory of a memfd, mapped for writing by the process that fills it.
//!
//! A memfd has no name that could be left behind, no limit of `/dev/shm`, and lives as long as any
//! process maps it. It is sealed once it is mapped, so that every other mapping of it can only be
//! read.

#![expect(unsafe_code, reason = "maps memory that other processes map too")]

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::cannot_map;
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::Mapping;
use crate::sync::address_space::require;

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
    pub(crate) fn takes_many_descriptors() -> bool {
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
pub(super) fn create(len: usize, allocates: bool) -> io::Result<OwnedFd> {
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
pub(super) fn create(_len: usize, _allocates: bool) -> io::Result<OwnedFd> {
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
