//! Requests a range of an object with one request after another, and hedges a stalled request with
//! a second one.
//!
//! ```text
//!  request ─ bytes ──────────────────────────────────────────▶ all there
//!      ├─ transient error ─ backoff ─▶ another, from where it stopped
//!      └─ stall ─▶ a second request for the rest ─ bytes ─▶ the first is dropped
//! ```
//!
//! The receiver gets each byte once, from the request that had it first; a request never writes
//! anywhere itself. The second request is adopted at its first new byte, so at most the bytes
//! between two reads of a socket come twice.

use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

use super::retrying::wait;
use super::store::{Arrived, Attempt, EndsAt, Fault, READ_TIMEOUT, ResponseCapture};
use super::{Events, ObjectSource, Provenance, Receive};
use crate::error::{Error, ErrorKind, FailedRequest, Result};
use crate::sync::latency::{Hedges, LatencyHistogram};
use crate::sync::lock::Mutex;
use crate::sync::retry::{PROGRESS_BYTES, Retries, Transient};
use crate::sync::retry_counter::RetryCounter;

/// Factor on `read_timeout`: a request may take this long for less than [`PROGRESS_BYTES`]. It is
/// above 1 because the detection of silence gives the more specific error.
const PATIENCE: f64 = 1.25;

/// State shared by the requests of a load: their usual latency, and how many were hedged.
#[derive(Debug)]
pub struct Hedging {
    /// True if requests may be hedged.
    is_on: bool,
    seen: Mutex<(LatencyHistogram, Hedges)>,
}

impl Hedging {
    /// Creates the state of hedged requests of one load.
    pub fn new(is_on: bool) -> Self {
        Self {
            is_on,
            seen: Mutex::default(),
        }
    }

    fn seen<T>(&self, with: impl FnOnce(&mut LatencyHistogram, &mut Hedges) -> T) -> T {
        let mut seen = self.seen.lock();
        let (latencies, hedges) = &mut *seen;
        with(latencies, hedges)
    }

    /// Returns whether a request may be hedged, and counts it if so.
    fn take(&self) -> bool {
        self.is_on && self.seen(|_, hedges| hedges.take())
    }

    /// Records that a request ended, with the longest time it took for [`PROGRESS_BYTES`].
    fn observe(&self, slowest: Duration) {
        self.seen(|latencies, _| latencies.observe(slowest));
    }
}

/// Receiver that collects bytes in one piece.
pub(super) struct Collected {
    pub(super) bytes: Vec<u8>,
    pub(super) retry_counter: RetryCounter,
}

impl Receive for Collected {
    fn bytes(&mut self, bytes: &[u8], _from: Provenance) {
        self.bytes.extend_from_slice(bytes);
    }

    fn events(&mut self) -> &mut dyn Events {
        self
    }
}

impl Events for Collected {
    fn failed(&mut self, error: &Error) {
        self.retry_counter.count(error);
    }
}

/// Response to one request.
struct Answer<'a> {
    /// Offset of its next byte in the object.
    at: u64,
    body: Pin<Box<dyn Stream<Item = Result<Arrived, Fault>> + Send + 'a>>,
}

impl Answer<'_> {
    /// Counts `len` bytes of the response as received and returns how many of them the receiver,
    /// which has everything before `at`, already has.
    fn came(&mut self, len: usize, at: u64) -> usize {
        let known = at - self.at;
        self.at += len as u64;
        usize::try_from(known).unwrap_or(usize::MAX)
    }

    async fn next(answer: &mut Option<Self>) -> Option<Result<Arrived, Fault>> {
        match answer {
            Some(answer) => answer.body.next().await,
            None => std::future::pending().await,
        }
    }
}

/// Progress of a request: since when it has brought less than [`PROGRESS_BYTES`].
struct Pace {
    at: u64,
    since: Instant,
    slowest: Duration,
    stalled: bool,
}

impl Pace {
    fn begin(at: u64) -> Self {
        Self {
            at,
            since: Instant::now(),
            slowest: Duration::ZERO,
            stalled: false,
        }
    }

    fn moved(&mut self, at: u64) {
        if at - self.at >= u64::from(PROGRESS_BYTES) {
            self.advance(at);
        }
    }

    /// Counts the request as advanced by [`PROGRESS_BYTES`].
    fn advance(&mut self, at: u64) {
        self.end();
        (self.at, self.since) = (at, Instant::now());
    }

    /// Leaves out time in which the load did not wait for the store.
    fn skip(&mut self, time: Duration) {
        self.since += time;
    }

    fn end(&mut self) {
        self.slowest = self.slowest.max(self.since.elapsed());
    }
}

impl ObjectSource {
    /// Requests `range`, which must not be empty, and passes every byte of it to `to` once and in
    /// order. A failed request is retried from where it stopped; a stalled one is hedged once, if
    /// `hedging` allows it.
    pub(super) async fn read_remote(
        &self,
        range: Range<u64>,
        retries: Retries,
        hedging: Option<&Hedging>,
        to: &mut impl Receive,
    ) -> Result<()> {
        let mut at = range.start;
        let mut attempts = 0;
        // Number of consecutive failures, and the offset at which the first of them began.
        let (mut failed, mut since) = (0, at);
        loop {
            to.events().requested(attempts > 0);
            attempts += 1;
            let is_last = failed >= retries.max;
            let sent = self.request(&mut at, range.end, is_last, hedging, to);
            let fault = match sent.await {
                Ok(()) if at == range.end => return Ok(()),
                // All bytes of the right version have arrived; only the end of the response failed.
                Err(fault) if at == range.end && fault.transient.is_some() => return Ok(()),
                // A server may send less than the requested range. Very little progress counts as a
                // failure.
                Ok(()) if at - since >= u64::from(PROGRESS_BYTES) => {
                    (failed, since) = (0, at);
                    continue;
                }
                Ok(()) => self.too_little(at, range.end),
                Err(fault) => fault,
            };
            if at - since >= u64::from(PROGRESS_BYTES) {
                (failed, since) = (0, at);
            }
            failed += 1;
            match wait(retries, &fault, failed) {
                Some(wait) => {
                    to.events().failed(&fault.error);
                    tokio::time::sleep(wait).await;
                }
                None => {
                    return Err(fault
                        .into_error(attempts)
                        .with_location(&self.0.location)
                        .with_range(at..range.end));
                }
            }
        }
    }

    /// Sends one request for `*at..end`, and a second one if it stalls. `*at` follows the received
    /// bytes. `is_last` tells that a failure of it without progress is not retried.
    async fn request(
        &self,
        at: &mut u64,
        end: u64,
        is_last: bool,
        hedging: Option<&Hedging>,
        to: &mut impl Receive,
    ) -> Result<(), Fault> {
        let patience = self.patience();
        let mut pace = Pace::begin(*at);
        hedging.inspect(|hedging| hedging.seen(|_, hedges| hedges.requested()));
        let mut first = Some(self.answer(*at..end, is_last));
        let mut second = None;
        loop {
            let limit = match hedging {
                Some(hedging) if !pace.stalled => {
                    hedging.seen(|latencies, _| latencies.limit()).min(patience)
                }
                _ => patience,
            };
            let (is_second, piece) = tokio::select! {
                biased;
                piece = Answer::next(&mut first) => (false, piece),
                piece = Answer::next(&mut second) => (true, piece),
                () = tokio::time::sleep_until(pace.since + limit) => {
                    if limit >= patience {
                        return Err(self.too_slow(*at - pace.at, patience));
                    }
                    pace.stalled = true;
                    let hedged = hedging.is_some_and(Hedging::take);
                    if hedged {
                        second = Some(self.answer(*at..end, is_last));
                    }
                    to.events().stalled(hedged);
                    continue;
                }
            };
            let (answer, other) = if is_second {
                (&mut second, &mut first)
            } else {
                (&mut first, &mut second)
            };
            match piece {
                Some(Ok(Arrived::Unusable)) => pace.advance(*at),
                Some(Ok(Arrived::Bytes(bytes))) => {
                    let came = |answer: &mut Answer<'_>| answer.came(bytes.len(), *at);
                    let known = answer.as_mut().map_or(0, came);
                    let Some(new) = bytes.get(known..).filter(|new| !new.is_empty()) else {
                        continue;
                    };
                    let handed = Instant::now();
                    to.bytes(new, Provenance::Origin);
                    // The receiver may have waited for the cache's disk, which is not the server's
                    // pace.
                    pace.skip(handed.elapsed());
                    *at += new.len() as u64;
                    pace.moved(*at);
                    if is_second {
                        to.events().hedge_won();
                        (first, second) = (second.take(), None);
                    }
                }
                None => {
                    pace.end();
                    hedging.inspect(|hedging| hedging.observe(pace.slowest));
                    return Ok(());
                }
                // One of two hedged requests failed, and the other one continues. It will report a
                // permanent error too.
                Some(Err(_)) if other.is_some() => *answer = None,
                Some(Err(fault)) => return Err(fault),
            }
        }
    }

    /// Requests a range. The returned stream yields its bytes as they arrive: all of them or an
    /// error, and never one more.
    fn answer(&self, wanted: Range<u64>, is_last: bool) -> Answer<'_> {
        let at = wanted.start;
        let begun = async move {
            let store = &self.0.store;
            let attempt = Attempt {
                patience: self.patience(),
                is_last,
            };
            let asked = store.by_content_store(&self.0.path, wanted.clone(), attempt);
            if let Some((meta, pieces)) = asked.await? {
                self.require_same(&meta, &ResponseCapture::default())?;
                return Ok(pieces);
            }
            let (result, captured) = self.ask(wanted.clone()).await?;
            self.require_same(&result.meta, &captured)?;
            if result.range != wanted {
                let message = format!(
                    "the store sent bytes {}..{} in response to a request for {}..{}",
                    result.range.start, result.range.end, wanted.start, wanted.end
                );
                return Err(self.0.store.misbehaved(&captured, &message));
            }
            let end = result
                .extensions
                .get()
                .map_or(wanted.end, |EndsAt(end)| *end);
            let len = end - wanted.start;
            let begin = (result.into_stream(), 0, captured);
            let pieces = stream::unfold(Some(begin), move |state| async move {
                let (mut body, came, captured) = state?;
                let misbehaved = |message: String| self.0.store.misbehaved(&captured, &message);
                let fault = match body.next().await {
                    Some(Ok(bytes)) if bytes.len() as u64 > len - came => misbehaved(too_long(len)),
                    Some(Ok(bytes)) => {
                        let came = came + bytes.len() as u64;
                        return Some((Ok(Arrived::Bytes(bytes)), Some((body, came, captured))));
                    }
                    Some(Err(error)) => self.0.store.fault(&error, &captured, "GET"),
                    None if came < len => cut_short(misbehaved, came, len),
                    None => return None,
                };
                Some((Err(fault), None))
            });
            Ok(pieces.boxed())
        };
        let body = Box::pin(stream::once(begun).try_flatten());
        Answer { at, body }
    }

    /// Returns how long a request may take for less than [`PROGRESS_BYTES`].
    fn patience(&self) -> Duration {
        let silence = self.0.remote.options().seconds("read_timeout");
        silence.unwrap_or(READ_TIMEOUT).mul_f64(PATIENCE)
    }

    /// Returns the failure of a server that sent a part of the range only, up to `at`.
    fn too_little(&self, at: u64, end: u64) -> Fault {
        let message = format!("the server sent the range up to byte {at} only, wanted {end}");
        let captured = ResponseCapture::default();
        let fault = self.0.store.misbehaved(&captured, &message);
        Fault {
            transient: Some(Transient::Broken),
            ..fault
        }
    }

    fn too_slow(&self, came: u64, patience: Duration) -> Fault {
        let mut request = FailedRequest::new("GET");
        request.credentials = Some(self.0.store.credentials());
        let message = format!("the store sent {came} bytes in {patience:?}, too slow to continue");
        let error = Error::new(ErrorKind::TimedOut, message)
            .with_request(request)
            .with_hint("set read_timeout higher if the store needs longer");
        Fault {
            transient: Some(Transient::Stalled),
            ..Fault::new(error)
        }
    }
}

pub(super) fn too_long(wanted: u64) -> String {
    format!("the store sent more than the {wanted} bytes requested")
}

/// A connection that was closed early also looks like a short body, so it is worth a retry.
pub(super) fn cut_short(misbehaved: impl Fn(String) -> Fault, came: u64, wanted: u64) -> Fault {
    let mut fault = misbehaved(format!("the body ended after {came} of {wanted} bytes"));
    fault.transient = Some(Transient::Broken);
    fault
}
