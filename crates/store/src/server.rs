//! Server of a store, as all openings share it: its address, the credentials for it, and the
//! clients that reach it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::builder::{OpenStore, Opening};
use crate::credentials::origin::Credentials;
use crate::environment::Surroundings;
use crate::errors::redactor::Redactor;
use crate::explain::context::{Hints, RequestContext};
use crate::http::connector::Connector;
use crate::http::first_connection::FirstConnection;
use crate::http::response_capture::ResponseCapture;
use crate::http::signing::Signer;
use crate::options::store_options::without_credentials;

/// End of the address of a server whose certificate is not verified.
const UNVERIFIED: &str = " without TLS verification";

/// Server of a store.
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) credentials: Credentials,
    pub(crate) standing: Standing,
    /// Signs requests again to which headers of options were added.
    pub(crate) signer: Option<Signer>,
    /// Makes the HTTP clients.
    pub(crate) connector: Connector,
    /// Limits the first request.
    pub(crate) first: Option<Arc<FirstConnection>>,
    /// Error of requests if they are forbidden: message and hint.
    pub(crate) offline: Option<(String, String)>,
    /// Variables and files that the store was opened from; `None` if other openings cannot share
    /// it.
    surroundings: Option<Surroundings>,
    pub(crate) hints: &'static Hints,
    pub(crate) redactor: Redactor,
}

/// Address of a server, without secrets.
#[derive(Default)]
pub(crate) struct Address {
    /// Scheme and host of the URL.
    pub(crate) label: String,
    /// Address beyond what URLs name, if options or the environment give it.
    pub(crate) origin: String,
    pub(crate) region: Option<String>,
    /// True if the URL carries its own signature.
    pub(crate) is_signed: bool,
}

/// Treatment of the credentials by the server so far.
#[derive(Default)]
pub(crate) struct Standing {
    pub(crate) has_succeeded: AtomicBool,
    /// True if they may be wrong.
    pub(crate) is_doubtful: AtomicBool,
}

impl Server {
    /// Creates the server of a store that was opened.
    pub(crate) fn new(
        opening: Opening,
        opened: OpenStore,
        surroundings: Option<Surroundings>,
    ) -> Self {
        let (url, connector) = (opening.url, opening.connector);
        connector.own_from(connector.made().saturating_sub(opened.sessions));
        let mut origin = without_credentials(&opened.origin);
        if connector.is_unverified() {
            // Anyone may have sent these bytes, so they must not be taken for bytes of a verified
            // server.
            origin.push_str(UNVERIFIED);
        }
        Self {
            address: Address {
                label: format!("{}://{}", url.scheme, url.host()),
                origin,
                region: opened.region,
                is_signed: url.query.is_some(),
            },
            credentials: opened.credentials,
            standing: Standing::default(),
            signer: opened.signer,
            connector,
            first: opened.first,
            offline: opened.offline,
            surroundings,
            hints: &opening.protocol.hints,
            redactor: opening.redactor.and(opened.token.as_ref()),
        }
    }

    /// Creates the server of a store that the caller opened.
    pub(crate) fn of_caller(label: &str) -> Self {
        Self {
            address: Address {
                label: label.to_owned(),
                ..Address::default()
            },
            credentials: Credentials::known("the caller's store"),
            standing: Standing::default(),
            signer: None,
            connector: Connector::default(),
            first: None,
            offline: None,
            surroundings: None,
            hints: &Hints::NONE,
            redactor: Redactor::default(),
        }
    }

    /// Returns whether later openings may use it. Signed URLs are opened once.
    pub(crate) fn is_keepable(&self) -> bool {
        self.surroundings.is_some() && !self.address.is_signed
    }

    /// Returns whether another opening may use it now: requests are sent, a server was reached if
    /// that is limited in time, the credentials have not turned out to be wrong, and variables and
    /// files are as they were.
    pub(crate) fn is_reusable(&self) -> bool {
        self.offline.is_none()
            && self.first.as_ref().is_none_or(|first| first.is_made())
            && !self.standing.is_doubtful.load(Ordering::Relaxed)
            && (self.surroundings.as_ref()).is_some_and(Surroundings::are_unchanged)
    }

    /// Returns the context of a request.
    pub(crate) fn context<'a>(
        &'a self,
        captured: &ResponseCapture,
        operation: &'a str,
        credentials: &'a str,
    ) -> RequestContext<'a> {
        RequestContext {
            operation,
            hints: self.hints,
            credentials,
            anonymous: self.credentials.is_anonymous(),
            region: self.address.region.as_deref(),
            signed_url: self.address.is_signed,
            own: self.connector.is_own(captured.client),
            has_succeeded: self.standing.has_succeeded.load(Ordering::Relaxed),
            refreshed: false,
            redactor: &self.redactor,
        }
    }
}
