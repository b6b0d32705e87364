//! Tells which requests go through a proxy and where that proxy is named, for errors. The HTTP
//! client decides by the same rules.

use std::fmt;

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;

use super::environment::Environment;

/// Variables that name the proxy of a scheme, in order of precedence.
const HTTP: [&str; 4] = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
const HTTPS: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

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
        let value = |names: &[&str]| environment.first(names).unwrap_or_default();
        let origin = |names: [&'static str; 4]| {
            let set = names
                .into_iter()
                .find(|name| environment.get(name).is_some());
            set.unwrap_or_default()
        };
        let matcher = Matcher::builder()
            .http(value(&HTTP))
            .https(value(&HTTPS))
            .no(value(&["NO_PROXY", "no_proxy"]))
            .build();
        Self {
            matcher,
            origins: [HTTP, HTTPS].map(origin),
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
    }

    #[test]
    fn option_names_proxy_of_all_other_hosts() {
        let proxies = Proxies::new("me:hunter2@proxy:3128", "169.254.169.254");
        let wanted = Some("http://proxy:3128 (option proxy)");
        assert_eq!(used(&proxies, "https://host").as_deref(), wanted);
        assert_eq!(used(&proxies, "http://169.254.169.254/latest"), None);
    }
}
