//! Redirects: the exact bytes sent to the next server, and targets that are refused.

use std::time::Duration;

use tload::{Checkpoint, Error, ErrorKind, Location, Result, StoreOptions};
use tload_testbed::{Fault, FaultyServer, Nginx, Rule, require};

use crate::fixtures::{assert_all, even, load, options};
use crate::listener::Listener;
use crate::sites;

/// Part of every secret.
const MARK: &str = "hunter2";

fn store(pairs: &[(&str, &str)]) -> StoreOptions {
    let mut store = sites::options(&[("retries", "2"), ("read_timeout", "5")]);
    for (key, value) in pairs {
        store.set(key, *value).expect("an option");
    }
    store
}

fn open(url: &str, pairs: &[(&str, &str)]) -> Result<Checkpoint> {
    Checkpoint::open_with(&Location::parse(url)?, store(pairs))
}

fn failure(url: &str, pairs: &[(&str, &str)]) -> Error {
    open(url, pairs).expect_err("the redirect is not followed")
}

/// Starts a server that redirects everything, with this status.
fn redirecting(status: u16, to: &str) -> Listener {
    let to = to.to_owned();
    Listener::start(move |_| {
        format!(
            "HTTP/1.1 {status} Moved\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
    })
}

/// Returns ways to access the server at `url`, each with all the secrets that it accepts.
fn ways(url: &str) -> Vec<(String, Vec<(&'static str, String)>)> {
    let host = url.strip_prefix("http://").expect("plain");
    let endpoint = || ("endpoint", url.to_owned());
    let pair = |name, value: &str| (name, value.to_owned());
    let team = || pair("header.x-team", "hunter2header");
    let azure = |key, value: &str| {
        vec![
            ("endpoint", format!("{url}/account")),
            pair("account", "account"),
            pair(key, value),
            team(),
        ]
    };
    vec![
        (
            format!("http://user:hunter2@{host}/m.safetensors?X-Amz-Signature=hunter2&sig=hunter2"),
            vec![team(), pair("header.cookie", "hunter2")],
        ),
        (
            format!("http://{host}/m.safetensors"),
            vec![team(), pair("header.authorization", "Bearer hunter2")],
        ),
        (
            "s3://models/m.safetensors".to_owned(),
            vec![
                endpoint(),
                pair("access_key_id", "AKIAhunter2"),
                pair("secret_access_key", "hunter2secret"),
                pair("session_token", "hunter2session"),
                team(),
            ],
        ),
        (
            "gs://models/m.safetensors".to_owned(),
            vec![endpoint(), pair("token", "hunter2bearer"), team()],
        ),
        (
            "az://models/m.safetensors".to_owned(),
            azure("sas", "sv=1&sig=hunter2"),
        ),
        (
            "az://models/m.safetensors".to_owned(),
            azure("token", "hunter2bearer"),
        ),
    ]
}

#[test]
fn cross_origin_redirect_forwards_only_range() {
    let second = FaultyServer::start();
    let file = even("t", 1, 2, 5000);
    second.put("there/m.safetensors", file.clone());
    for status in [301, 302, 303, 307, 308] {
        let there = format!("{}/there/m.safetensors", second.url());
        let first = redirecting(status, &there);
        for (url, pairs) in ways(&first.url()) {
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| (*key, &**value)).collect();
            second.forget_requests();
            let checkpoint = open(&url, &pairs).unwrap_or_else(|error| panic!("{url}: {error}"));
            let (tensors, _) = load(&checkpoint, options(|_| {})).expect("loads");
            assert_all(&tensors, &[&file]);
            let sent = first.received();
            assert!(
                sent.iter().all(|head| head.contains(MARK)),
                "{url}: requested without secrets"
            );
            let requests = second.requests();
            assert!(requests.len() >= 2, "{url}: {} requests", requests.len());
            for request in requests {
                assert_eq!(request.query, [], "{url}");
                for (name, value) in &request.headers {
                    let wanted = match name.as_str() {
                        "host" => second.url().ends_with(value.as_str()),
                        "range" => value.starts_with("bytes="),
                        "user-agent" => value.starts_with("tload/"),
                        "accept" => value == "*/*",
                        "accept-encoding" => value == "identity",
                        "if-match" => !value.contains(MARK),
                        _ => false,
                    };
                    assert!(wanted, "{status} {url}: {name} was forwarded");
                }
            }
        }
    }
}

#[test]
fn cross_origin_redirect_sends_exact_headers() {
    let second =
        Listener::start(|_| "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned());
    let first = redirecting(302, &format!("http://u:p@{}/there?a=b#c", second.address));
    let url = format!("{}/m.safetensors?sig=hunter2", first.url());
    let error = failure(&url, &[("header.x-team", "hunter2header")]);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let received = second.received();
    assert!(!received.is_empty(), "{}", error.chain());
    for head in received {
        let mut lines: Vec<_> = head.trim_end().split("\r\n").collect();
        let request = lines.remove(0);
        assert!(
            ["GET", "HEAD"]
                .iter()
                .any(|method| request == format!("{method} /there?a=b HTTP/1.1")),
            "{request}"
        );
        lines.retain(|line| !line.starts_with("range: bytes="));
        lines.sort_unstable();
        let agent = concat!("user-agent: tload/", env!("CARGO_PKG_VERSION"));
        let host = format!("host: {}", second.address);
        let plain = "accept-encoding: identity";
        assert_eq!(lines, [plain, "accept: */*", &host, agent]);
    }
}

#[test]
fn same_origin_redirect_keeps_headers_without_referer() {
    let server = FaultyServer::start();
    server.put("models/m.safetensors", even("t", 1, 2, 5000));
    server.fault(Rule::once(Fault::redirect(
        "/models/m.safetensors?sig=hunter2",
    )));
    let url = server.url().replace("http://", "http://user:hunter2@");
    let team = ("header.x-team", "hunter2header");
    open(
        &format!("{url}/models/old.safetensors?sig=hunter2"),
        &[team],
    )
    .expect("opens");
    let requests = server.requests();
    assert!(requests.len() >= 2);
    for request in requests {
        assert_eq!(request.headers["x-team"], "hunter2header");
        assert!(request.headers["authorization"].starts_with("Basic "));
        assert!(!request.headers.contains_key("referer"), "{request:?}");
    }
}

/// Headers that were dropped on a redirect stay dropped.
#[test]
fn dropped_headers_are_not_restored_by_redirect_back() {
    let first = Listener::start(|head| {
        let back = head.starts_with("GET /back") || head.starts_with("HEAD /back");
        let second = head
            .split("second=")
            .nth(1)
            .and_then(|rest| rest.split(['&', ' ']).next());
        match second {
            Some(port) if !back => {
                format!(
                    "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{port}/\r\nContent-Length: 0\r\n\r\n"
                )
            }
            _ => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
        }
    });
    let second = redirecting(302, &format!("{}/back", first.url()));
    let url = format!(
        "{}/m.safetensors?second={}",
        first.url(),
        second.address.port()
    );
    failure(&url, &[("header.x-team", "hunter2header")]);
    let received = first.received();
    let (back, forth): (Vec<_>, Vec<_>) = received.iter().partition(|head| head.contains("/back"));
    assert!(!back.is_empty() && !forth.is_empty(), "{received:?}");
    assert!(forth.iter().all(|head| head.contains(MARK)));
    assert!(back.iter().all(|head| !head.contains(MARK)), "{back:?}");
}

#[test]
fn redirect_loop_fails_without_retry() {
    let server = FaultyServer::start();
    server.put("models/m.safetensors", even("t", 1, 2, 5000));
    let url = format!("{}/models/m.safetensors", server.url());
    server.fault(Rule::always(Fault::redirect("/models/m.safetensors")));
    let error = failure(&url, &[]);
    assert_eq!(error.kind(), ErrorKind::Remote);
    assert!(error.message().contains("in a loop"), "{}", error.chain());
    let requests = server.requests();
    let asked = requests.iter().filter(|request| request.method == "GET");
    assert_eq!(asked.count(), 11, "the request and ten redirects");
}

/// The timeout of a request covers its redirects and its body: each of them alone is fast enough.
#[test]
fn request_timeout_covers_redirects_and_body() {
    let pairs = |url: String, seconds: u32| {
        [
            ("endpoint", url),
            ("access_key_id", "AKIA".to_owned()),
            ("secret_access_key", "secret".to_owned()),
            ("aws_timeout", format!("{seconds}s")),
            ("read_timeout", "60".to_owned()),
            ("retries", "0".to_owned()),
        ]
    };
    let failure = |url: String, seconds| {
        let pairs = pairs(url, seconds);
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| (*key, &**value)).collect();
        failure("s3://models/m.safetensors", &pairs)
    };
    // A chain of ten redirects would take three times the timeout at least. On a busy machine, a
    // short one may end the first request.
    let are_followed = [1, 4, 16].into_iter().any(|seconds| {
        let (_sender, never) = std::sync::mpsc::channel::<()>();
        let never = std::sync::Mutex::new(never);
        let slow = Listener::start(move |_| {
            let never = never.lock().expect("no panic");
            // A busy machine only takes longer.
            let _ = never.recv_timeout(Duration::from_millis(300) * seconds);
            "HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                .to_owned()
        });
        let error = failure(slow.url(), seconds);
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
        slow.received().len() > 1
    });
    assert!(are_followed);
    // The body of the response does not arrive.
    let server = FaultyServer::start();
    server.put("models/m.safetensors", even("t", 1, 2, 5000));
    server.fault(Rule::always(Fault::StallBody(10)));
    let error = failure(server.url(), 1);
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
}

#[test]
fn redirects_from_https_to_http_are_rejected() {
    let Some(server) = require(Nginx::start()) else {
        return;
    };
    server
        .put("m.safetensors", &even("t", 1, 2, 5000))
        .expect("a file");
    let ca_file = server.ca_file().to_str().expect("a path");
    let url = format!("{}/plain/m.safetensors", server.tls_url());
    // With and without secrets, https stays https.
    for pairs in [
        &[("ca_file", ca_file)][..],
        &[("ca_file", ca_file), ("header.x-team", MARK)],
    ] {
        let error = failure(&url, pairs);
        assert_eq!(error.kind(), ErrorKind::Remote);
        assert!(
            error.message().contains("from https to http"),
            "{}",
            error.chain()
        );
    }
    let url = format!("{}/plain/m.safetensors", server.url());
    open(&url, &[]).expect("from http to http");
}

#[test]
fn redirects_into_private_networks_are_rejected() {
    let inside = Listener::start(|_| String::new());
    let port = inside.address.port();
    let local = format!("http://127.0.0.1:{port}/");
    let metadata = "http://169.254.169.254/latest/meta-data/iam/security-credentials/".to_owned();
    // A proxy stands for the server of a public address, which tests cannot reach.
    for (host, to, wanted) in [
        ("http://8.8.8.8", local.clone(), "private network"),
        (
            "http://8.8.8.8",
            format!("http://2130706433:{port}/"),
            "private network",
        ),
        (
            "http://8.8.8.8",
            format!("http://localhost:{port}/"),
            "private network",
        ),
        (
            "http://8.8.8.8",
            format!("http://[::ffff:7f00:1]:{port}/"),
            "private network",
        ),
        ("http://8.8.8.8", metadata.clone(), "private network"),
        (
            "http://8.8.8.8",
            "file:///etc/passwd".to_owned(),
            "neither http nor https",
        ),
        // The proxy's own address, on this machine, does not make a private target acceptable.
        ("http://host.invalid", local.clone(), "private network"),
        ("http://10.0.0.1", local.clone(), "private network"),
        ("http://10.0.0.1", metadata.clone(), "private network"),
        ("http://127.0.0.1:9", metadata, "private network"),
    ] {
        let proxy = redirecting(302, &to);
        let error = failure(&format!("{host}/m.safetensors"), &[("proxy", &proxy.url())]);
        assert_eq!(error.kind(), ErrorKind::Remote, "{}", error.chain());
        assert!(
            error.message().contains(wanted),
            "{host} to {to}: {}",
            error.chain()
        );
        let asked = proxy.received();
        let asked = asked.iter().filter(|head| head.starts_with("GET"));
        assert_eq!(asked.count(), 1, "{host} to {to}: retried");
        assert_eq!(inside.received(), [""; 0], "{host} to {to}");
    }
}
