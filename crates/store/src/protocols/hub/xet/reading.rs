//! Requests a range of a file from the content store, term by term, and unpacks it as it arrives.
//!
//! One request at a time: the engine reads many ranges at once. At most a frame of the connection
//! and two chunks are in memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http::header::{AUTHORIZATION, RANGE};
use http::{HeaderValue, StatusCode, Uri};
use object_store::client::{HttpError, HttpRequest, HttpRequestBody, HttpResponse};

use super::terms::{self, Step, Version};
use super::unpack::Unpacker;
use super::{Access, File, Xet};
use crate::backend::Arrived;
use crate::error::ErrorKind;
use crate::errors::classification::{Classification, transient_of};
use crate::http::addresses::Reach;
use crate::http::ranged_response::{AsSent, ContentRange};
use crate::http::redirects::NamedBy;
use crate::protocols::hub::repository::failed;
use crate::requests::Requests;
use crate::sync::retry::{PROGRESS_BYTES, Transient};
use crate::{Fault, ResponseCapture};

/// Number of bytes whose places are asked for at once: bounds the response.
const PLACES_BYTES_MAX: u64 = 64 << 20;

/// Longest response with places, bytes: 4000 terms with presigned URLs of 1 KiB.
const ANSWER_MAX: usize = 4 << 20;

/// Number of bytes that may arrive for a range: a multiple of its length, and a xorb at each end.
/// Chunks arrive compressed, and a term may be in the midst of its place; a store that sends much
/// more is at fault.
const ARRIVED_FACTOR: u64 = 8;
const XORBS_BYTES: u64 = 128 << 20;

/// Sender of the requests for one file.
struct Sender<'a> {
    requests: &'a Requests,
    xet: &'a Xet,
    file: Arc<File>,
}

/// Range of a file that is being read.
pub(super) struct Reading<'a> {
    sender: Sender<'a>,
    /// Bytes that have not been returned.
    rest: Range<u64>,
    steps: VecDeque<Step>,
    /// Networks that the hub was in when it named the store that sent the steps.
    reach: Reach,
    body: Option<Body>,
    /// True if a presigned URL was refused, and no newer one has been accepted since.
    is_renewed: bool,
    /// Number of bytes that may still arrive.
    allowance: u64,
}

/// Response with the chunks of a term, and of later terms of the same place.
struct Body {
    frames: BoxStream<'static, Result<Bytes, HttpError>>,
    captured: ResponseCapture,
    unpacker: Unpacker,
    step: Step,
    /// Number of chunks of the place so far, and of bytes in those of the term.
    count: u32,
    unpacked: u64,
    /// Number of bytes that have arrived since the last ones of the range were returned.
    unused: usize,
}

impl<'a> Reading<'a> {
    pub(super) fn new(
        requests: &'a Requests,
        xet: &'a Xet,
        file: Arc<File>,
        range: Range<u64>,
    ) -> Self {
        let len = range.end - range.start;
        Self {
            sender: Sender {
                requests,
                xet,
                file,
            },
            allowance: len
                .saturating_mul(ARRIVED_FACTOR)
                .saturating_add(XORBS_BYTES),
            rest: range,
            steps: VecDeque::new(),
            reach: Reach::Public,
            body: None,
            is_renewed: false,
        }
    }

    /// Like [`Self::next`]; the last attempt waits for bytes, before which the bridge can still be
    /// used.
    pub(super) async fn first(&mut self, is_last: bool) -> Result<Option<Arrived>, Fault> {
        loop {
            match self.next().await {
                Ok(Some(Arrived::Unusable)) if is_last => {}
                first => return first,
            }
        }
    }

    /// Returns the next bytes of the range, or that others have arrived; `None` at its end.
    pub(super) async fn next(&mut self) -> Result<Option<Arrived>, Fault> {
        while !self.rest.is_empty() {
            let Some(body) = &mut self.body else {
                self.open_next().await?;
                continue;
            };
            let next = body.next(self.sender.requests, &mut self.allowance).await?;
            let Some(arrived) = next else {
                let follows = self.steps.front().is_some_and(|step| body.has(step));
                if follows && let Some(step) = self.steps.pop_front() {
                    body.go_on(step);
                } else {
                    self.body = None;
                }
                continue;
            };
            let Arrived::Bytes(mut bytes) = arrived else {
                return Ok(Some(Arrived::Unusable));
            };
            let most = usize::try_from(self.rest.end - self.rest.start).unwrap_or(usize::MAX);
            bytes.truncate(most);
            self.rest.start += bytes.len() as u64;
            return Ok(Some(Arrived::Bytes(bytes)));
        }
        Ok(None)
    }

    /// Requests the chunks of the next term. If its URL is refused, as it is when it has expired,
    /// new URLs are requested, once.
    async fn open_next(&mut self) -> Result<(), Fault> {
        let sender = &self.sender;
        let Some(step) = self.steps.pop_front() else {
            (self.steps, self.reach) = sender.ask_places(&self.rest).await?;
            return Ok(());
        };
        let range = &step.bytes;
        let text = format!("bytes={}-{}", range.start, range.end - 1);
        let answer = sender.send(&step.url, &text, self.reach, None).await;
        let (response, captured) = match answer {
            Err(fault) if !self.is_renewed && is_denied(&fault) => {
                tracing::debug!("a presigned URL was refused");
                self.is_renewed = true;
                // The specification of xet demands all ranges of a shared URL in one request.
                if step.is_shared {
                    sender.xet.use_version(Version::One);
                }
                self.steps.clear();
                return Ok(());
            }
            answer => answer?,
        };
        let sent = ContentRange::of(response.headers()).ok().flatten();
        let is_range = sent.is_some_and(|sent| sent.is_of(range));
        // A server may ignore the range, above all one of all bytes: the response is read from its
        // beginning, and no further than the chunks of the term.
        let is_whole = response.status() == StatusCode::OK && range.start == 0;
        if !is_whole && (response.status() != StatusCode::PARTIAL_CONTENT || !is_range) {
            let message = "the content store sent other bytes than requested";
            return Err(fault(sender.requests, &captured, message, None));
        }
        self.is_renewed = false;
        self.body = Some(Body {
            frames: response.into_body().bytes_stream(),
            captured,
            unpacker: Unpacker::default(),
            step,
            count: 0,
            unpacked: 0,
            unused: 0,
        });
        Ok(())
    }
}

impl Sender<'_> {
    /// Returns the token for the content store, another one than the `refused` one.
    async fn access(&self, refused: Option<&Arc<Access>>) -> Result<Arc<Access>, Fault> {
        let (requests, commit) = (self.requests, &self.file.commit);
        self.xet.access(requests, commit, refused).await
    }

    /// Asks for the places of the beginning of a range. If the token is refused, another one is
    /// asked for, once; if the version of the query is not known, the other one is used.
    async fn ask_places(&self, rest: &Range<u64>) -> Result<(VecDeque<Step>, Reach), Fault> {
        let end = rest.end.min(rest.start.saturating_add(PLACES_BYTES_MAX));
        let range = format!("bytes={}-{}", rest.start, end - 1);
        let mut access = self.access(None).await?;
        let asked = self.xet.version();
        let (mut version, mut is_renewed) = (asked, false);
        let (response, captured) = loop {
            match self.query(&access, version, &range).await {
                Err(fault) if !is_renewed && is_denied(&fault) => {
                    access = self.access(Some(&access)).await?;
                    is_renewed = true;
                }
                Err(fault) if version == asked && is_unknown(&fault) => version = version.other(),
                answer => break answer?,
            }
        };
        if version != asked {
            self.xet.use_version(version);
        }
        let mut answer = Vec::new();
        let mut frames = response.into_body().bytes_stream();
        while let Some(bytes) = frames.next().await {
            let bytes = bytes.map_err(|error| broken(self.requests, &captured, error))?;
            answer.extend_from_slice(&bytes);
            if answer.len() > ANSWER_MAX {
                let message =
                    format!("the content store sent more than {ANSWER_MAX} bytes of places");
                return Err(fault(self.requests, &captured, &message, None));
            }
        }
        let steps = terms::parse(&answer, version, end - rest.start)
            .map_err(|what| fault(self.requests, &captured, &what, None))?;
        Ok((steps, access.reach))
    }

    /// Sends a query for the places of a range.
    async fn query(
        &self,
        access: &Access,
        version: Version,
        range: &str,
    ) -> Result<(HttpResponse, ResponseCapture), Fault> {
        let (url, version) = (&access.url, version.name());
        let url = format!("{url}/{version}/reconstructions/{}", self.file.hash);
        let url = url.parse().map_err(|_| {
            let message = "the hub names a content store that is not a URL";
            fault(self.requests, &ResponseCapture::default(), message, None)
        })?;
        self.send(&url, range, access.reach, Some(&access.token))
            .await
    }

    /// Sends a request to a host that the hub has named, with the token if it is the store's own.
    async fn send(
        &self,
        url: &Uri,
        range: &str,
        reach: Reach,
        token: Option<&HeaderValue>,
    ) -> Result<(HttpResponse, ResponseCapture), Fault> {
        let ask = || async {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = url.clone();
            let range = HeaderValue::from_str(range).map_err(|error| failed(error.into()))?;
            request.headers_mut().insert(RANGE, range);
            request.extensions_mut().insert(AsSent);
            if let Some(token) = token {
                request.headers_mut().insert(AUTHORIZATION, token.clone());
            }
            request.extensions_mut().insert(NamedBy {
                host: self.xet.hub.clone(),
                reach,
            });
            let response = self
                .xet
                .client
                .execute(request)
                .await
                .map_err(|error| failed(error.into()))?;
            if response.status().is_success() {
                return Ok(response);
            }
            Err(refusal("the hub's content store", response.status()).into())
        };
        self.requests.send("GET", ask).await
    }
}

impl Body {
    /// Returns whether the chunks of a later term are still to come in this response.
    fn has(&self, step: &Step) -> bool {
        let (url, bytes) = (&self.step.url, &self.step.bytes);
        step.leading >= self.count && step.bytes == *bytes && step.url == *url
    }

    fn go_on(&mut self, step: Step) {
        self.step = step;
        self.unpacked = 0;
    }

    /// Returns the next bytes of the term that belong to the range, or that others have arrived;
    /// `None` at its end. Takes what arrives from the allowance of the range.
    async fn next(
        &mut self,
        requests: &Requests,
        allowance: &mut u64,
    ) -> Result<Option<Arrived>, Fault> {
        let last = self.step.leading + self.step.count;
        while self.count < last {
            let damaged =
                |what: String| fault(requests, &self.captured, &what, Some(Transient::Broken));
            let Some(len) = self.unpacker.next_len().map_err(damaged)? else {
                // Bytes of skipped or long chunks are progress too: a slow line is not dead.
                if self.unused >= PROGRESS_BYTES as usize {
                    self.unused = 0;
                    return Ok(Some(Arrived::Unusable));
                }
                match self.frames.next().await {
                    Some(Ok(bytes)) => {
                        let rest = allowance.checked_sub(bytes.len() as u64);
                        *allowance = rest.ok_or_else(|| {
                            let what = "the content store sends many times the requested bytes";
                            fault(requests, &self.captured, what, None)
                        })?;
                        self.unpacker.push(&bytes);
                        self.unused += bytes.len();
                    }
                    Some(Err(error)) => return Err(broken(requests, &self.captured, error)),
                    None => {
                        let what = "the content store's response ended within a chunk";
                        return Err(damaged(what.to_owned()));
                    }
                }
                continue;
            };
            self.count += 1;
            if self.count <= self.step.leading {
                self.unpacker.skip();
                continue;
            }
            let len = len as u64;
            self.unpacked += len;
            let (unpacked, wanted) = (self.unpacked, self.step.unpacked);
            // Compare the length of a term before its last bytes are returned.
            if unpacked > wanted || (self.count == last && unpacked < wanted) {
                let what = format!("a term has {unpacked} bytes instead of {wanted}");
                return Err(damaged(what));
            }
            let skip = self.step.skip.min(len);
            self.step.skip -= skip;
            if skip == len {
                self.unpacker.skip();
                continue;
            }
            let bytes = self.unpacker.unpack().map_err(damaged)?;
            self.unused = 0;
            let skip = usize::try_from(skip).unwrap_or(usize::MAX);
            return Ok(Some(Arrived::Bytes(bytes.slice(skip..))));
        }
        Ok(None)
    }
}

/// Returns whether a token or a presigned URL was refused.
fn is_denied(fault: &Fault) -> bool {
    matches!(fault.error.status(), Some(401 | 403))
}

/// Returns whether a version of the query is not known, or the file is not: xet-core takes these
/// statuses for the former.
fn is_unknown(fault: &Fault) -> bool {
    matches!(fault.error.status(), Some(404 | 501))
}

/// Classifies an error response of the content store, of the host of a presigned URL, or of the hub
/// to the request for a token.
pub(super) fn refusal(who: &str, status: StatusCode) -> Classification {
    let message = format!("{who} responded with status {}", status.as_u16());
    let transient = match status.as_u16() {
        // Tokens and presigned URLs expire.
        401 | 403 => Some(Transient::Broken),
        other => transient_of(other),
    };
    Classification {
        transient,
        ..Classification::new(ErrorKind::Remote, message)
    }
}

/// Returns the failure of a content store that has delivered nothing.
pub(super) fn too_slow(requests: &Requests, limit: Duration) -> Fault {
    let message = format!("the hub's content store sent nothing of use in {limit:?}");
    let captured = ResponseCapture::default();
    fault(requests, &captured, &message, Some(Transient::Stalled))
}

pub(super) fn fault(
    requests: &Requests,
    captured: &ResponseCapture,
    message: &str,
    transient: Option<Transient>,
) -> Fault {
    let classification = Classification {
        transient,
        ..Classification::new(ErrorKind::Remote, message)
    };
    requests.classified(captured, classification)
}

/// Translates a failure of a body.
fn broken(requests: &Requests, captured: &ResponseCapture, error: HttpError) -> Fault {
    requests.fault(&failed(error.into()), captured, "GET")
}
