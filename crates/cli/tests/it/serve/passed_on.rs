//! Objects of a store that fails or does not respond, and clients that do not wait for it.

use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use tload_testbed::{Fault, FaultyServer, Hub, Rule};

use super::{PATIENCE, Server, read_head, send};
use crate::{command, stderr};

/// Most requests to the store at a time.
const REQUESTS_MAX: usize = 48;

const FAR: &str = "Range: bytes=100000-";

fn serve(store: &FaultyServer, arguments: &[&str]) -> Server {
    for name in ["stalled", "kept", "other"] {
        store.put(&format!("bucket/{name}"), vec![7; 200_000]);
    }
    let endpoint = format!("endpoint={}", store.url());
    let mut all = arguments.to_vec();
    for option in [
        &endpoint,
        "anonymous=true",
        "environment=false",
        "read_timeout=1h",
    ] {
        all.extend(["--store", option]);
    }
    Server::start(Path::new("s3://bucket"), &all)
}

/// Begins as many reads as there are requests at a time, none of which gets a byte.
fn stall(store: &FaultyServer, server: &Server) -> Vec<TcpStream> {
    let fault = Rule::always(Fault::StallHeaders);
    store.fault(fault.path("stalled").from_byte(1));
    (0..REQUESTS_MAX).map(|_| begin(server)).collect()
}

/// Begins a read that gets no byte.
fn begin(server: &Server) -> TcpStream {
    let mut stream = server.connect();
    send(&mut stream, "GET", "/stalled", &[FAR]);
    assert_eq!(read_head(&mut stream).0, 206);
    stream
}

/// Waits until so many clients have given up.
fn wait_for_unfinished(server: &Server, wanted: usize) {
    let begun = Instant::now();
    while server.metric("tload_serve_unfinished_responses_total") < wanted as u64 {
        assert!(begun.elapsed() < PATIENCE, "some are still served");
    }
}

#[test]
fn client_that_hung_up_makes_way_while_the_store_is_silent() {
    let store = FaultyServer::start();
    let server = serve(&store, &[]);
    let clients = stall(&store, &server);
    assert!(store.wait_for_in_flight(REQUESTS_MAX, PATIENCE));
    drop(clients);
    let reply = server.ask("GET", "/other", &[FAR]);
    assert!(reply.body == vec![7; 100_000]);
    wait_for_unfinished(&server, REQUESTS_MAX);
    store.clear_faults();
}

/// Some proxies do so, and `nc -N`.
#[test]
fn client_that_only_sends_no_more_is_served_while_the_store_is_silent() {
    let store = FaultyServer::start();
    let server = serve(&store, &["--max-connections", "2"]);
    let fault = Rule::always(Fault::StallHeaders);
    store.fault(fault.path("stalled").from_byte(1));
    let others = [begin(&server), begin(&server)];
    // Accepted once there is room: the server then has the request with the end behind it.
    let mut client = server.connect();
    send(&mut client, "GET", "/stalled", &[FAR]);
    client.shutdown(Shutdown::Write).unwrap();
    drop(others);
    assert_eq!(read_head(&mut client).0, 206);
    // A client that hung up later is noticed, so the connection of this one was looked at, too.
    drop(begin(&server));
    wait_for_unfinished(&server, 3);
    store.clear_faults();
    let mut body = vec![0; 100_000];
    client.read_exact(&mut body).unwrap();
    assert!(body == vec![7; 100_000]);
}

#[test]
fn silent_store_holds_up_nothing_that_is_cached() {
    let store = FaultyServer::start();
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&store, &["--cache-dir", folder.path().to_str().unwrap()]);
    let begun = Instant::now();
    loop {
        store.forget_requests();
        assert!(server.ask("GET", "/kept", &[FAR]).body == vec![7; 100_000]);
        // Those that open the object begin at its first byte.
        let is_first = |range: &Range<u64>| range.start == 0;
        if store
            .requests()
            .iter()
            .all(|it| it.range.as_ref().is_none_or(is_first))
        {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "not cached");
    }
    let clients = stall(&store, &server);
    assert!(store.wait_for_in_flight(1, PATIENCE));
    for path in ["/kept", "/other"] {
        assert!(server.ask("GET", path, &[FAR]).body == vec![7; 100_000]);
    }
    drop(clients);
    store.clear_faults();
}

/// A server opens its cache every second.
#[test]
fn cache_that_takes_nothing_is_logged_once() {
    let store = FaultyServer::start();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let options = ["-v", "--cache-dir", folder, "--cache-limit", "1KiB"];
    let server = serve(&store, &options);
    let slow = Rule::always(Fault::Delay(Duration::from_millis(500)));
    store.fault(slow.path("kept"));
    for _ in 0..5 {
        assert!(server.ask("GET", "/kept", &[FAR]).body == vec![7; 100_000]);
    }
    let errors = stderr(&server.stop());
    let told = errors.matches("nothing more is written").count();
    assert_eq!(told, 1, "{errors}");
}

#[test]
fn reason_of_a_failure_is_logged() {
    let store = FaultyServer::start();
    let server = serve(&store, &["-v"]);
    store.fault(Rule::always(Fault::status(403, "AccessDenied")).path("kept"));
    assert_eq!(server.get("/kept").status, 403);
    assert_eq!(server.get("/gone").status, 404);
    assert_eq!(server.get("/a%01b").status, 404);
    let errors = stderr(&server.stop());
    for text in ["WARN GET /kept: s3://bucket/kept: ", "code AccessDenied"] {
        assert!(errors.contains(text), "no {text:?} in {errors}");
    }
    assert_eq!(errors.matches("WARN").count(), 1, "{errors}");
}

/// The names of contents become entity tags. A line end in one would split the response.
#[test]
fn text_of_a_hub_adds_no_header() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().unwrap());
    let files: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("weights", &[7; 5000])];
    hub.commit("org/m", "main", &files);
    hub.name_contents("x\"\r\nSet-Cookie: a=b\r\nX-Rest: \"");
    let options = [
        format!("endpoint={}", hub.url()),
        "environment=false".to_owned(),
    ];
    let cache = folder.path().to_str().unwrap();
    let server = Server::start(
        Path::new("hf://org/m"),
        &[
            "--store",
            &options[0],
            "--store",
            &options[1],
            "--cache-dir",
            cache,
        ],
    );
    // Asked of the hub, and known by the cache.
    for _ in 0..2 {
        for (name, bytes) in files {
            let reply = server.get(&format!("/{name}"));
            assert_eq!((reply.status, &*reply.body), (200, bytes));
            assert_eq!(reply.headers.get("set-cookie"), None, "{reply:?}");
            let tag = reply.header("etag");
            assert!(tag.bytes().all(|it| it.is_ascii_graphic()), "{reply:?}");
        }
    }
}

/// Returns the output of a server that does not start.
fn refused(location: &str, options: &[String]) -> Output {
    let stores = options.iter().flat_map(|it| ["--store", it]);
    let mut serving = command(["serve", location, "--listen", "127.0.0.1:0"])
        .args(stores)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(serving.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    if !line.is_empty() {
        serving.kill().unwrap();
    }
    let output = serving.wait_with_output().unwrap();
    assert_eq!(line, "", "it has started");
    output
}

/// Options for a store at this address that is asked once.
fn at(url: &str) -> Vec<String> {
    let endpoint = format!("endpoint={url}");
    let rest = ["anonymous=true", "environment=false", "retries=0"];
    let rest = rest.map(str::to_owned);
    std::iter::once(endpoint).chain(rest).collect()
}

#[expect(clippy::too_many_lines, reason = "a table")]
#[test]
fn mistake_that_fails_every_request_is_an_error_at_start() {
    let (store, hub) = (FaultyServer::start(), Hub::start());
    let url = store.url();
    store.put("bucket/other", vec![7; 200_000]);
    let refuse = |status, code: &str| Some(Fault::status(status, code));
    for (location, options, fault, status, text) in [
        ("s3://gone/models", at(&url), None, 3, "no such bucket"),
        (
            "s3://gone/a.safetensors",
            at(&url),
            None,
            3,
            "no such bucket",
        ),
        (
            "s3://bucket/a.safetensors",
            at(&url),
            None,
            3,
            "no such object",
        ),
        (
            "hf://org/gone",
            at(&hub.url()),
            None,
            3,
            "no such repository",
        ),
        (
            "s3://bucket",
            at(&url),
            refuse(403, "InvalidAccessKeyId"),
            5,
            "does not know the access key",
        ),
        (
            "s3://bucket",
            at(&url),
            refuse(403, "SignatureDoesNotMatch"),
            5,
            "does not accept the signature",
        ),
        (
            "s3://bucket",
            at(&url),
            refuse(400, "ExpiredToken"),
            5,
            "have expired",
        ),
        // It cannot be read, and need not be listed.
        (
            "s3://bucket/other.json",
            at(&url),
            refuse(403, "AccessDenied"),
            5,
            "access is denied",
        ),
        (
            "az://container",
            vec!["environment=false".to_owned()],
            None,
            2,
            "account",
        ),
        (
            "s3://bucket",
            vec!["end=http://127.0.0.1:1".to_owned()],
            None,
            2,
            "store option \"end\" is unknown",
        ),
    ] {
        store.clear_faults();
        if let Some(fault) = fault {
            store.fault(Rule::always(fault));
        }
        let output = refused(location, &options);
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{location}: {errors}");
        assert!(errors.contains(text), "no {text:?} in {errors}");
    }
}

#[test]
fn store_that_may_be_there_later_is_a_warning_at_start() {
    let store = FaultyServer::start();
    for (fault, text) in [
        (Fault::status(403, "AccessDenied"), "access is denied"),
        (Fault::status(500, "InternalError"), "the store failed"),
        (Fault::status(503, "SlowDown"), "busy"),
        (Fault::CutBeforeHeaders, "s3://bucket"),
    ] {
        store.fault(Rule::always(fault));
        let server = serve(&store, &["--store", "retries=0"]);
        store.clear_faults();
        assert!(server.get("/other").body == vec![7; 200_000]);
        let errors = stderr(&server.stop());
        let begin = "warning: requests fail until this is mended: s3://bucket: ";
        assert!(errors.starts_with(begin), "{errors}");
        assert!(errors.contains(text), "no {text:?} in {errors}");
    }
    // Nothing is wrong with any of these: web servers need no page for a directory.
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let empty = folder.path().join("empty");
    let origin = Server::start(folder.path(), &[]);
    let below = format!("{}/nothing/", origin.url);
    let local = |path: &Path| path.to_str().unwrap().to_owned();
    std::fs::create_dir_all(empty.join("v1")).unwrap();
    for (location, arguments, text) in [
        ("s3://bucket", at(&store.url()), ""),
        (&*origin.url, vec![], ""),
        (&*below, vec![], ""),
        (below.trim_end_matches('/'), vec![], ""),
        (
            "http://127.0.0.1:1/",
            vec!["retries=0".to_owned()],
            "127.0.0.1:1",
        ),
        ("s3://bucket", at("http://127.0.0.1:1"), "127.0.0.1:1"),
    ] {
        let stores = arguments.iter().flat_map(|it| ["--store", it]);
        let server = Server::start(Path::new(location), &stores.collect::<Vec<_>>());
        let errors = stderr(&server.stop());
        assert_eq!(errors.is_empty(), text.is_empty(), "{location}: {errors}");
        assert!(errors.contains(text), "no {text:?} in {errors}");
    }
    // A gateway that lists nothing.
    store.fault(Rule::always(Fault::status(501, "NotImplemented")));
    let server = serve(&store, &[]);
    assert_eq!(stderr(&server.stop()), "");
    for (cache, text) in [
        (local(&missing), "is not the directory of a cache"),
        (local(&empty), ""),
    ] {
        let server = Server::start(Path::new("--cache"), &["--cache-dir", &cache]);
        let errors = stderr(&server.stop());
        assert_eq!(errors.is_empty(), text.is_empty(), "{cache}: {errors}");
        assert!(errors.contains(text), "no {text:?} in {errors}");
    }
}
