//! Origin of a store's credentials, in words, and the error for missing ones.
//!
//! Never holds a credential. `refreshing.rs` holds those of the AWS SDK; all others are inside of
//! `object_store`.

use std::fmt;
use std::time::Instant;

use super::fault::{Cause, Verdict};
use crate::error::ErrorKind;
#[cfg(feature = "aws-config")]
use {super::aws::Chain, super::refreshing::Refreshing, std::sync::Arc};

/// Origin of a store's credentials.
#[derive(Debug)]
pub(super) enum Credentials {
    /// Known when the store was opened.
    Known(String),
    /// Found by the AWS SDK on first use; later lookups may find others.
    #[cfg(feature = "aws-config")]
    Aws(Arc<Refreshing<Chain>>),
}

impl Credentials {
    pub(super) fn known(source: impl Into<String>) -> Self {
        Self::Known(source.into())
    }

    /// Returns the origin, for display.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Known(source) => source.clone(),
            #[cfg(feature = "aws-config")]
            Self::Aws(refreshing) => refreshing
                .source()
                .unwrap_or_else(|| "the AWS configuration, not yet looked up".to_owned()),
        }
    }

    /// Records that the store refused the credentials of a request that began then, and returns
    /// whether the next request will have others.
    pub(super) fn rejected(&self, began: Option<Instant>) -> bool {
        match self {
            Self::Known(_) => {
                let _ = began;
                false
            }
            #[cfg(feature = "aws-config")]
            Self::Aws(refreshing) => refreshing.rejected(began),
        }
    }
}

/// Failure to get credentials. Crosses `object_store` as the source of its error.
#[derive(Clone, Debug)]
pub(super) struct CredentialFailure {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
    pub(super) hint: Option<String>,
    /// Text of the credential source.
    pub(super) cause: Option<String>,
}

impl CredentialFailure {
    pub(super) fn verdict(&self) -> Verdict {
        let cause = self.cause.clone().map(Cause::Words);
        let verdict = Verdict::new(self.kind, &self.message).cause(cause);
        match &self.hint {
            Some(hint) => verdict.hint(hint),
            None => verdict,
        }
    }
}

impl fmt::Display for CredentialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CredentialFailure {}
