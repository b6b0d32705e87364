//! Names of repositories and buckets on a model hub: `org/name@revision`, `buckets/org/name`. Pure;
//! called by `location.rs` and by the hub's client.
//!
//! Both names end up in URLs and in paths of the local cache, so neither may hold anything that
//! leads elsewhere.

use std::fmt;

use percent_encoding::percent_decode_str;

use crate::error::{Error, ErrorKind, Result};

/// Revision that is read when none is given.
const REVISION: &str = "main";

/// Longest name of a repository that the hub allows, bytes.
const NAME_BYTES_MAX: usize = 96;

/// First components of hub URLs that name neither models nor buckets.
const OTHER_KINDS: [&str; 3] = ["datasets", "spaces", "kernels"];

/// Singular forms of first components, which `huggingface_hub` rejects, with the plural forms.
const SINGULAR: [(&str, &str); 5] = [
    ("model", "models"),
    ("bucket", "buckets"),
    ("dataset", "datasets"),
    ("space", "spaces"),
    ("kernel", "kernels"),
];

/// First component of the URL of a bucket.
const BUCKETS: &str = "buckets/";

/// A repository at a revision, or a bucket, which has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubId {
    /// `org/name`, or `buckets/org/name`.
    pub repository: String,
    /// A branch, a tag or a commit; may hold slashes.
    pub revision: String,
}

impl HubId {
    /// Parses the authority that `split` returned.
    pub fn from_authority(authority: &str) -> Self {
        let (repository, revision) = authority.split_once('@').unwrap_or((authority, REVISION));
        Self {
            repository: repository.to_owned(),
            revision: decoded(revision),
        }
    }

    /// Returns whether this is a bucket: files without commits, which may be replaced.
    pub fn is_bucket(&self) -> bool {
        self.repository.starts_with(BUCKETS)
    }
}

/// Equal exactly when displayed alike.
impl fmt::Display for HubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.repository, self.revision)
    }
}

/// Splits the text after `hf://` into `org/name`, `org/name@revision` or `buckets/org/name`, as
/// written, and the path of a file or directory in it.
///
/// The grammar is that of `huggingface_hub`: in a revision `%2F` stands for a slash, except in
/// `refs/pr/1` and `refs/convert/x`.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] for text that cannot be a repository or a revision,
/// [`ErrorKind::Unsupported`] for repositories of other kinds. Neither shows the text: it may
/// contain a token.
pub(super) fn split(rest: &str) -> Result<(String, String)> {
    if let Some(rest) = rest.strip_prefix(BUCKETS) {
        return split_bucket(rest);
    }
    let rest = rest.strip_prefix("models/").unwrap_or(rest);
    let (org, rest) = rest.split_once('/').unwrap_or((rest, ""));
    if OTHER_KINDS.contains(&org) {
        let message = format!("hf://{org}/ names neither a model nor a bucket");
        return Err(Error::new(ErrorKind::Unsupported, message)
            .with_hint("models and buckets can be read: hf://org/name, hf://buckets/org/name"));
    }
    if let Some((_, plural)) = SINGULAR.iter().find(|(singular, _)| *singular == org) {
        return Err(invalid("the first word of the URL must be plural")
            .with_hint(format!("write hf://{plural}/…")));
    }
    let end = rest.find(['@', '/']).unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    if !is_name(org) || !is_name(name) {
        return Err(invalid("the URL does not name a repository of a model hub"));
    }
    let Some(rest) = rest.strip_prefix('@') else {
        let path = rest.strip_prefix('/').unwrap_or(rest);
        return Ok((format!("{org}/{name}"), path.to_owned()));
    };
    let (revision, path) = split_revision(rest);
    if !is_revision(&decoded(revision)) {
        return Err(invalid(
            "the text after @ in the URL is not a valid branch, tag or commit",
        ));
    }
    Ok((format!("{org}/{name}@{revision}"), path.to_owned()))
}

/// Splits the text after `hf://buckets/`.
fn split_bucket(rest: &str) -> Result<(String, String)> {
    let (org, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
    if name.contains('@') && name.split('@').all(is_name) {
        return Err(invalid("buckets have no revisions")
            .with_hint("leave out the text after @: hf://buckets/org/name/path"));
    }
    if !is_name(org) || !is_name(name) {
        return Err(invalid("the URL does not name a bucket of a model hub")
            .with_hint("write hf://buckets/org/name or hf://buckets/org/name/path"));
    }
    Ok((format!("{BUCKETS}{org}/{name}"), path.to_owned()))
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidRequest, message).with_hint(
        "write hf://org/name, hf://org/name@revision or hf://org/name/file.safetensors; pass a token in the option token or in HF_TOKEN",
    )
}

/// Splits at the first slash, except for the hub's own references, which contain two.
fn split_revision(rest: &str) -> (&str, &str) {
    let slashes = if rest.starts_with("refs/pr/") || rest.starts_with("refs/convert/") {
        2
    } else {
        0
    };
    match rest.match_indices('/').nth(slashes) {
        Some((at, _)) => (&rest[..at], &rest[at + 1..]),
        None => (rest, ""),
    }
}

fn decoded(revision: &str) -> String {
    percent_decode_str(revision)
        .decode_utf8_lossy()
        .into_owned()
}

/// Returns whether `name` is valid by the rules of `huggingface_hub`: letters, digits, `-`, `_`
/// and `.`; no `-` or `.` at either end; no `--` and no `..`.
fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let at_the_end = ['-', '.'];
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with(at_the_end)
        && !name.ends_with(at_the_end)
        && !name.contains("--")
        && !name.contains("..")
}

/// Returns whether `revision` is a valid git revision, as far as a path is concerned.
fn is_revision(revision: &str) -> bool {
    let allowed = |c: char| !c.is_control() && !" ~^:?*[\\\u{fffd}".contains(c);
    revision.chars().all(allowed)
        && !revision.contains("..")
        && revision
            .split('/')
            .all(|component| !component.is_empty() && !component.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_parses_repository_revision_and_path() {
        for (rest, repository, revision, path) in [
            ("org/name", "org/name", "main", ""),
            ("org/name/", "org/name", "main", ""),
            ("models/org/name", "org/name", "main", ""),
            ("o/Na-me_1.5", "o/Na-me_1.5", "main", ""),
            ("org/name@v1.0", "org/name", "v1.0", ""),
            ("org/name@v1/a/b c", "org/name", "v1", "a/b c"),
            ("org/name@refs/pr/7/a", "org/name", "refs/pr/7", "a"),
            ("org/name@refs/pr/7", "org/name", "refs/pr/7", ""),
            ("org/name@a%2Fb/c", "org/name", "a/b", "c"),
            (
                "org/name/sub/a@b.safetensors",
                "org/name",
                "main",
                "sub/a@b.safetensors",
            ),
            ("models/org/name@v1/a", "org/name", "v1", "a"),
            ("models/org/name@refs/pr/7/a", "org/name", "refs/pr/7", "a"),
            ("buckets/org/name", "buckets/org/name", "main", ""),
            (
                "buckets/org/name/a/b@c",
                "buckets/org/name",
                "main",
                "a/b@c",
            ),
        ] {
            let (authority, found) = split(rest).expect(rest);
            let id = HubId::from_authority(&authority);
            assert_eq!(id.is_bucket(), rest.starts_with("buckets"), "{rest}");
            assert_eq!(
                (&*id.repository, &*id.revision, &*found),
                (repository, revision, path),
                "{rest}"
            );
        }
    }

    #[test]
    fn split_rejects_invalid_repositories_and_revisions() {
        let long = format!("org/{}", "x".repeat(NAME_BYTES_MAX + 1));
        for rest in [
            "",
            "org",
            "gpt2@main",
            "org/",
            "/name",
            "org//a",
            "../name",
            "org/..",
            "o--rg/name",
            "org/.name",
            "org/na me",
            "org/name@",
            "org/name@/a",
            "org/name@..",
            "org/name@a%2F..%2Fb",
            "org/name@%2Fetc",
            "org/name@a%00",
            "org/name@%ff",
            "user:hunter2@org/name",
            "buckets",
            "buckets/",
            "buckets/org",
            "buckets/org/na me",
            "buckets/../name",
            "buckets/org/name@main/a",
            "buckets/user:hunter2@org/name",
            "bucket/org/name",
            "model/org/name",
            &long,
        ] {
            let error = split(rest).expect_err(rest);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{rest}");
            assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        }
        for rest in ["datasets/org/name", "spaces/org/name", "kernels/org/name"] {
            let error = split(rest).expect_err("no model");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }
}
