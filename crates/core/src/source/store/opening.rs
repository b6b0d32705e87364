//! What opening a store takes, whatever its protocol: options over environment, and errors without secrets.
//!
//! The protocols' own files (`s3.rs`, `gcs.rs`, `azure.rs`, `web.rs`) turn it into a builder of `object_store`.

use std::str::FromStr;
use std::sync::Arc;

use http::HeaderValue;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use super::checksums::Signer;
use super::connector::Connector;
use super::credentials::Credentials;
use super::environment::{Environment, says_who};
use super::fault::texts;
use super::redactor::{Redactor, Sent};
use crate::error::{Error, ErrorKind, Result};
use crate::source::location::RemoteUrl;
use crate::source::store_options::StoreOptions;

/// What is known before a store is opened.
pub(super) struct Opening<'a> {
    pub(super) url: &'a RemoteUrl,
    pub(super) options: &'a StoreOptions,
    /// Empty if the options say so.
    pub(super) environment: &'a Environment,
    pub(super) connector: Connector,
}

/// An opened store and what is known of it.
pub(super) struct Opened {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) credentials: Credentials,
    pub(super) anonymous: bool,
    /// The region that requests are signed for.
    pub(super) region: Option<String>,
    /// HTTP clients made beside the store's own that speak to the store itself.
    pub(super) sessions: usize,
    /// Of S3: signs requests that `object_store` cannot make.
    pub(super) signer: Option<Signer>,
    /// A token that was found in a file.
    pub(super) token: Option<HeaderValue>,
}

impl Opening<'_> {
    /// Whether the environment may be looked at.
    pub(super) fn looks_around(&self) -> bool {
        self.options.flag("environment").unwrap_or(true)
    }

    /// The first of these options that is set.
    pub(super) fn first_option(&self, names: &[&'static str]) -> Option<&'static str> {
        let set = |name: &&&str| self.options.get(name).is_some();
        names.iter().find(set).copied()
    }

    /// The first option under a name of `object_store`'s that says who asks.
    pub(super) fn passed_on_who(&self) -> Option<&str> {
        let protocol = self.url.protocol;
        let mut names = self.options.passed_on(protocol).map(|(name, _)| name);
        names.find(|name| says_who(protocol, name))
    }

    /// Settings for `object_store`, weakest first: the environment's and then those options that carry its names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for an option that it does not know.
    pub(super) fn settings<K: FromStr>(&self, explicit: bool) -> Result<Vec<(K, String)>> {
        let protocol = self.url.protocol;
        let mut settings: Vec<(K, String)> = self
            .environment
            .settings(protocol, !explicit)
            .into_iter()
            // Most variables with the prefix are for other tools.
            .filter_map(|(name, value)| Some((name.parse().ok()?, value)))
            .collect();
        for (name, value) in self.options.passed_on(protocol) {
            let key = name.parse().map_err(|_| {
                Error::new(
                    ErrorKind::InvalidRequest,
                    format!("store option {name} is unknown, to object_store too"),
                )
            })?;
            settings.push((key, value.to_owned()));
        }
        Ok(settings)
    }

    /// Refuses to look for credentials if options forbid it and there are none.
    pub(super) fn needs_credentials(&self) -> Result<()> {
        if self.looks_around() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::PermissionDenied,
            "no credentials are given, and environment=false forbids to look for any",
        )
        .with_location(self.url.shown())
        .with_hint("give credentials, or set anonymous=true for what everybody may read"))
    }

    /// A failure of `object_store` to build a store, which happens before anything is asked of it.
    pub(super) fn refused(&self, error: &object_store::Error) -> Error {
        let texts = texts(error);
        let redactor = Redactor::new(self.url, self.options, self.environment);
        let clean = |text: &String| redactor.clean(text, &Sent::default());
        let text = texts.last().map(clean).unwrap_or_default();
        let error = Error::new(
            ErrorKind::InvalidRequest,
            format!("the store cannot be opened: {text}"),
        );
        error
            .with_location(self.url.shown())
            .with_hint("check the options of the store and the environment")
    }
}

/// tload tries again itself, with what it knows of the whole load.
pub(super) fn no_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        retry_timeout: std::time::Duration::ZERO,
    }
}

/// Whether an endpoint is to be spoken to without TLS.
pub(super) fn is_plain(endpoint: Option<&str>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
}
