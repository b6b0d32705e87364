//! CRCs of pieces that arrive in any order: each is computed separately and moved to its place in
//! the sum.
//!
//! A CRC is the remainder of a division of polynomials over GF(2), so the CRC of a whole is the sum
//! (XOR) of the contributions of its pieces: the piece's own remainder times `x^8n`, where `n` is
//! the number of bytes behind it. No piece waits for those before it, and only the sum is kept. The
//! library that computes the remainders can also combine two of them, by squaring matrices: that
//! takes as long as reading a MiB. Multiplying polynomials, as zlib's `crc32_combine` does since
//! 1.2.12, takes a hundredth of that.

use std::sync::atomic::{AtomicU64, Ordering};

use crc_fast::{CrcAlgorithm, Digest};

/// A polynomial with its conventions: reflected, initialized with all ones, and inverted at the
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polynomial {
    /// Castagnoli's, 32 bits.
    Crc32c,
    /// NVMe's, 64 bits.
    Crc64Nvme,
    /// Ethernet's and zlib's, 32 bits.
    Crc32,
}

/// Constants for multiplication modulo a polynomial. The highest bit stands for `x^0`.
struct Ring {
    algorithm: CrcAlgorithm,
    polynomial: u64,
    /// `x^0`.
    one: u64,
    /// `x^(8·2^k)` for each `k`.
    powers: [u64; 64],
}

/// `CRC-32/ISCSI` of the catalogue (reveng.sourceforge.io/crc-catalogue/all.htm), its polynomial
/// reflected.
static CRC32C: Ring = Ring::new(CrcAlgorithm::Crc32Iscsi, 0x82F6_3B78, 1 << 31);

/// `CRC-32/ISO-HDLC` of that catalogue.
static CRC32: Ring = Ring::new(CrcAlgorithm::Crc32IsoHdlc, 0xEDB8_8320, 1 << 31);

/// `CRC-64/NVME` of that catalogue.
static CRC64_NVME: Ring = Ring::new(CrcAlgorithm::Crc64Nvme, 0x9A6C_9329_AC4B_C9B5, 1 << 63);

impl Ring {
    const fn new(algorithm: CrcAlgorithm, polynomial: u64, one: u64) -> Self {
        let mut ring = Self {
            algorithm,
            polynomial,
            one,
            powers: [one >> 8; 64],
        };
        let mut k = 1;
        while k < 64 {
            ring.powers[k] = ring.multiply(ring.powers[k - 1], ring.powers[k - 1]);
            k += 1;
        }
        ring
    }

    /// Returns `a` times `b`, term by term of `a`.
    const fn multiply(&self, a: u64, mut b: u64) -> u64 {
        let mut product = 0;
        let mut term = self.one;
        while term != 0 {
            if a & term != 0 {
                product ^= b;
                if a & (term - 1) == 0 {
                    break;
                }
            }
            // Times x; the bit that falls out is x^width, which equals the polynomial's other
            // terms.
            b = (b >> 1) ^ (self.polynomial & (b & 1).wrapping_neg());
            term >>= 1;
        }
        product
    }

    /// Returns `value` times `x^8n`: as if `bytes` bytes followed it.
    const fn shift(&self, mut value: u64, mut bytes: u64) -> u64 {
        let mut k = 0;
        while bytes > 0 {
            if bytes & 1 == 1 {
                value = self.multiply(self.powers[k], value);
            }
            bytes >>= 1;
            k += 1;
        }
        value
    }

    /// Reverts [`Self::shift`]: returns `value` times `x^-8n`.
    const fn unshift(&self, mut value: u64, mut bytes: u64) -> u64 {
        let mut power = self.one;
        let mut bits = 0;
        while bits < 8 {
            // Times x^-1: `multiply`'s step backwards. The highest bit tells whether the polynomial
            // was added, since it has `x^0`.
            power = if power & self.one == 0 {
                power << 1
            } else {
                ((power ^ self.polynomial) << 1) | 1
            };
            bits += 1;
        }
        while bytes > 0 {
            if bytes & 1 == 1 {
                value = self.multiply(power, value);
            }
            power = self.multiply(power, power);
            bytes >>= 1;
        }
        value
    }

    /// Returns all ones, in the width of the polynomial.
    const fn ones(&self) -> u64 {
        self.one | (self.one - 1)
    }
}

impl Polynomial {
    /// All, in their order.
    const ALL: [Self; 3] = [Self::Crc32c, Self::Crc64Nvme, Self::Crc32];

    fn ring(self) -> &'static Ring {
        match self {
            Self::Crc32c => &CRC32C,
            Self::Crc64Nvme => &CRC64_NVME,
            Self::Crc32 => &CRC32,
        }
    }

    /// Returns the CRC of concatenated bytes.
    pub fn checksum(self, all: &[&[u8]]) -> u64 {
        let mut digest = Digest::new(self.ring().algorithm);
        for bytes in all {
            digest.update(bytes);
        }
        digest.finalize()
    }

    /// Returns the remainder of bytes behind those with the remainder `before`, which is 0 for
    /// none. A remainder is a CRC without its initial ones and the inversion at the end, so zeros
    /// in front do not change it, and the remainder of a sum is the sum of the remainders.
    pub fn remainder(self, before: u64, bytes: &[u8]) -> u64 {
        let mut digest = Digest::new_with_init_state(self.ring().algorithm, before);
        digest.update(bytes);
        digest.get_state()
    }

    /// Returns the CRC of `len` bytes with this remainder.
    pub fn finalize(self, remainder: u64, len: u64) -> u64 {
        let ring = self.ring();
        remainder ^ ring.shift(ring.ones(), len) ^ ring.ones()
    }

    /// Returns the CRC of `first` and `second` concatenated, where the second has `len` bytes.
    pub fn combine(self, first: u64, second: u64, len: u64) -> u64 {
        self.ring().shift(first, len) ^ second
    }

    /// Reverts [`Self::combine`]: returns `first`, given the CRC `whole` of both.
    pub fn without(self, whole: u64, second: u64, len: u64) -> u64 {
        self.ring().unshift(whole ^ second, len)
    }
}

/// All CRCs of some bytes, computed before it is known which one is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crcs([u64; 3]);

impl Crcs {
    /// Computes all CRCs of concatenated bytes.
    pub fn new(all: &[&[u8]]) -> Self {
        Self(Polynomial::ALL.map(|polynomial| polynomial.checksum(all)))
    }

    /// Returns the CRC for one polynomial.
    #[inline]
    pub fn get(&self, polynomial: Polynomial) -> u64 {
        self.0[polynomial as usize]
    }
}

/// CRC of `len` bytes, whose pieces arrive in any order from any thread; each byte once.
#[derive(Debug)]
pub struct Sum {
    polynomial: Polynomial,
    len: u64,
    /// Value of the CRC if all missing bytes were zero.
    value: AtomicU64,
    missing: AtomicU64,
}

impl Sum {
    /// Starts a sum to which no bytes have been added.
    pub fn new(polynomial: Polynomial, len: u64) -> Self {
        let ring = polynomial.ring();
        Self {
            polynomial,
            len,
            value: AtomicU64::new(ring.shift(ring.ones(), len) ^ ring.ones()),
            missing: AtomicU64::new(len),
        }
    }

    /// Adds the bytes that begin at `offset`. Returns the CRC if they are the last missing ones.
    pub fn add(&self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let remainder = self.polynomial.remainder(0, bytes);
        self.add_remainder(offset, bytes.len() as u64, remainder)
    }

    /// Like [`Self::add`], for bytes whose CRC is known.
    pub fn add_crc(&self, offset: u64, len: u64, crc: u64) -> Option<u64> {
        let ring = self.polynomial.ring();
        let remainder = crc ^ ring.ones() ^ ring.shift(ring.ones(), len);
        self.add_remainder(offset, len, remainder)
    }

    /// Like [`Self::add`], for bytes whose [remainder](Polynomial::remainder) is known.
    #[inline]
    pub fn add_remainder(&self, offset: u64, len: u64, remainder: u64) -> Option<u64> {
        let behind = self.len - offset - len;
        let moved = self.polynomial.ring().shift(remainder, behind);
        self.value.fetch_xor(moved, Ordering::Relaxed);
        // Release and acquire: the thread that adds the last bytes sees the additions of all
        // others.
        let before = self.missing.fetch_sub(len, Ordering::AcqRel);
        assert!(before >= len, "each byte is added once");
        (before == len).then(|| self.value.load(Ordering::Relaxed))
    }

    /// Returns whether all bytes have been added.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.missing.load(Ordering::Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn crc_matches_catalogue_check_values() {
        // "check" in the catalogue: the CRC of the nine ASCII digits.
        assert_eq!(Polynomial::Crc32c.checksum(&[b"123456789"]), 0xE306_9283);
        assert_eq!(Polynomial::Crc32.checksum(&[b"123456789"]), 0xCBF4_3926);
        assert_eq!(
            Polynomial::Crc64Nvme.checksum(&[b"12345", b"6789"]),
            0xAE8B_1486_0A79_9888
        );
    }

    #[test]
    fn sum_handles_zero_and_one_byte() {
        for polynomial in Polynomial::ALL {
            let sum = Sum::new(polynomial, 0);
            assert!(sum.is_whole());
            let sum = Sum::new(polynomial, 1);
            assert!(!sum.is_whole());
            assert_eq!(sum.add(0, &[7]), Some(polynomial.checksum(&[&[7]])));
            assert!(sum.is_whole());
        }
    }

    #[test]
    fn combine_matches_library_for_huge_lengths() {
        // Lengths that do not fit into memory, checked against the library's own combination.
        for polynomial in Polynomial::ALL {
            let (first, second) = (
                polynomial.checksum(&[b"first"]),
                polynomial.checksum(&[b"second"]),
            );
            for len in [1, 4096, (1 << 22) + 3, (1 << 40) + 12_345, (1 << 62) + 1] {
                let theirs =
                    crc_fast::checksum_combine(polynomial.ring().algorithm, first, second, len);
                assert_eq!(polynomial.combine(first, second, len), theirs, "{len}");
            }
        }
    }

    proptest! {
        #[test]
        fn sum_is_independent_of_piece_order(
            bytes in prop::collection::vec(any::<u8>(), 1..3000),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
            seed in any::<u64>(),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut pieces: Vec<_> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
            pieces.retain(|piece| !piece.is_empty());
            fastrand::Rng::with_seed(seed).shuffle(&mut pieces);
            for polynomial in Polynomial::ALL {
                let wanted = polynomial.checksum(&[&bytes]);
                let sum = Sum::new(polynomial, bytes.len() as u64);
                for (index, piece) in pieces.iter().enumerate() {
                    let (offset, own) = (piece.start as u64, &bytes[piece.clone()]);
                    let found = if index % 2 == 0 {
                        sum.add(offset, own)
                    } else {
                        sum.add_crc(offset, own.len() as u64, polynomial.checksum(&[own]))
                    };
                    let last = index + 1 == pieces.len();
                    prop_assert_eq!(found, last.then_some(wanted));
                }
                let combined = pieces_in_order(&cuts).fold(polynomial.checksum(&[]), |crc, piece| {
                    let own = &bytes[piece];
                    polynomial.combine(crc, polynomial.checksum(&[own]), own.len() as u64)
                });
                prop_assert_eq!(combined, wanted);
            }
        }
    }

    fn pieces_in_order(cuts: &[usize]) -> impl Iterator<Item = Range<usize>> {
        cuts.windows(2).map(|cut| cut[0]..cut[1])
    }
}
