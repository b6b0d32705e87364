//! Clients of the servers under test, and their assertions.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use object_store::http::{HttpBuilder, HttpStore};
use object_store::path::Path;
use object_store::{Certificate, ClientOptions, Error, GetOptions, ObjectStore, ObjectStoreExt};

/// Returns 300 000 bytes, of which all aligned four-byte words differ.
pub(crate) fn content() -> Vec<u8> {
    (0..75_000_u32).flat_map(u32::to_le_bytes).collect()
}

/// Reads some bytes from the middle of an object.
pub(crate) fn range(store: &impl ObjectStore, key: &str) -> Result<Vec<u8>, Error> {
    wait(store.get_range(&path(key), 100_001..200_002)).map(|bytes| bytes.to_vec())
}

/// Asserts that the store holds [`content`] at `key` and returns a range of it.
pub(crate) fn assert_served(store: &impl ObjectStore, key: &str) {
    let found = range(store, key).expect("a range");
    assert!(found == content()[100_001..200_002], "other bytes");
    let found = wait(store.head(&path(key))).expect("a head");
    assert_eq!(found.size, 300_000);
    assert!(found.e_tag.is_some(), "no entity tag");
}

/// Asserts that the store refuses to read `key` on the condition that it has another entity tag.
pub(crate) fn assert_checks_condition(store: &impl ObjectStore, key: &str) {
    let options = GetOptions {
        if_match: Some("\"another\"".to_owned()),
        ..GetOptions::default()
    };
    let error = wait(store.get_opts(&path(key), options)).expect_err("another tag");
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
}

/// Returns a client for plain HTTP or HTTPS.
pub(crate) fn web(url: String, options: ClientOptions) -> HttpStore {
    HttpBuilder::new()
        .with_url(url)
        .with_client_options(options.with_allow_http(true))
        .with_retry(object_store::RetryConfig {
            max_retries: 0,
            ..object_store::RetryConfig::default()
        })
        .build()
        .expect("a client")
}

/// Returns options of a client that trusts the certificate authority in `file`.
pub(crate) fn trusting(file: &std::path::Path) -> ClientOptions {
    let pem = std::fs::read_to_string(file).expect("the file is there");
    let certificate = Certificate::from_pem(pem.as_bytes()).expect("it is a certificate");
    ClientOptions::new().with_root_certificate(certificate)
}

/// Asserts that no server listens at `address`, now or soon.
pub(crate) fn assert_gone(address: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < deadline, "{address} still answers");
        tload_testbed::pause_between_looks();
    }
}

pub(crate) fn path(key: &str) -> Path {
    Path::parse(key).expect("a key")
}

pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}
