//! Rules for error responses of OCI registries, of their token services and of the stores that they
//! redirect to.

use crate::explain::rules::{LINK_CLOCK, Rules, rules};

const LOGIN: &str = "log in: docker login, podman login or oras login with the registry's name; or pass the option token";
const RENEW: &str = "log in again, with an account that may read the repository; the credentials come from: {credentials}";

/// Rules before those for all stores.
pub(super) const RULES: Rules = rules! { |f|
    f.has_code(&["MANIFEST_UNKNOWN"]) => NotFound: "the repository has no such tag or digest",
        "check it; a file of the artifact follows it, after a slash";
    f.has_code(&["NAME_UNKNOWN"]) => NotFound: "the registry has no such repository",
        "check its name; a file of the artifact follows the tag: oci://registry/repository:tag/file";
    f.has_code(&["BLOB_UNKNOWN"]) => NotFound:
        "the registry lacks a layer that the manifest names", "push the artifact again";
    f.refuses_link() => PermissionDenied(Broken):
        "{host} rejected the registry's signed URL for the layer", LINK_CLOCK;
    f.status() == 401 && f.asked.anonymous => PermissionDenied:
        "{host} requires credentials, or has no such repository, and none were found", LOGIN;
    f.status() == 401 => PermissionDenied: "{host} does not accept the credentials", RENEW;
    f.status() == 403 && f.asked.anonymous => PermissionDenied:
        "{host} denies access without credentials", LOGIN;
    f.status() == 403 => PermissionDenied: "{host} denies access with these credentials", RENEW;
    matches!(f.status(), 404 | 410) => NotFound:
        "the registry has no such repository, tag or layer",
        "check the name, and that the server is an OCI registry";
};

#[cfg(test)]
mod tests {
    use crate::error::ErrorKind;
    use crate::explain::context::RequestContext;
    use crate::explain::failure::Failure;
    use crate::http::response_capture::ResponseCapture;
    use crate::protocols::oci::PROTOCOL;

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
                status: Some(status),
                code: Some(code.to_owned()),
                ..ResponseCapture::default()
            };
            let asked = RequestContext {
                anonymous,
                hints: &PROTOCOL.hints,
                ..RequestContext::sample()
            };
            let found = Failure::new(asked, &captured, None).of_status();
            assert_eq!(found.kind, kind, "{status} {code}");
            assert_eq!(found.transient.is_some(), code == "AccessDenied", "{code}");
            let hint = found.hint.expect("a hint");
            assert!(hint.contains(words), "{status} {code}: {hint}");
        }
    }
}
