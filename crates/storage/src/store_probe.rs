//! Facts about an object store, as a probe measured them. `object/measure.rs` measures.

use serde::Serialize;

/// Facts about the store of an object, and about the network to it. Shows no secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StoreProbe {
    /// Object that was requested.
    pub location: String,
    /// Scheme, host and port that requests go to.
    pub endpoint: String,
    /// Host that answers them, if they were redirected to another one.
    pub redirected_to: Option<String>,
    /// Region that requests are signed for; S3 only.
    pub region: Option<String>,
    /// `host` if the bucket is in the host name, `path` if it is in the path; S3 only.
    pub addressing: Option<&'static str>,
    /// Origin of the credentials, never their values.
    pub credentials: String,
    /// Proxy that requests go through, and where it is set.
    pub proxy: Option<String>,
    /// True if connections are encrypted.
    pub tls: bool,
    /// True if the server is this machine.
    pub is_loopback: bool,
    /// Number of addresses that the host's name has; unknown behind a proxy.
    pub addresses: Option<usize>,
    /// Validator that tells states of the object apart: `version`, `ETag` or `Last-Modified`.
    pub validator: Option<&'static str>,
    /// The store's clock minus this machine's, seconds, if the store states its time.
    pub clock_skew_seconds: Option<i64>,
    /// Seconds to the first response: name resolution, connection, TLS, credentials and a round
    /// trip.
    pub first_response_seconds: f64,
    /// Seconds of further requests for one byte, one after the other over the same connection.
    pub round_trip_seconds: Vec<f64>,
    /// Throughput of one connection, and of several at a time, without measurements that failed or
    /// had no time left.
    pub rates: Vec<ConnectionRate>,
    /// Error of the last throughput measurement that failed and is missing in `rates`, with its
    /// causes.
    pub rates_error: Option<String>,
}

/// Throughput of a number of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ConnectionRate {
    /// Number of connections.
    pub connections: usize,
    /// Bytes that they received.
    pub bytes: u64,
    /// Seconds that they took.
    pub seconds: f64,
}
