//! Byte sizes with units: parsing and formatting.

use crate::error::{Error, Result};

/// Units by their lower-case suffix. Without a suffix: bytes.
const UNITS: [(&str, u64); 15] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("bytes", 1),
    ("b", 1),
    ("", 1),
];

/// Parses a size: `"4096"`, `"1e9"`, `"4 MiB"`, `"1.5GiB"`, `"2GB"` (10⁹), `"512k"` (1024).
pub fn parse_bytes(text: &str) -> Result<u64> {
    let invalid = || {
        Error::invalid_request(format!(
            "{text:?} is not a size; write a number of bytes or a number with a unit, for example \"4 MiB\""
        ))
    };
    let trimmed = text.trim().to_ascii_lowercase();
    if let Some((number, exponent)) = trimmed.split_once('e')
        && let Ok(exponent) = exponent.parse()
    {
        return shifted(number, exponent).ok_or_else(invalid);
    }
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim_start();
    let (_, scale) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(invalid)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (fraction.is_empty() && number.contains('.')) || fraction.len() > 9 {
        return Err(invalid());
    }
    let whole: u64 = whole.parse().map_err(|_| invalid())?;
    let digits: u64 = format!("0{fraction}").parse().map_err(|_| invalid())?;
    let places = u32::try_from(fraction.len()).map_err(|_| invalid())?;
    let rest = u128::from(digits) * u128::from(*scale) / u128::from(10u64.pow(places));
    u64::try_from(u128::from(whole) * u128::from(*scale) + rest).map_err(|_| invalid())
}

/// Returns `number` · 10^`exponent` if it is a whole number.
fn shifted(number: &str, exponent: u32) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    let zeros = exponent.checked_sub(u32::try_from(fraction.len()).ok()?)?;
    let digits = format!("{whole}{fraction}");
    // Refuse a sign, which is not a digit.
    let is_number = !whole.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let digits: u64 = digits.parse().ok().filter(|_| is_number)?;
    digits.checked_mul(10u64.checked_pow(zeros)?)
}

/// Formats a size with a binary unit, rounded to the nearest decimal: `"4.0 GiB"`; below 1 KiB in
/// bytes: `"512 B"`.
pub fn format_bytes(bytes: u64) -> String {
    const NAMES: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // Count tenths in integers, which is exact and needs no cast between floats and integers.
    let tenths = |unit: usize| (u128::from(bytes) * 10 + (512 << (10 * unit))) >> (10 * unit + 10);
    // A size that rounds to 1024.0 is shown as 1.0 of the next unit.
    let unit = (0..5).find(|&unit| tenths(unit) < 10_240).unwrap_or(5);
    let (whole, tenth) = (tenths(unit) / 10, tenths(unit) % 10);
    format!("{whole}.{tenth} {}", NAMES[unit])
}

/// Formats a speed: `"2.31 GB/s"` (10⁹ bytes per second), and below 0.1 GB/s `"38.2 MB/s"` (10⁶).
pub fn format_rate(bytes_per_second: f64) -> String {
    match bytes_per_second / 1e6 {
        slow if slow < 99.95 => format!("{slow:.1} MB/s"),
        fast => format!("{:.2} GB/s", fast / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn parse_bytes_accepts_numbers_and_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4 MiB", 4 << 20),
            ("4mib", 4 << 20),
            ("1.5 GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            ("512k", 512 << 10),
            (" 7 b ", 7),
            ("1e9", 1_000_000_000),
            ("1.50E3", 1500),
            ("0e0", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text).expect(text), bytes, "{text}");
        }
    }

    #[test]
    fn parse_bytes_rejects_malformed_sizes() {
        for text in [
            "",
            "MiB",
            "-1",
            "1e-1",
            "1.5e0",
            "1e20",
            "+1e3",
            "e3",
            "4 XiB",
            "1.",
            ".5",
            "1..2 k",
            "17179869184 GiB",
            "∞",
        ] {
            let error = parse_bytes(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{text}");
        }
    }

    #[test]
    fn format_bytes_has_one_decimal() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (4 << 30, "4.0 GiB"),
            ((3 << 20) - 1, "3.0 MiB"),
            (3_220_849_000, "3.0 GiB"),
            ((5 << 20) / 2 + (1 << 20) / 20 - 1, "2.5 MiB"),
            ((5 << 20) / 2 + (1 << 20) / 20 + 1, "2.6 MiB"),
            ((1 << 20) - 52, "1023.9 KiB"),
            ((1 << 20) - 51, "1.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    #[test]
    fn format_rate_has_one_unit_for_fast_and_one_for_slow() {
        for (rate, text) in [
            (0.0, "0.0 MB/s"),
            (12_345.0, "0.0 MB/s"),
            (3.8e6, "3.8 MB/s"),
            (99.949e6, "99.9 MB/s"),
            (99.96e6, "0.10 GB/s"),
            (2.314e9, "2.31 GB/s"),
        ] {
            assert_eq!(format_rate(rate), text, "{rate}");
        }
    }
}
