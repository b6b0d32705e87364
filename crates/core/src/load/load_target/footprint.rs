//! The bytes that a load target covers, and the bytes that two of them share. Pure.

use super::LoadTarget;
use crate::options::Device;

/// Maximum number of sums tried before two load targets count as too irregular to compare. Nested
/// layouts, such as rows, columns and every second element of one matrix, need fewer than a
/// hundred.
const TRIED_MAX: u32 = 100_000;

/// Positions of a load target's elements in memory, also if they are not contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadTargetLayout {
    /// Address of the first element.
    pub address: u64,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Length, and stride in bytes, of each dimension.
    pub dims: Vec<(usize, isize)>,
    /// Name of the element type, for errors. Load targets with the same memory and different names
    /// are not the same tensor.
    pub elements: String,
}

impl LoadTargetLayout {
    /// Returns the layout that a load target states, or else that of its contiguous memory; none if
    /// it has no bytes.
    pub(in crate::load) fn from_target(load_target: &LoadTarget) -> Option<Self> {
        let layout = match (&load_target.layout, &load_target.memory) {
            (Some(layout), _) => layout.clone(),
            (None, Some(memory)) => Self {
                address: memory.address(),
                element_bytes: 1,
                dims: vec![(memory.len(), 1)],
                elements: load_target
                    .dtype
                    .map_or("another type", crate::format::Dtype::name)
                    .to_owned(),
            },
            (None, None) => return None,
        };
        let empty = layout.element_bytes == 0 || layout.dims.iter().any(|&(len, _)| len == 0);
        (!empty).then_some(layout)
    }

    /// Returns whether the elements follow each other without gaps, the last dimension fastest.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = self.element_bytes as i128;
        let empty = self.dims.iter().any(|&(len, _)| len == 0);
        empty
            || self.dims.iter().rev().all(|&(len, stride)| {
                // The stride of a dimension with one element has no effect.
                let follows = len == 1 || stride as i128 == expected;
                expected = expected.saturating_mul(len as i128);
                follows
            })
    }

    /// Returns whether two elements may share a byte. Exact for dimensions that nest; `true` for
    /// some irregular strides that would be free of overlap.
    pub fn may_overlap_itself(&self) -> bool {
        if self.dims.iter().any(|&(len, _)| len == 0) {
            return false;
        }
        let mut steps: Vec<(i128, i128)> = self
            .dims
            .iter()
            .filter(|&&(len, _)| len > 1)
            .map(|&(len, stride)| ((stride as i128).abs(), len as i128 - 1))
            .collect();
        steps.sort_unstable();
        let mut reach = self.element_bytes as i128 - 1;
        steps.into_iter().any(|(stride, most)| {
            let overlaps = stride <= reach;
            reach += stride * most;
            overlaps
        })
    }

    /// Returns whether an index means the same address in both.
    pub(in crate::load) fn agrees_with(&self, other: &Self) -> bool {
        // The stride of a dimension with one element has no effect.
        let moves = |layout: &Self| -> Vec<(usize, isize)> {
            let dims = layout.dims.iter();
            dims.map(|&(len, stride)| (len, if len == 1 { 0 } else { stride }))
                .collect()
        };
        self.address == other.address
            && self.element_bytes == other.element_bytes
            && self.elements == other.elements
            && moves(self) == moves(other)
    }
}

/// Bytes of a layout. Layouts whose dimensions nest have equal footprints if, and only if, they
/// cover the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::load) struct Footprint {
    ordinal: Option<usize>,
    first: i128,
    last: i128,
    steps: Vec<Step>,
}

/// One dimension of a footprint. Each byte is the first one plus, for every step, `stride` times
/// one of `0..=most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Step {
    stride: i128,
    most: i128,
}

impl Footprint {
    pub(in crate::load) fn new(load_target: &LoadTarget) -> Option<Self> {
        let layout = LoadTargetLayout::from_target(load_target)?;
        let mut first = i128::from(layout.address);
        let mut steps = vec![Step {
            stride: 1,
            most: layout.element_bytes as i128 - 1,
        }];
        for &(len, stride) in &layout.dims {
            let (stride, most) = (stride as i128, len as i128 - 1);
            first += stride.min(0) * most;
            steps.push(Step {
                stride: stride.abs(),
                most,
            });
        }
        let steps = simplified(steps);
        Some(Self {
            ordinal: match load_target.device {
                Device::Cpu => None,
                Device::Cuda(ordinal) => Some(ordinal),
            },
            first,
            last: first + reach(&steps),
            steps,
        })
    }

    /// Returns whether the other footprint, which begins no earlier, begins within this one.
    pub(in crate::load) fn bounds(&self, other: &Self) -> bool {
        self.ordinal == other.ordinal && other.first <= self.last
    }

    /// Returns whether a byte belongs to both; none if their strides are too irregular to tell.
    pub(in crate::load) fn shares(&self, other: &Self) -> Option<bool> {
        if self.ordinal != other.ordinal {
            return Some(false);
        }
        // Counting the other layout from its end puts all strides on one side:
        // `first + Σ a·x = other.last - Σ b·y`.
        let steps = simplified([self.steps.as_slice(), &other.steps].concat());
        let mut tries = TRIED_MAX;
        sums_to(&steps, other.last - self.first, &mut tries)
    }
}

/// Sorts by descending stride, and merges steps that continue where another one ends. The sums are
/// unchanged.
fn simplified(mut steps: Vec<Step>) -> Vec<Step> {
    steps.retain(|step| step.most > 0 && step.stride > 0);
    steps.sort_unstable();
    let mut kept: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        match kept.last_mut() {
            // A stride that multiples of a smaller one reach, or stop just short of, leaves no gap.
            Some(last)
                if step.stride % last.stride == 0
                    && step.stride / last.stride <= last.most.saturating_add(1) =>
            {
                last.most += step.most * (step.stride / last.stride);
            }
            _ => kept.push(step),
        }
    }
    kept.reverse();
    kept
}

fn reach(steps: &[Step]) -> i128 {
    steps.iter().map(|step| step.stride * step.most).sum()
}

/// Returns whether multiples of the strides, each within its limit, sum to `wanted`.
fn sums_to(steps: &[Step], wanted: i128, tries: &mut u32) -> Option<bool> {
    let Some((step, rest)) = steps.split_first() else {
        return Some(wanted == 0);
    };
    let least = (wanted - reach(rest) + step.stride - 1).div_euclid(step.stride);
    let most = wanted.div_euclid(step.stride).min(step.most);
    for times in least.max(0)..=most {
        *tries = tries.checked_sub(1)?;
        if sums_to(rest, wanted - times * step.stride, tries)? {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::format::Dtype;
    use tload_testing::fixtures::Rng;

    fn footprint(address: u64, element_bytes: usize, dims: &[(usize, isize)]) -> Footprint {
        let load_target = LoadTarget {
            name: String::new(),
            dtype: Some(Dtype::F32),
            shape: dims.iter().map(|&(len, _)| len).collect(),
            device: Device::Cpu,
            memory: None,
            layout: Some(LoadTargetLayout {
                address,
                element_bytes,
                dims: dims.to_vec(),
                elements: "F32".to_owned(),
            }),
        };
        Footprint::new(&load_target).expect("has bytes")
    }

    fn bytes(address: u64, element_bytes: usize, dims: &[(usize, isize)]) -> HashSet<i128> {
        let mut starts = vec![i128::from(address)];
        for &(len, stride) in dims {
            let steps = |start| (0..len).map(move |index| start + (index as i128) * stride as i128);
            starts = starts.into_iter().flat_map(steps).collect();
        }
        let spread = |start| (0..element_bytes as i128).map(move |byte| start + byte);
        starts.into_iter().flat_map(spread).collect()
    }

    #[test]
    fn random_layouts_shares_agrees_with_byte_sets() {
        let mut rng = Rng::new(20);
        let mut found = [0, 0];
        for _ in 0..20_000 {
            let mut any = || {
                let strides: Vec<isize> = (-20..=20).collect();
                let dims: Vec<(usize, isize)> = (0..rng.index(4))
                    .map(|_| (1 + rng.index(4), strides[rng.index(strides.len())]))
                    .collect();
                (500 + rng.below(60), 1 + rng.index(4), dims)
            };
            let (a, b) = (any(), any());
            let (one, other) = (footprint(a.0, a.1, &a.2), footprint(b.0, b.1, &b.2));
            let (ours, theirs) = (bytes(a.0, a.1, &a.2), bytes(b.0, b.1, &b.2));
            let expected = !ours.is_disjoint(&theirs);
            assert_eq!(one.shares(&other), Some(expected), "{a:?} {b:?}");
            assert_eq!(other.shares(&one), Some(expected), "{a:?} {b:?}");
            if one == other {
                assert_eq!(ours, theirs, "{a:?} {b:?}");
            }
            found[usize::from(expected)] += 1;
        }
        assert!(found.iter().all(|&times| times > 1_000), "{found:?}");
    }

    #[test]
    fn random_layouts_contiguous_and_overlapping_agree_with_byte_lists() {
        let mut rng = Rng::new(21);
        let mut found = [0; 3];
        for _ in 0..20_000 {
            let dims: Vec<(usize, isize)> = (0..rng.index(4))
                .map(|_| (rng.index(4), [-4, 1, 2, 4, 8, 12][rng.index(6)]))
                .collect();
            let layout = LoadTargetLayout {
                address: 500,
                element_bytes: [1, 2, 4][rng.index(3)],
                dims,
                elements: "F32".to_owned(),
            };
            let mut starts = vec![0];
            for &(len, stride) in &layout.dims {
                let steps = |start| (0..len).map(move |at| start + at as i128 * stride as i128);
                starts = starts.into_iter().flat_map(steps).collect();
            }
            let width = layout.element_bytes as i128;
            let follow = |pair: &[i128]| pair[1] == pair[0] + width;
            assert_eq!(
                layout.is_contiguous(),
                starts.windows(2).all(follow),
                "{layout:?}"
            );
            starts.sort_unstable();
            let overlap = starts.windows(2).any(|pair| pair[1] < pair[0] + width);
            assert!(layout.may_overlap_itself() || !overlap, "{layout:?}");
            found[usize::from(layout.is_contiguous()) * 2] += 1;
            found[1] += usize::from(overlap);
        }
        assert!(found.iter().all(|&times| times > 1_000), "{found:?}");
    }

    #[test]
    fn strides_that_nest_do_not_overlap() {
        for (dims, overlaps) in [
            (vec![(3, 20), (5, 4)], false),
            (vec![(5, 4), (3, 20)], false),
            (vec![(3, -20), (5, 4)], false),
            (vec![(2, 0)], true),
            (vec![(1, 0)], false),
            (vec![(2, 2)], true),
            (vec![(4, 4), (4, 4)], true),
            (vec![(4, 0), (0, 4)], false),
            (vec![], false),
        ] {
            let layout = LoadTargetLayout {
                address: 4096,
                element_bytes: 4,
                dims,
                elements: "F32".to_owned(),
            };
            assert_eq!(layout.may_overlap_itself(), overlaps, "{layout:?}");
        }
    }

    #[test]
    fn matrix_and_transpose_have_equal_footprints() {
        let rows = footprint(4096, 4, &[(3000, 20_000), (5000, 4)]);
        let columns = footprint(4096, 4, &[(5000, 4), (3000, 20_000)]);
        let turned = footprint(
            4096 + 2999 * 20_000 + 4999 * 4,
            4,
            &[(3000, -20_000), (5000, -4)],
        );
        let flat = footprint(4096, 1, &[(60_000_000, 1)]);
        assert!(rows == columns && rows == turned && rows == flat);
        assert_eq!(rows.shares(&columns), Some(true));
    }

    #[test]
    fn interleaved_views_of_large_matrices_are_told_apart() {
        let even = footprint(4096, 2, &[(100_000, 80_000), (20_000, 4)]);
        let odd = footprint(4098, 2, &[(100_000, 80_000), (20_000, 4)]);
        assert!(even.bounds(&odd));
        assert_eq!(even.shares(&odd), Some(false));
        let row = footprint(4096 + 80_000 * 77, 2, &[(40_000, 2)]);
        assert_eq!(even.shares(&row), Some(true));
        let left = footprint(4096, 2, &[(100_000, 80_000), (20_000, 2)]);
        let right = footprint(4096 + 40_000, 2, &[(100_000, 80_000), (20_000, 2)]);
        assert_eq!(left.shares(&right), Some(false));
        assert_eq!(right.shares(&even), Some(true));
    }

    #[test]
    fn irregular_strides_are_undecided() {
        let one = footprint(4096, 1, &[(9000, 10_007), (9000, 10_009), (9000, 10_037)]);
        let other = footprint(5000, 1, &[(9000, 20_011), (9000, 20_021), (9000, 20_023)]);
        assert_eq!(one.shares(&other), None, "too many sums to try");
    }
}
