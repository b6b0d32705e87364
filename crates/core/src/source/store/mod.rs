//! An object store as tload uses it: opened from a URL and options, asked one request at a time, with failures that say what to do.
//!
//! Each call here is one attempt. Who calls decides whether to try again ([`Fault::transient`], [`crate::retry`]), adds location and
//! range to errors, and reads bodies. Types of `object_store` end here and at the source of objects.

mod addresses;
#[cfg(feature = "aws-config")]
mod aws;
mod azure;
mod checksums;
mod client;
mod connector;
mod credentials;
mod environment;
mod exchange;
mod fault;
mod gcs;
mod hub;
mod opening;
mod pages;
mod path;
mod redactor;
mod redirects;
#[cfg(feature = "aws-config")]
mod refreshing;
mod refusal;
mod reply;
mod s3;
#[cfg(test)]
mod tests;
mod transport;
mod web;

use std::fmt;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};

pub(crate) use self::client::READ_TIMEOUT;
pub(crate) use self::exchange::Exchange;
pub(crate) use self::fault::Fault;
#[cfg(feature = "testing")]
pub(crate) use self::hub::assert_levels_are_whole;
pub(crate) use self::hub::{cached, is_offline, snapshot};
pub(crate) use self::path::object_path;

use self::checksums::Asks;
use self::connector::Connector;
use self::credentials::Credentials;
use self::environment::Environment;
use self::exchange::capture;
use self::fault::{Asked, failed_request, translate};
use self::hub::{Commit, Repository};
use self::opening::Opening;
use self::redactor::Redactor;
use super::location::{Protocol, RemoteUrl};
use super::store_options::StoreOptions;
use crate::error::{Error, ErrorKind, FailedRequest, Result};

/// A bucket, a container, a web server, or a repository of a model hub.
pub(crate) struct Store {
    inner: Arc<dyn ObjectStore>,
    /// Without secrets.
    label: String,
    /// `None` if the caller brought it.
    protocol: Option<Protocol>,
    credentials: Credentials,
    anonymous: bool,
    region: Option<String>,
    signed_url: bool,
    /// The HTTP clients from this one on speak to the store, those before it fetch credentials.
    own_client: usize,
    /// Of a hub.
    repository: Option<Repository>,
    /// How an object's own checksums are asked for.
    asks: Asks,
    redactor: Redactor,
}

/// What is directly below a prefix.
#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) objects: Vec<Listed>,
    pub(crate) prefixes: Vec<Path>,
}

/// An object as a list has it.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) location: Path,
    /// Length, bytes. Every store says it, not every hub.
    pub(crate) len: Option<u64>,
    /// Time of the last change, seconds since 1970; zero if it is not known.
    pub(crate) modified: i64,
    pub(crate) e_tag: Option<String>,
    pub(crate) version: Option<String>,
}

impl Store {
    /// Opens the store of a URL and says where in it the URL points. Asks nothing of the store yet.
    ///
    /// Blocks, to read configuration files, and wants no runtime. Requests want one of tokio with I/O and time.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::InvalidRequest`] for options and paths that make no sense, [`crate::ErrorKind::PermissionDenied`] if
    /// nothing is to be looked at and no credentials are given, [`crate::ErrorKind::Unsupported`] for profiles in a build
    /// without them; I/O for files that cannot be read.
    pub(crate) fn open(url: &RemoteUrl, options: &StoreOptions) -> Result<(Arc<Self>, Path)> {
        let environment = Environment::unless_forbidden(options);
        Self::open_in(url, options, &environment)
    }

    fn open_in(
        url: &RemoteUrl,
        options: &StoreOptions,
        environment: &Environment,
    ) -> Result<(Arc<Self>, Path)> {
        let path = object_path(url)?;
        let opening = Opening {
            url,
            options,
            environment,
            connector: Connector::default(),
        };
        let mut repository = None;
        let opened = match url.protocol {
            Protocol::S3 => s3::open(&opening)?,
            Protocol::Gcs => gcs::open(&opening)?,
            Protocol::Azure => azure::open(&opening)?,
            Protocol::Http => web::open(&opening)?,
            Protocol::Hub => {
                let (opened, found) = hub::open(&opening)?;
                repository = Some(found);
                opened
            }
            Protocol::Custom => {
                return Err(Error::new(
                    ErrorKind::InvalidRequest,
                    "is in a store that only its owner can open",
                ));
            }
        };
        let own_client = opening.connector.made().saturating_sub(opened.sessions);
        opening.connector.own_from(own_client);
        let store = Self {
            inner: opened.store,
            label: format!("{}://{}", url.scheme, url.host()),
            protocol: Some(url.protocol),
            credentials: opened.credentials,
            anonymous: opened.anonymous,
            region: opened.region,
            signed_url: url.protocol == Protocol::Http && url.query.is_some(),
            own_client,
            repository,
            asks: Asks {
                signer: opened.signer,
            },
            redactor: Redactor::new(url, options, environment).and(opened.token.as_ref()),
        };
        Ok((Arc::new(store), path))
    }

    /// A store that the caller brought.
    pub(crate) fn custom(store: Arc<dyn ObjectStore>, label: &str) -> Arc<Self> {
        Arc::new(Self {
            inner: store,
            label: label.to_owned(),
            protocol: None,
            credentials: Credentials::known("the caller's store"),
            anonymous: false,
            region: None,
            signed_url: false,
            own_client: 0,
            repository: None,
            asks: Asks::default(),
            redactor: Redactor::default(),
        })
    }

    /// Asks for an object or a range of it, once.
    pub(crate) async fn get(
        &self,
        path: &Path,
        options: GetOptions,
    ) -> Result<(GetResult, Exchange), Fault> {
        let operation = if options.head { "HEAD" } else { "GET" };
        let Some(commit) = self.commit().await? else {
            let asked = self.inner.get_opts(path, options);
            return self.request(operation, asked).await;
        };
        let place = commit.path_of(path);
        let question = Commit::question(options);
        let asked = self.inner.get_opts(&place, question.clone());
        let (mut result, exchange) = match (self.request(operation, asked).await, &question.range) {
            (Err(fault), Some(GetRange::Bounded(range))) if commit.may_come_whole(path, &fault) => {
                let all = GetOptions {
                    range: None,
                    ..question.clone()
                };
                let asked = self.inner.get_opts(&place, all);
                let (result, exchange) = self.request(operation, asked).await?;
                (hub::cut(result, range), exchange)
            }
            (answer, _) => answer?,
        };
        commit
            .describe(path, &mut result.meta)
            .map_err(|message| self.misbehaved(&exchange, &message))?;
        Ok((result, exchange))
    }

    /// Asks for length and identity of an object, once.
    pub(crate) async fn head(&self, path: &Path) -> Result<(ObjectMeta, Exchange), Fault> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let (result, exchange) = self.get(path, options).await?;
        Ok((result.meta, exchange))
    }

    /// Asks for length and identity of an object and for its own checksums, once: they are in [`Exchange::stated`].
    pub(crate) async fn checksums(
        &self,
        path: &Path,
        mut options: GetOptions,
    ) -> Result<(ObjectMeta, Exchange), Fault> {
        options.head = true;
        options.extensions.insert(self.asks.clone());
        let (result, exchange) = self.get(path, options).await?;
        Ok((result.meta, exchange))
    }

    /// Whether objects here have checksums of their own that can be asked for.
    pub(crate) fn states_checksums(&self) -> bool {
        matches!(self.protocol, Some(Protocol::S3 | Protocol::Gcs))
    }

    /// Of a hub: what it calls the contents of a file, if somebody has asked for the list of files and it says so.
    pub(crate) fn contents_name(&self, file: &Path) -> Option<&str> {
        self.repository.as_ref()?.commit.get()?.contents_name(file)
    }

    /// Asks for all that is directly below a prefix, once for each page.
    pub(crate) async fn list(&self, prefix: Option<&Path>) -> Result<Level, Fault> {
        if let Some(commit) = self.commit().await? {
            return Ok(commit.level(prefix));
        }
        let listing = pages::bounded(self.inner.list_with_delimiter(prefix));
        let (listing, _) = self.request("LIST", listing).await?;
        // Consoles mark a folder by an empty object that is called like it.
        let is_marker = |object: &ObjectMeta| Some(&object.location) == prefix;
        let objects = listing.objects.into_iter();
        Ok(Level {
            objects: objects
                .filter(|object| !is_marker(object))
                .map(|object| Listed {
                    location: object.location,
                    len: Some(object.size),
                    modified: object.last_modified.timestamp(),
                    e_tag: object.e_tag,
                    version: object.version,
                })
                .collect(),
            prefixes: listing.common_prefixes,
        })
    }

    /// Of a hub: the commit that is read. Asked for once, so that all that is read through this store is of one.
    async fn commit(&self) -> Result<Option<&Commit>, Fault> {
        let Some(repository) = &self.repository else {
            return Ok(None);
        };
        let ask = || async {
            let (answer, exchange) = self.request("GET", repository.ask()).await?;
            Commit::parse(&answer).map_err(|what| Fault {
                error: Error::new(ErrorKind::Remote, "the hub's answer makes no sense")
                    .with_request(self.failed_request(&exchange, "GET"))
                    .with_source(self.redactor.clean(&what, &exchange.sent))
                    .with_hint("check that the endpoint is one of a model hub (option endpoint, HF_ENDPOINT)"),
                transient: None,
                asked: None,
            })
        };
        repository.commit.get_or_try_init(ask).await.map(Some)
    }

    /// The same, if somebody has asked.
    pub(crate) fn commit_name(&self) -> Option<&str> {
        Some(self.repository.as_ref()?.commit.get()?.name())
    }

    async fn request<T>(
        &self,
        operation: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<(T, Exchange), Fault> {
        let (result, exchange) = capture(request).await;
        match result {
            Ok(result) => Ok((result, exchange)),
            Err(error) => Err(self.fault(&error, &exchange, operation)),
        }
    }

    /// What a failure means, of a request or of the body of its answer.
    pub(crate) fn fault(
        &self,
        error: &object_store::Error,
        exchange: &Exchange,
        operation: &str,
    ) -> Fault {
        let expired = matches!(
            exchange.code.as_deref(),
            Some("ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired")
        );
        let credentials = self.credentials();
        let asked = Asked {
            refreshed: expired && self.credentials.rejected(exchange.began),
            ..self.asked(exchange, operation, &credentials)
        };
        translate(error, exchange, &asked)
    }

    fn asked<'a>(
        &'a self,
        exchange: &Exchange,
        operation: &'a str,
        credentials: &'a str,
    ) -> Asked<'a> {
        Asked {
            operation,
            protocol: self.protocol,
            credentials,
            anonymous: self.anonymous,
            region: self.region.as_deref(),
            signed_url: self.signed_url,
            own: exchange.client == 0 || exchange.client >= self.own_client,
            refreshed: false,
            redactor: &self.redactor,
        }
    }

    /// A text of ours that repeats something of an answer, without secrets.
    pub(crate) fn redacted(&self, text: &str, exchange: &Exchange) -> String {
        self.redactor.redact(text, &exchange.sent)
    }

    /// The server does not do what HTTP says: `message` says what it did.
    pub(crate) fn misbehaved(&self, exchange: &Exchange, message: &str) -> Fault {
        Fault {
            error: Error::new(ErrorKind::Remote, self.redacted(message, exchange))
                .with_request(self.failed_request(exchange, "GET"))
                .with_hint(
                    "the server, or a proxy in front of it, answers ranged requests wrongly",
                ),
            transient: None,
            asked: None,
        }
    }

    /// What is known of a request whose answer was of no use.
    pub(crate) fn failed_request(&self, exchange: &Exchange, operation: &str) -> FailedRequest {
        failed_request(
            exchange,
            &self.asked(exchange, operation, &self.credentials()),
        )
    }

    /// Where the credentials come from, for people.
    pub(crate) fn credentials(&self) -> String {
        self.credentials.shown()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("label", &self.label)
            .field("credentials", &self.credentials.shown())
            .finish_non_exhaustive()
    }
}
