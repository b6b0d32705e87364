//! Heads of requests, parsed by `httparse`. Pure.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};

/// Most bytes of a head.
pub(crate) const HEAD_MAX: usize = 16 << 10;

/// Most headers. The clients of tload send about ten.
const HEADERS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    /// Returns whether the connection can serve another request. A body is never read, so none can
    /// follow one.
    pub(crate) keeps_alive: bool,
}

/// Outcome of parsing the bytes that a client has sent so far.
#[derive(Debug)]
pub(crate) enum Parsed {
    Incomplete,
    /// A request, and the number of bytes of its head.
    Complete(Box<Request>, usize),
    Invalid(StatusCode),
}

impl Request {
    pub(crate) fn parse(bytes: &[u8]) -> Parsed {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Request::new(&mut headers);
        let len = match head.parse(bytes) {
            Ok(httparse::Status::Complete(len)) if len <= HEAD_MAX => len,
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Parsed::Incomplete,
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                return Parsed::Invalid(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
            }
            Err(httparse::Error::Version) => {
                return Parsed::Invalid(StatusCode::HTTP_VERSION_NOT_SUPPORTED);
            }
            Err(_) => return Parsed::Invalid(StatusCode::BAD_REQUEST),
        };
        match Self::from_head(&head) {
            Some(request) => Parsed::Complete(Box::new(request), len),
            None => Parsed::Invalid(StatusCode::BAD_REQUEST),
        }
    }

    fn from_head(head: &httparse::Request) -> Option<Self> {
        let mut headers = HeaderMap::with_capacity(head.headers.len());
        for header in head.headers.iter() {
            let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
            headers.append(name, HeaderValue::from_bytes(header.value).ok()?);
        }
        let is_current = head.version == Some(1);
        if is_current && headers.get_all(HOST).iter().count() != 1 {
            return None;
        }
        let has_body = headers.contains_key(TRANSFER_ENCODING)
            || headers.get_all(CONTENT_LENGTH).iter().any(|it| it != "0");
        let wants_close = headers.get_all(CONNECTION).iter().any(|value| {
            let mut words = value.as_bytes().split(|&byte| byte == b',');
            words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
        });
        Some(Self {
            method: Method::from_bytes(head.method?.as_bytes()).ok()?,
            uri: head.path?.parse().ok()?,
            headers,
            keeps_alive: is_current && !has_body && !wants_close,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(text: &str) -> (Request, usize) {
        let parsed = Request::parse(text.as_bytes());
        let Parsed::Complete(request, len) = parsed else {
            panic!("{text:?}: {parsed:?}");
        };
        (*request, len)
    }

    fn refused(text: &str) -> StatusCode {
        let parsed = Request::parse(text.as_bytes());
        let Parsed::Invalid(status) = parsed else {
            panic!("{text:?}: {parsed:?}");
        };
        status
    }

    #[test]
    fn heads_end_where_the_next_begins() {
        let (request, len) = complete("GET /a?b HTTP/1.1\r\nhost: x\r\n\r\nGET /");
        assert_eq!(request.method, Method::GET);
        assert_eq!((request.uri.path(), request.uri.query()), ("/a", Some("b")));
        assert_eq!(len, 30);
        assert!(request.keeps_alive);
        let (request, _) = complete("GET http://host:1/a HTTP/1.1\r\nHost: host:1\r\n\r\n");
        assert_eq!(request.uri.path(), "/a");
        assert!(matches!(Request::parse(b"GET / HT"), Parsed::Incomplete));
    }

    #[test]
    fn connection_ends_after_a_body_or_on_request() {
        for header in [
            "connection: close",
            "Connection: keep-alive, Close",
            "content-length: 3",
            "transfer-encoding: chunked",
            "content-length: 0\r\ncontent-length: 5",
        ] {
            let (request, _) = complete(&format!("GET / HTTP/1.1\r\nhost: x\r\n{header}\r\n\r\n"));
            assert!(!request.keeps_alive, "{header}");
        }
        let (request, _) = complete("GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
        assert!(request.keeps_alive);
        assert!(!complete("GET / HTTP/1.0\r\n\r\n").0.keeps_alive);
    }

    #[test]
    fn malformed_heads_are_refused() {
        for text in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
            "GET / HTTP/1.1\r\nho st: x\r\n\r\n",
            "GET / HTTP/1.1\r\nhost : x\r\n\r\n",
            "GET  / HTTP/1.1\r\nhost: x\r\n\r\n",
            "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}",
        ] {
            assert_eq!(refused(text), StatusCode::BAD_REQUEST, "{text:?}");
        }
        let unknown = "GET / HTTP/3.0\r\nhost: x\r\n\r\n";
        assert_eq!(refused(unknown), StatusCode::HTTP_VERSION_NOT_SUPPORTED);
        let long = format!(
            "GET / HTTP/1.1\r\nhost: x\r\na: {}\r\n\r\n",
            "b".repeat(HEAD_MAX)
        );
        let too_large = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        assert_eq!(refused(&long), too_large);
        assert_eq!(refused(&long[..HEAD_MAX]), too_large);
        let many = format!(
            "GET / HTTP/1.1\r\nhost: x\r\n{}\r\n",
            "a: b\r\n".repeat(100)
        );
        assert_eq!(refused(&many), too_large);
    }
}
