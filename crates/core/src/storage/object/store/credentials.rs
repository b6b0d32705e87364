//! Origin of a store's credentials: in words, and the files that they may come from.
//!
//! Never holds a credential. `credential_cache.rs` holds those of the AWS SDK; all others are
//! inside of `object_store`.

use std::path::PathBuf;
use std::time::Instant;

#[cfg(feature = "aws-config")]
use {super::aws::Chain, super::credential_cache::CredentialCache, std::sync::Arc};

use super::builder::Opening;
use super::environment::Environment;

/// Origin of requests without credentials.
pub(in crate::storage) const ANONYMOUS: &str = "anonymous";

/// Origin of a store's credentials.
#[derive(Clone, Debug)]
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

/// Returns the bundle of certificates and, unless options give everything that they could, the
/// files of the AWS configuration.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the signature that protocols have"
)]
pub(in crate::storage) fn files_of_aws(opening: &Opening) -> Option<Vec<PathBuf>> {
    let options = opening.options;
    let has_credentials =
        options.get("access_key_id").is_some() || options.flag("anonymous") == Some(true);
    let has = |name| options.get(name).is_some();
    let is_complete = has_credentials && has("endpoint") && has("region");
    let may_read = opening.may_read_environment() || has("profile");
    // The SDK reads these variables itself, also for a profile that options name.
    let environment = Environment::from_process();
    let of_aws = [
        ("AWS_CONFIG_FILE", "~/.aws/config"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ];
    let of_aws = of_aws.iter().filter(|_| may_read && !is_complete);
    let of_aws = of_aws.filter_map(|(variable, usual)| {
        environment.expanded(environment.get(variable).unwrap_or(usual))
    });
    let bundle = opening.environment.get("AWS_CA_BUNDLE").map(PathBuf::from);
    Some(of_aws.chain(bundle).collect())
}
