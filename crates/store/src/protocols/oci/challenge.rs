//! Challenges of a registry (`WWW-Authenticate`), and the token service that they name.
//!
//! Follows "Token Authentication" and "`OAuth2` Token Authentication" of the CNCF distribution
//! project.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use serde::Deserialize;
use url::Url;
use url::form_urlencoded::Serializer;

use super::login::Login;
use super::{failed, judged, whole};
use crate::error::ErrorKind;
use crate::errors::classification::Classification;
use crate::http::addresses::Reach;
use crate::http::redirects::{self, NamedBy};

/// Lifetime of a token that states none, and the time before its end at which it is renewed.
const LIFETIME: Duration = Duration::from_secs(60);
const MARGIN: Duration = Duration::from_secs(5);

/// Longest lifetime that is believed.
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// Challenge that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer {
        realm: Url,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// Value of the header `Authorization`, and the time until which it is sent.
#[derive(Clone)]
pub(super) struct Authorization {
    pub(super) header: HeaderValue,
    pub(super) until: Option<Instant>,
}

/// Response of a token service.
#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl Challenge {
    /// Returns the challenge of a response with status 401; `None` if none is known.
    ///
    /// # Errors
    ///
    /// A token service that a registry of this `reach` must not name.
    pub(super) fn parse(
        headers: &HeaderMap,
        registry: &Url,
        reach: Reach,
    ) -> Result<Option<Self>, Classification> {
        let values = headers.get_all(WWW_AUTHENTICATE).iter();
        let texts: Vec<_> = values.filter_map(|value| value.to_str().ok()).collect();
        let scheme = |name: &str| {
            texts.iter().find_map(|text| {
                let start = text.get(..name.len())?;
                let rest = &text[name.len()..];
                (start.eq_ignore_ascii_case(name) && (rest.is_empty() || rest.starts_with(' ')))
                    .then_some(rest)
            })
        };
        let Some(text) = scheme("bearer") else {
            return Ok(scheme("basic").map(|_| Self::Basic));
        };
        let value = |name: &str| parameter(text, name).filter(|value| !value.is_empty());
        let Some(realm) = value("realm").and_then(|realm| Url::parse(&realm).ok()) else {
            return Ok(None);
        };
        let is_allowed = realm.origin() == registry.origin()
            || (realm.username().is_empty() && redirects::check(registry, &realm, reach).is_ok());
        if !is_allowed {
            let host = realm.host_str().unwrap_or("no host");
            let message = format!(
                "the registry names a token service that it must not name: {}://{host}",
                realm.scheme()
            );
            return Err(Classification::new(ErrorKind::PermissionDenied, message).hint(
                "a registry with TLS needs a token service with TLS, which only private registries may have on private addresses",
            ));
        }
        Ok(Some(Self::Bearer {
            realm,
            service: value("service"),
            scope: value("scope"),
        }))
    }

    /// Answers the challenge; `None` if the credentials are of no use for it. `repository` is read
    /// if the challenge names no scope. `named` is the registry that names the token service.
    pub(super) async fn answer(
        &self,
        client: &HttpClient,
        login: &Login,
        repository: &str,
        named: NamedBy,
    ) -> object_store::Result<Option<Authorization>> {
        let (realm, service, scope) = match (self, login) {
            (_, Login::Bearer(token)) => return Ok(Some(bearer(token, None)?)),
            (Self::Basic, Login::Password(user, password)) => {
                let header = basic(user, password)?;
                return Ok(Some(Authorization {
                    header,
                    until: None,
                }));
            }
            (Self::Basic, _) => return Ok(None),
            (
                Self::Bearer {
                    realm,
                    service,
                    scope,
                },
                _,
            ) => (realm, service, scope),
        };
        let scope = scope.clone();
        let scope = scope.unwrap_or_else(|| format!("repository:{repository}:pull"));
        let mut request = question(realm, service.as_deref(), &scope, login)?;
        request.extensions_mut().insert(named);
        let began = Instant::now();
        let response = client.execute(request).await.map_err(failed)?;
        if !response.status().is_success() {
            return Err(failed("refused"));
        }
        let body = whole(response).await?;
        // The cause is left out: it may quote a token.
        let answer: Option<Answer> = serde_json::from_slice(&body).ok();
        let lifetime = answer.as_ref().and_then(|answer| answer.expires_in);
        let token = answer.and_then(|answer| answer.token.or(answer.access_token));
        let Some(token) = token.filter(|token| !token.is_empty()) else {
            return Err(judged(
                Classification::new(
                    ErrorKind::Remote,
                    "the registry's token service sent no token",
                )
                .hint("try again, or log in again"),
            ));
        };
        let lifetime = lifetime
            .map_or(LIFETIME, Duration::from_secs)
            .min(LIFETIME_MAX);
        let until = began + lifetime.saturating_sub(MARGIN);
        Ok(Some(bearer(&token, Some(until))?))
    }
}

/// Returns the request for a token.
fn question(
    realm: &Url,
    service: Option<&str>,
    scope: &str,
    login: &Login,
) -> object_store::Result<HttpRequest> {
    let mut form = Serializer::new(String::new());
    form.extend_pairs(service.map(|service| ("service", service)));
    form.append_pair("scope", scope);
    if let Login::Identity(token) = login {
        form.append_pair("grant_type", "refresh_token");
        form.append_pair("client_id", "tload");
        form.append_pair("refresh_token", token);
        let mut request = HttpRequest::new(HttpRequestBody::from(form.finish()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri(realm)?;
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, kind);
        return Ok(request);
    }
    let mut realm = realm.clone();
    realm
        .query_pairs_mut()
        .extend_pairs(service.map(|service| ("service", service)));
    realm.query_pairs_mut().append_pair("scope", scope);
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.uri_mut() = uri(&realm)?;
    if let Login::Password(user, password) = login {
        let authorization = basic(user, password)?;
        request.headers_mut().insert(AUTHORIZATION, authorization);
    }
    Ok(request)
}

fn uri(url: &Url) -> object_store::Result<http::Uri> {
    url.as_str().parse().map_err(failed)
}

fn bearer(token: &str, until: Option<Instant>) -> object_store::Result<Authorization> {
    let header = sensitive(&format!("Bearer {token}"))?;
    Ok(Authorization { header, until })
}

/// Returns user and password as a header.
pub(super) fn basic(user: &str, password: &str) -> object_store::Result<HeaderValue> {
    sensitive(&format!(
        "Basic {}",
        STANDARD.encode(format!("{user}:{password}"))
    ))
}

/// Returns a header that is not shown.
fn sensitive(text: &str) -> object_store::Result<HeaderValue> {
    let mut header = HeaderValue::from_str(text).map_err(|_| {
        judged(
            Classification::new(
                ErrorKind::InvalidRequest,
                "the registry's token holds a character that cannot be sent",
            )
            .hint("log in again"),
        )
    })?;
    header.set_sensitive(true);
    Ok(header)
}

/// Returns a parameter of a challenge: `name="value"`, where a backslash escapes, or `name=value`.
fn parameter(text: &str, name: &str) -> Option<String> {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        let (found, after) = rest.split_once('=')?;
        let (value, after) = if let Some(quoted) = after.strip_prefix('"') {
            unquoted(quoted)?
        } else {
            let end = after.find([',', ' ']).unwrap_or(after.len());
            (after[..end].to_owned(), &after[end..])
        };
        if found.trim().eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = after;
    }
}

/// Splits at the closing quote.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    loop {
        match letters.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(letters.next()?.1),
            (_, letter) => value.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use object_store::client::{HttpError, HttpResponse, HttpResponseBody, HttpService};

    use super::*;
    use crate::sync::lock::Mutex;

    fn parse(
        challenges: &[&str],
        registry: &str,
        reach: Reach,
    ) -> Result<Option<Challenge>, String> {
        let value = |text: &&str| (WWW_AUTHENTICATE, text.parse().expect("a header"));
        let headers = challenges.iter().map(value).collect();
        let registry = Url::parse(registry).expect("a URL");
        Challenge::parse(&headers, &registry, reach).map_err(|found| found.message)
    }

    #[test]
    fn challenges_are_parsed() {
        let found =
            |texts: &[&str]| parse(texts, "https://r.example", Reach::Public).expect("allowed");
        let wanted = |service: Option<&str>, scope: Option<&str>| {
            Some(Challenge::Bearer {
                realm: Url::parse("https://auth.example/token").expect("a URL"),
                service: service.map(str::to_owned),
                scope: scope.map(str::to_owned),
            })
        };
        let bearer = r#"Bearer realm="https://auth.example/token",service="a \"b\", c",scope="repository:a/b:pull,push""#;
        let all = wanted(Some("a \"b\", c"), Some("repository:a/b:pull,push"));
        assert_eq!(found(&[bearer]), all);
        assert_eq!(found(&["Basic realm=\"x\"", bearer]), all);
        let short = "bearer realm=https://auth.example/token, service=";
        assert_eq!(found(&[short]), wanted(None, None));
        assert_eq!(found(&["Basic realm=\"x\""]), Some(Challenge::Basic));
        for unknown in [
            "Bearer",
            "Bearer realm=\"",
            "Bearer realm=\"no url\"",
            "Negotiate",
            "",
        ] {
            assert_eq!(found(&[unknown]), None, "{unknown}");
        }
    }

    /// Client that has no network, and says whether a request is marked as named by a registry.
    #[derive(Debug)]
    struct Marked(Arc<Mutex<Option<Reach>>>);

    #[async_trait]
    impl HttpService for Marked {
        async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
            let named = request.extensions().get::<NamedBy>();
            *self.0.lock() = named.map(|named| named.reach);
            let body = HttpResponseBody::from(r#"{"token":"t"}"#.to_owned());
            Ok(HttpResponse::new(body))
        }
    }

    #[tokio::test]
    async fn requests_for_tokens_obey_the_rules_for_named_hosts() {
        let challenge = r#"Bearer realm="https://auth.example/token""#;
        let challenge = parse(&[challenge], "https://r.example", Reach::Public).expect("allowed");
        let challenge = challenge.expect("is known");
        let host = Url::parse("https://r.example").expect("a URL");
        let password = Login::Password("u".to_owned(), "p".to_owned());
        for login in [Login::Anonymous, password, Login::Identity("i".to_owned())] {
            let found = Arc::new(Mutex::new(None));
            let client = HttpClient::new(Marked(Arc::clone(&found)));
            let (host, reach) = (host.clone(), Reach::Public);
            let answer = challenge.answer(&client, &login, "a/b", NamedBy { host, reach });
            answer.await.expect("answers").expect("a token");
            assert_eq!(*found.lock(), Some(Reach::Public));
        }
    }

    #[test]
    fn token_service_is_as_public_as_the_registry() {
        for (registry, realm, reach, is_allowed) in [
            (
                "https://r.example",
                "https://r.example/token",
                Reach::Public,
                true,
            ),
            (
                "https://r.example",
                "https://other.example/token",
                Reach::Public,
                true,
            ),
            (
                "https://r.example",
                "http://other.example/token",
                Reach::Public,
                false,
            ),
            (
                "https://r.example",
                "https://u:p@other.example/",
                Reach::Public,
                false,
            ),
            (
                "https://r.example",
                "https://10.0.0.1/",
                Reach::Public,
                false,
            ),
            (
                "https://r.example",
                "https://10.0.0.1/",
                Reach::Private,
                true,
            ),
            (
                "http://localhost:1",
                "http://127.0.0.1:2/",
                Reach::Loopback,
                true,
            ),
            (
                "http://localhost:1",
                "http://169.254.169.254/",
                Reach::Loopback,
                false,
            ),
            (
                "https://r.example",
                "file:///etc/passwd",
                Reach::Loopback,
                false,
            ),
        ] {
            let challenge = format!("Bearer realm=\"{realm}\"");
            let found = parse(&[&challenge], registry, reach);
            assert_eq!(found.is_ok(), is_allowed, "{registry} {realm}: {found:?}");
        }
    }
}
