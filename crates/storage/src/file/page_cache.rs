//! Detects which bytes of a file are resident in the page cache, so that they need not be read past
//! it.
//!
//! The kernel is asked once per file; for a file that is resident in part, before each read.
//! Copying resident bytes is three to four times as fast as reading them again, and a second load
//! must not be slower than the first because it insists on the device.

use std::ops::Range;

use super::residency::{self, Method};
use crate::{FileSource, Source};

/// Bytes that reading a file's header and the kernel's read-ahead leave in the page cache: too few
/// to matter.
const NEGLIGIBLE_BYTES: u64 = 4 << 20;

/// Bytes covered by one `mincore` call, which costs time for each page, resident or not.
const LOOK_BYTES: u64 = 4 << 20;

/// Most such calls before the first read: 256 MiB, some 3 ms (2026-11). They decide only how many
/// lanes copy and how deep; each read asks for its own pages.
const LOOKS: u64 = 64;

/// Most pages read to check whether they are as resident as `mincore` says.
const PROBES: usize = 4;

/// Portion of one file that the page cache holds.
#[derive(Debug)]
pub(crate) enum Cached {
    /// A negligible part.
    Nothing,
    /// The whole file.
    Everything,
    /// Some of the file; the kernel says which pages.
    Ask {
        method: Method,
        /// Resident bytes among those sampled.
        resident_bytes: u64,
        /// Bytes sampled.
        total_bytes: u64,
    },
}

impl Cached {
    /// Queries residency of `source` as it is now, of which `wanted` is to be read. Where the
    /// system cannot answer, or its answer cannot be trusted, nothing counts as cached.
    pub(crate) fn new(source: &FileSource, wanted: &[Range<u64>]) -> Self {
        let file = source.file();
        match Method::for_file(file, source.file_system()) {
            Method::Cachestat => Method::Cachestat
                .resident_bytes(file, 0, source.len())
                .map_or(Self::Nothing, |bytes| Self::counted(bytes, source.len())),
            Method::Mincore => Self::looked(&looks(wanted), source).unwrap_or(Self::Nothing),
        }
    }

    fn looked(looks: &[Range<u64>], source: &FileSource) -> Option<Self> {
        let page = rustix::param::page_size() as u64;
        let (mut resident_bytes, mut total_bytes) = (0, 0);
        let mut firsts = Vec::new();
        for look in looks {
            let found =
                residency::mincore(source.file(), look.start, look.end - look.start).ok()?;
            resident_bytes += found.pages * page;
            total_bytes += (look.end.div_ceil(page) - look.start / page) * page;
            firsts.extend(found.first);
        }
        let is_little = resident_bytes <= NEGLIGIBLE_BYTES && resident_bytes < total_bytes;
        let mut probes = firsts.iter().step_by(firsts.len().div_ceil(PROBES).max(1));
        if is_little || !probes.all(|first| residency::is_resident(source.file(), *first)) {
            return None;
        }
        Some(Self::Ask {
            method: Method::Mincore,
            resident_bytes,
            total_bytes,
        })
    }

    fn counted(resident_bytes: u64, total_bytes: u64) -> Self {
        if resident_bytes >= total_bytes {
            Self::Everything
        } else if resident_bytes <= NEGLIGIBLE_BYTES {
            Self::Nothing
        } else {
            Self::Ask {
                method: Method::Cachestat,
                resident_bytes,
                total_bytes,
            }
        }
    }

    /// Returns whether all but a few pages of `len` bytes at `offset` are resident, so that copying
    /// is faster than reading them all again.
    pub(crate) fn holds(&self, source: &FileSource, offset: u64, len: usize) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Ask { method, .. } => {
                let end = source.len().min(offset + len as u64);
                let page = rustix::param::page_size() as u64;
                let pages = end.div_ceil(page) - offset / page;
                method
                    .resident_bytes(source.file(), offset, end - offset)
                    .is_some_and(|bytes| nearly(bytes, pages * page))
            }
        }
    }

    /// Returns whether some ranges may be resident and others not.
    pub(crate) fn is_partial(&self) -> bool {
        matches!(self, Self::Ask { .. })
    }

    /// Returns whether all but a few pages are resident.
    pub(crate) fn holds_nearly_all(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Ask {
                resident_bytes,
                total_bytes,
                ..
            } => nearly(*resident_bytes, *total_bytes),
        }
    }
}

/// Returns whether at most an eighth is missing, which the copy then brings in. The kernel reclaims
/// pages here and there; an extent with a hole in it is still copied in less time than it is read
/// (an estimate of 2026-11: a copy takes a third of the time).
fn nearly(resident: u64, all: u64) -> bool {
    resident >= all - all / 8
}

/// Returns the ranges of a file to sample, in file order: everything wanted if that is little, else
/// as much of it as [`LOOKS`] calls cover, spread evenly. The number of calls is bounded however
/// long a file claims to be.
fn looks(wanted: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut ranges: Vec<_> = wanted.iter().filter(|range| !range.is_empty()).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    let lengths = ranges.iter().map(|range| range.end - range.start);
    let step = lengths
        .fold(0, u64::saturating_add)
        .div_ceil(LOOKS)
        .max(LOOK_BYTES);
    let mut looks: Vec<Range<u64>> = Vec::new();
    // Number of wanted bytes before the next sample.
    let mut left = 0;
    for range in ranges {
        let mut start = range.start;
        while range.end - start > left {
            start += left;
            if looks.last().is_none_or(|last| last.end <= start) {
                looks.push(start..end.min(start + LOOK_BYTES));
            }
            left = step;
        }
        left -= range.end - start;
    }
    looks
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn residency_is_classified_by_resident_bytes() {
        assert!(matches!(Cached::counted(MIB, 64 * MIB), Cached::Nothing));
        assert!(matches!(
            Cached::counted(64 * MIB, 64 * MIB),
            Cached::Everything
        ));
        let some = Cached::counted(60 * MIB, 64 * MIB);
        assert!(matches!(some, Cached::Ask { .. }) && some.holds_nearly_all());
        assert!(!Cached::counted(40 * MIB, 64 * MIB).holds_nearly_all());
    }

    fn bytes(looks: &[Range<u64>]) -> u64 {
        looks.iter().map(|look| look.end - look.start).sum()
    }

    #[test]
    fn looks_cover_small_ranges_and_are_bounded_for_large_ones() {
        const TIB: u64 = 1 << 40;
        assert_eq!(looks(&[]), []);
        // 16 bytes at the end of a file that claims a tebibyte.
        let last = looks(&[TIB..TIB + 16, 5..5]);
        assert_eq!((last.len(), &last[0]), (1, &(TIB..TIB + 16)));
        // Few bytes are sampled in full, neighbours together, in any order.
        let halves = [9 * MIB..10 * MIB, 8..9 * MIB];
        let whole = [0, 1, 2].map(|n| n * 4 * MIB + 8..(10 * MIB).min((n + 1) * 4 * MIB + 8));
        assert_eq!(looks(&halves), whole);
        // Many bytes are not, and the samples are spread over all of them.
        for wanted in [[0..TIB, 5..5], [0..u64::MAX, 5..5], [7..TIB, TIB..3 * TIB]] {
            let looks = looks(&wanted);
            assert_eq!((looks.len(), bytes(&looks)), (64, 256 * MIB), "{wanted:?}");
            let last = wanted[0].end.max(wanted[1].end);
            assert!(looks[63].start > last / 100 * 95);
        }
        // Small tensors far apart: some of them are sampled.
        let apart: Vec<_> = (0..100_000).map(|n| n * MIB..n * MIB + 8192).collect();
        let looks = looks(&apart);
        assert!(looks.len() <= 64 && bytes(&looks) <= 256 * MIB && looks.len() > 60);
    }
}
