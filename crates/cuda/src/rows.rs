//! Copies of rows at even distances, such as the columns of a matrix, by one call of the driver.

#![expect(unsafe_code, reason = "gives work to streams of the driver")]

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemorytype, cuMemcpy2DAsync_v2};

use super::stream::Stream;
use crate::error::Result;

/// Largest distance of rows that the driver takes, bytes: `CU_DEVICE_ATTRIBUTE_MAX_PITCH` of all
/// devices.
const PITCH_MAX: usize = 0x7FFF_FFFF;

/// Rows of equal length, at even distances on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowCopy {
    /// Bytes of a row.
    pub width: usize,
    /// Number of rows, at least 1.
    pub count: usize,
    /// Bytes from one row to the next, in the source; at least the width.
    pub source_pitch: usize,
    /// Bytes from one row to the next, on the device; at least the width.
    pub pitch: usize,
}

impl RowCopy {
    /// Returns the bytes from the first to the last one, in the source.
    pub fn source_span(&self) -> usize {
        (self.count - 1) * self.source_pitch + self.width
    }
}

impl Stream {
    /// Queues a copy of rows of `bytes` to device memory at `to`, behind all earlier work of the
    /// stream. Returns the number of calls that it took.
    ///
    /// # Safety
    ///
    /// As for [`Stream::copy_in`], of all bytes; `to` must have room for all rows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device); some rows may be queued.
    ///
    /// # Panics
    ///
    /// For rows that are not all in `bytes`.
    pub unsafe fn copy_rows_in(&self, to: u64, bytes: &[u8], rows: &RowCopy) -> Result<u64> {
        assert!(rows.source_span() <= bytes.len(), "rows are of the bytes");
        if rows.pitch.max(rows.source_pitch) > PITCH_MAX {
            for row in 0..rows.count {
                let bytes = &bytes[row * rows.source_pitch..][..rows.width];
                // SAFETY: the caller's promise, for one of the rows.
                unsafe { self.copy_in(to + (row * rows.pitch) as u64, bytes) }?;
            }
            return Ok(rows.count as u64);
        }
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: bytes.as_ptr().cast(),
            srcDevice: 0,
            srcArray: std::ptr::null_mut(),
            srcPitch: rows.source_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: to,
            dstArray: std::ptr::null_mut(),
            dstPitch: rows.pitch,
            WidthInBytes: rows.width,
            Height: rows.count,
        };
        // SAFETY: the caller's promise; the driver reads the description during the call.
        let queued = unsafe { cuMemcpy2DAsync_v2(&raw const copy, self.raw()) };
        queued.result().map(|()| 1).map_err(|error| {
            let RowCopy { width, count, .. } = rows;
            self.failure(
                &format!("cannot copy {count} rows of {width} bytes to the GPU"),
                error,
            )
        })
    }
}
