//! Requests to a repository of a hub: for its commit, and for the files of that.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use http::{HeaderMap, StatusCode};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectMeta, ObjectStore};
use tokio::sync::OnceCell;

use super::bucket::pages;
use super::contents::ContentStore;
use super::listing::{Commit, commit_of_many, unconditional, with_tree};
use super::malformed;
use crate::answers::{AnswerPlace, Answers};
use crate::backend::{Attempt, Pieces, StoreBackend};
use crate::explain::failure::Fault;
use crate::http::pages::bounded;
use crate::http::response_capture::ResponseCapture;
use crate::lists::tree::{Level, Listed};
use crate::requests::Requests;

/// Longest list of a repository's files, bytes: 100,000 files take about half of it.
const LIST_BYTES_MAX: usize = 64 << 20;

/// Name of the store in errors of `object_store`.
const STORE: &str = "hub";

/// Repository and its commit that is read: the commit of its revision at the first request, so that
/// everything that an opening reads is of one commit.
pub(crate) struct Repository {
    pub(super) files: Arc<dyn ObjectStore>,
    pub(super) client: HttpClient,
    /// URL of the hub's description of it.
    pub(super) url: http::Uri,
    /// URL of its files, without the commit.
    pub(super) tree: String,
    pub(super) commit: OnceCell<Commit>,
    /// Place of the hub's description in the cache.
    pub(super) description: Option<Arc<dyn AnswerPlace>>,
    pub(super) contents: Option<Box<dyn ContentStore>>,
}

#[async_trait]
impl StoreBackend for Repository {
    fn for_opening(self: Arc<Self>, answers: &Answers) -> Arc<dyn StoreBackend> {
        Arc::new(Self {
            files: Arc::clone(&self.files),
            client: self.client.clone(),
            url: self.url.clone(),
            tree: self.tree.clone(),
            commit: OnceCell::new(),
            description: answers.place("commit"),
            contents: self.contents.as_ref().map(|contents| contents.again()),
        })
    }

    async fn get(
        &self,
        requests: &Requests,
        path: &Path,
        options: GetOptions,
    ) -> Result<(GetResult, ResponseCapture), Fault> {
        let commit = self.commit(requests).await?;
        if let Some(tag) = &options.if_none_match
            && commit.has_tag(path, tag)
        {
            return Err(Fault::unmodified());
        }
        let (place, options) = (commit.path_of(path), unconditional(options));
        let (mut result, captured) = requests.get(&*self.files, &place, options).await?;
        commit
            .describe(path, &mut result.meta)
            .map_err(|message| requests.misbehaved(&captured, &message))?;
        if let Some(contents) = &self.contents {
            contents.learn(commit.name(), path, &result.meta, &captured);
        }
        Ok((result, captured))
    }

    async fn list(&self, requests: &Requests, prefix: Option<&Path>) -> Result<Level, Fault> {
        Ok(self.commit(requests).await?.level(prefix))
    }

    async fn by_content_store<'a>(
        &'a self,
        requests: &'a Requests,
        path: &Path,
        range: Range<u64>,
        attempt: Attempt,
    ) -> Result<Option<(ObjectMeta, Pieces<'a>)>, Fault> {
        match &self.contents {
            Some(contents) => contents.range(requests, path, range, attempt).await,
            None => Ok(None),
        }
    }

    async fn find_list(&self, requests: &Requests, _: &Path) -> Result<(), Fault> {
        self.commit(requests).await.map(drop)
    }

    async fn all_files(&self, requests: &Requests) -> Result<Vec<Listed>, Fault> {
        Ok(self.commit(requests).await?.all())
    }

    fn described(&self, path: &Path, mut meta: ObjectMeta) -> Option<ObjectMeta> {
        if let Some(commit) = self.commit.get() {
            commit.describe(path, &mut meta).ok()?;
        }
        Some(meta)
    }

    fn contents_name(&self, file: &Path) -> Option<&str> {
        self.commit.get()?.contents_name(file)
    }

    fn commit_name(&self) -> Option<&str> {
        Some(self.commit.get()?.name())
    }
}

impl Repository {
    /// Returns the commit that is read, which is requested once.
    async fn commit(&self, requests: &Requests) -> Result<&Commit, Fault> {
        let known = || self.description.as_ref()?.known();
        let find = || async {
            if let Some(Ok(commit)) = known().map(|answer| Commit::parse(answer.as_bytes())) {
                return Ok(commit);
            }
            let describe = || ask(&self.client, self.url.clone(), refused);
            let ((_, mut answer), captured) = requests.send("GET", describe).await?;
            if let Some(commit) = commit_of_many(&answer) {
                let tree = || bounded(self.tree(&commit));
                let (pages, captured) = requests.send("LIST", tree).await?;
                let whole = with_tree(&answer, &pages);
                answer = whole.map_err(|what| malformed(requests, &what, &captured))?;
            }
            let commit =
                Commit::parse(&answer).map_err(|what| malformed(requests, &what, &captured))?;
            if let Some(place) = &self.description {
                place.keep(&String::from_utf8_lossy(&answer));
            }
            Ok(commit)
        };
        self.commit.get_or_try_init(find).await
    }

    /// Requests every page of the list of a commit's files once.
    async fn tree(&self, commit: &str) -> object_store::Result<Vec<Vec<u8>>> {
        let tree = format!("{}/{commit}", self.tree);
        pages(&self.client, format!("{tree}?recursive=true"), &tree).await
    }
}

/// Requests a URL of the hub once, and returns the headers and the body of its response,
/// or the error for a `refused` request.
pub(super) async fn ask(
    client: &HttpClient,
    url: http::Uri,
    refused: impl FnOnce(StatusCode) -> object_store::Error,
) -> object_store::Result<(HeaderMap, Vec<u8>)> {
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.uri_mut() = url;
    let response = client
        .execute(request)
        .await
        .map_err(|error| failed(error.into()))?;
    if !response.status().is_success() {
        return Err(refused(response.status()));
    }
    let (head, body) = response.into_parts();
    let mut answer = Vec::new();
    let mut frames = body.bytes_stream();
    while let Some(bytes) = frames.next().await {
        answer.extend_from_slice(&bytes.map_err(|error| failed(error.into()))?);
        if answer.len() > LIST_BYTES_MAX {
            let message = format!("the list of files is longer than {LIST_BYTES_MAX} bytes");
            return Err(failed(message.into()));
        }
    }
    Ok((head.headers, answer))
}

/// Returns the error for an error response of the hub; `ResponseCapture` has the response.
pub(super) fn refused(_: StatusCode) -> object_store::Error {
    failed("refused".into())
}

pub(super) fn failed(source: Box<dyn std::error::Error + Send + Sync>) -> object_store::Error {
    object_store::Error::Generic {
        store: STORE,
        source,
    }
}
