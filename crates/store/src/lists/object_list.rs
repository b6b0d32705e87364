//! Pages of a list of objects, as S3, Google and Azure send them in XML: their entries, and what
//! says whether another page follows. Pure; called by `pages.rs`.
//!
//! `object_store` would take a page for the whole list if it lacks a token for the next page,
//! whatever the page itself says, and a page of any other document for an empty list. It also
//! refuses a list for one name that is no path. So it only sends the requests: it is given pages
//! without entries ([`Gathered::take_page`]).

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;

use chrono::DateTime;
use object_store::path::Path;
use percent_encoding::percent_decode_str;
use quick_xml::escape::escape;
use serde::Deserialize;

use super::tree::{Level, Listed, is_component};
use crate::error::ErrorKind;
use crate::errors::classification::{Cause, Classification};
use crate::steps::step;
use crate::sync::retry::Transient;

/// Number of entries in a full page, if the page does not state it: S3's and Google's, and Azure's.
const OBJECTS_MAX: usize = 1000;
const BLOBS_MAX: usize = 5000;

/// Token for the next page of a list that the server did not give one for.
pub(crate) const CONTINUED: &str = "tload-continued";

/// Advice for lists that cannot be read to their end.
const HINT: &str = "update the server, or pass the URL of a file or of an index (*.safetensors.index.json), which needs no \
                    listing";

/// Form of a list in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// `ListBucketResult` of S3 and Google.
    Objects,
    /// `EnumerationResults` of Azure.
    Blobs,
}

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
struct Entry {
    key: String,
    len: Option<u64>,
    modified: i64,
    e_tag: Option<String>,
}

/// Continuation of a list after a page.
#[derive(Debug, PartialEq, Eq)]
enum Rest {
    /// Nothing: the list is complete.
    Nothing,
    /// The page that this token names.
    Token(String),
    /// More, without a token: after this marker, or else after the last key of the page.
    Unnamed(Option<String>),
}

/// One page.
struct Page {
    entries: Vec<Entry>,
    prefixes: Vec<String>,
    rest: Rest,
    /// True if bytes that are not UTF-8 were replaced.
    is_lossy: bool,
}

impl Page {
    fn parse(format: Format, body: &[u8]) -> Result<Self, Classification> {
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
    fn is_replaced(&self, key: &str) -> bool {
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
        let prefixes: Vec<_> = objects
            .common_prefixes
            .into_iter()
            .map(|it| decoded(it.prefix))
            .collect();
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

/// Entries of the pages of one list so far.
#[derive(Debug)]
pub(crate) struct Gathered {
    format: Format,
    /// Beginning of all keys: empty, or with a slash at its end.
    prefix: String,
    objects: Vec<Listed>,
    prefixes: BTreeSet<Path>,
    unusable: BTreeSet<String>,
    /// Key after which the list goes on, if its last page was truncated and named no next one.
    after: Option<String>,
    has_resumed: bool,
    /// True if the last page was not UTF-8.
    is_lossy: bool,
}

impl Gathered {
    /// Creates an empty list of what is directly below `prefix`.
    pub(crate) fn new(format: Format, prefix: Option<&Path>) -> Self {
        let prefix = prefix.map(AsRef::as_ref).filter(|it: &&str| !it.is_empty());
        Self {
            format,
            prefix: prefix.map_or_else(String::new, |prefix| format!("{prefix}/")),
            objects: Vec::new(),
            prefixes: BTreeSet::new(),
            unusable: BTreeSet::new(),
            after: None,
            has_resumed: false,
            is_lossy: false,
        }
    }

    /// Returns whether a query requests a page of a list of this form.
    pub(crate) fn is_page(&self, query: &str) -> bool {
        let pair = match self.format {
            Format::Objects => "list-type=2",
            Format::Blobs => "comp=list",
        };
        query.split('&').any(|it| it == pair)
    }

    /// Returns the key after which the list goes on, if the next request must say so.
    pub(crate) fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// Adds the entries of a page. Returns the same page without them, with a token if another one
    /// follows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Remote`] for a page that is malformed, or that is truncated and cannot be
    /// continued; a page is never taken for the whole list.
    pub(crate) fn take_page(&mut self, body: &[u8]) -> Result<Vec<u8>, Classification> {
        let page = Page::parse(self.format, body)?;
        self.is_lossy = page.is_lossy;
        let before = self.after.take();
        if let Some(before) = before.as_deref() {
            self.has_resumed = true;
            let is_before = page.entries.iter().any(|it| it.key.as_str() <= before)
                || page.prefixes.iter().any(|prefix| prefix.as_str() < before);
            if is_before {
                return Err(cut_short(before));
            }
        }
        let token = match &page.rest {
            Rest::Nothing => String::new(),
            Rest::Token(token) => token.clone(),
            Rest::Unnamed(marker) => {
                self.after = Some(self.next_after(&page, marker.as_deref(), before.as_deref())?);
                CONTINUED.to_owned()
            }
        };
        for entry in page.entries {
            self.add(entry)?;
        }
        for prefix in page.prefixes {
            self.add_prefix(prefix)?;
        }
        let token = escape(&token);
        let page = match self.format {
            Format::Objects => format!(
                "<ListBucketResult><NextContinuationToken>{token}</NextContinuationToken></ListBucketResult>"
            ),
            Format::Blobs => format!(
                "<EnumerationResults><Blobs></Blobs><NextMarker>{token}</NextMarker></EnumerationResults>"
            ),
        };
        Ok(page.into_bytes())
    }

    /// Returns the key after which a list goes on whose page is truncated and names no next one:
    /// the server's marker, or else the last key of the page. The page itself went on after
    /// `before`. Lists of S3 are in the order of the bytes of the keys.
    fn next_after(
        &self,
        page: &Page,
        marker: Option<&str>,
        before: Option<&str>,
    ) -> Result<String, Classification> {
        let keys = page.entries.iter().map(|entry| entry.key.as_str());
        let prefixes = page.prefixes.iter().map(String::as_str);
        let last_key = keys.clone().next_back();
        let last_prefix = prefixes.clone().next_back();
        let last = last_key.max(last_prefix);
        let shown = marker.or(last).unwrap_or(&self.prefix);
        let is_sorted = keys.is_sorted() && prefixes.is_sorted();
        if self.format != Format::Objects || (marker.is_none() && !is_sorted) {
            return Err(cut_short(shown));
        }
        let is_later = |key: &&str| before.is_none_or(|before| *key > before);
        // Some servers send all prefixes with the first page. Continuing after the smaller of both
        // last names is slower, but leaves nothing out.
        let first = last_key
            .zip(last_prefix)
            .map(|(key, prefix)| key.min(prefix));
        let next = match marker {
            Some(marker) => Some(marker).filter(is_later),
            None => first.filter(is_later).or(last.filter(is_later)),
        };
        // A key with replacement characters does not exist on the server, so the list cannot
        // continue after it.
        next.filter(|key| !page.is_replaced(key))
            .map(str::to_owned)
            .ok_or_else(|| cut_short(shown))
    }

    fn add(&mut self, entry: Entry) -> Result<(), Classification> {
        step();
        let below = self.below(&entry.key)?;
        if let Some(at) = below.find('/') {
            // The server has ignored the delimiter, so cut the key to its folder.
            let end = entry.key.len() - below.len() + at + 1;
            return self.add_prefix(entry.key[..end].to_owned());
        }
        if below.is_empty() {
            // This is the marker of the folder itself.
            return Ok(());
        }
        match Path::parse(&entry.key)
            .ok()
            .filter(|_| self.is_usable(below))
        {
            Some(location) => self.objects.push(Listed {
                location,
                len: entry.len,
                modified: entry.modified,
                e_tag: entry.e_tag,
                version: None,
            }),
            None => drop(self.unusable.insert(entry.key)),
        }
        Ok(())
    }

    fn add_prefix(&mut self, prefix: String) -> Result<(), Classification> {
        step();
        let below = self.below(&prefix)?;
        let name = below.strip_suffix('/').unwrap_or(below);
        match Path::parse(&prefix).ok().filter(|_| self.is_usable(name)) {
            Some(path) => drop(self.prefixes.insert(path)),
            None => drop(self.unusable.insert(prefix)),
        }
        Ok(())
    }

    fn is_usable(&self, name: &str) -> bool {
        let is_replaced = self.is_lossy && name.contains(char::REPLACEMENT_CHARACTER);
        is_component(name) && !is_replaced
    }

    /// Returns the part of a key below the prefix.
    fn below<'a>(&self, key: &'a str) -> Result<&'a str, Classification> {
        key.strip_prefix(&self.prefix).ok_or_else(|| {
            Classification::new(
                ErrorKind::Remote,
                format!(
                    "the store lists {key:?}, which is not below the prefix {:?}",
                    self.prefix
                ),
            )
            .hint("check the server, and proxies and caches in front of it")
        })
    }

    /// Returns the whole list.
    pub(crate) fn into_level(self) -> Level {
        let mut objects = self.objects;
        if self.has_resumed {
            // Pages may overlap.
            objects.sort_by(|one, other| one.location.cmp(&other.location));
            objects.dedup_by(|one, other| one.location == other.location);
        }
        Level {
            objects,
            prefixes: self.prefixes.into_iter().collect(),
            unusable: self.unusable.into_iter().collect(),
        }
        .without_folder_markers()
    }
}

fn cut_short(after: &str) -> Classification {
    Classification::new(
        ErrorKind::Remote,
        format!(
            "the server's list ends early: after {after:?} it has more names, but no page with them"
        ),
    )
    .hint(HINT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(key: &str, len: u64) -> String {
        format!(
            "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:10.000Z</LastModified>\
             <ETag>&quot;x&quot;</ETag><Size>{len}</Size></Contents>",
            escape(key)
        )
    }

    fn prefix(prefix: &str) -> String {
        let prefix = escape(prefix);
        format!("<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>")
    }

    fn page(inner: &str) -> String {
        format!("<?xml version='1.0'?>\n<ListBucketResult xmlns='urn:x'>{inner}</ListBucketResult>")
    }

    fn blobs(inner: &str, end: &str) -> String {
        format!("<EnumerationResults><Blobs>{inner}</Blobs>{end}</EnumerationResults>")
    }

    fn blob(name: &str, properties: &str) -> String {
        format!(
            "<Blob><Name>{name}</Name><Properties><Last-Modified>Mon, 02 Nov 2026 10:00:00 GMT\
             </Last-Modified><Etag>0x1</Etag><Content-Length>7</Content-Length>{properties}\
             </Properties></Blob>"
        )
    }

    fn gather(format: Format) -> Gathered {
        Gathered::new(format, Some(&Path::from("m")))
    }

    fn names(level: &Level) -> (Vec<&str>, Vec<&str>) {
        let objects = level.objects.iter().map(|it| it.location.as_ref());
        (
            objects.collect(),
            level.prefixes.iter().map(AsRef::as_ref).collect(),
        )
    }

    #[test]
    fn entries_of_both_forms_are_read() {
        let mut objects = gather(Format::Objects);
        let inner = [object("m/", 0), object("m/a & b", 7), prefix("m/sub/")].join("\n  ");
        objects.take_page(page(&inner).as_bytes()).expect("a page");
        let level = objects.into_level();
        assert_eq!(names(&level), (vec!["m/a & b"], vec!["m/sub"]));
        let only = &level.objects[0];
        assert_eq!((only.len, only.modified), (Some(7), 1_767_225_610));
        assert_eq!(only.e_tag.as_deref(), Some("\"x\""));

        let mut azure = gather(Format::Blobs);
        let folder = "<ResourceType>directory</ResourceType>";
        let inner = [
            blob("m/a", ""),
            blob("m/dir", folder),
            "<BlobPrefix><Name>m/sub/</Name></BlobPrefix>".to_owned(),
        ];
        let text = blobs(&inner.concat(), "<NextMarker/>");
        let next = azure.take_page(text.as_bytes()).expect("a page");
        assert!(String::from_utf8_lossy(&next).contains("<NextMarker></NextMarker>"));
        let level = azure.into_level();
        assert_eq!(names(&level), (vec!["m/a"], vec!["m/sub"]));
        let only = &level.objects[0];
        assert_eq!((only.len, only.modified), (Some(7), 1_793_613_600));
    }

    #[test]
    fn keys_that_are_no_paths_are_kept_apart() {
        let mut objects = gather(Format::Objects);
        let inner = [
            object("m/a", 1),
            object("m/a\u{1}b", 1),
            object("m/..", 1),
            object("m/ x ", 1),
            prefix("m//"),
            prefix("m/./"),
            prefix("m/b\u{7f}/"),
            // From a server that ignores the delimiter.
            object("m/deep/x/y", 1),
            object("m//x", 1),
        ];
        objects
            .take_page(page(&inner.concat()).as_bytes())
            .expect("a page");
        let level = objects.into_level();
        assert_eq!(names(&level), (vec!["m/a", "m/ x "], vec!["m/deep"]));
        let unusable = ["m/..", "m/./", "m//", "m/a\u{1}b", "m/b\u{7f}/"];
        assert_eq!(level.unusable, unusable);
        let mut objects = gather(Format::Objects);
        let text = page(&object("m/a$b", 1)).replace('$', "\u{1}").into_bytes();
        let broken: Vec<_> = text
            .iter()
            .map(|&byte| if byte == 1 { 0xff } else { byte })
            .collect();
        objects.take_page(&broken).expect("a page");
        assert_eq!(objects.into_level().unusable, ["m/a\u{fffd}b"]);
        let mut root = Gathered::new(Format::Objects, None);
        let inner = [prefix("/"), prefix("m/"), object("x", 1)].concat();
        root.take_page(page(&inner).as_bytes()).expect("a page");
        let level = root.into_level();
        assert_eq!(names(&level), (vec!["x"], vec!["m"]));
        assert_eq!(level.unusable, ["/"]);
    }

    #[test]
    fn empty_objects_that_stand_for_folders_are_dropped() {
        let mut objects = gather(Format::Objects);
        let inner = [
            object("m/a", 0),
            object("m/b", 1),
            prefix("m/a/"),
            prefix("m/b/"),
        ]
        .concat();
        objects.take_page(page(&inner).as_bytes()).expect("a page");
        assert_eq!(
            names(&objects.into_level()),
            (vec!["m/b"], vec!["m/a", "m/b"])
        );
    }

    #[test]
    fn page_says_what_follows() {
        let rest = |format, text: &str| Page::parse(format, text.as_bytes()).map(|it| it.rest);
        let token = "<NextContinuationToken>t</NextContinuationToken>";
        let marker = "<NextMarker>m/a</NextMarker>";
        let (yes, no) = (
            "<IsTruncated>true</IsTruncated>",
            "<IsTruncated>false</IsTruncated>",
        );
        let named = || Rest::Token("t".to_owned());
        let unnamed = || Rest::Unnamed(Some("m/a".to_owned()));
        let full = |most: usize| (0..most).map(|at| object(&format!("m/{at}"), 1)).collect();
        let full: Vec<String> = full(1000);
        let (full, less) = (full.concat(), full[1..].concat());
        for (inner, wanted) in [
            (String::new(), Rest::Nothing),
            (no.to_owned(), Rest::Nothing),
            (format!("{no}{marker}"), Rest::Nothing),
            (format!("{no}<NextContinuationToken/>"), Rest::Nothing),
            (format!("{yes}{token}"), named()),
            (format!("{yes}{token}{marker}"), named()),
            (token.to_owned(), named()),
            (yes.to_owned(), Rest::Unnamed(None)),
            (
                "<IsTruncated> TRUE </IsTruncated>".to_owned(),
                Rest::Unnamed(None),
            ),
            (format!("{yes}{marker}"), unnamed()),
            (marker.to_owned(), unnamed()),
            (full.clone(), Rest::Unnamed(None)),
            (format!("{full}{no}"), Rest::Nothing),
            (format!("{full}<MaxKeys>2000</MaxKeys>"), Rest::Nothing),
            (less.clone(), Rest::Nothing),
            (format!("<MaxKeys>999</MaxKeys>{less}"), Rest::Unnamed(None)),
        ] {
            let found = rest(Format::Objects, &page(&inner)).expect("a page");
            assert_eq!(found, wanted, "{}", &inner[..inner.len().min(200)]);
        }
        for (end, wanted) in [
            ("<NextMarker>t</NextMarker>", named()),
            ("<NextMarker/>", Rest::Nothing),
            ("<NextMarker></NextMarker>", Rest::Nothing),
            ("", Rest::Nothing),
            ("<MaxResults>1</MaxResults>", Rest::Unnamed(None)),
        ] {
            let text = blobs(&blob("m/a", ""), end);
            assert_eq!(rest(Format::Blobs, &text).expect("a page"), wanted, "{end}");
        }
    }

    #[test]
    fn other_documents_are_no_lists() {
        let whole = page(&object("m/a", 1));
        for (format, text, words) in [
            (Format::Objects, "<html><body/></html>", "malformed"),
            (Format::Objects, "", "malformed"),
            (Format::Objects, "{}", "malformed"),
            (Format::Objects, &whole[..whole.len() - 1], "malformed"),
            (Format::Objects, &whole[..whole.len() - 20], "malformed"),
            (Format::Objects, "<ListBucketResult>", "malformed"),
            (Format::Blobs, &whole, "malformed"),
            (
                Format::Blobs,
                "<EnumerationResults></EnumerationResults>",
                "malformed",
            ),
            (
                Format::Objects,
                "<Error><Code>SlowDown</Code><Message>m</Message></Error>",
                "SlowDown",
            ),
        ] {
            let error = gather(format).take_page(text.as_bytes()).expect_err(text);
            assert_eq!(error.kind, ErrorKind::Remote, "{text}");
            assert!(error.message.contains(words), "{text}: {}", error.message);
            assert!(error.hint.is_some());
        }
    }

    #[test]
    fn truncated_page_without_token_goes_on_after_its_last_key_or_fails() {
        let truncated = |inner: &[String]| {
            page(&format!(
                "<IsTruncated>true</IsTruncated>{}",
                inner.concat()
            ))
        };
        let next = |pages: &[String]| {
            let mut gathered = gather(Format::Objects);
            for page in pages {
                gathered.take_page(page.as_bytes())?;
            }
            Ok::<_, Classification>(gathered.after().map(str::to_owned))
        };
        let objects = |keys: &[&str]| keys.iter().map(|key| object(key, 1)).collect::<Vec<_>>();
        let first = truncated(&objects(&["m/a", "m/c"]));
        for (pages, wanted) in [
            (vec![first.clone()], "m/c"),
            (vec![first.clone(), truncated(&objects(&["m/d"]))], "m/d"),
            (vec![truncated(&[object("m/a", 1), prefix("m/z/")])], "m/a"),
            (
                vec![
                    truncated(&[object("m/a", 1), prefix("m/z/")]),
                    truncated(&[prefix("m/z/")]),
                ],
                "m/z/",
            ),
            (
                vec![truncated(&[
                    object("m/x", 1),
                    "<NextMarker>m/b</NextMarker>".to_owned(),
                ])],
                "m/b",
            ),
        ] {
            assert_eq!(next(&pages).expect("goes on").as_deref(), Some(wanted));
        }
        for pages in [
            // The server does not know the parameter.
            vec![first.clone(), first.clone()],
            vec![
                first.clone(),
                truncated(&[object("m/d", 1), prefix("m/b/")]),
            ],
            // No order, and no key to go on after.
            vec![truncated(&objects(&["m/c", "m/a"]))],
            vec![truncated(&[])],
            vec![truncated(&[prefix("m/z/")]), truncated(&[prefix("m/z/")])],
        ] {
            let error = next(&pages).expect_err("cannot go on");
            assert!(error.message.contains("ends early"), "{}", error.message);
        }
        let last = page(&objects(&["m/d", "m/e"]).concat());
        let mut gathered = gather(Format::Objects);
        for page in [&first, &last] {
            gathered.take_page(page.as_bytes()).expect("a page");
        }
        let level = gathered.into_level();
        assert_eq!(names(&level).0, ["m/a", "m/c", "m/d", "m/e"]);
    }

    #[test]
    fn list_does_not_go_on_after_a_replaced_key() {
        let encoding = "<EncodingType>url</EncodingType>";
        for (start, key, goes_on) in [
            ("", "m/a", true),
            ("", "m/a\u{fffd}", true),
            ("", "m/a\u{1}", false),
            (encoding, "m/a%EF%BF%BD", true),
            (encoding, "m/a%FF", false),
        ] {
            let inner = format!("<IsTruncated>true</IsTruncated>{start}{}", object(key, 1));
            let mut text = page(&inner).into_bytes();
            for byte in &mut text {
                *byte = if *byte == 1 { 0xff } else { *byte };
            }
            match gather(Format::Objects).take_page(&text) {
                Ok(_) => assert!(goes_on, "{key:?}"),
                Err(error) => {
                    assert!(!goes_on, "{key:?}: {}", error.message);
                    assert!(error.message.contains("ends early"), "{}", error.message);
                }
            }
        }
    }

    #[test]
    fn encoded_names_are_decoded() {
        let inner = format!(
            "<EncodingType>url</EncodingType>{}{}",
            object("m/a%2Bb+c", 1),
            prefix("m%2Fs%C3%A9/")
        );
        let mut gathered = gather(Format::Objects);
        gathered.take_page(page(&inner).as_bytes()).expect("a page");
        let level = gathered.into_level();
        assert_eq!(names(&level), (vec!["m/a+b c"], vec!["m/sé"]));
        let mut plain = gather(Format::Objects);
        plain
            .take_page(page(&object("m/a%2Bb+c", 1)).as_bytes())
            .expect("a page");
        assert_eq!(names(&plain.into_level()).0, ["m/a%2Bb+c"]);
    }

    #[test]
    fn keys_elsewhere_are_errors() {
        for inner in [object("n/a", 1), prefix("ma/")] {
            let error = gather(Format::Objects).take_page(page(&inner).as_bytes());
            let error = error.expect_err("elsewhere");
            assert!(
                error.message.contains("not below the prefix"),
                "{}",
                error.message
            );
        }
    }
}
