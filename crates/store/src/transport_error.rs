//! Classifies failures below HTTP: name resolution, connections, certificates, and truncated
//! bodies. Pure; called by `request_error.rs`.

use std::error::Error as StdError;
use std::io;

use object_store::client::{HttpError, HttpErrorKind};

use super::addresses::Narrower;
use super::classification::{Cause, Classification, Hints, causes, find, texts};
use super::connector::NotMade;
use super::pages::TooLong;
use super::proxy::{UnusableProxy, UsedProxy};
use super::redirects::{NotAdmitted, Refused};
use crate::error::ErrorKind;
use crate::sync::retry::Transient;

const BROKE: &str = "check the network between this machine and the server, and the server's log";

/// Classifies the failure of a request to `host`, through `proxy` if there is one, that got no
/// response, or of the body of a response.
pub(crate) fn classification(
    error: &HttpError,
    host: &str,
    proxy: Option<&UsedProxy>,
    hints: &Hints,
) -> Classification {
    let texts = texts(error);
    let says = |words: &str| texts.iter().any(|text| text.contains(words));
    let http = find::<reqwest::Error>(error);
    let connecting =
        http.is_some_and(reqwest::Error::is_connect) || error.kind() == HttpErrorKind::Connect;
    let cause = cause(error, &texts);
    let way = proxy.map_or_else(String::new, |proxy| format!(" through the proxy {proxy}"));
    let classification = if let Some(unusable) = find::<UnusableProxy>(error) {
        // The cause is left out because it is the same text.
        return Classification::new(unusable.kind(), unusable.to_string())
            .hint(unusable.hint(host));
    } else if http.is_some_and(reqwest::Error::is_builder) {
        Classification::new(ErrorKind::InvalidRequest, "the request cannot be sent")
            .hint("check the endpoint: a plain http:// endpoint must be set explicitly")
    } else if let Some(reason) = find::<NotMade>(error) {
        // This error is about the certificates of the system, so the texts below do not apply.
        Classification::new(
            ErrorKind::InvalidRequest,
            format!("no request can be sent: {reason}"),
        )
        .hint("install the system's certificates, or pass a bundle of them as ca_file")
    } else if let Some(refused) = find::<NotAdmitted>(error) {
        // The request was to go to the named host, so `host` is not the server that named it.
        Classification::new(ErrorKind::Remote, format!("the server {refused}"))
            .hint("check the endpoint, and the configuration of its server")
    } else if let Some(refused) = find::<Refused>(error) {
        redirected(host, *refused)
    } else if find::<Narrower>(error).is_some() {
        // `host` is the host that the redirect led to.
        redirected("the store", Refused::Narrower)
    } else if find::<TooLong>(error).is_some() {
        Classification::new(
            ErrorKind::Remote,
            format!("{host} sent an oversized listing or token"),
        )
        .hint("check the endpoint: it may not be an object store")
    } else if says("certificate") {
        certificate(host, &way, &texts)
    } else if connecting {
        unreachable(error, host, proxy, &texts, hints.unreachable)
    } else if error.kind() == HttpErrorKind::Timeout {
        Classification::new(
            ErrorKind::TimedOut,
            format!("{host} sent nothing{way} within the read timeout"),
        )
        .hint("set read_timeout higher if the store needs longer")
        .transient(Transient::Stalled)
    } else if says("invalid HTTP version") {
        // A TLS server answers a plain request with an alert, which is no valid HTTP version.
        Classification::new(
            ErrorKind::Remote,
            format!("{host} does not speak HTTP{way}"),
        )
        .hint("use https:// if the server speaks TLS, or the port where it speaks HTTP")
        .transient(Transient::Unreachable)
    } else {
        Classification::new(
            ErrorKind::Remote,
            format!("the connection to {host}{way} was lost"),
        )
        .hint(BROKE)
        .transient(Transient::Broken)
    };
    classification.cause(cause)
}

/// Classifies a redirect that is not followed. It is not transient: a retry would be refused as
/// well.
fn redirected(host: &str, refused: Refused) -> Classification {
    let classification = Classification::new(ErrorKind::Remote, format!("{host} {refused}"));
    classification.hint(match refused {
        Refused::Narrower => {
            "only servers of the same network may redirect there; if the redirect is intended, pass its target as the URL"
        }
        Refused::Endless | Refused::Plain | Refused::Scheme => {
            "check the URL or the endpoint, and the server's configuration"
        }
    })
}

/// Classifies a certificate error by text. `way` names the proxy, if there is one. The types of
/// rustls are public, but matching them would silently fail with a second version in the
/// dependency tree.
fn certificate(host: &str, way: &str, texts: &[String]) -> Classification {
    let says = |words: &str| texts.iter().any(|text| text.contains(words));
    let hint = if says("not valid for name") || says("NotValidForName") {
        "the certificate is for another server: check the endpoint and the bucket's name"
    } else if says("expired") || says("Expired") || says("not valid yet") {
        "renew the server's certificate, or set the clock of this machine"
    } else if says("CaUsedAsEndEntity") {
        "the server's certificate is marked as an authority's (CA:TRUE), as openssl does by default; make one with \
         `-addext basicConstraints=critical,CA:FALSE`, which may then be its own ca_file"
    } else if way.is_empty() {
        "pass the certificate of its authority as ca_file"
    } else {
        "pass the certificate of its authority as ca_file; a proxy that inspects TLS has an authority of its own"
    };
    Classification::new(
        ErrorKind::Remote,
        format!("the certificate of {host}{way} is not trusted"),
    )
    .hint(hint)
}

fn unreachable(
    error: &HttpError,
    host: &str,
    proxy: Option<&UsedProxy>,
    texts: &[String],
    advice: Option<&'static str>,
) -> Classification {
    let says = |words: &str| texts.iter().any(|text| text.contains(words));
    let refused = causes(error).any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    });
    let is_unknown = says("lookup address") || says("dns error");
    // An error of a tunnel is about the server, unless the connection to the proxy could not be
    // made.
    let is_to_proxy = !says("tunnel") || says("failed to create underlying connection");
    if let Some(proxy) = proxy
        && is_to_proxy
        && !says("InvalidContentType")
    {
        let message = if error.kind() == HttpErrorKind::Timeout {
            format!("connecting to {host} through the proxy {proxy} timed out")
        } else if refused {
            format!("the proxy {proxy} refuses connections")
        } else if is_unknown {
            format!("the host of the proxy {proxy} is unknown")
        } else {
            format!("the proxy {proxy} cannot be reached")
        };
        let origin = proxy.origin;
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        return Classification::new(ErrorKind::Remote, message)
            .hint(format!(
                "start the proxy, correct or unset {origin}, or add {name} to NO_PROXY"
            ))
            .transient(Transient::Unreachable);
    }
    if let Some(proxy) = proxy
        && says("tunnel")
    {
        return refused_tunnel(host, proxy, says("authorization required"));
    }
    let (message, hint) = if error.kind() == HttpErrorKind::Timeout {
        (
            format!("connecting to {host} timed out"),
            advice.unwrap_or("check endpoint and network, or raise connect_timeout"),
        )
    } else if refused {
        (
            format!("{host} refuses connections"),
            advice.unwrap_or("check host and port of the endpoint, and that the server runs"),
        )
    } else if is_unknown {
        (
            format!("the host {host} is unknown"),
            advice.unwrap_or("check the endpoint, the names of bucket and region, and the network"),
        )
    } else if says("InvalidContentType") {
        (
            format!("{host} does not speak TLS"),
            "use http:// in the endpoint, or the port where the server speaks https",
        )
    } else {
        (
            format!("{host} cannot be reached"),
            advice.unwrap_or("check endpoint and network"),
        )
    };
    Classification::new(ErrorKind::Remote, message)
        .hint(hint)
        .transient(Transient::Unreachable)
}

/// Classifies the response of a proxy that opens no tunnel to the server.
fn refused_tunnel(host: &str, proxy: &UsedProxy, needs_login: bool) -> Classification {
    let origin = proxy.origin;
    if needs_login {
        let message = format!("the proxy {proxy} requires credentials");
        return Classification::new(ErrorKind::PermissionDenied, message).hint(format!(
            "name them in {origin}: http://user:password@HOST:PORT"
        ));
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let message = format!("the proxy {proxy} does not connect to {host}");
    Classification::new(ErrorKind::Remote, message)
        .hint(format!(
            "check {origin} and that the proxy permits {host}, or add {name} to NO_PROXY"
        ))
        .transient(Transient::Unreachable)
}

/// Returns the innermost cause, which is the most specific one.
fn cause(error: &(dyn StdError + 'static), texts: &[String]) -> Option<Cause> {
    let errno = causes(error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())
        .last();
    errno
        .map(Cause::System)
        .or_else(|| texts.last().map(|text| Cause::Words(text.clone())))
}

/// Classifies an I/O error of a store that the caller provided.
pub(crate) fn of_io(error: &io::Error) -> Classification {
    let cause = error
        .raw_os_error()
        .map_or_else(|| Cause::Words(error.to_string()), Cause::System);
    // A `match` cannot be exhaustive here. No other kind is retryable.
    let kind = error.kind();
    let classification = if kind == io::ErrorKind::TimedOut {
        Classification::new(ErrorKind::TimedOut, "the store did not answer in time")
            .transient(Transient::Stalled)
    } else if kind == io::ErrorKind::ConnectionRefused {
        Classification::new(ErrorKind::Remote, "the store refuses connections")
            .transient(Transient::Unreachable)
    } else if [
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::UnexpectedEof,
    ]
    .contains(&kind)
    {
        Classification::new(ErrorKind::Remote, "the connection to the store was lost")
            .hint(BROKE)
            .transient(Transient::Broken)
    } else {
        Classification::new(ErrorKind::from_io(error), "the store failed")
    };
    classification.cause(Some(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error as a stack of HTTP libraries makes it: texts from the outside in, and a system error
    /// below.
    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<dyn StdError + Send + Sync>>);

    impl std::fmt::Display for Layer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Layer {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            let source = self.1.as_deref()?;
            Some(source)
        }
    }

    fn layered(kind: HttpErrorKind, texts: &[&'static str], errno: Option<i32>) -> HttpError {
        let system = errno.map(|errno| {
            let error = io::Error::from_raw_os_error(errno);
            Box::new(error) as Box<dyn StdError + Send + Sync>
        });
        let source = texts.iter().rev().fold(system, |source, text| {
            Some(Box::new(Layer(text, source)) as Box<dyn StdError + Send + Sync>)
        });
        HttpError::new_boxed(kind, source.expect("a layer"))
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn table() {
        use HttpErrorKind::{Connect, Interrupted, Request, Timeout, Unknown};
        let unreachable = Some(Transient::Unreachable);
        for (kind, text, errno, wanted, transient, message) in [
            (
                Connect,
                "tcp connect error",
                Some(libc::ECONNREFUSED),
                ErrorKind::Remote,
                unreachable,
                "host:9 refuses connections",
            ),
            (
                Connect,
                "tcp connect error",
                Some(libc::ENETUNREACH),
                ErrorKind::Remote,
                unreachable,
                "host:9 cannot be reached",
            ),
            (
                Connect,
                "failed to lookup address information: Name or service not known",
                None,
                ErrorKind::Remote,
                unreachable,
                "the host host:9 is unknown",
            ),
            (
                Connect,
                "invalid peer certificate: UnknownIssuer",
                None,
                ErrorKind::Remote,
                None,
                "the certificate of host:9 is not trusted",
            ),
            (
                Timeout,
                "operation timed out",
                None,
                ErrorKind::TimedOut,
                Some(Transient::Stalled),
                "host:9 sent nothing within the read timeout",
            ),
            (
                Interrupted,
                "connection error",
                Some(libc::ECONNRESET),
                ErrorKind::Remote,
                Some(Transient::Broken),
                "the connection to host:9 was lost",
            ),
            (
                Request,
                "connection closed before message completed",
                None,
                ErrorKind::Remote,
                Some(Transient::Broken),
                "the connection to host:9 was lost",
            ),
            (
                Request,
                "invalid HTTP version parsed",
                None,
                ErrorKind::Remote,
                unreachable,
                "host:9 does not speak HTTP",
            ),
            (
                Unknown,
                "end of file before message length reached",
                None,
                ErrorKind::Remote,
                Some(Transient::Broken),
                "the connection to host:9 was lost",
            ),
        ] {
            let classification = classification(
                &layered(kind, &["error sending request", text], errno),
                "host:9",
                None,
                &Hints::NONE,
            );
            assert_eq!(classification.message, message, "{text}");
            assert_eq!(
                (classification.kind, classification.transient),
                (wanted, transient),
                "{text}"
            );
            match (classification.cause, errno) {
                (Some(Cause::System(found)), Some(errno)) => assert_eq!(found, errno),
                (Some(Cause::Words(words)), None) => assert_eq!(words, text),
                (cause, _) => panic!("{text}: {cause:?}"),
            }
        }
    }

    #[test]
    fn failed_connections_to_proxy_name_it_and_its_origin() {
        let proxy = UsedProxy {
            url: "http://proxy:3128".to_owned(),
            origin: "HTTPS_PROXY",
        };
        for (text, errno, message) in [
            (
                "tcp",
                Some(libc::ECONNREFUSED),
                "the proxy PROXY refuses connections",
            ),
            ("dns error", None, "the host of the proxy PROXY is unknown"),
            (
                "tcp",
                Some(libc::ENETUNREACH),
                "the proxy PROXY cannot be reached",
            ),
            (
                "tunnel error: failed to create underlying connection",
                Some(libc::ECONNREFUSED),
                "the proxy PROXY refuses connections",
            ),
            (
                "tunnel error: unsuccessful",
                None,
                "the proxy PROXY does not connect to host:9",
            ),
        ] {
            let error = layered(HttpErrorKind::Connect, &[text], errno);
            let found = classification(&error, "host:9", Some(&proxy), &Hints::NONE);
            let wanted = message.replace("PROXY", &proxy.to_string());
            assert_eq!(found.message, wanted);
            assert_eq!(found.transient, Some(Transient::Unreachable));
            let hint = found.hint.expect("a hint");
            assert!(
                hint.contains("HTTPS_PROXY") && hint.contains("NO_PROXY"),
                "{hint}"
            );
        }
    }

    #[test]
    fn failures_behind_proxy_name_it() {
        use HttpErrorKind::{Connect, Interrupted, Timeout};
        let proxy = UsedProxy {
            url: "http://proxy:3128".to_owned(),
            origin: "HTTPS_PROXY",
        };
        for (kind, text, wanted, message) in [
            (
                Connect,
                "tunnel error: proxy authorization required",
                ErrorKind::PermissionDenied,
                "the proxy PROXY requires credentials",
            ),
            (
                Connect,
                "invalid peer certificate: UnknownIssuer",
                ErrorKind::Remote,
                "the certificate of host:9 through the proxy PROXY is not trusted",
            ),
            (
                Timeout,
                "operation timed out",
                ErrorKind::TimedOut,
                "host:9 sent nothing through the proxy PROXY within the read timeout",
            ),
            (
                Interrupted,
                "connection error",
                ErrorKind::Remote,
                "the connection to host:9 through the proxy PROXY was lost",
            ),
        ] {
            let error = layered(kind, &["error sending request", text], None);
            let found = classification(&error, "host:9", Some(&proxy), &Hints::NONE);
            let message = message.replace("PROXY", &proxy.to_string());
            assert_eq!((found.kind, found.message), (wanted, message), "{text}");
        }
    }

    #[test]
    fn unknown_host_of_hub_names_its_variables() {
        let error = layered(HttpErrorKind::Connect, &["dns error"], None);
        let hint = |hints| {
            classification(&error, "host", None, hints)
                .hint
                .expect("a hint")
        };
        assert!(hint(&Hints::NONE).contains("bucket"));
        let of_hub = hint(&super::super::hub::PROTOCOL.hints);
        for variable in ["HF_ENDPOINT", "HF_HUB_OFFLINE"] {
            assert!(of_hub.contains(variable), "{of_hub}");
        }
    }

    #[test]
    fn certificate_errors_get_specific_hint() {
        for (text, hint) in [
            ("invalid peer certificate: UnknownIssuer", "ca_file"),
            (
                "invalid peer certificate: certificate not valid for name \"a\"",
                "endpoint",
            ),
            (
                "invalid peer certificate: certificate expired: verification time 1",
                "clock",
            ),
            (
                "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))",
                "CA:FALSE",
            ),
        ] {
            let classification = classification(
                &layered(HttpErrorKind::Connect, &[text], None),
                "host",
                None,
                &Hints::NONE,
            );
            assert!(
                classification.hint.expect("a hint").contains(hint),
                "{text}"
            );
        }
    }

    #[test]
    fn endless_responses_are_not_retried() {
        let classification = classification(
            &HttpError::new(HttpErrorKind::Decode, TooLong),
            "host",
            None,
            &Hints::NONE,
        );
        assert_eq!(
            (classification.kind, classification.transient),
            (ErrorKind::Remote, None)
        );
        assert!(
            classification.message.contains("oversized"),
            "{}",
            classification.message
        );
    }
}
