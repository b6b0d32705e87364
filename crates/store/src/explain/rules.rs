//! Rules that classify failures: tables of status and code, with texts. The protocols have further
//! tables; `failure.rs` applies them.

use super::failure::Failure;
use crate::error::ErrorKind;
use crate::errors::classification::{CHANGED, LOAD_AGAIN, NO_LISTING, PASS_FILE, SHRANK};
use crate::sync::retry::Transient;

/// Rule of a table, of which the first that applies counts.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) applies: fn(&Failure) -> bool,
    pub(crate) kind: ErrorKind,
    /// At most one.
    pub(crate) transient: &'static [Transient],
    /// Text with the names of facts in braces, such as `{host}` (see `Failure::filled`).
    pub(crate) message: &'static str,
    /// Advice, with facts as well; empty if there is none.
    pub(crate) hint: &'static str,
}

/// Table of rules.
pub(crate) type Rules = &'static [Rule];

/// Makes a table. A line is a condition on the failure, and what it means: `condition =>
/// Kind(Transient): message, hint;`.
macro_rules! rules {
    (|$failure:ident| $($applies:expr => $kind:ident $(($transient:ident))?: $message:expr, $hint:expr;)*) => {
        &[$($crate::explain::rules::Rule {
            applies: |$failure| {
                let _ = $failure;
                $applies
            },
            kind: $crate::error::ErrorKind::$kind,
            transient: &[$($crate::sync::retry::Transient::$transient)?],
            message: $message,
            hint: $hint,
        }),*]
    };
}
pub(crate) use rules;

const RENEW: &str = "renew the credentials, which come from: {credentials}";
const SET_CLOCK: &str = "set the clock of this machine";
const CHECK_NAME: &str = "check its name, and that the endpoint is the right one";
const FEWER: &str = "send fewer requests at a time, or try again later";

/// Codes that are more specific than the status, or differ from it.
pub(crate) const CODES: Rules = rules! { |f|
    f.captured.says_expired() && f.asked.refreshed => PermissionDenied(Broken):
        "the credentials have expired", RENEW;
    f.captured.says_expired() => PermissionDenied: "the credentials have expired", RENEW;
    f.has_code(&["RequestTimeTooSkewed"]) => PermissionDenied:
        "the clock of this machine is too far from the store's", SET_CLOCK;
    f.has_code(&["InvalidAccessKeyId", "XAdminUserNotFound"]) => PermissionDenied:
        "the store does not know the access key",
        "pass a key of this store; the one in use comes from: {credentials}";
    f.has_code(&["InvalidToken"]) => PermissionDenied:
        "the store does not accept the session token", RENEW;
    f.has_code(&["SignatureDoesNotMatch"]) => PermissionDenied:
        "the store does not accept the signature",
        "check that the secret belongs to the access key (credentials come from: {credentials}), and that no proxy changes requests";
    f.has_code(&["NoSuchBucket"]) => NotFound: "there is no such bucket", CHECK_NAME;
    f.has_code(&["ContainerNotFound", "FilesystemNotFound"]) => NotFound:
        "there is no such container", CHECK_NAME;
    f.has_code(&["InvalidBlockList", "InvalidPart"]) => NotFound:
        "the store no longer has parts of the upload", "upload it again";
    f.has_code(&["InvalidBucketName"]) => InvalidRequest: "the bucket's name is invalid", "";
    f.has_code(&["InvalidObjectState", "BlobArchived", "BlobBeingRehydrated"]) => Unsupported:
        "the object is archived and cannot be read before it is restored",
        "restore it to a storage class that can be read";
    f.has_code(&["UserProjectMissing"]) => PermissionDenied:
        "the bucket requires the requester to pay",
        "set the project to bill: header.x-goog-user-project=PROJECT";
    f.has_code(&["SlowDown", "ServerBusy", "RequestTimeout", "RequestLimitExceeded", "Throttling", "ThrottlingException"])
        => Remote(Busy): "the store is busy or throttling requests ({code})", FEWER;
};

/// Statuses of all stores.
pub(crate) const STATUSES: Rules = rules! { |f|
    matches!(f.status(), 304 | 412) => Changed: CHANGED, LOAD_AGAIN;
    f.status() == 401 && f.asked.anonymous => PermissionDenied:
        "the store requires credentials", "pass credentials instead of anonymous=true";
    f.status() == 401 && f.asked.refreshed => PermissionDenied(Broken):
        "the store does not accept the credentials", RENEW;
    f.status() == 401 => PermissionDenied: "the store does not accept the credentials", RENEW;
    f.status() == 403 && f.is_skewed() => PermissionDenied:
        "access is denied; the clock of this machine is {skew} the store's", SET_CLOCK;
    f.status() == 403 && f.asked.anonymous => PermissionDenied:
        "access is denied", "the data is not public: pass credentials, or check the names";
    // S3 responds with 403 for missing objects if the caller may not list.
    f.status() == 403 => PermissionDenied: "access is denied",
        "check that it exists and that these credentials have the permission {permission}; they come from: {credentials}";
    matches!(f.status(), 405 | 501) && f.is_listing() && !f.asked.hints.lists => Unsupported: NO_LISTING, PASS_FILE;
    matches!(f.status(), 404 | 410) => NotFound:
        "there is no such object", "check bucket, key and endpoint";
    matches!(f.status(), 405 | 501) => Unsupported:
        "the store does not support the request ({status})",
        "check that the endpoint is an object store";
    f.status() == 407 && f.captured.proxy.is_some() => PermissionDenied:
        "the proxy {proxy} requires credentials", NAME_CREDENTIALS;
    f.status() == 407 => PermissionDenied: "the proxy requires credentials", NAME_CREDENTIALS;
    matches!(f.status(), 408 | 425 | 429 | 503) => Remote(Busy):
        "the store is busy or throttling requests ({status})", FEWER;
    f.status() == 416 => Changed: SHRANK, LOAD_AGAIN;
    f.status() >= 500 => Remote(Broken): "the store failed ({status})",
        "try again later; the store's operators can find the request by its id";
    (300..400).contains(&f.status()) => Remote:
        "the store sent a redirect without a valid target ({status})", "check the endpoint";
    true => InvalidRequest: "the store does not accept the request ({status})",
        "check bucket, key, endpoint and region";
};

/// Advice on a link that a hub or a registry gave: a new one may be accepted.
pub(crate) const LINK_CLOCK: &str =
    "try again; set the clock of this machine if that does not help";

/// Advice on credentials of a proxy.
pub(crate) const NAME_CREDENTIALS: &str =
    "name them in {origin of proxy|option proxy or HTTPS_PROXY}: http://user:password@HOST:PORT";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::StoreProtocol;
    use crate::errors::classification::Classification;
    use crate::explain::context::RequestContext;
    use crate::http::proxy::UsedProxy;
    use crate::http::redirects::{NotAdmitted, Refused};
    use crate::http::response_capture::ResponseCapture;
    use crate::protocols::{azure, gcs, hub, oci, s3, web};

    fn asked(protocol: &'static StoreProtocol) -> RequestContext<'static> {
        RequestContext {
            hints: &protocol.hints,
            credentials: "environment",
            region: Some("us-east-1"),
            ..RequestContext::sample()
        }
    }

    fn classification(captured: &ResponseCapture, asked: RequestContext) -> Classification {
        Failure::new(asked, captured, None).of_status()
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
            (400, "InvalidBlockList", ErrorKind::NotFound, None),
            (400, "InvalidPart", ErrorKind::NotFound, None),
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
                let classification = classification(&captured(status, code), asked(protocol));
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
            let classification = classification(&captured(403, code), asked(&s3::PROTOCOL));
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
            let classification = classification(&captured(status, code), asked);
            assert_eq!(classification.transient, Some(Transient::Broken));
        }
    }

    #[test]
    fn clock_skew_is_reported() {
        for (skew, text) in [(-600, "600 s ahead of"), (900, "900 s behind")] {
            let mut captured = captured(403, "AccessDenied");
            captured.skew_seconds = Some(skew);
            let classification = classification(&captured, asked(&s3::PROTOCOL));
            assert!(
                classification.message.contains(text),
                "{}",
                classification.message
            );
        }
        let mut captured = captured(403, "AccessDenied");
        captured.skew_seconds = Some(10);
        let classification = classification(&captured, asked(&s3::PROTOCOL));
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
            let classification = classification(&captured, asked(&s3::PROTOCOL));
            assert_eq!(
                classification.hint.as_deref(),
                Some(hint),
                "{status} {code}"
            );
            assert_eq!(classification.kind, ErrorKind::InvalidRequest);
        }
        let mut here = captured(403, "AccessDenied");
        here.region = Some("us-east-1".to_owned());
        let classification = classification(&here, asked(&s3::PROTOCOL));
        assert_eq!(classification.kind, ErrorKind::PermissionDenied);
    }

    #[test]
    fn web_server_without_listing_is_unsupported() {
        let mut asked = asked(&web::PROTOCOL);
        asked.operation = "LIST";
        let classification = classification(&captured(405, ""), asked);
        assert_eq!(classification.kind, ErrorKind::Unsupported);
        assert!(classification.hint.expect("a hint").contains("index.json"));
    }

    #[test]
    fn denied_hint_depends_on_credentials() {
        let hint = |asked: RequestContext| {
            classification(&captured(403, ""), asked)
                .hint
                .expect("a hint")
        };
        let mut anonymous = asked(&gcs::PROTOCOL);
        anonymous.anonymous = true;
        assert!(hint(anonymous).contains("pass credentials"));
        let mut signed = asked(&web::PROTOCOL);
        signed.signed_url = true;
        assert!(hint(signed).contains("sign the URL again"));
    }

    #[test]
    fn rules_name_facts_that_exist() {
        let check = |asked: RequestContext, rules: &[Rules]| {
            let captured = ResponseCapture {
                proxy: Some(UsedProxy {
                    url: "http://proxy:3128".to_owned(),
                    origin: "HTTPS_PROXY",
                }),
                region: Some("eu-west-1".to_owned()),
                skew_seconds: Some(900),
                ..captured(403, "AccessDenied")
            };
            let error = object_store::Error::Generic {
                store: "HTTP",
                source: Box::new(NotAdmitted(Refused::Plain)),
            };
            let failure = Failure::new(asked, &captured, Some(&error));
            for rule in rules.iter().flat_map(|rules| rules.iter()) {
                for template in [rule.message, rule.hint] {
                    let names = template.split(['{', '}']).skip(1).step_by(2);
                    let names = names.filter_map(|name| name.split('|').next());
                    for name in names.filter(|name| *name != "permission") {
                        assert!(failure.fact(name).is_some(), "{template}");
                    }
                }
            }
        };
        for protocol in [
            &s3::PROTOCOL,
            &gcs::PROTOCOL,
            &azure::PROTOCOL,
            &web::PROTOCOL,
            &hub::PROTOCOL,
            &oci::PROTOCOL,
        ] {
            check(asked(protocol), protocol.hints.rules);
        }
    }
}
