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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Indices, NodeWants, Slice, divide};

    const RULES: ShareRules = ShareRules {
        all: false,
        alignment: 4096,
        gap_bytes: 0,
    };

    const MIB: usize = 1 << 20;

    /// Tensor of bytes at an offset of source 0.
    #[derive(Clone, Debug)]
    struct Matrix {
        tensor: usize,
        start: u64,
        rows: usize,
        columns: usize,
    }

    impl Matrix {
        fn new(rows: usize, columns: usize) -> Self {
            Self {
                tensor: 0,
                start: 4096,
                rows,
                columns,
            }
        }

        fn cut(&self, dims: [Indices; 2]) -> RankWant {
            let shape = [self.rows, self.columns];
            let cut = Slice::new(dims).cut(&shape, 8).expect("inside");
            RankWant {
                tensor: self.tensor,
                source: 0,
                range: self.start + cut.range.start..self.start + cut.range.end,
                strides: cut.strides,
                whole: cut.shape == shape,
            }
        }

        fn rows(&self, rows: Range<usize>) -> RankWant {
            self.cut([rows.into(), (0..self.columns).into()])
        }

        fn columns(&self, columns: Range<usize>) -> RankWant {
            self.cut([(0..self.rows).into(), columns.into()])
        }

        fn whole(&self) -> RankWant {
            self.rows(0..self.rows)
        }

        /// Returns the slice of one of `size` ranks along a dimension.
        fn even_share(&self, dim: usize, rank: usize, size: usize) -> RankWant {
            let all = [self.rows, self.columns][dim];
            let len = all.div_ceil(size);
            let share = (rank * len).min(all)..((rank + 1) * len).min(all);
            if dim == 0 {
                self.rows(share)
            } else {
                self.columns(share)
            }
        }

        /// Returns everything, a slice of rows, one of columns, or one of both, by `kind`.
        fn any_share(&self, kind: usize, dims: [(u32, u32, usize); 2]) -> RankWant {
            if kind == 0 {
                return self.whole();
            }
            let mut rows = within(dims[0], self.rows);
            let mut columns = within(dims[1], self.columns);
            if kind == 1 {
                columns = (0..self.columns).into();
            } else if kind == 2 {
                rows = (0..self.rows).into();
            }
            // Single bytes of long rows are many runs.
            if self.columns > 1000 {
                columns.count = (columns.count * columns.step).min(self.columns - columns.start);
                columns.step = 1;
            }
            self.cut([rows, columns])
        }
    }

    /// Returns one want for each of `size` ranks: its even share of `len` indices.
    fn even(size: usize, len: usize, cut: impl Fn(Range<usize>) -> RankWant) -> Vec<Vec<RankWant>> {
        let step = len / size;
        let ranks = 0..size;
        ranks
            .map(|rank| vec![cut(rank * step..(rank + 1) * step)])
            .collect()
    }

    /// Returns range and ranks of each shared range.
    fn shared(plan: &SharePlan) -> Vec<(Range<u64>, &[usize])> {
        let shared = plan.shared.iter();
        shared
            .map(|shared| (shared.range.clone(), &shared.ranks[..]))
            .collect()
    }

    fn all_own(wants: &[Vec<RankWant>]) -> bool {
        let plan = share(wants, &RULES);
        plan.shared.is_empty() && plan.by_rank.iter().flatten().all(Option::is_none)
    }

    /// A digest of the leader is one of a whole tensor.
    #[test]
    fn rows_that_the_leader_reads_for_all_are_one_range() {
        let matrix = Matrix::new(1024, 4096);
        let wants = even(2, 1024, |rows| matrix.rows(rows));
        let rules = ShareRules { all: true, ..RULES };
        let plan = share(&wants, &rules);
        assert_eq!(shared(&plan), [(4096..4096 + (4 << 20), &[0, 1][..])]);
    }

    #[test]
    fn large_slices_of_rows_are_own_reads() {
        let matrix = Matrix::new(64, 256 << 10);
        let wants = even(8, 64, |rows| matrix.rows(rows));
        assert!(all_own(&wants));
        assert_eq!(share(&wants, &RULES).unique_bytes, 16 << 20);
    }

    /// Ranges that other nodes want too go through the leader, whatever their length.
    #[test]
    fn common_ranges_are_left_to_the_leader() {
        let matrix = Matrix::new(64, 256 << 10);
        let wants = even(8, 64, |rows| matrix.rows(rows));
        let alone = share(&wants, &RULES);
        assert_eq!(alone.dense, [(0, 4096..4096 + (16 << 20))]);
        let common = [JointRange {
            tensor: 0,
            source: 0,
            range: 4096..4096 + (8 << 20),
            owner: 3,
            nodes: vec![0, 3],
        }];
        let plan = share_with(&wants, &RULES, &common);
        assert_eq!(shared(&plan), [(4096..4096 + (8 << 20), &[0, 1, 2, 3][..])]);
        assert_eq!(plan.shared[0].common, Some(0));
        assert_eq!(plan.by_rank[3], [Some(0)]);
        assert_eq!(plan.by_rank[4], [None]);
        assert_eq!(plan.unique_bytes, alone.unique_bytes);
    }

    /// Half of the columns of some rows, of which other nodes want the first ones only.
    #[test]
    fn rank_reads_itself_what_lies_in_a_common_range_in_part() {
        let matrix = Matrix::new(1200, 4096);
        let half = matrix.cut([(800..1200).into(), (0..2048).into()]);
        let node = [vec![matrix.rows(0..800)], vec![half]];
        let alone = share(&node, &RULES);
        let other = share(&[vec![matrix.rows(0..1000)]], &RULES);
        let common = common_of([&alone, &other], &[(0, matrix.whole().range)]);
        assert_eq!(common.len(), 1);
        assert_eq!(common[0].range, matrix.rows(0..1000).range);
        let plan = share_with(&node, &RULES, &common);
        assert_eq!(plan.by_rank, [[Some(0)], [None]]);
        assert_eq!(plan.unique_bytes, alone.unique_bytes);
    }

    /// Returns what two nodes want of `tensors` together.
    fn common_of(nodes: [&SharePlan; 2], tensors: &[(usize, Range<u64>)]) -> Vec<JointRange> {
        let nodes = nodes.into_iter().enumerate();
        let nodes = nodes.map(|(leader, plan)| NodeWants {
            leader,
            ranges: plan.dense.clone(),
        });
        divide(tensors, &nodes.collect::<Vec<_>>(), false)
    }

    #[test]
    fn slices_of_long_rows_are_own_reads_and_of_short_rows_shared() {
        let long = Matrix::new(64, MIB);
        let wants = even(8, MIB, |columns| long.columns(columns));
        assert!(all_own(&wants));
        assert_eq!(share(&wants, &RULES).unique_bytes, 64 << 20);

        let short = Matrix::new(4096, 8192);
        let wants = even(8, 8192, |columns| short.columns(columns));
        let plan = share(&wants, &RULES);
        let end = 4096 + (4096 * 8192);
        assert_eq!(shared(&plan), [(4096..end, &[0, 1, 2, 3, 4, 5, 6, 7][..])]);
        assert!(plan.by_rank.iter().all(|wants| wants[..] == [Some(0)]));
        assert_eq!(plan.unique_bytes, end - 4096);
    }

    #[test]
    fn unaligned_columns_cost_more_than_a_quarter_beside() {
        // 16 KiB and 2 edges of half a page: 20 KiB of reads, exactly a quarter more.
        let columns = 32 << 10;
        let mut matrix = Matrix::new(8, 2 * columns);
        matrix.start += 2048;
        let cut = |from: usize, len: usize| matrix.columns(from..from + len);
        let apart = |len| vec![vec![cut(0, len)], vec![cut(columns, len)]];
        assert!(all_own(&apart(16 << 10)));
        assert_eq!(share(&apart((16 << 10) - 512), &RULES).shared.len(), 1);
    }

    #[test]
    fn interleaved_reads_of_a_file_are_bounded() {
        let tensor = |index: usize, rows: usize| Matrix {
            tensor: index,
            start: (index as u64) << 40,
            ..Matrix::new(rows, 128 << 10)
        };
        let own = |rows: &[usize]| {
            let half = |columns: Range<usize>| {
                let tensors = rows.iter().enumerate();
                let wants = tensors.map(|(index, rows)| {
                    let mut want = tensor(index, *rows).columns(columns.clone());
                    // The last tensor is in another file.
                    want.source = usize::from(index == 3);
                    want
                });
                wants.collect::<Vec<_>>()
            };
            let plan = share(&[half(0..64 << 10), half(64 << 10..128 << 10)], &RULES);
            assert_eq!(plan.by_rank[0], plan.by_rank[1]);
            let own = plan.by_rank[0].iter().map(Option::is_none);
            own.collect::<Vec<_>>()
        };
        assert_eq!(own(&[512, 1]), [true, false]);
        assert_eq!(own(&[513, 512]), [false, true]);
        assert_eq!(own(&[256, 257, 256, 512]), [true, false, true, true]);
    }

    #[test]
    fn bytes_that_several_ranks_want_are_shared() {
        let (small, large) = (
            Matrix::new(1, 100),
            Matrix {
                tensor: 1,
                start: 8192,
                ..Matrix::new(2, 2 * MIB)
            },
        );
        let wants = vec![vec![small.whole(), large.whole()]; 3];
        let plan = share(&wants, &RULES);
        let ranks = &[0, 1, 2][..];
        let end = 8192 + (4 << 20);
        assert_eq!(shared(&plan), [(4096..4196, ranks), (8192..end, ranks)]);
        assert_eq!(plan.by_rank, vec![vec![Some(0), Some(1)]; 3]);
        assert_eq!(plan.unique_bytes, 100 + (4 << 20));

        // Two of them overlap only partly, and one rank wants columns of both.
        let wants = [
            vec![large.rows(0..1)],
            vec![large.cut([(0..2).into(), (0..MIB).into()])],
        ];
        let plan = share(&wants, &RULES);
        assert_eq!(shared(&plan), [(8192..8192 + (3 << 20), &[0, 1][..])]);
        assert_eq!(plan.unique_bytes, 3 << 20);
    }

    #[test]
    fn experts_and_stages_are_own_reads() {
        // Whole tensors of one rank each, however small.
        let tensor = |index: usize| Matrix {
            tensor: index,
            start: index as u64 * 100,
            ..Matrix::new(1, 100)
        };
        let wants: Vec<Vec<RankWant>> = (0..4)
            .map(|rank| {
                (0..8)
                    .map(|index| tensor(rank * 8 + index).whole())
                    .collect()
            })
            .collect();
        assert!(all_own(&wants));
        let plan = share(&wants, &RULES);
        assert_eq!(plan.unique_bytes, 3200);

        let all = ShareRules { all: true, ..RULES };
        let plan = share(&wants, &all);
        assert_eq!(plan.shared.len(), 32);
        assert!(
            plan.shared
                .iter()
                .all(|shared| shared.range.end - shared.range.start == 100)
        );
        assert!(plan.by_rank.iter().flatten().all(Option::is_some));
        assert_eq!(plan.unique_bytes, 3200);
    }

    #[test]
    fn small_slices_join_where_they_touch() {
        let matrix = Matrix::new(8, 1000);
        let plan = share(&even(8, 8, |rows| matrix.rows(rows)), &RULES);
        assert_eq!(
            shared(&plan),
            [(4096..12096, &[0, 1, 2, 3, 4, 5, 6, 7][..])]
        );
        assert_eq!(plan.unique_bytes, 8000);

        // Rank 1 is on another node.
        let plan = share(
            &[vec![matrix.rows(0..2)], vec![], vec![matrix.rows(4..6)]],
            &RULES,
        );
        let (first, second) = (4096..6096, 8096..10096);
        assert_eq!(shared(&plan), [(first, &[0][..]), (second, &[2][..])]);
        assert_eq!(plan.by_rank, [vec![Some(0)], vec![], vec![Some(1)]]);

        // A large neighbour is read alone, and neighbours in other tensors are apart.
        let matrix = Matrix::new(4, MIB);
        let small = Matrix {
            tensor: 1,
            start: 4096 + (4 << 20),
            ..Matrix::new(2, 1000)
        };
        let wants = [
            vec![matrix.rows(0..3)],
            vec![matrix.cut([(3..4).into(), (0..1000).into()])],
            vec![matrix.cut([(3..4).into(), (1000..MIB).into()])],
            vec![small.rows(0..1)],
        ];
        let plan = share(&wants, &RULES);
        let found = plan.by_rank.iter().map(|wants| wants[0]);
        assert_eq!(found.collect::<Vec<_>>(), [None, Some(0), Some(0), Some(1)]);
    }

    #[test]
    fn tensor_without_bytes_is_not_shared() {
        let wants = vec![vec![Matrix::new(0, 100).whole()]; 3];
        let all = ShareRules { all: true, ..RULES };
        let plan = share(&wants, &all);
        assert_eq!((plan.shared.len(), plan.unique_bytes), (0, 0));
        assert_eq!(plan.by_rank, vec![vec![None]; 3]);
        assert_eq!(share(&[], &RULES), SharePlan::default());
    }

    #[test]
    fn many_tensors_take_few_runs() {
        // A step that is quadratic in the tensors would take minutes.
        let want = |rank: usize, index: usize| {
            let tensor = Matrix {
                tensor: index,
                start: (index as u64) << 30,
                ..Matrix::new(8192, 8192)
            };
            match index % 4 {
                0 => tensor.rows(rank * 1024..(rank + 1) * 1024),
                1 => tensor.whole(),
                _ => tensor.columns(rank * 1024..(rank + 1) * 1024),
            }
        };
        let ranks = 0..8;
        let wants: Vec<Vec<RankWant>> = ranks
            .map(|rank| (0..50_000).map(|index| want(rank, index)).collect())
            .collect();
        let plan = share(&wants, &RULES);
        assert_eq!(plan.shared.len(), 37_500);
        assert_eq!(plan.unique_bytes, 50_000 << 26);
    }

    /// Wants of random ranks for random tensors, one source after the other.
    fn cases() -> impl Strategy<Value = (Vec<Vec<RankWant>>, ShareRules)> {
        let size = 1usize..6;
        size.prop_flat_map(|size| {
            let width = prop::sample::select(vec![0, 10, 1000, 4096, 65_536, 300_000, 1 << 20]);
            let any_steps = (any::<u32>(), any::<u32>(), 1usize..4);
            let dims = [any_steps.clone(), any_steps];
            let want = (0usize..4, dims, any::<bool>());
            // Even shares along a dimension, or anything.
            let split = prop::option::of(0usize..2);
            let tensor = (
                0usize..40,
                width,
                0u64..5000,
                split,
                prop::collection::vec(want, size),
            );
            let rules = (
                prop::bool::weighted(0.1),
                prop::sample::select(vec![1, 512, 4096]),
                prop::sample::select(vec![0, 4096, 65_536, 1 << 20]),
            );
            (prop::collection::vec(tensor, 0..8), rules, 1usize..9)
        })
        .prop_map(|(tensors, rules, per_source)| {
            let size = tensors.first().map_or(1, |tensor| tensor.4.len());
            let mut by_rank = vec![Vec::new(); size];
            let mut start = 0;
            for (index, (rows, columns, gap, split, wants)) in tensors.into_iter().enumerate() {
                let matrix = Matrix {
                    tensor: index,
                    start: start + gap,
                    ..Matrix::new(rows, columns)
                };
                start += gap + (rows * columns) as u64;
                for (rank, (kind, dims, is_wanted)) in wants.into_iter().enumerate() {
                    let want = match split {
                        Some(dim) => Some(matrix.even_share(dim, rank, size)),
                        None => is_wanted.then(|| matrix.any_share(kind, dims)),
                    };
                    let Some(mut want) = want else { continue };
                    want.source = index / per_source;
                    by_rank[rank].push(want);
                }
            }
            let (all, alignment, gap_bytes) = rules;
            let rules = ShareRules {
                all,
                alignment,
                gap_bytes,
            };
            (by_rank, rules)
        })
    }

    fn within((start, count, step): (u32, u32, usize), len: usize) -> Indices {
        let start = start as usize % len.max(1);
        let most = len.saturating_sub(start).div_ceil(step);
        Indices {
            start,
            count: count as usize % (most + 1),
            step,
            single: false,
        }
    }

    /// Returns source and range of each run of wanted bytes, sorted.
    fn runs<'w>(wants: impl IntoIterator<Item = &'w RankWant>) -> Vec<(usize, Range<u64>)> {
        let mut runs = Vec::new();
        for want in wants.into_iter().filter(|want| !want.range.is_empty()) {
            let (rank, index) = (0, 0);
            let need = Need { want, rank, index };
            runs.extend(need.spans(0).map(|run| (want.source, run)));
        }
        runs.sort_unstable_by_key(|(source, run)| (*source, run.start));
        runs
    }

    fn are_disjoint(ranges: &[(usize, Range<u64>)]) -> bool {
        let follows = |pair: &[(usize, Range<u64>)]| {
            (pair[0].0, pair[0].1.end) <= (pair[1].0, pair[1].1.start)
        };
        ranges.windows(2).all(follows)
    }

    fn different_bytes(runs: &[(usize, Range<u64>)]) -> u64 {
        let (mut bytes, mut end) = (0, (0, 0));
        for (source, run) in runs {
            let before = if end.0 == *source { end.1 } else { 0 };
            bytes += run.end.saturating_sub(run.start.max(before));
            end = (*source, before.max(run.end));
        }
        bytes
    }

    /// Returns the ranks of each band of the only shared range.
    fn ranks_of_bands(wants: &[RankWant]) -> Vec<Vec<usize>> {
        let wants: Vec<_> = wants.iter().map(|want| vec![want.clone()]).collect();
        let plan = share(&wants, &RULES);
        assert_eq!(plan.shared.len(), 1);
        let bands = plan.shared[0].bands.iter();
        bands.map(|band| band.takers.clone()).collect()
    }

    #[test]
    fn columns_are_published_in_bands() {
        let matrix = Matrix::new(2048, 1000);
        let columns = |columns: Range<usize>| matrix.columns(columns);
        // Distinct, also of different lengths.
        let thirds = [columns(0..400), columns(400..800), columns(800..1000)];
        assert_eq!(ranks_of_bands(&thirds), [[0], [1], [2]]);
        // The order of the ranks does not count, and columns that no rank wants are left out.
        let few = [columns(990..1000), columns(10..20), columns(10..20)];
        assert_eq!(ranks_of_bands(&few), [vec![1, 2], vec![0]]);
        // Columns that overlap share a band.
        let overlapping = [columns(0..400), columns(300..500), columns(500..900)];
        assert_eq!(ranks_of_bands(&overlapping), [vec![0, 1], vec![2]]);
        // Few columns that several ranks want are a band, but nearly all of a tensor is published
        // whole.
        assert_eq!(
            ranks_of_bands(&[columns(0..100), columns(0..100)]),
            [[0, 1]]
        );
        assert_eq!(
            ranks_of_bands(&[columns(0..990), columns(0..990)]),
            [[0; 0]; 0]
        );
    }

    #[test]
    fn mixed_wants_are_published_whole() {
        let matrix = Matrix::new(2048, 1000);
        let (left, right) = (matrix.columns(0..500), matrix.columns(500..1000));
        let even = Indices {
            start: 0,
            count: 250,
            step: 2,
            single: false,
        };
        let others = [
            matrix.whole(),
            matrix.rows(0..1500),
            matrix.cut([(0..2000).into(), (0..100).into()]),
            matrix.cut([(0..2048).into(), even]),
        ];
        for other in others {
            let wants = [left.clone(), right.clone(), other];
            assert_eq!(ranks_of_bands(&wants), [[0; 0]; 0]);
        }
        // Tensors that share a region with others.
        let small = Matrix::new(1024, 1000);
        let wants = [small.columns(0..500), small.columns(500..1000)];
        assert_eq!(ranks_of_bands(&wants), [[0; 0]; 0]);
    }

    #[test]
    fn ranges_of_several_nodes_are_published_whole() {
        let matrix = Matrix::new(2048, 1000);
        let wants = [matrix.columns(0..500), matrix.columns(500..1000)].map(|want| vec![want]);
        let common = JointRange {
            tensor: 0,
            source: 0,
            range: matrix.whole().range,
            owner: 0,
            nodes: vec![0, 2],
        };
        let plan = share_with(&wants, &RULES, &[common]);
        assert_eq!((plan.shared.len(), plan.shared[0].bands.len()), (1, 0));
    }

    #[test]
    fn verified_columns_are_read_whole_and_published_in_bands() {
        let matrix = Matrix::new(2048, 1000);
        let wants = [matrix.columns(0..500), matrix.columns(500..1000)].map(|want| vec![want]);
        let all = ShareRules { all: true, ..RULES };
        let plan = share(&wants, &all);
        assert_eq!(plan.shared.len(), 1);
        assert_eq!(plan.shared[0].range, matrix.whole().range);
        assert_eq!(plan.shared[0].bands.len(), 2);
    }

    proptest! {
        #[test]
        fn bands_hold_the_wanted_bytes((wants, rules) in cases()) {
            let plan = share(&wants, &rules);
            let runs = |start: u64, strides: &Strides| -> Vec<Range<u64>> {
                let runs = strides.spans(0);
                runs.map(|run| start + run.start..start + run.end).collect()
            };
            let of_band = |band: &Band| runs(band.range.start, &band.strides);
            for shared in &plan.shared {
                // Never more memory than for all of the range.
                let mut held: Vec<_> = shared.bands.iter().flat_map(of_band).collect();
                held.sort_unstable_by_key(|run| run.start);
                prop_assert!(held.windows(2).all(|pair| pair[0].end <= pair[1].start));
                let (first, last) = (held.first(), held.last());
                prop_assert!(first.is_none_or(|run| run.start >= shared.range.start));
                prop_assert!(last.is_none_or(|run| run.end <= shared.range.end));
                prop_assert!(shared.bands.iter().map(|band| band.range.start).is_sorted());
            }
            let mut takers: Vec<Vec<Vec<usize>>> = (plan.shared.iter())
                .map(|shared| vec![Vec::new(); shared.bands.len()])
                .collect();
            for (rank, wants) in wants.iter().enumerate() {
                for (want, index) in wants.iter().zip(&plan.by_rank[rank]) {
                    let Some(index) = *index else { continue };
                    let shared = &plan.shared[index];
                    let Some((band, offset, strides)) = shared.place(want) else {
                        prop_assert!(shared.bands.is_empty());
                        continue;
                    };
                    takers[index][band].push(rank);
                    let band = &shared.bands[band];
                    let wanted = want.strides.as_ref().expect("else it is published whole");
                    let Some(strides) = strides else {
                        prop_assert_eq!((offset, &band.range, &band.strides), (0, &want.range, wanted));
                        continue;
                    };
                    // A run of the band lies at each multiple of its length.
                    let (held, run) = (of_band(band), band.strides.run());
                    let source = |found: Range<u64>| {
                        let start = held[usize::try_from(found.start / run).expect("small")].start;
                        start + found.start % run..start + found.start % run + (found.end - found.start)
                    };
                    let found: Vec<_> = runs(offset, &strides).into_iter().map(source).collect();
                    prop_assert_eq!(found, runs(want.range.start, wanted));
                }
            }
            for (shared, takers) in plan.shared.iter().zip(takers) {
                for (band, mut takers) in shared.bands.iter().zip(takers) {
                    takers.dedup();
                    prop_assert_eq!(&band.takers, &takers);
                }
            }
        }

        #[test]
        fn each_wanted_byte_is_read_once((wants, rules) in cases()) {
            let plan = share(&wants, &rules);
            let mut own = Vec::new();
            let mut consumers = vec![Vec::new(); plan.shared.len()];
            for (rank, wants) in wants.iter().enumerate() {
                prop_assert_eq!(wants.len(), plan.by_rank[rank].len());
                for (want, shared) in wants.iter().zip(&plan.by_rank[rank]) {
                    let Some(index) = *shared else {
                        prop_assert!(!rules.all || want.range.is_empty());
                        own.push(want);
                        continue;
                    };
                    let shared = &plan.shared[index];
                    prop_assert_eq!((shared.source, shared.tensor), (want.source, want.tensor));
                    prop_assert!(!want.range.is_empty());
                    prop_assert!(shared.range.start <= want.range.start);
                    prop_assert!(want.range.end <= shared.range.end);
                    consumers[index].push(rank);
                }
            }
            for (shared, mut consumers) in plan.shared.iter().zip(consumers) {
                consumers.dedup();
                prop_assert_eq!(&shared.ranks, &consumers);
            }
            let by_leader: Vec<_> = (plan.shared.iter())
                .map(|shared| (shared.source, shared.range.clone()))
                .collect();
            prop_assert!(are_disjoint(&by_leader), "in order: {by_leader:?}");
            let mut own = runs(own);
            prop_assert!(are_disjoint(&own), "own reads: {own:?}");
            let wanted = different_bytes(&runs(wants.iter().flatten()));
            prop_assert_eq!(plan.unique_bytes, wanted);
            // None of the bytes that a rank reads is read by the leader.
            own.extend(by_leader);
            own.sort_unstable_by_key(|(source, range)| (*source, range.start));
            prop_assert!(are_disjoint(&own));
        }

        #[test]
        fn wants_lie_in_the_ranges_that_nodes_share((wants, rules) in cases()) {
            let mut tensors: Vec<(usize, Range<u64>)> = Vec::new();
            for tensor in 0..8 {
                let wants = || wants.iter().flatten().filter(|want| want.tensor == tensor);
                let start = wants().map(|want| want.range.start).min();
                let end = wants().map(|want| want.range.end).max();
                let source = wants().map(|want| want.source).next();
                let before = tensors.last().map_or((0, 0), |(source, range)| (*source, range.end));
                let (start, end) = (start.unwrap_or(before.1), end.unwrap_or(before.1));
                tensors.push((source.unwrap_or(before.0), start..end));
            }
            let (first, second) = wants.split_at(wants.len() / 2);
            let alone = [share(first, &rules), share(second, &rules)];
            let common = common_of([&alone[0], &alone[1]], &tensors);
            for (node, alone) in [first, second].into_iter().zip(alone) {
                let plan = share_with(node, &rules, &common);
                prop_assert_eq!(plan.unique_bytes, alone.unique_bytes);
                for (want, shared) in node.iter().flatten().zip(plan.by_rank.iter().flatten()) {
                    let Some(shared) = shared.map(|index| &plan.shared[index]) else {
                        continue;
                    };
                    prop_assert!(shared.range.start <= want.range.start);
                    prop_assert!(want.range.end <= shared.range.end);
                }
                // Each node asks for every common range that it wants of its owner.
                let joint: Vec<_> = plan.shared.iter().filter_map(|it| it.common).collect();
                prop_assert!(joint.is_sorted());
            }
        }

        #[test]
        fn order_of_ranks_changes_no_range((wants, rules) in cases(), by in any::<prop::sample::Index>()) {
            let plan = share(&wants, &rules);
            let by = by.index(wants.len());
            let mut turned = wants.clone();
            turned.rotate_left(by);
            for wants in &mut turned {
                wants.reverse();
            }
            let other = share(&turned, &rules);
            let ranges = |plan: &SharePlan| -> Vec<_> {
                let of_bands = |shared: &SharedRange| -> Vec<_> {
                    let bands = shared.bands.iter();
                    bands.map(|band| (band.range.clone(), band.strides.clone())).collect()
                };
                (plan.shared.iter())
                    .map(|it| (it.source, it.tensor, it.range.clone(), of_bands(it)))
                    .collect()
            };
            prop_assert_eq!(ranges(&plan), ranges(&other));
            prop_assert_eq!(plan.unique_bytes, other.unique_bytes);
            let mut places = other.by_rank;
            for places in &mut places {
                places.reverse();
            }
            places.rotate_right(by);
            prop_assert_eq!(plan.by_rank, places);
        }
    }
}
