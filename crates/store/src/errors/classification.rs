//! Vocabulary of failed requests: their classification, and the causes of an error.
//!
//! `failure.rs` and the files of the protocols classify. This file has only the classifications
//! that several of them share.

use std::error::Error as StdError;
use std::fmt;

use object_store::client::{HttpError, HttpErrorKind};

use crate::error::ErrorKind;
use crate::sync::retry::Transient;

/// Classification of a failure. Crosses `object_store` as the source of its error where tload
/// classifies before `failure.rs` does.
#[derive(Clone, Debug)]
pub(crate) struct Classification {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) transient: Option<Transient>,
    pub(crate) cause: Option<Cause>,
    /// True if there are no credentials to send; the message says where they were looked up.
    pub(crate) is_of_credentials: bool,
}

impl fmt::Display for Classification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Classification {}

impl From<Classification> for object_store::Error {
    fn from(classification: Classification) -> Self {
        Self::Generic {
            store: "tload",
            source: Box::new(classification),
        }
    }
}

impl From<Classification> for HttpError {
    fn from(classification: Classification) -> Self {
        Self::new(HttpErrorKind::Unknown, classification)
    }
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
            is_of_credentials: false,
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

    /// Says that the failure is one to get credentials.
    pub(crate) fn of_credentials(mut self) -> Self {
        self.is_of_credentials = true;
        self
    }
}

pub(crate) const CHANGED: &str = "the object changed while it was read";
pub(crate) const SHRANK: &str = "the object ends before the requested bytes: it shrank";
pub(crate) const LOAD_AGAIN: &str = "load again when no process is writing to it";
pub(crate) const CHECK_SERVER: &str = "check the server, and proxies and caches in front of it";
pub(crate) const NO_LISTING: &str = "the server cannot list directories";
pub(crate) const PASS_FILE: &str =
    "pass the URL of a file, or of a model.safetensors.index.json that names the files";

/// Returns the classification for an object that is not the one that was opened.
pub(crate) fn changed() -> Classification {
    Classification::new(ErrorKind::Changed, CHANGED).hint(LOAD_AGAIN)
}

/// Classifies a search that found no credentials.
pub(crate) fn no_credentials(looked_at: &str) -> Classification {
    Classification::new(
        ErrorKind::PermissionDenied,
        format!("no credentials were found in {looked_at}"),
    )
    .hint("pass credentials, or set anonymous=true for public data")
}

/// Returns how a service other than a store failed, if a retry can help.
pub(crate) fn transient_of(status: u16) -> Option<Transient> {
    match status {
        408 | 425 | 429 | 503 => Some(Transient::Busy),
        500.. => Some(Transient::Broken),
        _ => None,
    }
}

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
