//! Models and buckets of a hub: access, the commit that is read, and its files. Called by
//! [`crate::Store`], and by callers that look up models in the local cache.
//!
//! Files are read as from a web server. `ENDPOINT/org/name/resolve/COMMIT/FILE` responds with the
//! file or redirects to its location, by a link that is valid for a while. The HTTP client follows
//! the redirect each time: an expired link is never used, and each request costs one more round
//! trip to the hub. The token is sent to the hub only, not to other hosts that it redirects to.
//! Files in the hub's content store are read from there once they are open (`xet/`).

pub(crate) mod bucket;
mod cache;
mod listing;
pub(crate) mod repository;
mod rules;
mod settings;
pub(crate) mod xet;

use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector};
use object_store::http::HttpBuilder;
use percent_encoding::utf8_percent_encode;
use tokio::sync::OnceCell;

use self::bucket::Bucket;
pub(crate) use self::cache::in_neither_cache;
pub use self::cache::{
    cached, cached_copy, commit_in_cache, is_hub_offline, is_in_snapshot, repository_folder,
    snapshot,
};
#[cfg(feature = "testing")]
pub use self::listing::assert_levels_are_whole;
pub(crate) use self::listing::{Commit, commit_of_many, with_tree};

#[cfg(feature = "testing")]
pub use self::xet::assert_content_store_is_bounded;

use self::repository::Repository;
use self::settings::{Token, endpoint, is_xet_disabled, token_path};
use self::xet::Xet;
use super::builder::{OpenStore, Opening, StoreProtocol, is_plain, no_retries};
use super::classification::Hints;
use super::client::Extras;
use super::credentials::Credentials;
use super::rules::{CODES, STATUSES};
use super::trust::OF_REQUESTS;
use crate::error::{Error, ErrorKind, Result};
use crate::options::hub_id::HubId;
use crate::options::location::RESERVED;

/// Model hubs.
pub(crate) static PROTOCOL: StoreProtocol = StoreProtocol {
    open,
    files: |opening| Some(token_path(opening.environment).into_iter().collect()),
    variables: None,
    hints: Hints {
        rules: &[rules::RULES, CODES, STATUSES],
        unreachable: Some(
            "check the network, HF_ENDPOINT and the proxy (HTTPS_PROXY), or raise connect_timeout; a model that is complete \
             in the hub's cache or in cache_dir is read from there with HF_HUB_OFFLINE=1",
        ),
        ..Hints::NONE
    },
    bundles: OF_REQUESTS,
    states_checksums: false,
    lists: None,
};

fn open(opening: &Opening) -> Result<OpenStore> {
    if is_hub_offline(opening.options) && opening.options.get("cache_dir").is_none() {
        return Err(cache::offline("it would be read from the hub", opening.url));
    }
    let id = HubId::from_authority(&opening.url.authority);
    let endpoint = endpoint(opening)?;
    let token = Token::find(opening)?;
    let source = if opening.options.get("header.authorization").is_some() {
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
    let options = opening.client(extras)?;
    let refused = |error| opening.refused(&error);
    let client = opening.connector.connect(&options).map_err(refused)?;
    let store = HttpBuilder::new()
        .with_url(format!("{endpoint}/{}/resolve", id.repository))
        .with_client_options(options)
        .with_retry(no_retries())
        .with_http_connector(Ready(client.clone()))
        .build()
        .map_err(refused)?;
    let opened = OpenStore {
        origin: endpoint.clone(),
        token: known,
        ..OpenStore::new(store, Credentials::known(source))
    };
    if id.is_bucket() {
        let tree = format!("{endpoint}/api/{}/tree", id.repository);
        return Ok(OpenStore {
            bucket: Some(Bucket { client, tree }),
            ..opened
        });
    }
    let revision = utf8_percent_encode(&id.revision, RESERVED);
    // `blobs` adds lengths and identities of the files to the response.
    let url = format!(
        "{endpoint}/api/models/{}/revision/{revision}?blobs=true",
        id.repository
    );
    let url = url.parse().map_err(|_| {
        Error::new(ErrorKind::InvalidRequest, "the hub's endpoint is not a URL")
            .with_location(opening.url.shown())
            .with_hint("check the option endpoint or HF_ENDPOINT")
    })?;
    let xet = (!is_xet_disabled(opening.environment))
        .then(|| Xet::new(client.clone(), &endpoint, &id.repository))
        .flatten();
    let repository = Repository {
        client,
        url,
        tree: format!("{endpoint}/api/models/{}/tree", id.repository),
        commit: OnceCell::new(),
        xet,
    };
    Ok(OpenStore {
        repository: Some(repository),
        ..opened
    })
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
