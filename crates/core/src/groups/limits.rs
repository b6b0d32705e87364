//! In-flight limits of a group of sources, from the options of a load and the sources' hints.

use crate::options::LoadOptions;
use crate::schedule::{Depth, InFlight};
use crate::storage::ReadHints;

/// Maximum number of reads of files in flight, whatever their length: the number of entries of a
/// ring.
const READS_MAX: usize = 512;

/// Lower bound of the depth, in bytes: less would mean one read after another.
const FLOOR_BYTES: u64 = 4 << 20;

/// In-flight limits of a group of sources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) depth: Depth,
    /// Number of concurrent reads or requests of the largest size.
    pub(crate) reads: usize,
    /// Length of the longest request, in bytes; 0 if reads are no requests.
    pub(crate) request_bytes: u64,
}

impl Limits {
    /// Returns the limits of a group of files. `window` is the length of its longest read, in
    /// bytes.
    pub(crate) fn for_files(options: &LoadOptions, hints: &ReadHints, window: usize) -> Self {
        // Windows are slightly longer than extents: alignment at both edges must not cost a whole
        // read in flight.
        let with_edges = |bytes: u64, reads: usize| bytes + 2 * hints.alignment * reads as u64;
        let depth = match (options.depth, options.in_flight_bytes) {
            (None, None) if hints.in_flight_bytes_max > hints.in_flight_bytes => {
                let start = InFlight {
                    jobs: hints.depth,
                    bytes: with_edges(hints.in_flight_bytes, hints.depth),
                };
                let most = InFlight {
                    jobs: READS_MAX,
                    bytes: with_edges(hints.in_flight_bytes_max, READS_MAX),
                };
                Depth::adaptive(start, FLOOR_BYTES, most)
            }
            (None, None) => {
                Depth::fixed(hints.depth, with_edges(hints.in_flight_bytes, hints.depth))
            }
            (Some(jobs), None) => Depth::fixed(jobs, window as u64 * jobs as u64),
            (jobs, Some(bytes)) => Depth::fixed(jobs.unwrap_or(hints.depth), bytes),
        };
        let InFlight { jobs, bytes } = depth.start();
        Self {
            depth,
            reads: Depth::fixed(jobs, bytes).reads_of(window),
            request_bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HINTS: ReadHints = ReadHints {
        extent_bytes: 4 << 20,
        request_bytes: 4 << 20,
        alignment: 4096,
        gap_bytes: 0,
        depth: 8,
        in_flight_bytes: 32 << 20,
        in_flight_bytes_max: 128 << 20,
    };

    const WINDOW: usize = 4 << 20;

    #[test]
    fn depth_of_files_adapts_unless_set() {
        let limits = |options: &LoadOptions| Limits::for_files(options, &HINTS, WINDOW);
        let free = limits(&LoadOptions::default());
        assert!(!free.depth.is_fixed());
        assert_eq!(free.reads, 8);
        assert_eq!(free.depth.start().bytes, (32 << 20) + 8 * 2 * 4096);
        let set = limits(&LoadOptions::new().depth(3));
        assert!(set.depth.is_fixed());
        assert_eq!((set.reads, set.depth.bytes()), (3, 3 * WINDOW as u64));
        let bounded = limits(&LoadOptions::new().in_flight_bytes(8 << 20));
        assert!(bounded.depth.is_fixed());
        assert_eq!((bounded.reads, bounded.depth.bytes()), (2, 8 << 20));
    }

    #[test]
    fn depth_of_files_is_fixed_if_more_cannot_help() {
        let hints = ReadHints {
            in_flight_bytes_max: HINTS.in_flight_bytes,
            ..HINTS
        };
        assert!(
            Limits::for_files(&LoadOptions::default(), &hints, WINDOW)
                .depth
                .is_fixed()
        );
    }
}
