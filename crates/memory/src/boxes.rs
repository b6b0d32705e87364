//! Boxes: parts of a tensor that go to elements of the caller's memory with gaps between them.
//!
//! ```text
//!  tensor     a0 a1 a2 a3 b0 b1 b2 b3        run: 2 bytes each
//!  box        └─┘   ┌─────┘                  dims: 2 × (4 bytes in the tensor, 6 in memory)
//!  memory     a0 a1 .. .. .. .. b0 b1
//! ```
//!
//! Knows nothing of reads: any range of the tensor's bytes may come, in any order.

#![expect(
    unsafe_code,
    reason = "writes into memory that the caller has vouched for"
)]

use std::ptr::NonNull;

/// Part of a tensor, and the elements of the caller's memory that its bytes go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetBox {
    /// Address of the first element.
    start: NonNull<u8>,
    /// Offset of the first byte in the tensor.
    offset: usize,
    /// Bytes that are contiguous on both sides.
    run: usize,
    /// Repetitions of the run, from the outermost in. An inner one never reaches, in the tensor,
    /// into the next step of the one around it.
    dims: Box<[BoxDim]>,
}

/// Repetition along one dimension of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxDim {
    /// Number of steps.
    pub count: usize,
    /// Bytes from one step to the next, in the tensor.
    pub source_stride: usize,
    /// Bytes from one step to the next, in memory.
    pub stride: usize,
}

/// Bytes of a tensor on their way into a box.
struct Piece<'a> {
    bytes: &'a [u8],
    /// Their offset in the tensor.
    first: usize,
    start: NonNull<u8>,
    run: usize,
}

impl TargetBox {
    /// Creates a box in `memory`, of elements of `element` bytes that begin at `offset` in the
    /// tensor and at `place` in memory. Dimensions come in any order.
    ///
    /// Returns `None` for a box that leaves the memory or has no elements, or whose dimensions
    /// reach into each other in the tensor.
    pub fn new(
        memory: NonNull<[u8]>,
        offset: usize,
        place: usize,
        element: usize,
        dims: impl IntoIterator<Item = BoxDim>,
    ) -> Option<Self> {
        let mut dims: Vec<BoxDim> = dims.into_iter().filter(|dim| dim.count != 1).collect();
        dims.sort_by_key(|dim| (dim.source_stride, dim.stride));
        let (mut source_end, mut end) = (element, element);
        for dim in &dims {
            let steps = dim.count.checked_sub(1)?;
            if dim.source_stride < source_end {
                return None;
            }
            source_end = steps
                .checked_mul(dim.source_stride)?
                .checked_add(source_end)?;
            end = steps.checked_mul(dim.stride)?.checked_add(end)?;
        }
        source_end.checked_add(offset)?;
        if element == 0 || end.checked_add(place)? > memory.len() {
            return None;
        }
        let mut run = element;
        let is_next = |run: usize, dim: &BoxDim| dim.source_stride == run && dim.stride == run;
        let joined = dims.iter().take_while(|dim| {
            let is_joined = is_next(run, dim);
            if is_joined {
                run *= dim.count;
            }
            is_joined
        });
        let joined = joined.count();
        dims.drain(..joined);
        dims.reverse();
        // SAFETY: inside the memory, checked above.
        let start = unsafe { memory.cast::<u8>().add(place) };
        Some(Self {
            start,
            offset,
            run,
            dims: dims.into(),
        })
    }

    /// Returns the address of the first element.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// Returns the offset behind the last byte, in the tensor.
    #[must_use]
    pub fn source_end(&self) -> usize {
        self.offset + span(&self.dims, self.run)
    }

    /// Writes those of the `bytes` at `first` of the tensor that belong to the box.
    ///
    /// # Safety
    ///
    /// The memory of the box must be valid for writes, and nothing else may use the elements that
    /// these bytes go to.
    pub unsafe fn write(&self, first: usize, bytes: &[u8]) {
        if bytes.is_empty() || first >= self.source_end() || first + bytes.len() <= self.offset {
            return;
        }
        let bytes = Piece {
            bytes,
            first,
            start: self.start,
            run: self.run,
        };
        // SAFETY: `new` has checked that all elements are inside the memory, for which the caller
        // vouches.
        unsafe { bytes.copy(&self.dims, self.offset, 0) };
    }
}

impl Piece<'_> {
    /// Copies what there is of the elements that begin at `offset` in the tensor, to `place`.
    ///
    /// # Safety
    ///
    /// As for [`TargetBox::write`]; the elements must be those of the box.
    unsafe fn copy(&self, dims: &[BoxDim], offset: usize, place: usize) {
        let end = self.first + self.bytes.len();
        let Some((dim, inner)) = dims.split_first() else {
            let (from, to) = (offset.max(self.first), (offset + self.run).min(end));
            if from < to {
                let bytes = &self.bytes[from - self.first..to - self.first];
                // SAFETY: inside the box, as the caller says.
                let target = unsafe { self.start.add(place + (from - offset)) };
                // SAFETY: as above; the bytes come from staging memory, which is elsewhere.
                unsafe { copy_bytes(bytes, target) };
            }
            return;
        };
        // Steps that end behind the first byte, and begin before the end: 10 bytes from 4 on, steps
        // of 4 and spans of 2 are 1..4 (4..6, 8..10, 12..14).
        let step = dim.source_stride;
        let before = self.first.checked_sub(offset + span(inner, self.run));
        let steps = before.map_or(0, |before| before / step + 1);
        let steps_end = end.saturating_sub(offset).div_ceil(step).min(dim.count);
        for index in steps..steps_end {
            // SAFETY: the caller vouches for all steps.
            unsafe { self.copy(inner, offset + index * step, place + index * dim.stride) };
        }
    }
}

/// Copies bytes to `target`; single elements without a call.
///
/// # Safety
///
/// The target must be valid for writes of as many bytes, which nothing else uses.
unsafe fn copy_bytes(bytes: &[u8], target: NonNull<u8>) {
    let source = NonNull::from(bytes).cast::<u8>();
    match bytes.len() {
        // SAFETY: the caller vouches for the target; the bytes are elsewhere.
        1 => unsafe { target.copy_from_nonoverlapping(source, 1) },
        // SAFETY: as above.
        2 => unsafe { target.copy_from_nonoverlapping(source, 2) },
        // SAFETY: as above.
        4 => unsafe { target.copy_from_nonoverlapping(source, 4) },
        // SAFETY: as above.
        len => unsafe { target.copy_from_nonoverlapping(source, len) },
    }
}

/// Returns the bytes from the first to the last one of these dimensions, in the tensor.
fn span(dims: &[BoxDim], run: usize) -> usize {
    let steps = dims.iter().map(|dim| (dim.count - 1) * dim.source_stride);
    steps.sum::<usize>() + run
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dim(count: usize, source_stride: usize, stride: usize) -> BoxDim {
        BoxDim {
            count,
            source_stride,
            stride,
        }
    }

    fn of(memory: &mut [u8]) -> NonNull<[u8]> {
        NonNull::from(memory)
    }

    /// Returns the offsets of all bytes, in the tensor and in memory.
    fn pairs(offset: usize, place: usize, element: usize, dims: &[BoxDim]) -> Vec<(usize, usize)> {
        let mut pairs: Vec<_> = (0..element).map(|it| (offset + it, place + it)).collect();
        for dim in dims {
            let steps = 0..dim.count;
            pairs = steps
                .flat_map(|index| {
                    let at = (index * dim.source_stride, index * dim.stride);
                    pairs
                        .iter()
                        .map(move |(one, other)| (one + at.0, other + at.1))
                })
                .collect();
        }
        pairs
    }

    #[test]
    fn runs_of_the_example_go_to_their_places() {
        let mut memory = [0; 8];
        let it = TargetBox::new(of(&mut memory), 0, 0, 2, [dim(2, 4, 6)]).expect("inside");
        assert_eq!(it.source_end(), 6);
        // SAFETY: the memory is of this test.
        unsafe { it.write(0, b"abcdefgh") };
        assert_eq!(&memory, b"ab\0\0\0\0ef");
    }

    #[test]
    fn contiguous_dimensions_are_one_run() {
        let mut memory = [0; 64];
        let dims = [dim(2, 32, 32), dim(8, 4, 4), dim(1, 0, 0), dim(2, 2, 2)];
        let it = TargetBox::new(of(&mut memory), 0, 0, 2, dims).expect("inside");
        assert_eq!((it.run, it.dims.len()), (64, 0));
    }

    #[test]
    fn boxes_that_leave_the_memory_or_reach_into_themselves_are_none() {
        let mut memory = [0; 16];
        let refused: [(usize, usize, usize, &[BoxDim]); 9] = [
            (0, 0, 17, &[]),
            (0, 1, 2, &[dim(8, 2, 2)]),
            (0, 0, 0, &[]),
            (0, 0, 2, &[dim(0, 2, 2)]),
            (0, 0, 2, &[dim(2, 1, 4)]),
            (0, 0, 2, &[dim(2, 0, 2)]),
            (0, 0, 1, &[dim(3, 1, 1), dim(2, 2, 4)]),
            (0, 0, 1, &[dim(usize::MAX, 2, usize::MAX)]),
            (usize::MAX, 0, 1, &[dim(2, 1, 1)]),
        ];
        for (offset, place, element, dims) in refused {
            let made = TargetBox::new(of(&mut memory), offset, place, element, dims.to_vec());
            assert_eq!(made, None, "{offset} {place} {element} {dims:?}");
        }
    }

    /// The bytes of random boxes arrive in pieces of any length, in any order.
    #[test]
    fn pieces_in_any_order_fill_the_box_and_nothing_else() {
        let rounds = if cfg!(miri) { 20 } else { 500 };
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..rounds {
            let element = 1 << random.usize(0..4);
            let mut dims = Vec::new();
            let mut reach = element;
            for _ in 0..random.usize(0..4) {
                let (count, gap) = (random.usize(1..5), random.usize(0..3) * element);
                dims.push(dim(count, reach + gap, 0));
                reach = (count - 1) * (reach + gap) + reach;
            }
            random.shuffle(&mut dims);
            let mut end = element;
            for dim in &mut dims {
                dim.stride = end + random.usize(0..3);
                end += (dim.count - 1) * dim.stride;
            }
            random.shuffle(&mut dims);
            let (offset, place) = (random.usize(0..9), random.usize(0..9));
            let tensor: Vec<u8> = (0..offset + reach + random.usize(0..5))
                .map(|_| random.u8(1..))
                .collect();
            let mut memory = vec![0; place + end + random.usize(0..5)];
            let mut wanted = memory.clone();
            for (from, to) in pairs(offset, place, element, &dims) {
                wanted[to] = tensor[from];
            }
            let made = TargetBox::new(of(&mut memory), offset, place, element, dims.clone());
            let made = made.expect("inside, and nested");
            assert_eq!(made.source_end(), offset + reach);
            let mut cuts: Vec<usize> = (0..random.usize(0..6))
                .map(|_| random.usize(0..=tensor.len()))
                .collect();
            cuts.extend([0, tensor.len()]);
            cuts.sort_unstable();
            let mut pieces: Vec<_> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
            random.shuffle(&mut pieces);
            for piece in pieces {
                // SAFETY: the memory is of this test.
                unsafe { made.write(piece.start, &tensor[piece]) };
            }
            assert_eq!(memory, wanted, "{round}: {dims:?}");
        }
    }
}
