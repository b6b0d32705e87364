//! Ranges of bytes that a request asks for (RFC 9110, section 14). Pure.

use std::ops::Range;

/// Bytes of a file that a response has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    /// One range: 206.
    Range(Range<u64>),
    /// A range that begins behind the end: 416.
    Unsatisfiable,
}

impl Extent {
    /// Parses the header `Range` for a file of `len` bytes. Several ranges, other units and text
    /// that is not understood get the whole file, as the standard permits.
    pub(crate) fn parse(header: &str, len: u64) -> Self {
        let Some((first, last)) = bounds(header) else {
            return Self::Whole;
        };
        let range = match (first, last) {
            // An empty file has no last bytes: no range could name them.
            (None, Some(_)) if len == 0 => return Self::Whole,
            (None, Some(count)) => len.saturating_sub(count)..len,
            (Some(first), None) => first..len,
            (Some(first), Some(last)) if first <= last => first..len.min(last.saturating_add(1)),
            (Some(_), Some(_)) | (None, None) => return Self::Whole,
        };
        if range.start < range.end {
            Self::Range(range)
        } else {
            Self::Unsatisfiable
        }
    }
}

/// Returns the numbers before and after the dash of a single range.
fn bounds(header: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (unit, range) = header.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = range.trim().split_once('-')?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(first) && is_number(last)).then(|| (number(first), number(last)))
}

/// Parses digits, if there are any. Numbers that no file reaches are the largest.
fn number(digits: &str) -> Option<u64> {
    (!digits.is_empty()).then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_ranges_are_cut_at_the_end() {
        for (header, range) in [
            ("bytes=0-0", 0..1),
            ("bytes=2-5", 2..6),
            ("bytes=2-", 2..10),
            ("bytes=9-", 9..10),
            ("bytes=5-99999999999999999999999", 5..10),
            ("bytes=-3", 7..10),
            ("bytes=-30", 0..10),
            ("Bytes = 2-5", 2..6),
        ] {
            assert_eq!(Extent::parse(header, 10), Extent::Range(range), "{header}");
        }
    }

    #[test]
    fn ranges_behind_the_end_are_unsatisfiable() {
        for header in ["bytes=10-", "bytes=10-20", "bytes=-0"] {
            assert_eq!(Extent::parse(header, 10), Extent::Unsatisfiable, "{header}");
        }
        assert_eq!(Extent::parse("bytes=0-", 0), Extent::Unsatisfiable);
        assert_eq!(Extent::parse("bytes=-5", 0), Extent::Whole);
    }

    #[test]
    fn other_texts_ask_for_everything() {
        for header in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-2",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=1-2,4-5",
            "rows=1-2",
            "bytes=0x1-2",
            "bytes=--1",
            "bytes=1 - 2",
        ] {
            assert_eq!(Extent::parse(header, 10), Extent::Whole, "{header:?}");
        }
    }
}
