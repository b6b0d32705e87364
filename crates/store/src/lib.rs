//! One request to one store, with an error that says what to do. No retries.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! A [`Store`] is opened from a URL and options. Each call is one attempt. The caller decides
//! whether to retry ([`Fault::transient`], [`tload_base::sync::retry`]), adds location and range to
//! errors, and reads bodies.

#![forbid(unsafe_code)]

mod addresses;
mod answers;
#[cfg(feature = "aws-config")]
mod aws;
#[cfg(feature = "aws-config")]
mod aws_http;
mod azure;
mod builder;
mod checksums;
mod classification;
mod client;
mod connector;
mod credential_cache;
mod credentials;
mod environment;
mod error_body;
mod failure;
mod first_connection;
mod gcs;
mod hub;
mod lists;
mod object_list;
pub mod obs_text;
mod oci;
mod pages;
mod path;
mod program;
mod proxy;
mod proxy_exempt;
mod ranged_response;
mod redactor;
mod redirects;
mod repr_digest;
mod requests;
mod response_capture;
mod rules;
mod s3;
mod s3_access_point;
mod s3_endpoint;
mod signing;
mod steps;
#[cfg(test)]
mod tests;
mod transport_rules;
mod tree;
mod trust;
mod web;

// Paths that the crates of tload share.
pub(crate) use tload_base::{error, files, options, sync};
pub(crate) use tload_format as format;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectMeta, ObjectStore};

pub use self::answers::{AnswerCache, AnswerPlace, Check, check};
pub use self::client::READ_TIMEOUT;
pub use self::environment::Surroundings;
pub use self::failure::Fault;
pub use self::hub::xet::{Arrived, Attempt};
#[cfg(feature = "testing")]
pub use self::hub::{assert_content_store_is_bounded, assert_levels_are_whole};
pub use self::hub::{
    cached, cached_copy, commit_in_cache, is_hub_offline, is_in_snapshot, repository_folder,
    snapshot,
};
pub use self::path::object_path;
pub use self::ranged_response::{EndsAt, KnownLen, NoRange};
pub use proxy::UsedProxy;
pub use repr_digest::Sha256;
pub use response_capture::{Connection, ResponseCapture};
pub use tree::{Level, Listed};

use self::checksums::Asks;
use self::connector::Connector;
use self::credentials::Credentials;
use self::environment::{Environment, Variables};
use self::first_connection::FirstConnection;
use self::hub::Commit;
use self::hub::bucket::Bucket;
use self::hub::repository::Repository;
use self::hub::xet::Xet;
use self::oci::Registry;
use self::redactor::Redactor;
use self::requests::Standing;
use self::signing::Signer;
use crate::error::{Error, ErrorKind, Result};
use crate::options::location::{Protocol, RemoteUrl};
use crate::options::store_options::{StoreOptions, without_credentials};
use crate::sync::timeline::Timeline;
use builder::{Opening, StoreProtocol};

/// End of the address of a server whose certificate is not verified.
const UNVERIFIED: &str = " without TLS verification";

/// Bucket, container, web server, or repository of a model hub.
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    /// Scheme and host, without secrets.
    label: String,
    /// Address of the server, if options or the environment give it; without secrets.
    origin: String,
    /// `None` if the caller provided the store.
    protocol: Option<&'static StoreProtocol>,
    credentials: Credentials,
    region: Option<String>,
    signed_url: bool,
    /// Index of the first HTTP client that speaks to the store; those before it fetch credentials.
    own_client: usize,
    /// Repository, if the store is one of a hub.
    repository: Option<Repository>,
    /// Artifact, if the store is an OCI registry.
    registry: Option<Arc<Registry>>,
    /// Bucket, if the store is one of a hub.
    bucket: Option<Bucket>,
    /// Place of the hub's description of the repository in the cache.
    description: Option<Arc<dyn AnswerPlace>>,
    /// Error of requests if they are forbidden: message and hint.
    offline: Option<(String, String)>,
    /// Limits the first request, if this is a hub.
    first: Option<Arc<FirstConnection>>,
    /// Way to request an object's own checksums.
    asks: Asks,
    /// Signs requests again to which headers of options were added.
    signer: Option<Signer>,
    redactor: Redactor,
    /// True until the first response, if connections of earlier openings are used: the server may
    /// have closed them.
    is_resumed: AtomicBool,
    /// Standing of the credentials, in all stores that use them.
    standing: Arc<Standing>,
    /// Makes the HTTP clients.
    connector: Connector,
    /// Phases of the requests: names, connections, credentials.
    timeline: Timeline,
}

/// Returns the implementation of a protocol; `None` for stores that the caller opens.
fn implementation(protocol: Protocol) -> Option<&'static StoreProtocol> {
    match protocol {
        Protocol::S3 => Some(&s3::PROTOCOL),
        Protocol::Gcs => Some(&gcs::PROTOCOL),
        Protocol::Azure => Some(&azure::PROTOCOL),
        Protocol::Http => Some(&web::PROTOCOL),
        Protocol::Hub => Some(&hub::PROTOCOL),
        Protocol::Oci => Some(&oci::PROTOCOL),
        Protocol::Custom => None,
    }
}

/// Returns the environment variables of all protocols.
fn variables_of_all() -> impl Iterator<Item = &'static Variables> {
    let protocols = Protocol::ALL.into_iter().filter_map(implementation);
    protocols.filter_map(|protocol| protocol.variables)
}

impl Store {
    /// Opens the store of a URL and returns it with the path of the URL in it, and the files and
    /// variables that it read; `None` if other openings cannot share it. Sends no request yet.
    ///
    /// Blocks to read configuration files and needs no runtime. Requests need a tokio runtime with
    /// I/O and time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for invalid options and paths,
    /// [`ErrorKind::PermissionDenied`] if the environment may not be read and no credentials
    /// are given, [`ErrorKind::Unsupported`] for profiles in a build without them; the kinds
    /// of I/O for files that cannot be read.
    pub fn open(
        url: &RemoteUrl,
        options: &StoreOptions,
        timeline: &Timeline,
        cache: Option<&dyn AnswerCache>,
    ) -> Result<(Arc<Self>, Path, Option<Surroundings>)> {
        let variables = Surroundings::variables();
        let environment = &Environment::unless_forbidden(options);
        let path = object_path(url)?;
        let Some(protocol) = implementation(url.protocol) else {
            return Err(Error::new(
                ErrorKind::InvalidRequest,
                "custom-store URLs must be opened with `Checkpoint::open_in`",
            ));
        };
        let opening = Opening {
            protocol,
            url,
            options,
            environment,
            connector: Connector::new(timeline.clone()),
            redactor: Redactor::new(url, options, environment, variables_of_all()),
        };
        // Note the state of the files before any of them is read, so that a later change is
        // noticed.
        let files = (protocol.files)(&opening);
        let surroundings = files.map(|files| Surroundings::new(variables, files));
        let opened = (protocol.open)(&opening)?;
        let trusted = opening.connector.trusted_file();
        let surroundings = surroundings.map(|seen| seen.and(trusted));
        let own_client = opening.connector.made().saturating_sub(opened.sessions);
        opening.connector.own_from(own_client);
        let mut origin = without_credentials(&opened.origin);
        if opening.connector.is_unverified() {
            // Anyone may have sent these bytes, so they must not be taken for bytes of a verified
            // server.
            origin.push_str(UNVERIFIED);
        }
        let store = Self {
            inner: opened.store,
            label: format!("{}://{}", url.scheme, url.host()),
            description: None,
            offline: offline(url, options),
            first: opening.first_connection(),
            origin,
            protocol: Some(protocol),
            credentials: opened.credentials,
            region: opened.region,
            signed_url: url.query.is_some(),
            own_client,
            repository: opened.repository,
            registry: opened.registry,
            bucket: opened.bucket,
            asks: Asks {
                signer: opened.signer.clone().filter(Signer::is_of_aws),
            },
            signer: opened.signer,
            redactor: opening.redactor.and(opened.token.as_ref()),
            is_resumed: AtomicBool::new(false),
            standing: Arc::default(),
            connector: opening.connector,
            timeline: timeline.clone(),
        };
        let description = store.description(url, cache);
        let store = Self {
            description,
            ..store
        };
        Ok((Arc::new(store), path, surroundings))
    }

    /// Returns the store as another opening has it: with the same client and credentials, and with
    /// nothing that the server has said.
    #[must_use]
    pub fn again(
        &self,
        url: &RemoteUrl,
        timeline: &Timeline,
        cache: Option<&dyn AnswerCache>,
    ) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            label: self.label.clone(),
            origin: self.origin.clone(),
            protocol: self.protocol,
            credentials: self.credentials.clone(),
            region: self.region.clone(),
            signed_url: self.signed_url,
            own_client: self.own_client,
            repository: self.repository.as_ref().map(Repository::again),
            registry: self.registry.clone(),
            bucket: self.bucket.clone(),
            description: self.description(url, cache),
            offline: self.offline.clone(),
            first: self.first.clone(),
            asks: self.asks.clone(),
            signer: self.signer.clone(),
            redactor: self.redactor.clone(),
            is_resumed: AtomicBool::new(true),
            standing: Arc::clone(&self.standing),
            connector: self.connector.clone(),
            timeline: timeline.clone(),
        }
    }

    /// Returns whether an opening may use what this store uses: it sends requests, a server was
    /// reached if that is limited in time, and the credentials have not turned out to be wrong.
    pub fn is_reusable(&self) -> bool {
        self.offline.is_none()
            && self.first.as_ref().is_none_or(|first| first.is_made())
            && !self.standing.is_doubtful.load(Ordering::Relaxed)
    }

    /// Returns the place of the hub's description of the repository in the cache.
    fn description(
        &self,
        url: &RemoteUrl,
        cache: Option<&dyn AnswerCache>,
    ) -> Option<Arc<dyn AnswerPlace>> {
        self.repository.as_ref()?;
        let repository = RemoteUrl {
            path: String::new(),
            ..url.clone()
        };
        cache?.place("commit", &repository, &self.origin)
    }

    /// Creates a store from one that the caller provides.
    pub fn custom(store: Arc<dyn ObjectStore>, label: &str) -> Arc<Self> {
        Arc::new(Self {
            inner: store,
            label: label.to_owned(),
            origin: String::new(),
            protocol: None,
            credentials: Credentials::known("the caller's store"),
            region: None,
            signed_url: false,
            own_client: 0,
            repository: None,
            registry: None,
            bucket: None,
            description: None,
            offline: None,
            first: None,
            asks: Asks::default(),
            signer: None,
            redactor: Redactor::default(),
            is_resumed: AtomicBool::new(false),
            standing: Arc::default(),
            connector: Connector::default(),
            timeline: Timeline::default(),
        })
    }

    /// Requests an object or a range of it, once.
    pub async fn get(
        &self,
        path: &Path,
        options: GetOptions,
    ) -> Result<(GetResult, ResponseCapture), Fault> {
        let operation = if options.head { "HEAD" } else { "GET" };
        let Some(commit) = self.commit().await? else {
            let options = match &self.bucket {
                Some(_) => Commit::question(options),
                None => options,
            };
            let ask = || self.inner.get_opts(path, options.clone());
            return self.request(operation, ask).await;
        };
        if let Some(tag) = &options.if_none_match
            && commit.has_tag(path, tag)
        {
            return Err(Fault::unmodified());
        }
        let place = commit.path_of(path);
        let question = Commit::question(options);
        let ask = || self.inner.get_opts(&place, question.clone());
        let (mut result, captured) = self.request(operation, ask).await?;
        commit
            .describe(path, &mut result.meta)
            .map_err(|message| self.misbehaved(&captured, &message))?;
        if let Some(xet) = self.xet() {
            xet.learn(commit.name(), path, &result.meta, &captured);
        }
        Ok((result, captured))
    }

    /// Asks a hub or a registry for the list of files that is read, if that has not been done.
    pub async fn find_list(&self, file: &Path) -> Result<(), Fault> {
        if self.registry.is_some() {
            // The manifest of a registry is its list, and this reads it.
            self.head(file).await?;
        }
        self.commit().await.map(drop)
    }

    /// Returns the hub's content store, if the store is a repository of a hub and may use it.
    fn xet(&self) -> Option<&Xet> {
        self.repository.as_ref()?.xet.as_ref()
    }

    /// Requests length and identity of an object, once.
    pub async fn head(&self, path: &Path) -> Result<(ObjectMeta, ResponseCapture), Fault> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let (result, captured) = self.get(path, options).await?;
        Ok((result.meta, captured))
    }

    /// Returns the metadata of an object as the hub lists it, if the store is a hub; `None` if that
    /// contradicts it.
    pub fn described(&self, path: &Path, mut meta: ObjectMeta) -> Option<ObjectMeta> {
        let repository = self.repository.as_ref();
        if let Some(commit) = repository.and_then(|repository| repository.commit.get()) {
            commit.describe(path, &mut meta).ok()?;
        }
        Some(meta)
    }

    /// Requests length, identity and own checksums of an object, once. The checksums are in
    /// [`ResponseCapture::stated`].
    pub async fn checksums(
        &self,
        path: &Path,
        mut options: GetOptions,
    ) -> Result<(ObjectMeta, ResponseCapture), Fault> {
        options.head = true;
        options.extensions.insert(self.asks.clone());
        let (result, captured) = self.get(path, options).await?;
        Ok((result.meta, captured))
    }

    /// Returns whether checksums of objects can be requested here.
    pub fn states_checksums(&self) -> bool {
        self.protocol
            .is_some_and(|protocol| protocol.states_checksums)
    }

    /// Returns the hub's name for the contents of a file, if the store is a hub, the list of files
    /// was fetched and it states one.
    pub fn contents_name(&self, file: &Path) -> Option<&str> {
        self.repository.as_ref()?.commit.get()?.contents_name(file)
    }

    /// Returns the name of the commit, or the digest of an artifact's manifest, if it is already
    /// known.
    pub fn commit_name(&self) -> Option<&str> {
        if let Some(registry) = &self.registry {
            return registry.digest();
        }
        Some(self.repository.as_ref()?.commit.get()?.name())
    }

    /// Returns the address of the server, beyond what URLs name: the endpoint and the account, and
    /// whether its certificate is verified.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns the region that requests are signed for.
    pub fn region(&self) -> Option<&str> {
        self.region.as_deref()
    }

    /// Returns the origin of the credentials, for display.
    pub fn credentials(&self) -> String {
        self.credentials.shown()
    }
}

/// Returns the error of requests to a store that are forbidden, if they are: message and hint.
fn offline(url: &RemoteUrl, options: &StoreOptions) -> Option<(String, String)> {
    if check(options) == Check::Offline {
        return Some((
            "is not in the cache, and cache_check=offline forbids requests".to_owned(),
            "do the same once with this cache_dir and without cache_check=offline: files beside the weights come with a copy only".to_owned(),
        ));
    }
    let is_hub = url.protocol == Protocol::Hub;
    (is_hub && is_hub_offline(options)).then(|| hub::in_neither_cache(url, options))
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("label", &self.label)
            .field("credentials", &self.credentials.shown())
            .finish_non_exhaustive()
    }
}
