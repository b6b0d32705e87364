//! Tests of stores against servers on loopback that send one response: from bytes on a wire to the
//! error that a user sees.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{GetOptions, GetRange};

use super::{Fault, Store};
use crate::error::ErrorKind;
use crate::options::Location;
use crate::options::store_options::StoreOptions;
use crate::sync::retry::Transient;
use crate::sync::timeline::Timeline;

/// Response of a server to its one request.
enum Answer {
    /// Sends these bytes and closes the connection.
    Bytes(String),
    /// Sends nothing until the client closes the connection.
    Silence,
}

/// Serves one request, and returns its head: request line and headers.
fn serve(answer: Answer) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let server = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("a connection");
        let mut reader = BufReader::new(connection.try_clone().expect("a second reader"));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).expect("a line") == 0 {
                break;
            }
        }
        match answer {
            Answer::Bytes(bytes) => connection.write_all(bytes.as_bytes()).expect("written"),
            Answer::Silence => {
                let _ = reader.read_line(&mut String::new());
            }
        }
        head
    });
    (url, server)
}

fn reply(head: &str, body: &str) -> Answer {
    Answer::Bytes(format!(
        "HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    ))
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(future)
}

/// Opens a store without reading this process's environment.
fn open(url: &str, options: &[(&str, &str)]) -> (Arc<Store>, Path) {
    let location = Location::parse(url).expect(url);
    let mut options = StoreOptions::from_pairs(options.iter().copied()).expect("options");
    options.set("environment", "false").expect("an option");
    let url = location.remote().expect("a URL");
    let opened = Store::open(url, &options, &Timeline::default(), None);
    let (store, path) = opened.expect("opens");
    (store, path)
}

const KEYS: [(&str, &str); 2] = [("access_key_id", "AKIA"), ("secret_access_key", "hunter2")];

fn s3(endpoint: &str) -> (Arc<Store>, Path) {
    let mut options = KEYS.to_vec();
    options.push(("endpoint", endpoint));
    open("s3://bucket/a b.safetensors", &options)
}

fn first_bytes() -> GetOptions {
    GetOptions {
        range: Some(GetRange::Bounded(0..4)),
        ..GetOptions::default()
    }
}

/// Requests four bytes and reads them.
fn fetch(store: &Store, path: &Path) -> Result<Vec<u8>, Fault> {
    run(async {
        let (result, captured) = store.get(path, first_bytes()).await?;
        let bytes: Result<Vec<_>, _> = result.into_stream().try_collect().await;
        let bytes = bytes.map_err(|error| store.fault(&error, &captured, "GET"))?;
        Ok(bytes.concat())
    })
}

const GOOD: &str = "206 Partial Content\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\netag: \"e\"\r\n\
                    content-range: bytes 0-3/8\r\nx-amz-request-id: id-1";

#[test]
fn get_returns_bytes_and_encodes_key() {
    let (url, server) = serve(reply(GOOD, "abcd"));
    let (store, path) = s3(&url);
    assert_eq!(fetch(&store, &path).expect("bytes"), b"abcd");
    let head = server.join().expect("a request").to_ascii_lowercase();
    assert!(
        head.starts_with("get /bucket/a%20b.safetensors http/1.1"),
        "{head}"
    );
    assert!(
        head.contains("range: bytes=0-3") && head.contains("aws4-hmac-sha256"),
        "{head}"
    );
    assert!(
        head.contains(concat!("user-agent: tload/", env!("CARGO_PKG_VERSION"))),
        "{head}"
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn answers_of_s3() {
    let error = |code: &str| format!("<Error><Code>{code}</Code><Message>Words</Message></Error>");
    for (head, body, kind, transient, message) in [
        (
            "403 Forbidden",
            error("AccessDenied"),
            ErrorKind::PermissionDenied,
            None,
            "access is denied",
        ),
        (
            "403 Forbidden",
            error("SignatureDoesNotMatch"),
            ErrorKind::PermissionDenied,
            None,
            "the store does not accept the signature",
        ),
        (
            "404 Not Found",
            error("NoSuchKey"),
            ErrorKind::NotFound,
            None,
            "there is no such object",
        ),
        (
            "404 Not Found",
            error("NoSuchBucket"),
            ErrorKind::NotFound,
            None,
            "there is no such bucket",
        ),
        (
            "412 Precondition Failed",
            error("PreconditionFailed"),
            ErrorKind::Changed,
            None,
            "the object changed while it was read",
        ),
        (
            "301 Moved Permanently\r\nx-amz-bucket-region: eu-west-1",
            error("PermanentRedirect"),
            ErrorKind::InvalidRequest,
            None,
            "the bucket is in region eu-west-1, but the request went to us-east-1",
        ),
        (
            "503 Slow Down\r\nretry-after: 3",
            error("SlowDown"),
            ErrorKind::Remote,
            Some(Transient::Busy),
            "the store is busy or throttling requests (SlowDown)",
        ),
        (
            "500 Internal Server Error",
            String::new(),
            ErrorKind::Remote,
            Some(Transient::Broken),
            "the store failed (status 500)",
        ),
    ] {
        let (url, server) = serve(reply(&format!("{head}\r\nx-amz-request-id: id-1"), &body));
        let (store, path) = s3(&url);
        let fault = fetch(&store, &path).expect_err(head);
        assert_eq!(fault.error.message(), message, "{head}");
        assert_eq!(
            (fault.error.kind(), fault.transient),
            (kind, transient),
            "{head}"
        );
        assert_eq!(
            fault.asked.is_some(),
            head.contains("retry-after"),
            "{head}"
        );
        let error = fault.into_error(3);
        let request = error.request().expect("a request");
        let status = head.get(..3).and_then(|status| status.parse().ok());
        assert_eq!((request.attempts, request.status), (3, status));
        assert_eq!(request.request_id.as_deref(), Some("id-1"));
        assert_eq!(request.credentials.as_deref(), Some("option access_key_id"));
        let chain = error.chain();
        assert!(
            !chain.contains("hunter2") && !chain.contains("http://"),
            "{chain}"
        );
        assert_eq!(chain.contains("Words"), !body.is_empty(), "{chain}");
        server.join().expect("a request");
    }
}

#[test]
fn responses_with_wrong_range_are_rejected() {
    let date = "last-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\netag: \"e\"";
    for (head, kind, words) in [
        (
            format!("206 Partial Content\r\n{date}\r\ncontent-range: bytes 4-7/8"),
            ErrorKind::Remote,
            "different range",
        ),
        (format!("206 Partial Content\r\n{date}"), ErrorKind::Remote, "no Content-Range"),
        (
            "206 Partial Content\r\ncontent-range: bytes 0-3/8\r\netag: \"e\"\r\nlast-modified: yesterday".to_owned(),
            ErrorKind::Remote,
            "Last-Modified",
        ),
    ] {
        let (url, server) = serve(reply(&head, "abcd"));
        let (store, path) = s3(&url);
        let fault = fetch(&store, &path).expect_err(&head);
        assert_eq!((fault.error.kind(), fault.transient), (kind, None), "{head}");
        assert!(fault.error.message().contains(words), "{}", fault.error.chain());
        server.join().expect("a request");
    }
}

#[test]
fn small_file_comes_whole_from_server_ignoring_ranges() {
    let (url, server) = serve(reply("200 OK", "abcdefgh"));
    let (store, path) = open(&format!("{url}/m"), &[]);
    fetch(&store, &path).expect("the range is in it");
    server.join().expect("a request");
}

#[test]
fn signed_url_is_sent_verbatim_and_redacted() {
    let (url, server) = serve(reply("403 Forbidden", ""));
    let url = url.replace("http://", "http://user:hunter2@");
    let (store, path) = open(&format!("{url}/a%20b?X-Amz-Signature=hunter2&b=%2F"), &[]);
    assert!(!format!("{store:?}").contains("hunter2"));
    let fault = fetch(&store, &path).expect_err("no access");
    assert_eq!(fault.error.kind(), ErrorKind::PermissionDenied);
    assert!(
        fault
            .error
            .hint()
            .expect("a hint")
            .contains("sign the URL again")
    );
    let shown = format!("{fault:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    let head = server.join().expect("a request");
    assert!(
        head.starts_with("GET /a%20b?X-Amz-Signature=hunter2&b=%2F HTTP/1.1"),
        "{head}"
    );
    let wanted = "authorization: basic dxnlcjpodw50zxiy";
    assert!(head.to_ascii_lowercase().contains(wanted), "{head}");
}

/// S3 takes `+` for a space, so `%2B` must stay.
#[test]
fn path_of_web_server_is_sent_as_written() {
    let (url, server) = serve(reply(GOOD, "abcd"));
    let (store, path) = open(&format!("{url}/m/a%2Bb%20c+d%3D100%25.safetensors"), &[]);
    assert_eq!(fetch(&store, &path).expect("bytes"), b"abcd");
    let head = server.join().expect("a request");
    assert!(
        head.starts_with("GET /m/a%2Bb%20c+d%3D100%25.safetensors HTTP/1.1"),
        "{head}"
    );
}

/// A file is named in a header that is not needed to read it.
#[test]
fn unneeded_headers_may_be_other_than_ascii() {
    for name in [
        "content-disposition",
        "cache-control",
        "content-language",
        "content-type",
        "x-amz-meta-title",
    ] {
        let head = format!("{GOOD}\r\n{name}: inline; filename=\"模型\"");
        let (url, server) = serve(reply(&head, "abcd"));
        let (store, path) = s3(&url);
        let bytes = fetch(&store, &path);
        assert_eq!(bytes.expect(name), b"abcd", "{name}");
        server.join().expect("a request");
    }
    let (url, server) = serve(reply(&GOOD.replace("\"e\"", "\"模\""), "abcd"));
    let (store, path) = s3(&url);
    fetch(&store, &path).expect_err("the identity cannot be read");
    server.join().expect("a request");
}

#[test]
fn range_may_come_without_its_length() {
    let (url, server) = serve(Answer::Bytes(format!(
        "HTTP/1.1 {GOOD}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"
    )));
    let (store, path) = s3(&url);
    assert_eq!(fetch(&store, &path).expect("bytes"), b"abcd");
    server.join().expect("a request");
}

#[test]
fn redirects_are_followed() {
    let (target, second) = serve(reply(
        "206 Partial Content\r\ncontent-range: bytes 0-3/8",
        "abcd",
    ));
    let (url, first) = serve(reply(&format!("302 Found\r\nlocation: {target}/there"), ""));
    let (store, path) = open(&format!("{url}/here"), &[]);
    assert_eq!(fetch(&store, &path).expect("bytes"), b"abcd");
    assert!(first.join().expect("a request").starts_with("GET /here"));
    assert!(second.join().expect("a request").starts_with("GET /there"));
}

#[test]
fn refused_connection_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let (store, path) = s3(&url);
    let fault = fetch(&store, &path).expect_err("no server");
    assert_eq!(fault.transient, Some(Transient::Unreachable));
    assert!(
        fault.error.message().contains("refuses connections"),
        "{}",
        fault.error
    );
    assert_eq!(fault.error.errno(), Some(libc::ECONNREFUSED));
}

#[test]
fn closed_or_silent_connections_are_transient() {
    let (url, server) = serve(Answer::Bytes(format!(
        "HTTP/1.1 {GOOD}\r\ncontent-length: 4\r\n\r\nab"
    )));
    let (store, path) = s3(&url);
    let fault = fetch(&store, &path).expect_err("half a body");
    assert_eq!(
        fault.transient,
        Some(Transient::Broken),
        "{}",
        fault.error.chain()
    );
    let request = fault.error.request().expect("a request");
    assert_eq!(request.request_id.as_deref(), Some("id-1"));
    server.join().expect("a request");

    let (url, server) = serve(Answer::Bytes(String::new()));
    let (store, path) = s3(&url);
    let fault = fetch(&store, &path).expect_err("no answer");
    assert_eq!(
        fault.transient,
        Some(Transient::Broken),
        "{}",
        fault.error.chain()
    );
    server.join().expect("a request");

    let (url, server) = serve(Answer::Silence);
    let (store, path) = open(&format!("{url}/m"), &[("read_timeout", "0.05")]);
    let fault = fetch(&store, &path).expect_err("silence");
    assert_eq!(
        fault.transient,
        Some(Transient::Stalled),
        "{}",
        fault.error.chain()
    );
    assert_eq!(fault.error.kind(), ErrorKind::TimedOut);
    server.join().expect("a request");
}

#[test]
fn lists_of_s3_and_of_web_servers() {
    let body = "<ListBucketResult><Contents><Key>m/x</Key><LastModified>2026-01-01T00:00:00Z</LastModified>\
                <ETag>\"e\"</ETag><Size>7</Size></Contents><CommonPrefixes><Prefix>m/n/</Prefix></CommonPrefixes>\
                </ListBucketResult>";
    let (url, server) = serve(reply("200 OK", body));
    let (store, _) = s3(&url);
    let level = run(store.list(Some(&Path::from("m")))).expect("a list");
    let names: Vec<_> = level
        .objects
        .iter()
        .map(|object| object.location.as_ref())
        .collect();
    assert_eq!(names, ["m/x"]);
    assert_eq!(level.prefixes, [Path::from("m/n")]);
    server.join().expect("a request");

    for answer in [
        reply("405 Method Not Allowed", ""),
        reply("200 OK", "<html>hello</html>"),
    ] {
        let (url, server) = serve(answer);
        let (store, _) = open(&url, &[]);
        let fault = run(store.list(None)).expect_err("no list");
        assert_eq!(
            fault.error.kind(),
            ErrorKind::Unsupported,
            "{}",
            fault.error.chain()
        );
        server.join().expect("a request");
    }
}

/// S3 refuses requests with `x-amz-` headers that the signature does not cover.
#[test]
fn headers_of_options_are_signed() {
    let list = "<ListBucketResult></ListBucketResult>";
    for (is_list, answer) in [(true, reply("200 OK", list)), (false, reply(GOOD, "abcd"))] {
        let (url, server) = serve(answer);
        let mut options = KEYS.to_vec();
        let owner = ("header.x-amz-expected-bucket-owner", "111122223333");
        options.extend([("endpoint", &*url), owner, ("header.x-team", "weights")]);
        let (store, path) = open("s3://bucket/m", &options);
        if is_list {
            run(store.list(None)).expect("a list");
        } else {
            fetch(&store, &path).expect("bytes");
        }
        let head = server.join().expect("a request").to_ascii_lowercase();
        assert!(head.contains("x-team: weights"), "{head}");
        let signed = head
            .split_once("signedheaders=")
            .expect("signed")
            .1
            .split(',')
            .next()
            .expect("a list")
            .split(';');
        let names: Vec<_> = signed.filter(|name| name.starts_with("x-amz-e")).collect();
        assert_eq!(names, ["x-amz-expected-bucket-owner"], "{head}");
        assert_eq!(head.matches("authorization:").count(), 1, "{head}");
    }
}

#[test]
fn head_returns_length_and_sends_option_headers() {
    let head = "200 OK\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\netag: \"e\"\r\ncontent-length: 7";
    let (url, server) = serve(Answer::Bytes(format!("HTTP/1.1 {head}\r\n\r\n")));
    let (store, path) = open(&format!("{url}/m"), &[("header.X-Team", "weights")]);
    let (object, captured) = run(store.head(&path)).expect("a head");
    assert_eq!((object.size, captured.status), (7, Some(200)));
    let head = server.join().expect("a request").to_ascii_lowercase();
    assert!(
        head.starts_with("head /m ") && head.contains("x-team: weights"),
        "{head}"
    );
}

#[test]
fn custom_store_errors_are_translated() {
    let store = Store::custom(Arc::new(InMemory::new()), "memory");
    let fault = run(store.head(&Path::from("x"))).expect_err("nothing there");
    assert_eq!(fault.error.kind(), ErrorKind::NotFound);
    let error = fault.into_error(1);
    assert_eq!(error.request().map(|request| request.attempts), Some(1));
    assert!(format!("{store:?}").contains("memory"));
}

#[test]
fn credential_failures_differ_from_store_failures() {
    let body = r#"{"error": "invalid_client", "error_description": "Words"}"#;
    let (url, server) = serve(reply("401 Unauthorized", body));
    let options = [
        ("account", "acc"),
        ("tenant_id", "tenant"),
        ("client_id", "client"),
        ("client_secret", "hunter2"),
        ("azure_storage_authority_host", url.as_str()),
        ("endpoint", "http://127.0.0.1:9"),
    ];
    let (store, path) = open("az://container/k", &options);
    let fault = fetch(&store, &path).expect_err("no credentials");
    assert_eq!(fault.error.kind(), ErrorKind::PermissionDenied);
    let chain = fault.error.chain();
    assert!(
        chain.starts_with("cannot get credentials from 127.0.0.1:"),
        "{chain}"
    );
    assert!(
        chain.contains("Words") && !chain.contains("hunter2"),
        "{chain}"
    );
    server.join().expect("a request");
}

#[test]
fn requests_can_run_on_any_thread() {
    fn sends<T: Send>(_: T) {}
    let store = Store::custom(Arc::new(InMemory::new()), "memory");
    let path = Path::from("x");
    sends(store.get(&path, GetOptions::default()));
    sends(store.head(&path));
    sends(store.list(None));
    sends(Arc::clone(&store));
}
