//! Loads that need particular stores: several stores at once, kinds of URLs, proxies, runtimes,
//! memory limits.

use std::sync::Arc;
use std::time::Duration;

use tload::{Checkpoint, ErrorKind, LoadOptions, Loader, Location, Result, StoreOptions, Tensor};
use tload_testbed::{Azurite, FaultyServer, Nginx, require};

use crate::caching::cached_in;
use crate::fixtures::{
    assert_all, assert_same, even, folder, in_file_order, load, load_local, mixed, options,
};
use crate::sites::{self, BUCKET, azure_options, faulty_at, s3_options};

const PATIENCE: Duration = Duration::from_secs(60);

fn parse(text: &str) -> Location {
    Location::parse(text).expect("a valid URL")
}

/// Returns the engine that reads a file outside of the page cache.
fn engine_of(path: &std::path::Path) -> &'static str {
    tload::internal::probe::evict(path).expect("just written");
    if tload::internal::probe::ring().error.is_none() {
        "uring"
    } else {
        "pread"
    }
}

/// A local file, objects of S3 and one of a web server form one checkpoint.
#[test]
fn checkpoint_spans_files_and_stores() {
    let (folder, s3, web) = (
        folder(),
        Arc::new(FaultyServer::start()),
        FaultyServer::start(),
    );
    let files: Vec<_> = (0..4)
        .map(|at| mixed(&format!("{at}."), at, 12, 300_000))
        .collect();
    let paths: Vec<_> = (0..4)
        .map(|at| {
            let path = folder.path().join(format!("{at}.safetensors"));
            std::fs::write(&path, &files[at]).expect("a temporary folder");
            path
        })
        .collect();
    s3.put("models/a/1.safetensors", &*files[1]);
    web.put("web/2.safetensors", &*files[2]);
    s3.put("models/b/3.safetensors", &*files[3]);
    let [local, a, b, c] = [
        Location::from_path(&paths[0]),
        parse("s3://models/a/1.safetensors"),
        parse(&format!("{}/web/2.safetensors", web.url())),
        parse("s3://models/b/3.safetensors"),
    ];
    let store = s3_options(&s3.url());
    let local_engine = engine_of(&paths[0]);
    for (list, wanted, name) in [
        (
            [&local, &a, &b, &c],
            [0, 1, 2, 3],
            format!("{local_engine} + object"),
        ),
        (
            [&c, &local, &b, &a],
            [3, 0, 2, 1],
            format!("object + {local_engine}"),
        ),
    ] {
        let list: Vec<_> = list.into_iter().cloned().collect();
        let checkpoint = Checkpoint::open_all_with(&list, &store).expect("opens");
        let wanted: Vec<Tensor> = wanted
            .iter()
            .flat_map(|&at: &usize| load_local(&paths[at]))
            .collect();
        let (tensors, report) = load(&checkpoint, in_file_order()).expect("loads");
        assert_same(&tensors, &wanted);
        assert_eq!(report.engine.name, name);
        assert_eq!(
            report.read_bytes,
            report.direct_bytes + report.buffered_bytes + report.remote_bytes
        );
        assert!(report.remote_bytes > 0 && report.remote_bytes < report.read_bytes);
        for lanes in [1, 3] {
            let (tensors, _) =
                load(&checkpoint, options(|it| it.lanes = Some(lanes))).expect("loads");
            let files: Vec<_> = files.iter().map(Vec::as_slice).collect();
            assert_all(&tensors, &files);
        }
    }
    // One of them is missing.
    let list = [local, parse("s3://models/none.safetensors")];
    let error = Checkpoint::open_all_with(&list, &store).expect_err("missing");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
    assert_eq!(error.location(), Some("s3://models/none.safetensors"));
    let twice = [a.clone(), a];
    let error = Checkpoint::open_all_with(&twice, &store).expect_err("listed twice");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{}", error.chain());
}

/// The query of a signed URL is sent with every request, also below a folder, and is never shown.
#[test]
fn signed_urls_keep_their_query() {
    let server = FaultyServer::start();
    let file = even("t", 1, 3, 700_000);
    server.put("signed/model.safetensors", file.clone());
    for (path, query) in [
        (
            "signed/model.safetensors",
            "X-Amz-Signature=hunter2&X-Amz-Date=a%2Fb%2Bc",
        ),
        ("signed", "sig=hunter2&x=1"),
    ] {
        server.forget_requests();
        let location = parse(&format!("{}/{path}?{query}", server.url()));
        let checkpoint = Checkpoint::open_with(&location, sites::options(&[])).expect("opens");
        let extents = options(|it| it.extent_bytes = Some(1 << 16));
        let (tensors, report) = load(&checkpoint, extents).expect("loads");
        assert_all(&tensors, &[&file]);
        let requests = server.requests();
        assert!(requests.len() > 20, "{}", requests.len());
        for request in &requests {
            let signature = request.query.iter().find(|(_, value)| value == "hunter2");
            assert!(
                signature.is_some() && request.query.len() == 2,
                "{request:?}"
            );
        }
        if path.ends_with('s') {
            let date = requests[0].query.iter().any(|(_, value)| value == "a/b+c");
            assert!(date, "{:?}", requests[0].query);
        }
        let shown = format!(
            "{report} {report:?} {checkpoint:?} {}",
            checkpoint.location()
        );
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn every_azure_url_form_loads() {
    let Some(server) = require(Azurite::start()) else {
        return;
    };
    let file = mixed("t", 3, 10, 100_000);
    server
        .put(BUCKET, "a/model.safetensors", &file)
        .expect("the server accepts it");
    let account = server.account();
    for url in [
        format!("az://{BUCKET}/a/model.safetensors"),
        format!("azure://{BUCKET}/a"),
        format!("abfss://{BUCKET}@{account}.dfs.core.windows.net/a/model.safetensors"),
        format!("abfs://{BUCKET}@{account}.dfs.core.windows.net/a"),
    ] {
        let checkpoint = Checkpoint::open_with(parse(&url), azure_options(&server)).expect(&url);
        let (tensors, _) = load(&checkpoint, LoadOptions::default()).expect("loads");
        assert_all(&tensors, &[&file]);
        assert_eq!(checkpoint.location().to_string(), url);
    }
}

/// The bucket in the host's name or in the path, through a proxy: nginx accepts requests for any
/// host.
#[test]
fn bucket_in_host_or_path_loads_through_proxy() {
    let Some(nginx) = require(Nginx::start()) else {
        return;
    };
    let (in_host, in_path) = (even("host", 1, 2, 9000), even("path", 2, 2, 9000));
    nginx.put("a/model.safetensors", &in_host).expect("a file");
    nginx
        .put("models/a/model.safetensors", &in_path)
        .expect("a file");
    for (addressing, file) in [("virtual", &in_host), ("path", &in_path)] {
        let mut store = s3_options("http://s3.invalid");
        store.set("addressing", addressing).expect("an option");
        store.set("proxy", nginx.url()).expect("an option");
        let location = parse("s3://models/a/model.safetensors");
        let checkpoint = Checkpoint::open_with(&location, &store).expect("opens");
        let (tensors, _) = load(&checkpoint, LoadOptions::default()).expect("loads");
        assert_all(&tensors, &[file]);
    }
    // Without the proxy the name does not exist, and an address cannot have a bucket as subdomain.
    for (endpoint, kind) in [
        ("http://s3.invalid", ErrorKind::Remote),
        ("http://127.0.0.1:1", ErrorKind::InvalidRequest),
    ] {
        let mut store = s3_options(endpoint);
        store.set("addressing", "virtual").expect("an option");
        store.set("retries", "0").expect("an option");
        let location = parse("s3://models/a/model.safetensors");
        let error = Checkpoint::open_with(&location, &store).expect_err("unreachable");
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert!(error.hint().is_some(), "{}", error.chain());
    }
}

/// A slow caller stops requests at the memory limit.
#[test]
fn slow_caller_stops_requests_at_memory_limit() {
    let server = Arc::new(FaultyServer::start());
    let site = faulty_at(&server);
    let file = even("t", 1, 60, 500_000);
    site.put("m.safetensors", &file);
    let checkpoint = site.checkpoint("m.safetensors").expect("opens");
    let limit = 4_000_000;
    let slow = options(|it| {
        it.memory_limit = Some(limit);
        it.extent_bytes = Some(1 << 20);
        // The bytes of a hedged request are sent twice.
        it.hedge = Some(false);
    });
    let opened = server.counts().body_bytes;
    let mut stream = Loader::new(checkpoint)
        .options(slow)
        .stream()
        .expect("starts");
    let mut received = 0;
    let mut tensors = Vec::new();
    for tensor in stream.by_ref() {
        let tensor = tensor.expect("loads");
        received += tensor.byte_len();
        tensors.push(tensor);
        if tensors.len() % 8 == 1 {
            // Waits for all bytes that the limit allows.
            assert!(server.wait_for_idle(PATIENCE), "{:?}", server.counts());
        }
        let sent = server.counts().body_bytes - opened;
        assert!(
            sent <= received + limit,
            "{sent} bytes were sent for {received} received"
        );
    }
    let report = stream.report();
    assert!(
        report.memory_peak <= limit && report.memory_limit == limit,
        "{report}"
    );
    assert_all(&tensors, &[&file]);
}

/// Callers inside a runtime of their own may open, load and drop.
#[test]
fn loads_run_inside_async_runtime() {
    let (plain, mut cached, folder) = (sites::faulty(), sites::faulty(), folder());
    cached_in(&mut cached, folder.path());
    let multi = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build();
    let single = tokio::runtime::Builder::new_current_thread().build();
    for (seed, runtime) in [multi, single].into_iter().enumerate() {
        let runtime = runtime.expect("a runtime");
        let file = mixed("t", seed as u64, 20, 100_000);
        for site in [&plain, &cached] {
            site.put("a/m.safetensors", &file);
            runtime.block_on(async {
                let checkpoint = site.checkpoint("a").expect("opens");
                let (tensors, _) = load(&checkpoint, LoadOptions::default()).expect("loads");
                assert_all(&tensors, &[&file]);
                drop(checkpoint);
                // Drops a load half-way.
                let checkpoint = site.checkpoint("a/m.safetensors").expect("opens");
                let mut stream = Loader::new(checkpoint).stream().expect("starts");
                let _ = stream.next();
            });
        }
    }
}

/// One set of options serves all stores of a checkpoint; keys of other stores are ignored.
#[test]
fn options_of_other_stores_are_ignored() {
    let site = sites::faulty_web();
    let file = even("t", 4, 2, 1000);
    site.put("m.safetensors", &file);
    let store = StoreOptions::from_pairs([
        ("environment", "false"),
        ("region", "eu-west-1"),
        ("account", "x"),
        ("header.x-team", "weights"),
    ]);
    let checkpoint = Checkpoint::open_with(
        site.location("m.safetensors"),
        store.expect("valid options"),
    );
    let loaded: Result<Vec<_>> = Loader::new(checkpoint.expect("opens"))
        .stream()
        .expect("starts")
        .collect();
    assert_all(&loaded.expect("loads"), &[&file]);
}
