//! Number of different bytes that several ranks want of one tensor, in bounded time. Pure.

use std::ops::Range;

use tload_format::Band;

use super::share::{Need, bands};

/// Most runs of slices that are listed for one plan. Slices that repeat alike are counted without.
const RUNS_MAX: u64 = 1 << 20;

/// Counts different bytes of clusters.
pub(super) struct Counter {
    runs_left: u64,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            runs_left: RUNS_MAX,
        }
    }
}

impl Counter {
    /// Returns the number of bytes that at least one need of an overlap wants, `range` being the
    /// range of all of them; at most the sum of the needs once [`RUNS_MAX`] runs were listed.
    pub(super) fn bytes(&mut self, overlapping: &[Need<'_>], range: &Range<u64>) -> u64 {
        let all = range.end - range.start;
        let has_no_gaps = |need: &Need<'_>| need.want.strides.is_none();
        // Contiguous needs that overlap leave nothing out.
        if overlapping.iter().all(has_no_gaps)
            || (overlapping.iter()).any(|need| has_no_gaps(need) && need.want.range == *range)
        {
            return all;
        }
        if let [one] = overlapping {
            return one.bytes();
        }
        if let Some(bands) = bands(overlapping) {
            return bands.iter().map(Band::bytes).sum();
        }
        let runs = overlapping
            .iter()
            .map(|need| need.spans_max(0))
            .fold(0, u64::saturating_add);
        if let Some(left) = self.runs_left.checked_sub(runs) {
            self.runs_left = left;
            return union(overlapping.iter().flat_map(|need| need.spans(0)).collect());
        }
        let sum = overlapping.iter().map(Need::bytes);
        all.min(sum.fold(0, u64::saturating_add))
    }
}

/// Returns the number of bytes in at least one of these ranges.
fn union(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut bytes, mut end) = (0, 0);
    for range in ranges {
        bytes += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    bytes
}
