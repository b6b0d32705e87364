//! Number of different bytes that several ranks want of one tensor, in bounded time. Pure.

use std::ops::Range;

use super::share::Claim;

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
    /// Returns the number of bytes that at least one claim of a cluster wants, `range` being the
    /// range of all of them; at most the sum of the claims once [`RUNS_MAX`] runs were listed.
    pub(super) fn bytes(&mut self, cluster: &[Claim<'_>], range: &Range<u64>) -> u64 {
        let all = range.end - range.start;
        let has_no_gaps = |claim: &Claim<'_>| claim.want.strides.is_none();
        // Contiguous claims that overlap leave nothing out.
        if cluster.iter().all(has_no_gaps)
            || (cluster.iter()).any(|claim| has_no_gaps(claim) && claim.want.range == *range)
        {
            return all;
        }
        if let [one] = cluster {
            return one.bytes();
        }
        if let Some(bytes) = repeated(cluster) {
            return bytes;
        }
        let runs = cluster
            .iter()
            .map(|claim| claim.spans_max(0))
            .fold(0, u64::saturating_add);
        if let Some(left) = self.runs_left.checked_sub(runs) {
            self.runs_left = left;
            return union(cluster.iter().flat_map(|claim| claim.spans(0)).collect());
        }
        let sum = cluster.iter().map(Claim::bytes);
        all.min(sum.fold(0, u64::saturating_add))
    }
}

/// Returns the number of different bytes of slices that repeat at the same distances, as those of
/// one dimension do; `None` for others.
///
/// Worked example: columns 0..4 and 2..6 of a matrix of 10 columns and 3 rows of bytes. The union
/// of their first runs has 6 bytes, which repeat 3 times.
fn repeated(cluster: &[Claim<'_>]) -> Option<u64> {
    let start = cluster[0].want.range.start;
    let first = cluster[0].want.strides.as_ref()?;
    let mut runs = Vec::with_capacity(cluster.len());
    for claim in cluster {
        let strides = claim.want.strides.as_ref()?;
        if !strides.repeats_as(first) {
            return None;
        }
        let offset = claim.want.range.start - start;
        runs.push(offset..offset + strides.run());
    }
    let reach = runs.iter().map(|run| run.end).max()?;
    Some(union(runs) * first.repetitions(reach)?)
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
