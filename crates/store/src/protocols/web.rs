//! Opens plain web servers: base URL, user and password, signed URLs. Called by
//! [`crate::Store::open`].
//!
//! Paths are requested as they were written. `%2B` and `+` name the same file on most servers, but
//! not on all: S3 takes `+` for a space, and a signature may cover the spelling. `object_store`
//! encodes paths itself, so it is given the written path, and its encoding of `%` is undone.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::uri::PathAndQuery;
use http::{HeaderValue, Uri};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::http::HttpBuilder;
use percent_encoding::percent_decode_str;
use url::Url;

use crate::builder::{OpenStore, Opening, StoreProtocol, no_retries};
use crate::credentials::origin::{ANONYMOUS, Credentials};
use crate::error::{Error, Result};
use crate::explain::context::Hints;
use crate::explain::rules::{CODES, Rules, STATUSES, rules};
use crate::http::client::Extras;
use crate::http::connector::Connector;
use crate::http::trust::OF_CURL;
use crate::objects::Objects;
use crate::options::location::{Protocol, RemoteUrl};

/// Plain web servers.
pub(crate) static PROTOCOL: StoreProtocol = StoreProtocol {
    protocol: Protocol::Http,
    open,
    files: |_| Some(Vec::new()),
    variables: None,
    hints: Hints {
        rules: &[CODES, REFUSALS, STATUSES],
        permissions: None,
        unreachable: Some("check the URL, that its server runs, and the network"),
        lists: false,
    },
    bundles: OF_CURL,
};

fn open(opening: &Opening) -> Result<OpenStore> {
    let url = opening.url;
    let authorization = authorization(url);
    let source = if opening.options.get("header.authorization").is_some() {
        "option header.authorization"
    } else if authorization.is_some() {
        "user and password of the URL"
    } else if url.query.is_some() {
        "query of the URL"
    } else {
        ANONYMOUS
    };
    let extras = Extras {
        allow_http: url.scheme == "http",
        authorization,
        ..Extras::default()
    };
    let client = opening.client(extras)?;
    let store = HttpBuilder::new()
        .with_url(base(url)?)
        .with_client_options(client)
        .with_retry(no_retries())
        .with_http_connector(AsWritten(opening.connector.clone()))
        .build()
        .map_err(|error| opening.refused(&error))?;
    let credentials = Credentials::known(source);
    let objects = Objects::read_only(Arc::new(store));
    Ok(OpenStore::new(Arc::new(objects), credentials))
}

/// Connector for requests whose paths were percent-encoded before `object_store` encoded them.
#[derive(Debug)]
struct AsWritten(Connector);

impl HttpConnector for AsWritten {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = self.0.connect(options)?;
        Ok(HttpClient::new(Decoding(client)))
    }
}

/// HTTP client that undoes the second encoding.
#[derive(Debug)]
struct Decoding(HttpClient);

#[async_trait]
impl HttpService for Decoding {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        *request.uri_mut() = as_written(request.uri())
            .map_err(|error| HttpError::new(HttpErrorKind::Request, error))?;
        self.0.execute(request).await
    }
}

/// Returns the URL with `%25` replaced by `%` in its path, where that is not a per cent sign of its
/// own: `%252B` was written as `%2B`, but `100%25` as `100%`.
fn as_written(uri: &Uri) -> Result<Uri, http::Error> {
    let mut encoded = uri.path().split("%25");
    let mut path = encoded.next().unwrap_or_default().to_owned();
    for text in encoded {
        let digits = text.bytes().take(2).filter(u8::is_ascii_hexdigit);
        path.push_str(if digits.count() == 2 { "%" } else { "%25" });
        path.push_str(text);
    }
    if let Some(query) = uri.query() {
        path = format!("{path}?{query}");
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path)?);
    Ok(Uri::from_parts(parts)?)
}

/// Rules for refusals: credentials of web servers are in URLs and headers.
const REFUSALS: Rules = rules! { |f|
    f.status() == 401 => PermissionDenied: "the server requires credentials, or rejects these",
        "pass https://user:password@host or header.authorization='Bearer TOKEN'; for mirrors and peers, mirror_token";
    f.status() == 403 && !f.is_skewed() && f.asked.signed_url => PermissionDenied: "access is denied",
        "sign the URL again: it has expired, or is not valid for this object or method";
    f.status() == 403 && !f.is_skewed() => PermissionDenied: "access is denied",
        "pass https://user:password@host, header.authorization or a signed URL";
};

/// Returns scheme, host and query: the query of a signed URL goes with every request.
fn base(url: &RemoteUrl) -> Result<Url> {
    let query = url.query.as_deref().map(|query| format!("?{query}"));
    let text = format!(
        "{}://{}/{}",
        url.scheme,
        url.host(),
        query.unwrap_or_default()
    );
    Url::parse(&text).map_err(|error| {
        Error::invalid_request("the URL is malformed")
            .with_location(url.shown())
            .with_source(error)
    })
}

/// Returns `user:password@` as the header that a browser would send. The HTTP client does not look
/// for it in the URL.
fn authorization(url: &RemoteUrl) -> Option<HeaderValue> {
    let (user, _) = url.authority.rsplit_once('@')?;
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let mut pair: Vec<u8> = percent_decode_str(user).collect();
    pair.push(b':');
    pair.extend(percent_decode_str(password));
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::options::Location;

    fn remote(text: &str) -> RemoteUrl {
        let location = Location::parse(text).expect(text);
        location.remote().expect("a URL").clone()
    }

    #[test]
    fn base_url_keeps_query_and_drops_user() {
        for (url, wanted) in [
            ("https://host/a/b", "https://host/"),
            (
                "http://user:pw@host:81/a?X=1&Y=%2F",
                "http://host:81/?X=1&Y=%2F",
            ),
            ("https://[::1]:81/a", "https://[::1]:81/"),
        ] {
            assert_eq!(base(&remote(url)).expect(url).as_str(), wanted);
        }
        let error = base(&remote("https://ho st/a")).expect_err("no host");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    }

    #[test]
    fn only_the_second_encoding_is_undone() {
        for (encoded, wanted) in [
            ("/a%252Bb+c%20d", "/a%2Bb+c%20d"),
            ("/%25252B", "/%252B"),
            ("/100%25", "/100%25"),
            ("/100%25/20", "/100%25/20"),
            ("/100%252%25e9", "/100%252%e9"),
            ("/%2525252B?X=%252B", "/%25252B?X=%252B"),
        ] {
            let uri = format!("https://host{encoded}").parse().expect(encoded);
            let uri = as_written(&uri).expect(encoded);
            assert_eq!(uri.to_string(), format!("https://host{wanted}"));
        }
    }

    #[test]
    fn users_and_passwords() {
        for (url, wanted) in [
            ("https://user:p%40ss@host/a", Some("user:p@ss")),
            ("https://user@host/a", Some("user:")),
            ("https://host/a", None),
        ] {
            let value = authorization(&remote(url));
            let wanted = wanted.map(|pair| format!("Basic {}", STANDARD.encode(pair)));
            let found = value
                .as_ref()
                .map(|value| value.to_str().expect("text").to_owned());
            assert_eq!(found, wanted);
            assert!(!format!("{value:?}").contains("Basic"), "shown in Debug");
        }
    }
}
