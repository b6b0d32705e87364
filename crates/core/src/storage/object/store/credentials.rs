//! Origin of a store's credentials, in words, and the error for missing ones.
//!
//! Never holds a credential. `credential_cache.rs` holds those of the AWS SDK; all others are
//! inside of `object_store`.

use std::fmt;
use std::time::Instant;

use super::request_error::{Cause, Classification};
use crate::error::ErrorKind;
#[cfg(feature = "aws-config")]
use {super::aws::Chain, super::credential_cache::CredentialCache, std::sync::Arc};

/// Origin of a store's credentials.
#[derive(Debug)]
pub(in crate::storage) enum Credentials {
    /// Known when the store was opened.
    Known(String),
    /// Found by the AWS SDK on first use; later lookups may find others.
    #[cfg(feature = "aws-config")]
    Aws(Arc<CredentialCache<Chain>>),
}

impl Credentials {
    pub(in crate::storage) fn known(source: impl Into<String>) -> Self {
        Self::Known(source.into())
    }

    /// Returns the origin, for display.
    pub(in crate::storage) fn shown(&self) -> String {
        match self {
            Self::Known(source) => source.clone(),
            #[cfg(feature = "aws-config")]
            Self::Aws(cache) => cache
                .source()
                .unwrap_or_else(|| "the AWS configuration, not yet looked up".to_owned()),
        }
    }

    /// Records that the store refused the credentials of a request that began then, and returns
    /// whether the next request will have others.
    pub(in crate::storage) fn rejected(&self, began: Option<Instant>) -> bool {
        match self {
            Self::Known(_) => {
                let _ = began;
                false
            }
            #[cfg(feature = "aws-config")]
            Self::Aws(cache) => cache.rejected(began),
        }
    }
}

/// Failure to get credentials. Crosses `object_store` as the source of its error.
#[derive(Clone, Debug)]
pub(in crate::storage) struct CredentialFailure {
    pub(in crate::storage) kind: ErrorKind,
    pub(in crate::storage) message: String,
    pub(in crate::storage) hint: Option<String>,
    /// Text of the credential source.
    pub(in crate::storage) cause: Option<String>,
}

impl CredentialFailure {
    pub(in crate::storage) fn classification(&self) -> Classification {
        let cause = self.cause.clone().map(Cause::Words);
        let classification = Classification::new(self.kind, &self.message).cause(cause);
        match &self.hint {
            Some(hint) => classification.hint(hint),
            None => classification,
        }
    }
}

impl fmt::Display for CredentialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CredentialFailure {}
