//! Classifies error responses of OCI registries, of their token services and of the stores that
//! they redirect to. Pure; called by the `status_error.rs` of all stores.

use crate::classification::{Classification, RequestContext, is_refused_link, refused_link};
use crate::error::ErrorKind;
use crate::response_capture::ResponseCapture;

const LOGIN: &str = "log in: docker login, podman login or oras login with the registry's name; or pass the option token";

/// Returns `None` for responses that mean the same from every store.
pub(crate) fn refusal(
    status: u16,
    captured: &ResponseCapture,
    asked: &RequestContext,
) -> Option<Classification> {
    let code = captured.code.as_deref().unwrap_or_default();
    let host = captured.host.as_deref().unwrap_or("the registry");
    let not_found = |message: &str| Classification::new(ErrorKind::NotFound, message);
    let denied = |message: String| Classification::new(ErrorKind::PermissionDenied, message);
    let renew = || {
        format!(
            "log in again, with an account that may read the repository; the credentials come from: {}",
            asked.credentials
        )
    };
    Some(match (code, status) {
        ("MANIFEST_UNKNOWN", _) => not_found("the repository has no such tag or digest")
            .hint("check it; a file of the artifact follows it, after a slash"),
        ("NAME_UNKNOWN", _) => not_found("the registry has no such repository")
            .hint("check its name; a file of the artifact follows the tag: oci://registry/repository:tag/file"),
        ("BLOB_UNKNOWN", _) => {
            not_found("the registry lacks a layer that the manifest names").hint("push the artifact again")
        }
        _ if is_refused_link(status, code) => {
            refused_link(format!("{host} rejected the registry's signed URL for the layer"))
        }
        (_, 401) if asked.anonymous => denied(format!(
            "{host} requires credentials, or has no such repository, and none were found"
        ))
        .hint(LOGIN),
        (_, 401) => denied(format!("{host} does not accept the credentials")).hint(renew()),
        (_, 403) if asked.anonymous => denied(format!("{host} denies access without credentials")).hint(LOGIN),
        (_, 403) => denied(format!("{host} denies access with these credentials")).hint(renew()),
        (_, 404 | 410) => not_found("the registry has no such repository, tag or layer")
            .hint("check the name, and that the server is an OCI registry"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        use ErrorKind::{NotFound, PermissionDenied};
        for (status, code, anonymous, kind, words) in [
            (404, "MANIFEST_UNKNOWN", true, NotFound, "check it"),
            (404, "NAME_UNKNOWN", true, NotFound, "check its name"),
            (404, "BLOB_UNKNOWN", true, NotFound, "push"),
            (404, "", true, NotFound, "is an OCI registry"),
            (401, "UNAUTHORIZED", true, PermissionDenied, "docker login"),
            (401, "UNAUTHORIZED", false, PermissionDenied, "file X"),
            (403, "DENIED", true, PermissionDenied, "docker login"),
            (403, "DENIED", false, PermissionDenied, "file X"),
            (403, "AccessDenied", false, PermissionDenied, "clock"),
        ] {
            let captured = ResponseCapture {
                code: Some(code.to_owned()),
                ..ResponseCapture::default()
            };
            let asked = RequestContext {
                anonymous,
                ..RequestContext::sample()
            };
            let found = refusal(status, &captured, &asked).expect("a classification");
            assert_eq!(found.kind, kind, "{status} {code}");
            assert_eq!(found.transient.is_some(), code == "AccessDenied", "{code}");
            let hint = found.hint.expect("a hint");
            assert!(hint.contains(words), "{status} {code}: {hint}");
        }
    }
}
