//! Elements as bytes, read to F32 and written from F32: the only code that knows their formats.
//!
//! Called by `lib.rs` with runs of elements.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tload_format::Dtype;

use crate::RUN;
use crate::eight::{self, Table};

static E4M3: Table = eight::E4M3.table();
static E5M2: Table = eight::E5M2.table();
static E4M3FNUZ: Table = eight::E4M3FNUZ.table();
static E5M2FNUZ: Table = eight::E5M2FNUZ.table();

/// A dtype that is converted.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Float {
    E4m3,
    E5m2,
    E4m3Fnuz,
    E5m2Fnuz,
    F16,
    Bf16,
    F32,
    F64,
}

impl Float {
    pub(crate) fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F8E4M3 => Some(Self::E4m3),
            Dtype::F8E5M2 => Some(Self::E5m2),
            Dtype::F8E4M3Fnuz => Some(Self::E4m3Fnuz),
            Dtype::F8E5M2Fnuz => Some(Self::E5m2Fnuz),
            Dtype::F16 => Some(Self::F16),
            Dtype::Bf16 => Some(Self::Bf16),
            Dtype::F32 => Some(Self::F32),
            Dtype::F64 => Some(Self::F64),
            Dtype::Bool
            | Dtype::F4
            | Dtype::F6E2M3
            | Dtype::F6E3M2
            | Dtype::U8
            | Dtype::I8
            | Dtype::F8E8M0
            | Dtype::I16
            | Dtype::U16
            | Dtype::I32
            | Dtype::U32
            | Dtype::C64
            | Dtype::I64
            | Dtype::U64 => None,
        }
    }

    /// Returns the bytes of an element.
    pub(crate) fn width(self) -> usize {
        match self {
            Self::E4m3 | Self::E5m2 | Self::E4m3Fnuz | Self::E5m2Fnuz => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Reads the elements in `bytes`, at most [`RUN`] and as many as `floats`.
    #[expect(clippy::cast_possible_truncation, reason = "F64 is rounded to F32")]
    pub(crate) fn read(self, bytes: &[u8], floats: &mut [f32]) {
        match self {
            Self::F64 => decode(bytes, floats, |bytes| f64::from_le_bytes(bytes) as f32),
            Self::F32 => decode(bytes, floats, f32::from_le_bytes),
            Self::Bf16 => decode(bytes, floats, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Self::F16 => {
                let halves = &mut [f16::ZERO; RUN][..floats.len()];
                decode(bytes, halves, f16::from_le_bytes);
                halves.convert_to_f32_slice(floats);
            }
            Self::E4m3 => decode(bytes, floats, |[bits]| E4M3[usize::from(bits)]),
            Self::E5m2 => decode(bytes, floats, |[bits]| E5M2[usize::from(bits)]),
            Self::E4m3Fnuz => decode(bytes, floats, |[bits]| E4M3FNUZ[usize::from(bits)]),
            Self::E5m2Fnuz => decode(bytes, floats, |[bits]| E5M2FNUZ[usize::from(bits)]),
        }
    }

    /// Writes the elements in `floats`, at most [`RUN`], to as many in `bytes`.
    pub(crate) fn write(self, floats: &[f32], bytes: &mut [u8]) {
        match self {
            Self::F64 => encode(floats, bytes, |value| f64::from(value).to_le_bytes()),
            Self::F32 => encode(floats, bytes, f32::to_le_bytes),
            Self::Bf16 => encode(floats, bytes, |value| bf16::from_f32(value).to_le_bytes()),
            Self::F16 => {
                let halves = &mut [f16::ZERO; RUN][..floats.len()];
                halves.convert_from_f32_slice(floats);
                encode(halves, bytes, f16::to_le_bytes);
            }
            Self::E4m3 => encode(floats, bytes, |value| [eight::E4M3.bits(value)]),
            Self::E5m2 => encode(floats, bytes, |value| [eight::E5M2.bits(value)]),
            Self::E4m3Fnuz => encode(floats, bytes, |value| [eight::E4M3FNUZ.bits(value)]),
            Self::E5m2Fnuz => encode(floats, bytes, |value| [eight::E5M2FNUZ.bits(value)]),
        }
    }
}

fn decode<T, const WIDTH: usize>(
    bytes: &[u8],
    into: &mut [T],
    from_bytes: impl Fn([u8; WIDTH]) -> T,
) {
    for (bytes, into) in bytes.as_chunks().0.iter().zip(into) {
        *into = from_bytes(*bytes);
    }
}

fn encode<T: Copy, const WIDTH: usize>(
    from: &[T],
    bytes: &mut [u8],
    to_bytes: impl Fn(T) -> [u8; WIDTH],
) {
    for (from, bytes) in from.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = to_bytes(*from);
    }
}
