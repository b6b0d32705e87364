//! Proxies of HTTP clients: which one a request goes through, and where it is named.
//!
//! The client asks here for the proxy of each request, and errors for the name to show, so both
//! follow the same rules. Hosts without a proxy are in `proxy_exempt.rs`.

use std::fmt;

use http::Uri;
use object_store::client::{HttpError, HttpErrorKind};
use url::Url;

use super::proxy_exempt::Exempt;
use crate::environment::Environment;
use crate::error::ErrorKind;

/// Variables that name the proxy of a scheme, in order of precedence. As in curl and in the tools
/// that are written in Python, lower case comes first.
const PLAIN: [&str; 4] = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];
const SECURE: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// Hosts that are never reached through a proxy: they answer for the machine that sends the
/// request.
const NEVER_BY_PROXY: &str = "169.254.169.254,169.254.170.2,169.254.170.23,fd00:ec2::254,\
     fd00:ec2::23,metadata.google.internal";

/// Returns the hosts that no proxy leads to, in the form of `NO_PROXY`.
pub(crate) fn excluded(environment: &Environment) -> String {
    let mut hosts = vec![NEVER_BY_PROXY];
    hosts.extend(environment.metadata_hosts());
    hosts.extend(environment.first(&["no_proxy", "NO_PROXY"]));
    hosts.join(",")
}

/// Returns the variable that names the proxy of a scheme, and its value. In a CGI program,
/// `HTTP_PROXY` does not count: it holds a header that the caller chose.
fn named<'a>(
    environment: &'a Environment,
    names: [&'static str; 4],
) -> Option<(&'static str, &'a str)> {
    let is_cgi = environment.get("REQUEST_METHOD").is_some();
    let counts = |name: &&str| !is_cgi || *name != "HTTP_PROXY";
    let value = |name| Some((name, environment.get(name)?));
    names.into_iter().filter(counts).find_map(value)
}

/// Proxies of a client.
#[derive(Clone, Debug)]
pub(crate) struct Proxies {
    /// Proxy of `http` requests.
    plain: Option<Proxy>,
    /// Proxy of `https` requests.
    secure: Option<Proxy>,
    exempt: Exempt,
}

/// Proxy that an option or a variable names.
#[derive(Clone)]
struct Proxy {
    /// URL with user and password.
    url: Result<Url, Defect>,
    /// URL without them, unless it cannot be parsed.
    shown: String,
    /// Place that names it: a variable, or the option.
    origin: &'static str,
}

/// Reason why a proxy cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    Malformed,
    Scheme,
    Socks,
}

impl Proxy {
    /// Parses the text that names a proxy. `host:port` means `http://host:port`.
    fn parse(text: &str, origin: &'static str) -> Self {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let scheme = scheme.to_ascii_lowercase();
        let parsed = Url::parse(&format!("{scheme}://{rest}")).ok();
        let parsed = parsed.filter(|url| url.host_str().is_some_and(|host| !host.is_empty()));
        let shown = parsed.as_ref().and_then(shown).unwrap_or_default();
        let url = match (&*scheme, parsed) {
            (_, None) => Err(Defect::Malformed),
            ("http" | "https", Some(url)) => Ok(url),
            (scheme, Some(_)) if scheme.starts_with("socks") => Err(Defect::Socks),
            (_, Some(_)) => Err(Defect::Scheme),
        };
        Self { url, shown, origin }
    }

    fn used(&self) -> UsedProxy {
        UsedProxy {
            url: self.shown.clone(),
            origin: self.origin,
        }
    }
}

/// Returns scheme, host and port.
fn shown(url: &Url) -> Option<String> {
    let port = url.port().map(|port| format!(":{port}"));
    let host = url.host_str()?;
    Some(format!(
        "{}://{host}{}",
        url.scheme(),
        port.unwrap_or_default()
    ))
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The shown URL has no password.
        f.debug_tuple("Proxy").field(&self.shown).finish()
    }
}

/// Proxy that a request goes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedProxy {
    /// URL without user and password.
    pub(crate) url: String,
    /// Place that names it: a variable, or the option.
    pub(crate) origin: &'static str,
}

impl fmt::Display for UsedProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.url, self.origin)
    }
}

impl Proxies {
    /// Creates the proxies of a client with one proxy for all hosts but `excluded`.
    pub(crate) fn new(url: &str, excluded: &str) -> Self {
        let proxy = Some(Proxy::parse(url, "option proxy"));
        Self {
            plain: proxy.clone(),
            secure: proxy,
            exempt: Exempt::parse(excluded),
        }
    }

    /// Creates the proxies of a client without explicit proxies.
    pub(crate) fn from_environment(environment: &Environment) -> Self {
        let proxy = |names| {
            let (origin, text) = named(environment, names)?;
            Some(Proxy::parse(text, origin))
        };
        Self {
            plain: proxy(PLAIN),
            secure: proxy(SECURE),
            exempt: Exempt::parse(&excluded(environment)),
        }
    }

    /// Returns the proxy of a request, also if it cannot be used.
    fn of(&self, scheme: &str, host: &str, port: Option<u16>) -> Option<&Proxy> {
        let (proxy, usual) = match scheme {
            "http" => (self.plain.as_ref()?, 80),
            "https" => (self.secure.as_ref()?, 443),
            _ => return None,
        };
        let is_exempt = self.exempt.contains(host, port.unwrap_or(usual));
        (!is_exempt).then_some(proxy)
    }

    fn of_uri(&self, uri: &Uri) -> Option<&Proxy> {
        self.of(uri.scheme_str()?, uri.host()?, uri.port_u16())
    }

    /// Returns the URL of the proxy that a request to `url` goes through, for the client.
    pub(crate) fn url_for(&self, url: &Url) -> Option<Url> {
        let proxy = self.of(url.scheme(), url.host_str()?, url.port())?;
        proxy.url.clone().ok()
    }

    /// Refuses a request whose proxy cannot be used: it must not go out without one.
    pub(crate) fn admit(&self, uri: &Uri) -> Result<(), UnusableProxy> {
        match self.of_uri(uri) {
            Some(proxy) => match &proxy.url {
                Ok(_) => Ok(()),
                Err(defect) => Err(UnusableProxy {
                    proxy: proxy.used(),
                    defect: *defect,
                }),
            },
            None => Ok(()),
        }
    }

    /// Returns the proxy that a request to `uri` goes through.
    pub(crate) fn used_for(&self, uri: &Uri) -> Option<UsedProxy> {
        let proxy = self.of_uri(uri)?;
        proxy.url.is_ok().then(|| proxy.used())
    }
}

/// Error for a request whose proxy cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnusableProxy {
    proxy: UsedProxy,
    defect: Defect,
}

impl UnusableProxy {
    pub(crate) fn kind(&self) -> ErrorKind {
        match self.defect {
            Defect::Malformed | Defect::Scheme => ErrorKind::InvalidRequest,
            Defect::Socks => ErrorKind::Unsupported,
        }
    }

    /// Returns advice, for a request to `host`.
    pub(crate) fn hint(&self, host: &str) -> String {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let origin = self.proxy.origin;
        format!("name a proxy for HTTP in {origin}: http://HOST:PORT; or add {name} to NO_PROXY")
    }
}

impl fmt::Display for UnusableProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (proxy, origin) = (&self.proxy, self.proxy.origin);
        match self.defect {
            // The malformed text is not shown, because it may hold a password.
            Defect::Malformed => write!(f, "{origin} does not hold the URL of a proxy"),
            Defect::Scheme => write!(
                f,
                "the proxy {proxy} has another scheme than http and https"
            ),
            Defect::Socks => write!(f, "the proxy {proxy} speaks SOCKS, which is not supported"),
        }
    }
}

impl std::error::Error for UnusableProxy {}

impl From<UnusableProxy> for HttpError {
    fn from(error: UnusableProxy) -> Self {
        Self::new(HttpErrorKind::Unknown, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Environment::new(pairs.iter().map(owned))
    }

    fn of(pairs: &[(&str, &str)]) -> Proxies {
        Proxies::from_environment(&environment(pairs))
    }

    fn used(proxies: &Proxies, url: &str) -> Option<String> {
        let uri: Uri = url.parse().expect(url);
        let proxy = proxies.used_for(&uri).map(|proxy| proxy.to_string());
        let to = proxies.url_for(&Url::parse(url).expect(url));
        assert_eq!(
            to.is_some(),
            proxy.is_some(),
            "client and errors differ: {url}"
        );
        proxy
    }

    #[test]
    fn proxy_is_named_with_variable_and_without_password() {
        let proxies = of(&[
            ("https_proxy", "http://me:hunter2@proxy:3128/?key=hunter2"),
            ("ALL_PROXY", "http://other"),
            ("NO_PROXY", ".intern"),
        ]);
        for (url, wanted) in [
            (
                "https://a.example/k",
                Some("http://proxy:3128 (https_proxy)"),
            ),
            ("http://a.example/k", Some("http://other (ALL_PROXY)")),
            ("https://a.intern/k", None),
        ] {
            assert_eq!(used(&proxies, url).as_deref(), wanted, "{url}");
        }
        assert!(!format!("{proxies:?}").contains("hunter2"));
        assert_eq!(used(&of(&[]), "https://a.example"), None);
    }

    #[test]
    fn lower_case_comes_first_and_empty_variables_do_not_count() {
        for (pairs, wanted) in [
            (
                &[("HTTP_PROXY", "http://a"), ("http_proxy", "http://b")][..],
                Some("http://b (http_proxy)"),
            ),
            (
                &[("HTTP_PROXY", "http://a"), ("http_proxy", "")],
                Some("http://a (HTTP_PROXY)"),
            ),
            (
                &[("all_proxy", "http://a"), ("HTTP_PROXY", "http://b")],
                Some("http://b (HTTP_PROXY)"),
            ),
            (&[("https_proxy", "http://a")], None),
            (
                &[("HTTP_PROXY", "http://a"), ("REQUEST_METHOD", "GET")],
                None,
            ),
            (
                &[("http_proxy", "http://a"), ("REQUEST_METHOD", "GET")],
                Some("http://a (http_proxy)"),
            ),
        ] {
            let found = used(&of(pairs), "http://a.example/");
            assert_eq!(found.as_deref(), wanted, "{pairs:?}");
        }
    }

    #[test]
    fn forms_of_proxies() {
        for (text, wanted) in [
            ("http://proxy:3128", "http://proxy:3128/"),
            ("proxy:3128", "http://proxy:3128/"),
            ("proxy", "http://proxy/"),
            (" 10.0.0.1:3128 ", "http://10.0.0.1:3128/"),
            ("[fd00::1]:3128", "http://[fd00::1]:3128/"),
            ("me:p%40ss@proxy:3128", "http://me:p%40ss@proxy:3128/"),
            ("HTTPS://proxy:3129/", "https://proxy:3129/"),
        ] {
            let proxies = of(&[("http_proxy", text)]);
            let url = Url::parse("http://a.example/").expect("a URL");
            let found = proxies.url_for(&url).map(|url| url.to_string());
            assert_eq!(found.as_deref(), Some(wanted), "{text}");
        }
    }

    #[test]
    fn unusable_proxies_are_refused_and_named() {
        for (text, kind, message) in [
            (
                "socks5://me:hunter2@proxy:1080",
                ErrorKind::Unsupported,
                "the proxy socks5://proxy:1080 (all_proxy) speaks SOCKS, which is not supported",
            ),
            (
                "socks4a://proxy",
                ErrorKind::Unsupported,
                "the proxy socks4a://proxy (all_proxy) speaks SOCKS, which is not supported",
            ),
            (
                "ftp://me:hunter2@proxy",
                ErrorKind::InvalidRequest,
                "the proxy ftp://proxy (all_proxy) has another scheme than http and https",
            ),
            (
                "http://me:hunter2@",
                ErrorKind::InvalidRequest,
                "all_proxy does not hold the URL of a proxy",
            ),
            (
                "a b",
                ErrorKind::InvalidRequest,
                "all_proxy does not hold the URL of a proxy",
            ),
        ] {
            let proxies = of(&[("all_proxy", text), ("no_proxy", "intern")]);
            let error = proxies
                .admit(&Uri::from_static("https://a.example/k"))
                .expect_err(text);
            assert_eq!((error.kind(), &*error.to_string()), (kind, message));
            assert_eq!(used(&proxies, "https://a.example/k"), None, "{text}");
            proxies
                .admit(&Uri::from_static("https://intern/"))
                .expect("exempt");
        }
    }

    #[test]
    fn variables_name_no_proxy_of_metadata_services() {
        let proxies = of(&[
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
        ]);
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
        let proxies = Proxies::new("http://me:hunter2@proxy:3128", "169.254.169.254");
        let wanted = Some("http://proxy:3128 (option proxy)");
        assert_eq!(used(&proxies, "https://host").as_deref(), wanted);
        assert_eq!(used(&proxies, "http://169.254.169.254/latest"), None);
    }
}
