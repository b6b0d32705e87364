//! `ListObjectsV2`: one page of a bucket, as XML.
//!
//! Owns prefixes, delimiters and continuation tokens. Called by `answer`.

use std::fmt::Write;

use super::dates;
use super::reply::{Reply, escape};
use super::store::{Object, Store, bucket_and_key};
use super::wire::Head;

/// Maximum and default number of entries of S3.
const S3_MAX_KEYS: usize = 1000;

/// Entry of a listing.
enum Entry<'a> {
    Object(&'a str, &'a Object),
    /// All keys with this prefix, up to and including the delimiter.
    Prefix(&'a str),
}

/// End of the previous page: a token is `o` or `p` and the name in hexadecimal, so that no client
/// can mistake it for a key.
enum Mark {
    Start,
    After(String),
    AfterAll(String),
}

impl Mark {
    fn parse(token: &str) -> Option<Self> {
        let (kind, digits) = token.split_at_checked(1)?;
        let name = (0..digits.len()).step_by(2).map(|at| {
            let pair = digits.get(at..at + 2)?;
            u8::from_str_radix(pair, 16).ok()
        });
        let name = String::from_utf8(name.collect::<Option<Vec<u8>>>()?).ok()?;
        match kind {
            "o" => Some(Self::After(name)),
            "p" => Some(Self::AfterAll(name)),
            _ => None,
        }
    }

    fn token(last: &Entry<'_>) -> String {
        let (kind, name) = match last {
            Entry::Object(key, _) => ("o", key),
            Entry::Prefix(prefix) => ("p", prefix),
        };
        name.bytes().fold(kind.to_owned(), |mut token, byte| {
            write!(token, "{byte:02x}").expect("a string takes all that is written");
            token
        })
    }

    fn passed(&self, key: &str) -> bool {
        match self {
            Self::Start => false,
            Self::After(name) => key <= name.as_str(),
            Self::AfterAll(prefix) => key <= prefix.as_str() || key.starts_with(prefix.as_str()),
        }
    }
}

pub(super) fn list(store: &Store, head: &Head, id: &str) -> Reply {
    let bucket = bucket_and_key(&head.path).0;
    if !store.has_bucket(bucket) {
        return Reply::error(404, "NoSuchBucket", id);
    }
    let Ok(max_keys) = head.query("max-keys").map_or(Ok(S3_MAX_KEYS), str::parse) else {
        return Reply::error(400, "InvalidArgument", id);
    };
    let mark = match head.query("continuation-token") {
        Some(token) => Mark::parse(token),
        None => Some(
            head.query("start-after")
                .map_or(Mark::Start, |key| Mark::After(key.to_owned())),
        ),
    };
    let Some(mark) = mark else {
        return Reply::error(400, "InvalidArgument", id);
    };
    let prefix = head.query("prefix").unwrap_or_default();
    let delimiter = head
        .query("delimiter")
        .filter(|delimiter| !delimiter.is_empty());

    let mut entries = entries(store, bucket, prefix, delimiter, &mark);
    let page = max_keys.min(store.page_entries);
    let more = entries.len() > page;
    entries.truncate(page);
    Reply::text(
        200,
        "application/xml",
        xml(bucket, prefix, max_keys, &entries, more),
    )
}

/// Builds a page with one name, whose next token is `token`; without one if that is empty.
pub(super) fn without_end(head: &Head, token: &str) -> Reply {
    let (bucket, _) = bucket_and_key(&head.path);
    let key = format!("{}key{token}", head.query("prefix").unwrap_or_default());
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult><Name>{}</Name>\
         <IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>\
         <Contents><Key>{}</Key><LastModified>{}</LastModified><Size>1</Size></Contents>\
         </ListBucketResult>",
        escape(bucket),
        escape(&key),
        dates::iso(0),
    );
    Reply::text(200, "application/xml", text)
}

fn entries<'a>(
    store: &'a Store,
    bucket: &str,
    prefix: &str,
    delimiter: Option<&str>,
    mark: &Mark,
) -> Vec<Entry<'a>> {
    let inside = format!("{bucket}/");
    let from = format!("{inside}{prefix}");
    let mut entries: Vec<Entry<'a>> = Vec::new();
    for (path, object) in store.objects.range(from.clone()..) {
        if !path.starts_with(&from) {
            break;
        }
        let key = &path[inside.len()..];
        if mark.passed(key) {
            continue;
        }
        let shared = delimiter.and_then(|delimiter| {
            let at = key[prefix.len()..].find(delimiter)?;
            Some(&key[..prefix.len() + at + delimiter.len()])
        });
        match (shared, entries.last()) {
            (Some(shared), Some(Entry::Prefix(last))) if shared == *last => {}
            (Some(shared), _) => entries.push(Entry::Prefix(shared)),
            (None, _) => entries.push(Entry::Object(key, object)),
        }
    }
    entries
}

fn xml(bucket: &str, prefix: &str, max_keys: usize, entries: &[Entry<'_>], more: bool) -> String {
    let (mut objects, mut prefixes) = (String::new(), String::new());
    for entry in entries {
        match entry {
            Entry::Object(key, object) => write!(
                objects,
                "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag>\
                 <Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
                escape(key),
                dates::iso(object.modified),
                escape(&object.etag),
                object.size()
            ),
            Entry::Prefix(prefix) => write!(
                prefixes,
                "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>",
                escape(prefix)
            ),
        }
        .expect("a string takes all that is written");
    }
    let token = entries
        .last()
        .filter(|_| more)
        .map_or(String::new(), |last| {
            format!(
                "<NextContinuationToken>{}</NextContinuationToken>",
                Mark::token(last)
            )
        });
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
         <Name>{}</Name><Prefix>{}</Prefix><KeyCount>{}</KeyCount><MaxKeys>{max_keys}</MaxKeys>\
         <IsTruncated>{more}</IsTruncated>{token}{objects}{prefixes}</ListBucketResult>",
        escape(bucket),
        escape(prefix),
        entries.len()
    )
}
