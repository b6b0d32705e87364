//! Each server starts, stores objects, returns ranges of them and exits when dropped.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::signer::{HeaderMap, HeaderName, HeaderValue};
use object_store::{ClientOptions, Error, GetOptions, ObjectStore, ObjectStoreExt};
use serde_json::json;
use tload_testbed::{
    Azurite, FakeGcs, Guard, Moto, Nginx, Registry, S3Server, S3sFs, Stream, Toxiproxy, Versitygw,
    require,
};

use crate::client::{
    assert_checks_condition, assert_gone, assert_served, content, path, range, trusting, wait, web,
};

const KEY: &str = "folder/ä b%.bin";

/// Asserts the behaviour that the three S3 servers share.
fn assert_serves_s3<Kind>(server: S3Server<Kind>) {
    server.put("bucket", KEY, &content()).expect("put");
    let store = server.store("bucket").expect("a client");
    assert_served(&store, KEY);
    server.delete("bucket", KEY).expect("deleted");
    let error = range(&store, KEY).expect_err("gone");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let address = server.address().to_owned();
    drop(server);
    assert_gone(&address);
}

#[test]
fn versitygw() {
    let Some(server) = require(Versitygw::start()) else {
        return;
    };
    server.put("bucket", "object", &content()).expect("put");
    let store = server.store("bucket").expect("a client");
    assert_checks_condition(&store, "object");
    let stranger = object_store::aws::AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_allow_http(true)
        .with_access_key_id(server.access_key())
        .with_secret_access_key("wrong")
        .with_region(server.region())
        .with_bucket_name("bucket")
        .build()
        .expect("a client");
    let error = range(&stranger, "object").expect_err("a wrong key");
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
    assert!(!format!("{server:?}").contains(server.secret_key()));
    assert_serves_s3(server);
}

#[test]
fn versitygw_over_tls() {
    let Some(server) = require(Versitygw::start_tls()) else {
        return;
    };
    assert!(server.endpoint().starts_with("https://127.0.0.1:"));
    assert!(server.ca_file().is_some());
    assert_serves_s3(server);
}

/// Uploads a file that is larger than one request, and not a multiple of its size.
#[test]
fn multipart_upload_stores_whole_file() {
    let Some(server) = require(Versitygw::start()) else {
        return;
    };
    let file = tempfile::NamedTempFile::new().expect("a file");
    let bytes: Vec<u8> = (0..9_000_001_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(file.path(), &bytes).expect("written");
    server
        .put_file("bucket", "large", file.path())
        .expect("put");
    let store = server.store("bucket").expect("a client");
    let found = wait(async { store.get(&path("large")).await?.bytes().await });
    assert!(found.expect("the object") == bytes, "other bytes");
}

#[test]
fn s3s_fs() {
    let Some(server) = require(S3sFs::start()) else {
        return;
    };
    assert_serves_s3(server);
}

#[test]
fn moto() {
    let Some(server) = require(Moto::start()) else {
        return;
    };
    assert_serves_s3(server);
}

#[test]
fn moto_refuse_all_denies_reads() {
    let Some(server) = require(Moto::start()) else {
        return;
    };
    server.put("bucket", "object", &content()).expect("put");
    let store = server.store("bucket").expect("a client");
    assert_served(&store, "object");
    server.refuse_all().expect("refuses");
    let error = range(&store, "object").expect_err("refused");
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
}

fn gcs(base_url: &str) -> impl ObjectStore {
    GoogleCloudStorageBuilder::new()
        .with_base_url(base_url)
        .with_skip_signature(true)
        .with_bucket_name("bucket")
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .build()
        .expect("a client")
}

#[test]
fn fake_gcs() {
    let Some(server) = require(FakeGcs::start()) else {
        return;
    };
    server.put("bucket", KEY, &content()).expect("put");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), content()).expect("written");
    server
        .put_file("bucket", "file", file.path())
        .expect("put as a file");
    let store = gcs(&server.base_url());
    assert_served(&store, KEY);
    assert_served(&store, "file");
    let options = GetOptions {
        version: Some("1".to_owned()),
        ..GetOptions::default()
    };
    let error = wait(store.get_opts(&path(KEY), options)).expect_err("no such generation");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    server.delete("bucket", KEY).expect("deleted");
    let error = range(&store, KEY).expect_err("gone");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let address = server.address().to_owned();
    drop(server);
    assert_gone(&address);
}

#[test]
fn fake_gcs_behind_a_proxy() {
    let Some((server, toxiproxy)) = require(FakeGcs::start()).zip(require(Toxiproxy::start()))
    else {
        return;
    };
    server.put("bucket", KEY, &content()).expect("put");
    let proxy = toxiproxy.proxy(server.address()).expect("a proxy");
    assert_served(&gcs(&format!("http://{}", proxy.address())), KEY);
}

#[test]
fn azurite() {
    let Some(server) = require(Azurite::start()) else {
        return;
    };
    server.put("container", KEY, &content()).expect("put");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), content()).expect("written");
    server
        .put_file("container", "file", file.path())
        .expect("put as a file");
    let store = server.store("container").expect("a client");
    assert_served(&store, KEY);
    assert_served(&store, "file");
    assert_checks_condition(&store, KEY);
    server.delete("container", KEY).expect("deleted");
    let error = range(&store, KEY).expect_err("gone");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let address = server.address().to_owned();
    drop(server);
    assert_gone(&address);
}

#[test]
fn nginx() {
    let Some(server) = require(Nginx::start()) else {
        return;
    };
    server.put("folder/object", &content()).expect("put");
    let store = |place: &str| web(server.url() + place, ClientOptions::new());
    assert_served(&store(""), "folder/object");
    assert_checks_condition(&store(""), "folder/object");
    assert_served(&store("/redirect"), "folder/object");
    assert_served(&store("/slow"), "folder/object");
    let error = |place| range(&store(place), "folder/object").expect_err(place);
    let denied = error("/forbidden");
    assert!(matches!(denied, Error::PermissionDenied { .. }), "{denied}");
    let whole = error("/noranges");
    assert!(matches!(whole, Error::NotSupported { .. }), "{whole}");
    let unavailable = format!("{:?}", error("/unavailable"));
    assert!(unavailable.contains("503"), "{unavailable}");
    let unknown = error("/basic");
    assert!(
        matches!(unknown, Error::Unauthenticated { .. }),
        "{unknown}"
    );
    let account = format!("{}:{}", server.user(), server.password());
    let account = format!("Basic {}", BASE64_STANDARD.encode(account));
    let account = HeaderValue::try_from(account).expect("a header");
    let headers = HeaderMap::from_iter([(HeaderName::from_static("authorization"), account)]);
    let options = ClientOptions::new().with_default_headers(headers);
    assert_served(&web(server.url() + "/basic", options), "folder/object");

    let address = server.address();
    drop(server);
    assert_gone(&address);
}

#[test]
fn nginx_over_tls() {
    let Some(server) = require(Nginx::start()) else {
        return;
    };
    server.put("object", &content()).expect("put");
    let options = trusting(server.ca_file());
    assert_served(&web(server.tls_url(), options), "object");
    range(&web(server.tls_url(), ClientOptions::new()), "object").expect_err("not trusted");
}

#[test]
fn toxiproxy() {
    let Some((server, toxiproxy)) = require(Nginx::start()).zip(require(Toxiproxy::start())) else {
        return;
    };
    server.put("object", &content()).expect("put");
    let proxy = toxiproxy.proxy(&server.address()).expect("a proxy");
    let other = toxiproxy.proxy(&server.address()).expect("another");
    assert_ne!(proxy.address(), other.address());
    let store = web(format!("http://{}", proxy.address()), ClientOptions::new());
    assert_served(&store, "object");

    let fifty_thousand = json!({ "bytes": 50_000 });
    let slow = json!({ "latency": 1 });
    proxy
        .toxic("limit_data", &fifty_thousand, Stream::Downstream, 1.0)
        .expect("a toxic");
    proxy
        .toxic("latency", &slow, Stream::Upstream, 0.5)
        .expect("one more");
    range(&store, "object").expect_err("cut off");
    proxy.clear().expect("no toxics");
    assert_served(&store, "object");

    proxy.enable(false).expect("closed");
    range(&store, "object").expect_err("refused");
    proxy.enable(true).expect("open");
    assert_served(&store, "object");

    let address = proxy.address().to_owned();
    drop(proxy);
    assert_gone(&address);
    let store = web(format!("http://{}", other.address()), ClientOptions::new());
    // A proxy keeps its toxiproxy alive.
    drop(toxiproxy);
    assert_served(&store, "object");
    let address = other.address().to_owned();
    drop(other);
    assert_gone(&address);
}

#[test]
fn registry_guards_artifacts() {
    let realm = "http://127.0.0.1:1/token";
    for guard in [Guard::Open, Guard::Password, Guard::Token(realm)] {
        let Some(registry) = require(Registry::start_with(guard)) else {
            return;
        };
        let layer = registry.layer("a/b", "x/y", &serde_json::json!({}), b"blob");
        let layer = layer.expect("the blob is stored");
        registry.push("a/b", "v1", &[layer]).expect("pushed");
        let tags = format!("http://{}/v2/a/b/tags", registry.address());
        let store = web(tags, ClientOptions::new());
        let found = wait(async { store.get(&path("list")).await?.bytes().await });
        if let Guard::Open = guard {
            assert!(found.expect("tags").ends_with(b"[\"v1\"]}\n"));
        } else {
            let error = found.expect_err("no credentials");
            assert!(matches!(error, Error::Unauthenticated { .. }), "{error}");
        }
    }
}
