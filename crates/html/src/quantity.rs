//! Numbers with units, dates and values of JSON, as pages show them.

use serde_json::Value;
use tload_base::options::format_bytes;
pub(crate) use tload_base::options::format_rate;
pub(crate) use tload_quantity::{float, format_count, format_seconds};

/// Formats a requested size: `4 MiB` instead of `4.0 MiB`, because most requested sizes are round.
pub(crate) fn short_bytes(bytes: u64) -> String {
    format_bytes(bytes).replace(".0 ", " ")
}

/// Formats a time as the date and time of day in UTC: `2027-01-15 08:00:00 UTC`.
pub(crate) fn format_time(unix_seconds: u64) -> String {
    let (days, rest) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Days since the first of March of year 0, in eras of 400 years (Howard Hinnant,
    // "chrono-Compatible Low-Level Date Algorithms").
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Formats a value of JSON for people; none for `null` and for what is empty.
pub(crate) fn plain(name: &str, value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(match number.as_u64() {
            Some(bytes) if is_size(name) => format!("{} ({bytes} B)", format_bytes(bytes)),
            _ => number.to_string(),
        }),
        Value::Array(values) => {
            let texts: Vec<_> = values.iter().filter_map(|it| plain(name, it)).collect();
            Some(texts.join(", ")).filter(|text| !text.is_empty())
        }
        Value::Bool(_) | Value::Object(_) => Some(value.to_string()),
    }
}

/// Returns whether a field of this name holds bytes.
fn is_size(name: &str) -> bool {
    name.ends_with("bytes") || name.ends_with("memory_limit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (seconds, wanted) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (1_800_000_000, "2027-01-15 08:00:00 UTC"),
        ] {
            assert_eq!(format_time(seconds), wanted);
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(
            plain("extent_bytes", &Value::from(4096)).as_deref(),
            Some("4.0 KiB (4096 B)")
        );
        assert_eq!(plain("depth", &Value::from(8)).as_deref(), Some("8"));
        assert_eq!(plain("depth", &Value::Null), None);
        assert_eq!(short_bytes(4 << 20), "4 MiB");
    }
}
