//! Copies to a device that one call of the driver queues.
//!
//! On an H100, a copy of 176 bytes took 0.5 µs in a batch of 64 and 2.4 alone, and copies of 1 MiB
//! reached 53.2 GB/s in batches of 8 and 47.2 alone (2026-11-28, `benches/results/`).

#![expect(
    unsafe_code,
    reason = "calls a function of the driver that the bindings lack in older versions"
)]

use std::ffi::c_int;

use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};

use super::context::Context;
use super::stream::Stream;
use crate::error::Result;

/// `CU_MEMCPY_SRC_ACCESS_ORDER_ANY`: the sources may be read at any time from the call until the
/// batch has run, whatever the stream does before it.
const ANY_ORDER: u32 = 3;

/// `CUmemLocation`; invalid, which is no hint.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Location {
    kind: u32,
    id: c_int,
}

/// `CUmemcpyAttributes`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Attributes {
    source_order: u32,
    source_hint: Location,
    destination_hint: Location,
    flags: u32,
}

/// The driver's function, by its version.
#[derive(Clone, Copy, Debug)]
pub(super) enum BatchCopy {
    /// `cuMemcpyBatchAsync` of CUDA 12.8.
    WithIndex(
        unsafe extern "C" fn(
            *mut CUdeviceptr,
            *mut CUdeviceptr,
            *mut usize,
            usize,
            *mut Attributes,
            *mut usize,
            usize,
            *mut usize,
            CUstream,
        ) -> CUresult,
    ),
    /// `cuMemcpyBatchAsync_v2` of CUDA 13.0.
    WithoutIndex(
        unsafe extern "C" fn(
            *mut CUdeviceptr,
            *mut CUdeviceptr,
            *mut usize,
            usize,
            *mut Attributes,
            *mut usize,
            usize,
            CUstream,
        ) -> CUresult,
    ),
}

/// Caller of the driver's function, with its lists.
#[derive(Debug)]
pub struct Batch {
    function: BatchCopy,
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    lengths: Vec<usize>,
}

impl Batch {
    /// Returns `None` for a driver older than CUDA 12.8.
    #[must_use]
    pub fn new(context: &Context) -> Option<Self> {
        Some(Self {
            function: context.driver().batch_copy()?,
            to: Vec::new(),
            from: Vec::new(),
            lengths: Vec::new(),
        })
    }

    /// Queues `copies`, each of some bytes to device memory, behind all earlier work of `stream`.
    /// They run in any order. Returns their number; 0 where the platform does not support batches.
    ///
    /// # Safety
    ///
    /// The stream's context must be current on this thread. From now on, and whatever this call
    /// returns, all bytes must stay unchanged until work queued behind it on `stream` has run, or
    /// the stream has been waited for. Each destination must have room for its bytes, which nothing
    /// else uses meanwhile: no two may overlap.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device); some of the copies may be queued.
    pub unsafe fn queue<'a>(
        &mut self,
        stream: &Stream,
        copies: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<u64> {
        self.to.clear();
        self.from.clear();
        self.lengths.clear();
        for (to, bytes) in copies {
            self.to.push(to);
            self.from.push(bytes.as_ptr().expose_provenance() as u64);
            self.lengths.push(bytes.len());
        }
        let count = self.lengths.len();
        let (to, from) = (self.to.as_mut_ptr(), self.from.as_mut_ptr());
        let lengths = self.lengths.as_mut_ptr();
        let mut attributes = Attributes {
            source_order: ANY_ORDER,
            ..Attributes::default()
        };
        let (attributes, mut first) = (&raw mut attributes, 0);
        let (first, raw) = (&raw mut first, stream.raw());
        let queued = match self.function {
            BatchCopy::WithIndex(function) => {
                let mut failed = 0;
                // SAFETY: the lists have `count` entries, one set of attributes applies from the
                // first copy on, and the rest is the caller's promise.
                unsafe {
                    function(
                        to,
                        from,
                        lengths,
                        count,
                        attributes,
                        first,
                        1,
                        &raw mut failed,
                        raw,
                    )
                }
            }
            BatchCopy::WithoutIndex(function) => {
                // SAFETY: as above.
                unsafe { function(to, from, lengths, count, attributes, first, 1, raw) }
            }
        };
        if queued == CUresult::CUDA_ERROR_NOT_SUPPORTED {
            return Ok(0);
        }
        queued.result().map_err(|error| {
            let bytes: usize = self.lengths.iter().sum();
            let what = format!("cannot copy {bytes} bytes to the GPU in {count} parts");
            stream.failure(&what, error)
        })?;
        Ok(count as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// Offsets of `cuda.h`.
    #[test]
    fn attributes_have_layout_of_header() {
        let offsets = [
            offset_of!(Attributes, source_order),
            offset_of!(Attributes, source_hint),
            offset_of!(Attributes, destination_hint),
            offset_of!(Attributes, flags),
        ];
        assert_eq!((offsets, size_of::<Attributes>()), ([0, 4, 12, 20], 24));
    }
}
