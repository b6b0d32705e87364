//! Configuration of the engine for objects.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::storage::ObjectSource;
use crate::sync::cancel::CancelFlag;
use crate::sync::retry::Retries;

/// Configuration of an engine for objects.
#[derive(Debug)]
pub struct ObjectSetup {
    /// Objects, in the order of [`Job::source`](super::Job::source).
    pub objects: Arc<[ObjectSource]>,
    /// Initial number of requests that receive at a time. Requests that only wait for their
    /// response are not counted: the next request is sent ahead of the end of another one by the
    /// expected latency, so that no connection's share of the bandwidth is idle meanwhile.
    pub connections: usize,
    /// Bytes in flight for which `connections` is right: the number of connections scales with the
    /// bytes. `None` if it is constant.
    pub in_flight_bytes: Option<u64>,
    /// Maximum length of a request, bytes; a longer job is still one request.
    pub request_bytes: u64,
    /// Total number of bytes that the load needs: towards the end requests become shorter, so that
    /// all connections end together. 0 if unknown.
    pub total_bytes: u64,
    /// Retry policy for failed requests; `None` for the policy of the store's options.
    pub retries: Option<Retries>,
    /// True if stalled requests may be hedged.
    pub hedge: bool,
    /// Number of jobs in flight that the engine must accept.
    pub depth: usize,
    /// Counts the bytes that requests receive, as they arrive.
    pub arrived: Arc<AtomicU64>,
    /// Cancels the requests in flight when set.
    pub cancel: Arc<CancelFlag>,
}
