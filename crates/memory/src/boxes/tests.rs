//! Boxes of random strides, whose bytes come in pieces.

#![expect(unsafe_code, reason = "writes into memory of the tests")]

use super::*;
use tload_format::Dtype;

fn dim(count: usize, source_stride: usize, stride: usize) -> BoxDim {
    BoxDim {
        count,
        source_stride,
        stride,
    }
}

fn of(memory: &mut [u8]) -> BoxMemory {
    BoxMemory {
        address: memory.as_mut_ptr().expose_provenance(),
        len: memory.len(),
    }
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
    let refused: [(usize, usize, usize, &[BoxDim]); 12] = [
        (0, 0, 17, &[]),
        (0, 1, 2, &[dim(8, 2, 2)]),
        (0, 0, 0, &[]),
        (0, 0, 2, &[dim(0, 2, 2)]),
        (0, 0, 2, &[dim(2, 1, 4)]),
        (0, 0, 2, &[dim(2, 0, 2)]),
        (0, 0, 1, &[dim(3, 1, 1), dim(2, 2, 4)]),
        (0, 0, 1, &[dim(usize::MAX, 2, usize::MAX)]),
        (usize::MAX, 0, 1, &[dim(2, 1, 1)]),
        (0, usize::MAX, 1, &[dim(2, 1, 1)]),
        // In memory.
        (0, 0, 2, &[dim(2, 2, 1)]),
        (0, 0, 2, &[dim(2, 2, 2), dim(2, 4, 2)]),
    ];
    for (offset, place, element, dims) in refused {
        let made = TargetBox::new(of(&mut memory), offset, place, element, dims.to_vec());
        assert!(made.is_none(), "{offset} {place} {element} {dims:?}");
    }
}

/// A box of random strides, with its tensor.
struct Random {
    offset: usize,
    place: usize,
    dims: Vec<BoxDim>,
    tensor: Vec<u8>,
    /// Bytes of the memory.
    len: usize,
    /// Ranges of the tensor, in any order.
    pieces: Vec<Range<usize>>,
}

impl Random {
    /// Makes a box of elements of these sizes, in the tensor and in memory.
    fn new(random: &mut fastrand::Rng, source_element: usize, element: usize) -> Self {
        let mut dims = Vec::new();
        let mut reach = source_element;
        for _ in 0..random.usize(0..4) {
            let (count, gap) = (random.usize(1..5), random.usize(0..3) * source_element);
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
        let mut cuts: Vec<usize> = (0..random.usize(0..6))
            .map(|_| random.usize(0..=tensor.len()))
            .collect();
        cuts.extend([0, tensor.len()]);
        cuts.sort_unstable();
        let mut pieces: Vec<_> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
        random.shuffle(&mut pieces);
        Self {
            offset,
            place,
            dims,
            tensor,
            len: place + end + random.usize(0..5),
            pieces,
        }
    }

    /// Returns the offsets of the first bytes of all elements, in the tensor and in memory.
    fn elements(&self) -> Vec<(usize, usize)> {
        pairs(self.offset, self.place, 1, &self.dims)
    }
}

fn rounds() -> usize {
    if cfg!(miri) { 20 } else { 2000 }
}

/// The bytes of random boxes arrive in pieces of any length, in any order.
#[test]
fn pieces_in_any_order_fill_the_box_and_nothing_else() {
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..rounds() {
        let element = 1 << random.usize(0..4);
        let it = Random::new(&mut random, element, element);
        let mut memory = vec![0; it.len];
        let mut wanted = memory.clone();
        for (from, to) in it.elements() {
            wanted[to..to + element].copy_from_slice(&it.tensor[from..from + element]);
        }
        let dims = it.dims.clone();
        let made = TargetBox::new(of(&mut memory), it.offset, it.place, element, dims);
        let made = made.expect("inside, and nested");
        assert!(made.source_end() <= it.tensor.len());
        for piece in it.pieces {
            // SAFETY: the memory is of this test.
            unsafe { made.write(piece.start, &it.tensor[piece]) };
        }
        assert_eq!(memory, wanted, "{round}: {:?}", it.dims);
    }
}

/// As copies of rows, the same bytes come to the same places, and no row reaches into the next.
#[test]
fn rows_in_any_order_fill_the_box_and_nothing_else() {
    let mut random = fastrand::Rng::with_seed(8);
    let mut several = 0;
    for round in 0..rounds() {
        let element = 1 << random.usize(0..4);
        let it = Random::new(&mut random, element, element);
        let mut memory = vec![0; it.len];
        let mut wanted = memory.clone();
        for (from, to) in it.elements() {
            wanted[to..to + element].copy_from_slice(&it.tensor[from..from + element]);
        }
        let on_gpu = BoxMemory {
            address: 1 << 40,
            len: it.len,
        };
        let made = TargetBox::new(on_gpu, it.offset, it.place, element, it.dims.clone());
        let made = made.expect("inside, and nested");
        for piece in it.pieces {
            let bytes = &it.tensor[piece.clone()];
            made.rows(piece.start, bytes.len(), |Rows { from, to, copy }| {
                assert!(copy.width <= copy.pitch && copy.width <= copy.source_pitch);
                assert!(from + copy.source_span() <= bytes.len());
                several += usize::from(copy.count > 1);
                let to = usize::try_from(to).expect("fits") - (1 << 40);
                for row in 0..copy.count {
                    let source = &bytes[from + row * copy.source_pitch..][..copy.width];
                    memory[to + row * copy.pitch..][..copy.width].copy_from_slice(source);
                }
            });
        }
        assert_eq!(memory, wanted, "{round}: {:?}", it.dims);
    }
    assert!(several > rounds() / 4, "{several}");
}

/// Elements that are converted come in pieces that may end inside them.
#[test]
fn converted_elements_are_those_of_the_crate_that_converts() {
    let dtypes = [
        Dtype::F64,
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F8E4M3,
    ];
    let mut random = fastrand::Rng::with_seed(9);
    for round in 0..rounds() {
        let cast = Cast {
            from: dtypes[random.usize(0..dtypes.len())],
            to: dtypes[random.usize(0..dtypes.len())],
        };
        let (from_size, to_size) = (cast.from.bits() / 8, cast.to.bits() / 8);
        let it = Random::new(&mut random, from_size, to_size);
        let mut memory = vec![0; it.len];
        let mut wanted = memory.clone();
        for (from, to) in it.elements() {
            let source = &it.tensor[from..from + from_size];
            tload_convert::convert(source, cast.from, &mut wanted[to..to + to_size], cast.to);
        }
        let made = TargetBox::cast(of(&mut memory), it.offset, it.place, cast, it.dims.clone());
        let made = made.expect("inside, and nested");
        for piece in it.pieces {
            // SAFETY: the memory is of this test.
            unsafe { made.write(piece.start, &it.tensor[piece]) };
        }
        assert_eq!(memory, wanted, "{round}: {cast:?} {:?}", it.dims);
    }
}

#[test]
fn long_runs_are_converted_and_integers_are_not() {
    let tensor: Vec<u8> = (0_u16..5000)
        .flat_map(|it| f32::from(it).to_le_bytes())
        .collect();
    let mut memory = vec![0; 5000 * 2];
    let cast = Cast {
        from: Dtype::F32,
        to: Dtype::Bf16,
    };
    let made = TargetBox::cast(of(&mut memory), 0, 0, cast, [dim(5000, 4, 2)]).expect("inside");
    assert_eq!((made.run, made.dims.len()), (20_000, 0));
    for (first, end) in [(0, 7), (10_001, 20_000), (7, 10_001)] {
        // SAFETY: the memory is of this test.
        unsafe { made.write(first, &tensor[first..end]) };
    }
    let mut wanted = vec![0; 5000 * 2];
    tload_convert::convert(&tensor, cast.from, &mut wanted, cast.to);
    assert!(memory == wanted);
    let to = Dtype::I32;
    let made = TargetBox::cast(of(&mut memory), 0, 0, Cast { to, ..cast }, []);
    assert!(made.is_none());
}
