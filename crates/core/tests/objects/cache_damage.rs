//! Contents of the cache's directory that no load of this version wrote, or not like this: damage,
//! other versions, foreign files, hostile names. No load returns another byte, and nothing outside
//! of the directory's own places is touched.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tload::cache::finish_caching;
use tload::cache::{CacheDirectory, Pruning};
use tload::internal::metrics_text;
use tload::verify::{Algorithm, Digest};
use tload::{Checkpoint, ErrorKind, Location, StoreOptions};
use tload_testbed::FaultyServer;
use tload_testing::fixtures::Rng;

use crate::caching::{
    Bench, KEY, PATIENCE, cached_in, checking, contents, files, load_cached, of_cache,
};
use crate::fixtures::{assert_all, even, folder, in_file_order, load, read};
use crate::sites::{faulty_web_at, options, s3_options};

/// Returns all files below a directory, by their path in it. Links are not followed.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a directory").flatten() {
            let path = entry.path();
            let kind = entry.file_type().expect("its kind");
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                let name = path.strip_prefix(folder).expect("below").to_owned();
                found.insert(name, read(&path));
            }
        }
    }
    found
}

/// Returns the files of the answers in a cache.
fn answers(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.join("v1/answers")).expect("a directory");
    files.flatten().map(|file| file.path()).collect()
}

/// Writes an answer with a checksum that is right.
fn write_answer(path: &Path, json: &str) {
    let crc = Digest::compute(Algorithm::Crc32c, json.as_bytes()).to_string();
    let (_, digits) = crc.split_once(':').expect("name and digits");
    fs::write(path, format!("{digits}\n{json}")).expect("writes");
}

fn flip(path: &Path, rng: &mut Rng) {
    let mut bytes = read(path);
    for _ in 0..=rng.index(3) {
        let at = rng.index(bytes.len());
        bytes[at] ^= 1 << rng.index(8);
    }
    fs::write(path, bytes).expect("writes");
}

#[test]
fn flipped_bits_of_descriptions_are_repaired_and_change_no_byte() {
    let bench = Bench::new();
    let file = even("t", 1, 3, 300_000);
    bench.site.put(KEY, &file);
    load_cached(&bench.site, KEY);
    let path = &files(bench.folder.path(), "entry.json")[0];
    let whole = read(path);
    let cache = CacheDirectory::open(bench.folder.path()).expect("a cache");
    let mut rng = Rng::new(11);
    for round in 0..40 {
        flip(path, &mut rng);
        // Whatever the description says, a list of it comes to an end.
        assert_eq!(cache.entries().len(), 1);
        let (tensors, report) = load_cached(&bench.site, KEY);
        assert_all(&tensors, &[&file]);
        assert_eq!(report.requests, 0, "round {round}: {report}");
        assert!(read(path) == whole, "round {round}: it is not repaired");
    }
}

#[test]
fn flipped_bits_of_answers_are_repaired_and_change_no_byte() {
    let bench = Bench::new();
    let file = even("t", 1, 3, 300_000);
    bench.site.put("m/one.safetensors", &file);
    load_cached(&bench.site, "m");
    let [never, offline] = ["never", "offline"].map(|check| checking(&bench, check));
    let mut rng = Rng::new(12);
    for round in 0..40 {
        let answers = answers(bench.folder.path());
        for path in &answers {
            flip(path, &mut rng);
        }
        let error = offline.checkpoint("m").expect_err("nothing is known");
        assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
        let before = bench.server.requests().len();
        assert_all(&load_cached(&never, "m").0, &[&file]);
        assert!(bench.server.requests().len() > before, "round {round}");
        assert_all(&load_cached(&offline, "m").0, &[&file]);
    }
}

/// Objects and answers of versions whose directory is not `v1`, which are as good as lost.
#[test]
fn directories_of_other_versions_are_neither_read_nor_removed() {
    let mut bench = Bench::new();
    let file = even("t", 1, 4, 1 << 20);
    bench.site.put(KEY, &file);
    load_cached(&bench.site, KEY);
    let [v0, v1, v2] = ["v0", "v1", "v2"].map(|name| bench.folder.path().join(name));
    fs::rename(&v1, &v2).expect("moves");
    for path in contents(&v2) {
        fs::write(&path, vec![0x55; file.len()]).expect("writes");
    }
    fs::create_dir(&v0).expect("creates");
    fs::write(v0.join("entries"), "of an older version").expect("writes");
    let foreign = [&v0, &v2].map(|folder| tree(folder));

    let error = checking(&bench, "offline")
        .checkpoint(KEY)
        .expect_err("unknown");
    assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
    // They do not count either.
    bench.site.options.set("cache_limit", "5MiB").expect("set");
    let (tensors, report) = load_cached(&bench.site, KEY);
    assert_all(&tensors, &[&file]);
    assert!(report.requests > 0, "{report}");
    let (_, report) = load_cached(&bench.site, KEY);
    assert_eq!(report.requests, 0, "{report}");

    // This version writes no files of these names.
    let strange = [
        "notes.txt",
        "zz/file",
        "3f/short/stamps",
        "answers/read.me",
        "answers/folder/file",
    ];
    for name in strange.map(|name| v1.join(name)) {
        fs::create_dir_all(name.parent().expect("a directory")).expect("creates");
        fs::write(name, "kept").expect("writes");
    }
    let cache = CacheDirectory::open(bench.folder.path()).expect("a cache");
    let mut rules = Pruning::default();
    (rules.max_bytes, rules.unused_for) = (Some(0), Some(std::time::Duration::ZERO));
    assert_eq!(cache.prune(&rules).expect("prunes").removed.len(), 1);
    load_cached(&bench.site, KEY);
    let removal = cache.remove(None).expect("no location");
    assert_eq!(removal.removed.len(), 1);
    let left: Vec<_> = tree(&v1).into_keys().collect();
    let mut wanted = strange.map(PathBuf::from);
    wanted.sort();
    assert_eq!(left, wanted);
    assert!(foreign == [&v0, &v2].map(|folder| tree(folder)));
}

/// A description of another version in a place of this one, with fields that this one lacks.
#[test]
fn descriptions_of_other_versions_are_ignored_and_replaced() {
    let bench = Bench::new();
    let file = even("t", 1, 4, 1 << 20);
    bench.site.put(KEY, &file);
    load_cached(&bench.site, KEY);
    let path = &files(bench.folder.path(), "entry.json")[0];
    let ours: Value = serde_json::from_slice(&read(path)).expect("JSON");
    let cache = CacheDirectory::open(bench.folder.path()).expect("a cache");
    let location = || cache.entries()[0].location.clone();
    for changes in [
        json!({"format": 2}),
        json!({"format": 0}),
        json!({"tile_bytes": 1 << 20}),
        json!({"format": "two", "tiles": {"bytes": 7}}),
        json!({"compression": "zstd"}),
    ] {
        let mut other = ours.clone();
        for (key, value) in changes.as_object().expect("fields") {
            other[key] = value.clone();
        }
        fs::write(path, other.to_string()).expect("writes");
        let is_ours = changes.get("compression").is_some();
        assert_eq!(location().is_some(), is_ours, "{changes}");
        let (tensors, report) = load_cached(&bench.site, KEY);
        assert_all(&tensors, &[&file]);
        assert_eq!(report.requests, 0, "{report}");
        assert_eq!(location().as_deref(), Some("s3://models/m.safetensors"));
        let found: Value = serde_json::from_slice(&read(path)).expect("JSON");
        assert_eq!(found, ours, "{changes}");
    }
}

#[test]
fn answers_of_other_versions_are_ignored_and_replaced() {
    let bench = Bench::new();
    let file = even("t", 1, 4, 1 << 20);
    bench.site.put(KEY, &file);
    load_cached(&bench.site, KEY);
    let answers = answers(bench.folder.path());
    let [path] = &answers[..] else {
        panic!("the state of one object, found {answers:?}");
    };
    let ours = read(path);
    let [never, offline] = ["never", "offline"].map(|check| checking(&bench, check));
    let location = "s3://models/m.safetensors";
    for answer in [
        json!({"location": location, "answer": {"Present": {"len": 1}}}),
        json!({"location": location, "answer": {"Compressed": {"len": file.len()}}}),
        json!({"location": location, "answer": ["Present"]}),
        json!({"locations": [location], "answer": "Absent"}),
        json!([1, 2, 3]),
    ] {
        write_answer(path, &answer.to_string());
        let error = offline.checkpoint(KEY).expect_err("nothing is known");
        assert_eq!(error.kind(), ErrorKind::Remote, "{answer}: {error}");
        assert_all(&load_cached(&never, KEY).0, &[&file]);
        assert!(read(path) == ours, "{answer}");
    }
}

/// Stamps for tiles of twice the length, and records of twice the length.
#[test]
fn stamps_of_other_tiles_are_no_stamps() {
    let bench = Bench::new();
    let file = even("t", 1, 4, 1 << 20);
    bench.site.put(KEY, &file);
    load_cached(&bench.site, KEY);
    let path = &files(bench.folder.path(), "stamps")[0];
    let ours = read(path);
    let every_second = |_: &[u8]| ours.chunks(16).map(|two| &two[..8]).collect::<Vec<_>>();
    let wider = |_: &[u8]| {
        ours.chunks(8)
            .flat_map(|one| [one, one])
            .collect::<Vec<_>>()
    };
    for stamps in [every_second(&ours).concat(), wider(&ours).concat()] {
        fs::write(path, stamps).expect("writes");
        let (tensors, report) = load_cached(&bench.site, KEY);
        assert_all(&tensors, &[&file]);
        assert!(report.requests > 0, "{report}");
        let (_, report) = load_cached(&bench.site, KEY);
        assert_eq!(report.requests, 0, "{report}");
    }
}

/// In the place of an entry's file is a directory, or a link to a file elsewhere.
#[test]
fn links_and_directories_in_place_of_files_are_not_used() {
    let bench = Bench::new();
    let file = even("t", 1, 4, 300_000);
    bench.site.put(KEY, &file);
    let outside = folder();
    let victim = outside.path().join("victim");
    fs::write(&victim, "of another program").expect("writes");
    for name in ["contents.safetensors", "stamps", "claims", "entry.json"] {
        for is_link in [true, false] {
            load_cached(&bench.site, KEY);
            let path = &files(bench.folder.path(), name)[0];
            fs::remove_file(path).expect("removes");
            if is_link {
                symlink(&victim, path).expect("links");
            } else {
                fs::DirBuilder::new()
                    .mode(0o700)
                    .create(path)
                    .expect("creates");
            }
            let (tensors, _) = load_cached(&bench.site, KEY);
            assert_all(&tensors, &[&file]);
            assert_eq!(read(&victim), b"of another program", "{name}");
            let cache = CacheDirectory::open(bench.folder.path()).expect("a cache");
            let removal = cache.remove(None).expect("no location");
            assert_eq!(removal.removed.len(), 1, "{name}");
            assert_eq!(read(&victim), b"of another program", "{name}");
        }
    }
}

/// Names that are paths, too long for a file, or alike on some file systems.
#[test]
fn names_of_objects_lead_to_no_path() {
    let server = Arc::new(FaultyServer::start());
    let folder = folder();
    let directory = folder.path().join("cache");
    let mut web = faulty_web_at(&server);
    cached_in(&mut web, &directory);
    let mut s3 = crate::sites::faulty_at(&server);
    cached_in(&mut s3, &directory);
    let long = format!("{}.safetensors", "long".repeat(200));
    let keys = [
        "m.safetensors",
        "M.safetensors",
        "m.SAFETENSORS.safetensors",
        "..%2F..%2F..%2Fescaped.safetensors",
        "%2e%2e/%2e%2e/escaped.safetensors",
        "a\\..\\b.safetensors",
        "a b.safetensors",
        "\u{202e}srotcafets.safetensors",
        "v1/answers/m.safetensors",
        "stamps.safetensors",
        &*long,
    ];
    let mut cached = 0;
    for (at, key) in (1..).zip(keys) {
        let file = even("t", at, 2, 100_000);
        for site in [&web, &s3] {
            site.put(key, &file);
            let (tensors, report) = load_cached(site, key);
            assert_all(&tensors, &[&file]);
            assert_eq!(of_cache(&report).reason, None, "{key:?}: {report}");
            let (tensors, report) = load_cached(site, key);
            assert_all(&tensors, &[&file]);
            assert_eq!(report.requests, 0, "{key:?}: {report}");
            cached += 1;
        }
    }
    // Those that no URL can have.
    for url in [
        "s3://models/a/../../m",
        "s3://models/a\0b",
        "s3://models//m",
        "s3://models/\u{1b}[31m",
    ] {
        let opened = Location::parse(url).and_then(|location| {
            let options =
                s3_options(&server.url()).with("cache_dir", directory.to_str().expect("UTF-8"));
            Checkpoint::open_with(&location, options.expect("an option"))
        });
        opened.expect_err(url);
    }
    let is_hex = |name: &str, len: usize| {
        name.len() == len && name.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut entries = 0;
    for path in tree(folder.path()).into_keys() {
        let names: Vec<_> = path
            .iter()
            .map(|name| name.to_str().expect("UTF-8"))
            .collect();
        match names[..] {
            ["cache", "v1", "answers", name] => assert!(is_hex(name, 64), "{path:?}"),
            ["cache", "v1", group, name, file] => {
                assert!(is_hex(group, 2) && is_hex(name, 64), "{path:?}");
                let own = ["contents.safetensors", "stamps", "claims", "entry.json"];
                assert!(own.contains(&file), "{path:?}");
                entries += usize::from(file == "stamps");
            }
            _ => panic!("{path:?}"),
        }
    }
    assert_eq!(entries, cached);
}

#[test]
#[expect(clippy::too_many_lines, reason = "each kind of secret")]
fn no_secret_reaches_the_directory() {
    const SECRET: &str = "hunter2";
    let server = Arc::new(FaultyServer::start());
    let folder = folder();
    let directory = folder.path().to_str().expect("UTF-8");
    let file = even("t", 1, 3, 100_000);
    server.put("models/m.safetensors", &*file);
    let url = server
        .url()
        .replace("http://", &format!("http://me:{SECRET}@"));
    let query = format!("X-Amz-Signature={SECRET}&X-Amz-Credential={SECRET}");
    let waiting = ("cache_wait", "true");
    let web = options(&[("cache_dir", directory), waiting, ("header.x-team", SECRET)]);
    let token = format!("Bearer {SECRET}");
    let tokens = options(&[
        ("cache_dir", directory),
        waiting,
        ("header.authorization", &token),
    ]);
    let keys = StoreOptions::from_pairs([
        ("environment", "false"),
        ("cache_dir", directory),
        waiting,
        ("endpoint", &*server.url()),
        ("region", "us-east-1"),
        ("access_key_id", SECRET),
        ("secret_access_key", SECRET),
        ("session_token", SECRET),
    ])
    .expect("options");
    let s3 = "s3://models".to_owned();
    for (location, options, is_kept) in [
        (format!("{url}/models/m.safetensors?{query}"), &web, false),
        (
            format!("{url}/models/m.safetensors?X-Amz-Signature=another"),
            &web,
            true,
        ),
        (
            format!("{url}/models/m.safetensors?token={SECRET}"),
            &web,
            false,
        ),
        (
            format!("{}/models/m.safetensors", server.url()),
            &tokens,
            true,
        ),
        (s3.clone(), &keys, false),
        (s3, &keys, true),
    ] {
        let location = Location::parse(&location).expect("a URL");
        let checkpoint = Checkpoint::open_with(&location, options).expect("opens");
        let (tensors, report) = load(&checkpoint, in_file_order()).expect("loads");
        drop(checkpoint);
        assert!(finish_caching(PATIENCE));
        assert_all(&tensors, &[&file]);
        // Another signature is for the same object; an unknown query may be anything.
        assert_eq!(report.requests == 0, is_kept, "{location}: {report}");
        assert!(!format!("{report} {report:?}").contains(SECRET), "{report}");
        // Each time: the next one may replace it.
        for (path, bytes) in tree(folder.path()) {
            let mut windows = bytes.windows(SECRET.len());
            let is_there = windows.any(|it| it == SECRET.as_bytes());
            assert!(!is_there && !path.to_string_lossy().contains(SECRET));
        }
    }
    assert_eq!(files(folder.path(), "entry.json").len(), 2);
    // Two objects and the listing.
    assert_eq!(answers(folder.path()).len(), 3);
    let cache = CacheDirectory::open(folder.path()).expect("a cache");
    for entry in cache.entries() {
        assert!(!format!("{entry:?}").contains(SECRET), "{entry:?}");
    }
    assert!(!metrics_text().contains(SECRET));
}

/// Nothing is requested to open an object, so that its header comes from the cache alone.
#[test]
fn flipped_bits_of_headers_are_repaired_or_named() {
    let bench = Bench::new();
    let file = even("t", 1, 4, 1 << 20);
    bench.site.put(KEY, &file);
    let mut rng = Rng::new(9);
    for check in ["never", "offline"] {
        load_cached(&bench.site, KEY);
        let path = &contents(bench.folder.path())[0];
        let mut damaged = read(path);
        damaged[rng.index(300)] ^= 1 << rng.index(8);
        fs::write(path, &damaged).expect("writes");
        let site = checking(&bench, check);
        if check == "never" {
            assert_all(&load_cached(&site, KEY).0, &[&file]);
            let (tensors, report) = load_cached(&site, KEY);
            assert_all(&tensors, &[&file]);
            assert_eq!(report.requests, 0, "{report}");
        } else {
            let error = site.checkpoint(KEY).expect_err("the header is damaged");
            assert!(error.message().contains("is not in the cache"), "{error}");
        }
    }
}
