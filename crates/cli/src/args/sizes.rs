//! Parsers for values with units.

use std::time::Duration;

/// A size such as `4MiB`, for clap.
pub(crate) fn bytes(text: &str) -> tload::Result<u64> {
    tload::parse_bytes(text)
}

/// A duration such as `500ms`, `30s`, `2m` or `1h`; a plain number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit {:?}: use ms, s, m or h", unit.trim())),
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
    fn durations_take_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("30", 30_000),
            ("1.5 s", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "0", "-1", "1d", "1e400", "1.2.3"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
