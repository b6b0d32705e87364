//! Host that a request names (RFC 9110, 7.2), for a server without a token that listens on this
//! machine only. Pure.
//!
//! A web page can have its own name resolved to 127.0.0.1 (DNS rebinding). A browser then takes
//! this server for that of the page, and lets its scripts read all responses. The browser names the
//! page's host in each request, so other names than those of this machine are refused.

use std::net::IpAddr;

use http::header::HOST;
use http::uri::Authority;

use crate::request::Request;

/// Text of the response to requests for other hosts.
pub(crate) const REFUSAL: &str =
    "421 Misdirected Request: without a token, requests must be for localhost or 127.0.0.1\n";

/// Returns whether `address` is one of the loopback.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Returns whether all hosts that a request names are the loopback. HTTP/1.0 requires none, and no
/// browser uses it.
pub(crate) fn is_local(request: &Request) -> bool {
    let headers = request.headers.get_all(HOST).iter();
    let mut named = headers.map(|value| value.to_str().ok()?.parse::<Authority>().ok());
    let is_local = |it: &Authority| names_loopback(it.host());
    request.uri.authority().is_none_or(is_local)
        && named.all(|authority| authority.as_ref().is_some_and(is_local))
}

fn names_loopback(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    if let Ok(address) = bare.unwrap_or(host).parse::<IpAddr>() {
        return is_loopback(address);
    }
    // Names below `localhost` are those of the loopback for every resolver (RFC 6761, 6.3).
    let name = host.strip_suffix('.').unwrap_or(host);
    let last = name.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Parsed;

    fn is_answered(head: &str) -> bool {
        let parsed = Request::parse(format!("{head}\r\n\r\n").as_bytes());
        let Parsed::Complete(request, _) = parsed else {
            panic!("{head:?}: {parsed:?}");
        };
        is_local(&request)
    }

    #[test]
    fn only_hosts_of_the_loopback_are_answered() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "model.localhost:80",
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.9.8.7",
            "[::1]",
            "[::1]:8080",
            "[::ffff:127.0.0.1]:8080",
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: {host}");
            assert!(is_answered(&head), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "10.0.0.1",
            "0.0.0.0",
            "[2001:db8::1]:80",
            "[::]",
            "a b",
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: {host}");
            assert!(!is_answered(&head), "{host}");
        }
        for (target, host, wanted) in [
            ("http://127.0.0.1:1/a", "localhost", true),
            ("http://127.0.0.1:1/a", "evil.example", false),
            ("http://evil.example/a", "localhost", false),
        ] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: {host}");
            assert_eq!(is_answered(&head), wanted, "{target} {host}");
        }
        assert!(is_answered("GET / HTTP/1.0"));
        assert!(!is_answered("GET / HTTP/1.0\r\nHost: evil.example"));
    }
}
