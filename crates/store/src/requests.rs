//! Sends the requests of a store, one attempt each, and translates their failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectStore};

use crate::error::{Error, ErrorKind, FailedRequest, Result};
use crate::errors::classification::Classification;
use crate::explain::context::RequestContext;
use crate::explain::failure::{Failure, Fault};
use crate::http::current_request::CurrentRequest;
use crate::http::ranged_response::misplaced;
use crate::http::response_capture::ResponseCapture;
use crate::server::Server;
use crate::sync::retry::Transient;
use crate::sync::timeline::Timeline;

/// Requests of one opening to the server of its store.
pub(crate) struct Requests {
    pub(crate) server: Arc<Server>,
    /// True until the first response, if connections of earlier openings are used: the server may
    /// have closed them.
    is_resumed: AtomicBool,
    /// Phases of the requests: names, connections, credentials.
    timeline: Timeline,
}

/// Returns the name of a request for an object, for errors.
pub(crate) fn operation(options: &GetOptions) -> &'static str {
    if options.head { "HEAD" } else { "GET" }
}

impl Requests {
    /// Creates the requests of an opening; `is_resumed` if an earlier one has used the server.
    pub(crate) fn new(server: Arc<Server>, is_resumed: bool, timeline: Timeline) -> Self {
        Self {
            server,
            is_resumed: AtomicBool::new(is_resumed),
            timeline,
        }
    }

    /// Requests an object of a store of `object_store`, or a range of it.
    pub(crate) async fn get(
        &self,
        objects: &dyn ObjectStore,
        path: &Path,
        options: GetOptions,
    ) -> Result<(GetResult, ResponseCapture), Fault> {
        let ask = || objects.get_opts(path, options.clone());
        self.send(operation(&options), ask).await
    }

    /// Sends a request. Retries once on a reused connection that the server had closed: a new
    /// connection could not have failed so.
    pub(crate) async fn send<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        operation: &str,
        request: impl Fn() -> F,
    ) -> Result<(T, ResponseCapture), Fault> {
        if let Some((message, hint)) = &self.server.offline {
            let error = Error::new(ErrorKind::Remote, message).with_hint(hint);
            return Err(Fault::new(error));
        }
        self.server.connector.prepare();
        let is_resumed = self.is_resumed.load(Ordering::Relaxed);
        // Futures that hold this one would be large, so it is boxed.
        let once = || Box::pin(self.send_once(operation, request()));
        let (mut result, mut captured) = once().await;
        let is_broken = |fault: &Fault| matches!(fault.transient, Some(Transient::Broken));
        let is_dead = is_resumed && captured.is_of_dead_connection();
        if is_dead && result.as_ref().is_err_and(is_broken) {
            tracing::debug!("the server had closed a connection of an earlier request");
            (result, captured) = once().await;
        }
        result.map(|result| (result, captured))
    }

    /// Sends a request once.
    async fn send_once<T>(
        &self,
        operation: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> (Result<T, Fault>, ResponseCapture) {
        let limited = async {
            match &self.server.first {
                Some(first) => first.limit(request).await,
                None => request.await,
            }
        };
        let sending = CurrentRequest::new(self.timeline.clone(), self.server.signer.clone());
        let (result, captured) = sending.send(limited).await;
        if captured.status.is_some() {
            self.is_resumed.store(false, Ordering::Relaxed);
        }
        let (standing, first) = (&self.server.standing, &self.server.first);
        if result.is_ok() {
            standing.has_succeeded.store(true, Ordering::Relaxed);
        }
        let result = result.map_err(|error| {
            let mut fault = self.fault(&error, &captured, operation);
            if first.as_ref().is_some_and(|first| first.is_too_late()) {
                fault.transient = None;
            }
            fault
        });
        (result, captured)
    }

    /// Translates a failure of a request or of the body of its response.
    pub(crate) fn fault(
        &self,
        error: &object_store::Error,
        captured: &ResponseCapture,
        operation: &str,
    ) -> Fault {
        let credentials = self.server.credentials.shown();
        let asked = self.server.context(captured, operation, &credentials);
        // Google and Azure name no code for a token that has expired.
        let is_refused = captured.says_expired() || asked.own && captured.status == Some(401);
        let asked = RequestContext {
            refreshed: is_refused && self.server.credentials.rejected(captured.began),
            ..asked
        };
        let failure = Failure::new(asked, captured, Some(error));
        let fault = failure.fault(failure.classification());
        // Access to single objects may be denied to working credentials.
        let standing = &self.server.standing;
        let is_object = captured.code.as_deref() == Some("AccessDenied")
            && standing.has_succeeded.load(Ordering::Relaxed);
        if fault.error.kind() == ErrorKind::PermissionDenied && !is_object {
            standing.is_doubtful.store(true, Ordering::Relaxed);
        }
        fault
    }

    /// Returns the error for a server that violates HTTP; `message` says how.
    pub(crate) fn misbehaved(&self, captured: &ResponseCapture, message: &str) -> Fault {
        self.classified(captured, misplaced(message))
    }

    /// Returns the error for an unusable response.
    pub(crate) fn classified(
        &self,
        captured: &ResponseCapture,
        classification: Classification,
    ) -> Fault {
        let credentials = self.server.credentials.shown();
        let asked = self.server.context(captured, "GET", &credentials);
        Failure::new(asked, captured, None).fault(classification)
    }

    /// Describes a request whose response was unusable.
    pub(crate) fn failed_request(
        &self,
        captured: &ResponseCapture,
        operation: &str,
    ) -> FailedRequest {
        let credentials = self.server.credentials.shown();
        let context = self.server.context(captured, operation, &credentials);
        Failure::new(context, captured, None).request()
    }
}
