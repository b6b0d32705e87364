//! Responses of real servers to wrong credentials and for missing objects.

use tload::{Checkpoint, Error, ErrorKind, Location, StoreOptions};
use tload_testbed::{Azurite, FakeGcs, Moto, S3Server, S3sFs, Versitygw, require};

use crate::fixtures::even;
use crate::sites::{azure_options, gcs_options, options, s3_options};
use ErrorKind::{InvalidRequest, NotFound, PermissionDenied};

fn refusal(url: &str, store: &StoreOptions) -> Error {
    let location = Location::parse(url).expect("a valid URL");
    let error = Checkpoint::open_with(&location, store).expect_err(url);
    assert_eq!(error.location(), Some(url), "{}", error.chain());
    assert!(error.hint().is_some(), "{}", error.chain());
    let request = error.request().expect("a request");
    assert_eq!(request.attempts, 1, "{}", error.chain());
    error
}

fn expect(error: &Error, kind: ErrorKind, status: u16, code: Option<&str>) {
    assert_eq!(error.kind(), kind, "{}", error.chain());
    let request = error.request().expect("a request");
    assert_eq!(request.status, Some(status), "{}", error.chain());
    assert_eq!(request.code.as_deref(), code, "{}", error.chain());
}

/// Returns the options with another value for one of them.
fn but(store: &StoreOptions, key: &str, value: &str) -> StoreOptions {
    store.clone().with(key, value).expect("an option")
}

/// Asserts the errors that all S3 servers have in common.
fn s3_refuses<Kind>(server: &S3Server<Kind>, no_bucket: &str) -> StoreOptions {
    let file = even("t", 1, 1, 10);
    server
        .put("models", "a/m.safetensors", &file)
        .expect("the server accepts it");
    let store = s3_options(&server.endpoint());
    let missing = refusal("s3://models/none.safetensors", &store);
    expect(&missing, NotFound, 404, Some("NoSuchKey"));
    let missing = refusal("s3://nowhere/m.safetensors", &store);
    expect(&missing, NotFound, 404, Some(no_bucket));
    assert!(missing.chain().contains("bucket"), "{missing}");
    let missing = refusal("s3://nowhere/folder", &store);
    expect(&missing, NotFound, 404, Some("NoSuchBucket"));
    store
}

#[test]
fn versitygw_denials_are_classified() {
    let Some(server) = require(Versitygw::start()) else {
        return;
    };
    let store = s3_refuses(&server, "NoSuchBucket");
    for url in ["s3://models/a/m.safetensors", "s3://models/a"] {
        let error = refusal(url, &but(&store, "secret_access_key", "hunter2"));
        expect(&error, PermissionDenied, 403, Some("SignatureDoesNotMatch"));
        assert!(
            error.hint().expect("checked").contains("secret"),
            "{}",
            error.chain()
        );
        let error = refusal(url, &but(&store, "access_key_id", "unknown"));
        // A code of its own, and a status that contradicts it.
        expect(&error, PermissionDenied, 404, Some("XAdminUserNotFound"));
        let shown = error
            .request()
            .and_then(|request| request.credentials.as_deref());
        assert_eq!(shown, Some("option access_key_id"));
    }
    let anonymous = options(&[("endpoint", &server.endpoint()), ("anonymous", "true")]);
    let error = refusal("s3://models/a/m.safetensors", &anonymous);
    assert_eq!(error.kind(), PermissionDenied, "{}", error.chain());
    assert!(
        error.hint().expect("checked").contains("credentials"),
        "{}",
        error.chain()
    );
    // Signed for a region that the server is not in.
    let error = refusal(
        "s3://models/a/m.safetensors",
        &but(&store, "region", "eu-west-9"),
    );
    assert_eq!(error.kind(), InvalidRequest, "{}", error.chain());
    assert!(
        error.hint().expect("checked").contains("region"),
        "{}",
        error.chain()
    );
}

#[test]
fn s3s_fs_denials_are_classified() {
    let Some(server) = require(S3sFs::start()) else {
        return;
    };
    let store = s3_refuses(&server, "NoSuchKey");
    let error = refusal(
        "s3://models/a/m.safetensors",
        &but(&store, "secret_access_key", "hunter2"),
    );
    expect(&error, PermissionDenied, 403, Some("SignatureDoesNotMatch"));
}

#[test]
fn moto_denials_are_classified() {
    let Some(server) = require(Moto::start()) else {
        return;
    };
    let store = s3_refuses(&server, "NoSuchBucket");
    server.refuse_all().expect("the server accepts the setting");
    let error = refusal("s3://models/a/m.safetensors", &store);
    expect(&error, PermissionDenied, 403, Some("InvalidAccessKeyId"));
}

#[test]
fn azurite_denials_are_classified() {
    let Some(server) = require(Azurite::start()) else {
        return;
    };
    let store = azure_options(&server);
    server
        .put("models", "a/m.safetensors", &even("t", 1, 1, 10))
        .expect("the server accepts it");
    expect(
        &refusal("az://models/none.safetensors", &store),
        NotFound,
        404,
        Some("BlobNotFound"),
    );
    for url in ["az://nowhere/m.safetensors", "az://nowhere/folder"] {
        let error = refusal(url, &store);
        expect(&error, NotFound, 404, Some("ContainerNotFound"));
        assert!(error.message().contains("container"), "{error}");
    }
    for url in ["az://models/a/m.safetensors", "az://models/a"] {
        let error = refusal(url, &but(&store, "account_key", "aHVudGVyMg=="));
        assert_eq!(error.kind(), PermissionDenied, "{}", error.chain());
        assert!(
            !error.chain().contains("hunter2") && !error.chain().contains("aHVudGVyMg"),
            "{}",
            error.chain()
        );
    }
    let anonymous = options(&[
        ("endpoint", &server.endpoint()),
        ("account", server.account()),
        ("anonymous", "true"),
    ]);
    let error = refusal("az://models/a/m.safetensors", &anonymous);
    assert!(
        matches!(error.kind(), PermissionDenied | NotFound),
        "{}",
        error.chain()
    );
    let incomplete = options(&[("endpoint", &server.endpoint()), ("anonymous", "true")]);
    let location = Location::parse("az://models/a/m.safetensors").expect("a valid URL");
    let error = Checkpoint::open_with(&location, &incomplete).expect_err("the account is missing");
    assert_eq!(error.kind(), InvalidRequest, "{}", error.chain());
    assert!(
        error.hint().expect("a hint").contains("account"),
        "{}",
        error.chain()
    );
}

#[test]
fn fake_gcs_denials_are_classified() {
    let Some(server) = require(FakeGcs::start()) else {
        return;
    };
    let store = gcs_options(&server);
    server
        .put("models", "a/m.safetensors", &even("t", 1, 1, 10))
        .expect("the server accepts it");
    for url in ["gs://models/none.safetensors", "gs://nowhere/m.safetensors"] {
        let error = refusal(url, &store);
        assert_eq!(error.kind(), NotFound, "{}", error.chain());
    }
    let incomplete = options(&[("endpoint", &server.base_url())]);
    let location = Location::parse("gs://models/a/m.safetensors").expect("a valid URL");
    let error =
        Checkpoint::open_with(&location, &incomplete).expect_err("the credentials are missing");
    assert_eq!(error.kind(), PermissionDenied, "{}", error.chain());
    assert!(
        error.hint().expect("a hint").contains("anonymous=true"),
        "{}",
        error.chain()
    );
}
