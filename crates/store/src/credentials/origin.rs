//! Origin of a store's credentials, in words.
//!
//! Never holds a credential. `cache.rs` holds those that are renewed; all others are inside of
//! `object_store`.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use object_store::CredentialProvider;

use super::cache::{CredentialCache, Renewed, Tokens};

/// Origin of requests without credentials.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// Origin of a store's credentials.
#[derive(Clone, Debug)]
pub(crate) enum Credentials {
    /// Known when the store was opened.
    Known(String),
    /// Fetched on first use; later lookups may find others.
    Renewed {
        /// Origin until then.
        at_first: String,
        cache: Arc<dyn Renewed>,
    },
}

impl Credentials {
    pub(crate) fn known(source: impl Into<String>) -> Self {
        Self::Known(source.into())
    }

    /// Returns a cache of the provider's tokens, and their origin. The provider itself loses a
    /// valid token when it cannot renew it.
    pub(crate) fn renewed<C: Debug + Send + Sync + 'static>(
        provider: Arc<dyn CredentialProvider<Credential = C>>,
        source: String,
    ) -> (Arc<dyn CredentialProvider<Credential = C>>, Self) {
        let at_first = source.clone();
        let cache = Arc::new(CredentialCache::new(Tokens { provider, source }));
        (Arc::clone(&cache) as _, Self::Renewed { at_first, cache })
    }

    /// Returns whether requests are sent without credentials.
    pub(crate) fn is_anonymous(&self) -> bool {
        matches!(self, Self::Known(source) if source == ANONYMOUS)
    }

    /// Returns the origin, for display.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Known(source) => source.clone(),
            Self::Renewed { at_first, cache } => cache.source().unwrap_or_else(|| at_first.clone()),
        }
    }

    /// Records that the store refused the credentials of a request that began then, and returns
    /// whether the next request will have others.
    pub(crate) fn rejected(&self, began: Option<Instant>) -> bool {
        match self {
            Self::Known(_) => false,
            Self::Renewed { cache, .. } => cache.rejected(began),
        }
    }
}
