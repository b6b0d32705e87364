//! Digest of pieces that arrive in any order: a CRC or BLAKE3.

use std::ops::Range;

use super::tree::TreeSum;
use crate::crc::{self, Polynomial};
use crate::memory::Filled;
use crate::verify::{Algorithm, Digest};

/// Digest of bytes whose pieces arrive in any order from any thread; each byte once.
#[derive(Debug)]
pub(super) enum Sum {
    Crc(Algorithm, Polynomial, crc::Sum),
    Blake3(TreeSum),
}

impl Sum {
    /// Starts the digest of `len` bytes, if the algorithm [combines](Algorithm::combines).
    pub(super) fn new(algorithm: Algorithm, len: u64) -> Option<Self> {
        match (algorithm, algorithm.polynomial()) {
            (Algorithm::Blake3, _) => Some(Self::Blake3(TreeSum::new(len))),
            (_, Some(polynomial)) => {
                let sum = crc::Sum::new(polynomial, len);
                Some(Self::Crc(algorithm, polynomial, sum))
            }
            (_, None) => None,
        }
    }

    /// Adds a range of a filled window, as [`Self::add`] does.
    pub(super) fn add_filled(
        &self,
        offset: u64,
        filled: &Filled,
        range: Range<usize>,
    ) -> Option<Digest> {
        match self {
            Self::Crc(algorithm, polynomial, sum) => {
                let len = range.len() as u64;
                let crc = sum.add_remainder(offset, len, filled.remainder(*polynomial, range))?;
                Some(Digest::from_crc(*algorithm, crc))
            }
            Self::Blake3(_) => self.add(offset, &filled.bytes()[range]),
        }
    }

    /// Returns the polynomial, if the digest is a CRC.
    pub(super) fn polynomial(&self) -> Option<Polynomial> {
        match self {
            Self::Crc(_, polynomial, _) => Some(*polynomial),
            Self::Blake3(_) => None,
        }
    }

    /// Adds the bytes that begin at `offset`. Returns the digest if they are the last missing ones.
    pub(super) fn add(&self, offset: u64, bytes: &[u8]) -> Option<Digest> {
        match self {
            Self::Crc(algorithm, _, sum) => {
                let crc = sum.add(offset, bytes)?;
                Some(Digest::from_crc(*algorithm, crc))
            }
            Self::Blake3(sum) => Digest::new(Algorithm::Blake3, &sum.add(offset, bytes)?),
        }
    }

    /// Returns whether all bytes have been added.
    pub(super) fn is_whole(&self) -> bool {
        match self {
            Self::Crc(_, _, sum) => sum.is_whole(),
            Self::Blake3(sum) => sum.is_whole(),
        }
    }
}
