//! Division of one node's reads among its ranks: the bytes that each rank reads for itself, and
//! those that the node's leader reads once for all ranks that want them. Pure.
//!
//! ```text
//!  tensor    [   a   ][       b       ][      c      ][    d    ]
//!  rank 0     #######  ######           #############  ##..##..
//!  rank 1                     #####     #############  ..##..##
//!  clusters   └─────┘  └────┘ └───┘     └───────────┘  └──────┘   wants that overlap
//!  read by    rank 0   rank 0 rank 1    the leader     each rank, or the leader: by cost
//!  published                            whole          in bands, a band of columns each
//! ```
//!
//! The leader computes the result. It depends on the wants alone, not on their order.

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::place::ALIGNMENT_MIN;
use super::split::{PUBLISHED_REGIONS, published_bytes_max};
use super::{Band, JointRange, Strides, unique};

/// Slices and shared ranges below this length, bytes, are joined with those that they touch: one
/// read for several ranks costs less than one each.
const SMALL_BYTES: u64 = 1 << 20;

/// Most reads of interleaved bytes per file, all ranks together; what goes beyond is shared.
const INTERLEAVED_READS_MAX: usize = 1024;

/// One rank's wish for one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankWant {
    /// Index of the tensor in the checkpoint.
    pub tensor: usize,
    /// Index of its source.
    pub source: usize,
    /// Range in the source: from the first wanted byte to the last.
    pub range: Range<u64>,
    /// Wanted bytes of that range; all if `None`.
    pub strides: Option<Strides>,
    /// True if all bytes of the tensor are wanted.
    pub whole: bool,
}

/// Parameters of [`share`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRules {
    /// Leaves every read to the leader, which checks what it reads.
    pub all: bool,
    /// Alignment of reads, bytes: a power of two.
    pub alignment: u64,
    /// Largest gap that costs less to read than to skip, bytes.
    pub gap_bytes: u64,
}

/// Bytes of one tensor that the leader reads for other ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRange {
    /// Index of the tensor in the checkpoint.
    pub tensor: usize,
    /// Index of its source.
    pub source: usize,
    /// Range in the source.
    pub range: Range<u64>,
    /// Ranks that want bytes of it, ascending.
    pub ranks: Vec<usize>,
    /// Index of the range that several nodes want, if it is one.
    pub common: Option<usize>,
    /// Regions that it is published as, in the order of their first bytes; a single one that holds
    /// all of it if there are none.
    pub bands: Vec<Band>,
}

/// Reads of a node, by who makes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharePlan {
    /// Reads of the leader: by source and offset, disjoint.
    pub shared: Vec<SharedRange>,
    /// Position of each want in `shared`, by rank and index of the want; `None` if the rank reads
    /// it itself.
    pub by_rank: Vec<Vec<Option<usize>>>,
    /// Number of different bytes that ranks of the node want. Exact for tensors that are split as
    /// tensor parallelism does, and for all whose slices have a bounded number of runs; for others
    /// the lesser of the wants' sum and the length from the first byte to the last.
    pub unique_bytes: u64,
    /// Ranges of which the node reads all bytes, or nearly all, each with its source: ascending,
    /// disjoint, merged where they touch.
    pub dense: Vec<(usize, Range<u64>)>,
}

/// A want that has bytes, and its place in the argument of [`share`].
pub(super) struct Need<'w> {
    pub(super) want: &'w RankWant,
    rank: usize,
    index: usize,
}

impl Need<'_> {
    pub(super) fn bytes(&self) -> u64 {
        let all = self.want.range.end - self.want.range.start;
        self.want.strides.as_ref().map_or(all, Strides::bytes)
    }

    /// Returns whether the only rank that wants these bytes reads them itself.
    fn is_worth_a_read(&self) -> bool {
        let RankWant { range, whole, .. } = self.want;
        *whole || range.end - range.start >= SMALL_BYTES
    }

    /// Returns the ranges of the source that hold the wanted bytes, with gaps of up to `gap` bytes.
    pub(super) fn spans(&self, gap: u64) -> impl Iterator<Item = Range<u64>> {
        let RankWant { range, strides, .. } = self.want;
        let start = range.start;
        let whole = strides.is_none().then(|| range.clone());
        let spans = strides.iter().flat_map(move |strides| strides.spans(gap));
        whole
            .into_iter()
            .chain(spans.map(move |span| start + span.start..start + span.end))
    }

    /// Returns the maximum number of [spans](Self::spans); at least half as many exist.
    pub(super) fn spans_max(&self, gap: u64) -> u64 {
        let strides = self.want.strides.as_ref();
        strides.map_or(1, |strides| strides.spans_of(gap))
    }
}

/// Divides what the ranks of one node want, by rank, into separate and shared reads.
///
/// Wants of one tensor whose ranges overlap form an overlap. A rank reads by itself
///
/// * an overlap of its own, if it is the whole tensor or at least 1 MiB long;
/// * its bytes of an overlap of several wants that interleave without common bytes, such as columns
///   of a matrix, if the reads of all ranks together take at most 1.25 × the bytes that they want,
///   and those of the file at most 1,024 reads.
///
/// Everything else is shared: one range for each overlap, and one for neighbours of one tensor
/// that touch, if they are shorter than 1 MiB or the leader reads everything. Tensors must not
/// overlap in the file.
///
/// A shared range of 1 MiB or more is published in [bands](Band) if all ranks that want it take
/// slices of one dimension, such as columns.
pub fn share(wants: &[Vec<RankWant>], rules: &ShareRules) -> SharePlan {
    share_with(wants, rules, &[])
}

/// Like [`share`], where the leader also reads or receives the ranges that several nodes want:
/// `common`, in file order. A rank reads by itself what lies in one of them only in part: bytes of
/// slices that no plan counts as one range.
pub fn share_with(wants: &[Vec<RankWant>], rules: &ShareRules, common: &[JointRange]) -> SharePlan {
    let mut plan = SharePlan {
        by_rank: wants.iter().map(|wants| vec![None; wants.len()]).collect(),
        ..SharePlan::default()
    };
    let needs = sorted_needs(wants);
    let (astride, needs): (Vec<_>, Vec<_>) =
        (needs.into_iter()).partition(|need| is_astride(need.want, common));
    let mut unique = unique::Counter::default();
    let (mut source, mut reads_left) = (None, INTERLEAVED_READS_MAX);
    // True while the last shared range may grow.
    let mut open = false;
    let mut rest = &needs[..];
    while let Some(first) = rest.first() {
        let in_common = joint_with(first.want, common);
        let (overlapping, range) = match in_common {
            Some(index) => (needs_in(rest, &common[index]), common[index].range.clone()),
            None => first_overlapping(rest),
        };
        rest = &rest[overlapping.len()..];
        let unique_bytes = unique_bytes(&mut unique, overlapping);
        plan.unique_bytes += unique_bytes;
        if source != Some(first.want.source) {
            (source, reads_left) = (Some(first.want.source), INTERLEAVED_READS_MAX);
        }
        let own = match overlapping {
            _ if rules.all || in_common.is_some() => None,
            [one] => one.is_worth_a_read().then_some(0),
            several => own_reads(several, rules, reads_left),
        };
        reads_left -= own.unwrap_or(0);
        let is_own = own.is_some();
        if !is_own || unique_bytes >= (range.end - range.start) / 5 * 4 {
            plan.add_dense(first.want.source, &range);
        }
        if is_own {
            open = false;
            continue;
        }
        // A digest covers a whole tensor, so the leader reads its rows as one range.
        let joins = rules.all || range.end - range.start < SMALL_BYTES;
        let small = in_common.is_none() && joins;
        match plan.shared.last_mut() {
            Some(last)
                if open
                    && small
                    && (last.source, last.tensor) == (first.want.source, first.want.tensor)
                    && last.range.end == range.start =>
            {
                last.range.end = range.end;
                last.bands.clear();
            }
            _ => plan.shared.push(SharedRange {
                tensor: first.want.tensor,
                source: first.want.source,
                bands: bands(overlapping).unwrap_or_default(),
                range,
                ranks: Vec::new(),
                common: in_common,
            }),
        }
        open = small;
        let index = plan.shared.len() - 1;
        for need in overlapping {
            plan.by_rank[need.rank][need.index] = Some(index);
            plan.shared[index].ranks.push(need.rank);
        }
    }
    plan.settle();
    if !astride.is_empty() {
        plan.unique_bytes = unique_bytes(&mut unique, &sorted_needs(wants));
    }
    plan
}

impl SharedRange {
    /// Returns the band that a want of this range is taken from, its offset there, and its bytes
    /// behind that if they are not next to each other; `None` if the range is published whole.
    pub fn place(&self, want: &RankWant) -> Option<(usize, u64, Option<Strides>)> {
        let is_before = |band: &Band| band.range.start <= want.range.start;
        let band = (self.bands.partition_point(is_before)).checked_sub(1)?;
        let (offset, strides) = self.bands[band].place(want.range.start, want.strides.as_ref());
        Some((band, offset, strides))
    }
}

impl SharePlan {
    /// Sorts the ranks of each range, and publishes ranges whole that may share a region with
    /// others, that other nodes want too, or of which a single band has nearly all.
    fn settle(&mut self) {
        let len = |it: &SharedRange| it.range.end - it.range.start;
        let least = published_bytes_max(self.shared.iter().map(len).sum());
        let mut regions = 0;
        for it in &mut self.shared {
            it.ranks.sort_unstable();
            it.ranks.dedup();
            let is_dense = matches!(&it.bands[..], [one] if one.bytes() >= len(it) / 5 * 4);
            if is_dense || len(it) < least || it.common.is_some() {
                it.bands.clear();
            }
            regions += it.bands.len();
            if regions > PUBLISHED_REGIONS {
                // Each rank knows of all regions, and maps those that it keeps.
                it.bands.clear();
            }
        }
    }

    fn add_dense(&mut self, source: usize, range: &Range<u64>) {
        match self.dense.last_mut() {
            Some((last, before)) if *last == source && before.end >= range.start => {
                before.end = before.end.max(range.end);
            }
            _ => self.dense.push((source, range.clone())),
        }
    }
}

/// Returns bands of the bytes that needs want; `None` if they are not all of one dimension.
pub(super) fn bands(overlapping: &[Need<'_>]) -> Option<Vec<Band>> {
    let needs = overlapping.iter();
    Band::disjoint(needs.map(|it| (it.rank, &it.want.range, it.want.strides.as_ref())))
}

/// Returns the number of different bytes that needs want.
fn unique_bytes(unique: &mut unique::Counter, mut needs: &[Need<'_>]) -> u64 {
    let mut bytes = 0;
    while !needs.is_empty() {
        let (overlapping, range) = first_overlapping(needs);
        bytes += unique.bytes(overlapping, &range);
        needs = &needs[overlapping.len()..];
    }
    bytes
}

/// Returns whether a want lies in a common range only in part.
fn is_astride(want: &RankWant, common: &[JointRange]) -> bool {
    let start = (want.source, want.range.start);
    let index = common.partition_point(|it| (it.source, it.range.end) <= start);
    common.get(index).is_some_and(|it| {
        let meets = it.tensor == want.tensor && it.range.start < want.range.end;
        let holds = it.range.start <= want.range.start && want.range.end <= it.range.end;
        meets && !holds
    })
}

/// Returns the position of the common range that a want lies in.
fn joint_with(want: &RankWant, common: &[JointRange]) -> Option<usize> {
    let key = (want.source, want.range.start, want.tensor);
    let behind = |it: &JointRange| (it.source, it.range.start, it.tensor) <= key;
    let index = common.partition_point(behind).checked_sub(1)?;
    let found = &common[index];
    (found.tensor == want.tensor && want.range.start < found.range.end).then_some(index)
}

/// Returns the needs at the beginning of `needs` that lie in a common range.
fn needs_in<'c, 'w>(needs: &'c [Need<'w>], common: &JointRange) -> &'c [Need<'w>] {
    let is_inside = |need: &&Need<'_>| {
        let RankWant { tensor, range, .. } = need.want;
        *tensor == common.tensor && range.start < common.range.end
    };
    &needs[..needs.iter().take_while(is_inside).count()]
}

/// Returns the wants that have bytes, by source and offset.
fn sorted_needs(wants: &[Vec<RankWant>]) -> Vec<Need<'_>> {
    let by_rank = wants.iter().enumerate();
    let mut needs: Vec<Need<'_>> = by_rank
        .flat_map(|(rank, wants)| {
            let wants = wants.iter().enumerate();
            wants.map(move |(index, want)| Need { want, rank, index })
        })
        .filter(|need| !need.want.range.is_empty())
        .collect();
    needs.sort_unstable_by_key(|need| {
        let RankWant { range, tensor, .. } = need.want;
        (need.want.source, range.start, *tensor, range.end)
    });
    needs
}

/// Returns the needs at the beginning of `needs` that overlap, and the range of all of them.
fn first_overlapping<'c, 'w>(needs: &'c [Need<'w>]) -> (&'c [Need<'w>], Range<u64>) {
    let RankWant {
        tensor,
        source,
        range,
        ..
    } = needs[0].want;
    let mut end = range.end;
    let mut len = 1;
    for Need { want, .. } in &needs[1..] {
        if (want.source, want.tensor) != (*source, *tensor) || want.range.start >= end {
            break;
        }
        end = end.max(want.range.end);
        len += 1;
    }
    (&needs[..len], range.start..end)
}

/// Returns the number of reads with which all ranks of an overlap read their bytes themselves;
/// `None` if they read a byte twice, too many other bytes, or in more than `reads_max` reads.
///
/// Counts as [`super::build`] reads: gaps are joined, and spans are rounded outwards.
fn own_reads(overlapping: &[Need<'_>], rules: &ShareRules, reads_max: usize) -> Option<usize> {
    let alignment = rules.alignment.max(ALIGNMENT_MIN);
    let gap = rules.gap_bytes.max(2 * alignment);
    // Give up on too many reads before the spans are listed, which takes time.
    let at_least = overlapping.iter().map(|need| need.spans_max(gap) / 2);
    if at_least.fold(0, u64::saturating_add) > reads_max as u64 {
        return None;
    }
    let wanted: u64 = overlapping.iter().map(Need::bytes).sum();
    let mut spans = Vec::new();
    let mut read = 0;
    for span in overlapping.iter().flat_map(|need| need.spans(gap)) {
        read += span.end.next_multiple_of(alignment) - span.start / alignment * alignment;
        if spans.len() == reads_max || read > wanted + wanted / 4 {
            return None;
        }
        spans.push(span);
    }
    spans.sort_unstable_by_key(|span| span.start);
    let disjoint = spans.windows(2).all(|pair| pair[0].end <= pair[1].start);
    disjoint.then_some(spans.len())
}
