//! Durations with units: parsing.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// Parses a positive duration: `"30"` (seconds), `"500ms"`, `"1.5 s"`, `"2m"`, `"1h"`.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] for other text, and for a duration that [`Duration`] cannot hold.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let trimmed = text.trim();
    // From the end, because `1e1` is a number.
    let number = trimmed.trim_end_matches(char::is_alphabetic).trim_end();
    let unit = trimmed[number.len()..].trim_start().to_ascii_lowercase();
    let scale = match unit.as_str() {
        "ms" => Some(1e-3),
        "" | "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let seconds = scale.and_then(|scale| Some(number.parse::<f64>().ok()? * scale));
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidRequest,
                format!(
                    "{text:?} is not a positive duration; write for example 500ms, 30s, 2m or 1h"
                ),
            )
        })
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
        ] {
            let duration = parse_duration(text).expect(text);
            assert_eq!(duration, Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn parse_duration_rejects_other_text() {
        for text in [
            "", "s", "0", "-1", "1d", "2 days", "1e400", "1.2.3", "inf", "nan", "1 s s",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
