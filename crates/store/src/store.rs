//! Store of one bucket, container, web server or repository: what it is opened from, and the
//! requests that callers make.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectMeta, ObjectStore};

use crate::answers::{AnswerCache, Answers, Check, check};
use crate::backend::{Attempt, Pieces, StoreBackend, Writable};
use crate::builder::Opening;
use crate::environment::{Environment, Surroundings};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{FailedRequest, Result};
use crate::errors::redactor::Redactor;
use crate::explain::failure::Fault;
use crate::http::checksums::Asks;
use crate::http::connector::Connector;
use crate::http::response_capture::ResponseCapture;
use crate::http::signing::Signer;
use crate::lists::tree::{Level, Listed};
use crate::objects::Objects;
use crate::options::location::RemoteUrl;
use crate::options::store_options::StoreOptions;
use crate::path::object_path;
use crate::protocols;
use crate::requests::Requests;
use crate::server::Server;
use crate::sync::timeline::Timeline;

/// Bucket, container, web server, or repository of a model hub.
pub struct Store {
    backend: Arc<dyn StoreBackend>,
    requests: Requests,
}

impl Store {
    /// Opens the store of a URL and returns it with the path of the URL in it. Sends no request
    /// yet.
    ///
    /// Blocks to read configuration files and needs no runtime. Requests need a tokio runtime with
    /// I/O and time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for invalid options and paths,
    /// [`ErrorKind::PermissionDenied`] if the environment may not be read and no credentials
    /// are given, [`ErrorKind::Unsupported`] for profiles and protocols in a build without them;
    /// the kinds of I/O for files that cannot be read.
    pub fn open(
        url: &RemoteUrl,
        options: &StoreOptions,
        timeline: &Timeline,
        cache: Option<&dyn AnswerCache>,
    ) -> Result<(Arc<Self>, Path)> {
        let variables = Surroundings::variables();
        let environment = &Environment::unless_forbidden(options);
        let path = object_path(url)?;
        let protocol = protocols::of_url(url)?;
        let opening = Opening {
            protocol,
            url,
            options,
            environment,
            connector: Connector::new(timeline.clone()),
            redactor: Redactor::new(url, options, environment, protocols::variables()),
        };
        // Note the state of the files before any of them is read, so that a later change is
        // noticed.
        let files = (protocol.files)(&opening);
        let surroundings = files.map(|files| Surroundings::new(variables, files));
        let mut opened = (protocol.open)(&opening)?;
        let trusted = opening.connector.trusted_file();
        let surroundings = surroundings.map(|seen| seen.and(trusted));
        opened.offline = offline(options).or(opened.offline);
        let backend = Arc::clone(&opened.backend);
        let server = Arc::new(Server::new(opening, opened, surroundings));
        let requests = Requests::new(server, false, timeline.clone());
        let store = Self::begin(backend, requests, url, cache);
        Ok((Arc::new(store), path))
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
        let server = Arc::clone(&self.requests.server);
        let requests = Requests::new(server, true, timeline.clone());
        Self::begin(Arc::clone(&self.backend), requests, url, cache)
    }

    fn begin(
        backend: Arc<dyn StoreBackend>,
        requests: Requests,
        url: &RemoteUrl,
        cache: Option<&dyn AnswerCache>,
    ) -> Self {
        let origin = &requests.server.address.origin;
        let answers = Answers { cache, url, origin };
        Self {
            backend: backend.for_opening(&answers),
            requests,
        }
    }

    /// Creates a store from one that the caller provides.
    pub fn custom(store: Arc<dyn ObjectStore>, label: &str) -> Arc<Self> {
        let server = Arc::new(Server::of_caller(label));
        Arc::new(Self {
            backend: Arc::new(Objects::read_only(store)),
            requests: Requests::new(server, false, Timeline::default()),
        })
    }

    /// Returns whether later openings may use what this store uses. Signed URLs are opened once.
    pub fn is_keepable(&self) -> bool {
        self.requests.server.is_keepable()
    }

    /// Returns whether an opening may use what this kept store uses now: it sends requests, a
    /// server was reached if that is limited in time, the credentials have not turned out to be
    /// wrong, and variables and files are as they were.
    pub fn is_reusable(&self) -> bool {
        self.requests.server.is_reusable()
    }

    /// Requests an object or a range of it, once.
    pub async fn get(
        &self,
        path: &Path,
        options: GetOptions,
    ) -> Result<(GetResult, ResponseCapture), Fault> {
        self.backend.get(&self.requests, path, options).await
    }

    /// Requests length and identity of an object, once.
    pub async fn head(&self, path: &Path) -> Result<(ObjectMeta, ResponseCapture), Fault> {
        let options = GetOptions::new().with_head(true);
        let (result, captured) = self.get(path, options).await?;
        Ok((result.meta, captured))
    }

    /// Requests length, identity and own checksums of an object, once. The checksums are in
    /// [`ResponseCapture::stated`].
    pub async fn checksums(
        &self,
        path: &Path,
        mut options: GetOptions,
    ) -> Result<(ObjectMeta, ResponseCapture), Fault> {
        let signer = self.requests.server.signer.clone();
        options.head = true;
        options.extensions.insert(Asks {
            signer: signer.filter(Signer::is_of_aws),
        });
        let (result, captured) = self.get(path, options).await?;
        Ok((result.meta, captured))
    }

    /// Returns whether checksums of objects can be requested here.
    pub fn states_checksums(&self) -> bool {
        self.backend.states_checksums()
    }

    /// Requests a range of a file from the content store of a hub, and returns the metadata that
    /// the hub sent with the file's hash; `None` if the file is to be read by [`Self::get`].
    ///
    /// A content store that has not delivered anything yet is left if it fails, or brings nothing
    /// for half of the patience of the attempt: the hub has the other half. If it asks to wait,
    /// it is left at the last attempt only.
    pub async fn by_content_store(
        &self,
        path: &Path,
        range: Range<u64>,
        attempt: Attempt,
    ) -> Result<Option<(ObjectMeta, Pieces<'_>)>, Fault> {
        let (backend, requests) = (&self.backend, &self.requests);
        let asked = backend.by_content_store(requests, path, range, attempt);
        asked.await
    }

    /// Returns whether objects can be written here.
    pub fn is_writable(&self) -> bool {
        self.backend.writable().is_some()
    }

    /// Sends a request that writes, once. Only where [`Self::is_writable`].
    pub async fn send<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        operation: &str,
        request: impl Fn(Arc<dyn Writable>) -> F,
    ) -> Result<T, Fault> {
        let store = self.backend.writable().expect("asked before");
        let sent = self.requests.send(operation, || request(Arc::clone(store)));
        Ok(sent.await?.0)
    }

    /// Lists the direct children of a prefix, with one request for each page.
    pub async fn list(&self, prefix: Option<&Path>) -> Result<Level, Fault> {
        let mut level = self.backend.list(&self.requests, prefix).await?;
        // Keys are shown, and a server may echo secrets of requests in them.
        let nothing = ResponseCapture::default();
        for name in &mut level.unusable {
            *name = self.redacted(name, &nothing);
        }
        Ok(level)
    }

    /// Asks a hub or a registry for the list of files that is read, if that has not been done.
    pub async fn find_list(&self, file: &Path) -> Result<(), Fault> {
        self.backend.find_list(&self.requests, file).await
    }

    /// Lists all files of a hub's repository, which are known with its commit. Names that are no
    /// paths are left out.
    pub async fn files_of_commit(&self) -> Result<Vec<Listed>, Fault> {
        self.backend.all_files(&self.requests).await
    }

    /// Returns the metadata of an object as the hub lists it, if the store is a hub; `None` if that
    /// contradicts it.
    pub fn described(&self, path: &Path, meta: ObjectMeta) -> Option<ObjectMeta> {
        self.backend.described(path, meta)
    }

    /// Returns the hub's name for the contents of a file, if the store is a hub, the list of files
    /// was fetched and it states one.
    pub fn contents_name(&self, file: &Path) -> Option<&str> {
        self.backend.contents_name(file)
    }

    /// Returns the name of the commit, or the digest of an artifact's manifest, if it is already
    /// known.
    pub fn commit_name(&self) -> Option<&str> {
        self.backend.commit_name()
    }

    /// Returns the address of the server, beyond what URLs name: the endpoint and the account, and
    /// whether its certificate is verified.
    pub fn origin(&self) -> &str {
        &self.requests.server.address.origin
    }

    /// Returns the region that requests are signed for.
    pub fn region(&self) -> Option<&str> {
        self.requests.server.address.region.as_deref()
    }

    /// Returns the origin of the credentials, for display.
    pub fn credentials(&self) -> String {
        self.requests.server.credentials.shown()
    }

    /// Translates a failure of a request or of the body of its response.
    pub fn fault(
        &self,
        error: &object_store::Error,
        captured: &ResponseCapture,
        operation: &str,
    ) -> Fault {
        self.requests.fault(error, captured, operation)
    }

    /// Removes secrets from a text that quotes parts of a response.
    pub fn redacted(&self, text: &str, captured: &ResponseCapture) -> String {
        self.requests.server.redactor.redact(text, &captured.sent)
    }

    /// Returns the error for a server that violates HTTP; `message` says how.
    pub fn misbehaved(&self, captured: &ResponseCapture, message: &str) -> Fault {
        self.requests.misbehaved(captured, message)
    }

    /// Describes a request whose response was unusable.
    pub fn failed_request(&self, captured: &ResponseCapture, operation: &str) -> FailedRequest {
        self.requests.failed_request(captured, operation)
    }
}

/// Returns the error of requests to a store that the options forbid, if they do: message and hint.
fn offline(options: &StoreOptions) -> Option<(String, String)> {
    (check(options) == Check::Offline).then(|| {
        (
            "is not in the cache, and cache_check=offline forbids requests".to_owned(),
            "load once with this cache_dir and without cache_check=offline; the report of that load names objects that cannot be cached, and files beside the weights come with a copy only".to_owned(),
        )
    })
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("label", &self.requests.server.address.label)
            .field("credentials", &self.credentials())
            .finish_non_exhaustive()
    }
}
