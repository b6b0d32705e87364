//! Makes HTTP clients as `object_store` does, except for redirects, which `redirects.rs` follows.
//!
//! `object_store` has no setting for redirects and does not expose how it makes its client, so this
//! module makes one from the settings that its options reveal.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::Uri;
use http::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue};
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey as Key, HttpClient, HttpConnector, HttpError, HttpErrorKind,
};
use reqwest::{Certificate, Proxy, redirect};
use tower_layer::Layer;
use tower_service::Service;

use super::addresses::Resolver;
use super::current_request::current;
use super::first_connection::FirstConnection;
use super::proxy::{Proxies, UnusableProxy};
use super::redirects::Following;
use super::response_capture::{Capturing, connects};
use super::trust::Trusted;
use crate::environment::{Environment, Stamped};
use crate::errors::classification::texts;
use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;
use crate::sync::timeline::Timeline;

/// Makes the HTTP clients of one store, and counts them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connector {
    made: Arc<AtomicUsize>,
    /// Number of the first client that speaks to the store itself.
    own: Arc<AtomicUsize>,
    /// Certificates to trust in addition to the system's. `object_store`'s options do not return
    /// them.
    trusted: Arc<OnceLock<Trusted>>,
    /// Clients that are made for the first request.
    clients: Arc<Mutex<Vec<Arc<LazyClient>>>>,
    is_prepared: Arc<AtomicBool>,
    /// Timeline of the opening that the clients are made for.
    timeline: Timeline,
    first: Arc<FirstConnection>,
    /// Set if a client does not verify the certificate of its server.
    is_unverified: Arc<AtomicBool>,
}

impl Connector {
    pub(crate) fn new(timeline: Timeline) -> Self {
        Self {
            timeline,
            ..Self::default()
        }
    }

    /// Returns whether a connection was made, by any client.
    pub(crate) fn first(&self) -> &Arc<FirstConnection> {
        &self.first
    }

    /// Returns whether any client accepts every certificate: what it receives may come from anyone.
    pub(crate) fn is_unverified(&self) -> bool {
        self.is_unverified.load(Ordering::Relaxed)
    }

    /// Returns the number of clients made so far.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Marks clients before this one as fetching credentials. They do not send headers of options.
    pub(crate) fn own_from(&self, number: usize) {
        self.own.store(number, Ordering::Relaxed);
    }

    /// Returns whether this client speaks to the store itself, or no client was used.
    pub(crate) fn is_own(&self, client: usize) -> bool {
        client == 0 || client >= self.own.load(Ordering::Relaxed)
    }

    /// Trusts these certificates too. Called before a client is made; a second call has no effect.
    pub(crate) fn trust(&self, trusted: Trusted) {
        let _ = self.trusted.set(trusted);
    }

    /// Returns the file or directory of the trusted certificates.
    pub(crate) fn trusted_file(&self) -> Option<Stamped> {
        self.trusted.get().map(|trusted| trusted.stamped.clone())
    }

    /// Makes the clients on a separate thread, once: a request is about to be sent, and may
    /// have to wait for credentials first.
    pub(crate) fn prepare(&self) {
        if self.is_prepared.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut clients = std::mem::take(&mut *self.clients.lock());
        // A client that nothing else refers to was made for a store that only provided its
        // credentials.
        clients.retain(|client| Arc::strong_count(client) > 1);
        if clients.is_empty() {
            return;
        }
        if clients.iter().any(|client| client.is_secure) {
            seed_random_numbers();
        }
        let make = move || {
            for client in clients {
                // If this does not run or fails, the request creates the client.
                let _ = client.get();
            }
        };
        let thread = Builder::new().name("tload-client".to_owned());
        drop(thread.spawn(make));
    }

    /// Makes a client that sends no headers of options, for requests other than those of
    /// `object_store`.
    #[cfg(feature = "aws-config")]
    pub(crate) fn client(&self, options: &ClientOptions) -> Result<LazyClient> {
        self.lazy(options, &Resolver::new(false))
    }

    fn lazy(&self, options: &ClientOptions, resolver: &Resolver) -> Result<LazyClient> {
        Ok(LazyClient {
            parts: Mutex::new(Some(self.builder(options, resolver)?)),
            client: OnceLock::new(),
            is_secure: !flag(options, Key::AllowHttp)?,
            proxies: proxies(options),
            timeline: self.timeline.clone(),
        })
    }

    fn builder(
        &self,
        options: &ClientOptions,
        resolver: &Resolver,
    ) -> Result<reqwest::ClientBuilder> {
        let mut builder = reqwest::ClientBuilder::new()
            .redirect(redirect::Policy::none())
            .referer(false)
            .dns_resolver(resolver.clone())
            .connector_layer(TimedLayer(Arc::clone(&self.first)))
            .https_only(!flag(options, Key::AllowHttp)?)
            // Lengths and ranges refer to the bytes of the file, so refuse compression.
            .default_headers(plain())
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate();
        let value = |key| options.get_config_value(&key);
        if let Some(agent) = value(Key::UserAgent) {
            builder = builder.user_agent(agent);
        }
        if let Some(pem) = value(Key::ProxyCaCertificate) {
            let certificate = Certificate::from_pem(pem.as_bytes()).map_err(failed)?;
            builder = builder.tls_certs_merge([certificate]);
        }
        // Without this, the client would send requests for credentials through a proxy, too.
        let proxies = proxies(options);
        let proxy = Proxy::custom(move |url| proxies.url_for(url));
        builder = builder.no_proxy().proxy(proxy);
        let trusted = self.trusted.get();
        let roots = trusted.map_or_else(Vec::new, |it| it.certificates.clone());
        builder = if flag(options, Key::NoSystemCertificates)? {
            builder.tls_certs_only(roots)
        } else {
            builder.tls_certs_merge(roots)
        };
        if flag(options, Key::AllowInvalidCertificates)? {
            builder = builder.danger_accept_invalid_certs(true);
            self.is_unverified.store(true, Ordering::Relaxed);
        }
        with_limits(builder, options)
    }
}

/// HTTP client that is made when it is needed: that takes milliseconds, for all certificates of the
/// system, and an opening that finds everything in the cache sends no request.
pub(crate) struct LazyClient {
    parts: Mutex<Option<reqwest::ClientBuilder>>,
    client: OnceLock<std::result::Result<reqwest::Client, NotMade>>,
    /// True if it is for TLS only.
    is_secure: bool,
    proxies: Proxies,
    timeline: Timeline,
}

impl LazyClient {
    /// Refuses a request to `uri` whose proxy cannot be used.
    pub(crate) fn admit(&self, uri: &Uri) -> std::result::Result<(), UnusableProxy> {
        self.proxies.admit(uri)
    }

    pub(crate) fn proxies(&self) -> &Proxies {
        &self.proxies
    }

    /// Returns the client.
    ///
    /// # Errors
    ///
    /// [`NotMade`], for example if the system has no certificates.
    pub(crate) fn get(&self) -> std::result::Result<&reqwest::Client, NotMade> {
        let make = || {
            let parts = self.parts.lock().take().expect("the client is made once");
            let made = self.timeline.time("client", || parts.build());
            made.map_err(|error| NotMade(texts(&error).pop().unwrap_or_default()))
        };
        self.client.get_or_init(make).as_ref().map_err(Clone::clone)
    }
}

impl fmt::Debug for LazyClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyClient").finish_non_exhaustive()
    }
}

/// Reason why a client cannot be made.
#[derive(Clone, Debug)]
pub(crate) struct NotMade(String);

impl fmt::Display for NotMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotMade {}

impl From<NotMade> for HttpError {
    fn from(error: NotMade) -> Self {
        Self::new(HttpErrorKind::Unknown, error)
    }
}

/// Applies timeouts, except that of a whole request, the connection pool, and the version of HTTP.
fn with_limits(
    mut builder: reqwest::ClientBuilder,
    options: &ClientOptions,
) -> Result<reqwest::ClientBuilder> {
    let span = |key| duration(options, key);
    if let Some(timeout) = span(Key::ConnectTimeout)? {
        builder = builder.connect_timeout(timeout);
    }
    if let Some(timeout) = span(Key::ReadTimeout)? {
        builder = builder.read_timeout(timeout);
    }
    if let Some(timeout) = span(Key::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(timeout);
    }
    if let Some(most) = number(options, Key::PoolMaxIdlePerHost)? {
        builder = builder.pool_max_idle_per_host(most);
    }
    if let Some(interval) = span(Key::Http2KeepAliveInterval)? {
        builder = builder.http2_keep_alive_interval(interval);
    }
    if let Some(timeout) = span(Key::Http2KeepAliveTimeout)? {
        builder = builder.http2_keep_alive_timeout(timeout);
    }
    if flag(options, Key::Http2KeepAliveWhileIdle)? {
        builder = builder.http2_keep_alive_while_idle(true);
    }
    if let Some(bytes) = number(options, Key::Http2MaxFrameSize)? {
        builder = builder.http2_max_frame_size(Some(bytes));
    }
    if flag(options, Key::Http1Only)? {
        builder = builder.http1_only();
    }
    if flag(options, Key::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    }
    Ok(builder)
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let shuffles = flag(options, Key::RandomizeAddresses)?;
        let resolver = Resolver::new(shuffles);
        let client = Arc::new(self.lazy(options, &resolver)?);
        if self.trusted.get().is_some_and(|trusted| trusted.is_option) {
            // Create the client now to check the certificates of the option.
            client.get().map_err(failed)?;
        }
        self.clients.lock().push(Arc::clone(&client));
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let proxies = client.proxies().clone();
        let following = Following {
            client,
            resolver,
            timeout: duration(options, Key::Timeout)?,
            headers: options.get_default_headers().cloned().unwrap_or_default(),
            number,
            own: Arc::clone(&self.own),
        };
        Ok(HttpClient::new(Capturing::new(
            HttpClient::new(following),
            number,
            proxies,
        )))
    }
}

/// Seeds the random numbers of TLS, once per process, on a separate thread: aws-lc collects
/// entropy for 30 ms, which the first connection would otherwise wait for after its name has been
/// resolved and its credentials have been fetched (`benches/results/2core-amd-2026-11-24`).
fn seed_random_numbers() {
    static SEEDED: AtomicBool = AtomicBool::new(false);
    if !SEEDED.swap(true, Ordering::Relaxed) {
        let seed = || {
            // If this does not run, the first connection seeds the generator.
            let _ = aws_lc_rs::rand::fill(&mut [0]);
        };
        let thread = Builder::new().name("tload-seed".to_owned());
        drop(thread.spawn(seed));
    }
}

/// Layer around the connections of a client, which records how long each took to open.
#[derive(Clone)]
struct TimedLayer(Arc<FirstConnection>);

#[derive(Clone)]
struct Timed<S> {
    inner: S,
    first: Arc<FirstConnection>,
}

impl<S> Layer<S> for TimedLayer {
    type Service = Timed<S>;

    fn layer(&self, inner: S) -> Timed<S> {
        Timed {
            inner,
            first: Arc::clone(&self.0),
        }
    }
}

impl<R, S> Service<R> for Timed<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<std::result::Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, to: R) -> Self::Future {
        // Once this connection is open, the request may already use another one.
        let timeline = current(|it| it.timeline.clone()).unwrap_or_default();
        let started = Instant::now();
        connects();
        let (connecting, first) = (self.inner.call(to), Arc::clone(&self.first));
        Box::pin(async move {
            let result = connecting.await;
            if result.is_ok() {
                first.made();
            }
            timeline.record("connect", started);
            result
        })
    }
}

/// Returns the header by which requests ask for bytes that are not compressed, unless an option of
/// the store sets another one.
fn plain() -> HeaderMap {
    let identity = HeaderValue::from_static("identity");
    HeaderMap::from_iter([(ACCEPT_ENCODING, identity)])
}

/// Returns the proxies that a client with these options uses.
fn proxies(options: &ClientOptions) -> Proxies {
    let value = |key| options.get_config_value(&key);
    match value(Key::ProxyUrl) {
        Some(url) => Proxies::new(&url, &value(Key::ProxyExcludes).unwrap_or_default()),
        None => Proxies::from_environment(&Environment::from_process()),
    }
}

type Result<T> = object_store::Result<T>;

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic {
        store: "HTTP client",
        source: error.into(),
    }
}

/// Returns the error for an invalid setting. Hides the value, which may be meant for another
/// setting.
fn invalid(key: Key) -> object_store::Error {
    failed(format!("the value of {} is invalid", key.as_ref()))
}

/// Reads a setting as `object_store` does.
fn flag(options: &ClientOptions, key: Key) -> Result<bool> {
    let Some(text) = options.get_config_value(&key) else {
        return Ok(false);
    };
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" | "y" => Ok(true),
        "0" | "false" | "off" | "no" | "n" => Ok(false),
        _ => Err(invalid(key)),
    }
}

fn number<N: std::str::FromStr>(options: &ClientOptions, key: Key) -> Result<Option<N>> {
    let text = options.get_config_value(&key);
    text.map(|text| text.parse().map_err(|_| invalid(key)))
        .transpose()
}

fn duration(options: &ClientOptions, key: Key) -> Result<Option<Duration>> {
    let text = options.get_config_value(&key);
    text.map(|text| humantime::parse_duration(&text).map_err(|_| invalid(key)))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_refused() {
        for key in [Key::Timeout, Key::RandomizeAddresses] {
            let options = ClientOptions::new().with_config(key, "hunter2");
            let error = Connector::default().connect(&options).expect_err("refused");
            let text = error.to_string();
            assert!(text.contains(key.as_ref()), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
