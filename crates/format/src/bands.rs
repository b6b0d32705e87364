//! Bands: bytes of a tensor that hold several slices of it, such as columns. Pure.
//!
//! ```text
//!  row of the tensor   [ 0 0 0 | 1 1 1 1 1 | 2 2 2 ]            slices 0, 1 and 3, and 2
//!                                  3 3 3
//!  bands               [ 0 0 0 ]* [ 1 1 1 1 1 ]* [ 2 2 2 ]*     of all rows
//! ```

use std::ops::Range;

use super::Strides;

/// Bytes of a tensor that repeat at even distances, and the slices that are in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Range in the source: from the first byte to the last.
    pub range: Range<u64>,
    /// Bytes of that range.
    pub strides: Strides,
    /// Numbers of those that take the slices, ascending.
    pub takers: Vec<usize>,
}

impl Band {
    /// Joins slices that repeat at the same distances, as those of one dimension do, to bands
    /// without common bytes. Each slice comes with the number of its taker and its range in the
    /// source, by the beginning of that. `None` for other slices.
    ///
    /// Worked example: columns 0..4 and 2..6 of a matrix of 10 columns and 3 rows of bytes. They
    /// are one band of 6 bytes, 3 times.
    #[must_use]
    pub fn disjoint<'s>(
        slices: impl Iterator<Item = (usize, &'s Range<u64>, Option<&'s Strides>)>,
    ) -> Option<Vec<Self>> {
        let mut bands: Vec<Self> = Vec::new();
        for (taker, range, strides) in slices {
            let strides = strides?;
            if !bands
                .last()
                .is_none_or(|band| band.strides.repeats_as(strides))
            {
                return None;
            }
            match bands.last_mut().filter(|band| range.start < band.run_end()) {
                Some(band) => {
                    let end = band.run_end().max(range.start + strides.run());
                    band.strides = strides.with_run(end - band.range.start);
                    band.range.end = band.range.start + band.strides.span();
                    band.takers.push(taker);
                }
                None => bands.push(Self {
                    range: range.clone(),
                    strides: strides.clone(),
                    takers: vec![taker],
                }),
            }
        }
        let (first, last) = (bands.first()?, bands.last()?);
        first
            .strides
            .repetitions(last.run_end() - first.range.start)?;
        for band in &mut bands {
            band.takers.sort_unstable();
            band.takers.dedup();
        }
        Some(bands)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.strides.bytes()
    }

    /// Returns the place of a slice in memory that holds the bytes of the band, one behind the
    /// other: its offset there, and its bytes behind that if they are not next to each other.
    #[must_use]
    pub fn place(&self, start: u64, slice: Option<&Strides>) -> (u64, Option<Strides>) {
        let inner = slice.and_then(|slice| slice.packed_in(self.strides.run()));
        (start - self.range.start, inner)
    }

    /// Returns the end of the first run of bytes.
    fn run_end(&self) -> u64 {
        self.range.start + self.strides.run()
    }
}
