//! 8-bit floats: their bits to F32 and back.
//!
//! Own code, because no library has torch's results: torch clamps `F8_E4M3` and no other. The
//! crate `float8` clamps `F8_E5M2` too and lacks two formats; `microfloat` makes `F8_E4M3` NaN
//! from 464 on. Called by `element.rs`.

const SIGN: u8 = 0x80;

/// An 8-bit float format: a sign, exponent bits, and the last bits, which are the mantissa.
#[derive(Clone, Copy)]
pub(crate) struct Eight {
    mantissa_bits: u32,
    /// Exponent field of 1.0.
    bias: u32,
    /// Bits of the largest finite value.
    largest: u8,
    /// Bits of what a value beyond the largest becomes, without its sign.
    beyond: u8,
    nan: u8,
    /// Without infinities and negative zero: the bits of -0 are the only NaN.
    is_fnuz: bool,
}

pub(crate) const E4M3: Eight = Eight {
    mantissa_bits: 3,
    bias: 7,
    largest: 0x7E,
    beyond: 0x7E,
    nan: 0x7F,
    is_fnuz: false,
};

pub(crate) const E5M2: Eight = Eight {
    mantissa_bits: 2,
    bias: 15,
    largest: 0x7B,
    beyond: 0x7C,
    nan: 0x7F,
    is_fnuz: false,
};

pub(crate) const E4M3FNUZ: Eight = Eight {
    mantissa_bits: 3,
    bias: 8,
    largest: 0x7F,
    beyond: SIGN,
    nan: SIGN,
    is_fnuz: true,
};

pub(crate) const E5M2FNUZ: Eight = Eight {
    mantissa_bits: 2,
    bias: 16,
    largest: 0x7F,
    beyond: SIGN,
    nan: SIGN,
    is_fnuz: true,
};

/// F32 of all bits of a format.
pub(crate) type Table = [f32; 256];

impl Eight {
    pub(crate) const fn table(self) -> Table {
        let mut table = [0.0; 256];
        let mut bits = 0u8;
        loop {
            table[bits as usize] = self.value(bits);
            if bits == u8::MAX {
                return table;
            }
            bits += 1;
        }
    }

    const fn value(self, bits: u8) -> f32 {
        let rest = bits & !SIGN;
        let sign = (bits as u32 & 0x80) << 24;
        if self.is_fnuz && bits == SIGN {
            return f32::NAN;
        }
        if rest > self.largest {
            let is_infinite = rest == self.beyond;
            return f32::from_bits(
                sign | if is_infinite {
                    0x7F80_0000
                } else {
                    0x7FC0_0000
                },
            );
        }
        let exponent = (rest >> self.mantissa_bits) as u32;
        let shifted = (rest as u32) << (23 - self.mantissa_bits);
        let magnitude = if exponent == 0 {
            // The mantissa of a subnormal, as that of a normal number minus its leading 1.
            let lead = (127 - self.bias + 1) << 23;
            f32::from_bits(lead + shifted) - f32::from_bits(lead)
        } else {
            f32::from_bits(shifted + ((127 - self.bias) << 23))
        };
        f32::from_bits(sign | magnitude.to_bits())
    }

    /// Rounds a value to nearest, ties to even.
    #[inline]
    pub(crate) fn bits(self, value: f32) -> u8 {
        let all = value.to_bits();
        let sign = (all >> 24).to_le_bytes()[0] & SIGN;
        let magnitude = all & 0x7FFF_FFFF;
        if value.is_nan() {
            return self.nan | sign;
        }
        let dropped = 23 - self.mantissa_bits;
        let rounded = if magnitude < (128 - self.bias) << 23 {
            // Below the smallest normal number. The addition rounds: the last bit of `unit` is
            // worth as much as that of a subnormal. `F8_E4M3`: 2^-9, and `unit` is 2^14.
            let unit = (128 - self.bias + dropped) << 23;
            (f32::from_bits(magnitude) + f32::from_bits(unit)).to_bits() - unit
        } else {
            let rebiased = magnitude - ((127 - self.bias) << 23);
            let is_odd = (rebiased >> dropped) & 1;
            (rebiased + (1 << (dropped - 1)) - 1 + is_odd) >> dropped
        };
        if rounded > u32::from(self.largest) {
            return self.beyond | sign;
        }
        let bits = rounded.to_le_bytes()[0];
        if self.is_fnuz && bits == 0 {
            0
        } else {
            bits | sign
        }
    }
}
