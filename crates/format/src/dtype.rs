//! Element types: every dtype that a safetensors file may name, with its width and the alignment it
//! needs in memory.
//!
//! Owns the mapping between the closed enum [`Dtype`] and the names in files. It knows nothing of
//! frameworks: the bindings map dtypes to those of torch and numpy. Called by `format::header`, and
//! by everything that shows or places tensors.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::error::{Error, named};

named! {
    /// Element type of a tensor.
    ///
    /// Exhaustive on purpose: code that maps dtypes to another library fails to compile when one is
    /// added.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Dtype {
        /// One byte, 0 or 1.
        Bool = "BOOL",
        /// 4-bit float of the OCP microscaling formats, two to a byte.
        F4 = "F4",
        /// 6-bit float, 2 bits of exponent and 3 of mantissa.
        F6E2M3 = "F6_E2M3",
        /// 6-bit float, 3 bits of exponent and 2 of mantissa.
        F6E3M2 = "F6_E3M2",
        /// Unsigned 8-bit integer.
        U8 = "U8",
        /// Signed 8-bit integer.
        I8 = "I8",
        /// 8-bit float, 5 bits of exponent and 2 of mantissa.
        F8E5M2 = "F8_E5M2",
        /// 8-bit float, 4 bits of exponent and 3 of mantissa.
        F8E4M3 = "F8_E4M3",
        /// 8-bit power of two: the scales of the OCP microscaling formats.
        F8E8M0 = "F8_E8M0",
        /// `F8E4M3` without infinities and negative zero.
        F8E4M3Fnuz = "F8_E4M3FNUZ",
        /// `F8E5M2` without infinities and negative zero.
        F8E5M2Fnuz = "F8_E5M2FNUZ",
        /// Signed 16-bit integer.
        I16 = "I16",
        /// Unsigned 16-bit integer.
        U16 = "U16",
        /// IEEE half precision.
        F16 = "F16",
        /// The upper half of an IEEE single.
        Bf16 = "BF16",
        /// Signed 32-bit integer.
        I32 = "I32",
        /// Unsigned 32-bit integer.
        U32 = "U32",
        /// IEEE single precision.
        F32 = "F32",
        /// Complex number of two singles.
        C64 = "C64",
        /// IEEE double precision.
        F64 = "F64",
        /// Signed 64-bit integer.
        I64 = "I64",
        /// Unsigned 64-bit integer.
        U64 = "U64",
    }
    /// Every dtype, in the order of safetensors 0.8 (writers sort tensors by it, last first).
    pub const ALL;
    /// Returns the name in safetensors files: `"BF16"`, `"F8_E4M3"`.
    pub fn name;
}

impl Dtype {
    /// Returns the dtype with this name in safetensors files; names are case-sensitive, as in the
    /// format.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Returns the bits of one element: 4 and 6 exist, so a single element need not be whole bytes.
    #[inline]
    pub fn bits(self) -> usize {
        safetensors::Dtype::from(self).bitsize()
    }

    /// Returns the alignment in bytes that the first element needs in memory: the element's own
    /// size, and 1 below a byte.
    ///
    /// `C64` is 8 although numpy only requires 4: torch's `c10::complex<float>` is declared with an
    /// alignment of 8.
    #[inline]
    pub fn alignment(self) -> usize {
        (self.bits() / 8).max(1)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Dtype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl From<Dtype> for safetensors::Dtype {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Bool => Self::BOOL,
            Dtype::F4 => Self::F4,
            Dtype::F6E2M3 => Self::F6_E2M3,
            Dtype::F6E3M2 => Self::F6_E3M2,
            Dtype::U8 => Self::U8,
            Dtype::I8 => Self::I8,
            Dtype::F8E5M2 => Self::F8_E5M2,
            Dtype::F8E4M3 => Self::F8_E4M3,
            Dtype::F8E8M0 => Self::F8_E8M0,
            Dtype::F8E4M3Fnuz => Self::F8_E4M3FNUZ,
            Dtype::F8E5M2Fnuz => Self::F8_E5M2FNUZ,
            Dtype::I16 => Self::I16,
            Dtype::U16 => Self::U16,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::BF16,
            Dtype::I32 => Self::I32,
            Dtype::U32 => Self::U32,
            Dtype::F32 => Self::F32,
            Dtype::C64 => Self::C64,
            Dtype::F64 => Self::F64,
            Dtype::I64 => Self::I64,
            Dtype::U64 => Self::U64,
        }
    }
}

impl TryFrom<safetensors::Dtype> for Dtype {
    type Error = Error;

    /// Converts a dtype of the safetensors crate. Fails only for one that a newer version added:
    /// that crate's enum is open.
    fn try_from(theirs: safetensors::Dtype) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|&ours| safetensors::Dtype::from(ours) == theirs)
            .ok_or_else(|| Error::unsupported(format!("dtype {theirs} is not known")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_and_bits_agree_with_the_safetensors_crate() {
        for dtype in Dtype::ALL {
            let theirs = safetensors::Dtype::from(dtype);
            assert_eq!(theirs.to_string(), dtype.name());
            assert_eq!(theirs.bitsize(), dtype.bits(), "{dtype}");
            assert_eq!(Dtype::try_from(theirs).unwrap(), dtype);
            // Names in files, not only those that the crate prints.
            let quoted = format!("\"{dtype}\"");
            assert_eq!(serde_json::to_string(&theirs).unwrap(), quoted);
            assert_eq!(serde_json::to_string(&dtype).unwrap(), quoted);
        }
    }

    #[test]
    fn all_has_each_dtype_once_in_the_order_of_the_safetensors_crate() {
        assert_eq!(
            Dtype::ALL.into_iter().collect::<HashSet<_>>().len(),
            Dtype::ALL.len()
        );
        assert!(Dtype::ALL.map(safetensors::Dtype::from).is_sorted());
    }

    #[test]
    fn from_name_is_the_inverse_of_name_and_is_case_sensitive() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
        }
        for unknown in ["", "bf16", "BF16 ", "F128", "F8_E4M3FN"] {
            assert_eq!(Dtype::from_name(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn alignment_is_a_power_of_two_and_never_zero() {
        for (dtype, wanted) in [
            (Dtype::F4, 1),
            (Dtype::F6E2M3, 1),
            (Dtype::Bf16, 2),
            (Dtype::F32, 4),
            (Dtype::C64, 8),
        ] {
            assert_eq!(dtype.alignment(), wanted, "{dtype}");
        }
        assert!(
            Dtype::ALL
                .into_iter()
                .all(|dtype| dtype.alignment().is_power_of_two())
        );
    }
}
