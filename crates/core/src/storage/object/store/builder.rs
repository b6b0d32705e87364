//! Common steps of opening a store of any protocol: options over environment, and errors without
//! secrets.
//!
//! The files of the protocols (`s3.rs`, `gcs.rs`, `azure.rs`, `web.rs`) turn this into a builder of
//! `object_store`.

use std::str::FromStr;
use std::sync::Arc;

use http::HeaderValue;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use super::checksums::Signer;
use super::connector::Connector;
use super::credentials::Credentials;
use super::environment::{Environment, is_credential_key};
use super::redactor::{Redactor, Sent};
use super::request_error::texts;
use crate::error::{Error, ErrorKind, Result};
use crate::options::location::RemoteUrl;
use crate::options::store_options::StoreOptions;

/// Inputs of opening a store.
pub(in crate::storage) struct Opening<'a> {
    pub(in crate::storage) url: &'a RemoteUrl,
    pub(in crate::storage) options: &'a StoreOptions,
    /// Empty if the options disable it.
    pub(in crate::storage) environment: &'a Environment,
    pub(in crate::storage) connector: Connector,
}

/// Opened store and its properties.
pub(in crate::storage) struct OpenStore {
    pub(in crate::storage) store: Arc<dyn ObjectStore>,
    pub(in crate::storage) credentials: Credentials,
    pub(in crate::storage) anonymous: bool,
    /// Region that requests are signed for.
    pub(in crate::storage) region: Option<String>,
    /// Number of HTTP clients, beside the store's own, that speak to the store itself.
    pub(in crate::storage) sessions: usize,
    /// Signer of requests that `object_store` cannot make; S3 only.
    pub(in crate::storage) signer: Option<Signer>,
    /// Token that was found in a file.
    pub(in crate::storage) token: Option<HeaderValue>,
}

impl Opening<'_> {
    /// Returns whether the environment may be read.
    pub(in crate::storage) fn may_read_environment(&self) -> bool {
        self.options.flag("environment").unwrap_or(true)
    }

    /// Returns the first of these options that is set.
    pub(in crate::storage) fn first_option(&self, names: &[&'static str]) -> Option<&'static str> {
        let set = |name: &&&str| self.options.get(name).is_some();
        names.iter().find(set).copied()
    }

    /// Returns the first option under a name of `object_store`'s that sets credentials.
    pub(in crate::storage) fn passed_credential(&self) -> Option<&str> {
        let protocol = self.url.protocol;
        let mut names = self.options.passed_on(protocol).map(|(name, _)| name);
        names.find(|name| is_credential_key(protocol, name))
    }

    /// Returns settings for `object_store`, in ascending precedence: those of the environment, then
    /// the options that carry its names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for an option that `object_store` does not know.
    pub(in crate::storage) fn settings<K: FromStr>(
        &self,
        explicit: bool,
    ) -> Result<Vec<(K, String)>> {
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
                    format!("store option {name} is unknown to object_store as well"),
                )
            })?;
            settings.push((key, value.to_owned()));
        }
        Ok(settings)
    }

    /// Refuses to look for credentials if the options forbid it and give none.
    pub(in crate::storage) fn needs_credentials(&self) -> Result<()> {
        if self.may_read_environment() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::PermissionDenied,
            "no credentials are given, and environment=false forbids looking for any",
        )
        .with_location(self.url.shown())
        .with_hint("pass credentials, or set anonymous=true for public data"))
    }

    /// Translates a failure of `object_store` to build a store, which happens before any request.
    pub(in crate::storage) fn refused(&self, error: &object_store::Error) -> Error {
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

/// Returns the configuration without retries: tload retries by itself, with knowledge of the whole
/// load.
pub(in crate::storage) fn no_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        retry_timeout: std::time::Duration::ZERO,
    }
}

/// Returns whether an endpoint is used without TLS.
pub(in crate::storage) fn is_plain(endpoint: Option<&str>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
}
