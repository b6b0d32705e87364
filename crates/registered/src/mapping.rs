//! One mapping of shared memory, registered with the driver: GPUs read it, and this process
//! cannot write to it.

#![expect(
    unsafe_code,
    reason = "maps memory of another process, and registers the mapping with the driver"
)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{Error, ErrorKind, Result};
use crate::sync::address_space::require;
use crate::sync::per_process::process_id;
use tload_cuda::{Context, Pinned};

/// Memory of another process: mapped, and registered for reads of GPUs.
#[derive(Debug)]
pub(crate) struct RegisteredMapping {
    start: NonNull<u8>,
    len: usize,
    /// `None` before the registration.
    pin: Option<Pinned>,
    process: u32,
}

// SAFETY: a mapping is plain memory that is only read; unmapping works from any thread.
unsafe impl Send for RegisteredMapping {}
// SAFETY: `&RegisteredMapping` only gives out the address and the length.
unsafe impl Sync for RegisteredMapping {}

impl RegisteredMapping {
    /// Maps all of `memory` and registers it, for all GPUs that `context`'s process uses.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when it cannot be mapped, [`ErrorKind::Device`] when the driver
    /// refuses it.
    pub(crate) fn new(context: &Context, memory: impl AsFd) -> Result<Self> {
        let len = length(&memory).and_then(|len| {
            require(len)?;
            Ok(len)
        });
        let len = len.map_err(cannot_map)?;
        // SAFETY: a null hint and a fresh mapping: no existing memory is touched.
        let mapped = unsafe {
            mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                memory,
                0,
            )
        };
        let start = mapped.map_err(|errno| cannot_map(errno.into()))?;
        let start = NonNull::new(start.cast()).expect("mmap never returns null");
        let mut mapping = Self {
            start,
            len,
            pin: None,
            process: process_id(),
        };
        mapping.keep_from_forks();
        // SAFETY: the range is the mapping's own, which is unmapped after the registration has
        // ended.
        let pin = unsafe { Pinned::register_read_only(context, start.as_ptr(), len) }?;
        mapping.pin = Some(pin);
        Ok(mapping)
    }

    /// Keeps the memory out of forked processes, which have no use for it. Only advice.
    #[cfg(target_os = "linux")]
    fn keep_from_forks(&self) {
        use rustix::mm::{Advice, madvise};
        let start = self.start.as_ptr().cast();
        // SAFETY: the range is the mapping's own; the advice changes no byte.
        let _ = unsafe { madvise(start, self.len, Advice::LinuxDontFork) };
    }

    #[cfg(not(target_os = "linux"))]
    fn keep_from_forks(&self) {}

    /// Pointer to the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Returns the length of shared memory.
fn length(memory: impl AsFd) -> io::Result<usize> {
    let found = fstat(memory)?;
    let len = usize::try_from(found.st_size).ok().filter(|len| *len > 0);
    len.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn cannot_map(error: io::Error) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        "cannot map shared memory for the GPU",
    )
    .with_source(error)
}

impl Drop for RegisteredMapping {
    fn drop(&mut self) {
        if self.process != process_id() {
            // In a forked process, the memory and the driver belong to the parent.
            let _not_ours = ManuallyDrop::new(self.pin.take());
            return;
        }
        if self.pin.take().is_none_or(Pinned::end) {
            // SAFETY: mapped in `new`, and no other owner is left.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        } else {
            let bytes = self.len;
            tracing::warn!(
                bytes,
                "shared memory could not be unregistered, so it stays mapped"
            );
        }
    }
}
