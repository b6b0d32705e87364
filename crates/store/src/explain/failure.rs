//! Facts of a failed request, and their translation to the error to report.
//!
//! A [`Failure`] knows the context of the request, what `response_capture.rs` captured of the
//! response, and the error of `object_store`. Tables of rules classify it: those of `rules.rs` and
//! of the protocols by status and code, those of `transport_rules.rs` where no error status came.
//! Errors of `object_store` are never kept: their texts carry URLs with signatures.

use std::error::Error as StdError;
use std::io;

use object_store::client::HttpError;

use super::context::RequestContext;
use super::rules::Rules;
use super::transport_rules::{MALFORMED, OF_CALLER, OF_IO, TRANSPORT, innermost, words};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, FailedRequest};
use crate::errors::classification::{Cause, Classification, find, no_credentials, texts};
use crate::http::proxy::UnusableProxy;
use crate::http::ranged_response::{NoRange, whole_files_only};
use crate::http::response_capture::ResponseCapture;
use crate::sync::retry::{AskedWait, Transient};

/// Clock skew above which stores refuse signed requests, seconds (S3 and Azure: 15 minutes; Google:
/// 5).
const SKEW_MAX: i64 = 300;

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
    pub(crate) fn unmodified() -> Self {
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

/// Facts of one failed request.
pub(crate) struct Failure<'a> {
    pub(crate) asked: RequestContext<'a>,
    pub(crate) captured: &'a ResponseCapture,
    /// `None` if the response arrived and is unusable.
    pub(crate) error: Option<&'a object_store::Error>,
    /// Texts of the error and its causes, outermost first.
    pub(crate) texts: Vec<String>,
}

impl<'a> Failure<'a> {
    pub(crate) fn new(
        asked: RequestContext<'a>,
        captured: &'a ResponseCapture,
        error: Option<&'a object_store::Error>,
    ) -> Self {
        Self {
            asked,
            captured,
            error,
            texts: error.map(|error| texts(error)).unwrap_or_default(),
        }
    }

    /// Describes the request after one attempt.
    pub(crate) fn request(&self) -> FailedRequest {
        let clean = |text: &String| self.asked.redactor.clean(text, &self.captured.sent);
        let from = self.asked.credentials;
        let mut request = FailedRequest::new(self.asked.operation);
        request.status = self.captured.status;
        request.code = self.captured.code.as_ref().map(clean);
        request.request_id = self.captured.request_id.as_ref().map(clean);
        request.credentials = (!from.is_empty()).then(|| from.to_owned());
        request
    }

    /// Translates the failure as its classification says.
    pub(crate) fn fault(&self, classification: Classification) -> Fault {
        // The only place where external texts enter an error.
        let redactor = self.asked.redactor;
        let redacted = |text: &str| redactor.redact(text, &self.captured.sent);
        let mut request = self.request();
        if classification.is_of_credentials {
            // No credentials exist; the message lists the places searched.
            request.credentials = None;
        }
        let message = redacted(&classification.message);
        let mut error = Error::new(classification.kind, message).with_request(request);
        if let Some(hint) = classification.hint {
            error = error.with_hint(redacted(&hint));
        }
        error = match classification.cause {
            Some(Cause::System(errno)) => error.with_source(io::Error::from_raw_os_error(errno)),
            Some(Cause::Words(words)) => {
                error.with_source(redactor.clean(&words, &self.captured.sent))
            }
            None => error,
        };
        let is_unmodified = matches!(self.error, Some(object_store::Error::NotModified { .. }));
        Fault {
            error,
            transient: classification.transient,
            asked: self.captured.asked_wait,
            no_range: self.captured.no_range.clone(),
            is_unmodified: is_unmodified || self.status() == 304,
        }
    }

    /// Classifies the failure.
    pub(crate) fn classification(&self) -> Classification {
        if let Some(known) = self.find::<Classification>() {
            return known.clone();
        }
        let classification = match self.status() {
            _ if self.has::<HttpError>() => self.of_transport(),
            200..300 => return self.malformed(),
            0 => return self.of_caller(),
            _ => self.of_status(),
        };
        if self.asked.own {
            classification
        } else {
            self.without_credentials(classification)
        }
    }

    /// Classifies by the first rule that applies.
    fn by(&self, tables: &[Rules]) -> Classification {
        let mut rules = tables.iter().flat_map(|rules| rules.iter());
        let Some(rule) = rules.find(|rule| (rule.applies)(self)) else {
            return Classification::new(ErrorKind::Remote, UNKNOWN);
        };
        Classification {
            hint: (!rule.hint.is_empty()).then(|| self.filled(rule.hint)),
            transient: rule.transient.first().copied(),
            ..Classification::new(rule.kind, self.filled(rule.message))
        }
    }

    /// Classifies an error response.
    pub(crate) fn of_status(&self) -> Classification {
        let captured = self.captured;
        let mut found = self.by(self.asked.hints.rules);
        // Without TLS, a proxy can answer instead of the store, whose own responses have a code.
        let mut endpoint = captured.endpoint.iter();
        let is_plain = endpoint.any(|endpoint| endpoint.starts_with("http://"));
        let may_be_its_own = is_plain && self.status() != 407 && captured.code.is_none();
        if let Some(proxy) = captured.proxy.as_ref().filter(|_| may_be_its_own) {
            let note = format!("the response may be one of the proxy {proxy}");
            let hint = found.hint.map(|hint| format!("{hint}; {note}"));
            found.hint = hint.or(Some(note));
        }
        found.cause(captured.message.clone().map(Cause::Words))
    }

    /// Classifies a request without a response, or a body that broke off.
    pub(crate) fn of_transport(&self) -> Classification {
        if let Some(unusable) = self.find::<UnusableProxy>() {
            // The cause is left out because it is the same text.
            return Classification::new(unusable.kind(), unusable.to_string())
                .hint(unusable.hint(self.host()));
        }
        self.by(&[TRANSPORT]).cause(innermost(self))
    }

    /// Classifies an invalid response with a successful status.
    fn malformed(&self) -> Classification {
        let is_unsupported = matches!(self.error, Some(object_store::Error::NotSupported { .. }));
        if is_unsupported || self.says("non-partial response when range requested") {
            return whole_files_only();
        }
        match self.by(&[MALFORMED]) {
            known if known.kind == ErrorKind::Unsupported => known,
            other => other.cause(innermost(self)),
        }
    }

    /// Classifies a failure without a response: it came before a request, or the caller provided
    /// the store.
    fn of_caller(&self) -> Classification {
        match self.by(&[OF_CALLER, OF_IO]) {
            known if matches!(known.kind, ErrorKind::NotFound | ErrorKind::Changed) => known,
            found if found.message == UNKNOWN => Classification {
                kind: self.find().map_or(ErrorKind::Remote, ErrorKind::from_io),
                ..found.cause(innermost(self))
            },
            found => found.cause(innermost(self)),
        }
    }

    /// Classifies the failure of a request for credentials.
    fn without_credentials(&self, found: Classification) -> Classification {
        let variables = Environment::from_process();
        let name = without_port(self.host());
        let mut named = variables.metadata_hosts();
        if (METADATA_HOSTS.contains(&name) || named.any(|it| it == name))
            && let Some(local) = self.of_metadata_service(&found)
        {
            return local;
        }
        let is_refused = matches!(
            found.kind,
            ErrorKind::NotFound | ErrorKind::InvalidRequest | ErrorKind::Unsupported
        );
        let (host, message) = (self.host(), &found.message);
        Classification {
            kind: if is_refused {
                ErrorKind::PermissionDenied
            } else {
                found.kind
            },
            message: format!("cannot get credentials from {host}: {message}"),
            ..found
        }
    }

    /// Classifies the failure of a request to a metadata service, on a machine that may have none;
    /// `None` if it is to be classified like that of any other host.
    fn of_metadata_service(&self, found: &Classification) -> Option<Classification> {
        let had_some = self.asked.has_succeeded;
        let is_refused = found.cause == Some(Cause::System(libc::ECONNREFUSED));
        let is_lost = self.find::<HttpError>().is_some();
        let status = self.captured.status.filter(|_| !is_lost);
        let transient = match status {
            // Azure's metadata service answers so while it is updated. Other services never serve
            // this path.
            Some(404) => Some(Transient::Unreachable),
            Some(410) => Some(Transient::Broken),
            // In a new pod, Google's metadata service takes some seconds to start.
            None if is_refused => Some(Transient::Broken),
            None if !had_some => None,
            Some(_) | None => found.transient,
        };
        let is_absent = transient.is_none() || is_refused || status == Some(404);
        let instead = match status {
            _ if is_absent && !had_some => no_credentials(
                "options, environment variables, configuration files and the machine's metadata service",
            ),
            Some(status @ (404 | 410)) => Classification::new(
                ErrorKind::Remote,
                format!("the machine's metadata service is not ready (status {status})"),
            )
            .hint("try again later"),
            Some(_) | None => return None,
        };
        Some(Classification {
            transient,
            cause: found.cause.clone(),
            ..instead
        })
    }
}

/// Message for a failure that no rule is about.
const UNKNOWN: &str = "the store failed";

/// Hosts that hand out credentials to the machine they run on. If they never answer, there are
/// none. Variables may name others.
const METADATA_HOSTS: [&str; 5] = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "metadata.google.internal",
    "metadata",
];

/// Facts that rules ask for.
impl Failure<'_> {
    /// Returns the status of the response, or 0.
    pub(crate) fn status(&self) -> u16 {
        self.captured.status.unwrap_or(0)
    }

    /// Returns whether the response has one of these codes.
    pub(crate) fn has_code(&self, codes: &[&str]) -> bool {
        let code = self.captured.code.as_ref();
        code.is_some_and(|code| codes.contains(&&**code))
    }

    /// Returns whether the error or one of its causes contains a text.
    pub(crate) fn says(&self, words: &str) -> bool {
        self.texts.iter().any(|text| text.contains(words))
    }

    /// Returns the first cause of a type.
    pub(crate) fn find<T: StdError + 'static>(&self) -> Option<&T> {
        find(self.error?)
    }

    pub(crate) fn has<T: StdError + 'static>(&self) -> bool {
        self.find::<T>().is_some()
    }

    pub(crate) fn is_listing(&self) -> bool {
        self.asked.operation == "LIST"
    }

    /// Returns whether the clock of this machine is too far from the store's.
    pub(crate) fn is_skewed(&self) -> bool {
        let skew = self.captured.skew_seconds.unwrap_or(0);
        skew.abs() > SKEW_MAX
    }

    /// Returns whether the response refuses a link: caches and stores that a hub or a registry
    /// redirects to answer so when it has expired. Hubs and registries have no such codes.
    pub(crate) fn refuses_link(&self) -> bool {
        let codes = [
            "AccessDenied",
            "ExpiredToken",
            "RequestExpired",
            "SignatureDoesNotMatch",
        ];
        matches!(self.status(), 400 | 403) && self.has_code(&codes)
    }

    fn host(&self) -> &str {
        self.captured.host.as_deref().unwrap_or("the store")
    }

    /// Puts facts in place of their names in braces: `{host}`, or with a text for none,
    /// `{advice|check the endpoint}`.
    fn filled(&self, template: &str) -> String {
        let parts = template.split(['{', '}']).enumerate();
        let parts = parts.map(|(at, part)| {
            let (name, otherwise) = part.split_once('|').unwrap_or((part, ""));
            let is_name = at % 2 == 1;
            let fact = || self.fact(name).unwrap_or_else(|| otherwise.to_owned());
            if is_name { fact() } else { part.to_owned() }
        });
        parts.collect()
    }

    pub(crate) fn fact(&self, name: &str) -> Option<String> {
        let (asked, captured) = (&self.asked, self.captured);
        let proxy = captured.proxy.as_ref();
        let fact = match name {
            "host" => self.host().to_owned(),
            "hostname" => without_port(self.host()).to_owned(),
            "status" => match &captured.code {
                Some(code) => format!("status {}, {code}", self.status()),
                None => format!("status {}", self.status()),
            },
            "code" => captured.code.clone()?,
            "credentials" => asked.credentials.to_owned(),
            "permission" => {
                let [to_list, to_read] = asked.hints.permissions?;
                let needed = if self.is_listing() { to_list } else { to_read };
                needed.to_owned()
            }
            "region" => captured.region.clone()?,
            "signed region" => asked.region?.to_owned(),
            "skew" => {
                let skew = captured.skew_seconds?;
                let side = if skew > 0 { "behind" } else { "ahead of" };
                format!("{} s {side}", skew.abs())
            }
            "proxy" => proxy?.to_string(),
            "origin of proxy" => proxy?.origin.to_owned(),
            "through proxy" => {
                proxy.map_or_else(String::new, |it| format!(" through the proxy {it}"))
            }
            "advice" => asked.hints.unreachable?.to_owned(),
            "words" => words(self)?,
            _ => return None,
        };
        Some(fact)
    }
}

fn without_port(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(name, _)| name)
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

    fn translated(
        error: &object_store::Error,
        captured: &ResponseCapture,
        asked: RequestContext,
    ) -> Fault {
        let failure = Failure::new(asked, captured, Some(error));
        failure.fault(failure.classification())
    }

    fn unreachable(host: &str, errno: i32, asked: RequestContext) -> Fault {
        let refused = io::Error::from_raw_os_error(errno);
        let error = object_store::Error::Generic {
            store: "S3",
            source: Box::new(HttpError::new(HttpErrorKind::Connect, refused)),
        };
        let captured = ResponseCapture {
            host: Some(host.to_owned()),
            ..ResponseCapture::default()
        };
        translated(&error, &captured, asked)
    }

    const METADATA: &str = "169.254.169.254";

    #[test]
    fn unreachable_metadata_host_means_no_credentials() {
        for (errno, transient) in [
            (libc::ENETUNREACH, None),
            (libc::ECONNREFUSED, Some(Transient::Broken)),
        ] {
            let fault = unreachable(METADATA, errno, asked(false, false));
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
        let fault = unreachable(METADATA, libc::ENETUNREACH, asked(false, true));
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
            let fault = translated(&error, &captured, asked(false, has_succeeded));
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
            let fault = unreachable("sts", libc::ECONNREFUSED, asked(own, false));
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
            source: Box::new(failure.of_credentials()),
        };
        let asked = RequestContext::sample();
        let fault = translated(&error, &ResponseCapture::default(), asked);
        assert_eq!(fault.error.kind(), ErrorKind::InvalidRequest);
        let chain = fault.error.chain();
        assert!(
            chain.starts_with("there is no profile dev\n  caused by: why"),
            "{chain}"
        );
    }
}
