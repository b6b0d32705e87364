//! Opens plain web servers: base URL, user and password, signed URLs. Called by
//! [`crate::storage::object::store::Store::open`].

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use object_store::http::HttpBuilder;
use percent_encoding::percent_decode_str;
use url::Url;

use super::builder::{OpenStore, Opening, StoreProtocol, no_retries};
use super::classification::{Classification, Hints, RequestContext};
use super::client::Extras;
use super::credentials::{ANONYMOUS, Credentials};
use super::response_capture::ResponseCapture;
use super::status_error::{by_code, skewed};
use crate::error::{Error, ErrorKind, Result};
use crate::options::location::RemoteUrl;

/// Plain web servers.
pub(in crate::storage) static PROTOCOL: StoreProtocol = StoreProtocol {
    open,
    files: |_| Some(Vec::new()),
    variables: None,
    hints: Hints {
        refusal,
        permissions: None,
        unreachable: Some("check the URL, that its server runs, and the network"),
        lists: false,
    },
    states_checksums: false,
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
        .with_http_connector(opening.connector.clone())
        .build();
    let store = store.map_err(|error| opening.refused(&error))?;
    Ok(OpenStore::new(store, Credentials::known(source)))
}

/// Classifies known codes, and refusals: credentials of web servers are in URLs and headers.
fn refusal(
    status: u16,
    captured: &ResponseCapture,
    asked: &RequestContext,
) -> Option<Classification> {
    let code = captured.code.as_deref().unwrap_or_default();
    let denied = |message: &str| Classification::new(ErrorKind::PermissionDenied, message);
    let refused = || {
        match status {
        401 => Some(
            denied("the server requires credentials, or rejects these")
                .hint(
                    "pass https://user:password@host or header.authorization='Bearer TOKEN'; for mirrors and peers, mirror_token",
                ),
        ),
        403 => skewed(captured).or_else(|| {
            Some(denied("access is denied").hint(if asked.signed_url {
                "sign the URL again: it has expired, or is not valid for this object or method"
            } else {
                "pass https://user:password@host, header.authorization or a signed URL"
            }))
        }),
        _ => None,
    }
    };
    by_code(code, asked).or_else(refused)
}

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
        Error::new(ErrorKind::InvalidRequest, "the URL is malformed")
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
