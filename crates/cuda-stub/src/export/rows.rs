//! The function that copies rows at even distances, from host memory to a device.

use std::ffi::c_uint;

use super::In;
use crate::copy::{self, Rows, Side};
use crate::status::{INVALID_VALUE, Outcome};

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Described {
    from: Place,
    to: Place,
    width: usize,
    height: usize,
}

/// One side of it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Place {
    x: usize,
    y: usize,
    kind: c_uint,
    host: usize,
    device: usize,
    array: usize,
    pitch: usize,
}

/// `CU_DEVICE_ATTRIBUTE_MAX_PITCH`.
const PITCH_MAX: usize = 0x7FFF_FFFF;

super::driver_functions! {
    Context fn cuMemcpy2DAsync_v2(copy: In<Described>, stream: u64) |driver, here| {
        let rows = rows(&copy.get()?)?;
        copy::submit_rows(driver, rows, stream, here)
    };
}

fn rows(described: &Described) -> Outcome<Rows> {
    const HOST: c_uint = 1;
    const DEVICE: c_uint = 2;
    let Described {
        from,
        to,
        width,
        height,
    } = described;
    // Other kinds of memory are not needed here.
    if from.kind != HOST || to.kind != DEVICE {
        return Err(INVALID_VALUE);
    }
    let start = |place: &Place, base: usize| {
        let end = place.x.checked_add(*width).ok_or(INVALID_VALUE)?;
        // "must be greater than or equal to WidthInBytes + srcXInBytes"
        if place.pitch < end || place.pitch > PITCH_MAX {
            return Err(INVALID_VALUE);
        }
        let before = place.y.checked_mul(place.pitch);
        before
            .and_then(|before| base.checked_add(before)?.checked_add(place.x))
            .ok_or(INVALID_VALUE)
    };
    Ok(Rows {
        from: Side::Host(start(from, from.host)?),
        to: Side::Device(start(to, to.device)?),
        pitches: [from.pitch, to.pitch],
        width: *width,
        count: *height,
    })
}
