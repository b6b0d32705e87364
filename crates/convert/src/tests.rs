//! Exact results of single values, runs of all lengths, and refusals. `tests/torch.rs` compares all
//! bit patterns with torch.

use tload_format::Dtype;

use super::*;

fn one(value: f32, to: Dtype) -> Vec<u8> {
    let mut converted = vec![0; to.bits() / 8];
    convert(&value.to_le_bytes(), Dtype::F32, &mut converted, to);
    converted
}

#[test]
fn values_out_of_range_are_clamped_only_in_f8_e4m3() {
    for (value, to, wanted) in [
        (448.0, Dtype::F8E4M3, 0x7E),
        (464.0, Dtype::F8E4M3, 0x7E),
        (1e6, Dtype::F8E4M3, 0x7E),
        (f32::NEG_INFINITY, Dtype::F8E4M3, 0xFE),
        (61_439.0, Dtype::F8E5M2, 0x7B),
        (61_440.0, Dtype::F8E5M2, 0x7C),
        (f32::NEG_INFINITY, Dtype::F8E5M2, 0xFC),
        (247.9, Dtype::F8E4M3Fnuz, 0x7F),
        (-248.0, Dtype::F8E4M3Fnuz, 0x80),
        (f32::INFINITY, Dtype::F8E5M2Fnuz, 0x80),
        (-0.0, Dtype::F8E4M3, 0x80),
        (-0.0, Dtype::F8E4M3Fnuz, 0x00),
        (-1e-20, Dtype::F8E5M2Fnuz, 0x00),
    ] {
        assert_eq!(one(value, to), [wanted], "{value} to {to}");
    }
    assert_eq!(one(65_519.0, Dtype::F16), 0x7BFF_u16.to_le_bytes());
    assert_eq!(one(65_520.0, Dtype::F16), 0x7C00_u16.to_le_bytes());
    assert_eq!(one(f32::MAX, Dtype::Bf16), 0x7F80_u16.to_le_bytes());
}

#[test]
fn a_double_is_rounded_twice_as_in_torch() {
    // Just above the tie between 1 and its neighbour in F16, but that tie itself as F32.
    let value = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
    let mut converted = [0; 2];
    convert(&value.to_le_bytes(), Dtype::F64, &mut converted, Dtype::F16);
    assert_eq!(converted, 0x3C00_u16.to_le_bytes());
}

#[test]
fn runs_of_all_lengths_are_converted_within_memory_as_into_other_memory() {
    let floats: Vec<Dtype> = Dtype::ALL
        .into_iter()
        .filter(|&dtype| is_float(dtype))
        .collect();
    assert_eq!(floats.len(), 8);
    for (elements, shift) in [0, 1, 2, RUN - 1, RUN, RUN + 1, 3 * RUN + 7]
        .into_iter()
        .zip([0, 5, 64].into_iter().cycle())
    {
        for &from in &floats {
            let source: Vec<u8> = (0..elements * from.bits() / 8)
                .map(|place| (place * 37 % 251).to_le_bytes()[0])
                .collect();
            for &to in &floats {
                let mut apart = vec![0; elements * to.bits() / 8];
                convert(&source, from, &mut apart, to);
                let (at, start) = if to.bits() > from.bits() {
                    (3, 3 + shift)
                } else {
                    (3 + shift, 3)
                };
                let mut memory = vec![0xAB; 3 + shift + source.len().max(apart.len()) + 3];
                memory[at..at + source.len()].copy_from_slice(&source);
                convert_within(&mut memory, at..at + source.len(), from, start, to);
                assert!(
                    memory[start..start + apart.len()] == apart,
                    "{elements} of {from} to {to}"
                );
                assert_eq!(memory[..3], [0xAB; 3]);
                assert_eq!(memory[memory.len() - 3..], [0xAB; 3]);
            }
        }
    }
}

#[test]
fn an_element_is_converted_wherever_it_lies_in_a_run() {
    let source: Vec<u8> = (0..4 * 512_u16)
        .flat_map(|place| one(f32::from(place), Dtype::F32))
        .collect();
    let mut converted = vec![0; source.len() / 2];
    convert(&source, Dtype::F32, &mut converted, Dtype::F16);
    for (place, bytes) in (0_u16..).zip(converted.chunks(2)) {
        assert_eq!(bytes, one(f32::from(place), Dtype::F16), "{place}");
    }
}

#[test]
#[should_panic(expected = "elements of I32 are not converted to F32")]
fn integers_are_refused() {
    assert!(!converts(Dtype::I32, Dtype::F32) && !converts(Dtype::F32, Dtype::F8E8M0));
    convert(&[0; 4], Dtype::I32, &mut [0; 4], Dtype::F32);
}

#[test]
#[should_panic(expected = "6 bytes of F32 are not as many elements as 2 bytes of BF16")]
fn half_an_element_is_refused() {
    convert(&[0; 6], Dtype::F32, &mut [0; 2], Dtype::Bf16);
}

#[test]
#[should_panic(expected = "BF16 at 4..8 cannot become F32 at 0 in the same memory")]
fn elements_that_grow_towards_the_start_are_refused() {
    convert_within(&mut [0; 8], 4..8, Dtype::Bf16, 0, Dtype::F32);
}
