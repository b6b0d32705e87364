//! Rules for failures without an error status: name resolution, connections, certificates,
//! truncated bodies, malformed responses, and stores of the caller. `failure.rs` applies them.

use std::io;

use object_store::Error::{
    InvalidPath, NotFound, NotImplemented, NotModified, NotSupported, PermissionDenied,
    Precondition, Unauthenticated,
};
use object_store::client::{HttpError, HttpErrorKind};

use super::failure::Failure;
use super::rules::{NAME_CREDENTIALS, Rules, rules};
use crate::errors::classification::{
    CHANGED, CHECK_SERVER, Cause, LOAD_AGAIN, NO_LISTING, PASS_FILE, causes,
};
use crate::http::addresses::Narrower;
use crate::http::connector::NotMade;
use crate::http::pages::TooLong;
use crate::http::redirects::{NotAdmitted, Refused};

const UNTRUSTED: &str = "the certificate of {host}{through proxy} is not trusted";
const START_PROXY: &str =
    "start the proxy, correct or unset {origin of proxy}, or add {hostname} to NO_PROXY";
const BROKE: &str = "check the network between this machine and the server, and the server's log";

/// Requests without a response, and bodies that broke off.
pub(crate) const TRANSPORT: Rules = rules! { |f|
    f.find::<reqwest::Error>().is_some_and(reqwest::Error::is_builder) => InvalidRequest:
        "the request cannot be sent",
        "check the endpoint: a plain http:// endpoint must be set explicitly";
    // This error is about the certificates of the system, so the texts below do not apply.
    f.has::<NotMade>() => InvalidRequest: "no request can be sent: {words}",
        "install the system's certificates, or pass a bundle of them as ca_file";
    // The request was to go to the named host, so `host` is not the server that named it.
    f.has::<NotAdmitted>() => Remote:
        "the server {words}", "check the endpoint, and the configuration of its server";
    // A retry of a redirect would be refused as well.
    f.find() == Some(&Refused::Narrower) => Remote: "{host} {words}", NARROWER;
    f.has::<Refused>() => Remote: "{host} {words}",
        "check the URL or the endpoint, and the server's configuration";
    // `host` is the host that the redirect led to.
    f.has::<Narrower>() => Remote: "the store {words}", NARROWER;
    f.has::<TooLong>() => Remote: "{host} sent an oversized listing or token",
        "check the endpoint: it may not be an object store";

    // The types of rustls are public, but matching them would silently fail with a second version
    // in the dependency tree.
    f.says("certificate") && (f.says("not valid for name") || f.says("NotValidForName")) => Remote: UNTRUSTED,
        "the certificate is for another server: check the endpoint and the bucket's name";
    f.says("certificate") && (f.says("expired") || f.says("Expired") || f.says("not valid yet")) => Remote: UNTRUSTED,
        "renew the server's certificate, or set the clock of this machine";
    f.says("certificate") && f.says("CaUsedAsEndEntity") => Remote: UNTRUSTED,
        "the server's certificate is marked as an authority's (CA:TRUE), as openssl does by default; make one with \
         `-addext basicConstraints=critical,CA:FALSE`, which may then be its own ca_file";
    f.says("certificate") && f.captured.proxy.is_some() => Remote: UNTRUSTED,
        "pass the certificate of its authority as ca_file; a proxy that inspects TLS has an authority of its own";
    f.says("certificate") => Remote: UNTRUSTED, "pass the certificate of its authority as ca_file";

    is_to_proxy(f) && is_timeout(f) => Remote(Unreachable):
        "connecting to {host} through the proxy {proxy} timed out", START_PROXY;
    is_to_proxy(f) && is_refused(f) => Remote(Unreachable):
        "the proxy {proxy} refuses connections", START_PROXY;
    is_to_proxy(f) && is_unknown(f) => Remote(Unreachable):
        "the host of the proxy {proxy} is unknown", START_PROXY;
    is_to_proxy(f) => Remote(Unreachable): "the proxy {proxy} cannot be reached", START_PROXY;
    is_in_tunnel(f) && f.says("authorization required") => PermissionDenied:
        "the proxy {proxy} requires credentials", NAME_CREDENTIALS;
    is_in_tunnel(f) => Remote(Unreachable): "the proxy {proxy} does not connect to {host}",
        "check {origin of proxy} and that the proxy permits {host}, or add {hostname} to NO_PROXY";
    is_connecting(f) && is_timeout(f) => Remote(Unreachable): "connecting to {host} timed out",
        "{advice|check endpoint and network, or raise connect_timeout}";
    is_connecting(f) && is_refused(f) => Remote(Unreachable): "{host} refuses connections",
        "{advice|check host and port of the endpoint, and that the server runs}";
    is_connecting(f) && is_unknown(f) => Remote(Unreachable): "the host {host} is unknown",
        "{advice|check the endpoint, the names of bucket and region, and the network}";
    is_connecting(f) && is_plain(f) => Remote(Unreachable): "{host} does not speak TLS",
        "use http:// in the endpoint, or the port where the server speaks https";
    is_connecting(f) => Remote(Unreachable): "{host} cannot be reached",
        "{advice|check endpoint and network}";

    is_timeout(f) => TimedOut(Stalled): "{host} sent nothing{through proxy} within the read timeout",
        "set read_timeout higher if the store needs longer";
    // A TLS server answers a plain request with an alert, which is no valid HTTP version.
    f.says("invalid HTTP version") => Remote(Unreachable): "{host} does not speak HTTP{through proxy}",
        "use https:// if the server speaks TLS, or the port where it speaks HTTP";
    true => Remote(Broken): "the connection to {host}{through proxy} was lost", BROKE;
};

const NARROWER: &str = "only servers of the same network may redirect there; if the redirect is intended, pass its target as the URL";

/// Responses with a successful status that `object_store` does not accept. It keeps the types of
/// the errors private.
pub(crate) const MALFORMED: Rules = rules! { |f|
    matches!(f.error, Some(InvalidPath { .. })) => Unsupported:
        "the store holds a name that cannot be addressed: with an empty component or a control character",
        "pass the URL of a file or of an index, which needs no listing";
    f.says("Content-Range") || f.says("CONTENT_RANGE") || f.says("Requested ") => Remote:
        "the server sent a different range than requested", CHECK_SERVER;
    f.says("last modified") || f.says("Last-Modified") => Remote:
        "the server sent a Last-Modified header that is not a date", CHECK_SERVER;
    f.says("Content-Length") || f.says("content length") => Remote:
        "the server did not send the length of the object", CHECK_SERVER;
    f.says("ETag") => Remote:
        "the server sent no ETag, which shows whether an object changed", CHECK_SERVER;
    f.is_listing() && !f.asked.hints.lists => Unsupported: NO_LISTING, PASS_FILE;
    true => Remote: "the server sent a malformed response", CHECK_SERVER;
};

/// Failures of a store that the caller provided, and those before a request.
pub(crate) const OF_CALLER: Rules = rules! { |f|
    matches!(f.error, Some(NotFound { .. })) => NotFound: "there is no such object", "";
    matches!(f.error, Some(PermissionDenied { .. } | Unauthenticated { .. })) => PermissionDenied:
        "the store denies access", "";
    matches!(f.error, Some(Precondition { .. } | NotModified { .. })) => Changed:
        CHANGED, LOAD_AGAIN;
    matches!(f.error, Some(NotSupported { .. } | NotImplemented { .. })) && f.is_listing() => Unsupported:
        NO_LISTING, PASS_FILE;
    matches!(f.error, Some(NotSupported { .. } | NotImplemented { .. })) => Unsupported:
        "the store does not support the request", "";
    matches!(f.error, Some(InvalidPath { .. })) => InvalidRequest:
        "the name cannot be addressed in the store", "";
};

/// I/O errors of a store that the caller provided. No other kind is retryable.
pub(crate) const OF_IO: Rules = rules! { |f|
    is_io(f, &[io::ErrorKind::TimedOut]) => TimedOut(Stalled):
        "the store did not answer in time", "";
    is_io(f, &[io::ErrorKind::ConnectionRefused]) => Remote(Unreachable):
        "the store refuses connections", "";
    is_io(f, &LOST) => Remote(Broken): "the connection to the store was lost", BROKE;
};

const LOST: [io::ErrorKind; 4] = [
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::UnexpectedEof,
];

fn is_io(failure: &Failure, kinds: &[io::ErrorKind]) -> bool {
    let error = failure.find::<io::Error>();
    error.is_some_and(|error| kinds.contains(&error.kind()))
}

fn is_http(failure: &Failure, kind: HttpErrorKind) -> bool {
    let error = failure.find::<HttpError>();
    error.is_some_and(|error| error.kind() == kind)
}

fn is_timeout(failure: &Failure) -> bool {
    is_http(failure, HttpErrorKind::Timeout)
}

fn is_connecting(failure: &Failure) -> bool {
    let http = failure.find::<reqwest::Error>();
    http.is_some_and(reqwest::Error::is_connect) || is_http(failure, HttpErrorKind::Connect)
}

/// Returns whether no connection to the proxy could be made. An error of a tunnel is about the
/// server otherwise.
fn is_to_proxy(failure: &Failure) -> bool {
    let is_tunnel = failure.says("tunnel");
    let is_below = !is_tunnel || failure.says("failed to create underlying connection");
    failure.captured.proxy.is_some() && is_connecting(failure) && is_below && !is_plain(failure)
}

fn is_in_tunnel(failure: &Failure) -> bool {
    failure.captured.proxy.is_some() && is_connecting(failure) && failure.says("tunnel")
}

fn is_refused(failure: &Failure) -> bool {
    let Some(error) = failure.error else {
        return false;
    };
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn is_unknown(failure: &Failure) -> bool {
    failure.says("lookup address") || failure.says("dns error")
}

/// Returns whether the server answered without TLS.
fn is_plain(failure: &Failure) -> bool {
    failure.says("InvalidContentType")
}

/// Returns the text of an error of tload's own clients.
pub(crate) fn words(failure: &Failure) -> Option<String> {
    let not_made = failure.find::<NotMade>().map(ToString::to_string);
    let not_admitted = || failure.find::<NotAdmitted>().map(ToString::to_string);
    let refused = || failure.find::<Refused>().map(ToString::to_string);
    let is_narrower = failure.has::<Narrower>();
    let narrower = || is_narrower.then(|| Refused::Narrower.to_string());
    not_made
        .or_else(not_admitted)
        .or_else(refused)
        .or_else(narrower)
}

/// Returns the innermost cause, which is the most specific one.
pub(crate) fn innermost(failure: &Failure) -> Option<Cause> {
    let errno = causes(failure.error?)
        .filter_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())
        .last();
    let text = || failure.texts.last().cloned().map(Cause::Words);
    errno.map(Cause::System).or_else(text)
}

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;

    use super::*;
    use crate::error::ErrorKind;
    use crate::errors::classification::Classification;
    use crate::explain::context::{Hints, RequestContext};
    use crate::http::proxy::UsedProxy;
    use crate::http::response_capture::ResponseCapture;
    use crate::sync::retry::Transient;

    fn classification(
        error: HttpError,
        host: &str,
        proxy: Option<&UsedProxy>,
        hints: &'static Hints,
    ) -> Classification {
        let captured = ResponseCapture {
            host: Some(host.to_owned()),
            proxy: proxy.cloned(),
            ..ResponseCapture::default()
        };
        let asked = RequestContext {
            hints,
            ..RequestContext::sample()
        };
        let error = object_store::Error::Generic {
            store: "HTTP",
            source: Box::new(error),
        };
        Failure::new(asked, &captured, Some(&error)).classification()
    }

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
                layered(kind, &["error sending request", text], errno),
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
            let found = classification(error, "host:9", Some(&proxy), &Hints::NONE);
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
            let found = classification(error, "host:9", Some(&proxy), &Hints::NONE);
            let message = message.replace("PROXY", &proxy.to_string());
            assert_eq!((found.kind, found.message), (wanted, message), "{text}");
        }
    }

    #[test]
    fn unknown_host_of_hub_names_its_variables() {
        let hint = |hints| {
            let error = layered(HttpErrorKind::Connect, &["dns error"], None);
            classification(error, "host", None, hints)
                .hint
                .expect("a hint")
        };
        assert!(hint(&Hints::NONE).contains("bucket"));
        let of_hub = hint(&crate::protocols::hub::PROTOCOL.hints);
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
                layered(HttpErrorKind::Connect, &[text], None),
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
            HttpError::new(HttpErrorKind::Decode, TooLong),
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
