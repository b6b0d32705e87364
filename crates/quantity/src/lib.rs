//! Numbers with units, as the command `tload` and its pages print them.
//!
//! Programs depend on the crate `tload`.

#![forbid(unsafe_code)]

use std::time::Duration;

/// Converts a count for division. Exact up to 2^53, which is 8 PiB.
#[expect(
    clippy::cast_precision_loss,
    reason = "rates and ratios need no more than 53 bits"
)]
pub fn float(count: u64) -> f64 {
    count as f64
}

/// Converts `bytes` to GiB.
pub fn gibibytes(bytes: u64) -> f64 {
    float(bytes) / float(1 << 30)
}

/// Returns bytes per second; zero if no time passed.
pub fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        float(bytes) / seconds
    } else {
        0.0
    }
}

/// Formats seconds: `"12.30 s"`, `"45.6 ms"` or `"789 µs"`; `"0"` for none.
pub fn format_seconds(seconds: f64) -> String {
    if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 1e-3 {
        format!("{:.1} ms", seconds * 1e3)
    } else if seconds > 0.0 {
        format!("{:.0} µs", seconds * 1e6)
    } else {
        "0".to_owned()
    }
}

/// Formats a duration like [`format_seconds`].
pub fn format_duration(duration: Duration) -> String {
    format_seconds(duration.as_secs_f64())
}

/// Formats the time since an event, in its largest unit: `"12 s"`, `"3 min"`, `"5 h"`, `"7 d"`.
pub fn format_age(age: Duration) -> String {
    let seconds = age.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "min")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= *unit);
    let (unit, name) = unit.unwrap_or((1, "s"));
    format!("{} {name}", seconds / unit)
}

/// Formats a share: `"97 %"`.
pub fn format_share(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Formats a count: `"1 shard"`, `"2 shards"`.
pub fn format_count(count: u64, noun: &str) -> String {
    if count == 1 {
        format!("1 {noun}")
    } else {
        format!("{count} {noun}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tload_base::options::format_rate;

    #[test]
    fn quantities_carry_units() {
        assert_eq!(format_rate(rate(4_620_000_000, 2.0)), "2.31 GB/s");
        assert_eq!(format_rate(rate(1, 0.0)), "0.0 MB/s");
        assert_eq!(format_seconds(12.345), "12.35 s");
        assert_eq!(format_seconds(0.012_34), "12.3 ms");
        assert_eq!(format_seconds(0.000_012_34), "12 µs");
        assert_eq!(format_seconds(0.0), "0");
        assert_eq!(format_share(0.966), "97 %");
        for (seconds, wanted) in [
            (59, "59 s"),
            (3599, "59 min"),
            (7200, "2 h"),
            (172_800, "2 d"),
        ] {
            assert_eq!(format_age(Duration::from_secs(seconds)), wanted);
        }
        assert_eq!(format_count(1, "shard"), "1 shard");
        assert_eq!(format_count(0, "shard"), "0 shards");
    }
}
