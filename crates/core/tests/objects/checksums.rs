//! Checksums that stores report for their objects, from real stores and from a simulated one; and
//! whole checkpoints in them, verified with these checksums or with a manifest beside them.

#![expect(clippy::panic, reason = "a test that cannot go on fails there")]

use std::sync::Arc;

use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::{ObjectStoreExt, PutPayload};
use tload::verify::{
    Digest, Expectation, FileOutcome, MANIFEST_NAME, ManifestTarget, Verification, Verify,
    VerifyOptions, VerifyReport, find,
};
use tload::{Checkpoint, ErrorKind, Loader, Location, Result};
use tload_testbed::{
    Fault, FaultyServer, Hub, Moto, Operation, Rule, S3Server, S3sFs, Versitygw, require,
};

use crate::fixtures::{even, folder, index, options};
use crate::growing_timeouts::until_it_stalls;
use crate::sites::{self, BUCKET, Site, faulty_at, on_sites, s3_options};

const KEY: &str = "m/model.safetensors";

/// Returns the expectation that a load of the object would be compared with.
fn expected(checkpoint: &Checkpoint) -> Expectation {
    let mut found = find(checkpoint, &Verify::Auto).expect("looks up");
    assert_eq!(found.len(), 1);
    found.remove(0)
}

#[track_caller]
fn known(expectation: Expectation) -> (String, Digest) {
    match expectation {
        Expectation::Of(expected) => (
            expected.by,
            expected.whole.expect("a digest of the whole object"),
        ),
        Expectation::Nothing { why } => panic!("nothing: {why}"),
    }
}

#[track_caller]
fn unknown(expectation: Expectation) -> String {
    match expectation {
        Expectation::Of(expected) => panic!("{expected:?}"),
        Expectation::Nothing { why } => why,
    }
}

/// Returns the checksums of some bytes, as tload computes them for a file on disk.
fn computed(bytes: &[u8]) -> [Digest; 2] {
    let folder = folder();
    std::fs::write(folder.path().join("model.safetensors"), bytes).expect("a file");
    let path = folder.path().join(MANIFEST_NAME);
    recorded(&Location::from_path(folder.path()), &path);
    #[expect(clippy::disallowed_methods, reason = "a test reads files")]
    let text = std::fs::read(path).expect("written");
    let manifest = tload::verify::Manifest::parse(&text).expect("written by tload");
    let file = &manifest.files["model.safetensors"];
    [file.crc64nvme, file.sha256]
}

fn recorded(location: &Location, path: &std::path::Path) {
    let mut options = VerifyOptions::default();
    options.write = Some(ManifestTarget::Path(path.to_owned()));
    let report = Verification::new(location).options(options).run();
    assert!(report.expect("reads").written.is_some());
}

fn verified(site: &Site, path: &str) -> Result<VerifyReport> {
    let verification = Verification::new(site.location(path));
    verification.opening(site.options.clone()).run()
}

fn base64(digest: &Digest) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(digest.bytes())
}

#[test]
fn whole_object_checksum_is_requested_once_and_compared() {
    let server = Arc::new(FaultyServer::start());
    let site = faulty_at(&server);
    let file = even("t", 1, 20, 300_000);
    site.put(KEY, &file);
    let [crc, sha] = computed(&file);
    let path = format!("{BUCKET}/{KEY}");
    let (crc64, sha256) = (base64(&crc), base64(&sha));
    let kind = ("x-amz-checksum-type", "FULL_OBJECT");
    let stated = [
        ("x-amz-checksum-crc64nvme", crc64.as_str()),
        ("x-amz-checksum-sha256", sha256.as_str()),
        kind,
    ];
    server.state_checksums(&path, &stated);
    let checkpoint = site.checkpoint(KEY).expect("opens");
    server.forget_requests();
    let (by, digest) = known(expected(&checkpoint));
    assert_eq!(
        (by.as_str(), digest),
        ("the object's own CRC-64/NVME and SHA-256", crc)
    );
    let heads: Vec<_> = server
        .requests()
        .into_iter()
        .filter(|request| request.operation == Operation::Head)
        .collect();
    let [head] = &heads[..] else {
        panic!("{heads:?}")
    };
    assert_eq!(head.headers["x-amz-checksum-mode"], "ENABLED");
    assert!(
        head.headers["authorization"].contains("x-amz-checksum-mode"),
        "the header is signed"
    );
    assert!(head.headers.contains_key("if-match") && head.range.is_none());

    let report = verified(&site, KEY).expect("reads");
    assert!(report.ok(), "{:?}", report.error());
    assert_eq!(
        report.files[0].verified_by,
        ["the object's own CRC-64/NVME and SHA-256"]
    );
    let mut bad = file.clone();
    bad[2_000_000] ^= 1;
    site.put(KEY, &bad);
    let error = verified(&site, KEY)
        .expect("reads")
        .error()
        .expect("differs");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.range(), Some(0..file.len() as u64));
    let wanted =
        format!("expected {crc} (the object's own CRC-64/NVME and SHA-256), found crc64nvme:");
    assert!(error.message().starts_with(&wanted), "{error}");

    // One wrong checksum of two is an error.
    site.put(KEY, &file);
    let wrong = base64(&computed(&bad)[1]);
    server.state_checksums(&path, &[stated[0], ("x-amz-checksum-sha256", &wrong), kind]);
    let error = verified(&site, KEY)
        .expect("reads")
        .error()
        .expect("differs");
    assert!(error.message().contains("found sha256:"), "{error}");

    let error = find(&checkpoint, &Verify::Auto).expect_err("the object was replaced");
    assert_eq!(error.kind(), ErrorKind::Changed);
}

#[test]
fn composite_and_missing_checksums_are_not_compared() {
    let server = Arc::new(FaultyServer::start());
    let site = faulty_at(&server);
    site.put(KEY, &even("t", 1, 2, 1000));
    let checkpoint = site.checkpoint(KEY).expect("opens");
    let why = unknown(expected(&checkpoint));
    assert!(
        why.contains("the store provides no checksum of it"),
        "{why}"
    );
    let composite = [
        ("x-amz-checksum-crc32c", "4waSgw==-3"),
        ("x-amz-checksum-type", "COMPOSITE"),
    ];
    server.state_checksums(&format!("{BUCKET}/{KEY}"), &composite);
    let why = unknown(expected(&checkpoint));
    assert!(why.contains("covers the parts of its upload"), "{why}");
    let report = verified(&site, KEY).expect("reads");
    assert_eq!(report.files[0].outcome, FileOutcome::Unverified);
    assert_eq!(
        report.error().expect("nothing was compared").kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn denied_checksum_request_is_no_error_if_optional() {
    let server = Arc::new(FaultyServer::start());
    let site = faulty_at(&server);
    site.put(KEY, &even("t", 1, 2, 1000));
    let checkpoint = site.checkpoint(KEY).expect("opens");
    let refused = Fault::status(403, "AccessDenied");
    server.fault(Rule::always(refused).on(Operation::Head));
    let why = unknown(expected(&checkpoint));
    assert!(why.contains("its checksum could not be requested"), "{why}");
}

/// A store without checksums differs from a store that does not answer: if a checksum is required,
/// the error is the request's.
#[test]
fn failed_checksum_request_is_error_if_required() {
    let server = Arc::new(FaultyServer::start());
    let mut site = faulty_at(&server);
    site.options.set("retries", "0").expect("an option");
    let file = even("t", 1, 2, 1000);
    site.put(KEY, &file);
    let checkpoint = site.checkpoint(KEY).expect("opens");
    for (status, code, kind) in [
        (503, "SlowDown", ErrorKind::Remote),
        (403, "AccessDenied", ErrorKind::PermissionDenied),
    ] {
        let refused = Fault::status(status, code);
        server.fault(Rule::always(refused).on(Operation::Head));
        for choice in [Verify::Require, Verify::Sha256(None)] {
            let error = find(&checkpoint, &choice).expect_err("the store does not answer");
            assert_eq!(error.kind(), kind, "{}", error.chain());
            let request = error.request().expect("an error of a request");
            assert_eq!(request.status, Some(status));
            assert!(error.location().expect("names the object").ends_with(KEY));
        }
        let why = unknown(expected(&checkpoint));
        assert!(why.contains("its checksum could not be requested"), "{why}");
        server.clear_faults();
    }
    // With a manifest, the store is not asked.
    let local = folder();
    std::fs::write(local.path().join("model.safetensors"), &file).expect("a file");
    let path = local.path().join(MANIFEST_NAME);
    recorded(&Location::from_path(local.path()), &path);
    #[expect(clippy::disallowed_methods, reason = "a test reads files")]
    let manifest = std::fs::read(&path).expect("written");
    site.put(&format!("m/{MANIFEST_NAME}"), &manifest);
    server.fault(Rule::always(Fault::status(503, "SlowDown")).on(Operation::Head));
    for choice in [Verify::Require, Verify::Sha256(None)] {
        let found = find(&checkpoint, &choice).expect("the manifest has digests");
        assert!(matches!(&found[..], [Expectation::Of(_)]), "{found:?}");
    }
}

/// Only the reported algorithms count: a CRC is not accepted where SHA-256 is required.
#[test]
fn crc_is_not_accepted_where_sha_256_is_required() {
    let server = Arc::new(FaultyServer::start());
    let site = faulty_at(&server);
    let file = even("t", 1, 2, 1000);
    site.put(KEY, &file);
    let [crc, sha] = computed(&file).map(|digest| base64(&digest));
    let path = format!("{BUCKET}/{KEY}");
    let kind = ("x-amz-checksum-type", "FULL_OBJECT");
    let of_crc = ("x-amz-checksum-crc64nvme", crc.as_str());
    server.state_checksums(&path, &[of_crc, kind]);
    let checkpoint = site.checkpoint(KEY).expect("opens");
    let strong = || {
        let mut found = find(&checkpoint, &Verify::Sha256(None)).expect("looks up");
        found.remove(0)
    };
    let why = unknown(strong());
    let wanted = "the object's own CRC-64/NVME has no SHA-256 of it; ";
    assert!(why.starts_with(wanted), "{why}");
    let of_sha = ("x-amz-checksum-sha256", sha.as_str());
    server.state_checksums(&path, &[of_crc, of_sha, kind]);
    assert_eq!(known(strong()).1, computed(&file)[1]);
}

/// A store that does not answer delays a load at most until its timeout.
#[test]
fn checksum_request_ends_at_load_timeout() {
    let server = Arc::new(FaultyServer::start());
    let site = faulty_at(&server);
    site.put(KEY, &even("t", 1, 2, 1000));
    let checkpoint = site.checkpoint(KEY).expect("opens");
    server.fault(Rule::always(Fault::StallHeaders).on(Operation::Head));
    until_it_stalls(|timeout| {
        let loader = Loader::new(checkpoint.clone()).options(options(|it| {
            it.verify = Verify::Auto;
            it.timeout = Some(timeout);
        }));
        let error = loader.stream().expect_err("the store does not answer");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
        // The request may have been sent in time.
        assert!(error.location().expect("names the object").ends_with(KEY));
        (server.counts().faulted > 0).then_some(())
    });
    server.clear_faults();
}

/// Creates a bucket and returns a store whose uploads have this checksum.
fn uploads<Kind>(server: &S3Server<Kind>, checksum: Checksum) -> AmazonS3 {
    server
        .put(BUCKET, "bucket", b"is made")
        .expect("the server accepts it");
    AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_allow_http(true)
        .with_region(server.region())
        .with_bucket_name(BUCKET)
        .with_access_key_id(server.access_key())
        .with_secret_access_key(server.secret_key())
        .with_checksum_algorithm(checksum)
        .build()
        .expect("a store")
}

/// Uploads an object with a checksum and returns what the server reports for it.
fn said_by<Kind>(server: &S3Server<Kind>, checksum: Checksum, file: &[u8]) -> Expectation {
    let store = uploads(server, checksum);
    let payload = PutPayload::from(file.to_vec());
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(store.put(&KEY.into(), payload))
        .expect("the server accepts it");
    let location = Location::parse(&format!("s3://{BUCKET}/{KEY}")).expect("a URL");
    let options = s3_options(&server.endpoint());
    let checkpoint = Checkpoint::open_with(&location, &options).expect("opens");
    expected(&checkpoint)
}

#[test]
fn versitygw_reports_uploaded_checksum() {
    let Some(server) = require(Versitygw::start()) else {
        return;
    };
    let file = even("t", 1, 20, 300_000);
    let [crc, sha] = computed(&file);
    let (by, digest) = known(said_by(&server, Checksum::CRC64NVME, &file));
    assert_eq!((by.as_str(), digest), ("the object's own CRC-64/NVME", crc));
    let (by, digest) = known(said_by(&server, Checksum::SHA256, &file));
    assert_eq!((by.as_str(), digest), ("the object's own SHA-256", sha));
}

#[test]
fn s3s_fs_reports_uploaded_checksum() {
    let Some(server) = require(S3sFs::start()) else {
        return;
    };
    let file = even("t", 1, 2, 3000);
    let (by, digest) = known(said_by(&server, Checksum::CRC64NVME, &file));
    assert_eq!(by, "the object's own CRC-64/NVME");
    assert_eq!(digest, computed(&file)[0]);
}

#[test]
fn moto_without_checksum_is_explained() {
    let Some(server) = require(Moto::start()) else {
        return;
    };
    let why = unknown(said_by(&server, Checksum::SHA256, &even("t", 1, 2, 3000)));
    assert!(
        why.contains("the store provides no checksum of it"),
        "{why}"
    );
}

#[test]
fn google_reports_crc_of_every_object() {
    let Some(site) = sites::fake_gcs() else {
        return;
    };
    let file = even("t", 1, 20, 300_000);
    site.put(KEY, &file);
    let (by, digest) = known(expected(&site.checkpoint(KEY).expect("opens")));
    assert_eq!(by, "the object's own CRC-32C");
    let report = verified(&site, KEY).expect("reads");
    assert!(report.ok(), "{digest}: {:?}", report.error());
}

#[test]
fn hub_reports_sha_256_of_large_files() {
    let (hub, file) = (Hub::start(), even("t", 1, 20, 30_000));
    let index = index(&[("t0".to_owned(), "a.safetensors")]);
    let files: [(&str, &[u8]); 2] = [
        ("a.safetensors", &file),
        ("model.safetensors.index.json", &index),
    ];
    hub.commit("org/name", "main", &files);
    let options = sites::options(&[("endpoint", &hub.url())]);
    let location = Location::parse("hf://org/name").expect("a location");
    let checkpoint = Checkpoint::open_with(&location, &options).expect("opens");
    assert_eq!(
        known(expected(&checkpoint)),
        ("the hub".to_owned(), computed(&file)[1])
    );
    let report = Verification::new(&location)
        .opening(options.clone())
        .run()
        .expect("reads");
    let outcomes: Vec<_> = report.files.iter().map(|file| file.outcome).collect();
    assert_eq!(outcomes, [FileOutcome::Matches, FileOutcome::Unverified]);
    assert!(report.files[1].silent.join(" ").contains("git's SHA-1"));
    assert!(report.ok(), "an index has only git's hash");
    hub.be_terse();
    let checkpoint = Checkpoint::open_with(&location, &options).expect("opens");
    let why = unknown(expected(&checkpoint));
    assert!(why.contains("the hub provides no digest of it"), "{why}");
}

/// A manifest in the store, beside the shards and their index, is used in every kind of store.
fn recorded_checkpoints(site: &Site) {
    let shards = [even("a", 1, 20, 30_000), even("b", 2, 20, 300_000)];
    let placed: Vec<_> = ["a", "b"]
        .iter()
        .flat_map(|prefix| (0..20).map(move |at| (format!("{prefix}{at}"), *prefix)))
        .map(|(tensor, prefix)| {
            (
                tensor,
                if prefix == "a" {
                    "a 1.safetensors"
                } else {
                    "b.safetensors"
                },
            )
        })
        .collect();
    let index = index(&placed);
    let files = [
        ("a 1.safetensors", &shards[0]),
        ("b.safetensors", &shards[1]),
        ("model.safetensors.index.json", &index),
    ];
    let local = folder();
    for (name, bytes) in files {
        std::fs::write(local.path().join(name), bytes).expect("a file");
        site.put(&format!("m/{name}"), bytes);
    }
    let path = local.path().join(MANIFEST_NAME);
    recorded(&Location::from_path(local.path()), &path);
    #[expect(clippy::disallowed_methods, reason = "a test reads files")]
    let manifest = std::fs::read(&path).expect("written");
    site.put(&format!("m/{MANIFEST_NAME}"), &manifest);
    let report = verified(site, "m").expect("reads");
    assert!(report.ok(), "{:?}", report.error());
    for file in &report.files {
        assert_eq!(file.outcome, FileOutcome::Matches, "{}", file.name);
        assert!(
            file.verified_by[0].starts_with("manifest "),
            "{:?}",
            file.verified_by
        );
    }
    let mut bad = shards[1].clone();
    *bad.last_mut().expect("bytes") ^= 1;
    site.put("m/b.safetensors", &bad);
    let report = verified(site, "m").expect("reads");
    let error = report.error().expect("a bit is flipped");
    assert_eq!(
        (error.kind(), error.tensor()),
        (ErrorKind::Corrupt, Some("b19"))
    );
    assert_eq!(report.files[0].outcome, FileOutcome::Matches);
    site.put("m/b.safetensors", &shards[1]);
    for mistyped in ["mm", "m/c.safetensors"] {
        let error = verified(site, mistyped).expect_err("there is no such object");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
    }
    manifests_elsewhere(site, &path);
}

/// A manifest from another place is equivalent; a store cannot be written to.
fn manifests_elsewhere(site: &Site, path: &std::path::Path) {
    let mut options = VerifyOptions::default();
    options.manifest = Some(Location::from_path(path));
    let verification = Verification::new(site.location("m")).options(options);
    assert!(
        verification
            .opening(site.options.clone())
            .run()
            .expect("reads")
            .ok()
    );
    let mut options = VerifyOptions::default();
    options.write = Some(ManifestTarget::Beside);
    let verification = Verification::new(site.location("m")).options(options);
    let error = verification
        .opening(site.options.clone())
        .run()
        .expect_err("is not a local folder");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert!(error.hint().expect("a hint").contains("--write PATH"));
}

on_sites!(recorded_checkpoints: faulty, faulty_web, versitygw, s3s_fs, fake_gcs, azurite, nginx, nginx_redirect, registry);
