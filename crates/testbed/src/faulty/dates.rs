//! Conversion between dates of HTTP and S3 and seconds since 1970 in UTC.
//!
//! Supports only what this server sends and receives: years from 1970, no leap seconds, and of the
//! formats that HTTP allows the one in use. Called by `store`, `answer` and `credentials`.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_SECS: u64 = 24 * 60 * 60;
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Returns the seconds since 1970, by this machine's clock.
pub(super) fn now() -> u64 {
    // A clock before 1970 means a broken machine, which no test is about.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Formats a date as `Thu, 01 Jan 2026 00:00:05 GMT`.
pub(super) fn http(secs: u64) -> String {
    http_on(secs, secs / DAY_SECS)
}

/// Formats like [`http`], with the day of the week of the next day.
pub(super) fn http_wrong_weekday(secs: u64) -> String {
    http_on(secs, secs / DAY_SECS + 1)
}

fn http_on(secs: u64, weekday_of: u64) -> String {
    let Date { year, month, day } = Date::of(secs / DAY_SECS);
    let (hour, minute, second) = clock(secs);
    let weekday = (0..)
        .zip(WEEKDAYS)
        .find(|(index, _)| *index == weekday_of % 7)
        .map_or("", |(_, name)| name);
    let month = (1..)
        .zip(MONTHS)
        .find(|(index, _)| *index == month)
        .map_or("", |(_, name)| name);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Formats a date as `2026-01-01T00:00:05.000Z`.
pub(super) fn iso(secs: u64) -> String {
    let Date { year, month, day } = Date::of(secs / DAY_SECS);
    let (hour, minute, second) = clock(secs);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z")
}

/// Parses the format of [`http`]. Ignores the day of the week.
pub(super) fn parse_http(text: &str) -> Option<u64> {
    let (_, rest) = text.trim().split_once(", ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else {
        return None;
    };
    let (_, month) = MONTHS.iter().zip(1..).find(|(name, _)| **name == month)?;
    let date = Date {
        year: year.parse().ok()?,
        month,
        day: day.parse().ok()?,
    };
    let time: Vec<u64> = time
        .split(':')
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    let [hour, minute, second] = time[..] else {
        return None;
    };
    let days = date.days().filter(|_| (1..=31).contains(&date.day))?;
    Some(days * DAY_SECS + hour * 3600 + minute * 60 + second)
}

fn clock(secs: u64) -> (u64, u64, u64) {
    let secs = secs % DAY_SECS;
    (secs / 3600, secs / 60 % 60, secs % 60)
}

struct Date {
    year: u64,
    month: u64,
    day: u64,
}

impl Date {
    /// Returns the date this many days after 1970-01-01. Years are walked one by one, which is fast
    /// enough for a test.
    fn of(mut days: u64) -> Self {
        let mut year = 1970;
        while days >= year_days(year) {
            days -= year_days(year);
            year += 1;
        }
        let mut month = 1;
        while days >= month_days(year, month) {
            days -= month_days(year, month);
            month += 1;
        }
        Self {
            year,
            month,
            day: days + 1,
        }
    }

    fn days(&self) -> Option<u64> {
        // Bounds the walk: no test is about the year 10000.
        if !(1970..10_000).contains(&self.year) {
            return None;
        }
        let years: u64 = (1970..self.year).map(year_days).sum();
        let months: u64 = (1..self.month)
            .map(|month| month_days(self.year, month))
            .sum();
        Some(years + months + self.day.saturating_sub(1))
    }
}

fn year_days(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_round_trip_known_timestamps() {
        // From `date -u -d @SECONDS`.
        for (secs, http_date, iso_date) in [
            (
                0,
                "Thu, 01 Jan 1970 00:00:00 GMT",
                "1970-01-01T00:00:00.000Z",
            ),
            (
                951_827_696,
                "Tue, 29 Feb 2000 12:34:56 GMT",
                "2000-02-29T12:34:56.000Z",
            ),
            (
                1_767_225_605,
                "Thu, 01 Jan 2026 00:00:05 GMT",
                "2026-01-01T00:00:05.000Z",
            ),
            (
                4_102_444_799,
                "Thu, 31 Dec 2099 23:59:59 GMT",
                "2099-12-31T23:59:59.000Z",
            ),
        ] {
            assert_eq!(http(secs), http_date);
            assert_eq!(iso(secs), iso_date);
            assert_eq!(parse_http(http_date), Some(secs));
        }
        assert_eq!(http_wrong_weekday(0), "Fri, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn malformed_http_date_is_rejected() {
        for text in [
            "",
            "yesterday",
            "Thu, 01 Jan 1970",
            "Thu, 01 Foo 1970 00:00:00 GMT",
            "Thu, 00 Jan 1970 00:00:00 GMT",
        ] {
            assert_eq!(parse_http(text), None, "{text}");
        }
    }
}
