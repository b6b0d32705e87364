//! Rules for error responses of a hub. A hub has its own codes, and sends 401 for missing
//! repositories to anonymous users, since it does not tell missing from private ones.

use crate::explain::rules::{LINK_CLOCK, Rules, rules};

const ACCEPT: &str = "accept them on the repository's page, with the account of the token, which comes from: {credentials}; a fine-grained \
    token also needs permission to read gated repositories";

/// Rules before those for all stores.
pub(super) const RULES: Rules = rules! { |f|
    f.has_code(&["RevisionNotFound"]) => NotFound: "the repository has no such revision",
        "pass one of its branches, tags or commits: hf://org/name@main";
    f.has_code(&["EntryNotFound"]) => NotFound: "the repository has no such file at this revision",
        "check the path; tload ls hf://org/name shows the tensors of the repository's own checkpoint";
    f.has_code(&["GatedRepo"]) && f.asked.anonymous => PermissionDenied: GATED,
        "accept them on the repository's page, then pass a token of that account: option token, HF_TOKEN, or hf auth login";
    f.has_code(&["GatedRepo"]) => PermissionDenied: GATED, ACCEPT;
    f.has_code(&["DisabledRepo"]) || (f.status() == 403 && f.captured.message.as_deref() == Some(DISABLED)) => PermissionDenied:
        "the hub has disabled the repository", "ask its owner, or use another repository";
    f.refuses_link() => PermissionDenied(Broken):
        "the link that the hub gave for the file was refused", LINK_CLOCK;
    (f.status() == 401 || f.has_code(&["RepoNotFound"])) && f.asked.anonymous => NotFound:
        "the hub has no such repository, or it is private and no token is given",
        "check the name; for a private repository pass a token: option token, HF_TOKEN, or hf auth login";
    f.has_code(&["RepoNotFound"]) => NotFound:
        "the hub has no such repository, or the token has no access to it",
        "check the name, and that the token may read it; it comes from: {credentials}";
    f.status() == 401 => PermissionDenied: "the hub does not accept the token",
        "renew the token, which comes from: {credentials}";
    f.status() == 403 && f.asked.anonymous => PermissionDenied:
        "the hub denies access without a token",
        "pass a token: option token, HF_TOKEN, or hf auth login";
    f.status() == 403 => PermissionDenied: "the token's owner has no access to this repository",
        "grant the token read access to this repository; it comes from: {credentials}";
    matches!(f.status(), 404 | 410) => NotFound:
        "the hub has no such repository, revision or file",
        "check the name, and that the endpoint is a hub";
};

const GATED: &str = "the repository is gated: its conditions must be accepted first";

/// Text of a response about a repository that the hub has disabled.
const DISABLED: &str = "Access to this resource is disabled.";

#[cfg(test)]
mod tests {
    use crate::error::ErrorKind;
    use crate::errors::classification::Classification;
    use crate::explain::context::RequestContext;
    use crate::explain::failure::Failure;
    use crate::http::response_capture::ResponseCapture;
    use crate::protocols::hub::PROTOCOL;
    use crate::sync::retry::Transient;

    fn classification(status: u16, code: &str, anonymous: bool) -> Classification {
        let captured = ResponseCapture {
            status: Some(status),
            code: (!code.is_empty()).then(|| code.to_owned()),
            ..ResponseCapture::default()
        };
        let asked = RequestContext {
            credentials: "HF_TOKEN",
            anonymous,
            hints: &PROTOCOL.hints,
            ..RequestContext::sample()
        };
        Failure::new(asked, &captured, None).of_status()
    }

    #[test]
    fn table() {
        use ErrorKind::{NotFound, PermissionDenied};
        for (status, code, anonymous, kind, words) in [
            (401, "RepoNotFound", true, NotFound, "pass a token"),
            (404, "RepoNotFound", false, NotFound, "HF_TOKEN"),
            (401, "", true, NotFound, "pass a token"),
            (401, "", false, PermissionDenied, "renew the token"),
            (401, "GatedRepo", true, PermissionDenied, "accept"),
            (403, "GatedRepo", false, PermissionDenied, "fine-grained"),
            (404, "RevisionNotFound", false, NotFound, "branches"),
            (404, "EntryNotFound", false, NotFound, "path"),
            (403, "DisabledRepo", false, PermissionDenied, "owner"),
            (403, "", false, PermissionDenied, "read access"),
            (403, "", true, PermissionDenied, "pass a token"),
            (404, "", false, NotFound, "endpoint"),
        ] {
            let classification = classification(status, code, anonymous);
            assert_eq!(classification.kind, kind, "{status} {code}");
            assert_eq!(classification.transient, None, "{status} {code}");
            let hint = classification.hint.expect("a hint");
            assert!(hint.contains(words), "{status} {code}: {hint}");
        }
        let busy = classification(503, "", false);
        assert_eq!(busy.transient, Some(Transient::Busy));
    }

    #[test]
    fn expired_link_is_transient() {
        let classification = classification(403, "AccessDenied", false);
        assert_eq!(classification.transient, Some(Transient::Broken));
    }
}
