//! The response to each request: authorization, methods, metrics, lists and files.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use http::header::{ACCEPT, RANGE};
use http::{HeaderMap, Method, StatusCode};
use tload::verify::Digest;
use tload::{Error, ErrorKind};

use crate::condition::{self, Verdict};
use crate::host;
use crate::listing::{self, Entry};
use crate::objects::Objects;
use crate::range::Extent;
use crate::request::Request;
use crate::response::{Body, Response};
use crate::target::Target;
use crate::token::Token;
use crate::tree::{Found, Tree, lacks_descriptors};
use crate::version::{Version, http_date};

/// Path of the metrics. A file of this name is not served.
pub(crate) const METRICS: &str = "/metrics";

/// Media type of a response for people.
const TEXT: &str = "text/plain; charset=utf-8";

/// Parts of the server that responses are made of.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) served: Served,
    pub(crate) token: Option<Token>,
    /// True if only requests that name this machine are answered.
    pub(crate) is_local: bool,
}

/// Content of a server.
#[derive(Debug)]
pub(crate) enum Served {
    Files(Tree),
    Objects(Objects),
}

impl Site {
    /// Returns the response to `request`; `metrics` returns the text of the metrics.
    pub(crate) fn answer(
        &self,
        request: &Request,
        now: SystemTime,
        metrics: impl FnOnce() -> String,
    ) -> Response {
        // First, so that nothing is told to a client without the token.
        if let Some(token) = &self.token
            && !token.permits(&request.headers)
        {
            return Response::plain(StatusCode::UNAUTHORIZED)
                .with("WWW-Authenticate", "Bearer realm=\"tload\"");
        }
        if self.is_local && !host::is_local(request) {
            let status = StatusCode::MISDIRECTED_REQUEST;
            return Response::text(status, TEXT, host::REFUSAL.to_owned());
        }
        if request.method != Method::GET && request.method != Method::HEAD {
            return Response::plain(StatusCode::METHOD_NOT_ALLOWED).with("Allow", "GET, HEAD");
        }
        if request.uri.path() == METRICS {
            let content_type = "text/plain; version=0.0.4; charset=utf-8";
            return Response::text(StatusCode::OK, content_type, metrics());
        }
        let Some(target) = Target::parse(request.uri.path()) else {
            return Response::plain(StatusCode::NOT_FOUND);
        };
        let tree = match &self.served {
            Served::Files(tree) => tree,
            Served::Objects(objects) if target.is_directory => {
                return match objects.list(&target) {
                    Ok(entries) => list(request, &target, &entries),
                    Err(error) => self.failed(request, &error),
                };
            }
            Served::Objects(objects) => {
                return match objects.find(&target) {
                    Ok((object, version)) => {
                        let digest = object.digest();
                        content(request, now, &target, version, digest, |_, range| {
                            let is_there = object.has(&range);
                            is_there.then_some(Body::Object(object, range))
                        })
                    }
                    Err(error) => self.failed(request, &error),
                };
            }
        };
        match tree.find(&target) {
            Ok(Found::File(file, metadata, digest)) => {
                let version = Version::new(&metadata);
                content(request, now, &target, version, digest, |version, range| {
                    Some(Body::File(file, version, range))
                })
            }
            Ok(Found::Directory(entries)) => list(request, &target, &entries),
            Ok(Found::NeedsSlash) => Response::plain(StatusCode::MOVED_PERMANENTLY)
                .with("Location", moved(&target, request.uri.query())),
            Err(error) => self.failed(request, &error),
        }
    }

    /// Returns the response to a request whose file cannot be opened. Paths and reasons stay on
    /// this side: they are logged.
    fn failed(&self, request: &Request, error: &Error) -> Response {
        let is_of_store = match &self.served {
            Served::Files(_) => false,
            Served::Objects(objects) => !objects.is_cache(),
        };
        let response = match (error.kind(), error.errno()) {
            _ if lacks_descriptors(error) => {
                Response::plain(StatusCode::SERVICE_UNAVAILABLE).with("Retry-After", "1")
            }
            // The options of the store, or a request that it does not understand.
            (ErrorKind::InvalidRequest, _) if is_of_store => {
                Response::plain(StatusCode::BAD_GATEWAY)
            }
            (_, Some(ENOTDIR | ELOOP | ENAMETOOLONG))
            | (ErrorKind::NotFound | ErrorKind::InvalidRequest, _) => {
                Response::plain(StatusCode::NOT_FOUND)
            }
            (ErrorKind::PermissionDenied, _) => Response::plain(StatusCode::FORBIDDEN),
            (ErrorKind::TimedOut, _) => Response::plain(StatusCode::GATEWAY_TIMEOUT),
            (ErrorKind::Remote, _) => Response::plain(StatusCode::BAD_GATEWAY),
            _ => Response::plain(StatusCode::INTERNAL_SERVER_ERROR),
        };
        if response.status != StatusCode::NOT_FOUND {
            let (method, path) = (&request.method, request.uri.path());
            tracing::warn!("{method} {path}: {}", error.chain());
        }
        response
    }
}

/// Returns the response for a file or an object: 404 if `body` does not have the range.
fn content(
    request: &Request,
    now: SystemTime,
    target: &Target,
    version: Version,
    digest: Option<Digest>,
    body: impl FnOnce(Version, Range<u64>) -> Option<Body>,
) -> Response {
    let headers = &request.headers;
    let described = |mut response: Response| {
        if let Some(tag) = version.tag() {
            response = response.with("ETag", tag);
        }
        if let Some(date) = version.changed().and_then(http_date) {
            response = response.with("Last-Modified", date);
        }
        response.with("Accept-Ranges", "bytes")
    };
    match condition::evaluate(headers, &version) {
        Verdict::Send => {}
        Verdict::NotModified => {
            return described(Response {
                status: StatusCode::NOT_MODIFIED,
                headers: Vec::new(),
                body: Body::None,
            });
        }
        Verdict::Failed => return described(Response::plain(StatusCode::PRECONDITION_FAILED)),
    }
    let len = version.len();
    let (status, range) = match extent(request, &version, now) {
        Extent::Whole => (StatusCode::OK, 0..len),
        Extent::Range(range) => (StatusCode::PARTIAL_CONTENT, range),
        Extent::Unsatisfiable => {
            return described(Response::plain(StatusCode::RANGE_NOT_SATISFIABLE))
                .with("Content-Range", format!("bytes */{len}"));
        }
    };
    let name = target.components.last().map(AsRef::as_ref);
    let mut response = described(Response {
        status,
        headers: vec![("Content-Type", content_type(name).to_owned())],
        body: Body::None,
    });
    if status == StatusCode::PARTIAL_CONTENT {
        let (first, last) = (range.start, range.end - 1);
        response = response.with("Content-Range", format!("bytes {first}-{last}/{len}"));
    }
    if let Some(digest) = digest {
        // The digest is that of the whole file, also in the response for a range.
        response = response.with("Repr-Digest", format!("sha-256=:{}:", digest.to_base64()));
    }
    match body(version, range) {
        Some(body) => Response { body, ..response },
        None => Response::plain(StatusCode::NOT_FOUND),
    }
}

/// Returns the bytes that the request asks for. Ranges are defined for GET only.
fn extent(request: &Request, version: &Version, now: SystemTime) -> Extent {
    let mut ranges = request.headers.get_all(RANGE).iter();
    match (ranges.next(), ranges.next()) {
        (Some(range), None)
            if request.method == Method::GET
                && condition::permits_range(&request.headers, version, now) =>
        {
            range
                .to_str()
                .map_or(Extent::Whole, |range| Extent::parse(range, version.len()))
        }
        _ => Extent::Whole,
    }
}

/// Returns the media type of a file by its name. None is run by a browser.
fn content_type(name: Option<&OsStr>) -> &'static str {
    let extension = name.and_then(|name| Path::new(name).extension()?.to_str());
    match extension {
        Some("json") => "application/json",
        Some("txt" | "md" | "jinja" | "py" | "yaml" | "yml" | "sha256") => TEXT,
        _ => "application/octet-stream",
    }
}

/// Returns the list of a directory.
fn list(request: &Request, target: &Target, entries: &[Entry]) -> Response {
    let (content_type, text) = if wants_json(request.uri.query(), &request.headers) {
        ("application/json", listing::json(entries))
    } else {
        let page = listing::html(&target.directory(), entries);
        ("text/html; charset=utf-8", page)
    };
    Response::text(StatusCode::OK, content_type, text)
        .with("Cache-Control", "no-cache")
        .with("Vary", "Accept")
        .with("Content-Security-Policy", "default-src 'none'")
}

/// Returns whether a list is wanted as JSON: `format` in the query, or else the header `Accept`.
fn wants_json(query: Option<&str>, headers: &HeaderMap) -> bool {
    let pairs = query.unwrap_or_default().split('&');
    let mut formats = pairs.filter_map(|pair| pair.strip_prefix("format="));
    if let Some(format) = formats.next() {
        return format == "json";
    }
    headers.get_all(ACCEPT).iter().any(|value| {
        let mut types = value.as_bytes().split(|&byte| byte == b',' || byte == b';');
        types.any(|it| it.trim_ascii().eq_ignore_ascii_case(b"application/json"))
    })
}

/// Returns the address of a directory whose slash is missing.
fn moved(target: &Target, query: Option<&str>) -> String {
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    target.directory() + &query
}

const ENOTDIR: i32 = rustix::io::Errno::NOTDIR.raw_os_error();
const ELOOP: i32 = rustix::io::Errno::LOOP.raw_os_error();
const ENAMETOOLONG: i32 = rustix::io::Errno::NAMETOOLONG.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_precedes_header() {
        let accepting = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, text.parse().unwrap());
            headers
        };
        let browser = accepting("text/html,application/xhtml+xml,*/*;q=0.8");
        let program = accepting("text/plain, Application/JSON;q=0.9");
        assert!(!wants_json(None, &browser));
        assert!(wants_json(None, &program));
        assert!(wants_json(Some("a=b&format=json"), &browser));
        assert!(!wants_json(Some("format=html"), &program));
        assert!(!wants_json(None, &HeaderMap::new()));
    }

    #[test]
    fn no_file_is_a_page() {
        for (name, wanted) in [
            ("model.safetensors", "application/octet-stream"),
            ("config.json", "application/json"),
            ("README.md", "text/plain; charset=utf-8"),
            ("a.html", "application/octet-stream"),
            ("a.svg", "application/octet-stream"),
            ("json", "application/octet-stream"),
        ] {
            assert_eq!(content_type(Some(OsStr::new(name))), wanted, "{name}");
        }
    }
}
