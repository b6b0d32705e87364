//! Host memory that the GPU reads directly, without the driver's own staging copy.

#![expect(unsafe_code, reason = "registers memory with the driver")]

use std::ffi::c_void;

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_READ_ONLY, CUresult, cuMemHostRegister_v2,
    cuMemHostUnregister,
};

use super::context::Context;
use crate::error::Result;

/// Registration of host memory, until [`Self::end`].
pub struct Pinned {
    start: *mut c_void,
    context: Context,
}

// SAFETY: the address is only passed back to the driver, which any thread may do.
unsafe impl Send for Pinned {}
// SAFETY: `&Pinned` gives access to nothing.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Registers `len` bytes of host memory, for all contexts of the process.
    ///
    /// # Safety
    ///
    /// The memory must stay mapped until [`Self::end`] has returned `true`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device); copies from this memory still work,
    /// more slowly.
    pub unsafe fn register(context: &Context, start: *mut u8, len: usize) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::register_with(context, start, len, CU_MEMHOSTREGISTER_PORTABLE) }
    }

    /// Registers `len` bytes of host memory that can only be read, for all contexts of the process:
    /// GPUs read them only. Requires [`Context::registers_read_only`].
    ///
    /// # Safety
    ///
    /// As for [`Self::register`].
    ///
    /// # Errors
    ///
    /// As [`Self::register`].
    pub unsafe fn register_read_only(
        context: &Context,
        start: *mut u8,
        len: usize,
    ) -> Result<Self> {
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_READ_ONLY;
        // SAFETY: the caller's promise.
        unsafe { Self::register_with(context, start, len, flags) }
    }

    /// Registers memory with flags of the driver.
    ///
    /// # Safety
    ///
    /// As for [`Self::register`].
    unsafe fn register_with(
        context: &Context,
        start: *mut u8,
        len: usize,
        flags: u32,
    ) -> Result<Self> {
        let _bound = context.bind()?;
        let start: *mut c_void = start.cast();
        // SAFETY: the caller's promise.
        unsafe { cuMemHostRegister_v2(start, len, flags) }
            .result()
            .map_err(|error| context.failure("cannot pin memory", error))?;
        Ok(Self {
            start,
            context: context.clone(),
        })
    }
}

impl Pinned {
    /// Ends the registration and returns whether the memory may be unmapped now. If not, the driver
    /// would go on reading the old pages, whatever is mapped there next.
    #[must_use]
    pub fn end(self) -> bool {
        let bound = self.context.bind();
        // SAFETY: registered in `register`, ended once.
        let ended = unsafe { cuMemHostUnregister(self.start) }.result();
        drop(bound);
        match ended {
            Ok(()) => true,
            Err(error) if error.0 == CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => true,
            Err(error) => {
                let error = self.context.failure("cannot unpin memory", error);
                self.context.is_lost(&error)
            }
        }
    }
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned(cuda:{})", self.context.ordinal())
    }
}
