//! Models of a hub: access, the commit that is read, and the files of that commit. Called by
//! [`crate::storage::object::store::Store`], and by callers that look up models in the local cache.
//!
//! Files are read as from a web server. `ENDPOINT/org/name/resolve/COMMIT/FILE` responds with the
//! file or redirects to its location, by a link that is valid for a while. The HTTP client follows
//! the redirect each time: an expired link is never used, and each request costs one more round
//! trip to the hub. The token is sent to the hub only, not to other hosts that it redirects to.

mod cache;
mod listing;
mod settings;
mod status_error;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody};
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, GetResult, GetResultPayload};
use percent_encoding::utf8_percent_encode;
use tokio::sync::OnceCell;

pub(crate) use self::cache::{cached, is_offline, snapshot};
pub(in crate::storage) use self::listing::Commit;
#[cfg(feature = "testing")]
pub(crate) use self::listing::assert_levels_are_whole;
pub(in crate::storage) use status_error::refusal;

use self::settings::{Token, endpoint};
use super::builder::{OpenStore, Opening, is_plain, no_retries};
use super::client::{Extras, client_options};
use super::credentials::Credentials;
use crate::error::{Error, ErrorKind, Result};
use crate::options::hub_id::HubId;
use crate::options::location::RESERVED;

/// Longest list of a repository's files, bytes: 100,000 files take about half of it.
const LIST_BYTES_MAX: usize = 64 << 20;

/// Name of the store in errors of `object_store`.
const STORE: &str = "hub";

/// Repository and its commit that is read: the commit of its revision at the first request.
pub(in crate::storage) struct Repository {
    client: HttpClient,
    /// URL of the hub's description of it.
    url: http::Uri,
    pub(in crate::storage) commit: OnceCell<Commit>,
}

pub(in crate::storage) fn open(opening: &Opening) -> Result<(OpenStore, Repository)> {
    if is_offline(opening.options) {
        return Err(
            cache::offline("it would be read from the hub").with_location(opening.url.shown())
        );
    }
    let id = HubId::from_authority(&opening.url.authority);
    let endpoint = endpoint(opening)?;
    let token = Token::find(opening)?;
    let source = if opening
        .options
        .headers()
        .any(|(name, _)| name == "authorization")
    {
        "option header.authorization".to_owned()
    } else {
        token.source
    };
    let known = token.header.clone();
    let extras = Extras {
        allow_http: is_plain(Some(&endpoint)),
        authorization: token.header,
        ..Extras::default()
    };
    let options = client_options(
        opening.options,
        opening.environment,
        &opening.connector,
        extras,
    )?;
    let refused = |error| opening.refused(&error);
    let client = opening.connector.connect(&options).map_err(refused)?;
    let store = HttpBuilder::new()
        .with_url(format!("{endpoint}/{}/resolve", id.repository))
        .with_client_options(options)
        .with_retry(no_retries())
        .with_http_connector(Ready(client.clone()))
        .build()
        .map_err(refused)?;
    let revision = utf8_percent_encode(&id.revision, RESERVED);
    // `blobs` adds the lengths of the files, and their identities.
    let url = format!(
        "{endpoint}/api/models/{}/revision/{revision}?blobs=true",
        id.repository
    );
    let url = url.parse().map_err(|_| {
        Error::new(ErrorKind::InvalidRequest, "the hub's endpoint is not a URL")
            .with_location(opening.url.shown())
            .with_hint("check the option endpoint or HF_ENDPOINT")
    })?;
    let opened = OpenStore {
        store: Arc::new(store),
        anonymous: source == settings::ANONYMOUS,
        credentials: Credentials::known(source),
        region: None,
        sessions: 0,
        signer: None,
        token: known,
    };
    let commit = OnceCell::new();
    let repository = Repository {
        client,
        url,
        commit,
    };
    Ok((opened, repository))
}

impl Repository {
    /// Requests the hub's description of the repository once: JSON.
    pub(in crate::storage) async fn ask(&self) -> object_store::Result<Vec<u8>> {
        let failed =
            |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic {
                store: STORE,
                source,
            };
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = self.url.clone();
        let response = self.client.execute(request).await;
        let response = response.map_err(|error| failed(error.into()))?;
        if !response.status().is_success() {
            // `ResponseCapture` has the response.
            return Err(failed("refused".into()));
        }
        let mut body = Vec::new();
        let mut frames = response.into_body().bytes_stream();
        while let Some(bytes) = frames.next().await {
            body.extend_from_slice(&bytes.map_err(|error| failed(error.into()))?);
            if body.len() > LIST_BYTES_MAX {
                let message = format!("the list of files is longer than {LIST_BYTES_MAX} bytes");
                return Err(failed(message.into()));
            }
        }
        Ok(body)
    }
}

/// Cuts a response with the whole file to the requested range.
pub(in crate::storage) fn cut(result: GetResult, wanted: &Range<u64>) -> GetResult {
    let end = wanted.end.min(result.range.end);
    let wanted = wanted.start.min(end)..end;
    let (meta, attributes) = (result.meta.clone(), result.attributes.clone());
    let (range, extensions) = (wanted.clone(), result.extensions.clone());
    let mut at = 0;
    let mut cut_one = move |bytes: Bytes| {
        let start = at;
        at += bytes.len() as u64;
        let inside =
            |offset: u64| usize::try_from(offset.clamp(start, at) - start).unwrap_or(bytes.len());
        bytes.slice(inside(wanted.start)..inside(wanted.end))
    };
    let frames = result.into_stream();
    let cut = frames.map(move |bytes| bytes.map(&mut cut_one));
    GetResult {
        payload: GetResultPayload::Stream(cut.boxed()),
        meta,
        range,
        attributes,
        extensions,
    }
}

/// Connector that returns an existing client: requests about a repository and for its files share
/// connections.
#[derive(Debug)]
struct Ready(HttpClient);

impl HttpConnector for Ready {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(self.0.clone())
    }
}
