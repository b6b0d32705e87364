//! Read hints of objects.

use crate::ReadHints;

/// Longest request, bytes. Each request costs one round trip and some CPU time: requests of 16 MiB
/// took a tenth less CPU time than those of 8 MiB (`benches/results/2core-loopback-2026-11-20`).
/// Requests get shorter towards the end of a load by themselves.
const REQUEST_BYTES: u64 = 32 << 20;

/// Size of one window, bytes: the granularity at which a request can be cut and bytes are
/// delivered. A fifth of a second at 20 MB/s, a slow connection.
const EXTENT_BYTES: u64 = 4 << 20;

/// Initial number of concurrent requests. In the benchmark above, 8 to 32 were equally fast, and 32
/// took a quarter more CPU time than 16. Stores that limit single connections need more: S3 gives
/// 85 to 90 MB/s to each ("Performance guidelines for Amazon S3").
const CONNECTIONS: usize = 16;

/// Maximum of concurrent requests: 46 Gbit/s at 90 MB/s.
const CONNECTIONS_MAX: usize = 64;

/// Bytes in flight for each request. Bytes leave the count as they arrive, so a request in progress
/// holds half of its bytes on average; an eighth is added for the next ones.
const BYTES_EACH: u64 = REQUEST_BYTES / 8 * 5;

/// Largest gap that is read rather than skipped with another request. At 90 MB/s, 30 ms to a
/// response are 2.7 MB; the value is smaller because a gap also takes bandwidth from other
/// requests.
const GAP_BYTES: u64 = 1 << 20;

/// Returns the hints for objects, which are the same for every store.
pub(crate) fn object_hints() -> ReadHints {
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
