//! Slices of any tensor, checked against the elements one by one; impossible ones are refused.

use super::{Input, assert_fit_to_print};
use tload::internal::plan::{Arrangement, Indices, Layout, Packing, Slice, Wanted, build};

/// Maximum number of elements of a tensor: each is compared.
const ELEMENTS_MAX: usize = 4096;

/// Offset of the tensor in its source.
const BASE: usize = 100;

/// Interprets `input` as a shape, a slice of it, and a read layout.
pub(super) fn check(input: &[u8]) {
    let mut input = Input::new(input);
    let bits = input.pick(&[4, 8, 16, 32, 64, 6]);
    let wild = input.byte().is_multiple_of(4);
    let most = if wild { u64::MAX } else { 40 };
    let number = |input: &mut Input<'_>| usize::try_from(input.up_to(most)).expect("64 bits");
    let rank = input.index_up_to(4);
    // As in `header`: the number of bits does not overflow.
    let mut elements = 1_usize;
    let shape: Vec<usize> = (0..rank)
        .map(|_| {
            let dimension = number(&mut input);
            let fits = elements
                .checked_mul(dimension)
                .filter(|all| all.checked_mul(bits).is_some());
            elements = fits.unwrap_or(elements);
            if fits.is_some() { dimension } else { 1 }
        })
        .collect();
    let dims: Vec<Indices> = (0..input.index_up_to(5))
        .map(|_| Indices {
            start: number(&mut input),
            count: number(&mut input),
            step: number(&mut input),
            single: input.byte().is_multiple_of(4),
        })
        .collect();
    let cut = match Slice::new(dims.clone()).cut(&shape, bits) {
        Ok(cut) => cut,
        Err(error) => return assert_fit_to_print(&error),
    };
    let tensor_bits = elements as u128 * bits as u128;
    assert!(
        u128::from(cut.range.end) * 8 <= tensor_bits,
        "{cut:?} is outside of {shape:?}"
    );
    if elements > ELEMENTS_MAX || !bits.is_multiple_of(8) || cut.range.is_empty() {
        return;
    }
    let bytes = bits / 8;
    let file: Vec<u8> = (0..=250_u8).cycle().take(BASE + elements * bytes).collect();
    let expected: Vec<u8> = chosen(&shape, &dims)
        .flat_map(|at| file[BASE + at * bytes..][..bytes].to_vec())
        .collect();
    let base = BASE as u64;
    let wanted = Wanted {
        source: 0,
        range: base + cut.range.start..base + cut.range.end,
        strides: cut.strides,
        alignment: bytes,
        destination: 0,
    };
    assert_eq!(wanted.bytes(), expected.len() as u64);
    let layout = Layout {
        extent_bytes: input.pick(&[4096, 8192, 1 << 20]),
        alignment: input.pick(&[1, 512, 4096]),
        gap_bytes: input.up_to(10_000),
    };
    assert_brings(&wanted, layout, &file, &expected);
}

/// Returns the elements as indices into the flat tensor, in the order of the slice.
fn chosen(shape: &[usize], dims: &[Indices]) -> impl Iterator<Item = usize> + use<> {
    let mut indices = vec![0];
    for (dim, &len) in shape.iter().enumerate() {
        let steps = dims
            .get(dim)
            .copied()
            .unwrap_or_else(|| Indices::from(0..len));
        let of_dim = |&before: &usize| {
            (0..steps.count).map(move |index| before * len + steps.start + index * steps.step)
        };
        indices = indices.iter().flat_map(of_dim).collect();
    }
    indices.into_iter()
}

/// Checks that the slice has the bytes of its elements when read and gathered as by sinks.
fn assert_brings(wanted: &Wanted, layout: Layout, file: &[u8], expected: &[u8]) {
    for arrangement in [
        Arrangement::InPlace,
        Arrangement::Packed(Packing::default()),
        Arrangement::Scattered,
    ] {
        let plan = build(std::slice::from_ref(wanted), &[layout], &[arrangement]);
        let mut tensor = vec![0; expected.len()];
        for extent in &plan.extents {
            let start = usize::try_from(extent.offset).expect("small");
            let mut window = vec![0xAA; extent.window];
            window[..extent.needed].copy_from_slice(&file[start..start + extent.needed]);
            plan.gather(extent, &mut window[..extent.needed]);
            for piece in &plan.pieces[extent.pieces.clone()] {
                let to = usize::try_from(piece.tensor_offset).expect("small");
                let from = &window[piece.extent_offset..piece.extent_offset + piece.len];
                tensor[to..to + piece.len].copy_from_slice(from);
            }
        }
        assert_eq!(tensor, expected, "{arrangement:?}: other elements");
    }
}
