//! Models on a hub: one commit, the right bytes, a token that only the hub receives, and errors
//! with hints.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use tload::copy::{CopyJob, CopyReport};
use tload::internal::storage::{ObjectSource, Source};
use tload::{Checkpoint, Error, ErrorKind, Location, Protocol, Result, StoreOptions};
use tload_testbed::{Access, Fault, FaultyServer, Hub, HubRequest, Rule};

use crate::alone;
use crate::fixtures::{assert_all, even, folder, in_file_order, index, load, options, read};
use crate::sites;

pub(crate) const MODEL: &str = "org/Model-1.5";
const TOKEN: &str = "hf_hunter2";

/// Returns options that reach the hub and ignore everything else on this machine.
pub(crate) fn store(hub: &Hub, pairs: &[(&str, &str)]) -> StoreOptions {
    let mut store = sites::options(&[("endpoint", &hub.url())]);
    for (key, value) in pairs {
        store.set(key, *value).expect("an option");
    }
    store
}

fn location(rest: &str) -> Location {
    Location::parse(&format!("hf://{MODEL}{rest}")).expect("a location")
}

fn open(hub: &Hub, rest: &str, pairs: &[(&str, &str)]) -> Result<Checkpoint> {
    Checkpoint::open_with(location(rest), store(hub, pairs))
}

/// Two shards, an index, and other files of a repository.
pub(crate) struct Model {
    shards: [Vec<u8>; 2],
    index: Vec<u8>,
}

impl Model {
    pub(crate) fn new(seed: u64) -> Self {
        let names = ["a", "b"];
        let placed: Vec<_> = names
            .iter()
            .flat_map(|name| (0..20).map(move |at| (format!("{name}{at}"), *name)))
            .map(|(tensor, name)| (tensor, format!("{name} 1.safetensors")))
            .collect();
        let placed: Vec<_> = placed
            .iter()
            .map(|(tensor, shard)| (tensor.clone(), shard.as_str()))
            .collect();
        Self {
            shards: [even("a", seed, 20, 70_000), even("b", seed + 1, 20, 70_000)],
            index: index(&placed),
        }
    }

    pub(crate) fn files(&self) -> Vec<(&str, &[u8])> {
        vec![
            (".gitattributes", b"*.safetensors filter=lfs"),
            ("a 1.safetensors", &self.shards[0]),
            ("b 1.safetensors", &self.shards[1]),
            ("config.json", b"{}"),
            ("model.safetensors.index.json", &self.index),
            ("sub/deep/model.safetensors", &self.shards[0]),
            ("empty.txt", b""),
        ]
    }

    pub(crate) fn shards(&self) -> [&[u8]; 2] {
        [&self.shards[0], &self.shards[1]]
    }
}

pub(crate) fn hub() -> (Hub, Model) {
    let (hub, model) = (Hub::start(), Model::new(1));
    hub.commit(MODEL, "main", &model.files());
    (hub, model)
}

fn asked_of_the_model(hub: &Hub) -> Vec<HubRequest> {
    let mut requests = hub.requests();
    requests.retain(|request| request.path.starts_with("api/models/"));
    requests
}

#[test]
fn hub_model_opens_like_folder() {
    let (hub, model) = hub();
    hub.commit(MODEL, "refs/pr/1", &model.files());
    hub.commit(MODEL, "a/b", &model.files());
    for rest in [
        "",
        "/",
        "@main",
        "@refs/pr/1",
        "@a%2Fb",
        "/model.safetensors.index.json",
    ] {
        let checkpoint = open(&hub, rest, &[]).expect(rest);
        assert_eq!(checkpoint.location().protocol(), Some(Protocol::Hub));
        let (tensors, report) = load(&checkpoint, in_file_order()).expect(rest);
        assert_all(&tensors, &model.shards());
        assert_eq!(report.engine.name, "object", "{rest}");
        assert_eq!(report.retries, 0, "{rest}");
    }
    for rest in [
        "/sub/deep",
        "/a 1.safetensors",
        "@main/sub/deep/model.safetensors",
    ] {
        let checkpoint = open(&hub, rest, &[]).expect(rest);
        let (tensors, _) = load(&checkpoint, in_file_order()).expect(rest);
        assert_all(&tensors, &[&model.shards[0]]);
    }
    let files = ["/a 1.safetensors", "@main/b 1.safetensors"].map(location);
    let before = asked_of_the_model(&hub).len();
    let checkpoint = Checkpoint::open_all_with(&files, store(&hub, &[])).expect("a list");
    assert_all(
        &load(&checkpoint, in_file_order()).expect("loads").0,
        &model.shards(),
    );
    assert_eq!(asked_of_the_model(&hub).len(), before + 1, "one repository");
}

#[test]
fn one_commit_is_read_while_branch_moves() {
    let (hub, model) = hub();
    let checkpoint = open(&hub, "", &[]).expect("opens");
    let other = Model::new(7);
    let commit = hub.commit(MODEL, "main", &other.files());
    let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
    assert_all(&tensors, &model.shards());
    assert_eq!(asked_of_the_model(&hub).len(), 1);
    for rest in [String::new(), format!("@{commit}")] {
        let checkpoint = open(&hub, &rest, &[]).expect("opens");
        let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
        assert_all(&tensors, &other.shards());
    }
    let resolved = hub
        .requests()
        .into_iter()
        .filter(|request| request.path.contains("/resolve/"));
    for request in resolved {
        assert!(!request.path.contains("/main/"), "{request:?}");
    }
}

#[test]
fn token_goes_to_hub_only() {
    let (hub, model) = hub();
    for access in [
        Access::Private(TOKEN.to_owned()),
        Access::Gated(TOKEN.to_owned()),
    ] {
        hub.grant(MODEL, access);
        let checkpoint = open(&hub, "", &[("token", TOKEN)]).expect("opens");
        let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
        assert_all(&tensors, &model.shards());
    }
    let requests = hub.requests();
    // Redirects within the hub keep the token: small files are served there.
    assert!(
        requests
            .iter()
            .any(|request| request.path.starts_with("resolve-cache/"))
    );
    assert!(
        requests.iter().all(|request| request.with_token),
        "{requests:?}"
    );
    let elsewhere = hub.files().requests();
    assert!(elsewhere.len() >= 4, "{elsewhere:?}");
    for request in elsewhere {
        for (name, value) in &request.headers {
            assert!(name != "authorization", "{request:?}");
            assert!(!value.contains("hunter2"), "{name}");
        }
    }
}

/// Opens a location, asserts that it fails without showing a secret, and returns the error.
fn refused(hub: &Hub, rest: &str, pairs: &[(&str, &str)]) -> Error {
    let error = open(hub, rest, pairs).expect_err(rest);
    let shown = format!("{error:?} {}", error.chain());
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(
        error.hint().is_some() && error.location().is_some(),
        "{shown}"
    );
    assert_eq!(error.request().expect("a request").attempts, 1, "{shown}");
    error
}

#[test]
fn hub_refusals_have_hints() {
    use ErrorKind::{NotFound, PermissionDenied};
    let (hub, _) = hub();
    let token = [("token", TOKEN)];
    let other = [("token", "hf_other_hunter2")];
    let wrong = [("token", "invalid")];
    let private = Access::Private(TOKEN.to_owned());
    let gated = Access::Gated(TOKEN.to_owned());
    for (access, rest, pairs, kind, status, hint) in [
        (
            Access::Public,
            "@none",
            &token[..],
            NotFound,
            404,
            "branches",
        ),
        (
            Access::Public,
            "/no.safetensors",
            &token,
            NotFound,
            404,
            "path",
        ),
        (Access::Public, "/nowhere", &token, NotFound, 404, "path"),
        (
            Access::Public,
            "",
            &wrong,
            PermissionDenied,
            401,
            "renew the token",
        ),
        (private.clone(), "", &[], NotFound, 401, "HF_TOKEN"),
        (private, "", &other, NotFound, 404, "option token"),
        (gated.clone(), "", &[], PermissionDenied, 401, "accept"),
        (gated, "", &other, PermissionDenied, 403, "accept"),
        (Access::Disabled, "", &token, PermissionDenied, 403, "owner"),
    ] {
        hub.grant(MODEL, access.clone());
        let error = refused(&hub, rest, pairs);
        let shown = error.chain();
        assert_eq!(error.kind(), kind, "{access:?} {shown}");
        assert_eq!(
            error.request().and_then(|it| it.status),
            Some(status),
            "{shown}"
        );
        assert!(error.hint().expect("checked").contains(hint), "{shown}");
    }
    let missing = Location::parse("hf://org/none").expect("a location");
    let error = Checkpoint::open_with(&missing, store(&hub, &[])).expect_err("no such model");
    assert_eq!(error.kind(), NotFound);
    hub.grant(MODEL, Access::Public);
    let error = ObjectSource::at(&location("/no.safetensors"), &store(&hub, &[]));
    assert_eq!(error.expect_err("no such file").kind(), NotFound);
}

#[test]
fn non_hub_server_is_reported_with_endpoint_hint() {
    let server = FaultyServer::start();
    let store = sites::options(&[("endpoint", &server.url()), ("retries", "0")]);
    let error = Checkpoint::open_with(location(""), &store).expect_err("not a hub");
    assert!(
        error.hint().expect("a hint").contains("endpoint"),
        "{}",
        error.chain()
    );
    server.put("api/models/org/Model-1.5/revision/main", "[]");
    let error = Checkpoint::open_with(location(""), &store).expect_err("not a hub");
    assert_eq!(error.kind(), ErrorKind::Remote, "{}", error.chain());
    assert!(
        error.hint().expect("a hint").contains("endpoint"),
        "{}",
        error.chain()
    );
}

#[test]
fn expired_links_are_requested_again() {
    let (hub, model) = hub();
    let checkpoint = open(&hub, "", &[]).expect("opens");
    hub.files()
        .fault(Rule::times(2, Fault::status(403, "AccessDenied")));
    let (tensors, report) = load(&checkpoint, in_file_order()).expect("loads");
    assert_all(&tensors, &model.shards());
    assert_eq!(report.retries, 2);
    hub.files().clear_faults();
    hub.files()
        .fault(Rule::always(Fault::status(403, "AccessDenied")));
    let given_up = load(&checkpoint, options(|it| it.retries = Some(1))).expect_err("never");
    assert_eq!(
        given_up.kind(),
        ErrorKind::PermissionDenied,
        "{}",
        given_up.chain()
    );
    assert!(
        !given_up.chain().contains("hunter2"),
        "{}",
        given_up.chain()
    );
}

#[test]
fn file_differing_from_hub_list_is_error() {
    let (hub, _) = hub();
    let commit = hub.commit(MODEL, "main", &Model::new(3).files());
    hub.files().put(
        &format!("{MODEL}/{commit}/a 1.safetensors"),
        even("a", 3, 20, 80_000),
    );
    let error = open(&hub, "", &[]).expect_err("the length differs");
    assert_eq!(error.kind(), ErrorKind::Remote, "{}", error.chain());
    assert!(
        error.message().contains("the hub lists"),
        "{}",
        error.chain()
    );
}

pub(crate) fn copy(hub: &Hub, rest: &str, target: &Path) -> CopyReport {
    let copy = CopyJob::new(location(rest), target).store(store(hub, &[]));
    copy.run().expect("copies")
}

pub(crate) fn assert_copied(target: &Path, model: &Model) {
    for (name, bytes) in model.files() {
        let copied = target.join(name);
        if name.starts_with('.') {
            assert!(!copied.exists(), "{name}: hidden");
        } else {
            assert!(read(&copied) == bytes, "{name}");
        }
    }
}

#[test]
fn copy_has_every_listed_file() {
    let (hub, model) = hub();
    let target = folder();
    let report = copy(&hub, "", target.path());
    assert_copied(target.path(), &model);
    assert_eq!((report.copied_files, report.skipped_files), (6, 0));
    let report = copy(&hub, "", target.path());
    assert_eq!((report.copied_files, report.skipped_files), (0, 6));
    // The files keep their lengths.
    let other = Model::new(11);
    hub.commit(MODEL, "main", &other.files());
    let report = copy(&hub, "", target.path());
    assert_copied(target.path(), &other);
    assert_eq!(report.skipped_files, 0);
    let sub = folder();
    let report = copy(&hub, "/sub", sub.path());
    assert_eq!(report.copied_files, 1);
    assert!(sub.path().join("deep/model.safetensors").exists());
    let one = folder();
    copy(&hub, "/config.json", one.path());
    assert_eq!(read(&one.path().join("config.json")), b"{}");
}

/// Mirrors of hubs omit the modification time of a repository; the remaining fields tell commits
/// apart.
#[test]
fn copy_from_mirror_without_times_is_of_one_commit() {
    for is_terse in [false, true] {
        let (hub, model) = hub();
        hub.be_undated();
        if is_terse {
            hub.be_terse();
        }
        let target = folder();
        assert_eq!(copy(&hub, "", target.path()).copied_files, 6);
        assert_copied(target.path(), &model);
        assert_eq!(copy(&hub, "", target.path()).skipped_files, 6);

        // Each file of the same length as before.
        let other = Model::new(11);
        hub.commit(MODEL, "main", &other.files());
        let report = copy(&hub, "", target.path());
        assert_copied(target.path(), &other);
        assert!(report.copied_files >= 3, "{report:?}");
        assert_eq!(copy(&hub, "", target.path()).skipped_files, 6);
        // Without a modification time of the source, the copy's time is kept.
        let copied = target.path().join("config.json");
        let modified = std::fs::metadata(copied).and_then(|found| found.modified());
        assert_ne!(modified.expect("a time"), std::time::UNIX_EPOCH);
    }
}

#[test]
fn branch_moving_during_copy_does_not_mix_commits() {
    for path in ["config.json", "a 1.safetensors", "b 1.safetensors"] {
        let (hub, model) = hub();
        let other = Model::new(7);
        let next = hub.commit(MODEL, "next", &other.files());
        hub.move_before(path, MODEL, "main", &next);
        let target = folder();
        copy(&hub, "", target.path());
        assert_copied(target.path(), &model);
        copy(&hub, "", target.path());
        assert_copied(target.path(), &other);
    }
}

/// The copy stopped between two files, and the branch has moved since.
#[test]
fn resumed_copy_after_branch_moved_has_one_commit() {
    let (hub, _) = hub();
    hub.be_undated();
    let target = folder();
    let dead = Rule::always(Fault::CutBody(1000))
        .path("b 1.safetensors")
        .from_byte(1);
    hub.files().fault(dead);
    let copy_once = || {
        let copy = CopyJob::new(location(""), target.path());
        copy.store(store(&hub, &[("retries", "0")])).run()
    };
    copy_once().expect_err("one file cannot be read");
    hub.files().clear_faults();
    let other = Model::new(7);
    hub.commit(MODEL, "main", &other.files());
    let report = copy_once().expect("copies");
    assert_copied(target.path(), &other);
    assert_eq!(report.resumed_bytes, 0);
}

#[test]
fn hub_listing_only_names_loads_and_copies() {
    let (hub, model) = hub();
    hub.be_terse();
    let checkpoint = open(&hub, "", &[]).expect("opens");
    let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
    assert_all(&tensors, &model.shards());
    let target = folder();
    assert_eq!(copy(&hub, "", target.path()).copied_files, 6);
    assert_copied(target.path(), &model);
}

#[test]
fn small_files_load_without_range_support() {
    let (hub, model) = hub();
    hub.ignore_ranges();
    let checkpoint = open(&hub, "", &[]).expect("opens");
    let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
    assert_all(&tensors, &model.shards());
    let target = folder();
    copy(&hub, "", target.path());
    assert_copied(target.path(), &model);
    // Ranges that do not begin at the start are served from the whole file.
    let file = ObjectSource::at(
        &location("/model.safetensors.index.json"),
        &store(&hub, &[]),
    );
    let file = file.expect("opens");
    for (start, end) in [(0, 1), (5, 90), (model.index.len() - 1, model.index.len())] {
        let bytes = file.fetch(start as u64, end - start).expect("a range");
        assert_eq!(bytes, model.index[start..end]);
    }
    // Large files without ranges are refused.
    let large = even("t", 1, 17, 1 << 20);
    hub.commit(MODEL, "large", &[("model.safetensors", &large)]);
    hub.files().fault(Rule::always(Fault::IgnoreRange));
    let error = open(&hub, "@large", &[]).expect_err("ranges are required");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.chain());
}

#[test]
fn cached_model_opens_without_the_hub() {
    let (hub, model) = hub();
    let folder = folder();
    let cache = folder.path().to_str().expect("UTF-8");
    let load_with = |check: &str| {
        let options = [
            ("cache_dir", cache),
            ("cache_check", check),
            ("cache_wait", "true"),
        ];
        let checkpoint = open(&hub, "", &options).expect("opens");
        let tensors = load(&checkpoint, in_file_order()).expect("loads").0;
        assert!(tload::cache::finish_caching(Duration::from_secs(60)));
        tensors
    };
    assert_all(&load_with("always"), &model.shards());
    let before = hub.requests().len();
    assert_all(&load_with("never"), &model.shards());
    assert_all(&load_with("offline"), &model.shards());
    assert_eq!(hub.requests().len(), before);
    // The revision names another commit now.
    let newer = Model::new(5);
    hub.commit(MODEL, "main", &newer.files());
    assert_all(&load_with("offline"), &model.shards());
    assert_eq!(hub.requests().len(), before);
    assert_all(&load_with("always"), &newer.shards());
    assert_all(&load_with("offline"), &newer.shards());
}

#[test]
fn refusal_without_a_token_is_no_absence() {
    let (hub, _) = hub();
    hub.grant(MODEL, Access::Private(TOKEN.to_owned()));
    let folder = folder();
    let cache = folder.path().to_str().expect("UTF-8");
    let file = location("/model.safetensors.index.json");
    let open_with = |check: &str, token: &[(&str, &str)]| {
        let options = [
            ("cache_dir", cache),
            ("cache_check", check),
            ("cache_wait", "true"),
        ];
        let source = ObjectSource::at(&file, &store(&hub, &[&options, token].concat()));
        source.and_then(|source| source.fetch(0, 10))
    };
    open_with("always", &[("token", TOKEN)]).expect("reads");
    assert!(tload::cache::finish_caching(Duration::from_secs(60)));
    open_with("offline", &[]).expect("is cached");
    let error = open_with("always", &[]).expect_err("private");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
    open_with("offline", &[]).expect("is cached still");
}

const BUCKET: &str = "buckets/org/Bucket-1";

fn in_bucket(hub: &Hub, rest: &str, pairs: &[(&str, &str)]) -> Result<Checkpoint> {
    let location = Location::parse(&format!("hf://{BUCKET}{rest}"))?;
    Checkpoint::open_with(&location, store(hub, pairs))
}

/// Returns a hub with a model in a directory of a bucket, beside one of a similar name.
fn hub_with_bucket() -> (Hub, Model) {
    let (hub, model) = (Hub::start(), Model::new(1));
    for (name, bytes) in model.files() {
        hub.put(BUCKET, &format!("runs/step 7/{name}"), bytes);
        hub.put(BUCKET, &format!("runs/step 70/{name}"), b"other");
    }
    (hub, model)
}

#[test]
fn bucket_opens_like_folder() {
    let (hub, model) = hub_with_bucket();
    hub.grant(BUCKET, Access::Private(TOKEN.to_owned()));
    let token = [("token", TOKEN)];
    for rest in [
        "/runs/step 7",
        "/runs/step 7/",
        "/runs/step 7/model.safetensors.index.json",
    ] {
        let checkpoint = in_bucket(&hub, rest, &token).expect(rest);
        let (tensors, report) = load(&checkpoint, in_file_order()).expect(rest);
        assert_all(&tensors, &model.shards());
        assert_eq!(report.retries, 0, "{rest}");
    }
    for request in hub.files().requests() {
        for (name, value) in &request.headers {
            assert!(name != "authorization", "{request:?}");
            assert!(!value.contains("hunter2"), "{name}");
        }
    }
    let error = in_bucket(&hub, "/runs/step 7", &[]).expect_err("no token");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
    let error = in_bucket(&hub, "/runs/none", &token).expect_err("no such file");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
    let error = in_bucket(&hub, "@main/runs", &token).expect_err("no revisions");
    assert!(error.message().contains("revisions"), "{}", error.chain());
}

#[test]
fn copy_of_bucket_has_every_file() {
    let (hub, model) = hub_with_bucket();
    let source = Location::parse(&format!("hf://{BUCKET}/runs/step 7")).expect("a location");
    let target = folder();
    let copy = || {
        let copy = CopyJob::new(&source, target.path()).store(store(&hub, &[]));
        copy.run().expect("copies")
    };
    assert_eq!(copy().copied_files, 6);
    assert_copied(target.path(), &model);
    assert_eq!(copy().skipped_files, 6);
    let other = Model::new(11);
    hub.put(BUCKET, "runs/step 7/a 1.safetensors", &other.shards[0]);
    let report = copy();
    assert_eq!((report.copied_files, report.skipped_files), (1, 5));
    assert!(read(&target.path().join("a 1.safetensors")) == other.shards[0]);
}

#[test]
fn file_of_bucket_replaced_during_load_is_error() {
    let (hub, _) = hub_with_bucket();
    let checkpoint = in_bucket(&hub, "/runs/step 7", &[]).expect("opens");
    hub.put(
        BUCKET,
        "runs/step 7/b 1.safetensors",
        &Model::new(11).shards[1],
    );
    let error = load(&checkpoint, in_file_order()).expect_err("another file");
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
}

#[test]
fn cached_bucket_opens_without_the_hub() {
    let (hub, model) = hub_with_bucket();
    let folder = folder();
    let cache = folder.path().to_str().expect("UTF-8");
    for check in ["always", "offline"] {
        let options = [
            ("cache_dir", cache),
            ("cache_check", check),
            ("cache_wait", "true"),
        ];
        let before = hub.requests().len();
        let checkpoint = in_bucket(&hub, "/runs/step 7", &options).expect("opens");
        let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
        assert_all(&tensors, &model.shards());
        assert!(tload::cache::finish_caching(Duration::from_secs(60)));
        assert_eq!(hub.requests().len() > before, check == "always");
    }
}

/// Variables of the process in which the next test loads.
const HUB_URL: &str = "TEST_HUB_URL";

/// The cache has a shard of an earlier commit, and the hub's branch has moved on.
#[test]
fn files_of_one_repository_are_filled_at_one_commit() {
    let name = "hubs::files_of_one_repository_are_filled_at_one_commit";
    let newer = Model::new(7);
    if let Some(endpoint) = alone::variable(HUB_URL) {
        let pairs = [("endpoint", endpoint.as_str()), ("hf_cache", "true")];
        let store = StoreOptions::from_pairs(pairs).expect("options");
        let files = ["/a 1.safetensors", "@main/b 1.safetensors"].map(location);
        let checkpoint = Checkpoint::open_all_with(&files, store).expect("opens");
        let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
        assert_all(&tensors, &newer.shards());
        return;
    }
    let (hub, older) = (Hub::start(), Model::new(1));
    let commit = hub.commit(MODEL, "main", &older.files());
    hub.commit(MODEL, "main", &newer.files());
    let cache = folder();
    let repository = cache.path().join("models--org--Model-1.5");
    let snapshot = repository.join("snapshots").join(&commit);
    std::fs::create_dir_all(&snapshot).expect("a folder");
    std::fs::create_dir(repository.join("refs")).expect("a folder");
    std::fs::write(repository.join("refs/main"), commit).expect("a reference");
    std::fs::write(snapshot.join("a 1.safetensors"), &older.shards[0]).expect("a shard");
    let path = cache.path().to_str().expect("UTF-8");
    let output = alone::run(name, &[(HUB_URL, &hub.url()), ("HF_HUB_CACHE", path)]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let mut resolved = asked_of_the_model(&hub);
    resolved.retain(|request| request.path.ends_with("/revision/main"));
    assert_eq!(resolved.len(), 1, "{resolved:?}");
}

/// Limit for events that take no time on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the test `name` in a process whose hub sends no shard to its end.
fn with_stalled_hub(name: &str) {
    let (hub, _) = hub();
    hub.files()
        .fault(Rule::always(Fault::StallBody(100_000)).from_byte(1));
    let cache = folder();
    let path = cache.path().to_str().expect("UTF-8");
    let output = alone::run(name, &[(HUB_URL, &hub.url()), ("HF_HUB_CACHE", path)]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// Returns options that let a stalled request wait.
fn patient(endpoint: &str, pairs: &[(&str, &str)]) -> StoreOptions {
    let usual = [
        ("endpoint", endpoint),
        ("hf_cache", "true"),
        ("read_timeout", "3600"),
    ];
    StoreOptions::from_pairs(usual.iter().chain(pairs).copied()).expect("options")
}

/// Waits until no thread of this process writes to the cache of the repository.
#[track_caller]
fn assert_cache_is_free() {
    let cache = alone::variable("HF_HUB_CACHE").expect("is set");
    let lock = Path::new(&cache).join("models--org--Model-1.5/.tload.lock");
    let started = Instant::now();
    while let Ok(file) = rustix::fs::open(&lock, OFlags::RDONLY, Mode::empty()) {
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "is locked");
        tload_testbed::pause_between_looks();
    }
}

#[test]
fn copy_through_hub_cache_shows_progress_and_is_cancelled() {
    let Some(endpoint) = alone::variable(HUB_URL) else {
        return with_stalled_hub("hubs::copy_through_hub_cache_shows_progress_and_is_cancelled");
    };
    let target = folder();
    let copy = CopyJob::new(location(""), target.path()).store(patient(&endpoint, &[]));
    let control = copy.control();
    let running = std::thread::spawn(move || copy.run());
    let started = Instant::now();
    // More than what comes with the openings of the files.
    while control.progress().bytes_done < 150_000 {
        assert!(started.elapsed() < PATIENCE, "{:?}", control.progress());
        tload_testbed::pause_between_looks();
    }
    let late = control.timed_out(Duration::from_secs(1));
    assert!(late.message().contains("had been copied"), "{late}");
    control.cancel();
    let error = running.join().expect("ends").expect_err("is cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", error.chain());
    assert_cache_is_free();
    let late = control.timed_out(Duration::from_secs(1));
    let hint = late.hint().expect("a hint");
    assert!(hint.contains("are kept in the hub's cache"), "{hint}");
}

#[test]
fn opening_through_hub_cache_ends_its_download_at_its_timeout() {
    let Some(endpoint) = alone::variable(HUB_URL) else {
        return with_stalled_hub(
            "hubs::opening_through_hub_cache_ends_its_download_at_its_timeout",
        );
    };
    let store = patient(&endpoint, &[("open_timeout", "2")]);
    let error = Checkpoint::open_with(location(""), store).expect_err("stalls");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
    assert_cache_is_free();
}

/// The limit of the first connection is not one of the first response.
#[test]
fn slow_hub_is_waited_for() {
    let server = FaultyServer::start();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let description = format!(r#"{{"sha": "{commit}", "siblings": []}}"#);
    server.put("api/models/org/Model-1.5/revision/main", description);
    let delay = Duration::from_millis(2300);
    server.fault(Rule::times(1, Fault::Delay(delay)));
    let store = sites::options(&[("endpoint", &server.url()), ("retries", "0")]);
    let started = Instant::now();
    let error = Checkpoint::open_with(location(""), &store).expect_err("has no files");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
    assert!(started.elapsed() >= delay);
}
