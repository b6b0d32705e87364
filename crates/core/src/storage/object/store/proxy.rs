//! Proxies of HTTP clients: those that variables name, the hosts that none leads to, and for errors
//! which requests go through one and where it is named. The HTTP client decides by the same rules.

use std::fmt;

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::{NoProxy, Proxy};

use super::environment::Environment;

/// Variables that name the proxy of a scheme, in order of precedence.
const HTTP: [&str; 4] = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
const HTTPS: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

/// Hosts that are never reached through a proxy: they answer for the machine that sends the
/// request.
const NEVER_BY_PROXY: &str = "169.254.169.254,169.254.170.2,169.254.170.23,fd00:ec2::254,\
     fd00:ec2::23,metadata.google.internal";

/// Returns the hosts that no proxy leads to, in the form of `NO_PROXY`.
pub(in crate::storage) fn excluded(environment: &Environment) -> String {
    let mut hosts = vec![NEVER_BY_PROXY];
    hosts.extend(environment.metadata_hosts());
    hosts.extend(environment.first(&["NO_PROXY", "no_proxy"]));
    hosts.join(",")
}

/// Returns the proxies that variables name. Invalid ones do not count, as everywhere.
pub(in crate::storage) fn of_variables(environment: &Environment) -> Vec<Proxy> {
    let excluded = NoProxy::from_string(&excluded(environment));
    let plain = named(environment, HTTP).and_then(|(_, url)| Proxy::http(url).ok());
    let secure = named(environment, HTTPS).and_then(|(_, url)| Proxy::https(url).ok());
    let proxies = plain.into_iter().chain(secure);
    proxies
        .map(|proxy| proxy.no_proxy(excluded.clone()))
        .collect()
}

/// Returns the variable that names the proxy of a scheme, and its value. In a CGI program, none
/// counts: a caller's header `Proxy` becomes `HTTP_PROXY` there.
fn named<'a>(
    environment: &'a Environment,
    names: [&'static str; 4],
) -> Option<(&'static str, &'a str)> {
    if environment.get("REQUEST_METHOD").is_some() {
        return None;
    }
    let value = |name| Some((name, environment.get(name)?));
    names.into_iter().find_map(value)
}

/// Proxies of a client.
#[derive(Debug)]
pub(in crate::storage) struct Proxies {
    matcher: Matcher,
    /// Places that name the proxy for `http` and for `https`.
    origins: [&'static str; 2],
}

/// Proxy that a request goes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsedProxy {
    /// URL without user and password.
    pub(in crate::storage) url: String,
    /// Place that names it: a variable, or the option.
    pub(in crate::storage) origin: &'static str,
}

impl fmt::Display for UsedProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.url, self.origin)
    }
}

impl Proxies {
    /// Creates those of a client with a proxy for all hosts but `excluded`.
    pub(in crate::storage) fn new(url: &str, excluded: &str) -> Self {
        Self {
            matcher: Matcher::builder().all(url).no(excluded).build(),
            origins: ["option proxy"; 2],
        }
    }

    /// Creates those of a client without explicit ones.
    pub(in crate::storage) fn from_environment(environment: &Environment) -> Self {
        let [plain, secure] =
            [HTTP, HTTPS].map(|names| named(environment, names).unwrap_or_default());
        let matcher = Matcher::builder()
            .http(plain.1)
            .https(secure.1)
            .no(excluded(environment))
            .build();
        Self {
            matcher,
            origins: [plain.0, secure.0],
        }
    }

    /// Returns the proxy that a request to `uri` goes through.
    pub(in crate::storage) fn used_for(&self, uri: &Uri) -> Option<UsedProxy> {
        let proxy = self.matcher.intercept(uri)?;
        let (proxy, is_tls) = (proxy.uri(), uri.scheme_str() == Some("https"));
        let port = proxy
            .port_u16()
            .map_or_else(String::new, |port| format!(":{port}"));
        let scheme = proxy.scheme_str().unwrap_or("http");
        Some(UsedProxy {
            url: format!("{scheme}://{}{port}", proxy.host()?),
            origin: self.origins[usize::from(is_tls)],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(proxies: &Proxies, url: &'static str) -> Option<String> {
        let proxy = proxies.used_for(&Uri::from_static(url));
        proxy.map(|proxy| proxy.to_string())
    }

    #[test]
    fn proxy_is_named_with_variable_and_without_password() {
        let environment = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()));
            Proxies::from_environment(&Environment::new(pairs))
        };
        let proxies = environment(&[
            ("https_proxy", "http://me:hunter2@proxy:3128/?key=hunter2"),
            ("ALL_PROXY", "socks5://other"),
            ("NO_PROXY", ".intern"),
        ]);
        for (url, wanted) in [
            (
                "https://a.example/k",
                Some("http://proxy:3128 (https_proxy)"),
            ),
            ("http://a.example/k", Some("socks5://other (ALL_PROXY)")),
            ("https://a.intern/k", None),
        ] {
            assert_eq!(used(&proxies, url).as_deref(), wanted, "{url}");
        }
        assert_eq!(used(&environment(&[]), "https://a.example"), None);
        let is_cgi = environment(&[("HTTP_PROXY", "http://proxy"), ("REQUEST_METHOD", "GET")]);
        assert_eq!(used(&is_cgi, "http://a.example"), None);
    }

    #[test]
    fn variables_name_no_proxy_of_metadata_services() {
        let pairs = [
            ("HTTP_PROXY", "http://proxy:3128"),
            ("NO_PROXY", "intern"),
            ("GCE_METADATA_HOST", "gce.example:8080"),
            ("IDENTITY_ENDPOINT", "http://msi.example:42356/msi/token"),
            (
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                "http://localhost:9911/creds",
            ),
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://[fd00::1]:80/"),
            ("AZURE_MSI_ENDPOINT", "https://tls.example/msi"),
        ];
        let pairs = pairs.map(|(name, value)| (name.into(), value.into()));
        let proxies = Proxies::from_environment(&Environment::new(pairs));
        for url in [
            "http://169.254.169.254/",
            "http://metadata.google.internal/",
            "http://gce.example:8080/",
            "http://msi.example:42356/msi/token",
            "http://localhost:9911/creds",
            "http://[fd00::1]/",
            "http://[fd00:ec2::23]/v1/credentials",
            "http://a.intern/",
        ] {
            assert_eq!(used(&proxies, url), None, "{url}");
        }
        for url in ["http://a.example/", "http://tls.example/"] {
            assert!(used(&proxies, url).is_some(), "{url}");
        }
    }

    #[test]
    fn option_names_proxy_of_all_other_hosts() {
        let proxies = Proxies::new("me:hunter2@proxy:3128", "169.254.169.254");
        let wanted = Some("http://proxy:3128 (option proxy)");
        assert_eq!(used(&proxies, "https://host").as_deref(), wanted);
        assert_eq!(used(&proxies, "http://169.254.169.254/latest"), None);
    }
}
