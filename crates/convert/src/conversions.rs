//! The conversions of one load: which of its tensors, and where their elements go in memory.

use std::ops::Range;
use std::sync::Arc;

use tload_format::{Dtype, TensorInfo};

use crate::{convert_within, converts, scaled};

/// Dtypes that tensors of a load can be converted to. 8-bit floats mean little without scales,
/// which nothing here computes.
const TARGETS: [Dtype; 4] = [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::F64];

/// Names of these dtypes, in the order of `TARGETS`, and then those of torch and numpy.
pub const NAMES: &[&str] = &[
    "bf16", "f16", "f32", "f64", "bfloat16", "float16", "float32", "float64",
];

/// Returns the dtype with one of the [`NAMES`].
pub fn named(name: &str) -> Option<Dtype> {
    let place = NAMES.iter().position(|known| *known == name)?;
    Some(TARGETS[place % TARGETS.len()])
}

/// Conversions of the tensors of one load, by their index in it. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Conversions {
    /// By tensor; none if no tensor is converted.
    to: Arc<[Option<Dtype>]>,
}

impl Conversions {
    /// Converts those of the tensors `loaded` that are floats without a scale to `to`, if they are
    /// not of that dtype. `all` are those of the checkpoint.
    pub fn new(all: &[TensorInfo], loaded: &[TensorInfo], to: Dtype) -> Self {
        let scaled = scaled(all.iter().map(|info| (info.name(), info.dtype())));
        let of = |info: &TensorInfo| {
            let is_other = info.dtype() != to && converts(info.dtype(), to);
            (is_other && !scaled.contains(info.name())).then_some(to)
        };
        Self {
            to: loaded.iter().map(of).collect(),
        }
    }

    /// Leaves tensors as they are, by index.
    #[must_use]
    pub fn except(self, is_left: impl Fn(usize) -> bool) -> Self {
        let to = self.to.iter().enumerate();
        Self {
            to: to
                .map(|(index, to)| to.filter(|_| !is_left(index)))
                .collect(),
        }
    }

    /// Returns the dtype that a tensor is converted to, if it is.
    pub fn of(&self, tensor: usize) -> Option<Dtype> {
        self.to.get(tensor).copied().flatten()
    }

    /// Returns the bytes that a tensor has after its conversion, if it is converted.
    pub fn bytes(&self, tensor: usize, bytes: u64, from: Dtype) -> Option<u64> {
        let to = self.of(tensor)?;
        let (before, after) = (from.bits() as u64 / 8, to.bits() as u64 / 8);
        Some(bytes / before * after)
    }
}

/// Converts the elements at `place` of `memory` to elements that begin at a multiple of `alignment`
/// there. Returns their place: it begins before the source if they become smaller, else behind it,
/// in either case by less than the alignment.
pub fn convert_nearby(
    memory: &mut [u8],
    place: &Range<usize>,
    from: Dtype,
    to: Dtype,
    alignment: usize,
) -> Range<usize> {
    let start = if to.bits() > from.bits() {
        place.start.next_multiple_of(alignment)
    } else {
        place.start / alignment * alignment
    };
    convert_within(memory, place.clone(), from, start, to);
    start..start + place.len() / (from.bits() / 8) * (to.bits() / 8)
}

#[cfg(test)]
mod tests {
    use tload_format::Entry;

    use super::*;

    fn info(name: &str, dtype: Dtype) -> TensorInfo {
        let entry = Entry {
            name: name.to_owned(),
            dtype,
            shape: vec![4],
            range: 100..100 + dtype.bits() as u64 / 2,
        };
        TensorInfo::new(entry, 0)
    }

    #[test]
    fn floats_of_another_dtype_are_converted() {
        let all = [
            info("half", Dtype::F16),
            info("single", Dtype::F32),
            info("double", Dtype::F64),
            info("int", Dtype::I32),
            info("eight", Dtype::F8E5M2),
            info("a.weight", Dtype::F8E4M3),
            info("a.scale", Dtype::F32),
        ];
        let to = Dtype::F32;
        // The scale is not loaded, but it is there.
        let conversions = Conversions::new(&all, &all[..6], to);
        let bytes =
            |index: usize| conversions.bytes(index, all[index].byte_len(), all[index].dtype());
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6].map(bytes),
            [Some(16), None, Some(16), None, Some(16), None, None]
        );
        let conversions = conversions.except(|index| index == 2);
        assert_eq!([0, 2].map(|index| conversions.of(index)), [Some(to), None]);
        assert_eq!(Conversions::default().of(0), None);
    }

    #[test]
    fn names_are_those_of_dtypes() {
        for (short, long, dtype) in [
            ("bf16", "bfloat16", Dtype::Bf16),
            ("f16", "float16", Dtype::F16),
            ("f32", "float32", Dtype::F32),
            ("f64", "float64", Dtype::F64),
        ] {
            assert_eq!([named(short), named(long)], [Some(dtype); 2]);
        }
        assert_eq!((named("BF16"), named("i32")), (None, None));
        assert!(NAMES.iter().all(|name| named(name).is_some()));
    }

    #[test]
    fn results_begin_at_aligned_places_nearby() {
        for (from, to, place, wanted) in [
            (Dtype::F32, Dtype::Bf16, 72..80, 64..68),
            (Dtype::Bf16, Dtype::F32, 72..76, 128..136),
            (Dtype::Bf16, Dtype::F16, 72..76, 64..68),
            (Dtype::F8E5M2, Dtype::F64, 64..65, 64..72),
        ] {
            let mut memory = [0; 256];
            let elements = place.len() / (from.bits() / 8);
            for element in memory[place.clone()].chunks_mut(from.bits() / 8) {
                crate::convert(&1f32.to_le_bytes(), Dtype::F32, element, from);
            }
            assert_eq!(convert_nearby(&mut memory, &place, from, to, 64), wanted);
            let mut one = vec![0; to.bits() / 8];
            crate::convert(&1f32.to_le_bytes(), Dtype::F32, &mut one, to);
            assert_eq!(memory[wanted], one.repeat(elements));
        }
    }
}
