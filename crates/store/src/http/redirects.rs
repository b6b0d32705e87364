//! Follows redirects within limits. Wraps the HTTP client of each store.
//!
//! A server that redirects names the next host, so nothing meant for the first host is forwarded:
//! no credentials, no header of an option, no `Referer` (which would contain the query of a signed
//! URL). A redirect also must not lead to an address that only this machine or its network can
//! reach. The timeout of a request covers all its redirects, and the body of the last response.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use http::header::{self, HeaderMap, HeaderName};
use http::{Method, StatusCode, Uri};
use http_body::{Body, Frame, SizeHint};
use object_store::client::{
    HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use url::Url;

use super::addresses::{Narrower, Reach, Resolver};
use super::connector::LazyClient;
use super::response_capture::{asks_host, came_over, responded};
use super::signing::sign_again;
use crate::errors::classification::find;

/// Maximum number of redirects of one request: as many as browsers and `reqwest` follow, or fewer.
const REDIRECTS_MAX: usize = 10;

/// Headers that are forwarded to another origin: they select the bytes and the version.
const KEPT: [HeaderName; 3] = [header::ACCEPT, header::RANGE, header::IF_MATCH];

/// Marks a request to a URL that a response of `host` has named other than by a redirect: the same
/// rules apply to it. No header of an option is added.
#[derive(Clone, Debug)]
pub(crate) struct NamedBy {
    pub(crate) host: Url,
    /// Networks that the host is in.
    pub(crate) reach: Reach,
}

/// HTTP client that follows redirects by these rules. The inner client follows none, and has no
/// timeout for a whole request.
#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) client: Arc<LazyClient>,
    pub(crate) resolver: Resolver,
    /// Maximum duration of a request, from connecting to the end of the body.
    pub(crate) timeout: Option<Duration>,
    /// Sent with each request to the store, unless the request already has headers of these names.
    pub(crate) headers: HeaderMap,
    /// Number of this client; `own` is that of the first one that speaks to the store itself.
    pub(crate) number: usize,
    pub(crate) own: Arc<AtomicUsize>,
}

#[async_trait]
impl HttpService for Following {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let after = |timeout| Instant::now().checked_add(timeout);
        let Some(deadline) = self.timeout.and_then(after) else {
            return self.follow(request).await;
        };
        let response = timeout_at(deadline, self.follow(request)).await;
        let (head, body) = response.map_err(|_| timed_out())??.into_parts();
        let deadline = Box::pin(sleep_until(deadline));
        let body = HttpResponseBody::new(Bounded { body, deadline });
        Ok(HttpResponse::from_parts(head, body))
    }
}

impl Following {
    async fn follow(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let named = request.extensions_mut().remove::<NamedBy>();
        if let Some(named) = &named {
            self.admit(named, request.uri()).map_err(NotAdmitted)?;
        } else if self.number >= self.own.load(Ordering::Relaxed) {
            let mut added = Vec::new();
            for (name, value) in &self.headers {
                let entry = request.headers_mut().entry(name);
                if let header::Entry::Vacant(entry) = entry {
                    entry.insert(value.clone());
                    added.push(name.clone());
                }
            }
            sign_again(&mut request, &added).await?;
        }
        let method = request.method().clone();
        let mut headers = request.headers().clone();
        let mut at = request.uri().clone();
        let mut reach = named.as_ref().map(|named| named.reach);
        let mut redirects = 0;
        loop {
            self.client.admit(&at)?;
            let response = HttpService::call(self.client.get()?, request).await;
            let is_named = named.is_some() && redirects == 0;
            let response = response.map_err(|error| match find::<Narrower>(&error) {
                Some(_) if is_named => NotAdmitted(Refused::Narrower).into(),
                Some(_) | None => error,
            })?;
            if redirects == 0 {
                let connection = self.resolver.connection(&response, &at);
                connection.into_iter().for_each(came_over);
            }
            // Only the first host names the contents.
            if reach.is_none() {
                responded(response.headers());
            }
            // Only GET and HEAD are redirected. Other requests have a body, which may be a secret.
            let is_question = method == Method::GET || method == Method::HEAD;
            let Some((from, to)) = hop(&at, &response).filter(|_| is_question) else {
                return Ok(response);
            };
            redirects += 1;
            if redirects > REDIRECTS_MAX {
                return Err(Refused::Endless.into());
            }
            if from.origin() != to.origin() {
                let here = Reach::from_host(&from)
                    .or_else(|| Reach::from_peer(&response, &from, &self.resolver))
                    .unwrap_or(Reach::Public);
                // A redirect may go no further than the widest reach of all hosts so far.
                let widest = reach.map_or(here, |reach: Reach| reach.min(here));
                reach = Some(widest);
                check(&from, &to, widest)?;
                self.resolver.limit(&to, widest);
                headers = kept(&headers);
            }
            at = match Uri::try_from(to.as_str()) {
                Ok(at) => at,
                Err(_) => return Ok(response),
            };
            asks_host(&at);
            request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = method.clone();
            *request.uri_mut() = at.clone();
            *request.headers_mut() = headers.clone();
        }
    }
}

impl Following {
    /// Refuses a URL that the host must not name.
    fn admit(&self, named: &NamedBy, uri: &Uri) -> Result<(), Refused> {
        let url = Url::parse(&uri.to_string()).map_err(|_| Refused::Scheme)?;
        if url.origin() != named.host.origin() {
            check(&named.host, &url, named.reach)?;
            self.resolver.limit(&url, named.reach);
        }
        Ok(())
    }
}

/// Body that ends with an error at a deadline.
struct Bounded {
    body: HttpResponseBody,
    deadline: Pin<Box<Sleep>>,
}

impl Body for Bounded {
    type Data = <HttpResponseBody as Body>::Data;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, HttpError>>> {
        if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(timed_out())));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn timed_out() -> HttpError {
    HttpError::new(
        HttpErrorKind::Timeout,
        io::Error::from(io::ErrorKind::TimedOut),
    )
}

/// Returns the URL of a response and its redirect target; `None` if it is no redirect, or has no
/// target.
fn hop(at: &Uri, response: &HttpResponse) -> Option<(Url, Url)> {
    let is_redirect = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    if !is_redirect {
        return None;
    }
    // Servers also send names that are not percent-encoded.
    let location = response.headers().get(header::LOCATION)?;
    let from = Url::parse(&at.to_string()).ok()?;
    let location = std::str::from_utf8(location.as_bytes()).ok()?;
    let mut to = from.join(location).ok()?;
    to.set_fragment(None);
    // User and password in the target are the server's choice, not the caller's credentials.
    if to.has_host() {
        to.set_username("").ok()?;
        to.set_password(None).ok()?;
    }
    Some((from, to))
}

/// Refuses a redirect to a target that servers of this reach must not redirect to.
pub(crate) fn check(from: &Url, to: &Url, reach: Reach) -> Result<(), Refused> {
    match (from.scheme(), to.scheme()) {
        ("https", "http") => return Err(Refused::Plain),
        (_, "http" | "https") => {}
        _ => return Err(Refused::Scheme),
    }
    // Only addresses are checked here. Those of a host name are checked when it is resolved.
    if Reach::from_host(to).is_some_and(|target| target > reach) {
        return Err(Refused::Narrower);
    }
    Ok(())
}

fn kept(headers: &HeaderMap) -> HeaderMap {
    let pairs = headers.iter().filter(|(name, _)| KEPT.contains(name));
    pairs
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Reason why a redirect is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Endless,
    Plain,
    Scheme,
    Narrower,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Endless => "redirects in a loop or too many times",
            Self::Plain => "redirects from https to http",
            Self::Scheme => "redirects to a URL that is neither http nor https",
            Self::Narrower => "redirects to an address of a private network or of this machine",
        })
    }
}

impl std::error::Error for Refused {}

/// Refusal of a URL that a response has named other than by a redirect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotAdmitted(pub(crate) Refused);

impl std::fmt::Display for NotAdmitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Refused::Plain => "names an http URL, and has https itself",
            Refused::Endless | Refused::Scheme => "names a URL that is neither http nor https",
            Refused::Narrower => "names an address of a private network or of this machine",
        })
    }
}

impl std::error::Error for NotAdmitted {}

impl From<NotAdmitted> for HttpError {
    fn from(refused: NotAdmitted) -> Self {
        Self::new(HttpErrorKind::Unknown, refused)
    }
}

impl From<Refused> for HttpError {
    fn from(refused: Refused) -> Self {
        Self::new(HttpErrorKind::Unknown, refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn redirect_to_narrower_reach_is_rejected() {
        let public = "https://host.example/a";
        for (from, to, reach, wanted) in [
            (public, "https://cdn.example/b", Reach::Public, Ok(())),
            (public, "https://8.8.8.8/b", Reach::Public, Ok(())),
            (
                public,
                "http://host.example/b",
                Reach::Public,
                Err(Refused::Plain),
            ),
            (
                "https://10.0.0.1/",
                "http://10.0.0.1/",
                Reach::Private,
                Err(Refused::Plain),
            ),
            (
                public,
                "ftp://host.example/b",
                Reach::Public,
                Err(Refused::Scheme),
            ),
            (
                public,
                "file:///etc/passwd",
                Reach::Public,
                Err(Refused::Scheme),
            ),
            (
                public,
                "https://10.0.0.1/b",
                Reach::Public,
                Err(Refused::Narrower),
            ),
            (
                public,
                "https://localhost/b",
                Reach::Public,
                Err(Refused::Narrower),
            ),
            (
                public,
                "https://[::ffff:7f00:1]/b",
                Reach::Public,
                Err(Refused::Narrower),
            ),
            (
                "http://host.example/a",
                "http://169.254.169.254/latest",
                Reach::Public,
                Err(Refused::Narrower),
            ),
            (
                "http://10.0.0.1/",
                "http://169.254.169.254/latest",
                Reach::Private,
                Err(Refused::Narrower),
            ),
            (
                "http://10.0.0.1/",
                "http://127.0.0.1/",
                Reach::Private,
                Err(Refused::Narrower),
            ),
            (
                "http://10.0.0.1/",
                "http://192.168.0.1/",
                Reach::Private,
                Ok(()),
            ),
            (
                "http://127.0.0.1/",
                "http://10.0.0.1/",
                Reach::Loopback,
                Ok(()),
            ),
            (
                "http://127.0.0.1/",
                "http://127.0.0.1:81/",
                Reach::Loopback,
                Ok(()),
            ),
            (
                "http://169.254.0.1/",
                "http://169.254.0.2/",
                Reach::LinkLocal,
                Ok(()),
            ),
        ] {
            let [start, end] = [from, to].map(|text| Url::parse(text).expect(text));
            assert_eq!(check(&start, &end, reach), wanted, "{from} to {to}");
        }
    }

    #[test]
    fn target_may_be_other_than_ascii() {
        let at = Uri::from_static("https://host.example/a/b");
        let mut response = HttpResponse::new(HttpResponseBody::from(Vec::new()));
        *response.status_mut() = StatusCode::FOUND;
        let target = header::HeaderValue::from_str("../模型?x=1#y").expect("bytes");
        response.headers_mut().insert(header::LOCATION, target);
        let (_, to) = hop(&at, &response).expect("a redirect");
        assert_eq!(to.as_str(), "https://host.example/%E6%A8%A1%E5%9E%8B?x=1");
    }

    #[test]
    fn redirect_forwards_only_range_headers() {
        let pairs = [
            ("range", "bytes=0-1"),
            ("if-match", "\"a\""),
            ("authorization", "hunter2"),
            ("x-amz-security-token", "hunter2"),
            ("x-team", "hunter2"),
            ("cookie", "hunter2"),
            ("referer", "hunter2"),
        ];
        let headers = pairs.map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, value.parse().expect("a value"))
        });
        let kept = kept(&headers.into_iter().collect());
        let mut names: Vec<_> = kept.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["if-match", "range"]);
    }
}
