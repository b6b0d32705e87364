//! Builds S3's response to a request, and modifies it for a fault.
//!
//! Owns conditions, ranges and headers of objects. Sends nothing: faults of delivery pass through
//! unchanged. Called by `state` under its lock, so that a change of the object and the response
//! that follows it are one step.

use std::ops::Range;
use std::sync::Arc;

use super::reply::{Piece, Reply};
use super::rule::{Fault, Operation};
use super::store::{Object, Store, bucket_and_key};
use super::wire::{Head, Wanted};
use super::{credentials, dates, listing};

/// Filler byte of `LongBody`.
const FILLER: u8 = 0xEE;

pub(super) fn operation_of(head: &Head) -> Operation {
    let key = bucket_and_key(&head.path).1;
    match head.method.as_str() {
        "GET" if head.query("list-type") == Some("2") && key.is_empty() => Operation::List,
        "GET" if head.path == credentials::PATH => Operation::Credentials,
        "GET" if !key.is_empty() => Operation::Get,
        "HEAD" if !key.is_empty() => Operation::Head,
        _ => Operation::Other,
    }
}

/// Applies changes to the object that happen right before the response.
pub(super) fn change_first(store: &mut Store, path: &str, fault: Option<&Fault>) {
    if let Some(Fault::ChangeBefore(bytes)) = fault {
        store.put(path, Arc::new(bytes.clone()));
    }
    if matches!(fault, Some(Fault::RemoveBefore)) {
        store.remove(path);
    }
}

/// Builds the response to any request except for credentials.
pub(super) fn answer(store: &Store, head: &Head, fault: Option<&Fault>, id: &str) -> Reply {
    if let Some(Fault::Status(status, code)) = fault {
        return Reply::error(*status, code, id);
    }
    if let Some(Fault::StatusWithHeaders {
        status,
        code,
        headers,
    }) = fault
    {
        let mut reply = Reply::error(*status, code, id);
        for (name, value) in headers {
            reply.set(name, value);
        }
        return reply;
    }
    match operation_of(head) {
        Operation::Get | Operation::Head => object(store, head, fault, id),
        Operation::List => match fault {
            Some(Fault::TruncatedPage) => listing::without_end(head, ""),
            Some(Fault::RepeatedPage) => listing::without_end(head, "again"),
            Some(Fault::EndlessPages) => {
                let pages = head.query("continuation-token").map(str::parse::<u64>);
                let next = pages.and_then(Result::ok).unwrap_or_default() + 1;
                listing::without_end(head, &next.to_string())
            }
            None | Some(_) => listing::list(store, head, id),
        },
        Operation::Credentials | Operation::Other => Reply::error(501, "NotImplemented", id),
    }
}

fn object(store: &Store, head: &Head, fault: Option<&Fault>, id: &str) -> Reply {
    let Some(object) = store.find(&head.path, head.query("versionId")) else {
        let known = store.has_bucket(bucket_and_key(&head.path).0);
        let code = if known { "NoSuchKey" } else { "NoSuchBucket" };
        return Reply::error(404, code, id);
    };
    let mut reply = match condition(object, head, matches!(fault, Some(Fault::IgnoreIfMatch))) {
        Condition::Holds => body(object, head, fault, id),
        Condition::NotModified => Reply::new(304),
        Condition::Failed => return Reply::error(412, "PreconditionFailed", id),
    };
    if reply.status == 416 {
        return reply;
    }
    if !store.without_validators {
        describe(&mut reply, object, fault);
    }
    attest(&mut reply, store, head);
    if let Some(Fault::WrongLength(by)) = fault {
        reply.length_error = *by;
    }
    reply
}

/// Adds the checksum headers: those of S3 only on request, and for the whole object.
fn attest(reply: &mut Reply, store: &Store, head: &Head) {
    let is_asked = head.header("x-amz-checksum-mode") == Some("ENABLED");
    let is_whole = head.header("range").is_none();
    for (name, value) in store.checksums.get(&head.path).into_iter().flatten() {
        if !name.starts_with("x-amz-") || (is_asked && is_whole) {
            reply.set(name, value.as_str());
        }
    }
}

/// Adds the headers that identify the object.
fn describe(reply: &mut Reply, object: &Object, fault: Option<&Fault>) {
    match fault {
        Some(Fault::NoEtag) => {}
        Some(Fault::WeakEtag) => reply.set("ETag", format!("W/{}", object.etag)),
        None | Some(_) => reply.set("ETag", object.etag.as_str()),
    }
    let modified = if matches!(fault, Some(Fault::BadLastModified)) {
        dates::http_wrong_weekday(object.modified)
    } else {
        dates::http(object.modified)
    };
    reply.set("Last-Modified", modified);
    if let Some(version) = &object.version {
        reply.set("x-amz-version-id", version.as_str());
    }
}

enum Condition {
    Holds,
    NotModified,
    Failed,
}

/// Evaluates the preconditions in the order of RFC 9110, section 13.2.2.
fn condition(object: &Object, head: &Head, ignore_if_match: bool) -> Condition {
    let names = |tags: &str| {
        tags.split(',')
            .any(|tag| tag.trim() == "*" || tag.trim() == object.etag)
    };
    let since = |name| head.header(name).and_then(dates::parse_http);
    let same = match head.header("if-match") {
        Some(tags) => ignore_if_match || names(tags),
        None => since("if-unmodified-since").is_none_or(|date| object.modified <= date),
    };
    if !same {
        return Condition::Failed;
    }
    let fresh = match head.header("if-none-match") {
        Some(tags) => !names(tags),
        None => since("if-modified-since").is_none_or(|date| object.modified > date),
    };
    if fresh {
        Condition::Holds
    } else {
        Condition::NotModified
    }
}

/// Builds a 200, 206 or 416 with its range and bytes.
fn body(object: &Object, head: &Head, fault: Option<&Fault>, id: &str) -> Reply {
    let size = object.size();
    let wanted = if matches!(fault, Some(Fault::IgnoreRange)) {
        Wanted::All
    } else {
        head.wanted()
    };
    let Some(span) = wanted.within(size) else {
        let mut reply = Reply::error(416, "InvalidRange", id);
        reply.set("Content-Range", format!("bytes */{size}"));
        return reply;
    };
    let mut reply = Reply::new(if wanted == Wanted::All { 200 } else { 206 });
    reply.set("Accept-Ranges", "bytes");
    reply.set("Content-Type", "binary/octet-stream");
    if wanted != Wanted::All && !matches!(fault, Some(Fault::NoContentRange)) {
        reply.set("Content-Range", content_range(&span, size, fault));
    }
    if let Some(Fault::Encoded(encoding)) = fault {
        reply.set("Content-Encoding", *encoding);
    }
    reply.body = pieces(object, &span, fault);
    if let Some(Fault::ShortBody(count)) = fault {
        reply.shorten(*count);
    }
    if let Some(Fault::LongBody(count)) = fault {
        reply.body.push(Piece::Owned(vec![FILLER; *count]));
    }
    reply
}

fn content_range(span: &Range<u64>, size: u64, fault: Option<&Fault>) -> String {
    let shift = if let Some(Fault::WrongContentRange(shift)) = fault {
        *shift
    } else {
        0
    };
    let size = if let Some(Fault::WrongTotal(size)) = fault {
        *size
    } else {
        size
    };
    let first = span.start.saturating_add_signed(shift);
    let last = (span.end - 1).saturating_add_signed(shift);
    format!("bytes {first}-{last}/{size}")
}

fn pieces(object: &Object, span: &Range<u64>, fault: Option<&Fault>) -> Vec<Piece> {
    let index = |at| usize::try_from(at).expect("an offset in an object in memory is an index");
    let (begin, end) = (index(span.start), index(span.end));
    let shared = |span| Piece::Shared(Arc::clone(&object.bytes), span);
    if let Some(Fault::Corrupt(at)) = fault
        && span.contains(at)
    {
        let at = index(*at);
        let flipped = vec![!object.bytes[at]];
        return vec![
            shared(begin..at),
            Piece::Owned(flipped),
            shared(at + 1..end),
        ];
    }
    vec![shared(begin..end)]
}
