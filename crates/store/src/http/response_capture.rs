//! Captures status, request id and error code of a store's last response.
//!
//! `object_store` drops these from its errors, or keeps them in private types. So its HTTP client
//! is wrapped: each HTTP request leaves its facts in the [`current`] request. Responses to range
//! requests pass through, in the form that `object_store` accepts (`ranged_response.rs`). Responses
//! that are read whole, and those of failures, which are short texts, are read here up to a limit
//! and handed on.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use chrono::{DateTime, NaiveDateTime};
use futures_util::StreamExt;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LANGUAGE, CONTENT_TYPE, ETAG,
    HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, Method, Uri};
use object_store::client::{
    HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};

use super::addresses::Reach;
use super::checksums::{Asks, stated};
use super::current_request::current;
use super::obs_text;
use super::pages::{self, ANSWER_MAX, TooLong};
use super::proxy::{Proxies, UsedProxy};
use super::ranged_response::{NoRange, WantedRange, encoding_of, refused, require_plain};
use super::repr_digest::from_field;
use crate::errors::error_body::Reply;
use crate::errors::redactor::Sent;
use crate::sync::retry::AskedWait;

/// Limits on reading the response of a failed request: bytes, and time. Those of stores have a few
/// hundred bytes.
const WORDS_MAX: usize = 64 << 10;
const WORDS_WAIT: Duration = Duration::from_secs(10);

/// Facts of one request and of its response, if one arrived.
#[derive(Clone, Debug, Default)]
pub struct ResponseCapture {
    /// HTTP status.
    pub(crate) status: Option<u16>,
    /// The store's id of the request.
    pub(crate) request_id: Option<String>,
    /// Time of the response by the clock of the server that made it, seconds since 1970.
    pub date: Option<i64>,
    /// The store's clock minus the local clock, seconds.
    pub skew_seconds: Option<i64>,
    /// Delay that the store asks for before the next request.
    pub(crate) asked_wait: Option<AskedWait>,
    /// Region of the bucket, as the store states it.
    pub(crate) region: Option<String>,
    /// Scheme, host and port that the request went to first.
    pub endpoint: Option<String>,
    /// Host and port that the request went to.
    pub host: Option<String>,
    /// Proxy that the request went through.
    pub proxy: Option<UsedProxy>,
    /// True if a connection was opened for it.
    pub(crate) connects: bool,
    /// Connection that the first response came over.
    pub connection: Option<Connection>,
    /// The store's code for the failure.
    pub(crate) code: Option<String>,
    /// The store's text for the failure, verbatim.
    pub(crate) message: Option<String>,
    /// The hub's name for the contents of a file in its content store.
    pub(crate) xet_hash: Option<String>,
    /// SHA-256 of the object, if the server states it.
    pub sha256: Option<[u8; 32]>,
    /// The object's own checksums, if they were requested.
    pub stated: Vec<(&'static str, String)>,
    /// Secrets that the captured requests carried, including those before the last one.
    pub(crate) sent: Sent,
    /// Start of the request.
    pub(crate) began: Option<Instant>,
    /// Meaning of a response that has no range of the object, if that is clear.
    pub(crate) no_range: Option<NoRange>,
    /// Number of the builder's HTTP client that sent it. The last one is the store's own; those
    /// before fetch credentials.
    pub(crate) client: usize,
}

/// Connection that a response came over.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// Address at its other end.
    pub peer: SocketAddr,
    /// Number of addresses of the requested host, if they were looked up here.
    pub addresses: Option<usize>,
    /// True if the other end is the requested host, false if it is a proxy.
    pub is_direct: bool,
}

/// HTTP client that records the facts of each request and its response.
#[derive(Debug)]
pub(crate) struct Capturing {
    inner: HttpClient,
    number: usize,
    proxies: Proxies,
}

impl Capturing {
    pub(crate) fn new(inner: HttpClient, number: usize, proxies: Proxies) -> Self {
        Self {
            inner,
            number,
            proxies,
        }
    }
}

/// Records that the request goes on to another host, by a redirect.
pub(crate) fn asks_host(uri: &Uri) {
    update(|captured| {
        captured.host = host_of(uri);
        captured.sent.add_uri(uri);
    });
}

/// Records that the current request is sent with another signature.
pub(crate) fn signed(request: &HttpRequest) {
    update(|captured| captured.sent.add(request));
}

/// Records that a connection is opened for the current request.
pub(crate) fn connects() {
    update(|captured| captured.connects = true);
}

/// Records the connection that the first response came over.
pub(crate) fn came_over(connection: Connection) {
    update(|captured| captured.connection = Some(connection));
}

/// Records a response of the host that the request went to first, which may redirect.
pub(crate) fn responded(headers: &HeaderMap) {
    if let Some(hash) = text(headers, "x-xet-hash") {
        update(|captured| captured.xet_hash = Some(hash.to_owned()));
    }
}

/// Returns whether the last response is of the host that was asked, not of one that it redirected
/// to.
pub(crate) fn is_of_first_host() -> bool {
    let is_first = |last: &ResponseCapture| {
        let endpoint = last.endpoint.as_deref();
        let endpoint = endpoint.and_then(|url| url.split_once("://"));
        endpoint.map(|(_, host)| host) == last.host.as_deref()
    };
    current(|it| is_first(&it.captured.borrow())).unwrap_or(false)
}

/// Returns whether the last response denies access.
pub(crate) fn denies_access() -> bool {
    let status = current(|it| it.captured.borrow().status);
    matches!(status, Some(Some(401 | 403)))
}

/// Returns the networks that the server of the last response can be reached from; `None` if it
/// responded through a proxy.
pub(crate) fn reach_of_peer() -> Option<Reach> {
    let connection = current(|it| it.captured.borrow().connection)??;
    let peer = connection.is_direct.then(|| connection.peer.ip())?;
    Some(Reach::from_ip(peer))
}

/// Returns host and port without a user.
fn host_of(uri: &Uri) -> Option<String> {
    let authority = uri.authority()?.as_str();
    let split = authority.rsplit_once('@');
    let host = split.map_or(authority, |(_, host)| host);
    Some(host.to_owned())
}

impl Capturing {
    /// Begins the record of a request that is about to be sent.
    fn begin(&self, request: &HttpRequest) {
        record(|mut sent| {
            sent.add(request);
            let (scheme, host) = (request.uri().scheme_str(), host_of(request.uri()));
            ResponseCapture {
                endpoint: scheme
                    .zip(host.as_ref())
                    .map(|(scheme, host)| format!("{scheme}://{host}")),
                host,
                proxy: self.proxies.used_for(request.uri()),
                sent,
                began: Some(Instant::now()),
                client: self.number,
                ..ResponseCapture::default()
            }
        });
    }
}

#[async_trait]
impl HttpService for Capturing {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let asks = request.extensions().get::<Asks>().cloned();
        if let Some(asks) = &asks {
            asks.prepare(&mut request).await?;
        }
        // A signature would cover a tag as a text.
        let is_signed = is_signed(request.headers());
        if !is_signed {
            send_tags(request.headers_mut());
        }
        self.begin(&request);
        let is_page = pages::asked(&mut request).await?;
        let is_ranged = request.headers().contains_key(RANGE);
        let is_get = request.method() == Method::GET;
        let wanted = WantedRange::of(&request);
        let path = request.uri().path().to_owned();
        let mut response = self.inner.execute(request).await?;
        let status = response.status();
        if status.is_success() {
            update(|captured| {
                captured.take_headers(status.as_u16(), response.headers());
                let (date, _, skew) = clocks(response.headers(), SystemTime::now());
                (captured.date, captured.skew_seconds) = (date, skew);
                captured.sha256 = text(response.headers(), "repr-digest").and_then(from_field);
                if asks.is_some() {
                    captured.stated = stated(response.headers());
                }
            });
            if is_get {
                require_plain(response.headers(), &path)?;
            }
            make_acceptable(response.headers_mut());
            if !is_signed && let Some(tag) = text_of_tag(response.headers()) {
                response.headers_mut().insert(ETAG, tag);
            }
            if let Some(wanted) = wanted {
                let answered = wanted.of_response(response).await;
                return answered.map_err(|(error, no_range)| {
                    update(|captured| captured.no_range = no_range);
                    error
                });
            }
            if is_ranged {
                return Ok(response);
            }
            let (head, body) = response.into_parts();
            let mut body = whole(body, ANSWER_MAX).await?;
            if is_page {
                body = pages::received(body)?;
            }
            return Ok(HttpResponse::from_parts(head, body.into()));
        }
        let (head, body) = response.into_parts();
        let mut body = words(body).await;
        if encoding_of(&head.headers, "").is_some() {
            body.clear();
        }
        update(|captured| {
            captured.no_range = wanted.and_then(|_| refused(status, &head.headers));
            captured.take_headers(status.as_u16(), &head.headers);
            captured.take_failure(&head.headers, &body, SystemTime::now());
        });
        Ok(HttpResponse::from_parts(head, body.into()))
    }
}

/// Headers that nothing here reads. `object_store` reads them, and fails unless they are ASCII.
const UNREAD: [HeaderName; 4] = [
    CACHE_CONTROL,
    CONTENT_DISPOSITION,
    CONTENT_LANGUAGE,
    CONTENT_TYPE,
];

/// Prefixes of further unread headers: metadata of the object's owner at S3, Google and Azure.
const UNREAD_METADATA: [&str; 3] = ["x-amz-meta-", "x-goog-meta-", "x-ms-meta-"];

/// Returns whether a signature covers the request's headers.
fn is_signed(headers: &HeaderMap) -> bool {
    let signed = text(headers, AUTHORIZATION.as_str()).unwrap_or_default();
    ["AWS4-", "SharedKey"]
        .iter()
        .any(|scheme| signed.starts_with(scheme))
}

/// Puts entity tags in place of their texts.
fn send_tags(headers: &mut HeaderMap) {
    for name in [IF_MATCH, IF_NONE_MATCH] {
        if let Some(tag) = headers.get(&name).and_then(obs_text::to_tag) {
            headers.insert(name, tag);
        }
    }
}

/// Returns the text in place of an entity tag that is none.
fn text_of_tag(headers: &HeaderMap) -> Option<HeaderValue> {
    let text = obs_text::to_text(headers.get(ETAG)?.as_bytes())?;
    HeaderValue::try_from(text).ok()
}

/// Changes headers for which `object_store` would refuse the bytes: removes unread ones that are
/// not ASCII, such as the name of a file, and writes a date in the preferred form.
fn make_acceptable(headers: &mut HeaderMap) {
    let is_unread = |name: &HeaderName| {
        let is_metadata = |start: &&str| name.as_str().starts_with(start);
        UNREAD.contains(name) || UNREAD_METADATA.iter().any(is_metadata)
    };
    let refused = headers.iter().filter(|(_, value)| value.to_str().is_err());
    let refused: Vec<_> = refused.map(|(name, _)| name.clone()).collect();
    for name in refused.iter().filter(|name| is_unread(name)) {
        headers.remove(name);
    }
    let modified = text(headers, LAST_MODIFIED.as_str());
    if let Some(date) = modified.and_then(of_obsolete_form)
        && let Ok(date) = HeaderValue::try_from(date.format(HTTP_DATE).to_string())
    {
        headers.insert(LAST_MODIFIED, date);
    }
}

/// Reads the beginning of a failed request's body. The status suffices if the body does not arrive,
/// or never ends.
async fn words(body: HttpResponseBody) -> Vec<u8> {
    let mut words = Vec::new();
    let mut frames = body.bytes_stream();
    let reading = async {
        while let Some(Ok(bytes)) = frames.next().await {
            words.extend_from_slice(&bytes[..bytes.len().min(WORDS_MAX - words.len())]);
            if words.len() == WORDS_MAX {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(WORDS_WAIT, reading).await;
    words
}

/// Reads a body of at most `most` bytes whole.
async fn whole(body: HttpResponseBody, most: usize) -> Result<Vec<u8>, HttpError> {
    let mut answer = Vec::new();
    let mut frames = body.bytes_stream();
    while let Some(bytes) = frames.next().await {
        let bytes = bytes?;
        if bytes.len() > most - answer.len() {
            return Err(HttpError::new(HttpErrorKind::Decode, TooLong));
        }
        answer.extend_from_slice(&bytes);
    }
    Ok(answer)
}

/// Starts the capture of another HTTP request.
fn record(captured: impl FnOnce(Sent) -> ResponseCapture) {
    update(|last| *last = captured(std::mem::take(&mut last.sent)));
}

fn update(change: impl FnOnce(&mut ResponseCapture)) {
    current(|it| change(&mut it.captured.borrow_mut()));
}

/// Names for S3 and compatible stores, Azure, Google, Cloudflare, and others; the first one present
/// counts.
const REQUEST_IDS: [&str; 7] = [
    "x-amz-request-id",
    "x-ms-request-id",
    "x-guploader-uploadid",
    "x-goog-request-id",
    "x-request-id",
    "cf-ray",
    "x-amz-id-2",
];

impl ResponseCapture {
    /// Returns whether a request that failed was sent over the connection of an earlier one, and no
    /// response began.
    pub(crate) fn is_of_dead_connection(&self) -> bool {
        self.began.is_some() && self.status.is_none() && !self.connects
    }

    /// Returns whether the response says that the credentials have expired.
    pub(crate) fn says_expired(&self) -> bool {
        let code = self.code.as_deref().unwrap_or_default();
        matches!(
            code,
            "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired"
        )
    }

    fn take_headers(&mut self, status: u16, headers: &HeaderMap) {
        self.status = Some(status);
        self.request_id = REQUEST_IDS
            .iter()
            .find_map(|name| text(headers, name))
            .map(str::to_owned);
    }

    /// Records the facts that only matter for a failure.
    fn take_failure(&mut self, headers: &HeaderMap, body: &[u8], now: SystemTime) {
        let (date, ours, skew) = clocks(headers, now);
        self.skew_seconds = skew;
        let estimate = text(headers, "retry-after")
            .and_then(|asked| retry_after(asked, date.or(ours)))
            .map(AskedWait::Estimate);
        let reset = || text(headers, "ratelimit").and_then(until_reset);
        self.asked_wait = estimate.or_else(|| reset().map(AskedWait::Reset));
        let reply = Reply::from_body(body);
        self.region = text(headers, "x-amz-bucket-region")
            .map(str::to_owned)
            .or(reply.region)
            .filter(|region| is_code(region));
        self.code = text(headers, "x-ms-error-code")
            .or_else(|| text(headers, "x-error-code"))
            .map(str::to_owned)
            .or(reply.code)
            .filter(|code| is_code(code));
        self.message = text(headers, "x-error-message")
            .map(str::to_owned)
            .or(reply.message);
    }
}

/// Returns the server's clock, the local one, and the difference; seconds. A response from a cache
/// has the date at which it was stored (RFC 9111): it tells nothing about clocks.
fn clocks(headers: &HeaderMap, now: SystemTime) -> (Option<i64>, Option<i64>, Option<i64>) {
    let theirs = text(headers, "date").and_then(seconds_of);
    let since = now.duration_since(UNIX_EPOCH).ok();
    let ours = since.and_then(|since| i64::try_from(since.as_secs()).ok());
    let age = text(headers, "age").and_then(|age| age.trim().parse::<u64>().ok());
    let fresh = theirs.filter(|_| age.unwrap_or(0) == 0);
    let skew = fresh.zip(ours).map(|(theirs, ours)| theirs - ours);
    (theirs, ours, skew)
}

/// Returns whether a text is a name like the codes of stores, and so may be shown.
fn is_code(code: &str) -> bool {
    let named = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=64).contains(&code.len()) && code.bytes().all(named)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Preferred form of dates in headers (RFC 9110, section 5.6.7).
const HTTP_DATE: &str = "%a, %d %b %Y %H:%M:%S GMT";

/// Obsolete forms, which every recipient must accept: of RFC 850, and of `asctime`.
const OBSOLETE_DATES: [&str; 2] = ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];

/// Parses a date in an obsolete form.
fn of_obsolete_form(date: &str) -> Option<NaiveDateTime> {
    let parse = |form: &&str| NaiveDateTime::parse_from_str(date.trim(), form).ok();
    OBSOLETE_DATES.iter().find_map(parse)
}

/// Returns the seconds since 1970 of an HTTP date.
fn seconds_of(date: &str) -> Option<i64> {
    let parsed = DateTime::parse_from_rfc2822(date).ok();
    parsed
        .map(|date| date.timestamp())
        .or_else(|| Some(of_obsolete_form(date)?.and_utc().timestamp()))
}

/// Parses `Retry-After`, a number of seconds or a date; a date counts from the server's own clock.
fn retry_after(asked: &str, now: Option<i64>) -> Option<Duration> {
    if let Ok(seconds) = asked.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let seconds = seconds_of(asked)?.checked_sub(now?)?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Parses a rate limit such as `"resolvers";r=0;t=55`: the quota is used up and renewed in 55
/// seconds. Model hubs send this instead of `Retry-After` (draft-ietf-httpapi-ratelimit-headers).
fn until_reset(limit: &str) -> Option<Duration> {
    let number = |name: &str| -> Option<u64> {
        let mut pairs = limit.split(';').map(str::trim);
        pairs.find_map(|pair| pair.strip_prefix(name)?.parse().ok())
    };
    let seconds = number("t=")?;
    (number("r=")? == 0).then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                let value = value.parse().expect("a header value");
                (HeaderName::from_static(name), value)
            })
            .collect()
    }

    fn failure(pairs: &[(&'static str, &str)], body: &str, now: u64) -> ResponseCapture {
        let mut captured = ResponseCapture::default();
        let headers = headers(pairs);
        captured.take_headers(403, &headers);
        let now = UNIX_EPOCH + Duration::from_secs(now);
        captured.take_failure(&headers, body.as_bytes(), now);
        captured
    }

    /// Seconds since 1970 of Thu, 01 Jan 2026 00:00:00 GMT.
    const NEW_YEAR: u64 = 1_767_225_600;

    #[test]
    fn failure_headers_and_body_are_captured() {
        let captured = failure(
            &[
                ("x-amz-id-2", "second"),
                ("x-amz-request-id", "first"),
                ("x-amz-bucket-region", "eu-west-1"),
                ("date", "Thu, 01 Jan 2026 00:00:00 GMT"),
                ("retry-after", "7"),
            ],
            "<Error><Code>SlowDown</Code><Message>Slow down</Message></Error>",
            NEW_YEAR + 600,
        );
        assert_eq!(captured.status, Some(403));
        assert_eq!(captured.request_id.as_deref(), Some("first"));
        assert_eq!(captured.skew_seconds, Some(-600));
        let seven = AskedWait::Estimate(Duration::from_secs(7));
        assert_eq!(captured.asked_wait, Some(seven));
        assert_eq!(captured.region.as_deref(), Some("eu-west-1"));
        assert_eq!(captured.code.as_deref(), Some("SlowDown"));
        assert_eq!(captured.message.as_deref(), Some("Slow down"));
    }

    #[test]
    fn response_from_cache_tells_no_skew() {
        let skew = |age| {
            let pairs = [("date", "Thu, 01 Jan 2026 00:00:00 GMT"), ("age", age)];
            failure(&pairs, "", NEW_YEAR + 600).skew_seconds
        };
        assert_eq!(skew("600"), None);
        assert_eq!(skew("0"), Some(-600));
        assert_eq!(skew("old"), Some(-600));
    }

    #[test]
    fn retry_after_as_a_date_counts_from_the_clock_of_the_server() {
        let asked = |date: Option<&str>, asked: &str| {
            let mut pairs = vec![("retry-after", asked)];
            pairs.extend(date.map(|date| ("date", date)));
            match failure(&pairs, "", NEW_YEAR).asked_wait {
                Some(AskedWait::Estimate(wait)) => Some(wait),
                other => {
                    assert_eq!(other, None);
                    None
                }
            }
        };
        let later = "Thu, 01 Jan 2026 00:01:00 GMT";
        assert_eq!(asked(None, later), Some(Duration::from_secs(60)));
        let date = Some("Thu, 01 Jan 2026 00:00:50 GMT");
        assert_eq!(asked(date, later), Some(Duration::from_secs(10)));
        let past = "Wed, 01 Jan 2025 00:00:00 GMT";
        assert_eq!(asked(None, past), Some(Duration::ZERO));
        assert_eq!(asked(None, "soon"), None);
    }

    #[test]
    fn exhausted_ratelimit_header_gives_delay() {
        for (limit, wanted) in [
            ("\"resolvers\";r=0;t=250", Some(250)),
            ("\"api\"; t=7; r=0", Some(7)),
            ("\"api\";r=499;t=55", None),
            ("\"api\"", None),
        ] {
            let found = failure(&[("ratelimit", limit)], "", 0).asked_wait;
            let wanted = wanted.map(Duration::from_secs).map(AskedWait::Reset);
            assert_eq!(found, wanted, "{limit}");
        }
    }

    #[test]
    fn response_over_limit_fails() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let body = || HttpResponseBody::from(vec![7; 100]);
        runtime.expect("a runtime").block_on(async {
            assert_eq!(whole(body(), 100).await.expect("short enough"), [7; 100]);
            let error = whole(body(), 99).await.expect_err("a byte too long");
            let cause = StdError::source(&error).expect("a cause");
            assert!(cause.is::<TooLong>(), "{cause}");
        });
    }

    #[test]
    fn azure_error_code_is_read_from_header() {
        let captured = failure(&[("x-ms-error-code", "BlobNotFound")], "", 0);
        assert_eq!(captured.code.as_deref(), Some("BlobNotFound"));
    }

    #[test]
    fn hub_error_headers_are_captured() {
        let headers = [
            ("x-error-code", "RepoNotFound"),
            ("x-error-message", "Repository not found"),
        ];
        let captured = failure(&headers, r#"{"error": "Repository not found"}"#, 0);
        assert_eq!(captured.code.as_deref(), Some("RepoNotFound"));
        assert_eq!(captured.message.as_deref(), Some("Repository not found"));
    }
}
