//! Failures below HTTP: names, ports, certificates, silence, slowness.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tload::{Checkpoint, Error, ErrorKind, LoadOptions, Loader, Location, Result, StoreOptions};
use tload_testbed::{
    Fault, FaultyServer, Nginx, Proxy, Rule, Stream, Toxiproxy, Versitygw, require,
};

use crate::alone;
use crate::fixtures::{assert_all, even, load, options};
use crate::growing_timeouts::until_it_stalls;
use crate::sites::{self, Site, faulty_at, s3_options};

fn open(url: &str, store: &StoreOptions) -> Result<Checkpoint> {
    Checkpoint::open_with(Location::parse(url).expect("a valid URL"), store)
}

/// Returns options with these pairs and one retry.
fn impatient(pairs: &[(&str, &str)]) -> StoreOptions {
    let mut store = sites::options(&[
        ("retries", "1"),
        ("read_timeout", "30"),
        ("connect_timeout", "30"),
    ]);
    for (key, value) in pairs {
        store.set(key, *value).expect("an option");
    }
    store
}

fn expect(error: &Error, kind: ErrorKind, attempts: u32, says: &str) {
    assert_eq!(error.kind(), kind, "{}", error.chain());
    let request = error.request().expect("a request");
    assert_eq!(
        (request.attempts, request.status),
        (attempts, None),
        "{}",
        error.chain()
    );
    let hint = error.hint().unwrap_or_default();
    assert!(
        format!("{error} {hint}").contains(says),
        "{}",
        error.chain()
    );
    assert!(!hint.is_empty(), "{}", error.chain());
}

#[test]
fn unknown_host_is_reported() {
    for url in [
        "http://host.invalid/m.safetensors",
        "https://host.invalid:8443/a",
    ] {
        let error = open(url, &impatient(&[])).expect_err("no such host");
        expect(&error, ErrorKind::Remote, 2, "host.invalid");
    }
    let store = impatient(&[("endpoint", "http://s3.invalid:81"), ("anonymous", "true")]);
    let error = open("s3://models/m", &store).expect_err("no such host");
    expect(&error, ErrorKind::Remote, 2, "s3.invalid");
}

/// A port without a listener is retried only a few times.
#[test]
fn refused_connection_is_retried_few_times() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let url = format!("http://{address}/m.safetensors");
    let error = open(&url, &impatient(&[])).expect_err("refused");
    expect(&error, ErrorKind::Remote, 2, "refuses connections");
    assert_eq!(error.errno(), Some(libc_econnrefused()));
    // Four attempts rather than the eight of other failures, unless `retries` is set.
    let error = open(&url, &sites::options(&[("connect_timeout", "30")])).expect_err("refused");
    expect(&error, ErrorKind::Remote, 4, "refuses connections");
}

/// Returns the system's own number, so that the test needs no crate for it.
fn libc_econnrefused() -> i32 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let error = std::net::TcpStream::connect(address).expect_err("no listener");
    error.raw_os_error().expect("an error of the system")
}

#[test]
fn untrusted_certificate_is_rejected() {
    let Some(nginx) = require(Nginx::start()) else {
        return;
    };
    let file = even("t", 1, 2, 1000);
    nginx.put("m.safetensors", &file).expect("a file");
    let url = format!("{}/m.safetensors", nginx.tls_url());
    let error = open(&url, &impatient(&[])).expect_err("not trusted");
    expect(&error, ErrorKind::Remote, 1, "ca_file");
    // The certificate has a different name.
    let ca_file = nginx.ca_file().to_str().expect("a path");
    let elsewhere = url.replace("127.0.0.1", "127.0.0.2");
    let error =
        open(&elsewhere, &impatient(&[("ca_file", ca_file)])).expect_err("refused or a wrong name");
    assert_eq!(error.kind(), ErrorKind::Remote, "{}", error.chain());
    for trusting in [("ca_file", ca_file), ("tls_verify", "false")] {
        let checkpoint = open(&url, &impatient(&[trusting])).expect("trusted");
        assert_all(
            &load(&checkpoint, LoadOptions::default()).expect("loads").0,
            &[&file],
        );
    }
    let error = open(&url, &impatient(&[("ca_file", "/none.pem")])).expect_err("no such file");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
    assert_eq!(error.location(), Some("/none.pem"));

    // TLS to a port without it, and the other way round.
    let plain = nginx.url().replace("http:", "https:");
    let error = open(&format!("{plain}/m.safetensors"), &impatient(&[])).expect_err("no TLS there");
    assert_eq!(error.kind(), ErrorKind::Remote, "{}", error.chain());
    assert!(error.hint().is_some(), "{}", error.chain());
    let tls = nginx.tls_url().replace("https:", "http:");
    let error = open(&format!("{tls}/m.safetensors"), &impatient(&[])).expect_err("TLS there");
    assert_eq!(
        error.request().expect("a request").status,
        Some(400),
        "{}",
        error.chain()
    );
    assert!(error.hint().is_some(), "{}", error.chain());
}

#[test]
fn untrusted_certificate_is_rejected_for_s3() {
    let Some(server) = require(Versitygw::start_tls()) else {
        return;
    };
    let mut store = s3_options(&server.endpoint());
    let error = open("s3://models/m.safetensors", &store).expect_err("not trusted");
    expect(&error, ErrorKind::Remote, 1, "ca_file");
    store.set("tls_verify", "false").expect("an option");
    let error = open("s3://models/m.safetensors", &store).expect_err("the object is missing");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
}

/// A server that fails on command, behind a proxy that does so too.
struct Bench {
    server: Arc<FaultyServer>,
    proxy: Proxy,
    site: Site,
    file: Vec<u8>,
}

impl Bench {
    fn new(read_timeout: &str) -> Option<Self> {
        let toxiproxy = require(Toxiproxy::start())?;
        let server = Arc::new(FaultyServer::start());
        let address = server.url().replace("http://", "");
        let proxy = toxiproxy.proxy(&address).expect("a proxy");
        let mut site = faulty_at(&server);
        let endpoint = format!("http://{}", proxy.address());
        for (key, value) in [
            ("endpoint", &*endpoint),
            ("read_timeout", read_timeout),
            ("connect_timeout", "20"),
        ] {
            site.options.set(key, value).expect("an option");
        }
        let file = even("t", 1, 4, 2_000_000);
        site.put("m.safetensors", &file);
        Some(Self {
            server,
            proxy,
            site,
            file,
        })
    }

    fn toxic(&self, kind: &str, attributes: &serde_json::Value) {
        self.proxy
            .toxic(kind, attributes, Stream::Downstream, 1.0)
            .expect("a toxic");
    }

    fn open(&self) -> Checkpoint {
        self.site.checkpoint("m.safetensors").expect("opens")
    }
}

/// No bytes arrive any more: the load ends by its own timeout, or by the read timeout of the store.
#[test]
fn silent_connection_times_out() {
    let Some(bench) = Bench::new("1") else {
        return;
    };
    let checkpoint = bench.open();
    bench.toxic("timeout", &json!({"timeout": 0}));
    until_it_stalls(|timeout| {
        let asked = bench.server.counts().requests;
        let limited = options(|it| it.timeout = Some(timeout));
        let error = load(&checkpoint, limited).expect_err("no bytes arrive");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
        (bench.server.counts().requests > asked).then_some(())
    });
    let error = load(&checkpoint, options(|it| it.retries = Some(1))).expect_err("no bytes arrive");
    expect(&error, ErrorKind::TimedOut, 2, "read_timeout");
    let mut site = bench.site;
    site.options.set("retries", "1").expect("an option");
    let error = site
        .checkpoint("m.safetensors")
        .expect_err("no bytes arrive");
    expect(&error, ErrorKind::TimedOut, 2, "read_timeout");
    bench.proxy.clear().expect("no toxics");
    assert_all(
        &load(&checkpoint, LoadOptions::default()).expect("loads").0,
        &[&bench.file],
    );
}

/// A slow connection is not a silent one.
#[test]
fn slow_connection_does_not_time_out() {
    // Long enough that a busy machine does not appear silent either.
    let Some(bench) = Bench::new("6") else {
        return;
    };
    let checkpoint = bench.open();
    bench.toxic("latency", &json!({"latency": 100, "jitter": 50}));
    bench.toxic("bandwidth", &json!({"rate": 4000}));
    let (tensors, report) = load(&checkpoint, LoadOptions::default()).expect("loads");
    assert_all(&tensors, &[&bench.file]);
    assert_eq!(report.retries, 0);
    bench.proxy.clear().expect("no toxics");

    // Longer than the read timeout in total, but with shorter pauses.
    let pause = Duration::from_millis(200);
    bench.server.fault(
        Rule::times(
            3,
            Fault::Drip {
                bytes: 50_000,
                pause,
            },
        )
        .from_byte(1),
    );
    let (tensors, report) =
        load(&checkpoint, options(|it| it.extent_bytes = Some(2 << 20))).expect("loads");
    assert_all(&tensors, &[&bench.file]);
    assert_eq!(report.retries, 0);
}

/// Connections that break repeatedly, each after a while.
#[test]
fn breaking_connections_are_retried() {
    let Some(bench) = Bench::new("60") else {
        return;
    };
    let checkpoint = bench.open();
    bench.toxic("limit_data", &json!({"bytes": 700_000}));
    let few = options(|it| it.depth = Some(4));
    let (tensors, report) = load(&checkpoint, few).expect("loads");
    assert_all(&tensors, &[&bench.file]);
    assert!(report.retries > 0, "{report}");
}

/// The server disappears during a load, for good or for a moment.
#[test]
fn disappearing_server_fails_load() {
    let Some(bench) = Bench::new("60") else {
        return;
    };
    let checkpoint = bench.open();
    for retries in [0, 2] {
        bench
            .server
            .fault(Rule::always(Fault::StallBody(100_000)).from_byte(1));
        let options = options(|it| it.retries = Some(retries));
        let mut stream = Loader::new(checkpoint.clone())
            .options(options)
            .stream()
            .expect("starts");
        assert!(bench.server.wait_for_in_flight(1, Duration::from_secs(60)));
        bench.proxy.enable(false).expect("closed");
        let error = stream
            .by_ref()
            .find_map(Result::err)
            .expect("the server is gone");
        assert_eq!(error.kind(), ErrorKind::Remote, "{}", error.chain());
        assert!(error.hint().is_some(), "{}", error.chain());
        bench.proxy.enable(true).expect("open again");
        bench.server.clear_faults();
    }
    assert_all(
        &load(&checkpoint, LoadOptions::default()).expect("loads").0,
        &[&bench.file],
    );
}

/// Each refusal has a hint of its own; only the 503 is retried.
#[test]
fn web_server_errors_have_specific_hints() {
    let Some(nginx) = require(Nginx::start()) else {
        return;
    };
    // A server without ranges may send a smaller file whole.
    nginx
        .put("m.safetensors", &even("t", 1, 2, 9 << 20))
        .expect("a file");
    let url = |path: &str| format!("{}{path}/m.safetensors", nginx.url());
    for (path, kind, status, says) in [
        ("/noranges", ErrorKind::Unsupported, 200, "Range"),
        ("/forbidden", ErrorKind::PermissionDenied, 403, "signed URL"),
        ("/basic", ErrorKind::PermissionDenied, 401, "user:password"),
        ("/unavailable", ErrorKind::Remote, 503, "later"),
    ] {
        let error = open(&url(path), &impatient(&[])).expect_err(path);
        assert_eq!(error.kind(), kind, "{}", error.chain());
        let request = error.request().expect("a request");
        let attempts = 1 + u32::from(status == 503);
        assert_eq!(
            (request.status, request.attempts),
            (Some(status), attempts),
            "{path}"
        );
        let hint = error.hint().expect("a hint");
        assert!(hint.contains(says), "{}", error.chain());
    }
    let wrong = url("/basic").replace("http://", "http://test:wrong@");
    let error = open(&wrong, &impatient(&[])).expect_err("wrong password");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(!error.chain().contains("wrong"), "{}", error.chain());
}

/// An unreachable proxy is not reported as an unreachable store.
#[test]
fn unreachable_proxy_is_reported() {
    let store = impatient(&[("proxy", "http://user:hunter2@127.0.0.1:1")]);
    let error = open("http://host.invalid/m.safetensors", &store).expect_err("no proxy");
    assert_eq!(error.kind(), ErrorKind::Remote, "{}", error.chain());
    assert_eq!(
        error.message(),
        "the proxy http://127.0.0.1:1 (option proxy) refuses connections"
    );
    let hint = error.hint().expect("says what to do");
    assert!(hint.contains("add host.invalid to NO_PROXY"), "{hint}");
    assert!(!error.chain().contains("hunter2"), "{}", error.chain());
}

/// Certificates are read for the first request.
#[test]
fn missing_certificates_of_the_system_fail_the_first_request() {
    const NAME: &str = "network::missing_certificates_of_the_system_fail_the_first_request";
    if alone::variable("SSL_CERT_FILE").as_deref() != Some("/nowhere") {
        let output = alone::run(NAME, &[("SSL_CERT_FILE", "/nowhere"), ("SSL_CERT_DIR", "")]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        return;
    }
    let error = open("http://127.0.0.1:9/m.safetensors", &impatient(&[])).expect_err("no TLS");
    expect(&error, ErrorKind::InvalidRequest, 1, "No CA certificates");
    assert!(error.hint().is_some_and(|hint| hint.contains("ca_file")));
}
