//! In-flight limits of each group of sources, from the options of a load and the sources' hints.

use super::groups::{Group, Sources};
use crate::options::Options;
use crate::plan::Plan;
use crate::schedule::{Depth, InFlight};
use crate::storage::ReadHints;

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
    /// Uses the caller's options, or else the hints of the sources.
    pub(crate) fn new(group: usize, sources: &Sources, plan: &Plan, options: &Options) -> Self {
        let members = sources.members();
        let hints = (0..members.len())
            .filter(|source| members[*source].group == group)
            .map(|source| sources.hints(source))
            .fold(NO_HINTS, greatest);
        let windows = plan
            .extents
            .iter()
            .filter(|extent| members[extent.source].group == group);
        // Length of the longest read, in bytes.
        let window = windows.map(|extent| extent.window).max().unwrap_or(0);
        match &sources.groups()[group] {
            Group::Files(_) => Self::files(options, &hints, window),
            #[cfg(feature = "object")]
            Group::Objects(_) => Self::objects(options, &hints, window),
        }
    }

    fn files(options: &Options, hints: &ReadHints, window: usize) -> Self {
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

    #[cfg(feature = "object")]
    fn objects(options: &Options, hints: &ReadHints, window: usize) -> Self {
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
                // A quarter of the requests: no worse where a single request saturates the network.
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

const NO_HINTS: ReadHints = ReadHints {
    extent_bytes: 1,
    request_bytes: 1,
    alignment: 1,
    gap_bytes: 0,
    depth: 1,
    in_flight_bytes: 1,
    in_flight_bytes_max: 1,
};

fn greatest(a: ReadHints, b: ReadHints) -> ReadHints {
    ReadHints {
        extent_bytes: a.extent_bytes.max(b.extent_bytes),
        request_bytes: a.request_bytes.max(b.request_bytes),
        alignment: a.alignment.max(b.alignment),
        gap_bytes: a.gap_bytes.max(b.gap_bytes),
        depth: a.depth.max(b.depth),
        in_flight_bytes: a.in_flight_bytes.max(b.in_flight_bytes),
        in_flight_bytes_max: a.in_flight_bytes_max.max(b.in_flight_bytes_max),
    }
}
