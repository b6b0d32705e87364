//! Places that filled bytes came from, other than their origin.

/// Number of mirrors that are told apart; further mirrors share the bits of earlier ones.
#[cfg(feature = "object")]
const MIRRORS: usize = 63;

/// Set of the places that bytes came from: empty if all of them came from their origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Provenance(u64);

impl Provenance {
    /// The origin alone.
    pub(crate) const ORIGIN: Self = Self(0);

    /// The cache on this machine.
    pub(crate) const CACHE: Self = Self(1);

    /// Returns the set of the mirror with this index.
    #[cfg(feature = "object")]
    pub(crate) fn mirror(index: usize) -> Self {
        Self(2 << (index % MIRRORS))
    }

    /// Returns the union of two sets.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether any place of `other` is in this set.
    #[cfg(feature = "object")]
    pub(crate) fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the set without the cache.
    #[must_use]
    pub(crate) fn of_mirrors(self) -> Self {
        Self(self.0 & !Self::CACHE.0)
    }

    /// Returns the set as a number, for atomics.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// Reverts [`Self::bits`].
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

#[cfg(all(test, feature = "object"))]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        let all = [
            Provenance::CACHE,
            Provenance::mirror(0),
            Provenance::mirror(62),
        ];
        for (index, one) in all.iter().enumerate() {
            assert_ne!(*one, Provenance::ORIGIN);
            assert_eq!(Provenance::from_bits(one.bits()), *one);
            for other in &all[index + 1..] {
                assert!(!one.meets(*other) && one.and(*other).meets(*other));
            }
        }
        assert_eq!(all[0].of_mirrors(), Provenance::ORIGIN);
        assert_eq!(all[1].and(all[0]).of_mirrors(), all[1]);
        assert_eq!(Provenance::mirror(63), Provenance::mirror(0));
    }
}
