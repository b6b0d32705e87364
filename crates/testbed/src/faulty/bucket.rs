//! Buckets of the hub in this process: listings in pages of two entries, and redirects to the
//! files. Called by `hub.rs`.
//!
//! Implements the paths and headers of huggingface.co as `huggingface_hub` 2.4 reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::hub_files::{encoded, identity, refusal};
use super::reply::Reply;
use super::wire::Head;

/// Entries in one page of a listing.
const PAGE: usize = 2;

/// Files of a bucket by path.
pub(super) type Files = BTreeMap<String, Arc<Vec<u8>>>;

/// Lists the files and directories directly below a prefix: the page that the query names.
pub(super) fn tree(files: &Files, bucket: &str, prefix: &str, head: &Head) -> Reply {
    let below = match prefix {
        "" => String::new(),
        prefix => format!("{prefix}/"),
    };
    let mut folders = BTreeSet::new();
    let mut items: Vec<Value> = Vec::new();
    for (path, bytes) in files {
        let Some(rest) = path.strip_prefix(&below) else {
            continue;
        };
        match rest.split_once('/') {
            Some((folder, _)) if folders.insert(folder) => {
                items.push(json!({"type": "directory", "path": format!("{below}{folder}")}));
            }
            Some(_) => {}
            None => items.push(json!({
                "type": "file",
                "path": path,
                "size": bytes.len(),
                "xetHash": identity(bytes, 64),
                "mtime": "2026-01-01T00:00:00.000Z",
                "uploadedAt": "2026-01-01T00:00:00.000Z",
            })),
        }
    }
    let start = head
        .query("cursor")
        .and_then(|at| at.parse().ok())
        .unwrap_or(0)
        .min(items.len());
    let end = items.len().min(start + PAGE);
    let page = Value::from(&items[start..end]).to_string();
    let mut reply = Reply::text(200, "application/json", page);
    if end < items.len() {
        let host = head.header("host").unwrap_or_default();
        let prefix = match encoded(prefix).replace('/', "%2F") {
            empty if empty.is_empty() => empty,
            prefix => format!("/{prefix}"),
        };
        let next = format!("http://{host}/api/{bucket}/tree{prefix}?cursor={end}");
        reply.set("Link", format!("<{next}>; rel=\"next\""));
    }
    reply
}

/// Redirects to a file on the server of large files, whatever its size. The hub does not know the
/// entity tags of that server.
pub(super) fn resolve(files: &Files, place: &str, path: &str, head: &Head) -> Reply {
    let Some(bytes) = files.get(path) else {
        return refusal(404, "EntryNotFound", "Entry not found");
    };
    if head.header("if-match").is_some() {
        return refusal(412, "", "Precondition failed");
    }
    let mut reply = Reply::new(302);
    let signature = "X-Amz-Signature=hunter2&Expires=1";
    reply.set("Location", format!("{place}/{}?{signature}", encoded(path)));
    reply.set("X-Linked-Size", bytes.len().to_string());
    reply.set("X-Xet-Hash", identity(bytes, 64));
    reply
}
