//! Models in OCI registries: access, the manifest that is read, and the files that it names. Called
//! by [`crate::Store`].
//!
//! The manifest is requested once, so that everything read through a store is of one artifact. Each
//! file is a blob, read by ranges from `/v2/REPOSITORY/blobs/DIGEST`; registries redirect to where
//! blobs are. Credentials go to the registry, and to the token service that it names, only.

mod challenge;
mod login;
mod manifest;
mod registry;
mod rules;

use std::sync::Arc;

use futures_util::StreamExt;
use http::HeaderValue;
use object_store::client::{HttpConnector, HttpResponse};
use tokio::sync::OnceCell;
use url::Url;

use self::challenge::basic;
use self::login::Login;
#[cfg(test)]
pub(crate) use self::manifest::{MANIFESTS, Manifest};
pub(crate) use self::registry::Registry;
use self::registry::Session;
use crate::builder::{OpenStore, Opening, StoreProtocol, is_plain};
use crate::credentials::origin::Credentials;
use crate::error::{Error, Result};
use crate::errors::classification::Classification;
use crate::explain::context::Hints;
use crate::explain::rules::{CODES, STATUSES};
use crate::http::addresses::Reach;
use crate::http::client::Extras;
use crate::http::trust::OF_CURL;
use crate::options::location::{Protocol, RemoteUrl};
use crate::options::oci_reference::OciReference;

/// OCI registries.
pub(crate) static PROTOCOL: StoreProtocol = StoreProtocol {
    protocol: Protocol::Oci,
    open,
    // Logins come from files and programs of other tools, so a change of them is not noticed.
    files: |_| None,
    variables: None,
    hints: Hints {
        rules: &[rules::RULES, CODES, STATUSES],
        unreachable: Some(
            "check the registry's name, the network and the proxy (HTTPS_PROXY); a registry without TLS that is not on this \
             machine needs the option endpoint=http://HOST:PORT",
        ),
        ..Hints::NONE
    },
    bundles: OF_CURL,
};

/// Longest manifest, bytes: 100,000 layers take about half of it.
const MANIFEST_BYTES_MAX: usize = 64 << 20;

/// Name of the store in errors of `object_store`.
const STORE: &str = "OCI registry";

fn open(opening: &Opening) -> Result<OpenStore> {
    let mut artifact = OciReference::from_authority(&opening.url.authority);
    let endpoint = opening.options.get("endpoint");
    let base = base(opening.url, &mut artifact, endpoint)?;
    let is_fixed = opening.options.get("header.authorization").is_some();
    let (login, source) = if is_fixed {
        (Login::Anonymous, "option header.authorization".to_owned())
    } else {
        Login::find(opening, &artifact)?
    };
    let token = match &login {
        Login::Password(user, password) => basic(user, password).ok(),
        Login::Identity(token) | Login::Bearer(token) => HeaderValue::from_str(token).ok(),
        Login::Anonymous | Login::Helper { .. } => None,
    };
    let extras = Extras {
        allow_http: is_plain(Some(base.as_str())),
        ..Extras::default()
    };
    let options = opening.client(extras)?;
    let connect = || opening.connector.connect(&options);
    let refused = |error| opening.refused(&error);
    // The client of the token service comes first: it sends no headers of options.
    let (tokens, client) = (connect().map_err(refused)?, connect().map_err(refused)?);
    let origin = endpoint.map(|_| base.to_string()).unwrap_or_default();
    let registry = Registry {
        base,
        artifact,
        client,
        tokens,
        login,
        answers_challenges: !is_fixed,
        session: Session::default(),
        manifest: OnceCell::new(),
    };
    Ok(OpenStore {
        origin,
        token,
        ..OpenStore::new(Arc::new(registry), Credentials::known(source))
    })
}

/// Returns the address of the registry: that of the option, or HTTPS, except on this machine. The
/// reference gets the names that it has there.
fn base(url: &RemoteUrl, artifact: &mut OciReference, endpoint: Option<&str>) -> Result<Url> {
    let invalid = |what: &str| {
        Error::invalid_request(what)
            .with_location(url.shown())
            .with_hint("write oci://registry/repository:tag, and scheme, host and port in the option endpoint")
    };
    if endpoint.is_none() && ["docker.io", "index.docker.io"].contains(&&*artifact.host) {
        "registry-1.docker.io".clone_into(&mut artifact.host);
        if !artifact.repository.contains('/') {
            artifact.repository = format!("library/{}", artifact.repository);
        }
    }
    let text = endpoint.map_or_else(|| format!("https://{}", artifact.host), str::to_owned);
    // The text is not shown: a URL may carry credentials.
    let mut base = Url::parse(&text).map_err(|_| invalid("the registry's name is not a host"))?;
    if endpoint.is_none() && Reach::from_host(&base) == Some(Reach::Loopback) {
        base = Url::parse(&format!("http://{}", artifact.host))
            .map_err(|_| invalid("the registry's name is not a host"))?;
    }
    let is_bare = base.path() == "/" && base.query().is_none() && base.fragment().is_none();
    let has_user = !base.username().is_empty() || base.password().is_some();
    let Some(host) = base.host_str().filter(|_| is_bare && !has_user) else {
        return Err(invalid(
            "the registry's endpoint is more than scheme, host and port",
        ));
    };
    if endpoint.is_some() {
        // Credentials are those of the host that is asked.
        let port = base.port().map(|port| format!(":{port}"));
        artifact.host = format!("{host}{}", port.unwrap_or_default());
    }
    Ok(base)
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic {
        store: STORE,
        source: source.into(),
    }
}

fn judged(classification: Classification) -> object_store::Error {
    classification.into()
}

/// Reads a body whole, up to the length of the longest manifest.
async fn whole(response: HttpResponse) -> object_store::Result<Vec<u8>> {
    let mut body = Vec::new();
    let mut frames = response.into_body().bytes_stream();
    while let Some(bytes) = frames.next().await {
        body.extend_from_slice(&bytes.map_err(failed)?);
        if body.len() > MANIFEST_BYTES_MAX {
            return Err(failed(format!(
                "the response is longer than {MANIFEST_BYTES_MAX} bytes"
            )));
        }
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::options::Location;

    /// Returns the registry's address, and the reference there.
    fn found(url: &str, endpoint: Option<&str>) -> Result<(Url, OciReference)> {
        let location = Location::parse(url)?;
        let remote = location.remote().expect("a URL");
        let mut artifact = OciReference::from_authority(&remote.authority);
        let base = base(remote, &mut artifact, endpoint)?;
        Ok((base, artifact))
    }

    #[test]
    fn registry_is_asked_with_tls_except_on_this_machine() {
        let table = "
            r.example/a           -                  https://r.example/            r.example/a
            r.example:5000/a      -                  https://r.example:5000/       r.example:5000/a
            localhost:5000/a      -                  http://localhost:5000/        localhost:5000/a
            127.0.0.1:5000/a      -                  http://127.0.0.1:5000/        127.0.0.1:5000/a
            [::1]:5000/a          -                  http://[::1]:5000/            [::1]:5000/a
            10.0.0.1:5000/a       -                  https://10.0.0.1:5000/        10.0.0.1:5000/a
            docker.io/a           -                  https://registry-1.docker.io/ registry-1.docker.io/library/a
            docker.io/ai/a        -                  https://registry-1.docker.io/ registry-1.docker.io/ai/a
            r.example/a           http://m:81        http://m:81/                  m:81/a
            localhost/a           https://localhost  https://localhost/            localhost/a";
        for row in table.trim().lines() {
            let row: Vec<_> = row.split_whitespace().collect();
            let [url, endpoint, wanted, place] = row[..] else {
                panic!("{row:?}");
            };
            let endpoint = Some(endpoint).filter(|endpoint| *endpoint != "-");
            let (base, artifact) = found(&format!("oci://{url}"), endpoint).expect(url);
            assert_eq!(base.as_str(), wanted);
            assert_eq!(format!("{}/{}", artifact.host, artifact.repository), place);
        }
    }

    #[test]
    fn endpoint_is_scheme_host_and_port() {
        for wrong in [
            "https://u:hunter2@m",
            "https://m/path",
            "https://m/?a=hunter2",
            "m",
        ] {
            let error = found("oci://r.example/a", Some(wrong)).expect_err(wrong);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        }
    }
}
