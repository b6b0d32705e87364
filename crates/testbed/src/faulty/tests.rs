//! Tests with the S3 client of `object_store`. The bytes on the wire are tested in
//! `tests/faulty.rs`.

use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, RetryConfig,
};

use super::{Fault, FaultyServer, Issue, Operation, Rule};

const SIZE: u64 = 1_000_000;

fn body() -> Vec<u8> {
    (0..SIZE)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect()
}

fn server() -> FaultyServer {
    let server = FaultyServer::start();
    server.put("models/a/one.safetensors", body());
    server.put("models/a/two words & more", "2");
    server.put("models/b", "3");
    server
}

fn client(server: &FaultyServer) -> AmazonS3Builder {
    let mut retry = RetryConfig {
        max_retries: 2,
        ..RetryConfig::default()
    };
    retry.backoff.init_backoff = Duration::from_millis(1);
    AmazonS3Builder::new()
        .with_endpoint(server.url())
        .with_bucket_name("models")
        .with_region("us-east-1")
        .with_allow_http(true)
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_retry(retry)
}

fn signed(server: &FaultyServer) -> impl ObjectStore {
    client(server)
        .with_access_key_id("KEY1")
        .with_secret_access_key("s")
        .build()
        .unwrap()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

#[test]
fn client_reads_and_lists_objects() {
    let server = server();
    server.list_page_entries(1);
    server.require_access_key(Some("KEY1"));
    let (store, one) = (signed(&server), Path::from("a/one.safetensors"));
    run(async {
        let meta = store.head(&one).await.unwrap();
        assert_eq!((meta.size, meta.version), (SIZE, None));
        for (range, wanted) in [
            (GetRange::Bounded(5..500_000), 5..500_000),
            (GetRange::Offset(999_000), 999_000..SIZE),
            (GetRange::Suffix(7), SIZE - 7..SIZE),
        ] {
            let options = GetOptions {
                if_match: meta.e_tag.clone(),
                ..GetOptions::default()
            };
            let answer = store
                .get_opts(&one, options.with_range(Some(range)))
                .await
                .unwrap();
            assert_eq!(
                (answer.meta.size, answer.range.clone()),
                (SIZE, wanted.clone())
            );
            let wanted =
                usize::try_from(wanted.start).unwrap()..usize::try_from(wanted.end).unwrap();
            assert_eq!(answer.bytes().await.unwrap(), body()[wanted]);
        }
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        let names: Vec<_> = listed
            .iter()
            .map(|meta| meta.location.to_string())
            .collect();
        assert_eq!(names, ["a/one.safetensors", "a/two words & more", "b"]);
        assert_eq!(listed[0].e_tag, meta.e_tag);
        assert_eq!(listed[0].last_modified, meta.last_modified);
        let listed = store.list_with_delimiter(None).await.unwrap();
        assert_eq!(
            (listed.common_prefixes, listed.objects.len()),
            (vec![Path::from("a")], 1)
        );
        let spaced = store.get(&Path::from("a/two words & more")).await.unwrap();
        assert_eq!(spaced.bytes().await.unwrap(), "2");
    });
    assert!(server.counts().requests >= 3 + 4 + 2);
}

#[test]
fn client_maps_server_errors() {
    let server = server();
    let (store, one) = (signed(&server), Path::from("a/one.safetensors"));
    run(async {
        assert!(matches!(
            store.get(&Path::from("none")).await,
            Err(Error::NotFound { .. })
        ));
        let options = GetOptions {
            if_match: Some("\"x\"".to_owned()),
            ..GetOptions::default()
        };
        assert!(matches!(
            store.get_opts(&one, options).await,
            Err(Error::Precondition { .. })
        ));
        server.require_access_key(Some("KEY2"));
        assert!(matches!(
            store.get(&one).await,
            Err(Error::PermissionDenied { .. })
        ));
        server.require_access_key(None);
        // Two refusals are retried, three are not.
        server.fault(Rule::times(2, Fault::status(503, "SlowDown")));
        store.head(&one).await.unwrap();
        server.fault(Rule::times(3, Fault::status(503, "SlowDown")));
        let error = store.head(&one).await.unwrap_err().to_string();
        assert!(error.contains("503"), "{error}");
        server.fault(Rule::once(Fault::wrong_region("eu-west-9")));
        assert!(
            store
                .head(&one)
                .await
                .unwrap_err()
                .to_string()
                .contains("redirect")
        );
    });
}

#[test]
fn client_resumes_broken_body() {
    for fault in [Fault::CutBody(300_000), Fault::ResetBody(30_000)] {
        let server = server();
        server.fault(Rule::once(fault).on(Operation::Get));
        let (store, one) = (signed(&server), Path::from("a/one.safetensors"));
        run(async {
            let answer = store.get(&one).await.unwrap();
            assert_eq!(answer.bytes().await.unwrap(), body());
        });
        let requests = server.requests();
        assert_eq!(requests.len(), 2);
        assert!(
            requests[1]
                .range
                .as_ref()
                .is_some_and(|range| range.start > 0)
        );
    }
}

#[test]
fn client_refreshes_expired_credentials() {
    let server = server();
    server.require_access_key(Some("KEY1"));
    server.issue_credentials([
        Issue::keys("KEY1", Duration::ZERO),
        Issue::keys("KEY2", Duration::from_secs(3600)),
    ]);
    let token = tempfile::NamedTempFile::new().unwrap();
    let store = client(&server)
        .with_config(
            AmazonS3ConfigKey::ContainerCredentialsFullUri,
            server.credentials_url(),
        )
        .with_config(
            AmazonS3ConfigKey::ContainerAuthorizationTokenFile,
            token.path().to_str().unwrap(),
        )
        .build()
        .unwrap();
    run(async {
        let b = Path::from("b");
        store.head(&b).await.unwrap();
        server.require_access_key(Some("KEY2"));
        store.head(&b).await.unwrap();
        store.head(&b).await.unwrap();
    });
    let fetched = |request: &&super::Request| request.operation == Operation::Credentials;
    let requests = server.requests();
    assert_eq!(requests.iter().filter(fetched).count(), 2);
    let token = &requests.last().unwrap().headers["x-amz-security-token"];
    assert_eq!(token, "token-of-KEY2");
}
