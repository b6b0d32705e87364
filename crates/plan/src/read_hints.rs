//! Hints on how a source is best read, and those of several sources together.

/// Bytes in flight at the start of [`ReadHints::shallow`] reads. From such a start, a disk of 1.8
/// GB/s was read to one H100 at 0.99 of its speed (one round, 2026-11, `16core-h100-2026-11-26` in
/// `benches/results`).
const SHALLOW_BYTES: u64 = 16 << 20;

/// Hints on how a source is best read. Planning and scheduling start from these and never ask what
/// kind of source it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadHints {
    /// Largest useful read, bytes; a multiple of `alignment`.
    pub extent_bytes: u64,
    /// Longest request, bytes, where one request may cover several adjacent extents; else
    /// `extent_bytes`.
    pub request_bytes: u64,
    /// Reads begin and end on multiples of this, bytes.
    pub alignment: u64,
    /// Largest gap between two wanted ranges that costs less to read than to skip, bytes.
    pub gap_bytes: u64,
    /// Initial number of reads in flight.
    pub depth: usize,
    /// Initial number of bytes in flight.
    pub in_flight_bytes: u64,
    /// Upper bound on bytes in flight that may be worth their memory; equals `in_flight_bytes`
    /// where more cannot increase throughput.
    pub in_flight_bytes_max: u64,
}

impl ReadHints {
    /// Hints that [`Self::max`] never prefers.
    const MIN: Self = Self {
        extent_bytes: 1,
        request_bytes: 1,
        alignment: 1,
        gap_bytes: 0,
        depth: 1,
        in_flight_bytes: 1,
        in_flight_bytes_max: 1,
    };

    /// Returns the greatest value of each hint, for a group of sources.
    pub fn greatest(hints: impl IntoIterator<Item = Self>) -> Self {
        hints.into_iter().fold(Self::MIN, Self::max)
    }

    /// Returns the hints for reads into memory that takes time to prepare, is used again or is
    /// shared by ranks (staging memory, a node's shared memory): they start with less in flight.
    #[must_use]
    pub fn shallow(self) -> Self {
        let bytes = self.in_flight_bytes.min(SHALLOW_BYTES);
        if self.in_flight_bytes == self.in_flight_bytes_max || bytes == self.in_flight_bytes {
            return self;
        }
        let reads = self.depth as u64 * bytes / self.in_flight_bytes;
        Self {
            depth: usize::try_from(reads).unwrap_or(self.depth).max(1),
            in_flight_bytes: bytes,
            ..self
        }
    }

    /// Returns the hints for `copiers` threads that copy from memory to staging memory: each has
    /// one extent of at most `window` bytes, and a few more wait for the first thread that is
    /// free. Less staging memory is pinned sooner. If all of them fill the same extent, all of the
    /// `ring` may be in flight, bytes.
    #[must_use]
    pub fn copied_by(self, copiers: usize, window: usize, ring: Option<u64>) -> Self {
        let extents = (copiers + copiers.div_ceil(3)) as u64;
        let extent = self.extent_bytes.max(window as u64);
        let bytes = ring.unwrap_or(self.in_flight_bytes.min(extents * extent));
        Self {
            in_flight_bytes: bytes,
            in_flight_bytes_max: bytes,
            ..self
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            extent_bytes: self.extent_bytes.max(other.extent_bytes),
            request_bytes: self.request_bytes.max(other.request_bytes),
            alignment: self.alignment.max(other.alignment),
            gap_bytes: self.gap_bytes.max(other.gap_bytes),
            depth: self.depth.max(other.depth),
            in_flight_bytes: self.in_flight_bytes.max(other.in_flight_bytes),
            in_flight_bytes_max: self.in_flight_bytes_max.max(other.in_flight_bytes_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shallow_reads_start_with_less_in_flight() {
        let hints = ReadHints {
            depth: 256,
            in_flight_bytes: 128 << 20,
            in_flight_bytes_max: 256 << 20,
            ..ReadHints::MIN
        };
        let shallow = hints.shallow();
        assert_eq!((shallow.depth, shallow.in_flight_bytes), (32, 16 << 20));
        assert_eq!(shallow.in_flight_bytes_max, 256 << 20);
        let fixed = ReadHints {
            in_flight_bytes_max: 128 << 20,
            ..hints
        };
        assert_eq!(fixed.shallow(), fixed, "a fixed depth stays");
    }

    #[test]
    fn staged_copies_keep_few_extents_in_flight() {
        let hints = ReadHints {
            extent_bytes: 4,
            in_flight_bytes: 128,
            in_flight_bytes_max: 128,
            ..ReadHints::MIN
        };
        assert_eq!(hints.copied_by(12, 3, None).in_flight_bytes, 4 * 16);
        assert_eq!(hints.copied_by(2, 8, None).in_flight_bytes_max, 8 * 3);
        assert_eq!(
            hints.copied_by(100, 4, None),
            hints,
            "never more than the source's"
        );
        assert_eq!(hints.copied_by(12, 3, Some(200)).in_flight_bytes, 200);
    }
}
