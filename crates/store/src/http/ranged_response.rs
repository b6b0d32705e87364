//! Reads the answer to a request for one range: RFC 9110, sections 8.4 (encodings), 14.4
//! (`Content-Range`) and 15.3.7 (206).
//!
//! Each legal form of an answer becomes the one that `object_store` takes: 206 with the requested
//! range, the length of the object, and the length of the body. A small object that came whole is
//! cut to the range. Answers of no known meaning are errors, which say what is wrong with them.
//! Called by `response_capture.rs` for each response.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use chrono::DateTime;
use futures_util::StreamExt;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, HeaderValue, LAST_MODIFIED,
    TRANSFER_ENCODING,
};
use http::response::Parts;
use http::{HeaderMap, StatusCode, Version};
use http_body::{Body, Frame};
use object_store::ObjectMeta;
use object_store::client::{HttpError, HttpRequest, HttpResponse, HttpResponseBody};
use object_store::path::Path;

use crate::error::ErrorKind;
use crate::errors::classification::{CHECK_SERVER, Classification, LOAD_AGAIN, SHRANK};

/// Longest object that may come whole in answer to a request for a part of it, bytes: an index of
/// 100,000 tensors.
const WHOLE_BYTES_MAX: u64 = 16 << 20;

/// Header that a bucket of Google's sends for an object that is stored compressed.
const STORED_ENCODING: HeaderName = HeaderName::from_static("x-goog-stored-content-encoding");

/// Encodings of bodies, and what the names of files that are compressed themselves end in. A name
/// that is not here, such as `aws-chunked` or `utf-8`, is no encoding: the bytes are those of the
/// file, as curl and Python's requests take them.
const ENCODINGS: [(&str, &[&str]); 14] = [
    ("gzip", &[".gz", ".tgz", ".gzip"]),
    ("x-gzip", &[".gz", ".tgz", ".gzip"]),
    ("deflate", &[".deflate", ".zz"]),
    ("compress", &[".Z"]),
    ("x-compress", &[".Z"]),
    ("br", &[".br"]),
    ("zstd", &[".zst", ".zstd"]),
    ("dcb", &[]),
    ("dcz", &[]),
    ("bzip2", &[".bz2"]),
    ("x-bzip2", &[".bz2"]),
    ("xz", &[".xz"]),
    ("lz4", &[".lz4"]),
    ("snappy", &[".sz", ".snappy"]),
];

/// Extension of a request: length of the object, for an answer that does not state it.
#[derive(Clone, Copy, Debug)]
pub struct KnownLen(pub u64);

/// Extension of a request whose response is left as it is, for callers that read it themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsSent;

/// Extension of a response that ends before the requested range does: the offset of its end. A
/// server may send a part (RFC 9110, section 15.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndsAt(pub u64);

/// Answer that is legal and has no range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRange {
    /// The object is empty; its validators, as far as the answer has them.
    Empty {
        /// Entity tag.
        e_tag: Option<String>,
        /// Time of the last modification, as the header has it.
        modified: Option<String>,
    },
    /// The length of the object is not stated, and must be asked for.
    LengthUnknown,
}

impl NoRange {
    /// Returns the state of an empty object.
    pub fn meta(&self, path: &Path) -> Option<ObjectMeta> {
        let Self::Empty { e_tag, modified } = self else {
            return None;
        };
        let parsed = |text: &str| DateTime::parse_from_rfc2822(text).ok();
        let modified = modified.as_deref().and_then(parsed);
        Some(ObjectMeta {
            location: path.clone(),
            last_modified: modified.map(Into::into).unwrap_or_default(),
            size: 0,
            e_tag: e_tag.clone(),
            version: None,
        })
    }

    fn empty(headers: &HeaderMap) -> Self {
        let text = |name| Some(headers.get(name)?.to_str().ok()?.to_owned());
        Self::Empty {
            e_tag: text(ETAG),
            modified: text(LAST_MODIFIED),
        }
    }
}

/// Range that a request is for.
#[derive(Clone, Debug)]
pub(crate) struct WantedRange {
    range: Range<u64>,
    known_len: Option<u64>,
}

impl WantedRange {
    /// Returns the range of a request; `None` if it is not for one with an end.
    pub(crate) fn of(request: &HttpRequest) -> Option<Self> {
        if request.extensions().get::<AsSent>().is_some() {
            return None;
        }
        let range = request.headers().get(http::header::RANGE)?.to_str().ok()?;
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        let range = number(first)?..number(last)?.checked_add(1)?;
        let known_len = request.extensions().get::<KnownLen>().map(|known| known.0);
        (range.start < range.end).then_some(Self { range, known_len })
    }

    /// Returns the response in the form that `object_store` takes. Other statuses stay as they are:
    /// `object_store` knows what they mean.
    ///
    /// # Errors
    ///
    /// [`Classification`] for a response that has no range, with its meaning if there is one, and
    /// errors of the connection.
    pub(crate) async fn of_response(
        &self,
        response: HttpResponse,
    ) -> Result<HttpResponse, (HttpError, Option<NoRange>)> {
        let (head, body) = response.into_parts();
        match head.status {
            StatusCode::PARTIAL_CONTENT => self.partial(head, body),
            StatusCode::OK => self.whole(head, body).await,
            StatusCode::NO_CONTENT => {
                let empty = NoRange::empty(&head.headers);
                Err((no_bytes().into(), Some(empty)))
            }
            _ => Ok(HttpResponse::from_parts(head, body)),
        }
    }

    fn partial(
        &self,
        mut head: Parts,
        body: HttpResponseBody,
    ) -> Result<HttpResponse, (HttpError, Option<NoRange>)> {
        let sent =
            ContentRange::of(&head.headers).map_err(|error| (HttpError::from(error), None))?;
        let Some(sent) = sent else {
            let is_multipart = text(&head.headers, &http::header::CONTENT_TYPE)
                .is_some_and(|it| it.to_ascii_lowercase().starts_with("multipart/"));
            let how = if is_multipart {
                "several ranges at once (multipart)"
            } else {
                "a part of the object without saying which: there is no Content-Range"
            };
            return Err((misplaced(format!("the server sent {how}")).into(), None));
        };
        let ContentRange::Sent { range, len } = sent else {
            let message = "the server sent status 206 with a Content-Range without a range";
            return Err((misplaced(message).into(), None));
        };
        let Some(len) = len.or(self.known_len.map(|known| known.max(range.end))) else {
            let unknown =
                "the server does not state the length of the object (Content-Range: bytes …/*)";
            return Err((misplaced(unknown).into(), Some(NoRange::LengthUnknown)));
        };
        let wanted = self.range.start..self.range.end.min(len);
        if range.start != wanted.start || range.end > wanted.end {
            let message = format!(
                "the server sent a different range than requested: bytes {}..{} of {len}, wanted {}..{}",
                range.start, range.end, wanted.start, wanted.end
            );
            return Err((misplaced(message).into(), None));
        }
        if range.end < wanted.end {
            head.extensions.insert(EndsAt(range.end));
        }
        Ok(uniform(head, body, &wanted, len))
    }

    /// Cuts an object that came whole to the range.
    async fn whole(
        &self,
        head: Parts,
        body: HttpResponseBody,
    ) -> Result<HttpResponse, (HttpError, Option<NoRange>)> {
        let stored = text(&head.headers, &STORED_ENCODING);
        if let Some(encoding) = stored.and_then(|stored| encodings(stored).next()) {
            return Err((compressed(&STORED_ENCODING, encoding).into(), None));
        }
        let stated = text(&head.headers, &CONTENT_LENGTH).and_then(number);
        // `Content-Range` has no meaning in a response with this status, but the server may have
        // confused the status.
        if let Ok(Some(ContentRange::Sent { range, len })) = ContentRange::of(&head.headers) {
            let is_whole = range.start == 0 && len.is_none_or(|len| len == range.end);
            if !is_whole || stated.is_some_and(|stated| stated != range.end) {
                let message = format!(
                    "the server sent status 200, which is for the whole object, with bytes {}..{} of {}",
                    range.start,
                    range.end,
                    len.map_or_else(|| "*".to_owned(), |len| len.to_string())
                );
                return Err((misplaced(message).into(), None));
            }
        }
        let (len, body) = match stated {
            Some(len) => (len, body),
            // A body without a length ends with the connection, so half of it would look like all
            // of it.
            None if ends_itself(&head) => {
                let counted = self.count(body).await.map_err(|error| (error, None))?;
                let Some((len, bytes)) = counted else {
                    return Err((whole_files_only().into(), None));
                };
                let body = HttpResponseBody::from(Bytes::from(bytes));
                return self.cut(head, body, len, self.range.start);
            }
            None => return Err((whole_files_only().into(), None)),
        };
        let is_all = self.range.start == 0 && self.range.end >= len;
        if !is_all && len > WHOLE_BYTES_MAX {
            return Err((whole_files_only().into(), None));
        }
        self.cut(head, body, len, 0)
    }

    /// Returns the range from the `body` of an object of `len` bytes, which begins at `at`.
    fn cut(
        &self,
        head: Parts,
        body: HttpResponseBody,
        len: u64,
        at: u64,
    ) -> Result<HttpResponse, (HttpError, Option<NoRange>)> {
        if len == 0 {
            return Err((no_bytes().into(), Some(NoRange::empty(&head.headers))));
        }
        let wanted = self.range.start..self.range.end.min(len);
        if wanted.is_empty() {
            return Err((shrank().into(), None));
        }
        let body = Cut {
            body,
            skip: wanted.start - at,
            left: wanted.end - wanted.start,
        };
        Ok(uniform(head, HttpResponseBody::new(body), &wanted, len))
    }

    /// Receives a body that does not state its length: returns that, and the bytes of the range.
    /// `None` if it is too long to be counted.
    async fn count(&self, body: HttpResponseBody) -> Result<Option<(u64, Vec<u8>)>, HttpError> {
        let (mut len, mut kept) = (0, Vec::new());
        let mut frames = body.bytes_stream();
        while let Some(bytes) = frames.next().await {
            let bytes = bytes?;
            let at = len;
            len += bytes.len() as u64;
            if len > WHOLE_BYTES_MAX {
                return Ok(None);
            }
            let inside =
                |offset: u64| usize::try_from(offset.clamp(at, len) - at).unwrap_or(bytes.len());
            kept.extend_from_slice(&bytes[inside(self.range.start)..inside(self.range.end)]);
        }
        Ok(Some((len, kept)))
    }
}

/// Returns whether the end of the body shows that it is all there.
fn ends_itself(head: &Parts) -> bool {
    let is_chunked = text(&head.headers, &TRANSFER_ENCODING)
        .is_some_and(|coding| coding.to_ascii_lowercase().contains("chunked"));
    is_chunked || head.version == Version::HTTP_2
}

/// Returns a 206 with this range.
fn uniform(mut head: Parts, body: HttpResponseBody, range: &Range<u64>, len: u64) -> HttpResponse {
    let text = format!("bytes {}-{}/{len}", range.start, range.end - 1);
    let text = HeaderValue::try_from(text).expect("digits");
    head.status = StatusCode::PARTIAL_CONTENT;
    head.headers.insert(CONTENT_RANGE, text);
    let bytes = range.end - range.start;
    head.headers.insert(CONTENT_LENGTH, bytes.into());
    HttpResponse::from_parts(head, body)
}

/// Returns what a refusal says about an empty object: no range of it can be sent.
pub(crate) fn refused(status: StatusCode, headers: &HeaderMap) -> Option<NoRange> {
    let range = ContentRange::of(headers).ok().flatten();
    let is_empty = status == StatusCode::RANGE_NOT_SATISFIABLE
        && range == Some(ContentRange::Unsatisfied { len: 0 });
    is_empty.then(|| NoRange::empty(headers))
}

/// Refuses a body that is compressed although the request forbids it: its bytes and ranges differ
/// from the file's. `path` is that of the URL: a file that is compressed itself is meant as it is.
///
/// # Errors
///
/// [`Classification`], which names the header.
pub(crate) fn require_plain(headers: &HeaderMap, path: &str) -> Result<(), HttpError> {
    match encoding_of(headers, path) {
        Some(encoding) => Err(compressed(&CONTENT_ENCODING, encoding).into()),
        None => Ok(()),
    }
}

/// Returns the first encoding of a body.
pub(crate) fn encoding_of<'a>(headers: &'a HeaderMap, path: &str) -> Option<&'a str> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    let mut found = texts.flat_map(encodings);
    found.find(|found| {
        let suffixes = suffixes(found).unwrap_or_default();
        !suffixes.iter().any(|suffix| path.ends_with(suffix))
    })
}

/// Returns those names of a list that are encodings.
fn encodings(list: &str) -> impl Iterator<Item = &str> {
    let names = list.split(',').map(str::trim);
    names.filter(|name| suffixes(name).is_some())
}

fn suffixes(encoding: &str) -> Option<&'static [&'static str]> {
    let row = ENCODINGS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(encoding));
    row.map(|(_, suffixes)| *suffixes)
}

/// Value of a `Content-Range`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContentRange {
    /// The range that was sent, and the length of the object, if it is stated.
    Sent { range: Range<u64>, len: Option<u64> },
    /// No range was sent.
    Unsatisfied { len: u64 },
}

impl ContentRange {
    /// Parses the header, if there is one.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Option<Self>, Classification> {
        let mut values = headers.get_all(CONTENT_RANGE).iter();
        let Some(first) = values.next() else {
            return Ok(None);
        };
        let parsed = first.to_str().ok().and_then(Self::parse);
        let is_one = values.all(|value| value == first);
        parsed.filter(|_| is_one).map(Some).ok_or_else(|| {
            let shown = first.as_bytes().escape_ascii().to_string();
            misplaced(format!(
                "the server sent a Content-Range that cannot be read: {shown}"
            ))
        })
    }

    /// Returns whether exactly this range was sent.
    pub(crate) fn is_of(&self, wanted: &Range<u64>) -> bool {
        matches!(self, Self::Sent { range, .. } if range == wanted)
    }

    /// Parses `bytes 4-7/8`, `bytes 4-7/*` and `bytes */8`. The name of the unit is taken in any
    /// case, and before any of the characters that curl takes there as well.
    fn parse(text: &str) -> Option<Self> {
        let (unit, rest) = text.trim().split_at_checked("bytes".len())?;
        let rest = rest.strip_prefix([' ', '\t', ':', '='])?.trim_start();
        let (range, len) = rest.split_once('/')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (range, len) = (range.trim(), len.trim());
        if range == "*" {
            return Some(Self::Unsatisfied { len: number(len)? });
        }
        let len = if len == "*" { None } else { Some(number(len)?) };
        let (first, last) = range.split_once('-')?;
        let range = number(first.trim_end())?..number(last.trim_start())?.checked_add(1)?;
        (range.start < range.end).then_some(Self::Sent { range, len })
    }
}

/// Parses digits. `u64` itself would also take a sign.
fn number(text: &str) -> Option<u64> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_digits)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Classifies a response that violates HTTP.
pub(crate) fn misplaced(message: impl Into<String>) -> Classification {
    Classification::new(ErrorKind::Remote, message)
        .hint("the server, or a proxy in front of it, answers ranged requests wrongly")
}

fn no_bytes() -> Classification {
    Classification::new(ErrorKind::Remote, "the server sent no bytes of the object")
        .hint(CHECK_SERVER)
}

/// Classifies a server that sends no ranges.
pub(crate) fn whole_files_only() -> Classification {
    Classification::new(
        ErrorKind::Unsupported,
        "the server sends whole files only, not the requested byte ranges",
    )
    .hint("use a server that honours Range requests, or download the file first")
}

/// Classifies an object that ends before a requested range.
fn shrank() -> Classification {
    Classification::new(ErrorKind::Changed, SHRANK).hint(LOAD_AGAIN)
}

fn compressed(header: &HeaderName, encoding: &str) -> Classification {
    let header = if *header == CONTENT_ENCODING {
        "Content-Encoding"
    } else {
        header.as_str()
    };
    Classification::new(
        ErrorKind::Unsupported,
        format!("the server sends it compressed ({header}: {encoding}), although it was asked not to"),
    )
    .hint(
        "store the file uncompressed and without a content encoding, or turn off compression in the server or proxy",
    )
}

/// Bytes of a body: some are skipped, and those behind the last one wanted are not received.
struct Cut {
    body: HttpResponseBody,
    skip: u64,
    left: u64,
}

impl Body for Cut {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        loop {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            let frame = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                other @ (Poll::Ready(_) | Poll::Pending) => return other,
            };
            let Ok(mut bytes) = frame.into_data() else {
                continue;
            };
            let len = bytes.len() as u64;
            let skipped = self.skip.min(len);
            let kept = self.left.min(len - skipped);
            self.skip -= skipped;
            self.left -= kept;
            if kept == 0 {
                continue;
            }
            let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
            bytes = bytes.slice(at(skipped)..at(skipped + kept));
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "other rows have no range")]
    fn sent(range: Range<u64>, len: Option<u64>) -> Option<ContentRange> {
        Some(ContentRange::Sent { range, len })
    }

    #[test]
    fn content_ranges_in_all_forms() {
        for (text, wanted) in [
            ("bytes 4-7/8", sent(4..8, Some(8))),
            ("Bytes 4-7/8", sent(4..8, Some(8))),
            ("BYTES  4-7/8 ", sent(4..8, Some(8))),
            ("bytes\t4-7/8", sent(4..8, Some(8))),
            ("bytes 0004-07/008", sent(4..8, Some(8))),
            ("bytes 4 - 7 / 8", sent(4..8, Some(8))),
            ("bytes: 4-7/8", sent(4..8, Some(8))),
            ("bytes=4-7/8", sent(4..8, Some(8))),
            ("bytes 4-7/*", sent(4..8, None)),
            ("bytes */8", Some(ContentRange::Unsatisfied { len: 8 })),
            ("bytes */0", Some(ContentRange::Unsatisfied { len: 0 })),
            ("bytes */*", None),
            ("bytes 4-7", None),
            ("bytes 7-4/8", None),
            ("bytes 4-8/8", sent(4..9, Some(8))),
            ("bytes +4-7/8", None),
            ("bytes -4-7/8", None),
            ("bytes 4-/8", None),
            ("bytes 4-7/", None),
            ("bytes 0-18446744073709551615/*", None),
            ("bytes 0-18446744073709551616/18446744073709551617", None),
            ("items 4-7/8", None),
            ("bytesx 4-7/8", None),
            ("4-7/8", None),
            ("", None),
            ("byté 4-7/8", None),
        ] {
            assert_eq!(ContentRange::parse(text), wanted, "{text}");
        }
    }

    #[test]
    fn two_content_ranges_must_be_the_same() {
        let headers = |values: [&'static str; 2]| {
            let values = values.map(|text| (CONTENT_RANGE, HeaderValue::from_static(text)));
            values
                .into_iter()
                .fold(HeaderMap::new(), |mut all, (name, value)| {
                    all.append(name, value);
                    all
                })
        };
        let one = ContentRange::of(&headers(["bytes 0-3/8", "bytes 0-3/8"]));
        assert_eq!(one.expect("the same"), sent(0..4, Some(8)));
        let error = ContentRange::of(&headers(["bytes 0-3/8", "bytes 4-7/8"]));
        assert!(error.expect_err("two").message.contains("bytes 0-3/8"));
    }

    #[test]
    fn encodings_are_told_from_other_texts() {
        for (value, path, wanted) in [
            ("gzip", "/m/config.json", Some("gzip")),
            ("identity, GZIP", "/m/config.json", Some("GZIP")),
            ("br", "/m/a.safetensors", Some("br")),
            ("zstd", "/m/a.json", Some("zstd")),
            ("identity", "/m/a.json", None),
            ("aws-chunked", "/m/a.json", None),
            ("aws-chunked,gzip", "/m/a.json", Some("gzip")),
            ("utf-8", "/m/a.json", None),
            ("", "/m/a.json", None),
            ("gzip", "/m/a.tar.gz", None),
            ("x-gzip", "/m/a.tgz", None),
            ("br", "/m/a.tgz", Some("br")),
            ("gzip", "/gz", Some("gzip")),
        ] {
            let headers = [(CONTENT_ENCODING, HeaderValue::from_static(value))];
            let headers = headers.into_iter().collect();
            assert_eq!(encoding_of(&headers, path), wanted, "{value} {path}");
        }
    }
}
