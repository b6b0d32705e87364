//! In-flight limits of a group of sources, from the options of a load and the sources' hints.

use super::{Depth, InFlight, ReadHints};
use crate::options::Options;

/// Maximum number of jobs that an object engine takes at a time. Neighbours share a request, so
/// there are more jobs than requests.
#[cfg(feature = "object")]
const OBJECT_JOBS_MAX: usize = 4096;

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
    /// Length of the longest request, in bytes.
    #[cfg(feature = "object")]
    pub(crate) request_bytes: u64,
}

impl Limits {
    /// Returns the limits of a group of files. `window` is the length of its longest read, in
    /// bytes.
    pub(crate) fn for_files(options: &Options, hints: &ReadHints, window: usize) -> Self {
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
            #[cfg(feature = "object")]
            request_bytes: 0,
        }
    }

    /// Returns the limits of a group of objects. `window` is the length of its longest extent, in
    /// bytes.
    #[cfg(feature = "object")]
    pub(crate) fn for_objects(options: &Options, hints: &ReadHints, window: usize) -> Self {
        let reads = options.depth.unwrap_or(hints.depth);
        let request_bytes = options.extent_bytes.unwrap_or(hints.request_bytes);
        // The hints' bytes per request, scaled to the requested size; at least one extent for each
        // request.
        let each =
            hints.in_flight_bytes * request_bytes / (hints.depth as u64 * hints.request_bytes);
        let bytes_of = |reads: u64| (each * reads).max(window as u64 * (reads + 1));
        let start = InFlight {
            jobs: OBJECT_JOBS_MAX,
            bytes: bytes_of(reads as u64),
        };
        let depth = match (options.depth, options.in_flight_bytes) {
            (None, None) => {
                let most = InFlight {
                    bytes: bytes_of(
                        hints.in_flight_bytes_max * reads as u64 / hints.in_flight_bytes,
                    ),
                    ..start
                };
                // Start with a quarter of the requests, which costs nothing if a single request
                // saturates the network.
                Depth::adaptive(start, start.bytes / 4, most)
            }
            (_, bytes) => Depth::fixed(OBJECT_JOBS_MAX, bytes.unwrap_or(start.bytes)),
        };
        Self {
            depth: depth.with_stride(request_bytes),
            reads,
            request_bytes,
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
        let limits = |options: &Options| Limits::for_files(options, &HINTS, WINDOW);
        let free = limits(&Options::default());
        assert!(!free.depth.is_fixed());
        assert_eq!(free.reads, 8);
        assert_eq!(free.depth.start().bytes, (32 << 20) + 8 * 2 * 4096);
        let set = limits(&Options {
            depth: Some(3),
            ..Options::default()
        });
        assert!(set.depth.is_fixed());
        assert_eq!((set.reads, set.depth.bytes()), (3, 3 * WINDOW as u64));
        let bounded = limits(&Options {
            in_flight_bytes: Some(8 << 20),
            ..Options::default()
        });
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
            Limits::for_files(&Options::default(), &hints, WINDOW)
                .depth
                .is_fixed()
        );
    }

    #[test]
    #[cfg(feature = "object")]
    fn bytes_of_objects_scale_with_request_size() {
        let limits = |extent_bytes| {
            let options = Options {
                extent_bytes,
                ..Options::default()
            };
            Limits::for_objects(&options, &HINTS, 1 << 20)
        };
        let (default, half) = (limits(None), limits(Some(2 << 20)));
        assert_eq!(default.depth.start().bytes, 32 << 20);
        assert_eq!(half.depth.start().bytes, 16 << 20);
        assert_eq!((half.reads, half.request_bytes), (8, 2 << 20));
    }
}
