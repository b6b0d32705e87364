//! Models and buckets of a hub: access, the commit that is read, and its files.
//!
//! Files are read as from a web server. `ENDPOINT/org/name/resolve/COMMIT/FILE` responds with the
//! file or redirects to its location, by a link that is valid for a while. The HTTP client follows
//! the redirect each time: an expired link is never used, and each request costs one more round
//! trip to the hub. The token is sent to the hub only, not to other hosts that it redirects to.
//! Files in the hub's content store are read from there once they are open (`xet/`).

pub(crate) mod bucket;
mod contents;
mod listing;
pub(crate) mod repository;
mod rules;
mod settings;
#[cfg(feature = "xet")]
pub(crate) mod xet;

use std::sync::Arc;

use object_store::client::{HttpClient, HttpConnector};
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore};
use percent_encoding::utf8_percent_encode;
use tokio::sync::OnceCell;

use self::bucket::Bucket;
use self::contents::ContentStore;
#[cfg(test)]
pub(crate) use self::listing::Commit;
#[cfg(feature = "testing")]
pub use self::listing::assert_levels_are_whole;
#[cfg(feature = "testing")]
pub use self::xet::assert_content_store_is_bounded;

use self::repository::Repository;
use self::settings::{Token, endpoint, token_path};
use super::hub_cache::{directory, download, is_hub_offline, offline};
use crate::backend::StoreBackend;
use crate::builder::{OpenStore, Opening, StoreProtocol, is_plain, no_retries};
use crate::credentials::origin::Credentials;
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::errors::classification::{Cause, Classification};
use crate::explain::context::Hints;
use crate::explain::failure::Fault;
use crate::explain::rules::{CODES, STATUSES};
use crate::http::client::Extras;
use crate::http::response_capture::ResponseCapture;
use crate::http::trust::OF_REQUESTS;
use crate::options::hub_id::HubId;
use crate::options::location::{Protocol, RESERVED, RemoteUrl};
use crate::options::store_options::StoreOptions;
use crate::requests::Requests;

/// Model hubs.
pub(crate) static PROTOCOL: StoreProtocol = StoreProtocol {
    protocol: Protocol::Hub,
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
};

/// Opens the content store of a repository at an endpoint, unless the environment forbids it.
type OpenContents = fn(&Opening, &HttpClient, &str, &str) -> Option<Box<dyn ContentStore>>;

/// Content stores that this build supports.
const CONTENT_STORES: &[OpenContents] = &[
    #[cfg(feature = "xet")]
    xet::open,
];

fn open(opening: &Opening) -> Result<OpenStore> {
    if is_hub_offline(opening.options) && opening.options.get("cache_dir").is_none() {
        return Err(offline("it would be read from the hub", opening.url));
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
    let files = Arc::new(store);
    let backend: Arc<dyn StoreBackend> = if id.is_bucket() {
        let tree = format!("{endpoint}/api/{}/tree", id.repository);
        Arc::new(Bucket {
            files,
            client,
            tree,
        })
    } else {
        Arc::new(repository(opening, &id, &endpoint, files, client)?)
    };
    let is_limited = opening.options.get("connect_timeout").is_none();
    let is_offline = is_hub_offline(opening.options);
    Ok(OpenStore {
        origin: endpoint,
        token: known,
        first: is_limited.then(|| Arc::clone(opening.connector.first())),
        offline: is_offline.then(|| in_neither_cache(opening.url, opening.options)),
        ..OpenStore::new(backend, Credentials::known(source))
    })
}

fn repository(
    opening: &Opening,
    id: &HubId,
    endpoint: &str,
    files: Arc<dyn ObjectStore>,
    client: HttpClient,
) -> Result<Repository> {
    let revision = utf8_percent_encode(&id.revision, RESERVED);
    // `blobs` adds lengths and identities of the files to the response.
    let url = format!(
        "{endpoint}/api/models/{}/revision/{revision}?blobs=true",
        id.repository
    );
    let url = url.parse().map_err(|_| {
        Error::invalid_request("the hub's endpoint is not a URL")
            .with_location(opening.url.shown())
            .with_hint("check the option endpoint or HF_ENDPOINT")
    })?;
    let open = |open: &OpenContents| open(opening, &client, endpoint, &id.repository);
    Ok(Repository {
        contents: CONTENT_STORES.iter().find_map(open),
        files,
        client,
        url,
        tree: format!("{endpoint}/api/models/{}/tree", id.repository),
        commit: OnceCell::new(),
        description: None,
    })
}

/// Returns the message and hint for something that neither cache has while requests are forbidden.
fn in_neither_cache(url: &RemoteUrl, options: &StoreOptions) -> (String, String) {
    let hubs = directory(&Environment::unless_forbidden(options))
        .map_or_else(|| "unknown".to_owned(), |path| path.display().to_string());
    let own = options.get("cache_dir").unwrap_or("off");
    let message = format!(
        "is incomplete in the huggingface_hub cache ({hubs}) and in tload's ({own}); HF_HUB_OFFLINE is set"
    );
    (message, download(url))
}

/// Returns the error for a response of the hub that cannot be parsed; `what` describes it.
fn malformed(requests: &Requests, what: &str, captured: &ResponseCapture) -> Fault {
    let classification = Classification::new(ErrorKind::Remote, "the hub's response is malformed")
        .hint("check that the endpoint is a model hub (option endpoint, HF_ENDPOINT)")
        .cause(Some(Cause::Words(what.to_owned())));
    requests.classified(captured, classification)
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
