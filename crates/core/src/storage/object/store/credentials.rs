//! Origin of a store's credentials, in words.
//!
//! Never holds a credential. `credential_cache.rs` holds those of the AWS SDK; all others are
//! inside of `object_store`.

use std::time::Instant;

#[cfg(feature = "aws-config")]
use {super::aws::Chain, super::credential_cache::CredentialCache, std::sync::Arc};

/// Origin of requests without credentials.
pub(in crate::storage) const ANONYMOUS: &str = "anonymous";

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

    /// Returns whether requests are sent without credentials.
    pub(in crate::storage) fn is_anonymous(&self) -> bool {
        matches!(self, Self::Known(source) if source == ANONYMOUS)
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
