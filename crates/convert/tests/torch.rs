//! Results are those of torch, whose digests `results_of_torch.py` wrote: for all bit patterns of 8
//! and 16 bits, and for the F32 and F64 in which rounding decides.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tload_convert::{convert, is_float};
use tload_format::Dtype;

const RESULTS: &str = include_str!("results_of_torch.txt");
const RANDOM: u64 = 1_000_000;

/// F32: each combination of the sign, the exponent and the first ten bits of the mantissa, with the
/// rest around zero, around a tie of F16, and just below the next. Ties of the narrower dtypes are
/// among them.
fn singles() -> impl Iterator<Item = u32> {
    (0..1 << 19)
        .flat_map(|top: u32| [0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF].map(|low| top << 13 | low))
}

/// F64: every fifth of the F32, with rests as above, and numbers of the generator splitmix64.
fn doubles() -> impl Iterator<Item = u64> {
    let lows = [0, 1, 0x0FFF_FFFF, 0x1000_0000, 0x1000_0001, 0x1FFF_FFFF];
    let near = singles().step_by(5).zip(lows.into_iter().cycle());
    let near = near.map(|(bits, low)| f64::from(f32::from_bits(bits)).to_bits() | low);
    near.chain((1..=RANDOM).map(|number| {
        let mut bits = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ bits >> 31
    }))
}

fn elements(dtype: Dtype) -> Vec<u8> {
    match dtype.bits() {
        8 => (0..=u8::MAX).collect(),
        16 => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
        32 => singles().flat_map(u32::to_le_bytes).collect(),
        _ => doubles().flat_map(u64::to_le_bytes).collect(),
    }
}

/// Bits without the sign, above which all are NaN.
fn last_before_nan(dtype: Dtype) -> u64 {
    match dtype.name() {
        "F8_E4M3" => 0x7E,
        "F8_E5M2" => 0x7C,
        "F16" => 0x7C00,
        "BF16" => 0x7F80,
        "F32" => 0x7F80_0000,
        "F64" => 0x7FF0_0000_0000_0000,
        other => unreachable!("{other}"),
    }
}

fn is_nan(dtype: Dtype, element: &[u8]) -> bool {
    if dtype.name().ends_with("FNUZ") {
        return element == [0x80];
    }
    let mut bits = [0; 8];
    bits[..element.len()].copy_from_slice(element);
    let without_sign = u64::from_le_bytes(bits) & !(1 << (dtype.bits() - 1));
    without_sign > last_before_nan(dtype)
}

/// SHA-256 of bytes, in hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").expect("writing to a string succeeds");
    }
    text
}

#[test]
fn all_results_are_those_of_torch() {
    let floats: Vec<Dtype> = Dtype::ALL
        .into_iter()
        .filter(|&dtype| is_float(dtype))
        .collect();
    let mut compared = 0;
    for &from in &floats {
        let source = elements(from);
        for &to in floats.iter().filter(|&&to| to != from) {
            let width = to.bits() / 8;
            let mut converted = vec![0; source.len() / (from.bits() / 8) * width];
            convert(&source, from, &mut converted, to);
            for element in converted.chunks_mut(width) {
                if is_nan(to, element) {
                    element.fill(0xFF);
                }
            }
            let wanted = RESULTS
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{from} {to} ")))
                .unwrap_or_else(|| panic!("no digest of {from} to {to}"));
            assert_eq!(hex(&converted), wanted, "{from} to {to}");
            compared += 1;
        }
    }
    assert_eq!(compared, RESULTS.lines().count());
}
