//! Random bytes that look like weights. They depend only on the seed and the name of the tensor,
//! and will never change.
//!
//! xoshiro256++ by David Blackman and Sebastiano Vigna (<https://prng.di.unimi.it/>, public
//! domain), seeded by SplitMix64. Twenty lines here instead of a crate, so that no upgrade changes
//! the bytes of a published seed.

use tload::Dtype;

/// Generator of the bytes of one tensor.
#[derive(Debug)]
pub(super) struct Numbers {
    state: [u64; 4],
    /// Mask of bits to keep in every 8 bytes; `set` is applied after it.
    keep: u64,
    set: u64,
}

impl Numbers {
    pub(super) fn new(seed: u64, name: &str, dtype: Dtype) -> Self {
        let mut source = seed ^ fnv(name.as_bytes());
        let state = [(); 4].map(|()| split_mix(&mut source));
        let (keep, set) = masks(dtype);
        Self { state, keep, set }
    }

    /// Fills `bytes` with the next bytes. Only the last call may pass a length that is not a
    /// multiple of 8.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = self.next().to_le_bytes();
        }
        if !rest.is_empty() {
            let word = self.next().to_le_bytes();
            rest.copy_from_slice(&word[..rest.len()]);
        }
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        (result & self.keep) | self.set
    }
}

/// Returns the bits to keep and to set in every 8 bytes, so that the numbers are finite and small,
/// like weights. In floats, the top exponent bit is cleared (below 2) and the next three are set if
/// there are so many (above 2^-16); in booleans, only the lowest bit is left. Integers keep all
/// bits.
fn masks(dtype: Dtype) -> (u64, u64) {
    let repeat8 = |byte: u8| u64::from_le_bytes([byte; 8]);
    let repeat16 = |word: u64| word * 0x0001_0001_0001_0001;
    let repeat32 = |word: u64| word * 0x0000_0001_0000_0001;
    match dtype {
        Dtype::Bool => (repeat8(0x01), 0),
        Dtype::Bf16 => (repeat16(0xbfff), repeat16(0x3800)),
        Dtype::F16 => (repeat16(0xbfff), 0),
        Dtype::F32 | Dtype::C64 => (repeat32(0xbfff_ffff), repeat32(0x3800_0000)),
        Dtype::F64 => (0xbfff_ffff_ffff_ffff, 0x3f00_0000_0000_0000),
        Dtype::F8E5M2 | Dtype::F8E4M3 | Dtype::F8E8M0 => (repeat8(0xbf), 0),
        // 0x80 is their NaN: the lowest bit set excludes it.
        Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz => (repeat8(0xbf), repeat8(0x01)),
        Dtype::F4
        | Dtype::F6E2M3
        | Dtype::F6E3M2
        | Dtype::U8
        | Dtype::I8
        | Dtype::I16
        | Dtype::U16
        | Dtype::I32
        | Dtype::U32
        | Dtype::I64
        | Dtype::U64 => (u64::MAX, 0),
    }
}

/// Computes FNV-1a, to give every tensor a sequence of its own.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(dtype: Dtype, lengths: &[usize]) -> Vec<u8> {
        let mut numbers = Numbers::new(0, "w", dtype);
        let mut bytes = Vec::new();
        for length in lengths {
            let mut more = vec![0; *length];
            numbers.fill(&mut more);
            bytes.append(&mut more);
        }
        bytes
    }

    #[test]
    fn generator_matches_published_values() {
        // The first outputs of xoshiro256++ for the state 1, 2, 3, 4, from the reference
        // implementation.
        let mut numbers = Numbers {
            state: [1, 2, 3, 4],
            keep: u64::MAX,
            set: 0,
        };
        let first = [(); 4].map(|()| numbers.next());
        assert_eq!(
            first,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386
            ]
        );
    }

    #[test]
    fn random_bytes_do_not_depend_on_buffer_size() {
        assert_eq!(bytes(Dtype::U8, &[64, 8, 31]), bytes(Dtype::U8, &[103]));
    }

    #[test]
    fn floats_are_finite_and_booleans_are_booleans() {
        for word in bytes(Dtype::F32, &[4 << 10]).as_chunks::<4>().0 {
            let value = f32::from_le_bytes(*word);
            assert!(value.is_finite() && value.abs() < 2.0, "{value}");
        }
        for word in bytes(Dtype::F64, &[8 << 10]).as_chunks::<8>().0 {
            let value = f64::from_le_bytes(*word);
            assert!(value.is_finite() && value.abs() < 2.0, "{value}");
        }
        assert!(bytes(Dtype::Bool, &[4096]).iter().all(|byte| *byte <= 1));
        assert!(
            bytes(Dtype::F8E4M3, &[4096])
                .iter()
                .all(|byte| byte & 0x7f != 0x7f)
        );
        assert!(!bytes(Dtype::F8E4M3Fnuz, &[4096]).contains(&0x80));
    }

    #[test]
    fn no_two_pages_are_equal() {
        let bytes = bytes(Dtype::Bf16, &[1 << 20]);
        let pages: std::collections::HashSet<_> = bytes.as_chunks::<4096>().0.iter().collect();
        assert_eq!(pages.len(), 256);
    }
}
