//! Proxies that variables name, for each client, with curl as the oracle: which requests go through
//! one, and what errors say of it.

use std::process::Command;

use tload_testbed::require;

use crate::alone::variable;
use crate::ambient::{clients, outcomes};
use crate::listener::Listener;

/// Answer of a proxy that forwards nothing.
fn refusing(status: &'static str) -> Listener {
    Listener::start(move |_| {
        format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    })
}

/// Returns whether curl sends a request for `url` to the proxy.
fn is_proxied_by_curl(variables: &[(&str, &str)], url: &str, proxy: &Listener) -> bool {
    let mut curl = Command::new("curl");
    curl.env_clear()
        .env("PATH", variable("PATH").unwrap_or_default())
        .envs(variables.iter().copied())
        .args(["--silent", "--insecure", "--max-time", "60", url]);
    // The server that it asks otherwise does not exist.
    let _ = curl.output().expect("curl runs");
    !proxy.received().is_empty()
}

/// Rules that curl has: for each, the same requests go through the proxy.
#[test]
fn requests_go_through_proxy_as_those_of_curl() {
    let version = Command::new("curl").arg("--version").output();
    let version = version.map_err(|error| format!("curl cannot be run: {error}"));
    if require(version).is_none() {
        return;
    }
    let proxy = refusing("403 No");
    let address = proxy.address.to_string();
    // PROXY is the address of the proxy; a URL with `-` does not go through it.
    let table = "
        http_proxy=http://PROXY                        http://127.0.0.1:1/ -https://127.0.0.1:1/
        http_proxy=PROXY                               http://127.0.0.1:1/
        http_proxy=me:pw@PROXY                         http://127.0.0.1:1/
        https_proxy=http://PROXY                       -http://127.0.0.1:1/ https://127.0.0.1:1/
        HTTPS_PROXY=PROXY                              https://127.0.0.1:1/
        all_proxy=PROXY                                http://127.0.0.1:1/ https://127.0.0.1:1/
        ALL_PROXY=http://PROXY                         http://127.0.0.1:1/ https://127.0.0.1:1/
        http_proxy=PROXY all_proxy=127.0.0.1:1         http://127.0.0.2:1/
        HTTPS_PROXY=127.0.0.1:1 https_proxy=PROXY      https://127.0.0.2:1/
        https_proxy= HTTPS_PROXY=PROXY                 https://127.0.0.2:1/
        all_proxy=PROXY no_proxy=*                     -http://127.0.0.1:1/ -http://host.invalid/ -http://[::1]:1/
        all_proxy=PROXY NO_PROXY=*                     -http://127.0.0.1:1/
        all_proxy=PROXY NO_PROXY=* no_proxy=a          http://127.0.0.1:1/
        all_proxy=PROXY no_proxy=127.0.0.1             -http://127.0.0.1:1/ http://127.0.0.2:1/
        all_proxy=PROXY no_proxy=127.0.0.0/30          -http://127.0.0.3:1/ http://127.0.0.4:1/
        all_proxy=PROXY no_proxy=127.9.9.9/8           -http://127.0.0.3:1/
        all_proxy=PROXY no_proxy=::1                   -http://[::1]:1/ http://127.0.0.1:1/
        all_proxy=PROXY no_proxy=host.invalid          -http://host.invalid/ -http://a.host.invalid/ http://ahost.invalid/
        all_proxy=PROXY no_proxy=.host.invalid         -http://host.invalid/ -http://a.host.invalid/ http://ahost.invalid/
        all_proxy=PROXY no_proxy=HOST.invalid          -http://host.invalid/
        all_proxy=PROXY no_proxy=a,host.invalid        -http://host.invalid/ http://b.invalid/
        all_proxy=PROXY no_proxy=a,,+host.invalid      -http://host.invalid/
        all_proxy=PROXY no_proxy=a+host.invalid        -http://host.invalid/ -http://a/
        all_proxy=PROXY no_proxy=invalid               -http://host.invalid/
        all_proxy=PROXY no_proxy=ost.invalid           http://host.invalid/";
    for row in table.trim().lines() {
        let (set, urls): (Vec<_>, Vec<_>) = row
            .split_whitespace()
            .partition(|word| word.to_ascii_lowercase().contains("_proxy="));
        let set: Vec<_> = set
            .iter()
            .map(|pair| {
                let (name, value) = pair.split_once('=').expect(row);
                // A space is written as `+`.
                (name, value.replace("PROXY", &address).replace('+', " "))
            })
            .collect();
        let variables: Vec<_> = set.iter().map(|(name, value)| (*name, &**value)).collect();
        for url in urls {
            let (url, wanted) = match url.strip_prefix('-') {
                Some(url) => (url, false),
                None => (url, true),
            };
            let curl = is_proxied_by_curl(&variables, url, &proxy);
            assert_eq!(curl, wanted, "curl: {row}: {url}");
            let outcome = outcomes(&variables, &[format!("{url}m.safetensors")]);
            let found = !proxy.received().is_empty();
            assert_eq!(found, wanted, "{row}: {url}: {outcome:?}");
        }
    }
}

/// Forms that curl lacks and that Python's requests or Go have.
#[test]
fn exempt_hosts_may_have_ports_and_stars() {
    let proxy = refusing("403 No");
    let proxied = |no_proxy: &str, url: &str| {
        let variables = [("all_proxy", &*proxy.url()), ("no_proxy", no_proxy)];
        outcomes(&variables, &[url.to_owned()]);
        !proxy.received().is_empty()
    };
    for (no_proxy, url, wanted) in [
        ("127.0.0.1:1", "http://127.0.0.1:1/m", false),
        ("127.0.0.1:1", "http://127.0.0.1:2/m", true),
        ("host.invalid:80", "http://host.invalid/m", false),
        ("host.invalid:81", "http://host.invalid/m", true),
        ("[::1]:1", "http://[::1]:1/m", false),
        ("*.invalid", "http://host.invalid/m", false),
        ("a,*", "http://127.0.0.1:1/m", false),
    ] {
        assert_eq!(proxied(no_proxy, url), wanted, "{no_proxy}: {url}");
    }
}

/// Every client follows the variables, also those for credentials, and names the proxy.
#[test]
fn all_clients_follow_variables() {
    let proxy = refusing("403 No");
    let address = proxy.address.to_string();
    for (variables, scheme, is_proxied) in [
        (&[("http_proxy", &*address)][..], "http", true),
        (&[("HTTP_PROXY", &address)], "http", true),
        (&[("all_proxy", &address)], "http", true),
        (&[("https_proxy", &address)], "https", true),
        (&[("HTTPS_PROXY", &address)], "https", true),
        (
            &[("all_proxy", &address), ("no_proxy", "*")],
            "https",
            false,
        ),
        (
            &[("all_proxy", &address), ("no_proxy", ".invalid:9")],
            "http",
            false,
        ),
    ] {
        let url = format!("{scheme}://host.invalid:9");
        for (client, outcome) in clients(variables, &url) {
            let shown = format!("http://{address} ({})", variables[0].0);
            let is_named = outcome.contains(&shown) || client == "sts";
            assert!(
                is_named || !is_proxied,
                "{client}, {variables:?}: {outcome}"
            );
        }
        let heads = proxy.received();
        let to = match scheme {
            "https" => "CONNECT host.invalid:9 ",
            _ => "http://host.invalid:9",
        };
        let is_there = |head: &&String| head.contains(to);
        assert_eq!(heads.iter().filter(is_there).count(), heads.len());
        // Some ask more than once.
        assert!(!is_proxied || heads.len() >= 7, "{variables:?}: {heads:?}");
        assert!(is_proxied || heads.is_empty(), "{variables:?}: {heads:?}");
    }
}

#[test]
fn unusable_proxies_are_named_and_nothing_is_sent() {
    let proxy = refusing("200 OK");
    let address = proxy.address.to_string();
    let socks = format!("socks5h://me:hunter2@{address}");
    for (value, says) in [
        (&*socks, "speaks SOCKS, which is not supported"),
        ("ftp://me:hunter2@host", "another scheme"),
        ("http://me:hunter2@", "does not hold the URL of a proxy"),
    ] {
        let url = proxy.url();
        for (client, outcome) in clients(&[("all_proxy", value)], &url) {
            assert!(outcome.contains(says), "{client}: {outcome}");
            assert!(outcome.contains("all_proxy"), "{client}: {outcome}");
            assert!(!outcome.contains("hunter2"), "{client}: {outcome}");
        }
        assert_eq!(proxy.received(), [""; 0], "{value}");
    }
}

#[test]
fn proxy_that_requires_credentials_is_named() {
    let proxy = refusing("407 No");
    let address = proxy.address.to_string();
    let shown = format!("the proxy http://{address} (all_proxy) requires credentials");
    let variables = [("all_proxy", &*address)];
    for url in ["http://host.invalid/m", "https://host.invalid/m"] {
        let outcome = outcomes(&variables, &[url.to_owned()]).concat();
        assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
        assert!(outcome.contains(&shown), "{outcome}");
    }
}
