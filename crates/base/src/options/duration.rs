//! Durations with units: parsing.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// Units with their seconds, longest first.
const UNITS: [(&str, f64); 5] = [
    ("h", 3600.0),
    ("min", 60.0),
    ("m", 60.0),
    ("s", 1.0),
    ("ms", 1e-3),
];

/// Parses a positive duration: `"30"` (seconds), `"500ms"`, `"1.5 s"`, `"2m"`, `"1h30m"`.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] for other text, and for a duration that [`Duration`] cannot hold.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let trimmed = text.trim().to_ascii_lowercase();
    single(&trimmed)
        .or_else(|| sum(&trimmed))
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidRequest,
                format!(
                    "{text:?} is not a positive duration; write for example 500ms, 30s, 2m or 1h30m"
                ),
            )
        })
}

/// Returns the seconds of one number with a unit or without.
fn single(text: &str) -> Option<f64> {
    // Look for the unit from the end, because `1e1` is a number.
    let number = text.trim_end_matches(char::is_alphabetic).trim_end();
    let unit = text[number.len()..].trim_start();
    let scale = if unit.is_empty() { 1.0 } else { scale(unit)? };
    Some(number.parse::<f64>().ok()? * scale)
}

/// Returns the seconds of several numbers, each with a smaller unit than the one before.
fn sum(text: &str) -> Option<f64> {
    let mut rest = text;
    let mut seconds = 0.0;
    let mut last = f64::INFINITY;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(digits);
        let behind = behind.trim_start();
        let letters = behind
            .find(|c: char| !c.is_alphabetic())
            .unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(letters);
        let scale = scale(unit).filter(|scale| *scale < last)?;
        seconds += number.parse::<f64>().ok()? * scale;
        last = scale;
        rest = behind.trim_start();
    }
    Some(seconds)
}

fn scale(unit: &str) -> Option<f64> {
    let found = UNITS.iter().find(|(name, _)| *name == unit);
    found.map(|(_, seconds)| *seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_duration_accepts_numbers_and_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("30", 30_000),
            ("1e1", 10_000),
            ("1e1 MS", 10),
            ("0.5", 500),
            ("1.5 s", 1500),
            ("2m", 120_000),
            ("2 min", 120_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("1 h 30 min", 5_400_000),
            ("1H 2m 3.5s", 3_723_500),
            ("1s500ms", 1500),
        ] {
            let duration = parse_duration(text).expect(text);
            assert_eq!(duration, Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn parse_duration_rejects_other_text() {
        for text in [
            "", "s", "0", "-1", "1d", "2 days", "1e400", "1.2.3", "inf", "nan", "1 s s", "1h30",
            "30m1h", "1m1min", "h30m", "1h-30m", "1h 2 3m",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
