//! How objects like to be read.

use super::ReadHints;

/// Longest request, bytes. Each costs one wait for an answer and some CPU time: requests of 16 MiB took a tenth less of it than of
/// 8 MiB (`benches/results/2core-loopback-2026-11-20`); towards the end of a load they are shorter by themselves.
const REQUEST_BYTES: u64 = 32 << 20;

/// One window, bytes: how finely a request can be cut, and what arrives at a time. At 20 MB/s, a slow connection, a fifth of a
/// second.
const EXTENT_BYTES: u64 = 4 << 20;

/// Requests at a time to begin with. There, 8 to 32 were equally fast, and 32 took a quarter more CPU time than 16. Stores that limit
/// single connections want more: S3 gives 85 to 90 MB/s to each ("Performance guidelines for Amazon S3").
const CONNECTIONS: usize = 16;

/// Most requests at a time: at 90 MB/s, 46 Gbit/s.
const CONNECTIONS_MAX: usize = 64;

/// Bytes in flight for each: they leave the count as they arrive, so a request on its way holds half of its bytes on average; an eighth
/// more is what comes next.
const BYTES_EACH: u64 = REQUEST_BYTES / 8 * 5;

/// A gap that costs less to read than another request: at 90 MB/s, 30 ms to an answer are 2.7 MB. Less than that, because a gap also
/// takes bandwidth from others.
const GAP_BYTES: u64 = 1 << 20;

/// The hints for objects, the same for every store.
pub(super) fn object_hints() -> ReadHints {
    ReadHints {
        extent_bytes: EXTENT_BYTES,
        request_bytes: REQUEST_BYTES,
        alignment: 1,
        gap_bytes: GAP_BYTES,
        depth: CONNECTIONS,
        in_flight_bytes: BYTES_EACH * CONNECTIONS as u64,
        in_flight_bytes_max: BYTES_EACH * CONNECTIONS_MAX as u64,
    }
}
