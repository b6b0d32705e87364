//! Origin of a store's credentials: in words, and the files that they may come from.
//!
//! Never holds a credential. `cache.rs` holds those that are renewed; all others are
//! inside of `object_store`.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use object_store::CredentialProvider;

use super::cache::{CredentialCache, Renewed, Tokens};
use crate::builder::{Opening, is_plain};
use crate::environment::Environment;

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

/// Returns whether options leave nothing to the files of the AWS configuration. With TLS, these may
/// name certificates.
pub(crate) fn needs_no_files(opening: &Opening) -> bool {
    let options = opening.options;
    let has_credentials =
        options.get("access_key_id").is_some() || options.flag("anonymous") == Some(true);
    let has = |name| options.get(name).is_some();
    let has_bundle = has("ca_file") || opening.environment.get("AWS_CA_BUNDLE").is_some();
    let has_endpoint = has("endpoint") && (has_bundle || is_plain(options.get("endpoint")));
    has_credentials && has_endpoint && has("region")
}

/// Returns the files of the AWS configuration, unless options give everything that is read from
/// them.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the signature that protocols have"
)]
pub(crate) fn files_of_aws(opening: &Opening) -> Option<Vec<PathBuf>> {
    let may_read = opening.may_read_environment() || opening.options.get("profile").is_some();
    let is_complete = needs_no_files(opening);
    // The SDK reads these variables itself, also for a profile that options name.
    let environment = Environment::from_process();
    let of_aws = [
        ("AWS_CONFIG_FILE", "~/.aws/config"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ]
    .iter()
    .filter(|_| may_read && !is_complete);
    let of_aws = of_aws.filter_map(|(variable, usual)| {
        environment.expanded(environment.get(variable).unwrap_or(usual))
    });
    Some(of_aws.collect())
}
