//! Slices: the wanted elements of a tensor, and the bytes that they occupy. Pure.
//!
//! ```text
//!  x[1:3, ::2] of 4 × 6 elements:   ······ #·#·#· #·#·#· ······
//!  as strides                              2 times every 6, 3 times every 2, runs of 1
//!  starts at 6, the first byte wanted, and is 5+6 long
//! ```

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// Indices along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Indices {
    /// First index.
    pub start: usize,
    /// Number of indices.
    pub count: usize,
    /// Distance from one index to the next, at least 1.
    pub step: usize,
    /// Drops the dimension from the slice: one index, not a range of one. With a `count` of 1 only.
    pub single: bool,
}

impl Indices {
    /// Selects one index and drops the dimension.
    pub fn at(index: usize) -> Self {
        Self {
            start: index,
            count: 1,
            step: 1,
            single: true,
        }
    }
}

impl From<Range<usize>> for Indices {
    fn from(range: Range<usize>) -> Self {
        Self {
            start: range.start,
            count: range.end.saturating_sub(range.start),
            step: 1,
            single: false,
        }
    }
}

/// A slice of a tensor: indices along each dimension, from the first dimension on; the remaining
/// dimensions are whole.
///
/// ```
/// # use tload_format as tload;
/// use tload::{Slice, Indices};
///
/// // Rows 8 to 15 of a matrix, and of those every second column of the first hundred.
/// let columns = Indices { start: 0, count: 50, step: 2, single: false };
/// let slice = Slice::new([Indices::from(8..16), columns]);
/// assert_ne!(slice, Slice::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice(Vec<Indices>);

/// Position of the bytes of a slice in its tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Elements along each dimension.
    pub shape: Vec<usize>,
    /// Range in the tensor from the first wanted byte to the last.
    pub range: Range<u64>,
    /// Wanted bytes of that range; all if `None`.
    pub strides: Option<Strides>,
}

/// Runs of bytes at even distances, in nested levels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strides {
    /// Contiguous bytes.
    run: u64,
    /// Levels from the outermost in. An inner level never reaches into the next step of the one
    /// around it.
    levels: Vec<Level>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Level {
    count: u64,
    /// Bytes from one repetition to the next.
    stride: u64,
}

impl Slice {
    /// Creates a slice of these indices along the first dimensions, and all along the others.
    pub fn new<S: Into<Indices>>(dims: impl IntoIterator<Item = S>) -> Self {
        Self(dims.into_iter().map(Into::into).collect())
    }

    /// Returns the indices along the first dimensions; the others are whole.
    pub fn dims(&self) -> &[Indices] {
        &self.0
    }

    /// Computes the bytes of the slice in a row-major tensor of this shape.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for indices that the tensor does not have, and for sub-byte
    /// elements that do not begin and end on bytes.
    #[doc(hidden)]
    pub fn cut(&self, shape: &[usize], element_bits: usize) -> Result<Cut> {
        if self.0.len() > shape.len() {
            return Err(invalid(format!(
                "the slice has {} dimensions, but the tensor has {}",
                self.0.len(),
                shape.len()
            )));
        }
        let whole = |len: &usize| Indices::from(0..*len);
        let dims: Vec<Indices> = (self.0.iter().copied())
            .chain(shape[self.0.len()..].iter().map(whole))
            .collect();
        for (dim, (steps, len)) in dims.iter().zip(shape).enumerate() {
            steps.check(dim, *len)?;
        }
        let kept = dims.iter().filter(|steps| !steps.single);
        let cut_shape: Vec<usize> = kept.map(|steps| steps.count).collect();
        if cut_shape.contains(&0) {
            return Ok(Cut {
                shape: cut_shape,
                range: 0..0,
                strides: None,
            });
        }
        let (mut first, mut run) = (0, element_bits as u64);
        let mut levels = Vec::new();
        // Distance from one index of the dimension to the next, in bits.
        let mut stride = element_bits as u64;
        for (steps, len) in dims.iter().zip(shape).rev() {
            first += steps.start as u64 * stride;
            let count = steps.count as u64;
            if count > 1 {
                let distance = steps.step as u64 * stride;
                widen(
                    &mut run,
                    &mut levels,
                    Level {
                        count,
                        stride: distance,
                    },
                );
            }
            stride *= *len as u64;
        }
        levels.reverse();
        let in_bytes = |bits: u64| bits.is_multiple_of(8).then_some(bits / 8);
        let levels: Option<Vec<Level>> = levels
            .into_iter()
            .map(|Level { count, stride }| {
                Some(Level {
                    count,
                    stride: in_bytes(stride)?,
                })
            })
            .collect();
        let (Some(first), Some(run), Some(levels)) = (in_bytes(first), in_bytes(run), levels)
        else {
            return Err(invalid(format!(
                "elements of {element_bits} bits are packed, and the slice does not begin and end on whole bytes"
            )));
        };
        let strides = Strides { run, levels };
        Ok(Cut {
            shape: cut_shape,
            range: first..first + strides.span(),
            strides: Some(strides).filter(|strides| !strides.levels.is_empty()),
        })
    }
}

/// Adds a level around the existing ones, from the innermost out; merges it with the run or the
/// level inside if there is no gap between.
fn widen(run: &mut u64, levels: &mut Vec<Level>, level: Level) {
    match levels.last_mut() {
        None if level.stride == *run => *run *= level.count,
        Some(inside) if level.stride == inside.count * inside.stride => inside.count *= level.count,
        _ => levels.push(level),
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidRequest, message)
}

impl Indices {
    fn check(&self, dim: usize, len: usize) -> Result<()> {
        if self.step == 0 {
            return Err(invalid(format!(
                "the slice's step along dimension {dim} is 0"
            )));
        }
        if self.single && self.count != 1 {
            return Err(invalid(format!(
                "the slice drops dimension {dim} but takes {} of its indices, wanted 1",
                self.count
            )));
        }
        if self.count == 0 {
            return Ok(());
        }
        let last = (self.count - 1)
            .checked_mul(self.step)
            .and_then(|steps| steps.checked_add(self.start));
        match last {
            Some(last) if last < len => Ok(()),
            _ => Err(invalid(format!(
                "the slice (count {}, start {}, step {}) exceeds dimension {dim} of length {len}",
                self.count, self.start, self.step
            ))),
        }
    }
}

/// The part of a slice that a window shows.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Offset of the window in the tensor, relative to the slice's first byte; a negative one is
    /// before it.
    pub offset: i64,
    /// Number of the first wanted byte in the window, among all wanted bytes.
    pub first: u64,
    /// Count of wanted bytes in the window.
    pub len: u64,
}

impl Strides {
    /// Returns the number of wanted bytes.
    pub fn bytes(&self) -> u64 {
        self.levels
            .iter()
            .fold(self.run, |bytes, level| bytes * level.count)
    }

    /// Returns the length from the first wanted byte to the last.
    pub fn span(&self) -> u64 {
        let steps = self
            .levels
            .iter()
            .map(|level| (level.count - 1) * level.stride);
        steps.sum::<u64>() + self.run
    }

    /// Returns the number of contiguous bytes of each repetition.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns whether the runs of both are at the same distances.
    pub fn repeats_as(&self, other: &Self) -> bool {
        self.levels == other.levels
    }

    /// Returns the number of runs, if runs of `reach` bytes in their places would not overlap.
    pub fn repetitions(&self, mut reach: u64) -> Option<u64> {
        let mut repetitions = 1;
        for level in self.levels.iter().rev() {
            if reach > level.stride {
                return None;
            }
            reach += (level.count - 1) * level.stride;
            repetitions *= level.count;
        }
        Some(repetitions)
    }

    /// Returns runs of `run` bytes at the same distances, which must not overlap.
    #[must_use]
    pub fn with_run(&self, run: u64) -> Self {
        let levels = self.levels.clone();
        Self { run, levels }
    }

    /// Returns the same bytes in memory that holds nothing but runs of `run` bytes, one behind the
    /// other, each with one of these runs in it. `None` if they are all of that memory.
    #[must_use]
    pub fn packed_in(&self, run: u64) -> Option<Self> {
        let count = self.bytes() / self.run;
        let levels = vec![Level { count, stride: run }];
        (self.run < run).then_some(Self {
            run: self.run,
            levels,
        })
    }

    /// Returns how many of the bytes before `offset` are wanted.
    pub fn before(&self, mut offset: u64) -> u64 {
        let mut inside = self.bytes();
        let mut before = 0;
        for level in &self.levels {
            inside /= level.count;
            let index = offset / level.stride;
            if index >= level.count {
                return before + inside * level.count;
            }
            before += index * inside;
            offset -= index * level.stride;
        }
        before + offset.min(self.run)
    }

    /// Returns the position of wanted byte number `index`.
    fn position(&self, mut index: u64) -> u64 {
        let mut inside = self.bytes();
        let mut position = 0;
        for level in &self.levels {
            inside /= level.count;
            position += index / inside * level.stride;
            index %= inside;
        }
        position + index
    }

    /// Returns the wanted bytes numbered `indices`, as ranges of the tensor relative to its first
    /// wanted byte.
    fn runs(&self, indices: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut next = indices.start;
        let innermost = self.levels.last().copied();
        // Start of the next run of the innermost level, and how many are left. Recomputed, by
        // division, for each row only.
        let (mut start, mut left) = (0, 0);
        std::iter::from_fn(move || {
            let wanted = indices.end.checked_sub(next).filter(|wanted| *wanted > 0)?;
            let begun = next % self.run;
            if left == 0 {
                start = self.position(next) - begun;
                left = innermost.map_or(1, |level| level.count - next / self.run % level.count);
            }
            let len = (self.run - begun).min(wanted);
            let run = start + begun..start + begun + len;
            next += len;
            start += innermost.map_or(0, |level| level.stride);
            left -= 1;
            Some(run)
        })
    }

    /// Returns the length of a span that is worth reading whole, and the levels around it.
    fn dense(&self, gap: u64) -> (u64, Self) {
        let (mut span, mut kept) = (self.run, self.levels.len());
        while let Some(level) = self.levels[..kept]
            .last()
            .filter(|level| level.stride - span <= gap)
        {
            span += (level.count - 1) * level.stride;
            kept -= 1;
        }
        let levels = self.levels[..kept].to_vec();
        (span, Self { run: 1, levels })
    }

    /// Returns the maximum number of spans.
    pub fn spans_of(&self, gap: u64) -> u64 {
        self.dense(gap).1.bytes()
    }

    /// Returns the spans to read, in order: wanted bytes with gaps of at most `gap` bytes between
    /// them.
    pub fn spans(&self, gap: u64) -> impl Iterator<Item = Range<u64>> {
        let (span, outer) = self.dense(gap);
        let mut next = 0;
        std::iter::from_fn(move || {
            if next == outer.bytes() {
                return None;
            }
            let start = outer.position(next);
            let mut end = start + span;
            next += 1;
            // The last span of a row may be near the first of the next row, however far apart they
            // are within a row.
            while next < outer.bytes() && outer.position(next) - end <= gap {
                end = outer.position(next) + span;
                next += 1;
            }
            Some(start..end)
        })
    }

    /// Returns the range from the first of the wanted bytes numbered `indices` to the last of them
    /// that is less than `most` bytes behind it.
    pub fn range_of(&self, indices: Range<u64>, most: u64) -> Range<u64> {
        let start = self.position(indices.start);
        let last = self.position(indices.end - 1);
        start..self.end_before((last + 1).min(start + most))
    }

    /// Finds the bytes of the slice in a window: returns the offset in the window of its first
    /// wanted byte, that byte's number, and how many there are; `None` if there are none.
    pub fn found(&self, window: Range<u64>) -> Option<(u64, u64, u64)> {
        let (first, end) = (self.before(window.start), self.before(window.end));
        (first < end).then(|| (self.position(first) - window.start, first, end - first))
    }

    /// Returns the end of the last wanted byte before `offset`.
    pub fn end_before(&self, offset: u64) -> u64 {
        self.before(offset)
            .checked_sub(1)
            .map_or(0, |last| self.position(last) + 1)
    }

    /// Moves the wanted bytes of a window together, behind the first of them.
    pub fn gather(&self, window: &mut [u8], shown: Shown) {
        for (run, to) in self.moves(shown) {
            if to != run.start {
                window.copy_within(run, to);
            }
        }
    }

    /// Copies the wanted bytes of a window to the places in another one that [`Self::gather`] moves
    /// them to.
    pub fn gather_from(&self, from: &[u8], window: &mut [u8], shown: Shown) {
        for (run, to) in self.moves(shown) {
            window[to..to + run.len()].copy_from_slice(&from[run]);
        }
    }

    /// Copies the wanted bytes of a window to the front of `to`, one behind the other.
    pub fn pack(&self, from: &[u8], to: &mut [u8], shown: Shown) {
        let mut rest = to;
        for (run, _) in self.moves(shown) {
            let (front, behind) = rest.split_at_mut(run.len());
            front.copy_from_slice(&from[run]);
            rest = behind;
        }
    }

    /// Returns the wanted bytes of a window, and where each run of them goes.
    fn moves(&self, shown: Shown) -> impl Iterator<Item = (Range<usize>, usize)> {
        let Shown { offset, first, len } = shown;
        let at = move |position: u64| {
            let index = i64::try_from(position).expect("files are shorter") - offset;
            usize::try_from(index).expect("inside the window")
        };
        let mut to = at(self.position(first));
        self.runs(first..first + len).map(move |run| {
            let run = at(run.start)..at(run.end);
            let start = to;
            to += run.len();
            (run, start)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn steps(start: usize, count: usize, step: usize) -> Indices {
        Indices {
            start,
            count,
            step,
            single: false,
        }
    }

    /// Returns the positions of all wanted elements, one by one.
    fn by_hand(dims: &[Indices], shape: &[usize], bytes: u64) -> Vec<u64> {
        let mut elements = vec![0u64];
        for (index, len) in shape.iter().enumerate() {
            let steps = dims
                .get(index)
                .copied()
                .unwrap_or_else(|| Indices::from(0..*len));
            elements = (elements.iter())
                .flat_map(|base| {
                    let base = base * *len as u64;
                    (0..steps.count).map(move |i| base + (steps.start + i * steps.step) as u64)
                })
                .collect();
        }
        let bytes_of = |element: u64| element * bytes..(element + 1) * bytes;
        elements.into_iter().flat_map(bytes_of).collect()
    }

    #[test]
    fn the_worked_example() {
        let slice = Slice(vec![steps(1, 2, 1), steps(0, 3, 2)]);
        let cut = slice.cut(&[4, 6], 8).expect("inside");
        assert_eq!((cut.shape, cut.range), (vec![2, 3], 6..17));
        // Every second of six, continued without a break in the next row: one level.
        let strides = cut.strides.expect("has gaps");
        assert_eq!(
            strides.levels,
            [Level {
                count: 6,
                stride: 2
            }]
        );
    }

    #[test]
    fn whole_rows_cut_to_one_range() {
        let cut = Slice(vec![steps(2, 3, 1)])
            .cut(&[8, 10], 16)
            .expect("inside");
        assert_eq!(
            (cut.shape, cut.range, cut.strides),
            (vec![3, 10], 40..100, None)
        );
        let all = Slice::default().cut(&[8, 10], 16).expect("inside");
        assert_eq!((all.range, all.strides), (0..160, None));
    }

    #[test]
    fn out_of_range_slice_is_invalid() {
        let message = |dims: Vec<Indices>, shape: &[usize], bits| {
            let error = Slice(dims).cut(shape, bits).expect_err("not there");
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            error.message().to_owned()
        };
        assert_eq!(
            message(vec![steps(1, 4, 2)], &[7], 8),
            "the slice (count 4, start 1, step 2) exceeds dimension 0 of length 7"
        );
        assert!(message(vec![steps(1, usize::MAX, 2)], &[7], 8).contains("dimension 0"));
        assert!(message(vec![steps(0, 1, 0)], &[7], 8).contains("step"));
        assert!(message(vec![steps(0, 1, 1); 2], &[7], 8).contains("2 dimensions"));
        let single = |count| Indices {
            single: true,
            ..steps(0, count, 1)
        };
        for count in [0, 2] {
            let message = message(vec![single(count)], &[7], 8);
            assert!(message.contains("drops dimension 0"), "{message}");
        }
        let one = Slice(vec![single(1)]).cut(&[7, 3], 8).expect("inside");
        assert_eq!(one.shape, [3]);
        assert!(message(vec![steps(1, 2, 1)], &[8], 4).contains("4 bits"));
        let whole_bytes = Slice(vec![steps(2, 2, 1)]).cut(&[8], 4).expect("on bytes");
        assert_eq!(whole_bytes.range, 1..2);
    }

    #[test]
    fn runs_cover_any_subrange() {
        // Bytes 0, 1, 8 and 9 of rows of 20 bytes: two levels, as the next row does not continue
        // the pattern.
        let cut = Slice(vec![steps(0, 3, 1), steps(0, 2, 4)]).cut(&[3, 10], 16);
        let strides = cut.expect("inside").strides.expect("has gaps");
        let all: Vec<u64> = [0, 20, 40]
            .into_iter()
            .flat_map(|row| [0, 1, 8, 9].map(|at| row + at))
            .collect();
        for start in 0..=all.len() {
            for end in start..=all.len() {
                let found = strides.runs(start as u64..end as u64).flatten();
                assert_eq!(found.collect::<Vec<_>>(), all[start..end]);
            }
        }
    }

    #[test]
    fn columns_of_packed_columns_are_found() {
        // The last two of columns 1 to 4, in rows of 10 bytes.
        let columns = |columns: Range<usize>| {
            let cut = Slice(vec![steps(0, 3, 1), columns.into()]).cut(&[3, 10], 8);
            cut.expect("inside").strides.expect("has gaps")
        };
        let band = columns(1..5);
        let inner = columns(3..5).packed_in(band.run()).expect("not all of it");
        let runs: Vec<_> = inner.runs(0..inner.bytes()).collect();
        assert_eq!(runs, [0..2, 4..6, 8..10]);
        assert_eq!(band.packed_in(4), None);
        assert_eq!(columns(1..3).with_run(4), band);
    }

    #[test]
    fn gaps_worth_reading_join_spans() {
        let cut = Slice(vec![steps(0, 4, 1), steps(0, 10, 1)]).cut(&[4, 100], 8);
        let strides = cut.expect("inside").strides.expect("has gaps");
        assert_eq!(strides.spans(90).next(), Some(0..310));
        assert_eq!(strides.spans_of(90), 1);
        let apart = [0..10, 100..110, 200..210, 300..310];
        assert_eq!(strides.spans(89).collect::<Vec<_>>(), apart);
        assert_eq!(strides.spans_of(89), 4);
    }

    #[test]
    fn spans_join_across_rows() {
        // Rows of 100, of which the first and the last but one are wanted: 0, 98, 100, 198, …
        let cut = Slice(vec![steps(0, 3, 1), steps(0, 2, 98)]).cut(&[3, 100], 8);
        let strides = cut.expect("inside").strides.expect("has gaps");
        let spans: Vec<_> = strides.spans(10).collect();
        assert_eq!(spans, [0..1, 98..101, 198..201, 298..299]);
    }

    fn cases() -> impl Strategy<Value = (Vec<usize>, Vec<Indices>, usize)> {
        let dim = (
            1usize..7,
            0usize..7,
            1usize..4,
            any::<prop::sample::Index>(),
        );
        (
            prop::collection::vec(dim, 0..5),
            1usize..5,
            any::<prop::sample::Index>(),
        )
            .prop_map(|(dims, bytes, named)| {
                let shape: Vec<usize> = dims.iter().map(|dim| dim.0).collect();
                let mut slices: Vec<Indices> = dims
                    .iter()
                    .map(|(len, start, step, count)| {
                        let start = start % len;
                        let most = (len - start).div_ceil(*step);
                        steps(start, count.index(most + 1), *step)
                    })
                    .collect();
                slices.truncate(named.index(slices.len() + 1));
                (shape, slices, bytes)
            })
    }

    proptest! {
        #[test]
        fn strides_match_elementwise_positions(
            (shape, dims, bytes) in cases(),
            gap in 0u64..20,
            part in any::<[prop::sample::Index; 2]>(),
        ) {
            let cut = Slice(dims.clone()).cut(&shape, bytes * 8).expect("inside");
            let wanted = by_hand(&dims, &shape, bytes as u64);
            let follows = wanted.windows(2).all(|pair| pair[0] + 1 == pair[1]);
            prop_assert_eq!(cut.strides.is_none(), follows);
            let Some(strides) = cut.strides else {
                prop_assert_eq!(wanted, cut.range.collect::<Vec<_>>());
                return Ok(());
            };
            prop_assert_eq!(strides.bytes(), wanted.len() as u64);
            prop_assert_eq!(strides.span(), cut.range.end - cut.range.start);
            let found: Vec<u64> = strides.runs(0..strides.bytes()).flatten().collect();
            let relative: Vec<u64> = wanted.iter().map(|at| at - cut.range.start).collect();
            prop_assert_eq!(&found, &relative);
            let mut part = part.map(|index| index.index(relative.len() + 1));
            part.sort_unstable();
            let found = strides.runs(part[0] as u64..part[1] as u64).flatten();
            prop_assert_eq!(&found.collect::<Vec<_>>(), &relative[part[0]..part[1]]);
            for offset in 0..strides.span() + 3 {
                let before = relative.iter().filter(|at| **at < offset).count() as u64;
                prop_assert_eq!(strides.before(offset), before);
            }
            // Each window packs to its own part of the wanted bytes.
            let len_of = |len: u64| usize::try_from(len).expect("small");
            let byte = |at: &u64| u8::try_from(at % 251).expect("less");
            let tensor: Vec<u8> = (0..strides.span()).map(|at| byte(&at)).collect();
            let packed: Vec<u8> = relative.iter().map(byte).collect();
            let middle = part[0] as u64 * strides.span() / (relative.len() as u64 + 1);
            let mut found_bytes = 0;
            for window in [0..middle, middle..strides.span()] {
                let Some((_, first, len)) = strides.found(window.clone()) else { continue };
                let offset = i64::try_from(window.start).expect("small");
                let mut to = vec![0; len_of(len)];
                let from = &tensor[len_of(window.start)..len_of(window.end)];
                strides.pack(from, &mut to, Shown { offset, first, len });
                prop_assert_eq!(&to[..], &packed[len_of(first)..len_of(first + len)]);
                found_bytes += len;
            }
            prop_assert_eq!(found_bytes, strides.bytes());
            // Spans hold every wanted byte, in order, and nothing but gaps of at most that length
            // beside.
            let spans: Vec<_> = strides.spans(gap).collect();
            prop_assert!(spans.len() as u64 <= strides.spans_of(gap));
            for pair in spans.windows(2) {
                prop_assert!(pair[0].end + gap < pair[1].start);
            }
            let inside = relative.iter().filter(|at| spans.iter().any(|span| span.contains(at)));
            prop_assert_eq!(inside.count(), relative.len());
        }
    }
}
