//! Splits a read into extents: pieces of a source that are read at a time, into the caller's memory
//! or on the way there. Pure.

use std::ops::Range;

use crate::target::Target;

/// Bytes of one source.
#[derive(Clone, Debug)]
pub struct Place {
    /// Index of the group of sources.
    pub group: usize,
    /// Index of the source in the group.
    pub source: usize,
    /// Alignment of reads: of offsets, lengths and memory.
    pub alignment: u64,
    /// The bytes.
    pub range: Range<u64>,
}

/// Bytes that one job of an engine reads.
#[derive(Debug)]
pub struct ReadExtent {
    /// Number of the request in its call.
    pub request: usize,
    /// Index of the group of sources.
    pub group: usize,
    /// Index of the source in the group.
    pub source: usize,
    /// Bytes of the source that are wanted.
    pub wanted: Range<u64>,
    /// Bytes that are read: those wanted, rounded outwards to the alignment.
    pub window: Range<u64>,
    /// Memory of the request.
    pub target: Target,
    /// Offset of the wanted bytes in the target.
    pub target_offset: usize,
    /// The engine fills the target itself.
    pub is_in_place: bool,
}

impl ReadExtent {
    /// Returns the length of the window.
    pub fn window_len(&self) -> usize {
        usize_of(self.window.end - self.window.start)
    }

    /// Returns the number of wanted bytes.
    pub fn wanted_len(&self) -> usize {
        usize_of(self.wanted.end - self.wanted.start)
    }

    /// Returns the number of bytes that must arrive in the window.
    pub fn needed(&self) -> usize {
        usize_of(self.wanted.end - self.window.start)
    }

    /// Returns the offset of the wanted bytes in the window.
    pub fn skipped(&self) -> usize {
        usize_of(self.wanted.start - self.window.start)
    }
}

fn usize_of(len: u64) -> usize {
    usize::try_from(len).expect("windows are as long as extents")
}

/// Appends the extents of a read, of up to `extent_bytes` bytes, without the edges of windows.
///
/// Memory whose address is congruent to the offset is filled in place, but for the edges.
/// Example, with an alignment of 4,096 and extents of 8,192: bytes 5,000..20,000 are read as
/// 5,000..8,192 | 8,192..16,384 | 16,384..20,000, and the middle one is in place if byte 8,192 goes
/// to a multiple of 4,096. Other memory takes 5,000..12,288 | 12,288..20,000, both staged.
pub fn split(
    request: usize,
    place: &Place,
    target: &Target,
    extent_bytes: u64,
    extents: &mut Vec<ReadExtent>,
) {
    let (alignment, range) = (place.alignment, &place.range);
    let extent_bytes = (extent_bytes / alignment).max(1) * alignment;
    let down = |offset: u64| offset / alignment * alignment;
    let up = |offset: u64| offset.div_ceil(alignment) * alignment;
    let address = target.address();
    let is_congruent = address % alignment == range.start % alignment;
    let mut start = range.start;
    while start < range.end {
        let mut end = down(start) + extent_bytes;
        if is_congruent && start < up(start) {
            // The first edge, alone.
            end = up(start);
        } else if is_congruent && end > range.end && down(range.end) > start {
            // All but the last edge.
            end = down(range.end);
        }
        let wanted = start..end.min(range.end);
        let window = down(wanted.start)..up(wanted.end);
        extents.push(ReadExtent {
            request,
            group: place.group,
            source: place.source,
            target: target.clone(),
            target_offset: usize_of(wanted.start - range.start),
            is_in_place: is_congruent && window == wanted,
            window,
            wanted: wanted.clone(),
        });
        start = wanted.end;
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    #[derive(Clone)]
    #[repr(align(4096))]
    struct Pages([u8; 4096]);

    /// Splits a read of `range` into memory that begins `shift` bytes after a page.
    fn split_at(
        shift: usize,
        range: Range<u64>,
        alignment: u64,
    ) -> Vec<(Range<u64>, Range<u64>, bool)> {
        let mut pages = vec![Pages([0; 4096]); 10];
        let len = usize_of(range.end - range.start);
        assert!(shift + len <= pages.len() * 4096);
        let start = NonNull::from(&mut pages[shift / 4096].0[shift % 4096]).cast();
        #[expect(unsafe_code, reason = "nothing is written there")]
        // SAFETY: nothing is written there.
        let target = unsafe { Target::host(start, len, None) };
        let place = Place {
            group: 0,
            source: 0,
            alignment,
            range: range.clone(),
        };
        let mut extents = Vec::new();
        split(0, &place, &target, 8192, &mut extents);
        let mut next = range.start;
        for extent in &extents {
            assert_eq!(extent.wanted.start, next, "without gaps");
            assert_eq!(extent.target_offset, usize_of(next - range.start));
            assert!(extent.skipped() + extent.wanted_len() == extent.needed());
            assert!(extent.window_len() <= 8192 && extent.needed() <= extent.window_len());
            next = extent.wanted.end;
        }
        assert_eq!(next, range.end);
        let extents = extents.into_iter();
        extents
            .map(|it| (it.wanted, it.window, it.is_in_place))
            .collect()
    }

    #[test]
    fn congruent_memory_is_filled_in_place_but_for_the_edges() {
        let edges = [
            (5000..8192, 4096..8192, false),
            (8192..16_384, 8192..16_384, true),
            (16_384..20_000, 16_384..20_480, false),
        ];
        assert_eq!(split_at(5000 - 4096, 5000..20_000, 4096), edges);
        let whole = [
            (4096..12_288, 4096..12_288, true),
            (12_288..16_384, 12_288..16_384, true),
        ];
        assert_eq!(split_at(0, 4096..16_384, 4096), whole);
        // Less than a page.
        let inside = [(5000..5010, 4096..8192, false)];
        assert_eq!(split_at(5000 - 4096, 5000..5010, 4096), inside);
    }

    #[test]
    fn other_memory_is_staged_in_windows_of_extents() {
        let staged = [
            (5000..12_288, 4096..12_288, false),
            (12_288..20_000, 12_288..20_480, false),
        ];
        assert_eq!(split_at(64, 5000..20_000, 4096), staged);
    }

    #[test]
    fn unaligned_reads_are_in_place_everywhere() {
        for shift in [0, 1, 64] {
            let found = split_at(shift, 5000..20_000, 1);
            assert_eq!(
                found,
                [
                    (5000..13_192, 5000..13_192, true),
                    (13_192..20_000, 13_192..20_000, true)
                ]
            );
        }
        assert!(split_at(0, 7..7, 4096).is_empty());
    }
}
