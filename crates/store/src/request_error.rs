//! Translates a failed request to the error to report, and decides whether a retry can help.
//!
//! Failures are classified by type where the types are public, by the facts that
//! `response_capture.rs` captured of the response, and by the text of `object_store`'s errors only
//! where it keeps the type private. Its errors are never kept: their texts carry URLs with
//! signatures. Error responses are classified in `status_error.rs`, failures below HTTP in
//! `transport_error.rs`.

use std::io;

use object_store::client::HttpError;

use super::classification::{
    Cause, Classification, CredentialFailure, Judged, RequestContext, changed, find,
    no_credentials, no_listing, texts,
};
use super::environment::Environment;
use super::ranged_response::{NoRange, whole_files_only};
use super::response_capture::ResponseCapture;
use super::{status_error, transport_error};
use crate::error::{Error, ErrorKind, FailedRequest};
use crate::sync::retry::{AskedWait, Transient};

/// Failure of one attempt of a request.
#[derive(Debug)]
pub struct Fault {
    /// Error to report, without location and range. Counts one attempt.
    pub error: Error,
    /// Kind of transient error, if a retry can help.
    pub transient: Option<Transient>,
    /// Wait that the store asked for.
    pub asked: Option<AskedWait>,
    /// Meaning of a response that has no range of the object, if that is clear.
    pub no_range: Option<NoRange>,
    /// True if the object has the entity tag that the request excludes (`If-None-Match`): status
    /// 304. Other failures of [`ErrorKind::Changed`] say the opposite.
    pub is_unmodified: bool,
}

impl Fault {
    /// Creates a failure that a retry cannot help.
    pub fn new(error: Error) -> Self {
        Self {
            error,
            transient: None,
            asked: None,
            no_range: None,
            is_unmodified: false,
        }
    }

    /// Returns the answer to a request for an object unless it has an entity tag, which it has.
    pub(super) fn unmodified() -> Self {
        Self {
            is_unmodified: true,
            ..Self::new(Error::new(
                ErrorKind::Changed,
                "the object is the one that is known",
            ))
        }
    }

    /// Returns the error after `attempts` attempts.
    pub fn into_error(self, attempts: u32) -> Error {
        match self.error.request().cloned() {
            Some(mut request) => {
                request.attempts = attempts;
                self.error.with_request(request)
            }
            None => self.error,
        }
    }
}

/// Translates a failure of `object_store`.
pub(crate) fn translate(
    error: &object_store::Error,
    captured: &ResponseCapture,
    asked: &RequestContext,
) -> Fault {
    let is_unmodified =
        captured.status == Some(304) || matches!(error, object_store::Error::NotModified { .. });
    let classification = judge(error, captured, asked);
    // The only place where external texts enter an error.
    let redacted = |text: &str| asked.redactor.redact(text, &captured.sent);
    let mut request = failed_request(captured, asked);
    if find::<CredentialFailure>(error).is_some() {
        // No credentials exist; the message lists the places searched.
        request.credentials = None;
    }
    let mut error =
        Error::new(classification.kind, redacted(&classification.message)).with_request(request);
    if let Some(hint) = classification.hint {
        error = error.with_hint(redacted(&hint));
    }
    error = match classification.cause {
        Some(Cause::System(errno)) => error.with_source(io::Error::from_raw_os_error(errno)),
        Some(Cause::Words(words)) => {
            error.with_source(asked.redactor.clean(&words, &captured.sent))
        }
        None => error,
    };
    Fault {
        error,
        transient: classification.transient,
        asked: captured.asked_wait,
        no_range: captured.no_range.clone(),
        is_unmodified,
    }
}

/// Describes a request after one attempt.
pub(crate) fn failed_request(captured: &ResponseCapture, asked: &RequestContext) -> FailedRequest {
    let clean = |text: &String| asked.redactor.clean(text, &captured.sent);
    let mut request = FailedRequest::new(asked.operation);
    request.status = captured.status;
    request.code = captured.code.as_ref().map(clean);
    request.request_id = captured.request_id.as_ref().map(clean);
    request.credentials = (!asked.credentials.is_empty()).then(|| asked.credentials.to_owned());
    request
}

fn judge(
    error: &object_store::Error,
    captured: &ResponseCapture,
    asked: &RequestContext,
) -> Classification {
    let host = captured.host.as_deref().unwrap_or("the store");
    if let Some(failure) = find::<CredentialFailure>(error) {
        return failure.0.clone();
    }
    if let Some(judged) = find::<Judged>(error) {
        return judged.0.clone();
    }
    if let Some(failure) = find::<HttpError>(error) {
        let classification =
            transport_error::classification(failure, host, captured.proxy.as_ref(), asked.hints);
        return if asked.own {
            classification
        } else {
            without_credentials(classification, host, None, asked)
        };
    }
    match captured.status {
        Some(status) if !(200..300).contains(&status) => {
            let classification = status_error::classification(status, captured, asked);
            if asked.own {
                classification
            } else {
                without_credentials(classification, host, Some(status), asked)
            }
        }
        Some(_) => malformed_response(error, asked),
        None => of_variant(error, asked),
    }
}

/// Hosts that hand out credentials to the machine they run on. If they never answer, there are
/// none. Variables may name others.
const METADATA_HOSTS: [&str; 5] = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "metadata.google.internal",
    "metadata",
];

/// Classifies the failure of a request to a metadata service, on a machine that may have none;
/// `None` if it is to be classified like that of any other host.
fn of_metadata_service(
    classification: &Classification,
    status: Option<u16>,
    asked: &RequestContext,
) -> Option<Classification> {
    let cause = classification.cause.clone();
    let is_refused = cause == Some(Cause::System(libc::ECONNREFUSED));
    let transient = match status {
        // Azure's metadata service answers so while it is updated. Other services never serve this
        // path.
        Some(404) => Some(Transient::Unreachable),
        Some(410) => Some(Transient::Broken),
        // In a new pod, Google's metadata service takes some seconds to start.
        None if is_refused => Some(Transient::Broken),
        None if !asked.has_succeeded => None,
        Some(_) | None => classification.transient,
    };
    let is_absent = transient.is_none() || is_refused || status == Some(404);
    if is_absent && !asked.has_succeeded {
        let none = no_credentials(
            "options, environment variables, configuration files and the machine's metadata service",
        );
        return Some(Classification {
            transient,
            cause,
            ..none
        });
    }
    let status = status.filter(|status| matches!(status, 404 | 410))?;
    let message = format!("the machine's metadata service is not ready (status {status})");
    let unready = Classification::new(ErrorKind::Remote, message).hint("try again later");
    Some(Classification {
        transient,
        cause,
        ..unready
    })
}

/// Classifies the failure of a request for credentials, with the status of the response if there
/// was one.
fn without_credentials(
    classification: Classification,
    host: &str,
    status: Option<u16>,
    asked: &RequestContext,
) -> Classification {
    let name = host.split(':').next().unwrap_or(host);
    let is_local = METADATA_HOSTS.contains(&name)
        || Environment::from_process()
            .metadata_hosts()
            .any(|it| it == name);
    if is_local && let Some(local) = of_metadata_service(&classification, status, asked) {
        return local;
    }
    let refused = [
        ErrorKind::NotFound,
        ErrorKind::InvalidRequest,
        ErrorKind::Unsupported,
    ];
    let kind = if refused.contains(&classification.kind) {
        ErrorKind::PermissionDenied
    } else {
        classification.kind
    };
    let message = format!(
        "cannot get credentials from {host}: {}",
        classification.message
    );
    Classification {
        kind,
        message,
        ..classification
    }
}

/// Classifies an invalid response with a successful status. The types are private to
/// `object_store`.
fn malformed_response(error: &object_store::Error, asked: &RequestContext) -> Classification {
    let texts = texts(error);
    let says = |words: &str| texts.iter().any(|text| text.contains(words));
    let not_partial = says("non-partial response when range requested");
    if matches!(error, object_store::Error::NotSupported { .. }) || not_partial {
        return whole_files_only();
    }
    let cause = texts.last().map(|text| Cause::Words(text.clone()));
    if let object_store::Error::InvalidPath { .. } = error {
        return Classification::new(
            ErrorKind::Unsupported,
            "the store holds a name that cannot be addressed: with an empty component or a control character",
        )
        .hint("pass the URL of a file or of an index, which needs no listing");
    }
    let what = if says("Content-Range") || says("CONTENT_RANGE") || says("Requested ") {
        "the server sent a different range than requested"
    } else if says("last modified") || says("Last-Modified") {
        "the server sent a Last-Modified header that is not a date"
    } else if says("Content-Length") || says("content length") {
        "the server did not send the length of the object"
    } else if says("ETag") {
        "the server sent no ETag, which shows whether an object changed"
    } else if asked.operation == "LIST" && !asked.hints.lists {
        return no_listing();
    } else {
        "the server sent a malformed response"
    };
    Classification::new(ErrorKind::Remote, what)
        .hint("check the server, and proxies and caches in front of it")
        .cause(cause)
}

/// Classifies a failure without a response: it came before a request, or the caller provided the
/// store.
fn of_variant(error: &object_store::Error, asked: &RequestContext) -> Classification {
    let texts = texts(error);
    let cause = || texts.last().map(|text| Cause::Words(text.clone()));
    // Without a captured response, the variant is the only information. `object_store` may add
    // variants.
    if let object_store::Error::NotFound { .. } = error {
        Classification::new(ErrorKind::NotFound, "there is no such object")
    } else if let object_store::Error::PermissionDenied { .. }
    | object_store::Error::Unauthenticated { .. } = error
    {
        Classification::new(ErrorKind::PermissionDenied, "the store denies access").cause(cause())
    } else if let object_store::Error::Precondition { .. }
    | object_store::Error::NotModified { .. } = error
    {
        changed()
    } else if let object_store::Error::NotSupported { .. }
    | object_store::Error::NotImplemented { .. } = error
    {
        if asked.operation == "LIST" {
            return no_listing().cause(cause());
        }
        Classification::new(
            ErrorKind::Unsupported,
            "the store does not support the request",
        )
        .cause(cause())
    } else if let object_store::Error::InvalidPath { .. } = error {
        Classification::new(
            ErrorKind::InvalidRequest,
            "the name cannot be addressed in the store",
        )
        .cause(cause())
    } else if let Some(failure) = find::<io::Error>(error) {
        transport_error::of_io(failure)
    } else {
        Classification::new(ErrorKind::Remote, "the store failed").cause(cause())
    }
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpErrorKind;

    use super::*;

    fn asked(own: bool, has_succeeded: bool) -> RequestContext<'static> {
        RequestContext {
            credentials: "instance metadata",
            own,
            has_succeeded,
            ..RequestContext::sample()
        }
    }

    fn unreachable(host: &str, errno: i32, asked: &RequestContext) -> Fault {
        let refused = io::Error::from_raw_os_error(errno);
        let error = object_store::Error::Generic {
            store: "S3",
            source: Box::new(HttpError::new(HttpErrorKind::Connect, refused)),
        };
        let captured = ResponseCapture {
            host: Some(host.to_owned()),
            ..ResponseCapture::default()
        };
        translate(&error, &captured, asked)
    }

    const METADATA: &str = "169.254.169.254";

    #[test]
    fn unreachable_metadata_host_means_no_credentials() {
        for (errno, transient) in [
            (libc::ENETUNREACH, None),
            (libc::ECONNREFUSED, Some(Transient::Broken)),
        ] {
            let fault = unreachable(METADATA, errno, &asked(false, false));
            let error = &fault.error;
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert_eq!(fault.transient, transient);
            let message = error.message();
            assert!(message.starts_with("no credentials were found"), "{error}");
            let hint = error.hint().expect("a hint");
            assert!(hint.contains("anonymous=true"), "{hint}");
        }
    }

    /// It existed before, or it responds: a retry may help.
    #[test]
    fn failing_metadata_host_is_transient() {
        let fault = unreachable(METADATA, libc::ENETUNREACH, &asked(false, true));
        assert_eq!(fault.transient, Some(Transient::Unreachable));
        assert_eq!(fault.error.kind(), ErrorKind::Remote);
        for (status, has_succeeded, kind, transient) in [
            (401, false, ErrorKind::PermissionDenied, None),
            (
                404,
                false,
                ErrorKind::PermissionDenied,
                Some(Transient::Unreachable),
            ),
            (404, true, ErrorKind::Remote, Some(Transient::Unreachable)),
            (410, false, ErrorKind::Remote, Some(Transient::Broken)),
            (429, false, ErrorKind::Remote, Some(Transient::Busy)),
            (500, false, ErrorKind::Remote, Some(Transient::Broken)),
            (500, true, ErrorKind::Remote, Some(Transient::Broken)),
        ] {
            let captured = ResponseCapture {
                host: Some(METADATA.to_owned()),
                status: Some(status),
                ..ResponseCapture::default()
            };
            let error = object_store::Error::Generic {
                store: "GCS",
                source: "refused".into(),
            };
            let fault = translate(&error, &captured, &asked(false, has_succeeded));
            let found = (fault.error.kind(), fault.transient);
            assert_eq!(found, (kind, transient), "{status} {has_succeeded}");
        }
    }

    #[test]
    fn unreachable_credential_server_is_transient() {
        for (own, start) in [
            (false, "cannot get credentials from sts: "),
            (true, "sts refuses"),
        ] {
            let fault = unreachable("sts", libc::ECONNREFUSED, &asked(own, false));
            assert_eq!(fault.transient, Some(Transient::Unreachable));
            assert!(fault.error.message().starts_with(start), "{}", fault.error);
        }
    }

    #[test]
    fn credential_failure_survives_object_store() {
        let failure = Classification::new(ErrorKind::InvalidRequest, "there is no profile dev")
            .cause(Some(Cause::Words("why".to_owned())));
        let error = object_store::Error::Generic {
            store: "S3",
            source: Box::new(CredentialFailure(failure)),
        };
        let asked = RequestContext::sample();
        let fault = translate(&error, &ResponseCapture::default(), &asked);
        assert_eq!(fault.error.kind(), ErrorKind::InvalidRequest);
        let chain = fault.error.chain();
        assert!(
            chain.starts_with("there is no profile dev\n  caused by: why"),
            "{chain}"
        );
    }
}
