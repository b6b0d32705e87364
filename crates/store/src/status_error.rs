//! Translates status and code of an error response to an error, a hint and whether to retry. Pure;
//! called by `request_error.rs`.

use super::classification::{Cause, Classification, RequestContext, changed, no_listing};
use super::ranged_response::shrank;
use super::response_capture::ResponseCapture;
use crate::error::ErrorKind;
use crate::sync::retry::Transient;

/// Clock skew above which stores refuse signed requests, seconds (S3 and Azure: 15 minutes; Google:
/// 5).
const SKEW_MAX: i64 = 300;

/// Classifies a response whose status is not 2xx.
pub(crate) fn classification(
    status: u16,
    captured: &ResponseCapture,
    asked: &RequestContext,
) -> Classification {
    let code = captured.code.as_deref().unwrap_or_default();
    let classification = (asked.hints.refusal)(status, captured, asked)
        .or_else(|| by_code(code, asked))
        .unwrap_or_else(|| by_status(status, captured, asked));
    let words = captured.message.clone().map(Cause::Words);
    of_proxy(classification, status, captured).cause(words)
}

/// Adds to the hint that the response may be one of a proxy: without TLS, it can answer instead of
/// the store. The store's own responses have a code.
fn of_proxy(
    mut classification: Classification,
    status: u16,
    captured: &ResponseCapture,
) -> Classification {
    let is_plain = captured
        .endpoint
        .as_ref()
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    let may_be_its_own = is_plain && status != 407 && captured.code.is_none();
    if let Some(proxy) = captured.proxy.as_ref().filter(|_| may_be_its_own) {
        let hint = classification.hint.take().unwrap_or_default();
        let semicolon = if hint.is_empty() { "" } else { "; " };
        classification.hint = Some(format!(
            "{hint}{semicolon}the response may be one of the proxy {proxy}"
        ));
    }
    classification
}

/// Classifies by code, where it is more specific than the status or differs from it.
pub(crate) fn by_code(code: &str, asked: &RequestContext) -> Option<Classification> {
    let from = asked.credentials;
    let denied = |message: &str| Classification::new(ErrorKind::PermissionDenied, message);
    Some(match code {
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => {
            let expired = denied("the credentials have expired")
                .hint(format!("renew the credentials, which come from: {from}"));
            if asked.refreshed {
                expired.transient(Transient::Broken)
            } else {
                expired
            }
        }
        "RequestTimeTooSkewed" => denied("the clock of this machine is too far from the store's")
            .hint("set the clock of this machine"),
        "InvalidAccessKeyId" | "XAdminUserNotFound" => denied("the store does not know the access key").hint(format!(
            "pass a key of this store; the one in use comes from: {from}"
        )),
        "InvalidToken" => denied("the store does not accept the session token")
            .hint(format!("renew the credentials, which come from: {from}")),
        "SignatureDoesNotMatch" => denied("the store does not accept the signature").hint(format!(
            "check that the secret belongs to the access key (credentials come from: {from}), and that no proxy changes requests"
        )),
        "NoSuchBucket" | "ContainerNotFound" | "FilesystemNotFound" => Classification::new(
            ErrorKind::NotFound,
            if code == "NoSuchBucket" {
                "there is no such bucket"
            } else {
                "there is no such container"
            },
        )
        .hint("check its name, and that the endpoint is the right one"),
        "InvalidBucketName" => Classification::new(
            ErrorKind::InvalidRequest,
            "the bucket's name is invalid",
        ),
        "InvalidObjectState" | "BlobArchived" | "BlobBeingRehydrated" => Classification::new(
            ErrorKind::Unsupported,
            "the object is archived and cannot be read before it is restored",
        )
        .hint("restore it to a storage class that can be read"),
        "UserProjectMissing" => denied("the bucket requires the requester to pay")
            .hint("set the project to bill: header.x-goog-user-project=PROJECT"),
        "SlowDown" | "ServerBusy" | "RequestTimeout" | "RequestLimitExceeded" | "Throttling"
        | "ThrottlingException" => Classification::new(
            ErrorKind::Remote,
            format!("the store is busy or throttling requests ({code})"),
        )
        .hint("send fewer requests at a time, or try again later")
        .transient(Transient::Busy),
        _ => return None,
    })
}

fn by_status(status: u16, captured: &ResponseCapture, asked: &RequestContext) -> Classification {
    let code = captured.code.as_deref();
    let answer = match code {
        Some(code) => format!("status {status}, {code}"),
        None => format!("status {status}"),
    };
    match status {
        304 | 412 => changed(),
        401 => unauthenticated(asked),
        403 => denied(captured, asked),
        405 | 501 if asked.operation == "LIST" && !asked.hints.lists => no_listing(),
        404 | 410 => Classification::new(ErrorKind::NotFound, "there is no such object")
            .hint("check bucket, key and endpoint"),
        405 | 501 => Classification::new(
            ErrorKind::Unsupported,
            format!("the store does not support the request ({answer})"),
        )
        .hint("check that the endpoint is an object store"),
        407 => Classification::new(
            ErrorKind::PermissionDenied,
            match &captured.proxy {
                Some(proxy) => format!("the proxy {proxy} requires credentials"),
                None => "the proxy requires credentials".to_owned(),
            },
        )
        .hint("name them where the proxy is named (option proxy or HTTPS_PROXY): http://user:password@HOST:PORT"),
        408 | 425 | 429 | 503 => Classification::new(
            ErrorKind::Remote,
            format!("the store is busy or throttling requests ({answer})"),
        )
        .hint("send fewer requests at a time, or try again later")
        .transient(Transient::Busy),
        416 => shrank(),
        500..=u16::MAX => {
            Classification::new(ErrorKind::Remote, format!("the store failed ({answer})"))
                .hint("try again later; the store's operators can find the request by its id")
                .transient(Transient::Broken)
        }
        300..=399 => Classification::new(
            ErrorKind::Remote,
            format!("the store sent a redirect without a valid target ({answer})"),
        )
        .hint("check the endpoint"),
        _ => Classification::new(
            ErrorKind::InvalidRequest,
            format!("the store does not accept the request ({answer})"),
        )
        .hint("check bucket, key, endpoint and region"),
    }
}

fn unauthenticated(asked: &RequestContext) -> Classification {
    let denied = |message: &str| Classification::new(ErrorKind::PermissionDenied, message);
    if asked.anonymous {
        denied("the store requires credentials").hint("pass credentials instead of anonymous=true")
    } else {
        let refused = denied("the store does not accept the credentials").hint(format!(
            "renew the credentials, which come from: {}",
            asked.credentials
        ));
        if asked.refreshed {
            refused.transient(Transient::Broken)
        } else {
            refused
        }
    }
}

/// Classifies denied access from a machine whose clock is wrong.
pub(crate) fn skewed(captured: &ResponseCapture) -> Option<Classification> {
    let skew = captured.skew_seconds.filter(|skew| skew.abs() > SKEW_MAX)?;
    let side = if skew > 0 { "behind" } else { "ahead of" };
    let message = format!(
        "access is denied; the clock of this machine is {} s {side} the store's",
        skew.abs()
    );
    Some(
        Classification::new(ErrorKind::PermissionDenied, message)
            .hint("set the clock of this machine"),
    )
}

fn denied(captured: &ResponseCapture, asked: &RequestContext) -> Classification {
    if let Some(skewed) = skewed(captured) {
        return skewed;
    }
    let classification = Classification::new(ErrorKind::PermissionDenied, "access is denied");
    if asked.anonymous {
        return classification.hint("the data is not public: pass credentials, or check the names");
    }
    let Some([to_list, to_read]) = asked.hints.permissions else {
        return classification.hint("request access");
    };
    let right = if asked.operation == "LIST" {
        to_list
    } else {
        to_read
    };
    // S3 responds with 403 for missing objects if the caller may not list.
    classification.hint(format!(
        "check that it exists and that these credentials have the permission {right}; they come from: {}",
        asked.credentials
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::StoreProtocol;
    use crate::{azure, gcs, s3, web};

    fn asked(protocol: &'static StoreProtocol) -> RequestContext<'static> {
        RequestContext {
            hints: &protocol.hints,
            credentials: "environment",
            region: Some("us-east-1"),
            ..RequestContext::sample()
        }
    }

    fn captured(status: u16, code: &str) -> ResponseCapture {
        ResponseCapture {
            status: Some(status),
            code: (!code.is_empty()).then(|| code.to_owned()),
            ..ResponseCapture::default()
        }
    }

    #[test]
    fn statuses_map_to_kind_and_transience() {
        let (busy, broken) = (Some(Transient::Busy), Some(Transient::Broken));
        for (status, code, kind, transient) in [
            (304, "", ErrorKind::Changed, None),
            (400, "", ErrorKind::InvalidRequest, None),
            (400, "RequestTimeout", ErrorKind::Remote, busy),
            (400, "ExpiredToken", ErrorKind::PermissionDenied, None),
            (401, "", ErrorKind::PermissionDenied, None),
            (403, "", ErrorKind::PermissionDenied, None),
            (403, "AccessDenied", ErrorKind::PermissionDenied, None),
            (403, "InvalidObjectState", ErrorKind::Unsupported, None),
            (404, "", ErrorKind::NotFound, None),
            (404, "NoSuchKey", ErrorKind::NotFound, None),
            (404, "NoSuchBucket", ErrorKind::NotFound, None),
            (408, "", ErrorKind::Remote, busy),
            (412, "PreconditionFailed", ErrorKind::Changed, None),
            (416, "InvalidRange", ErrorKind::Changed, None),
            (429, "", ErrorKind::Remote, busy),
            (500, "InternalError", ErrorKind::Remote, broken),
            (501, "", ErrorKind::Unsupported, None),
            (502, "", ErrorKind::Remote, broken),
            (503, "SlowDown", ErrorKind::Remote, busy),
            (503, "", ErrorKind::Remote, busy),
            (504, "", ErrorKind::Remote, broken),
        ] {
            for protocol in [
                &s3::PROTOCOL,
                &gcs::PROTOCOL,
                &azure::PROTOCOL,
                &web::PROTOCOL,
            ] {
                let classification =
                    classification(status, &captured(status, code), &asked(protocol));
                assert_eq!(
                    (classification.kind, classification.transient),
                    (kind, transient),
                    "{status} {code} {:?}",
                    protocol.hints
                );
            }
        }
    }

    #[test]
    fn rejected_credentials_name_their_source() {
        for code in [
            "AccessDenied",
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "ExpiredToken",
            "InvalidToken",
        ] {
            let classification = classification(403, &captured(403, code), &asked(&s3::PROTOCOL));
            let hint = classification.hint.expect("a hint");
            assert!(hint.contains("environment"), "{code}: {hint}");
        }
    }

    #[test]
    fn expired_credentials_are_transient_if_refreshed() {
        for (protocol, status, code) in [
            (&s3::PROTOCOL, 400, "ExpiredToken"),
            (&gcs::PROTOCOL, 401, ""),
        ] {
            let mut asked = asked(protocol);
            asked.refreshed = true;
            let classification = classification(status, &captured(status, code), &asked);
            assert_eq!(classification.transient, Some(Transient::Broken));
        }
    }

    #[test]
    fn clock_skew_is_reported() {
        for (skew, text) in [(-600, "600 s ahead of"), (900, "900 s behind")] {
            let mut captured = captured(403, "AccessDenied");
            captured.skew_seconds = Some(skew);
            let classification = classification(403, &captured, &asked(&s3::PROTOCOL));
            assert!(
                classification.message.contains(text),
                "{}",
                classification.message
            );
        }
        let mut captured = captured(403, "AccessDenied");
        captured.skew_seconds = Some(10);
        let classification = classification(403, &captured, &asked(&s3::PROTOCOL));
        assert_eq!(classification.message, "access is denied");
    }

    #[test]
    fn other_regions_are_named() {
        for (status, code, region, hint) in [
            (
                301,
                "PermanentRedirect",
                Some("eu-west-1"),
                "set region=eu-west-1",
            ),
            (301, "", None, "set region or endpoint to the bucket's own"),
            (
                400,
                "AuthorizationHeaderMalformed",
                Some("eu-west-1"),
                "set region=eu-west-1",
            ),
            (400, "", Some("eu-west-1"), "set region=eu-west-1"),
            (403, "", Some("eu-west-1"), "set region=eu-west-1"),
        ] {
            let mut captured = captured(status, code);
            captured.region = region.map(str::to_owned);
            let classification = classification(status, &captured, &asked(&s3::PROTOCOL));
            assert_eq!(
                classification.hint.as_deref(),
                Some(hint),
                "{status} {code}"
            );
            assert_eq!(classification.kind, ErrorKind::InvalidRequest);
        }
        let mut here = captured(403, "AccessDenied");
        here.region = Some("us-east-1".to_owned());
        let classification = classification(403, &here, &asked(&s3::PROTOCOL));
        assert_eq!(classification.kind, ErrorKind::PermissionDenied);
    }

    #[test]
    fn web_server_without_listing_is_unsupported() {
        let mut asked = asked(&web::PROTOCOL);
        asked.operation = "LIST";
        let classification = classification(405, &captured(405, ""), &asked);
        assert_eq!(classification.kind, ErrorKind::Unsupported);
        assert!(classification.hint.expect("a hint").contains("index.json"));
    }

    #[test]
    fn denied_hint_depends_on_credentials() {
        let hint = |asked: &RequestContext| {
            classification(403, &captured(403, ""), asked)
                .hint
                .expect("a hint")
        };
        let mut anonymous = asked(&gcs::PROTOCOL);
        anonymous.anonymous = true;
        assert!(hint(&anonymous).contains("pass credentials"));
        let mut signed = asked(&web::PROTOCOL);
        signed.signed_url = true;
        assert!(hint(&signed).contains("sign the URL again"));
    }
}
