//! Google's credentials of external accounts (workload identity federation, AIP-4117): a token of
//! another identity provider is exchanged for one of Google, perhaps one of a service account.
//!
//! Tokens go to hosts of Google only, whatever the file names: it may come from anywhere.
//! `subject_token.rs` fetches the token of the other provider. Called by `gcs/mod.rs`.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::DateTime;
use futures_util::StreamExt;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method};
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody};
use object_store::gcp::GcpCredential;
use serde_json::{Value, json};
use url::Url;
use url::form_urlencoded::Serializer;

use super::subject_token::{Fetched, Subject};
use crate::builder::Opening;
use crate::credentials::cache::{Load, Loaded};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::errors::classification::{Cause, Classification};
use crate::http::addresses::Reach;

/// Service that exchanges tokens, unless the file names a regional one.
const TOKEN_URL: &str = "https://sts.googleapis.com/v1/token";

/// Domain of Google's services; `GOOGLE_CLOUD_UNIVERSE_DOMAIN` may name another one.
const DOMAIN: &str = "googleapis.com";
const UNIVERSE: &str = "GOOGLE_CLOUD_UNIVERSE_DOMAIN";

/// Services that exchange tokens, and that give tokens of service accounts.
const EXCHANGE: &str = "sts";
const IMPERSONATION: &str = "iamcredentials";

/// Permission to read objects.
const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_only";

/// Permission to ask for the token of a service account.
const SCOPE_TO_IMPERSONATE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// Default lifetime of a service account's token, seconds.
const LIFETIME: u64 = 3600;

/// Credentials of an external account.
pub(super) struct ExternalAccount {
    /// Description of the account, for display.
    source: String,
    audience: String,
    subject_token_type: String,
    token_url: Url,
    /// Service that gives a token of a service account for that of the external one, and the
    /// lifetime to ask for.
    impersonation: Option<(Url, u64)>,
    /// `Authorization` header for the token service, from id and secret of a client.
    client: Option<HeaderValue>,
    /// Project to bill, for a workforce pool.
    user_project: Option<String>,
    subject: Subject,
}

/// Returns the type of the credentials in a file.
pub(super) fn type_of(text: &str) -> Option<String> {
    let document: Value = serde_json::from_str(text).ok()?;
    Some(document.get("type")?.as_str()?.to_owned())
}

impl ExternalAccount {
    /// Parses a file of the type `external_account`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for one that lacks a field, or would send tokens to a host
    /// that is not Google's; [`ErrorKind::Unsupported`] for a source that is not supported.
    pub(super) fn parse(text: &str, path: &Path, opening: &Opening) -> Result<Self> {
        let invalid = |what: &str| {
            let message = format!("the external account of Google {what}");
            Error::invalid_request(message)
                .with_location(path.display())
                .with_hint(
                    "make the file again: gcloud iam workload-identity-pools create-cred-config",
                )
        };
        let document: Value = serde_json::from_str(text).map_err(|_| invalid("is not JSON"))?;
        let field = |name: &str| {
            document
                .get(name)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        let needed = |name: &str| field(name).ok_or_else(|| invalid(&format!("has no {name}")));
        let url = |name: &str, service: &str, text: String| {
            let url = Url::parse(&text).map_err(|_| invalid(&format!("has no URL as {name}")))?;
            require_google(&url, service, opening.environment)
                .map_err(|reason| invalid(&format!("sends tokens elsewhere: {name} {reason}")))?;
            Ok::<_, Error>(url)
        };
        let impersonation = match field("service_account_impersonation_url") {
            Some(text) => {
                let lifetime = document
                    .pointer("/service_account_impersonation/token_lifetime_seconds")
                    .and_then(Value::as_u64);
                let url = url("service_account_impersonation_url", IMPERSONATION, text)?;
                Some((url, lifetime.unwrap_or(LIFETIME)))
            }
            None => None,
        };
        let client = field("client_id").zip(field("client_secret"));
        let client = client.map(|(id, secret)| {
            basic(&id, &secret).map_err(|_| invalid("has a client_secret that cannot be sent"))
        });
        let audience = needed("audience")?;
        let subject_token_type = needed("subject_token_type")?;
        let email = impersonation.as_ref().and_then(|(url, _)| email_of(url));
        let source = document
            .get("credential_source")
            .ok_or_else(|| invalid("has no credential_source"))?;
        let subject = Subject::parse(source, opening.environment).map_err(|unusable| {
            let error = invalid(&unusable.what);
            if unusable.is_unsupported {
                Error::new(ErrorKind::Unsupported, error.message())
                    .with_location(path.display())
                    .with_hint(
                        "use a source that is a file, a URL or a program, or pass a token as option token",
                    )
            } else {
                error
            }
        })?;
        Ok(Self {
            source: format!("external account of {}", path.display()),
            token_url: url(
                "token_url",
                EXCHANGE,
                field("token_url").unwrap_or_else(|| TOKEN_URL.to_owned()),
            )?,
            subject: subject.of(&audience, &subject_token_type, email),
            audience,
            subject_token_type,
            impersonation,
            client: client.transpose()?,
            user_project: field("workforce_pool_user_project"),
        })
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Returns the request that exchanges a subject token (RFC 8693).
    fn form(&self, subject: &str, scope: &str) -> String {
        let mut form = Serializer::new(String::new());
        form.append_pair(
            "grant_type",
            "urn:ietf:params:oauth:grant-type:token-exchange",
        )
        .append_pair(
            "requested_token_type",
            "urn:ietf:params:oauth:token-type:access_token",
        )
        .append_pair("audience", &self.audience)
        .append_pair("scope", scope)
        .append_pair("subject_token_type", &self.subject_token_type)
        .append_pair("subject_token", subject);
        if let Some(project) = &self.user_project {
            let options = json!({ "userProject": project });
            form.append_pair("options", &options.to_string());
        }
        form.finish()
    }

    /// Connects the clients of the services. They send no headers of options.
    pub(super) fn connect(
        self,
        opening: &Opening,
        options: &ClientOptions,
    ) -> object_store::Result<Federated> {
        let options = options.clone().with_allow_http(false);
        let remote = opening.connector.connect(&options)?;
        let impersonation = self.impersonation.iter().map(|(url, _)| url);
        let has_local = impersonation
            .chain([&self.token_url])
            .chain(self.subject.url())
            .any(is_local);
        let local = if has_local {
            let never = options
                .with_allow_http(true)
                .with_proxy_url("http://unused.invalid")
                .with_proxy_excludes("*");
            opening.connector.connect(&never)?
        } else {
            remote.clone()
        };
        Ok(Federated {
            account: self,
            remote,
            local,
        })
    }
}

/// Returns the header with id and secret of a client.
fn basic(id: &str, secret: &str) -> std::result::Result<HeaderValue, http::Error> {
    let pair = STANDARD.encode(format!("{id}:{secret}"));
    let mut value = HeaderValue::from_str(&format!("Basic {pair}"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns whether a service is never asked through a proxy. One without TLS answers for this
/// machine, as metadata services do.
fn is_local(url: &Url) -> bool {
    url.scheme() == "http" || Reach::from_host(url) == Some(Reach::Loopback)
}

/// Requires that a URL is one of this service of Google, with TLS; one on this machine may be
/// without.
fn require_google(
    url: &Url,
    service: &str,
    environment: &Environment,
) -> std::result::Result<(), String> {
    if Reach::from_host(url) == Some(Reach::Loopback) && ["http", "https"].contains(&url.scheme()) {
        return Ok(());
    }
    if url.scheme() != "https" {
        return Err("is not an https:// URL".to_owned());
    }
    let host = url.host_str().unwrap_or_default();
    let is_below = |domain: &str| {
        let front = host
            .strip_suffix(domain)
            .and_then(|front| front.strip_suffix('.'));
        front.is_some_and(|front| is_of_service(front, service))
    };
    let universe = environment
        .get(UNIVERSE)
        .map(str::trim)
        .filter(|domain| !domain.is_empty());
    if is_below(DOMAIN) || universe.is_some_and(is_below) {
        return Ok(());
    }
    Err(format!(
        "is at {host}, which is not {service} below {DOMAIN} or the domain in {UNIVERSE}"
    ))
}

/// Returns whether the labels of a host below the domain of Google name this service: the global
/// one, one of a region, or a private endpoint. These are the forms that Google's own libraries
/// know.
fn is_of_service(labels: &str, service: &str) -> bool {
    let labels: Vec<_> = labels.split('.').collect();
    match labels[..] {
        [one] => {
            let region = one.strip_suffix(service);
            one == service || region.is_some_and(|region| region.ends_with('-'))
        }
        [front, "p"] => {
            let endpoint = front.strip_prefix(service);
            endpoint.is_some_and(|endpoint| endpoint.starts_with('-'))
        }
        [one, other] => one == service || other == service,
        [one, _, "rep"] => one == service,
        _ => false,
    }
}

/// Returns the service account that a URL of impersonation names.
fn email_of(url: &Url) -> Option<String> {
    let (_, rest) = url.path().split_once("/serviceAccounts/")?;
    let (email, _) = rest.split_once(':')?;
    Some(email.to_owned())
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAccount")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// External account with the clients of its services.
#[derive(Debug)]
pub(super) struct Federated {
    account: ExternalAccount,
    remote: HttpClient,
    /// Client of services of this machine, without a proxy.
    local: HttpClient,
}

#[async_trait]
impl Load for Federated {
    type Credential = GcpCredential;

    async fn load(&self) -> object_store::Result<Loaded<GcpCredential>> {
        let subject = &self.account.subject;
        let client = subject.url().map_or(&self.remote, |url| self.client(url));
        let subject = subject.fetch(client).await?;
        let (bearer, expires) = match &self.account.impersonation {
            None => self.exchange(&subject, SCOPE).await?,
            Some((url, lifetime)) => {
                let (bearer, _) = self.exchange(&subject, SCOPE_TO_IMPERSONATE).await?;
                self.impersonate(&bearer, url, *lifetime).await?
            }
        };
        Ok(Loaded {
            credential: std::sync::Arc::new(GcpCredential { bearer }),
            expires,
            source: self.account.source.clone(),
        })
    }
}

/// Token, and when it expires.
type Token = (String, Option<SystemTime>);

impl Federated {
    fn client(&self, url: &Url) -> &HttpClient {
        if is_local(url) {
            &self.local
        } else {
            &self.remote
        }
    }

    /// Exchanges the token of the other provider for one of Google.
    async fn exchange(&self, subject: &str, scope: &str) -> object_store::Result<Token> {
        let account = &self.account;
        let mut request = post(&account.token_url, account.form(subject, scope));
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, form);
        if let Some(client) = &account.client {
            request.headers_mut().insert(AUTHORIZATION, client.clone());
        }
        let answer = self.ask_json(request, &account.token_url).await?;
        let token = answer
            .get("access_token")
            .and_then(Value::as_str)
            .ok_or_else(|| malformed(&account.token_url))?;
        let lifetime = answer.get("expires_in").and_then(Value::as_u64);
        let expires =
            lifetime.and_then(|secs| SystemTime::now().checked_add(Duration::from_secs(secs)));
        Ok((token.to_owned(), expires))
    }

    /// Asks for a token of the service account.
    async fn impersonate(
        &self,
        bearer: &str,
        url: &Url,
        lifetime: u64,
    ) -> object_store::Result<Token> {
        let body = json!({ "scope": [SCOPE], "lifetime": format!("{lifetime}s") });
        let mut request = post(url, body.to_string());
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
        let mut bearer =
            HeaderValue::from_str(&format!("Bearer {bearer}")).map_err(|_| malformed(url))?;
        bearer.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, bearer);
        let answer = self.ask_json(request, url).await?;
        let field = |name: &str| answer.get(name).and_then(Value::as_str);
        let token = field("accessToken").ok_or_else(|| malformed(url))?;
        let expires = field("expireTime").and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        Ok((token.to_owned(), expires.map(SystemTime::from)))
    }

    async fn ask_json(&self, request: HttpRequest, url: &Url) -> object_store::Result<Value> {
        let body = ask(self.client(url), request).await?;
        serde_json::from_slice(&body).map_err(|_| malformed(url))
    }
}

fn post(url: &Url, body: String) -> HttpRequest {
    let mut request = HttpRequest::new(HttpRequestBody::from(body));
    *request.method_mut() = Method::POST;
    // A parsed URL is always a valid URI.
    *request.uri_mut() = url.as_str().parse().unwrap_or_default();
    request
}

/// Sends a request, and returns the body of the response. A failure is classified by what was
/// captured of the response.
pub(super) async fn ask(
    client: &HttpClient,
    request: HttpRequest,
) -> object_store::Result<Fetched> {
    let generic = |source| object_store::Error::Generic {
        store: "Google",
        source,
    };
    let response = client
        .execute(request)
        .await
        .map_err(|error| generic(Box::new(error)))?;
    let status = response.status();
    let mut body = Vec::new();
    // The client limits the length of the body.
    let mut frames = response.into_body().bytes_stream();
    while let Some(bytes) = frames.next().await {
        body.extend_from_slice(&bytes.map_err(|error| generic(Box::new(error)))?);
    }
    if status.is_success() {
        Ok(body)
    } else {
        Err(generic(format!("status {status}").into()))
    }
}

fn malformed(url: &Url) -> object_store::Error {
    let host = url.host_str().unwrap_or_default();
    let message = format!("cannot get credentials from {host}: the response holds no token");
    let hint = "check the URLs in the file of the external account";
    let classification = Classification::new(ErrorKind::Remote, message).hint(hint);
    classification.of_credentials().into()
}

/// Returns the failure to get the subject token from a place other than a URL.
pub(super) fn no_subject(message: String, cause: Option<String>) -> object_store::Error {
    let classification = Classification::new(ErrorKind::PermissionDenied, message)
        .hint("check credential_source in the file of the external account")
        .cause(cause.map(Cause::Words));
    classification.of_credentials().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_to_hosts_of_google_only() {
        let variables = [(UNIVERSE.to_owned(), "apis-tpclp.goog".to_owned())];
        let (nothing, elsewhere) = (Environment::default(), Environment::new(variables));
        for (url, at_google, at_universe) in [
            ("https://sts.googleapis.com/v1/token", true, true),
            (
                "https://sts.europe-west1.rep.googleapis.com/v1/token",
                true,
                true,
            ),
            ("https://sts.apis-tpclp.goog/v1/token", false, true),
            ("http://127.0.0.1:8080/token", true, true),
            ("https://localhost:8443/token", true, true),
            ("http://sts.googleapis.com/v1/token", false, false),
            ("https://googleapis.com.evil.example/token", false, false),
            ("https://evilgoogleapis.com/token", false, false),
            ("https://googleapis.com@evil.example/token", false, false),
            ("https://evil.example/?sts.googleapis.com", false, false),
            ("http://10.0.0.1/token", false, false),
            ("https://169.254.169.254/token", false, false),
            ("ftp://127.0.0.1/token", false, false),
        ] {
            let parsed = Url::parse(url).expect(url);
            for (environment, wanted) in [(&nothing, at_google), (&elsewhere, at_universe)] {
                let is_trusted = require_google(&parsed, EXCHANGE, environment).is_ok();
                assert_eq!(is_trusted, wanted, "{url}");
            }
        }
    }

    #[test]
    fn tokens_go_to_their_own_service_only() {
        let nothing = Environment::default();
        for (host, wanted) in [
            ("SERVICE", true),
            ("SERVICE.europe-west1", true),
            ("SERVICE.europe-west1.rep", true),
            ("europe-west1.SERVICE", true),
            ("europe-west1-SERVICE", true),
            ("SERVICE-name.p", true),
            ("storage", false),
            ("SERVICE-name", false),
            ("evilSERVICE", false),
            ("SERVICEname.p", false),
            ("europe-west1.rep", false),
            ("SERVICE.a.b", false),
            ("SERVICE.a.b.rep", false),
            ("a.SERVICE.rep", false),
        ] {
            for (service, other) in [(EXCHANGE, IMPERSONATION), (IMPERSONATION, EXCHANGE)] {
                let url = format!("https://{}.{DOMAIN}/", host.replace("SERVICE", service));
                let parsed = Url::parse(&url).expect("a URL");
                let is_trusted = require_google(&parsed, service, &nothing).is_ok();
                assert_eq!(is_trusted, wanted, "{url}");
                assert!(require_google(&parsed, other, &nothing).is_err(), "{url}");
            }
        }
    }

    #[test]
    fn service_account_is_named_by_its_url() {
        let url = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/a@b.iam.gserviceaccount.com:generateAccessToken";
        let email = email_of(&Url::parse(url).expect("a URL"));
        assert_eq!(email.as_deref(), Some("a@b.iam.gserviceaccount.com"));
    }
}
