//! Configures connections (timeouts, certificates, proxy, headers) from options and environment,
//! for `object_store`'s client.

use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use object_store::{ClientConfigKey, ClientOptions};

use super::connector::Connector;
use super::proxy::excluded;
use super::trust::Bundle;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::options::store_options::StoreOptions;

/// Default limit on the time that connecting may take.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Default limit on the time that may pass without a byte.
pub const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// Idle connections kept open per host: more than there are ever requests in flight.
const POOL_IDLE_MAX: usize = 1024;

/// Time for which a connection is kept open after its last request: long enough for the next
/// opening, not so long that connections to many stores use up the process's descriptors.
const POOL_IDLE: std::time::Duration = std::time::Duration::from_secs(30);

/// Additions of a store's protocol to the options.
#[derive(Default)]
pub(crate) struct Extras {
    /// Settings of the client under `object_store`'s names, in ascending precedence.
    pub(crate) settings: Vec<(ClientConfigKey, String)>,
    /// True if the endpoint is a plain `http://` one.
    pub(crate) allow_http: bool,
    /// `Authorization` header, from user and password of a URL.
    pub(crate) authorization: Option<HeaderValue>,
    /// Certificates to trust unless the option names some.
    pub(crate) bundle: Option<Bundle>,
}

/// Returns the client's options. Certificates to trust go to the connector.
///
/// # Errors
///
/// [`crate::error::ErrorKind::InvalidRequest`] for headers that cannot be sent, and those of
/// [`Bundle::read`].
pub(crate) fn client_options(
    options: &StoreOptions,
    environment: &Environment,
    connector: &Connector,
    extras: Extras,
) -> Result<ClientOptions> {
    let agent = concat!("tload/", env!("CARGO_PKG_VERSION"));
    // A whole request has no time limit, because an extent may be long and the line slow.
    // `read_timeout` detects stalls.
    let mut client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_read_timeout(READ_TIMEOUT)
        .with_http1_only()
        .with_pool_max_idle_per_host(POOL_IDLE_MAX)
        .with_pool_idle_timeout(POOL_IDLE)
        .with_user_agent(HeaderValue::from_static(agent));
    for (key, value) in extras.settings {
        client = client.with_config(key, value);
    }
    if extras.allow_http {
        client = client.with_allow_http(true);
    }
    if let Some(timeout) = options.seconds("connect_timeout") {
        client = client.with_connect_timeout(timeout);
    }
    if let Some(timeout) = options.seconds("read_timeout") {
        client = client.with_read_timeout(timeout);
    }
    if let Some(verify) = options.flag("tls_verify") {
        client = client.with_allow_invalid_certificates(!verify);
    }
    if let Some(bundle) = Bundle::of_option(options).or(extras.bundle) {
        connector.trust(bundle.read()?);
    }
    if let Some(proxy) = options.get("proxy") {
        client = client.with_proxy_url(proxy);
    }
    // A setting of `object_store` can name a proxy, too.
    if client
        .get_config_value(&ClientConfigKey::ProxyUrl)
        .is_some()
    {
        let mut all = vec![excluded(environment)];
        all.extend(client.get_config_value(&ClientConfigKey::ProxyExcludes));
        client = client.with_proxy_excludes(all.join(","));
    }
    let headers = headers(options, extras.authorization)?;
    if !headers.is_empty() {
        client = client.with_default_headers(headers);
    }
    Ok(client)
}

fn headers(options: &StoreOptions, authorization: Option<HeaderValue>) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.extend(authorization.map(|value| (AUTHORIZATION, value)));
    for (name, value) in options.headers() {
        let pair = HeaderName::from_bytes(name.as_bytes())
            .ok()
            .zip(HeaderValue::from_str(value).ok());
        let Some((name, mut value)) = pair else {
            let message = format!("store option header.{name} is not a valid header");
            return Err(Error::invalid_request(message));
        };
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> StoreOptions {
        StoreOptions::from_pairs(pairs.iter().copied()).expect("options")
    }

    #[test]
    fn options_win_over_settings_and_settings_over_defaults() {
        let value = |options: &StoreOptions, key: ClientConfigKey| {
            let extras = Extras {
                settings: vec![
                    (ClientConfigKey::ConnectTimeout, "7 seconds".to_owned()),
                    (ClientConfigKey::ReadTimeout, "8 seconds".to_owned()),
                ],
                ..Extras::default()
            };
            let client = client_options(
                options,
                &Environment::default(),
                &Connector::default(),
                extras,
            )
            .expect("a client");
            client.get_config_value(&key)
        };
        let options = options(&[("connect_timeout", "2")]);
        assert_eq!(
            value(&options, ClientConfigKey::ConnectTimeout).as_deref(),
            Some("2s")
        );
        assert_eq!(
            value(&options, ClientConfigKey::ReadTimeout).as_deref(),
            Some("8 seconds")
        );
        assert_eq!(value(&options, ClientConfigKey::Timeout), None);
    }

    #[test]
    fn metadata_requests_bypass_proxy() {
        let environment = Environment::new([("NO_PROXY".to_owned(), "intern".to_owned())]);
        let options = options(&[("proxy", "http://proxy:3128")]);
        let client = client_options(
            &options,
            &environment,
            &Connector::default(),
            Extras::default(),
        )
        .expect("a client");
        let excludes = client.get_config_value(&ClientConfigKey::ProxyExcludes);
        let excludes = excludes.expect("excludes");
        assert!(
            excludes.contains("169.254.169.254") && excludes.ends_with(",intern"),
            "{excludes}"
        );
    }

    #[test]
    fn metadata_requests_bypass_proxy_of_a_setting() {
        let settings = [
            (ClientConfigKey::ProxyUrl, "http://proxy:3128".to_owned()),
            (ClientConfigKey::ProxyExcludes, "mine".to_owned()),
        ];
        let extras = Extras {
            settings: settings.into(),
            ..Extras::default()
        };
        let client = client_options(
            &StoreOptions::new(),
            &Environment::default(),
            &Connector::default(),
            extras,
        );
        let excludes = client.expect("a client");
        let excludes = excludes.get_config_value(&ClientConfigKey::ProxyExcludes);
        let excludes = excludes.expect("excludes");
        assert!(
            excludes.contains("169.254.169.254") && excludes.ends_with(",mine"),
            "{excludes}"
        );
    }
}
