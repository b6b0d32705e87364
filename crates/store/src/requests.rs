//! Sends the requests of a store, one attempt each, and translates their failures.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Store;
use super::classification::{Cause, Classification, Hints, RequestContext};
use super::connector::timed;
use super::failure::{Failure, Fault};
use super::ranged_response::misplaced;
use super::response_capture::{ResponseCapture, capture};
use super::signing::with_signer;
use crate::error::{Error, ErrorKind, FailedRequest, Result};
use crate::sync::retry::Transient;

/// Treatment of the credentials of a store by its server so far.
#[derive(Default)]
pub(super) struct Standing {
    has_succeeded: AtomicBool,
    /// True if they may be wrong.
    pub(super) is_doubtful: AtomicBool,
}

impl Store {
    /// Sends a request. Retries once on a reused connection that the server had closed: a new
    /// connection could not have failed so.
    pub(super) async fn request<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        operation: &str,
        request: impl Fn() -> F,
    ) -> Result<(T, ResponseCapture), Fault> {
        if let Some((message, hint)) = &self.offline {
            let error = Error::new(ErrorKind::Remote, message).with_hint(hint);
            return Err(Fault::new(error));
        }
        self.connector.prepare();
        let is_resumed = self.is_resumed.load(Ordering::Relaxed);
        // Futures that hold this one would be large, so it is boxed.
        let send = || Box::pin(self.request_once(operation, request()));
        let (mut result, mut captured) = send().await;
        let is_broken = |fault: &Fault| matches!(fault.transient, Some(Transient::Broken));
        let is_dead = is_resumed && captured.is_of_dead_connection();
        if is_dead && result.as_ref().is_err_and(is_broken) {
            tracing::debug!("the server had closed a connection of an earlier request");
            (result, captured) = send().await;
        }
        result.map(|result| (result, captured))
    }

    /// Sends a request once.
    async fn request_once<T>(
        &self,
        operation: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> (Result<T, Fault>, ResponseCapture) {
        let limited = async {
            match &self.first {
                Some(first) => first.limit(request).await,
                None => request.await,
            }
        };
        let signed = with_signer(self.signer.clone(), limited);
        let (result, captured) = capture(timed(self.timeline.clone(), signed)).await;
        if captured.status.is_some() {
            self.is_resumed.store(false, Ordering::Relaxed);
        }
        if result.is_ok() {
            self.standing.has_succeeded.store(true, Ordering::Relaxed);
        }
        let result = result.map_err(|error| {
            let mut fault = self.fault(&error, &captured, operation);
            if self.first.as_ref().is_some_and(|first| first.is_too_late()) {
                fault.transient = None;
            }
            fault
        });
        (result, captured)
    }

    /// Translates a failure of a request or of the body of its response.
    pub fn fault(
        &self,
        error: &object_store::Error,
        captured: &ResponseCapture,
        operation: &str,
    ) -> Fault {
        let credentials = self.credentials();
        let mut asked = self.asked(captured, operation, &credentials);
        // Google and Azure name no code for a token that has expired.
        let is_refused = captured.says_expired() || asked.own && captured.status == Some(401);
        asked.refreshed = is_refused && self.credentials.rejected(captured.began);
        let failure = Failure::new(asked, captured, Some(error));
        let fault = failure.fault(failure.classification());
        // Access to single objects may be denied to working credentials.
        let is_object = captured.code.as_deref() == Some("AccessDenied")
            && self.standing.has_succeeded.load(Ordering::Relaxed);
        if fault.error.kind() == ErrorKind::PermissionDenied && !is_object {
            self.standing.is_doubtful.store(true, Ordering::Relaxed);
        }
        fault
    }

    fn asked<'a>(
        &'a self,
        captured: &ResponseCapture,
        operation: &'a str,
        credentials: &'a str,
    ) -> RequestContext<'a> {
        RequestContext {
            operation,
            hints: self
                .protocol
                .map_or(&Hints::NONE, |protocol| &protocol.hints),
            credentials,
            anonymous: self.credentials.is_anonymous(),
            region: self.region.as_deref(),
            signed_url: self.signed_url,
            own: captured.client == 0 || captured.client >= self.own_client,
            has_succeeded: self.standing.has_succeeded.load(Ordering::Relaxed),
            refreshed: false,
            redactor: &self.redactor,
        }
    }

    /// Removes secrets from a text that quotes parts of a response.
    pub fn redacted(&self, text: &str, captured: &ResponseCapture) -> String {
        self.redactor.redact(text, &captured.sent)
    }

    /// Returns the error for a server that violates HTTP; `message` says how.
    pub fn misbehaved(&self, captured: &ResponseCapture, message: &str) -> Fault {
        self.classified(captured, misplaced(message))
    }

    /// Returns the error for a response of a hub that cannot be parsed; `what` describes it.
    pub(super) fn malformed(&self, what: &str, captured: &ResponseCapture) -> Fault {
        let classification =
            Classification::new(ErrorKind::Remote, "the hub's response is malformed")
                .hint("check that the endpoint is a model hub (option endpoint, HF_ENDPOINT)")
                .cause(Some(Cause::Words(what.to_owned())));
        self.classified(captured, classification)
    }

    /// Returns the error for an unusable response.
    pub(super) fn classified(
        &self,
        captured: &ResponseCapture,
        classification: Classification,
    ) -> Fault {
        let credentials = self.credentials();
        let asked = self.asked(captured, "GET", &credentials);
        Failure::new(asked, captured, None).fault(classification)
    }

    /// Describes a request whose response was unusable.
    pub fn failed_request(&self, captured: &ResponseCapture, operation: &str) -> FailedRequest {
        let credentials = self.credentials();
        let asked = self.asked(captured, operation, &credentials);
        Failure::new(asked, captured, None).request()
    }
}
