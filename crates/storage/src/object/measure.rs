//! Measures the network to an object store: round trips, and the throughput of one connection and
//! of several. Bounded in time and in bytes.
//!
//! Connects anew, so that the first response shows what connecting costs. Loads use nothing of
//! this: they adapt to the throughput that they see.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange};
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use super::remote::Remote;
use super::store::{Connection, Fault, KnownLen, ResponseCapture, Store};
use super::store_client::StoreClient;
use super::{ObjectIdentity, ObjectSource};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Protocol;
use crate::sync::lock::Mutex;
use crate::{ConnectionRate, Source, StoreProbe};

/// Round trips to measure after the first response.
const ROUND_TRIPS: usize = 8;
/// Time after which no further round trip begins.
const ROUND_TRIPS_TIME: Duration = Duration::from_secs(1);

/// Measurement of throughput.
#[derive(Clone, Copy)]
struct Trial {
    connections: usize,
    bytes_max: u64,
    time_max: Duration,
}

const TRIALS: [Trial; 2] = [
    Trial {
        connections: 1,
        bytes_max: 64 << 20,
        time_max: Duration::from_millis(1500),
    },
    Trial {
        connections: 16,
        bytes_max: 192 << 20,
        time_max: Duration::from_millis(1500),
    },
];
/// Requests of each connection: enough that a slow one at the end does not count much.
const REQUESTS_EACH: u64 = 2;
/// Bounds of one request's bytes.
const REQUEST_BYTES: Range<u64> = (1 << 20)..(16 << 20);

/// One object to read from.
#[derive(Clone)]
struct Object {
    store: Arc<Store>,
    path: Path,
    len: u64,
}

impl ObjectSource {
    /// Measures the network to the store of this object, which is the first of `objects`, until
    /// `deadline`. All objects are read from for the throughput.
    ///
    /// # Errors
    ///
    /// The store's error, translated; [`ErrorKind::TimedOut`] if it does not answer in time.
    pub fn measure(&self, objects: &[Self], deadline: Instant) -> Result<StoreProbe> {
        let remote = Remote::start_in(&StoreClient::new(), self.remote().options(), &[])?;
        let mut opened = Vec::with_capacity(objects.len());
        for object in objects.iter().filter(|object| object.shares_store(self)) {
            let url = object.location().remote().ok_or_else(|| {
                Error::invalid_request("is not in an object store").with_location(object.location())
            })?;
            let (store, path) = remote.store(url)?;
            let len = object.len();
            opened.push(Object { store, path, len });
        }
        let first = opened.first().cloned();
        let Some(first) = first.filter(|first| first.len > 0) else {
            return Err(Error::unsupported("is empty").with_location(self.location()));
        };
        let mut probe = StoreProbe {
            location: self.location().to_string(),
            validator: validator(self.identity()),
            ..StoreProbe::default()
        };
        let measured = remote.run(async move {
            let captured = round_trips(&first, &mut probe, deadline.into()).await?;
            probe.credentials = first.store.credentials();
            probe.region = first.store.region().map(str::to_owned);
            for trial in TRIALS {
                // One failed request leaves the other measurements valid.
                match throughput(&opened, trial, deadline).await {
                    Ok(measured) => probe.rates.extend(measured),
                    Err(error) => probe.rates_error = Some(error.chain()),
                }
            }
            Ok((probe, captured))
        });
        let (mut probe, captured) = measured.map_err(|error| error.or_location(self.location()))?;
        self.describe(&mut probe, captured);
        Ok(probe)
    }

    /// Adds what the first response tells.
    fn describe(&self, probe: &mut StoreProbe, captured: ResponseCapture) {
        probe.endpoint = captured.endpoint.unwrap_or_default();
        let (scheme, host) = probe.endpoint.split_once("://").unwrap_or_default();
        probe.tls = scheme == "https";
        probe.redirected_to = captured.host.filter(|answering| answering != host);
        let url = self.location().remote();
        probe.addressing = url.filter(|url| url.protocol == Protocol::S3).map(|url| {
            match host.strip_prefix(url.host()) {
                Some(rest) if rest.starts_with('.') => "host",
                _ => "path",
            }
        });
        probe.clock_skew_seconds = captured.skew_seconds;
        if let Some(Connection {
            peer,
            addresses,
            is_direct,
        }) = captured.connection
        {
            probe.addresses = addresses;
            probe.is_loopback = is_direct && peer.ip().is_loopback();
            let proxy = captured.proxy.map(|proxy| proxy.to_string());
            probe.proxy = (!is_direct).then(|| proxy.unwrap_or_else(|| peer.to_string()));
        }
    }
}

/// Returns the validator that requests of a load require.
fn validator(identity: &ObjectIdentity) -> Option<&'static str> {
    if identity.version.is_some() {
        Some("version")
    } else if identity.e_tag.is_some() {
        Some("ETag")
    } else {
        identity.is_versioned().then_some("Last-Modified")
    }
}

/// Requests one byte again and again, over one connection. Returns the facts of the first response.
async fn round_trips(
    object: &Object,
    probe: &mut StoreProbe,
    deadline: tokio::time::Instant,
) -> Result<ResponseCapture> {
    let one_byte = || async {
        let received = AtomicU64::new(0);
        let response = timeout_at(deadline, receive(object, 0..1, &received)).await;
        let late = |_| {
            Error::new(
                ErrorKind::TimedOut,
                "the store did not answer a request for one byte in time",
            )
        };
        response.map_err(late)?.map_err(|fault| fault.into_error(1))
    };
    let began = Instant::now();
    let captured = one_byte().await?;
    probe.first_response_seconds = began.elapsed().as_secs_f64();
    let stop = Instant::now() + ROUND_TRIPS_TIME;
    while probe.round_trip_seconds.len() < ROUND_TRIPS
        && (probe.round_trip_seconds.is_empty() || Instant::now() < stop)
    {
        let began = Instant::now();
        one_byte().await?;
        let seconds = began.elapsed().as_secs_f64();
        probe.round_trip_seconds.push(seconds);
    }
    Ok(captured)
}

/// Reads with a number of connections for a limited time. `None` if no time is left, or no byte
/// arrived.
async fn throughput(
    objects: &[Object],
    trial: Trial,
    deadline: Instant,
) -> Result<Option<ConnectionRate>> {
    let connections = trial.connections;
    let lens: Vec<_> = objects.iter().map(|object| object.len).collect();
    let ranges = Arc::new(Mutex::new(Ranges::new(lens, connections, trial.bytes_max)));
    let received = Arc::new(AtomicU64::new(0));
    // Connections are made before the clock starts: the first response shows their cost.
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let object = objects[0].clone();
        tasks.spawn(async move {
            let connected = receive(&object, 0..1, &AtomicU64::new(0)).await;
            connected.map(drop)
        });
    }
    if !ended(tasks, deadline.into()).await? {
        return Ok(None);
    }
    let began = Instant::now();
    let stop = deadline.min(began + trial.time_max);
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let (objects, ranges) = (objects.to_vec(), Arc::clone(&ranges));
        let received = Arc::clone(&received);
        tasks.spawn(async move {
            loop {
                let next = ranges.lock().next();
                let Some((index, range)) = next else {
                    return Ok(());
                };
                receive(&objects[index], range, &received).await?;
            }
        });
    }
    ended(tasks, stop.into()).await?;
    let bytes = received.load(Ordering::Relaxed);
    let seconds = began.elapsed().as_secs_f64();
    Ok((bytes > 0).then_some(ConnectionRate {
        connections,
        bytes,
        seconds,
    }))
}

/// Waits for all tasks, and returns whether they ended before `stop`. The others are dropped, and
/// their connections with them.
async fn ended(mut tasks: JoinSet<Result<(), Fault>>, stop: tokio::time::Instant) -> Result<bool> {
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            // A task that panicked received nothing.
            ended
                .unwrap_or(Ok(()))
                .map_err(|fault| fault.into_error(1))?;
        }
        Ok(())
    };
    match timeout_at(stop, all).await {
        Ok(outcome) => outcome.map(|()| true),
        Err(_) => Ok(false),
    }
}

/// Requests a range once, drops its bytes, and adds their number to `received` as they arrive.
async fn receive(
    object: &Object,
    range: Range<u64>,
    received: &AtomicU64,
) -> Result<ResponseCapture, Fault> {
    let mut options = GetOptions {
        range: Some(GetRange::Bounded(range)),
        ..GetOptions::default()
    };
    options.extensions.insert(KnownLen(object.len));
    let (result, captured) = object.store.get(&object.path, options).await?;
    let mut body = result.into_stream();
    while let Some(bytes) = body.next().await {
        let bytes = bytes.map_err(|error| object.store.fault(&error, &captured, "GET"))?;
        received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
    Ok(captured)
}

/// Ranges to read, each byte at most once. Pure.
#[derive(Debug)]
struct Ranges {
    lens: Vec<u64>,
    /// Next object, and the offset in it.
    at: (usize, u64),
    step: u64,
    left: u64,
}

impl Ranges {
    /// Cuts at most `bytes_max` bytes of objects of these lengths into ranges for `connections`.
    fn new(lens: Vec<u64>, connections: usize, bytes_max: u64) -> Self {
        let left = lens.iter().sum::<u64>().min(bytes_max);
        let step = left / (connections as u64 * REQUESTS_EACH);
        Self {
            lens,
            at: (0, 0),
            step: step.clamp(REQUEST_BYTES.start, REQUEST_BYTES.end),
            left,
        }
    }

    /// Returns the next range and the index of its object.
    fn next(&mut self) -> Option<(usize, Range<u64>)> {
        loop {
            let (index, start) = self.at;
            let len = *self.lens.get(index).filter(|_| self.left > 0)?;
            let bytes = self.step.min(self.left).min(len - start);
            if bytes == 0 {
                self.at = (index + 1, 0);
                continue;
            }
            self.at.1 += bytes;
            self.left -= bytes;
            return Some((index, start..start + bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ranges(lens: &[u64], connections: usize, bytes_max: u64) -> Vec<(usize, Range<u64>)> {
        let mut ranges = Ranges::new(lens.to_vec(), connections, bytes_max);
        std::iter::from_fn(|| ranges.next()).collect()
    }

    #[test]
    fn ranges_cover_each_byte_once_within_bound() {
        for (lens, connections, most) in [
            (&[100 * MIB, 0, 300 * MIB + 7][..], 16, 192 * MIB),
            (&[100 * MIB, 3], 16, 192 * MIB),
            (&[1], 1, 64 * MIB),
            (&[1 << 40], 1, 64 * MIB),
            (&[0], 16, MIB),
            (&[], 1, MIB),
        ] {
            let found = ranges(lens, connections, most);
            let bytes: u64 = found.iter().map(|(_, range)| range.end - range.start).sum();
            assert_eq!(bytes, lens.iter().sum::<u64>().min(most), "{lens:?}");
            let mut ends = vec![0; lens.len()];
            for (index, range) in found {
                assert_eq!(range.start, ends[index], "{lens:?}");
                assert!(range.end <= lens[index] && range.start < range.end);
                assert!(range.end - range.start <= REQUEST_BYTES.end);
                ends[index] = range.end;
            }
        }
    }

    #[test]
    fn small_model_is_shared_by_all_connections() {
        assert_eq!(ranges(&[32 * MIB], 16, 192 * MIB).len(), 32);
        assert_eq!(ranges(&[5 * MIB], 16, 192 * MIB).len(), 5);
        assert_eq!(ranges(&[640 * MIB], 16, 192 * MIB).len(), 32);
    }

    #[test]
    fn strongest_validator_is_named() {
        let mut identity = ObjectIdentity {
            len: 1,
            e_tag: None,
            version: None,
            modified: 0,
        };
        assert_eq!(validator(&identity), None);
        identity.modified = 1;
        assert_eq!(validator(&identity), Some("Last-Modified"));
        identity.e_tag = Some("\"a\"".to_owned());
        assert_eq!(validator(&identity), Some("ETag"));
        identity.version = Some("1".to_owned());
        assert_eq!(validator(&identity), Some("version"));
    }
}
