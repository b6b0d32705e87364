//! Files of the hub in this process: commits, their description, and responses with files.
//!
//! Knows nothing of access, connections and faults. Called by `hub.rs`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::json;

use super::hub::Access;
use super::reply::{Piece, Reply};
use super::wire::{Head, Wanted};

/// Path to which requests for small files are redirected.
pub(super) const SMALL: &str = "resolve-cache/";

/// Returns whether a file is a large one: those of weights, and those without an extension.
pub(super) fn is_large(path: &str) -> bool {
    path.ends_with(".safetensors") || !path.contains('.')
}

#[derive(Default)]
pub(super) struct Repository {
    pub(super) access: Access,
    pub(super) revisions: BTreeMap<String, String>,
    pub(super) commits: BTreeMap<String, BTreeMap<String, Arc<Vec<u8>>>>,
    /// Identities of large files, by `COMMIT/file`: computing one takes time.
    pub(super) identities: BTreeMap<String, String>,
    /// Names of contents in the content store, by `COMMIT/file`.
    pub(super) hashes: BTreeMap<String, String>,
}

pub(super) fn refusal(status: u16, code: &str, message: &str) -> Reply {
    let body = json!({"error": message}).to_string();
    let mut reply = Reply::text(status, "application/json", body);
    if !code.is_empty() {
        reply.set("X-Error-Code", code);
    }
    reply.set("X-Error-Message", message);
    reply
}

/// Deviations of a description from that of the real hub.
#[derive(Clone, Default)]
pub(super) struct Telling {
    /// True if it has only the names of files.
    pub(super) is_terse: bool,
    /// True if it has no time.
    pub(super) is_undated: bool,
    /// Text in place of the name of the contents of every file.
    pub(super) contents_name: Option<String>,
}

/// Returns the contents of the commit of a revision.
pub(super) fn tell(
    repository: &Repository,
    revision: &str,
    head: &Head,
    telling: &Telling,
) -> Reply {
    let commit = repository
        .revisions
        .get(revision)
        .map_or(revision, String::as_str);
    let Some(files) = repository.commits.get(commit) else {
        return refusal(404, "RevisionNotFound", "Invalid rev id");
    };
    let with_blobs = head.query("blobs").is_some() && !telling.is_terse;
    let sibling = |(name, bytes): (&String, &Arc<Vec<u8>>)| {
        if !with_blobs {
            return json!({"rfilename": name});
        }
        let stated = || telling.contents_name.clone();
        let blob = stated().unwrap_or_else(|| identity(bytes, 40));
        let mut sibling = json!({"rfilename": name, "size": bytes.len(), "blobId": blob});
        if is_large(name) {
            let digest = stated().unwrap_or_else(|| sha256(bytes));
            sibling["lfs"] = json!({"sha256": digest, "size": bytes.len(), "pointerSize": 134});
        }
        sibling
    };
    let siblings: Vec<_> = files.iter().map(sibling).collect();
    // Each commit is one second later than the one before it.
    let second = u64::from_str_radix(commit, 16).unwrap_or_default() % 60;
    let mut told = json!({"sha": commit, "siblings": siblings});
    if !telling.is_undated {
        told["lastModified"] = format!("2026-01-01T00:00:{second:02}.000Z").into();
    }
    Reply::text(200, "application/json", told.to_string())
}

/// Returns a name that differs for different bytes, like a digest; good enough for a server without
/// attackers.
pub(super) fn identity(bytes: &[u8], digits: usize) -> String {
    let sum = bytes.iter().fold(bytes.len(), |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(usize::from(*byte))
    });
    format!("{sum:0digits$x}")
}

/// Returns the name of the bytes in Git LFS.
pub(super) fn sha256(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    let mut text = String::new();
    for byte in digest.as_ref() {
        fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"))
            .expect("a string takes all that is written");
    }
    text
}

/// Splits `org/name/COMMIT/file` into the repository and the rest.
pub(super) fn cut(path: &str) -> (String, String) {
    let at = path
        .match_indices('/')
        .nth(1)
        .map_or(path.len(), |(at, _)| at);
    let (repository, rest) = path.split_at(at);
    (
        repository.to_owned(),
        rest.trim_start_matches('/').to_owned(),
    )
}

/// Returns the commit and the bytes of `REVISION/file`.
pub(super) fn file<'a>(
    repository: &'a Repository,
    rest: &str,
) -> Option<(&'a str, &'a Arc<Vec<u8>>)> {
    let (revision, name) = rest.split_once('/')?;
    let commit = repository
        .revisions
        .get(revision)
        .map_or(revision, String::as_str);
    let (commit, files) = repository.commits.get_key_value(commit)?;
    Some((commit.as_str(), files.get(name)?))
}

pub(super) fn resolve(repository: &Repository, name: &str, rest: &str, elsewhere: &str) -> Reply {
    let Some((commit, bytes)) = file(repository, rest) else {
        return refusal(404, "EntryNotFound", "Entry not found");
    };
    let path = rest.split_once('/').map_or("", |(_, path)| path);
    let place = format!("{name}/{commit}/{}", encoded(path));
    let mut reply = if is_large(path) {
        let mut reply = Reply::new(302);
        let signature = "X-Amz-Signature=hunter2&Expires=1";
        reply.set("Location", format!("{elsewhere}/{place}?{signature}"));
        reply.set("X-Linked-Size", bytes.len().to_string());
        if let Some(identity) = repository.identities.get(&format!("{commit}/{path}")) {
            reply.set("X-Linked-ETag", format!("\"{identity}\""));
        }
        reply
    } else {
        let mut reply = Reply::new(307);
        reply.set("Location", format!("/{SMALL}{place}"));
        reply
    };
    reply.set("X-Repo-Commit", commit);
    reply
}

pub(super) fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let each = path.bytes().map(|byte| {
        if plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    each.collect()
}

pub(super) fn small(bytes: &Arc<Vec<u8>>, wanted: Wanted) -> Reply {
    let size = u64::try_from(bytes.len()).expect("a length in memory fits 64 bits");
    let Some(span) = wanted.within(size) else {
        return refusal(416, "", "Range not satisfiable");
    };
    let mut reply = Reply::new(if wanted == Wanted::All { 200 } else { 206 });
    reply.set("ETag", format!("\"{}\"", identity(bytes, 40)));
    if wanted != Wanted::All {
        let last = span.end - 1;
        reply.set(
            "Content-Range",
            format!("bytes {}-{last}/{size}", span.start),
        );
    }
    let index = |at| usize::try_from(at).expect("an offset in memory is an index");
    let span = index(span.start)..index(span.end);
    reply.body = vec![Piece::Shared(Arc::clone(bytes), span)];
    reply
}
