//! Converts elements between floating-point dtypes, with the results of `torch.Tensor.to` on a CPU.
//!
//! The dtypes are F64, F32, F16, BF16 and the four 8-bit floats with a sign. Others are integers,
//! scales or packed: their elements are codes, which [`converts`] refuses. Every conversion goes
//! through F32, as in torch. So an F64 that becomes narrower than F32 is rounded twice.
//!
//! * Values are rounded to nearest, ties to even. Subnormals are kept.
//! * Values out of range become infinite, or NaN in an F8 without infinities. Only those of
//!   `F8_E4M3` are clamped, as torch 2.15 does (earlier versions made them NaN).
//! * NaN stays NaN. Its sign and payload are not specified: in torch they depend on the CPU and on
//!   the place of the element.
//!
//! `element.rs` reads and writes elements, by the crate `half` and by `eight.rs`; this file walks
//! over them. `scaled.rs` finds tensors whose values mean nothing without others, and
//! `conversions.rs` has what a load needs to know. No I/O.
//!
//! Programs depend on the crate `tload`. The crates are released together, and anything else here
//! may change in any release.

mod conversions;
mod eight;
mod element;
mod scaled;

use std::ops::Range;

pub use conversions::{Conversions, NAMES, convert_nearby, named};
use element::Float;
pub use scaled::scaled;
use tload_format::Dtype;

/// Elements that are converted at once: their F32 lie in 2 KiB of the stack.
const RUN: usize = 512;

/// Returns whether elements of one dtype can be converted to the other.
pub fn converts(from: Dtype, to: Dtype) -> bool {
    is_float(from) && is_float(to)
}

/// Returns whether a dtype is one of those that are converted.
pub fn is_float(dtype: Dtype) -> bool {
    Float::of(dtype).is_some()
}

/// Converts all elements of `source` into `destination`. Neither needs an alignment.
///
/// # Panics
///
/// If the dtypes are not those of [`converts`], or the lengths are not those of equally many
/// elements.
pub fn convert(source: &[u8], from: Dtype, destination: &mut [u8], to: Dtype) {
    let (before, after) = floats(from, to);
    assert!(
        source.len().is_multiple_of(before.width())
            && source.len() / before.width() * after.width() == destination.len(),
        "{} bytes of {from} are not as many elements as {} bytes of {to}",
        source.len(),
        destination.len(),
    );
    if before == after {
        destination.copy_from_slice(source);
        return;
    }
    let runs = source.chunks(RUN * before.width());
    for (source, destination) in runs.zip(destination.chunks_mut(RUN * after.width())) {
        let values = &mut [0.0; RUN][..source.len() / before.width()];
        before.read(source, values);
        after.write(values, destination);
    }
}

/// Converts the elements at `source` of `memory` within it, to where they begin at `start`: not
/// behind the source if elements shrink, and not before it if they grow, so that none is
/// overwritten before it is converted.
///
/// # Panics
///
/// If the dtypes are not those of [`converts`], if `start` lies on the other side, and if `source`
/// or the result lies outside of `memory`.
pub fn convert_within(
    memory: &mut [u8],
    source: Range<usize>,
    from: Dtype,
    start: usize,
    to: Dtype,
) {
    let (before, after) = floats(from, to);
    let elements = source.len() / before.width();
    let grows = after.width() > before.width();
    assert!(
        source.len().is_multiple_of(before.width())
            && (start == source.start || grows == (start > source.start)),
        "{from} at {source:?} cannot become {to} at {start} in the same memory"
    );
    if before == after {
        memory.copy_within(source, start);
        return;
    }
    let mut convert_run = |first: usize| {
        let count = RUN.min(elements - first);
        let values = &mut [0.0; RUN][..count];
        let (from, to) = (first * before.width(), first * after.width());
        before.read(
            &memory[source.start + from..][..count * before.width()],
            values,
        );
        after.write(values, &mut memory[start + to..][..count * after.width()]);
    };
    // A run is written over runs that are converted already. 1,024 elements from 2 to 4 bytes: the
    // second run is read from 1024..2048 and written to 2048..4096, then the first is read from
    // 0..1024 and written to 0..2048.
    let firsts = (0..elements).step_by(RUN);
    if grows {
        firsts.rev().for_each(&mut convert_run);
    } else {
        firsts.for_each(&mut convert_run);
    }
}

#[expect(clippy::panic, reason = "callers ask `converts` first")]
fn floats(from: Dtype, to: Dtype) -> (Float, Float) {
    match (Float::of(from), Float::of(to)) {
        (Some(from), Some(to)) => (from, to),
        _ => panic!("elements of {from} are not converted to {to}"),
    }
}

#[cfg(test)]
mod tests;
