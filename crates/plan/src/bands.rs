//! Bands of columns: bytes of a tensor that the leader of a node publishes apart. Pure.
//!
//! ```text
//!  row of the tensor   [ 0 0 0 | 1 1 1 1 1 | 2 2 2 ]     columns of ranks 0, 1 and 3, and 2
//!                                  3 3 3
//!  published           [ 0 0 0 ]* [ 1 1 1 1 1 ]* [ 2 2 2 ]*     a region each, of all rows
//! ```
//!
//! The leader reads the tensor once and scatters each row to the regions of its bands. Each rank
//! takes one region, which has nothing but its own columns, or also those that overlap with them.

use std::ops::Range;

use super::share::Need;
use super::{RankWant, Strides};

/// Bytes of a tensor that the leader of a node publishes as one region, without those between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Range in the source: from the first byte to the last.
    pub range: Range<u64>,
    /// Bytes of that range.
    pub strides: Strides,
    /// Ranks that want some of them, ascending.
    pub ranks: Vec<usize>,
}

impl Band {
    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.strides.bytes()
    }

    /// Returns the end of the first run of bytes.
    fn run_end(&self) -> u64 {
        self.range.start + self.strides.run()
    }

    /// Returns the place of a want, all of whose bytes are in the band, in the band's region: its
    /// offset there, and its bytes behind that, if they are not next to each other.
    pub(super) fn place(&self, want: &RankWant) -> (u64, Option<Strides>) {
        let strides = want.strides.as_ref();
        let inner = strides.and_then(|strides| strides.packed_in(self.strides.run()));
        (want.range.start - self.range.start, inner)
    }
}

/// Joins overlapping slices that repeat at the same distances, as those of one dimension do, to
/// bands without common bytes. `None` for other slices.
pub(super) fn disjoint_bands(overlapping: &[Need<'_>]) -> Option<Vec<Band>> {
    let first = overlapping[0].want.strides.as_ref()?;
    let mut bands: Vec<Band> = Vec::new();
    for need in overlapping {
        let RankWant { range, strides, .. } = need.want;
        let strides = (strides.as_ref()).filter(|it| it.repeats_as(first))?;
        match bands.last_mut().filter(|band| range.start < band.run_end()) {
            Some(band) => {
                let end = band.run_end().max(range.start + strides.run());
                band.strides = first.with_run(end - band.range.start);
                band.range.end = band.range.start + band.strides.span();
                band.ranks.push(need.rank);
            }
            None => bands.push(Band {
                range: range.clone(),
                strides: strides.clone(),
                ranks: vec![need.rank],
            }),
        }
    }
    first.repetitions(bands.last()?.run_end() - bands[0].range.start)?;
    for band in &mut bands {
        band.ranks.sort_unstable();
        band.ranks.dedup();
    }
    Some(bands)
}
