//! Vocabulary of failed requests: their context, their classification, and the causes of an error.
//!
//! `request_error.rs`, `status_error.rs`, `transport_error.rs` and the files of the protocols
//! classify. This file has only the classifications that several of them share.

use std::error::Error as StdError;
use std::fmt;

use super::redactor::Redactor;
use super::response_capture::ResponseCapture;
use crate::error::ErrorKind;
use crate::sync::retry::Transient;

/// Context of a request: operation, store and credentials.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "five independent facts")]
pub(crate) struct RequestContext<'a> {
    pub(crate) operation: &'a str,
    /// Peculiarities of the store's protocol.
    pub(crate) hints: &'static Hints,
    /// Origin of the credentials.
    pub(crate) credentials: &'a str,
    pub(crate) anonymous: bool,
    /// Region that requests are signed for.
    pub(crate) region: Option<&'a str>,
    /// True if the URL carries its own signature.
    pub(crate) signed_url: bool,
    /// True if the request went to the store itself, false if it fetched credentials.
    pub(crate) own: bool,
    /// True if an earlier request to the store succeeded.
    pub(crate) has_succeeded: bool,
    /// True if the credentials were refused as expired, and newer ones are or will be available.
    pub(crate) refreshed: bool,
    /// Holds the secrets that the store was opened with.
    pub(crate) redactor: &'a Redactor,
}

#[cfg(test)]
impl RequestContext<'static> {
    /// Returns the context of a read from a store without peculiarities, for tests.
    pub(crate) fn sample() -> Self {
        static NOTHING: std::sync::LazyLock<Redactor> = std::sync::LazyLock::new(Redactor::default);
        Self {
            operation: "GET",
            hints: &Hints::NONE,
            credentials: "file X",
            anonymous: false,
            region: None,
            signed_url: false,
            own: true,
            has_succeeded: false,
            refreshed: false,
            redactor: &NOTHING,
        }
    }
}

/// Peculiarities of a protocol, as far as they concern errors.
#[derive(Debug)]
pub(crate) struct Hints {
    /// Classifies an error response before the rules for all stores do; `None` if they apply.
    pub(crate) refusal: fn(u16, &ResponseCapture, &RequestContext) -> Option<Classification>,
    /// Permissions that listing and reading need, as the store calls them.
    pub(crate) permissions: Option<[&'static str; 2]>,
    /// Advice if a host is unknown or does not answer; `None` if it is that for all stores.
    pub(crate) unreachable: Option<&'static str>,
    /// False if there are no listings.
    pub(crate) lists: bool,
}

impl Hints {
    /// Hints for a store without peculiarities.
    pub(crate) const NONE: Self = Self {
        refusal: |_, _, _| None,
        permissions: None,
        unreachable: None,
        lists: true,
    };
}

/// Classification of a failure.
#[derive(Clone, Debug)]
pub(crate) struct Classification {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) transient: Option<Transient>,
    pub(crate) cause: Option<Cause>,
}

/// Cause to keep: an error number of the operating system, or an external text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    System(i32),
    Words(String),
}

impl Classification {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
            transient: None,
            cause: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn transient(mut self, transient: Transient) -> Self {
        self.transient = Some(transient);
        self
    }

    pub(crate) fn cause(mut self, cause: Option<Cause>) -> Self {
        self.cause = cause;
        self
    }
}

/// Classifies a listing on a plain HTTP server, which serves files but no folders.
pub(crate) fn no_listing() -> Classification {
    Classification::new(ErrorKind::Unsupported, "the server cannot list directories")
        .hint("pass the URL of a file, or of a model.safetensors.index.json that names the files")
}

/// Codes for expired links, from caches and stores that a hub or a registry redirects to.
const LINK_REFUSED: [&str; 4] = [
    "AccessDenied",
    "ExpiredToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
];

/// Returns whether a response refuses a link, by its status and code. Hubs and registries have no
/// codes of this kind themselves.
pub(crate) fn is_refused_link(status: u16, code: &str) -> bool {
    matches!(status, 400 | 403) && LINK_REFUSED.contains(&code)
}

/// Classifies the refusal of a link that a hub or a registry gave: a new one may be accepted.
pub(crate) fn refused_link(message: impl Into<String>) -> Classification {
    Classification::new(ErrorKind::PermissionDenied, message)
        .hint("try again; set the clock of this machine if that does not help")
        .transient(Transient::Broken)
}

/// Returns the classification for an object that is not the one that was opened.
pub(crate) fn changed() -> Classification {
    Classification::new(ErrorKind::Changed, "the object changed while it was read")
        .hint("load again when no process is writing to it")
}

/// Classifies a search that found no credentials.
pub(crate) fn no_credentials(looked_at: &str) -> Classification {
    Classification::new(
        ErrorKind::PermissionDenied,
        format!("no credentials were found in {looked_at}"),
    )
    .hint("pass credentials, or set anonymous=true for public data")
}

/// Failure to get credentials. Crosses `object_store` as the source of its error.
#[derive(Clone, Debug)]
pub(crate) struct CredentialFailure(pub(crate) Classification);

impl fmt::Display for CredentialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for CredentialFailure {}

/// Failure that a store of tload has classified. Crosses `object_store` as the source of its error.
#[derive(Clone, Debug)]
pub(crate) struct Judged(pub(crate) Classification);

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for Judged {}

/// Returns the first cause of a type.
pub(crate) fn find<'a, T: StdError + 'static>(
    error: &'a (dyn StdError + 'static),
) -> Option<&'a T> {
    causes(error).find_map(<dyn StdError>::downcast_ref)
}

/// Returns the error and its causes, outermost first.
pub(crate) fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn StdError + 'static) = *error;
        error.source()
    })
}

/// Returns the texts of the error and its causes, outermost first.
pub(crate) fn texts(error: &(dyn StdError + 'static)) -> Vec<String> {
    causes(error).map(ToString::to_string).collect()
}
