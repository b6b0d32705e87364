//! Tests of shared reads.

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
fn joint_ranges_are_left_to_the_leader() {
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
fn rank_reads_itself_what_lies_partly_in_a_joint_range() {
    let matrix = Matrix::new(1200, 4096);
    let half = matrix.cut([(800..1200).into(), (0..2048).into()]);
    let node = [vec![matrix.rows(0..800)], vec![half]];
    let alone = share(&node, &RULES);
    let other = share(&[vec![matrix.rows(0..1000)]], &RULES);
    let common = joint_of([&alone, &other], &[(0, matrix.whole().range)]);
    assert_eq!(common.len(), 1);
    assert_eq!(common[0].range, matrix.rows(0..1000).range);
    let plan = share_with(&node, &RULES, &common);
    assert_eq!(plan.by_rank, [[Some(0)], [None]]);
    assert_eq!(plan.unique_bytes, alone.unique_bytes);
}

/// Returns what two nodes want of `tensors` together.
fn joint_of(nodes: [&SharePlan; 2], tensors: &[(usize, Range<u64>)]) -> Vec<JointRange> {
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
    let follows =
        |pair: &[(usize, Range<u64>)]| (pair[0].0, pair[0].1.end) <= (pair[1].0, pair[1].1.start);
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
        let common = joint_of([&alone[0], &alone[1]], &tensors);
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
