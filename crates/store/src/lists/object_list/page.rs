//! One page of a list of objects, in XML: its entries, and whether another page follows. Pure.

use std::borrow::Cow;
use std::cell::Cell;

use chrono::DateTime;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::Format;
use crate::error::ErrorKind;
use crate::errors::classification::{Cause, Classification};
use crate::sync::retry::Transient;

/// Number of entries in a full page, if the page does not state it: S3's and Google's, and Azure's.
const OBJECTS_MAX: usize = 1000;
const BLOBS_MAX: usize = 5000;

/// Response to a request for a page. Unknown roots are malformed.
#[derive(Deserialize)]
enum Answer {
    ListBucketResult(Objects),
    EnumerationResults(Enumeration),
    /// Some servers report errors with status 200.
    Error(Refusal),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Refusal {
    #[serde(default)]
    code: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Objects {
    is_truncated: Option<String>,
    next_continuation_token: Option<String>,
    next_marker: Option<String>,
    max_keys: Option<String>,
    encoding_type: Option<String>,
    #[serde(default)]
    contents: Vec<Object>,
    #[serde(default)]
    common_prefixes: Vec<Prefix>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Object {
    key: String,
    size: Option<String>,
    last_modified: Option<String>,
    #[serde(rename = "ETag")]
    e_tag: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Prefix {
    prefix: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Enumeration {
    next_marker: Option<String>,
    max_results: Option<String>,
    blobs: Blobs,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blobs {
    #[serde(default)]
    blob_prefix: Vec<BlobPrefix>,
    #[serde(default)]
    blob: Vec<Blob>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BlobPrefix {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blob {
    name: String,
    properties: Properties,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Properties {
    #[serde(rename = "Last-Modified")]
    last_modified: Option<String>,
    #[serde(rename = "Content-Length")]
    content_length: Option<String>,
    #[serde(rename = "Etag")]
    e_tag: Option<String>,
    resource_type: Option<String>,
}

/// Entry of a page.
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) len: Option<u64>,
    pub(super) modified: i64,
    pub(super) e_tag: Option<String>,
}

/// Continuation of a list after a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing: the list is complete.
    Nothing,
    /// The page that this token names.
    Token(String),
    /// More, without a token: after this marker, or else after the last key of the page.
    Unnamed(Option<String>),
}

/// One page.
pub(super) struct Page {
    pub(super) entries: Vec<Entry>,
    pub(super) prefixes: Vec<String>,
    pub(super) rest: Rest,
    /// True if bytes that are not UTF-8 were replaced.
    pub(super) is_lossy: bool,
}

impl Page {
    pub(super) fn parse(format: Format, body: &[u8]) -> Result<Self, Classification> {
        let text = String::from_utf8_lossy(body);
        let answer = quick_xml::de::from_str(&text).map_err(|error| malformed(&error))?;
        let page: Self = match (format, answer) {
            (Format::Objects, Answer::ListBucketResult(objects)) => objects.into(),
            (Format::Blobs, Answer::EnumerationResults(blobs)) => blobs.into(),
            (_, Answer::Error(Refusal { code })) => {
                return Err(Classification::new(
                    ErrorKind::Remote,
                    format!("the server sent an error with status 200: {code:?}"),
                )
                .hint("try again later; see the server's log")
                .transient(Transient::Broken));
            }
            (_, Answer::ListBucketResult(_) | Answer::EnumerationResults(_)) => {
                return Err(malformed(&"a list of another kind of store"));
            }
        };
        let is_lossy = page.is_lossy || matches!(text, Cow::Owned(_));
        Ok(Self { is_lossy, ..page })
    }

    /// Returns whether bytes of a key may have been replaced.
    pub(super) fn is_replaced(&self, key: &str) -> bool {
        self.is_lossy && key.contains(char::REPLACEMENT_CHARACTER)
    }
}

fn malformed(why: &dyn std::fmt::Display) -> Classification {
    Classification::new(ErrorKind::Remote, "the server sent a malformed list")
        .hint("check the server, and proxies and caches in front of it")
        .cause(Some(Cause::Words(why.to_string())))
}

impl From<Objects> for Page {
    fn from(objects: Objects) -> Self {
        // tload does not request URL encoding, but some servers always use it.
        let is_encoded = objects.encoding_type.as_deref() == Some("url");
        let is_lossy = Cell::new(false);
        let decoded = |name: String| {
            if is_encoded {
                let spaced = name.replace('+', " ");
                let bytes = percent_decode_str(&spaced);
                is_lossy.set(is_lossy.get() || bytes.clone().decode_utf8().is_err());
                return bytes.decode_utf8_lossy().into_owned();
            }
            name
        };
        let entries = objects.contents.into_iter().map(|object| Entry {
            key: decoded(object.key),
            len: object.size.and_then(|size| size.trim().parse().ok()),
            modified: seconds(object.last_modified, DateTime::parse_from_rfc3339),
            e_tag: object.e_tag,
        });
        let entries: Vec<_> = entries.collect();
        let prefixes = objects.common_prefixes.into_iter();
        let prefixes: Vec<_> = prefixes.map(|it| decoded(it.prefix)).collect();
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let marker = given(objects.next_marker).map(decoded);
        let number = entries.len() + prefixes.len();
        let is_truncated = match objects.is_truncated.as_deref().map(str::trim) {
            Some(text) => text.eq_ignore_ascii_case("true"),
            None => marker.is_some() || is_full(number, objects.max_keys, OBJECTS_MAX),
        };
        let rest = match given(objects.next_continuation_token) {
            Some(token) => Rest::Token(token),
            None if is_truncated => Rest::Unnamed(marker),
            None => Rest::Nothing,
        };
        Self {
            entries,
            prefixes,
            rest,
            is_lossy: is_lossy.get(),
        }
    }
}

impl From<Enumeration> for Page {
    fn from(list: Enumeration) -> Self {
        let Blobs { blob_prefix, blob } = list.blobs;
        let number = blob_prefix.len() + blob.len();
        let is_file = |blob: &Blob| blob.properties.resource_type.as_deref() != Some("directory");
        let entries = blob.into_iter().filter(is_file).map(|blob| Entry {
            key: blob.name,
            len: (blob.properties.content_length).and_then(|len| len.trim().parse().ok()),
            modified: seconds(blob.properties.last_modified, DateTime::parse_from_rfc2822),
            e_tag: blob.properties.e_tag,
        });
        let rest = match list.next_marker {
            Some(marker) if marker.is_empty() => Rest::Nothing,
            Some(marker) => Rest::Token(marker),
            // Azure always sends a marker, so a full page without one may have been truncated.
            None if is_full(number, list.max_results, BLOBS_MAX) => Rest::Unnamed(None),
            None => Rest::Nothing,
        };
        Self {
            entries: entries.collect(),
            prefixes: blob_prefix.into_iter().map(|it| it.name).collect(),
            rest,
            is_lossy: false,
        }
    }
}

/// Returns whether a page that does not say whether it is the last one has as many entries as a
/// page can have.
fn is_full(number: usize, stated: Option<String>, default: usize) -> bool {
    let stated = stated.and_then(|stated| stated.trim().parse().ok());
    number >= stated.filter(|&stated| stated > 0).unwrap_or(default)
}

/// Returns a time in seconds since 1970; zero if it is unknown.
fn seconds<E>(
    text: Option<String>,
    parse: fn(&str) -> Result<DateTime<chrono::FixedOffset>, E>,
) -> i64 {
    let time = text.and_then(|text| parse(text.trim()).ok());
    time.map_or(0, |time| time.timestamp())
}
