//! The smallest slice of a tensor that has all of its boxes, and where they are in it. Pure.
//!
//! ```text
//!  tensor of 4 × 6    ······ ·aa·b· ·aa·b· ······
//!  slice [1:3, 1:5]           aa·b   aa·b
//! ```
//!
//! Counts in bytes: the bytes of an element are one more axis, which a slice never cuts.

use crate::memory::BoxDim;
use crate::plan::{Indices, Slice};

/// A tensor is read as a whole if its slice would have more than this share of it, in tenths: to
/// skip less saves no time.
const WORTH_TENTHS: u128 = 9;

/// The elements of a tensor that a box takes, by byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Offset of the first element.
    pub(super) offset: usize,
    /// Bytes of an element.
    pub(super) element: usize,
    pub(super) dims: Vec<BoxDim>,
}

/// A box by the axes of its tensor.
#[derive(Debug)]
struct Taken {
    /// By axis.
    starts: Vec<usize>,
    steps: Vec<Steps>,
}

/// Elements that a box takes along one axis.
#[derive(Debug)]
struct Steps {
    axis: usize,
    count: usize,
    step: usize,
    /// Bytes from one to the next, in memory.
    stride: usize,
}

/// Indices along one axis that are in a slice.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    low: usize,
    high: usize,
    /// All of them are a multiple of this behind the first; 0 if there is one.
    step: usize,
}

/// Returns the smallest slice of a row-major tensor of this shape that has all `boxes`, which must
/// be inside the tensor, and makes their offsets and strides those in the slice. `None`, and
/// nothing changes, if the whole tensor is as good: also for boxes that are no slice along each
/// axis.
pub(super) fn within(
    boxes: Vec<&mut Source>,
    shape: &[usize],
    element_bits: usize,
) -> Option<Slice> {
    let size = element_bits.is_multiple_of(8).then_some(element_bits / 8)?;
    let axes: Vec<usize> = shape.iter().copied().chain([size]).collect();
    let whole: usize = axes.iter().product();
    let takes_all = |it: &&mut Source| it.bytes() == Some(whole);
    if boxes.is_empty() || whole == 0 || boxes.iter().any(takes_all) {
        return None;
    }
    let strides = row_major(&axes);
    let taken: Vec<Taken> = boxes
        .iter()
        .map(|it| it.taken(&axes, &strides))
        .collect::<Option<_>>()?;
    let mut bounds: Vec<Bounds> = (0..axes.len())
        .map(|axis| Bounds::of(axis, &taken))
        .collect();
    bounds[shape.len()] = Bounds {
        low: 0,
        high: size - 1,
        step: 1,
    };
    let counts: Vec<usize> = bounds.iter().map(Bounds::count).collect();
    let cut: usize = counts.iter().product();
    if cut as u128 * 10 > whole as u128 * WORTH_TENTHS {
        return None;
    }
    let strides = row_major(&counts);
    for (source, taken) in boxes.into_iter().zip(taken) {
        let along = taken.starts.iter().zip(&bounds).zip(&strides);
        source.offset = along
            .map(|((start, bounds), stride)| bounds.number(*start) * stride)
            .sum();
        let dims = taken.steps.into_iter().map(|it| BoxDim {
            count: it.count,
            source_stride: it.step / bounds[it.axis].step.max(1) * strides[it.axis],
            stride: it.stride,
        });
        source.dims = dims.collect();
    }
    let indices = bounds[..shape.len()].iter().map(|it| Indices {
        start: it.low,
        count: it.count(),
        step: it.step.max(1),
        single: false,
    });
    Some(Slice::new(indices))
}

impl Source {
    /// Returns the number of bytes, if it is a number.
    fn bytes(&self) -> Option<usize> {
        let mut counts = self.dims.iter().map(|dim| dim.count);
        counts.try_fold(self.element, usize::checked_mul)
    }

    /// Returns the box by the axes of its tensor, if its elements are a slice along each.
    fn taken(&self, axes: &[usize], strides: &[usize]) -> Option<Taken> {
        let mut rest = self.offset;
        let starts: Vec<usize> = (strides.iter())
            .map(|stride| {
                let start = rest / stride;
                rest %= stride;
                start
            })
            .collect();
        let mut reach = starts.clone();
        // An element that is longer than those of the tensor may go on in the next row.
        *reach.last_mut()? += self.element.checked_sub(1)?;
        let mut steps = Vec::with_capacity(self.dims.len());
        for dim in &self.dims {
            divide(*dim, axes, strides, &starts, &mut steps)?;
        }
        // Several steps along one axis must not leave it together.
        for it in &steps {
            reach[it.axis] += (it.count - 1) * it.step;
        }
        let is_inside = reach.iter().zip(axes).all(|(last, len)| last < len);
        is_inside.then_some(Taken { starts, steps })
    }
}

/// Divides a dimension of a box into the axes of its tensor that it spans, the innermost first.
fn divide(
    dim: BoxDim,
    axes: &[usize],
    strides: &[usize],
    starts: &[usize],
    steps: &mut Vec<Steps>,
) -> Option<()> {
    let BoxDim {
        mut count,
        mut source_stride,
        mut stride,
    } = dim;
    for axis in (0..axes.len()).rev() {
        if count == 1 {
            break;
        }
        let len = axes[axis];
        if len == 1 || source_stride >= strides[axis] * len {
            continue;
        }
        if source_stride % strides[axis] != 0 {
            return None;
        }
        let step = source_stride / strides[axis];
        if starts[axis] + (count - 1) * step < len {
            steps.push(Steps {
                axis,
                count,
                step,
                stride,
            });
            return Some(());
        }
        // It goes on in the next axis: only whole ones do.
        if step != 1 || starts[axis] != 0 || !count.is_multiple_of(len) {
            return None;
        }
        steps.push(Steps {
            axis,
            count: len,
            step,
            stride,
        });
        count /= len;
        source_stride *= len;
        stride *= len;
    }
    (count == 1).then_some(())
}

impl Bounds {
    /// Returns the bounds of all boxes along an axis.
    fn of(axis: usize, taken: &[Taken]) -> Self {
        let lows = taken.iter().map(|it| it.starts[axis]);
        let low = lows.min().unwrap_or(0);
        let (mut high, mut step) = (low, 0);
        for it in taken {
            let mut last = it.starts[axis];
            step = divisor(step, last - low);
            for steps in it.steps.iter().filter(|it| it.axis == axis) {
                last += (steps.count - 1) * steps.step;
                step = divisor(step, steps.step);
            }
            high = high.max(last);
        }
        Self { low, high, step }
    }

    fn count(&self) -> usize {
        self.number(self.high) + 1
    }

    /// Returns the number of an index among those of the slice.
    fn number(&self, index: usize) -> usize {
        (index - self.low) / self.step.max(1)
    }
}

/// Returns the greatest common divisor; that of 0 and a number is the number.
fn divisor(one: usize, other: usize) -> usize {
    if other == 0 {
        one
    } else {
        divisor(other, one % other)
    }
}

/// Returns the bytes from one index to the next, along each axis.
fn row_major(axes: &[usize]) -> Vec<usize> {
    let mut stride = 1;
    let mut strides: Vec<usize> = (axes.iter().rev())
        .map(|len| {
            let own = stride;
            stride *= len;
            own
        })
        .collect();
    strides.reverse();
    strides
}

#[cfg(test)]
mod tests {
    use super::*;
    use tload_testing::fixtures::Rng;

    fn dim(count: usize, source_stride: usize, stride: usize) -> BoxDim {
        BoxDim {
            count,
            source_stride,
            stride,
        }
    }

    fn source(offset: usize, element: usize, dims: &[BoxDim]) -> Source {
        Source {
            offset,
            element,
            dims: dims.to_vec(),
        }
    }

    /// Returns pairs of offsets in the tensor and in memory, of all elements.
    fn pairs(source: &Source) -> Vec<(usize, usize)> {
        let mut pairs = vec![(source.offset, 0)];
        for dim in &source.dims {
            pairs = (pairs.iter())
                .flat_map(|(from, to)| {
                    (0..dim.count)
                        .map(move |it| (from + it * dim.source_stride, to + it * dim.stride))
                })
                .collect();
        }
        pairs.sort_by_key(|(_, to)| *to);
        pairs
    }

    /// Returns the bytes of a slice of a tensor, in order.
    fn cut(tensor: &[u8], slice: &Slice, shape: &[usize], element: usize) -> Vec<u8> {
        let mut offsets = vec![0];
        for (indices, len) in slice.dims().iter().zip(shape) {
            offsets = (offsets.iter())
                .flat_map(|offset| {
                    (0..indices.count)
                        .map(move |it| offset * len + indices.start + it * indices.step)
                })
                .collect();
        }
        let bytes = |offset: usize| tensor[offset * element..(offset + 1) * element].to_vec();
        offsets.into_iter().flat_map(bytes).collect()
    }

    #[test]
    fn the_worked_example() {
        let (mut a, mut b) = (
            source(7, 1, &[dim(2, 6, 2), dim(2, 1, 1)]),
            source(10, 1, &[dim(2, 6, 1)]),
        );
        let slice = within(vec![&mut a, &mut b], &[4, 6], 8).expect("smaller");
        assert_eq!(slice, Slice::new([1..3, 1..5]));
        assert_eq!(a, source(0, 1, &[dim(2, 4, 2), dim(2, 1, 1)]));
        assert_eq!(b, source(3, 1, &[dim(2, 4, 1)]));
    }

    #[test]
    fn whole_tensors_and_irregular_boxes_are_not_cut() {
        // All of it, most of it, elements across rows, packed elements, and none.
        let cases: [(Source, &[usize], usize); 6] = [
            (source(0, 2, &[dim(48, 2, 2)]), &[8, 6], 16),
            (source(0, 2, &[dim(46, 2, 2)]), &[8, 6], 16),
            (source(4, 1, &[dim(4, 1, 1)]), &[4, 6], 8),
            (source(0, 2, &[dim(2, 2, 2)]), &[4, 6], 8),
            (source(0, 1, &[dim(2, 1, 1)]), &[4, 6], 4),
            (source(0, 1, &[]), &[4, 0], 8),
        ];
        for (source, shape, bits) in cases {
            let mut given = source.clone();
            assert_eq!(within(vec![&mut given], shape, bits), None, "{source:?}");
            assert_eq!(given, source);
        }
        assert_eq!(within(Vec::new(), &[4, 6], 8), None);
    }

    #[test]
    fn whole_rows_and_every_second_row_are_slices() {
        let mut rows = source(48, 2, &[dim(12, 2, 2)]);
        let slice = within(vec![&mut rows], &[8, 6], 16).expect("smaller");
        assert_eq!(slice, Slice::new([4..6, 0..6]));
        assert_eq!(rows, source(0, 2, &[dim(6, 2, 2), dim(2, 12, 12)]));
        let (mut one, mut other) = (
            source(12, 2, &[dim(6, 2, 2)]),
            source(60, 2, &[dim(6, 2, 2)]),
        );
        let slice = within(vec![&mut one, &mut other], &[8, 6], 16).expect("smaller");
        let second = Indices {
            start: 1,
            count: 2,
            step: 4,
            single: false,
        };
        assert_eq!(slice, Slice::new([second, Indices::from(0..6)]));
        assert_eq!((one.offset, other.offset), (0, 12));
    }

    /// The boxes have the same bytes in the slice as in the tensor, whatever they are.
    #[test]
    fn random_boxes_have_the_same_bytes_in_the_slice() {
        let mut rng = Rng::new(9);
        let mut cuts = 0;
        for _ in 0..20_000 {
            let shape: Vec<usize> = (0..rng.index(4)).map(|_| 1 + rng.index(6)).collect();
            let element = 1 << rng.index(3);
            let len = shape.iter().product::<usize>() * element;
            let tensor: Vec<u8> = (0..len).map(|_| rng.below(256).to_le_bytes()[0]).collect();
            let mut boxes = Vec::new();
            for _ in 0..=rng.index(3) {
                // A slice of the tensor, in any order and with neighbours joined, or anything.
                let mut offset = 0;
                let (mut stride, mut place) = (element, element);
                let mut dims: Vec<BoxDim> = Vec::new();
                for len in shape.iter().rev() {
                    let (start, step) = (rng.index(*len), 1 + rng.index(2));
                    let start = if rng.index(2) == 0 { 0 } else { start };
                    let most = (len - start).div_ceil(step);
                    let count = if rng.index(2) == 0 {
                        most
                    } else {
                        1 + rng.index(most)
                    };
                    offset += start * stride;
                    let next = dim(count, step * stride, place);
                    stride *= len;
                    place *= count;
                    match dims.last_mut() {
                        Some(last) if next.source_stride == last.source_stride * last.count => {
                            last.count *= count;
                        }
                        _ => dims.push(next),
                    }
                }
                if rng.index(8) == 0 {
                    let strides = [1, 2, 3, element * 5];
                    dims.push(dim(2, strides[rng.index(4)], place));
                }
                dims.retain(|dim| dim.count > 1);
                let it = source(offset, element, &dims);
                let end = pairs(&it).iter().map(|(from, _)| from + element).max();
                if end.is_some_and(|end| end <= len) {
                    boxes.push(it);
                }
            }
            let mut moved = boxes.clone();
            let Some(slice) = within(moved.iter_mut().collect(), &shape, element * 8) else {
                assert_eq!(moved, boxes);
                continue;
            };
            cuts += 1;
            let part = cut(&tensor, &slice, &shape, element);
            assert!(part.len() < tensor.len());
            for (before, after) in boxes.iter().zip(&moved) {
                let (before, after) = (pairs(before), pairs(after));
                assert_eq!(before.len(), after.len());
                for ((from, to), (part_from, part_to)) in before.into_iter().zip(after) {
                    assert_eq!(to, part_to);
                    let bytes = &part[part_from..part_from + element];
                    assert_eq!(bytes, &tensor[from..from + element], "{slice:?}");
                }
            }
        }
        assert!(cuts > 5000, "{cuts}");
    }
}
