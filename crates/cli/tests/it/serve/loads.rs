//! Loads, copies and verifications of a checkpoint that `tload serve` serves.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tempfile::TempDir;
use tload::verify::{Algorithm, Digest};

use super::descriptors::ask_with_few;
use super::{PATIENCE, Reply, Server, curl, send};
use crate::{run, secrets, stderr, succeed};

/// Returns a folder with a checkpoint in `model`, and the digest of its tensors.
fn checkpoint() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let model = model.to_str().unwrap();
    succeed(["synth", model, "--size", "8MiB", "--shards", "3"]);
    succeed(["verify", model, "--write"]);
    let digest = digest(model, &[]);
    (folder, digest)
}

fn digest(location: &str, options: &[&str]) -> String {
    let arguments = [&["load", location, "--digest", "--json"], options].concat();
    let report: Value = serde_json::from_str(&succeed(arguments)).unwrap();
    report["digest"].as_str().unwrap().to_owned()
}

#[test]
fn checkpoint_is_loaded_copied_and_verified() {
    let (folder, wanted) = checkpoint();
    let server = Server::start(folder.path(), &[]);
    let model = format!("{}/model", server.url);
    assert_eq!(digest(&model, &[]), wanted);
    assert_eq!(digest(&format!("{model}/"), &["--verify=require"]), wanted);
    for command in ["load", "ls"] {
        let refused = run([command, &format!("{}/modle", server.url)]);
        assert_eq!(refused.status.code(), Some(3));
        let refused = stderr(&refused);
        assert!(refused.contains("did you mean \"model\"?"), "{refused}");
    }
    let copy = folder.path().join("copy");
    succeed(["cp", &*model, copy.to_str().unwrap()]);
    assert_eq!(digest(copy.to_str().unwrap(), &[]), wanted);
    succeed(["verify", &*model]);
    assert!(server.metric("tload_serve_sent_bytes_total") > 3 * (8 << 20));
    assert_eq!(server.metric("tload_serve_changed_files_total"), 0);
}

#[test]
fn token_is_required_and_never_shown() {
    let (folder, wanted) = checkpoint();
    let file = folder.path().join("token");
    fs::write(&file, "hunter2token\n").unwrap();
    let model = folder.path().join("model");
    let server = Server::start(&model, &["-v", "--token-file", file.to_str().unwrap()]);
    for path in [
        "/",
        "/metrics",
        "/gone",
        "/model.safetensors.index.json",
        "/../..",
    ] {
        for headers in [
            &[][..],
            &["Authorization: Bearer hunter2toke"],
            &["Authorization: Basic hunter2token"],
            &[
                "Authorization: Bearer hunter2token",
                "Authorization: Bearer a",
            ],
        ] {
            let reply = server.ask("GET", path, headers);
            assert_eq!(reply.status, 401, "{path} {headers:?}");
            assert_eq!(reply.header("www-authenticate"), "Bearer realm=\"tload\"");
        }
    }
    let right = ["Authorization: Bearer hunter2token"];
    assert_eq!(server.ask("GET", "/metrics", &right).status, 200);
    let url = format!("{}/model.safetensors.index.json", server.url);
    let options = ["--store", "header.authorization=Bearer hunter2token"];
    assert_eq!(digest(&url, &options), wanted);
    let refused = run(["load", &url, "--store", "header.authorization=Bearer wrong"]);
    assert_eq!(refused.status.code(), Some(5), "{}", stderr(&refused));
    let output = server.stop();
    secrets::assert_none("the server", &output);
    assert!(
        stderr(&output).contains("GET /metrics: 200"),
        "{}",
        stderr(&output)
    );
}

/// The origin of a relay is reached as any other store is: variables name proxy and certificates.
#[test]
fn origin_is_reached_through_proxy_and_with_bundle_of_variables() {
    let (folder, _) = checkpoint();
    let certificate = tload_testbed::Certificate::make(folder.path());
    let Some(certificate) = tload_testbed::require_named("openssl", certificate) else {
        return;
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (public, key) = (text(&certificate.server), text(&certificate.key));
    let arguments = ["--tls-cert", &public, "--tls-key", &key];
    let origin = Server::start(&folder.path().join("model"), &arguments);
    let proxy = tload_testbed::ForwardProxy::start();
    let variables = [
        ("CURL_CA_BUNDLE", &*text(&certificate.authority)),
        ("https_proxy", &proxy.address()),
    ];
    let relay = Server::start_with(Path::new(&origin.url), &[], &variables);
    let reply = relay.ask("GET", "/model.safetensors.index.json", &[]);
    assert_eq!(reply.status, 200);
    let asked = proxy.asked();
    let authority = origin.url.trim_start_matches("https://");
    assert!(
        !asked.is_empty() && asked.iter().all(|it| it == authority),
        "{asked:?}"
    );
}

#[test]
fn checkpoint_is_loaded_over_tls() {
    let (folder, wanted) = checkpoint();
    let certificate = tload_testbed::Certificate::make(folder.path());
    let Some(certificate) = tload_testbed::require_named("openssl", certificate) else {
        return;
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (public, key) = (text(&certificate.server), text(&certificate.key));
    let arguments = ["--tls-cert", &public, "--tls-key", &key];
    let server = Server::start(&folder.path().join("model"), &arguments);
    assert!(
        server.url.starts_with("https://127.0.0.1:"),
        "{}",
        server.url
    );
    let authority = format!("ca_file={}", text(&certificate.authority));
    assert_eq!(digest(&server.url, &["--store", &authority]), wanted);
    let refused = run(["load", &*server.url, "--store", "retries=0"]);
    assert!(!refused.status.success(), "the authority is unknown");

    let index = format!("{}/model.safetensors.index.json", server.url);
    let whole = fs::read(folder.path().join("model/model.safetensors.index.json")).unwrap();
    let authority = text(&certificate.authority);
    let Some(range) = curl(&["--cacert", &authority, "-r", "2-9", &index]) else {
        return;
    };
    assert_eq!(range.stdout, whole[2..10], "{}", stderr(&range));
    // A client without TLS.
    let mut plain = server.connect();
    send(&mut plain, "GET", "/", &[]);
    let mut reply = Vec::new();
    drop(plain.read_to_end(&mut reply));
    assert!(!reply.starts_with(b"HTTP"), "{reply:?}");

    // A key of another certificate, and files that are none.
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let other = tload_testbed::Certificate::make(&other).unwrap();
    let index = text(&folder.path().join("model/model.safetensors.index.json"));
    for (arguments, wanted) in [
        (
            ["--tls-cert", &public, "--tls-key", &text(&other.key)],
            "the certificate cannot be used",
        ),
        (
            ["--tls-cert", &index, "--tls-key", &key],
            "contains no valid certificate",
        ),
        (
            ["--tls-cert", &public, "--tls-key", &public],
            "contains no valid private key",
        ),
    ] {
        let model = text(&folder.path().join("model"));
        let all = [
            &["serve", &*model, "--listen", "127.0.0.1:0"],
            &arguments[..],
        ]
        .concat();
        let output = run(all);
        assert_eq!(output.status.code(), Some(2), "{wanted}");
        assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    }
}

/// Returns how many bytes of files a server has sent.
fn sent(server: &Server) -> u64 {
    server.metric("tload_serve_sent_bytes_total")
}

#[test]
fn objects_are_passed_on_and_served_from_the_cache() {
    let (folder, wanted) = checkpoint();
    let origin = Server::start(folder.path(), &[]);
    let url = format!("{}/model", origin.url);
    let cache = folder.path().join("cache");
    let cache = ["--cache-dir", cache.to_str().unwrap()];
    let middle = Server::start(Path::new(&url), &cache);
    assert_eq!(digest(&middle.url, &["--verify=require"]), wanted);
    let cached = "tload_cache_bytes_total{event=\"written\"}";
    // Its disk may be slower than the client.
    while middle.metric(cached) < 8 << 20 {}
    assert_eq!(origin.metric(cached), 0);
    let before = sent(&origin);
    assert_eq!(digest(&middle.url, &[]), wanted);
    assert!(
        sent(&origin) < before + (1 << 20),
        "the second time from the cache"
    );
    let name = "model-00001-of-00003.safetensors";
    let path = format!("/{name}");
    // Ranges and conditions are those of the origin's version.
    let reply = middle.ask("GET", &path, &["Range: bytes=5-9"]);
    assert_eq!((reply.status, reply.body.len()), (206, 5));
    let tag = reply.headers["etag"].clone();
    assert_eq!(
        origin.ask("HEAD", &format!("/model{path}"), &[]).headers["etag"],
        tag
    );
    let other = middle.ask("GET", &path, &["If-Match: \"other\""]);
    assert_eq!(other.status, 412);
    for path in ["/", "/gone", "/../model", &format!("{path}/")] {
        assert_eq!(middle.get(path).status, 404, "{path}");
    }
    // Without the origin: an error of the gateway, and the cache alone.
    let authority = origin.url.split("//").nth(1).unwrap().to_owned();
    drop(origin);
    let serving = Server::start(Path::new("--cache"), &cache);
    let model = format!("{}/http/{authority}/model", serving.url);
    assert_eq!(digest(&model, &[]), wanted);
    let listed = |path: &str| {
        let list: Value = serde_json::from_str(&serving.get(path).text()).expect("JSON");
        let entries = list["entries"].as_array().expect("entries").iter();
        let names = entries.map(|it| it["name"].as_str().expect("a name").to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(listed("/?format=json"), ["http"]);
    assert_eq!(listed("/http/?format=json"), [&*authority]);
    let files = listed(&format!("/http/{authority}/model/?format=json"));
    assert!(
        files.iter().any(|file| file == name) && files.len() == 5,
        "{files:?}"
    );
    for path in [
        format!("/http/{authority}/model/gone"),
        format!("/http/{authority}"),
        "/file/etc/passwd".to_owned(),
    ] {
        assert_eq!(serving.get(&path).status, 404, "{path}");
    }
}

/// Returns the digest that the manifest of a directory states of a file, as a header has it.
fn stated(directory: &Path, name: &str) -> String {
    let manifest = fs::read_to_string(directory.join("tload-manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let digits = manifest["files"][name]["sha256"].as_str().unwrap();
    let digest = Digest::from_hex(Algorithm::Sha256, digits).unwrap();
    format!("sha-256=:{}:", digest.to_base64())
}

#[test]
fn digests_of_manifests_are_stated() {
    let (folder, _) = checkpoint();
    let model = folder.path().join("model");
    let name = "model-00001-of-00003.safetensors";
    let wanted = stated(&model, name);
    let origin = Server::start(&model, &[]);
    // A relay, without a cache and without a manifest of its own.
    let relay = Server::start(Path::new(&origin.url), &[]);
    for server in [&origin, &relay] {
        for (method, range, status) in [
            ("GET", "bytes=5-9", 206),
            ("HEAD", "", 200),
            ("GET", "bytes=999999999-", 416),
        ] {
            let range = format!("Range: {range}");
            let reply = server.ask(method, &format!("/{name}"), &[&*range]);
            assert_eq!(reply.status, status);
            let found = reply.headers.get("repr-digest");
            assert_eq!(found, (status != 416).then_some(&wanted), "{range}");
        }
    }
    let list = |server: &Server| {
        let list: Value = serde_json::from_str(&server.get("/?format=json").text()).unwrap();
        let entries = list["entries"].as_array().unwrap().iter();
        let digests = entries.map(|it| (it["name"].as_str().unwrap().to_owned(), it.clone()));
        digests.collect::<std::collections::BTreeMap<_, _>>()
    };
    assert_eq!(list(&origin)[name]["sha256"].as_str().unwrap().len(), 64);
    assert!(list(&origin)["tload-manifest.json"]["sha256"].is_null());
    // A file that took the place of another is not that of the manifest, whatever its time.
    let other = "model-00002-of-00003.safetensors";
    let times = fs::metadata(model.join(other)).unwrap().modified().unwrap();
    fs::copy(model.join(other), folder.path().join("copy")).unwrap();
    let copy = fs::File::options()
        .append(true)
        .open(folder.path().join("copy"));
    copy.unwrap().set_modified(times).unwrap();
    fs::rename(folder.path().join("copy"), model.join(other)).unwrap();
    let reply = origin.ask("HEAD", &format!("/{other}"), &[]);
    assert_eq!(reply.headers.get("repr-digest"), None);
    // Nor is one that was written to since.
    let file = fs::File::options()
        .append(true)
        .open(model.join(name))
        .unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(60))
        .unwrap();
    let reply = origin.ask("HEAD", &format!("/{name}"), &[]);
    assert_eq!(reply.headers.get("repr-digest"), None);
    assert!(list(&origin)[name]["sha256"].is_null());
    // `chmod` of the manifest does not make it younger than the bytes of a file.
    let third = "model-00003-of-00003.safetensors";
    let head = |server: &Server| server.ask("HEAD", &format!("/{third}"), &[]);
    assert_eq!(head(&origin).header("repr-digest"), stated(&model, third));
    let file = fs::File::options().write(true).open(model.join(third));
    file.unwrap().write_all_at(b"changed", 100).unwrap();
    let manifest = model.join("tload-manifest.json");
    fs::set_permissions(&manifest, Permissions::from_mode(0o640)).unwrap();
    let later = Server::start(&model, &[]);
    for server in [&origin, &later] {
        assert_eq!(head(server).headers.get("repr-digest"), None);
        assert!(list(server)[third]["sha256"].is_null());
    }
}

/// Its length, and its first and last bytes, are those of the origin's file.
#[test]
fn mirror_that_states_another_digest_is_dropped_and_named() {
    let (folder, wanted) = checkpoint();
    let [model, copy] = ["model", "copy"].map(|name| folder.path().join(name));
    let name = "model-00001-of-00003.safetensors";
    fs::create_dir(&copy).unwrap();
    for file in fs::read_dir(&model).unwrap().flatten() {
        fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    let changed = fs::File::options()
        .write(true)
        .open(copy.join(name))
        .unwrap();
    changed.write_all_at(&[0x55; 64], 1 << 20).unwrap();
    succeed(["verify", copy.to_str().unwrap(), "--write", "--force"]);
    assert_ne!(stated(&copy, name), stated(&model, name));
    let [origin, mirror] = [&model, &copy].map(|it| Server::start(it, &[]));
    let store = format!("mirrors={}", mirror.url);
    let begun = Instant::now();
    // A load does not wait for its mirrors.
    let failure = loop {
        assert!(begun.elapsed() < PATIENCE, "the mirror is used");
        let arguments = ["load", &origin.url, "--digest", "--json", "--store", &store];
        let report: Value = serde_json::from_str(&succeed(arguments)).unwrap();
        assert_eq!(report["digest"], wanted);
        let mirror = &report["report"]["mirrors"][0];
        if mirror["is_dropped"] == true {
            break mirror["failure"].as_str().unwrap().to_owned();
        }
    };
    assert!(
        failure.contains("SHA-256") && failure.contains(name),
        "{failure}"
    );
}

/// A server with a cache in front of an origin, and one that serves the cache alone.
struct Cached {
    directory: PathBuf,
    authority: String,
    middle: Server,
    serving: Server,
}

impl Cached {
    fn start(folder: &TempDir, origin: &Server) -> Self {
        let directory = folder.path().join("cache");
        let cache = ["--cache-dir", directory.to_str().unwrap()];
        Self {
            authority: origin.url.split("//").nth(1).unwrap().to_owned(),
            middle: Server::start(Path::new(&origin.url), &cache),
            serving: Server::start(Path::new("--cache"), &cache),
            directory,
        }
    }

    /// Returns the path of a file of the origin in the cache.
    fn path(&self, file: &str) -> String {
        format!("/http/{}/{file}", self.authority)
    }

    /// Reads a range of a file of the origin, and waits until the cache has it.
    fn fetch(&self, file: &str, range: &str) -> Reply {
        let range = format!("Range: bytes={range}");
        let reply = self.middle.ask("GET", &format!("/{file}"), &[&*range]);
        // Written behind the response.
        let (begun, path) = (Instant::now(), self.path(file));
        while self.serving.ask("GET", &path, &[&*range]).status != 206 {
            assert!(begun.elapsed() < PATIENCE, "{file} is not cached");
        }
        reply
    }

    /// Returns the directories of the cache's entries.
    fn entries(&self) -> Vec<PathBuf> {
        let list = |path: &Path| fs::read_dir(path).unwrap().flatten().map(|it| it.path());
        let groups = list(&self.directory.join("v1"));
        let entries = groups.flat_map(|group| list(&group).collect::<Vec<_>>());
        entries.filter(|path| path.is_dir()).collect()
    }
}

/// A range that goes from what is there to what is not would end early.
#[test]
fn cache_alone_refuses_ranges_that_it_does_not_have() {
    let (folder, _) = checkpoint();
    let origin = Server::start(folder.path(), &[]);
    let cached = Cached::start(&folder, &origin);
    let file = "model/model-00001-of-00003.safetensors";
    // The first tile.
    let reply = cached.fetch(file, "5-9");
    assert_eq!(reply.status, 206);
    let (serving, path) = (&cached.serving, cached.path(file));
    let ask = |range: &str| {
        let range = format!("Range: bytes={range}");
        serving.ask("GET", &path, &[&*range])
    };
    assert_eq!(ask("5-9").body, reply.body);
    assert_eq!(
        (ask("0-65535").status, ask("0-65535").body.len()),
        (206, 65_536)
    );
    for range in ["65535-65536", "0-", "-5", "100000-100001"] {
        assert_eq!(ask(range).status, 404, "{range}");
    }
    assert_eq!(serving.get(&path).status, 404);
    assert_eq!(serving.ask("HEAD", &path, &[]).status, 404);
    assert_eq!(serving.metric("tload_serve_failed_reads_total"), 0);
}

/// A mirror that answers with 404 is not asked for the file again.
#[test]
fn cache_alone_tells_failures_from_what_it_does_not_have() {
    let (folder, _) = checkpoint();
    let origin = Server::start(folder.path(), &[]);
    let cached = Cached::start(&folder, &origin);
    let file = "model/model-00001-of-00003.safetensors";
    cached.fetch(file, "5-9");
    let (serving, path) = (&cached.serving, cached.path(file));
    let range = ["Range: bytes=5-9"];
    let (reply, refused) = ask_with_few(serving, &path, &range);
    assert_eq!(reply.status, 206);
    assert!(refused > 2);
    let ask = || serving.ask("GET", &path, &range);
    for entry in cached.entries() {
        fs::remove_file(entry.join("stamps")).unwrap();
        fs::create_dir(entry.join("stamps")).unwrap();
    }
    assert_eq!(ask().status, 500);
    for entry in cached.entries() {
        fs::remove_dir_all(entry).unwrap();
    }
    assert_eq!(ask().status, 404);
}

#[test]
fn list_of_a_cache_is_whole_or_refused() {
    let (folder, _) = checkpoint();
    let origin = Server::start(folder.path(), &[]);
    let cached = Cached::start(&folder, &origin);
    let names = ["1", "2", "3"].map(|shard| format!("model-0000{shard}-of-00003.safetensors"));
    for name in &names {
        cached.fetch(&format!("model/{name}"), "0-");
    }
    let list = cached.path("model/?format=json");
    let (reply, refused) = ask_with_few(&cached.serving, &list, &[]);
    let text = reply.text();
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
    assert_eq!(reply.status, 200);
    assert!(refused > 2);
}

/// The files of which a cache has only a part say nothing about the others.
#[test]
fn cache_alone_with_part_of_a_file_stays_a_mirror() {
    let (folder, wanted) = checkpoint();
    let origin = Server::start(folder.path(), &[]);
    let cached = Cached::start(&folder, &origin);
    for (shard, range) in [(1, "5-9"), (2, "0-"), (3, "0-")] {
        cached.fetch(
            &format!("model/model-0000{shard}-of-00003.safetensors"),
            range,
        );
    }
    let serving = &cached.serving;
    let model = format!("{}/model", origin.url);
    let store = format!("mirrors={}{}", serving.url, cached.path("model"));
    assert_eq!(serving.get("/http/absent/a").status, 404);
    let refused = || serving.metric("tload_serve_responses_total{status=\"404\"}");
    // A load does not wait for its mirrors.
    let begun = Instant::now();
    let before = refused();
    let mut loads_after = 0;
    while loads_after < 3 {
        assert!(begun.elapsed() < PATIENCE, "the mirror is not asked");
        loads_after += u32::from(refused() > before);
        let arguments = ["load", &model, "--digest", "--json", "--store", &store];
        let report: Value = serde_json::from_str(&succeed(arguments)).unwrap();
        assert_eq!(report["digest"], wanted);
        let mirror = &report["report"]["mirrors"][0];
        assert_eq!(mirror["is_dropped"], false, "{mirror}");
    }
}

#[test]
fn objects_below_a_url_are_listed() {
    let lab = crate::remote::Lab::start();
    lab.checkpoint();
    let endpoint = format!("endpoint={}", lab.server.url());
    let store = |option| ["--store", option];
    let options = [
        &*endpoint,
        "anonymous=true",
        "environment=false",
        "retries=0",
    ];
    let options = options.map(store);
    let server = Server::start(Path::new("s3://bucket/model"), options.as_flattened());
    let list = |path: &str| {
        let reply = server.ask("GET", path, &["Accept: application/json"]);
        assert_eq!(reply.status, 200, "{path}");
        let list: Value = serde_json::from_str(&reply.text()).unwrap();
        list["entries"].as_array().unwrap().clone()
    };
    let entries = list("/");
    let names: Vec<&str> = entries
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    for name in [
        "deep",
        "empty.txt",
        "model-00001-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(!names.contains(&".gitattributes"), "{names:?}");
    for entry in &entries {
        let is_directory = entry["name"] == "deep";
        let kind = if is_directory { "directory" } else { "file" };
        assert_eq!(entry["type"], kind);
        let path = format!("/{}", entry["href"].as_str().unwrap());
        assert_eq!(server.get(&path).status, 200, "{path}");
    }
    assert_eq!(list("/deep/")[0]["name"], "tokenizer.model");
    let page = server.get("/").text();
    assert!(page.contains("<a href=\"deep/\">deep/</a>"), "{page}");
    for path in ["/gone/", "/deep", "/.git/", "/../", "/empty.txt/"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    // A failure of the store is one of the gateway.
    let failing = tload_testbed::Fault::status(500, "InternalError");
    lab.server.fault(tload_testbed::Rule::always(failing));
    assert_eq!(server.get("/deep/").status, 502);
}

/// Processes that load at the same time.
const LOADS: usize = 8;

#[test]
fn peers_fetch_each_byte_once() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let model = model.to_str().unwrap();
    succeed(["synth", model, "--size", "96MiB", "--shards", "1"]);
    let wanted = digest(model, &[]);
    let file = folder.path().join("model/model.safetensors");
    // Each peer also looks at the first byte of the file, no more than once a second.
    let most = file.metadata().unwrap().len() / 100 * 101;
    // On a busy machine a range that comes too late is requested again, from another place.
    let fetched_once = |number| fetched_by_peers(folder.path(), number, &wanted) <= most;
    assert!(
        (0..10).any(fetched_once),
        "more than {most} bytes each time"
    );
}

/// Loads the model of `folder` in several processes at the same time, from two peers whose caches
/// are empty. Returns how many bytes the peers fetched.
fn fetched_by_peers(folder: &Path, attempt: usize, wanted: &str) -> u64 {
    // Loads may ask the origin for what a peer on a busy machine sends too late, so peers have a
    // server of their own.
    let [origin, of_peers] = [(); 2].map(|()| Server::start(folder, &[]));
    let url = format!("{}/model/model.safetensors", origin.url);
    let peers = [0, 1].map(|number| {
        let cache = folder.join(format!("cache{attempt}-{number}"));
        let cache = ["--cache-dir", cache.to_str().unwrap()];
        Server::start(Path::new(&format!("{}/model", of_peers.url)), &cache)
    });
    let peers_option = format!("peers={},{}", peers[0].url, peers[1].url);
    let load = || digest(&url, &["--store", &peers_option]);
    let digests = std::thread::scope(|scope| {
        let loads: Vec<_> = (0..LOADS).map(|_| scope.spawn(load)).collect();
        loads
            .into_iter()
            .map(|load| load.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(digests, [wanted; LOADS]);
    // A load whose peers send in time asks the origin for the header and both ends only, to compare
    // them.
    let own = |_| {
        let before = sent(&origin);
        assert_eq!(load(), wanted);
        sent(&origin) - before
    };
    assert!((0..20).map(own).any(|bytes| bytes < 1 << 20));
    sent(&of_peers)
}
