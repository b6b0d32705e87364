//! Common steps of opening a store of any protocol: options over environment, and errors without
//! secrets.
//!
//! The files and folders of `protocols/` turn this into a builder of `object_store`, or a store.
//! Each has a [`StoreProtocol`].

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use http::HeaderValue;
use object_store::{BackoffConfig, ClientOptions, RetryConfig};

use crate::backend::{StoreBackend, Writable};
use crate::credentials::origin::Credentials;
use crate::environment::{Environment, Variables};
use crate::error::{Error, ErrorKind, Result};
use crate::errors::classification::texts;
use crate::errors::redactor::{Redactor, Sent};
use crate::explain::context::Hints;
use crate::http::client::{Extras, client_options};
use crate::http::connector::Connector;
use crate::http::first_connection::FirstConnection;
use crate::http::pages::Format;
use crate::http::signing::Signer;
use crate::http::trust::Bundle;
use crate::objects::Objects;
use crate::options::location::{Protocol, RemoteUrl};
use crate::options::require_clean;
use crate::options::store_options::StoreOptions;

/// Everything that depends on the protocol of a store, except its options.
pub(crate) struct StoreProtocol {
    pub(crate) protocol: Protocol,
    pub(crate) open: fn(&Opening) -> Result<OpenStore>,
    /// Returns the files that a store is opened from, in addition to those that options of all
    /// protocols name; `None` if no other opening may share it.
    pub(crate) files: fn(&Opening) -> Option<Vec<PathBuf>>,
    /// Variables with settings for `object_store`, if there are any.
    pub(crate) variables: Option<&'static Variables>,
    pub(crate) hints: Hints,
    /// Variables that name certificates to trust, in order of precedence.
    pub(crate) bundles: [&'static str; 2],
}

/// Inputs of opening a store.
pub(crate) struct Opening<'a> {
    pub(crate) protocol: &'static StoreProtocol,
    pub(crate) url: &'a RemoteUrl,
    pub(crate) options: &'a StoreOptions,
    /// Empty if the options disable it.
    pub(crate) environment: &'a Environment,
    pub(crate) connector: Connector,
    /// Holds the secrets that the store is opened with.
    pub(crate) redactor: Redactor,
}

/// Opened store and its properties.
pub(crate) struct OpenStore {
    pub(crate) backend: Arc<dyn StoreBackend>,
    pub(crate) credentials: Credentials,
    /// Endpoint and account, beyond what the URL names.
    pub(crate) origin: String,
    /// Region that requests are signed for.
    pub(crate) region: Option<String>,
    /// Number of further HTTP clients that speak to the store itself.
    pub(crate) sessions: usize,
    /// Signer of requests that `object_store` cannot make.
    pub(crate) signer: Option<Signer>,
    /// Token that was found in a file.
    pub(crate) token: Option<HeaderValue>,
    /// Limit of the first connection.
    pub(crate) first: Option<Arc<FirstConnection>>,
    /// Error of requests if they are forbidden: message and hint.
    pub(crate) offline: Option<(String, String)>,
}

impl OpenStore {
    /// Creates a store that `object_store` knows; `lists` is the form of its lists.
    pub(crate) fn of_objects(
        store: impl Writable,
        lists: Option<Format>,
        credentials: Credentials,
    ) -> Self {
        let store: Arc<dyn Writable> = Arc::new(store);
        let (writable, store) = (Some(Arc::clone(&store)), store as _);
        Self::new(
            Arc::new(Objects {
                store,
                writable,
                lists,
            }),
            credentials,
        )
    }

    /// Creates a store without any of the properties that only some protocols have.
    pub(crate) fn new(backend: Arc<dyn StoreBackend>, credentials: Credentials) -> Self {
        Self {
            backend,
            credentials,
            origin: String::new(),
            region: None,
            sessions: 0,
            signer: None,
            token: None,
            first: None,
            offline: None,
        }
    }
}

impl Opening<'_> {
    /// Returns whether the environment may be read.
    pub(crate) fn may_read_environment(&self) -> bool {
        self.options.flag("environment").unwrap_or(true)
    }

    /// Returns the first of these options that is set.
    pub(crate) fn first_option(&self, names: &[&'static str]) -> Option<&'static str> {
        let set = |name: &&&str| self.options.get(name).is_some();
        names.iter().find(set).copied()
    }

    /// Returns the first option under a name of `object_store`'s that sets credentials.
    pub(crate) fn passed_credential(&self) -> Option<&str> {
        let variables = self.protocol.variables?;
        let mut passed = self.options.passed_on(self.url.protocol);
        let (name, _) = passed.find(|(name, _)| variables.is_credential(name))?;
        Some(name)
    }

    /// Returns whether options give credentials, or forbid any: those of the environment are then
    /// left out. `names` are the protocol's own options for them.
    pub(crate) fn is_explicit(&self, names: &[&'static str]) -> bool {
        self.first_option(names).is_some()
            || self.options.flag("anonymous") == Some(true)
            || self.passed_credential().is_some()
    }

    /// Returns settings for `object_store`, in ascending precedence: those of the environment, then
    /// those of options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for an option that `object_store` does not know.
    pub(crate) fn settings<K: FromStr>(&self, explicit: bool) -> Result<Vec<(K, String)>> {
        let mut settings = self.ambient_settings(explicit)?;
        settings.extend(self.passed_settings()?);
        Ok(settings)
    }

    /// Returns settings for `object_store` from the environment.
    ///
    /// # Errors
    ///
    /// Those of [`require_clean`]. `object_store` panics on such values.
    pub(crate) fn ambient_settings<K: FromStr>(&self, explicit: bool) -> Result<Vec<(K, String)>> {
        let variables = self.protocol.variables.into_iter();
        let settings = variables.flat_map(|of| self.environment.settings(of, !explicit));
        // Most variables with the prefix are for other tools.
        let known = settings.filter_map(|(name, value)| Some((name.parse().ok()?, name, value)));
        let checked = known.map(|(key, name, value)| {
            // A key in JSON has several lines.
            if !value.starts_with('{') {
                require_clean(name.to_ascii_uppercase(), &value)?;
            }
            Ok((key, value))
        });
        checked.collect()
    }

    /// Returns settings for `object_store` from options that have its names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for an option that `object_store` does not know.
    pub(crate) fn passed_settings<K: FromStr>(&self) -> Result<Vec<(K, String)>> {
        let options = self.options.passed_on(self.url.protocol);
        options
            .map(|(name, value)| {
                let unknown = || format!("store option {name} is unknown to object_store as well");
                let key = name
                    .parse()
                    .map_err(|_| Error::invalid_request(unknown()))?;
                require_clean(format!("store option {name}"), value)?;
                Ok((key, value.to_owned()))
            })
            .collect()
    }

    /// Returns the configuration of the HTTP client.
    ///
    /// # Errors
    ///
    /// Those of [`client_options`].
    pub(crate) fn client(&self, mut extras: Extras) -> Result<ClientOptions> {
        let of_variables = || Bundle::of_variables(self.environment, &self.protocol.bundles);
        extras.bundle = extras.bundle.or_else(of_variables);
        client_options(self.options, self.environment, &self.connector, extras)
    }

    /// Refuses to look for credentials if the options forbid it and give none.
    pub(crate) fn needs_credentials(&self) -> Result<()> {
        if self.may_read_environment() {
            return Ok(());
        }
        let message = "no credentials are given, and environment=false forbids looking for any";
        Err(Error::new(ErrorKind::PermissionDenied, message)
            .with_location(self.url.shown())
            .with_hint("pass credentials, or set anonymous=true for public data"))
    }

    /// Returns the error for a file of credentials that cannot be used. An option, one of
    /// `object_store`'s options or a variable has its `path` as value.
    pub(crate) fn unusable_file(&self, option: Option<&str>, path: &str, found: &str) -> Error {
        let is_path = |(_, value): &(&str, &str)| *value == path;
        let mut passed = self.options.passed_on(self.url.protocol);
        let passed = || Some(format!("option {}", passed.find(is_path)?.0));
        let variables = self.protocol.variables.into_iter();
        let mut ambient = variables.flat_map(|of| self.environment.settings(of, true));
        let ambient = || Some(ambient.find(|it| it.1 == path)?.0.to_ascii_uppercase());
        let option = option.filter(|name| self.options.get(name) == Some(path));
        let option = option.map(|name| format!("option {name}"));
        let origin = option.or_else(passed).or_else(ambient);
        let origin = origin.map_or(String::new(), |it| format!(" that {it} names"));
        let found = self.redactor.clean(found, &Sent::default());
        let message = format!("the file of credentials{origin} cannot be used: {found}");
        let error = Error::invalid_request(message);
        // A key itself, given for the path of its file, is secret.
        if path.contains(['{', '\n']) {
            let error = error.with_location(self.url.shown());
            return error.with_hint("pass the path of a file, not its contents");
        }
        let error = error.with_location(crate::error::printable(path));
        error.with_hint("correct the path or the file, or pass other credentials")
    }

    /// Translates a failure of `object_store` to build a store, which happens before any request.
    pub(crate) fn refused(&self, error: &object_store::Error) -> Error {
        let texts = texts(error);
        let clean = |text: &String| self.redactor.clean(text, &Sent::default());
        let text = texts.last().map(clean).unwrap_or_default();
        let options = self.options.iter();
        let options = options.map(|(name, _)| format!("option {name}"));
        let variables = self.protocol.variables.into_iter();
        let variables = variables.flat_map(|of| self.environment.settings(of, true));
        let variables = variables.map(|(name, _)| name.to_ascii_uppercase());
        let set = std::iter::once("the files of the cloud's tools".to_owned());
        let set: Vec<_> = set.chain(options).chain(variables).collect();
        Error::invalid_request(format!("the store cannot be opened: {text}"))
            .with_location(self.url.shown())
            .with_hint(format!("check {}", set.join(", ")))
    }
}

#[cfg(test)]
impl<'a> Opening<'a> {
    /// Creates inputs for tests, which have no secrets to mask.
    pub(crate) fn without_secrets(
        protocol: &'static StoreProtocol,
        url: &'a RemoteUrl,
        options: &'a StoreOptions,
        environment: &'a Environment,
    ) -> Self {
        Self {
            protocol,
            url,
            options,
            environment,
            connector: Connector::default(),
            redactor: Redactor::default(),
        }
    }
}

/// Returns the configuration without retries: tload retries by itself, with knowledge of the whole
/// load.
pub(crate) fn no_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        retry_timeout: std::time::Duration::ZERO,
    }
}

/// Returns whether an endpoint is used without TLS.
pub(crate) fn is_plain(endpoint: Option<&str>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
}
