//! Classifies error responses of a hub. A hub has its own codes, and sends 401 for missing
//! repositories to anonymous users. Pure; called by the `status_error.rs` of all stores.

use crate::classification::{Classification, RequestContext, is_refused_link, refused_link};
use crate::error::ErrorKind;
use crate::response_capture::ResponseCapture;

/// Returns `None` for responses that mean the same from every store.
pub(crate) fn refusal(
    status: u16,
    captured: &ResponseCapture,
    asked: &RequestContext,
) -> Option<Classification> {
    let code = captured.code.as_deref().unwrap_or_default();
    let disabled = captured.message.as_deref() == Some("Access to this resource is disabled.");
    let not_found = |message: &str| Classification::new(ErrorKind::NotFound, message);
    let denied = |message: &str| Classification::new(ErrorKind::PermissionDenied, message);
    Some(match (code, status) {
        ("RevisionNotFound", _) => not_found("the repository has no such revision")
            .hint("pass one of its branches, tags or commits: hf://org/name@main"),
        ("EntryNotFound", _) => not_found("the repository has no such file at this revision")
            .hint("check the path; tload ls hf://org/name shows the tensors of the repository's own checkpoint"),
        ("GatedRepo", _) => gated(asked),
        ("RepoNotFound", _) => no_repository(asked),
        ("DisabledRepo", _) | (_, 403) if code == "DisabledRepo" || disabled => {
            denied("the hub has disabled the repository").hint("ask its owner, or use another repository")
        }
        _ if is_refused_link(status, code) => {
            refused_link("the link that the hub gave for the file was refused")
        }
        (_, 401) if asked.anonymous => no_repository(asked),
        (_, 401) => denied("the hub does not accept the token")
            .hint(format!("renew the token, which comes from: {}", asked.credentials)),
        (_, 403) if asked.anonymous => denied("the hub denies access without a token")
            .hint("pass a token: option token, HF_TOKEN, or hf auth login"),
        (_, 403) => denied("the token's owner has no access to this repository").hint(format!(
            "grant the token read access to this repository; it comes from: {}",
            asked.credentials
        )),
        (_, 404 | 410) => not_found("the hub has no such repository, revision or file")
            .hint("check the name, and that the endpoint is a hub"),
        _ => return None,
    })
}

fn gated(asked: &RequestContext) -> Classification {
    let classification = Classification::new(
        ErrorKind::PermissionDenied,
        "the repository is gated: its conditions must be accepted first",
    );
    if asked.anonymous {
        return classification.hint(
            "accept them on the repository's page, then pass a token of that account: option token, HF_TOKEN, or hf auth login",
        );
    }
    classification.hint(format!(
        "accept them on the repository's page, with the account of the token, which comes from: {}; a fine-grained token also needs \
         permission to read gated repositories",
        asked.credentials
    ))
}

/// Classifies a missing repository. The hub does not tell missing from private repositories, so as
/// not to reveal private ones.
fn no_repository(asked: &RequestContext) -> Classification {
    if asked.anonymous {
        return Classification::new(
            ErrorKind::NotFound,
            "the hub has no such repository, or it is private and no token is given",
        )
        .hint("check the name; for a private repository pass a token: option token, HF_TOKEN, or hf auth login");
    }
    Classification::new(
        ErrorKind::NotFound,
        "the hub has no such repository, or the token has no access to it",
    )
    .hint(format!(
        "check the name, and that the token may read it; it comes from: {}",
        asked.credentials
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::retry::Transient;

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
            let captured = ResponseCapture {
                code: (!code.is_empty()).then(|| code.to_owned()),
                ..ResponseCapture::default()
            };
            let classification = refusal(status, &captured, &asked(anonymous)).expect("an answer");
            assert_eq!(classification.kind, kind, "{status} {code}");
            assert_eq!(classification.transient, None, "{status} {code}");
            let hint = classification.hint.expect("a hint");
            assert!(hint.contains(words), "{status} {code}: {hint}");
        }
        assert!(refusal(503, &ResponseCapture::default(), &asked(false)).is_none());
    }

    #[test]
    fn expired_link_is_transient() {
        let captured = ResponseCapture {
            code: Some("AccessDenied".to_owned()),
            ..ResponseCapture::default()
        };
        let classification = refusal(403, &captured, &asked(false)).expect("an answer");
        assert_eq!(classification.transient, Some(Transient::Broken));
    }

    fn asked(anonymous: bool) -> RequestContext<'static> {
        RequestContext {
            credentials: "HF_TOKEN",
            anonymous,
            ..RequestContext::sample()
        }
    }
}
