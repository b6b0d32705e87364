//! Requests about a repository of a hub.

use futures_util::StreamExt;
use http::{HeaderMap, StatusCode};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use tokio::sync::OnceCell;

use super::bucket::pages;
use super::listing::Commit;
use super::xet::Xet;

/// Longest list of a repository's files, bytes: 100,000 files take about half of it.
const LIST_BYTES_MAX: usize = 64 << 20;

/// Name of the store in errors of `object_store`.
const STORE: &str = "hub";

/// Repository and its commit that is read: the commit of its revision at the first request.
pub(crate) struct Repository {
    pub(super) client: HttpClient,
    /// URL of the hub's description of it.
    pub(super) url: http::Uri,
    /// URL of its files, without the commit.
    pub(super) tree: String,
    pub(crate) commit: OnceCell<Commit>,
    /// Content store, unless it is disabled.
    pub(crate) xet: Option<Xet>,
}

impl Repository {
    /// Returns the repository without its commit, as another opening asks for it.
    pub(crate) fn again(&self) -> Self {
        Self {
            client: self.client.clone(),
            url: self.url.clone(),
            tree: self.tree.clone(),
            commit: OnceCell::new(),
            xet: self.xet.as_ref().map(Xet::again),
        }
    }

    /// Requests the hub's description of the repository once: JSON.
    pub(crate) async fn ask(&self) -> object_store::Result<Vec<u8>> {
        ask(&self.client, self.url.clone(), refused)
            .await
            .map(|(_, body)| body)
    }

    /// Requests every page of the list of a commit's files once.
    pub(crate) async fn tree(&self, commit: &str) -> object_store::Result<Vec<Vec<u8>>> {
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
