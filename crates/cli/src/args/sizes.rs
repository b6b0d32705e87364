//! Parsers for values with units.

use std::time::Duration;

/// Parses a size such as `4MiB`, for clap.
pub(crate) fn bytes(text: &str) -> tload::Result<u64> {
    tload::parse_bytes(text)
}

/// Parses a number of reads in flight. The range is that of [`tload::Options::validate`]; an error
/// here names the flag.
pub(crate) fn depth(text: &str) -> Result<usize, String> {
    within(text, 4096)
}

/// Parses a number of lanes, like [`depth`].
pub(crate) fn lanes(text: &str) -> Result<usize, String> {
    within(text, 256)
}

fn within(text: &str, max: usize) -> Result<usize, String> {
    text.trim()
        .parse()
        .ok()
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| format!("must lie between 1 and {max}"))
}

/// Parses a duration such as `500ms`, `30s`, `2m` or `1h`; a plain number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    // From the end, because `1e1` is a number.
    let number = text
        .trim_end_matches(|c: char| c.is_alphabetic())
        .trim_end();
    let unit = text[number.len()..].trim_start();
    let scale = match unit.to_ascii_lowercase().as_str() {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit {unit:?}: use ms, s, m or h")),
    };
    number
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * scale).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "wanted a positive duration such as 500ms, 30s or 2m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_out_of_range_name_the_range() {
        assert_eq!(depth("4096"), Ok(4096));
        assert_eq!(lanes(" 1 "), Ok(1));
        for text in ["0", "4097", "-1", "x", "", "99999999999999999999"] {
            assert_eq!(depth(text), Err("must lie between 1 and 4096".to_owned()));
        }
        assert_eq!(lanes("257"), Err("must lie between 1 and 256".to_owned()));
    }

    #[test]
    fn durations_take_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("30", 30_000),
            ("1e1", 10_000),
            ("1e1 MS", 10),
            ("0.5", 500),
            ("1.5 s", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "", "s", "0", "-1", "1d", "1e400", "1.2.3", "inf", "nan", "1 s s",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
