//! References to artifacts in OCI registries: `registry:port/repository:tag`. Pure; called by
//! `location.rs` and by the registry's client.
//!
//! All parts end up in URLs of the registry, so none may hold anything that leads elsewhere. The
//! grammar is that of the OCI distribution specification 1.1, "Pulling manifests".

use crate::error::{Error, ErrorKind, Result};

/// Tag that is read when neither a tag nor a digest is given.
const TAG: &str = "latest";

/// Longest tag that the specification allows, bytes.
const TAG_BYTES_MAX: usize = 128;

/// Longest name of a repository, bytes: the limit of most registries.
const NAME_BYTES_MAX: usize = 255;

/// Digest algorithms of the specification, with the number of hexadecimal digits.
const ALGORITHMS: [(&str, usize); 2] = [("sha256", 64), ("sha512", 128)];

/// A tag or a digest of an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciReference {
    /// Host and port of the registry, as written.
    pub host: String,
    /// Name of the repository.
    pub repository: String,
    /// Tag, or digest with its algorithm.
    pub reference: String,
}

impl OciReference {
    /// Parses the authority that `split` returned.
    pub fn from_authority(authority: &str) -> Self {
        let (host, rest) = authority.split_once('/').unwrap_or((authority, ""));
        let (name, digest) = match rest.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (rest, None),
        };
        let (repository, tag) = name.split_once(':').unwrap_or((name, TAG));
        Self {
            host: host.to_owned(),
            repository: repository.to_owned(),
            reference: digest.unwrap_or(tag).to_owned(),
        }
    }
}

/// Returns host and repository of an authority that `split` returned.
pub fn place(authority: &str) -> &str {
    let host_len = authority.find('/').unwrap_or(authority.len());
    let reference = authority[host_len..].find([':', '@']);
    &authority[..reference.map_or(authority.len(), |at| host_len + at)]
}

/// Splits the text after `oci://` into registry, repository and reference, and the path of a file
/// or directory in the artifact. The path follows the tag or digest, because names of repositories
/// have slashes too; a missing tag is added.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] for text that cannot be a reference. It does not show the text,
/// which may contain a password.
pub(super) fn split(rest: &str) -> Result<(String, String)> {
    let (host, rest) = rest.split_once('/').unwrap_or((rest, ""));
    if !is_host(host) {
        return Err(invalid("the URL does not name an OCI registry"));
    }
    let end = rest.find([':', '@']).unwrap_or(rest.len());
    let (repository, mut rest) = rest.split_at(end);
    let repository = if rest.is_empty() {
        repository.strip_suffix('/').unwrap_or(repository)
    } else {
        repository
    };
    if !is_repository(repository) {
        return Err(invalid(
            "the URL does not name a repository of an OCI registry",
        ));
    }
    let mut authority = format!("{host}/{repository}");
    if let Some(after) = rest.strip_prefix(':') {
        let end = after.find(['/', '@']).unwrap_or(after.len());
        let (tag, after) = after.split_at(end);
        if !is_tag(tag) {
            return Err(invalid("the text after : in the URL is not a valid tag"));
        }
        authority = format!("{authority}:{tag}");
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('@') {
        let end = after.find('/').unwrap_or(after.len());
        let (digest, after) = after.split_at(end);
        if !is_digest(digest) {
            return Err(invalid("the text after @ in the URL is not a digest"));
        }
        authority = format!("{authority}@{digest}");
        rest = after;
    }
    if !authority[host.len()..].contains([':', '@']) {
        authority = format!("{authority}:{TAG}");
    }
    let path = rest.strip_prefix('/').unwrap_or(rest);
    Ok((authority, path.to_owned()))
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidRequest, message).with_hint(
        "write oci://registry/repository:tag or oci://registry/repository@sha256:…, in lower case; a file follows the tag \
         or digest, after a slash; credentials come from docker login, podman login or oras login",
    )
}

fn is_host(host: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte);
    !host.is_empty() && host.bytes().all(allowed)
}

/// Returns whether each component has lower-case letters and digits, with separators only between
/// them.
fn is_repository(name: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_component = |component: &str| {
        let bytes = component.as_bytes();
        let ends = [bytes.first(), bytes.last()];
        ends.iter()
            .all(|end| end.is_some_and(|&byte| is_alphanumeric(byte)))
            && bytes
                .iter()
                .all(|&byte| is_alphanumeric(byte) || b"._-".contains(&byte))
            && !component.contains("..")
    };
    name.len() <= NAME_BYTES_MAX && name.split('/').all(is_component)
}

fn is_tag(tag: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=TAG_BYTES_MAX).contains(&tag.len())
        && tag.bytes().all(allowed)
        && !tag.starts_with(['.', '-'])
}

/// Returns whether a text is a digest of a known algorithm.
pub fn is_digest(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.split_once(':').is_some_and(|(algorithm, digits)| {
        ALGORITHMS.contains(&(algorithm, digits.len())) && digits.bytes().all(is_hex)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn split_parses_registry_repository_reference_and_path() {
        let digest = format!("sha256:{HEX}");
        for (rest, host, repository, reference, path) in [
            ("h/r", "h", "r", TAG, ""),
            ("h:5000/a/b-c/d__e.f", "h:5000", "a/b-c/d__e.f", TAG, ""),
            ("h/a/b/", "h", "a/b", TAG, ""),
            ("[::1]:5000/a", "[::1]:5000", "a", TAG, ""),
            ("h/a:v1.0_X-y", "h", "a", "v1.0_X-y", ""),
            (
                "h/a/b:v1/x/y z.safetensors",
                "h",
                "a/b",
                "v1",
                "x/y z.safetensors",
            ),
            ("h/a:v1/", "h", "a", "v1", ""),
            (&*format!("h/a@{digest}"), "h", "a", &*digest, ""),
            (&*format!("h/a@{digest}/x"), "h", "a", &*digest, "x"),
            (&*format!("h/a:v1@{digest}/x"), "h", "a", &*digest, "x"),
        ] {
            let (authority, found) = split(rest).expect(rest);
            let of = OciReference::from_authority(&authority);
            assert_eq!(
                (&*of.host, &*of.repository, &*of.reference, &*found),
                (host, repository, reference, path),
                "{rest}"
            );
            assert_eq!(place(&authority), format!("{host}/{repository}"));
        }
    }

    #[test]
    fn split_rejects_invalid_references() {
        for rest in [
            "",
            "h",
            "h/",
            "/r",
            "h//r",
            "h/../r",
            "h/a/../b",
            "h/A",
            "h/a-",
            "h/a b",
            "h/a?b=c",
            "h/a:",
            "h/a:.x",
            "h/a:v 1",
            "h/a@sha256:12",
            "h/a@md5:d41d8cd98f00b204e9800998ecf8427e",
            &format!("h/a@sha256:{}", HEX.to_uppercase()),
            &format!("h/a:{}", "x".repeat(TAG_BYTES_MAX + 1)),
            "user:hunter2@h/a",
            "hunter2@h/a",
        ] {
            let error = split(rest).expect_err(rest);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{rest}");
            assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        }
    }
}
