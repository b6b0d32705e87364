//! Directories that tload writes to or trusts, where other users may write too: nothing below them
//! is followed through a link, and what another user owns or may change is not used. Also bytes
//! that may not be the origin's, which are not cached as such.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use tload::cache::{CacheDirectory, Pruning};
use tload::copy::{CopyJob, CopyReport};
use tload::{Checkpoint, Location, StoreOptions};
use tload_testbed::{Fault, Hub, Rule, require_named};

use crate::alone;
use crate::caching::{Bench, KEY, PATIENCE, cached_in, load_cached, of_cache};
use crate::fixtures::{assert_all, even, folder, in_file_order, load, options, read};
use crate::hubs::{MODEL, Model};
use crate::listener::Listener;
use crate::mirrors::{self, origin};
use crate::sites;

/// User who owns no files.
const OTHER: u32 = 65534;

/// Changes by other users.
const CHANGES: [&str; 4] = ["link", "owner", "group", "mode"];

/// Returns whether this process may give files to other users.
fn is_root() -> bool {
    let found = geteuid().is_root().then_some(());
    require_named(
        "root",
        found.ok_or_else(|| "the process is not root".to_owned()),
    )
    .is_some()
}

/// Returns everything below a directory by its path in it: bytes of files, targets of links.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a directory").flatten() {
            let (path, kind) = (entry.path(), entry.file_type().expect("its kind"));
            let bytes = if kind.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).expect("a link");
                target.into_os_string().into_encoded_bytes()
            } else {
                read(&path)
            };
            let name = path.strip_prefix(folder).expect("below").to_owned();
            found.insert(name, bytes);
        }
    }
    found
}

/// Does to a file or directory what another user may do. `elsewhere` is a place of that user's.
fn change(path: &Path, what: &str, elsewhere: &Path) {
    let mode = fs::metadata(path).expect("is there").permissions().mode();
    let set = |mode| {
        let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
        set.expect("is ours");
    };
    match what {
        "link" => {
            let target = elsewhere.join("target");
            fs::rename(path, &target).expect("moves");
            if target.is_dir() {
                // Names of a cache's files, and others.
                let names = [
                    "a".repeat(64),
                    "stamps".to_owned(),
                    "config.json".to_owned(),
                ];
                for name in names {
                    fs::write(target.join(name), "mine").expect("writes");
                }
                fs::create_dir_all(target.join("work/deep")).expect("creates");
                fs::write(target.join("work/deep/thesis"), "mine").expect("writes");
            }
            symlink(target, path).expect("links");
        }
        "owner" => chown(path, Some(OTHER), None).expect("root may"),
        "group" => set(mode | 0o020),
        "mode" => set(mode | 0o002),
        _ => unreachable!("{what}"),
    }
}

/// Returns the only entry of a directory whose name has this length.
fn only(folder: &Path, len: usize) -> PathBuf {
    let entries = fs::read_dir(folder).expect("a directory").flatten();
    let mut found = entries.filter(|entry| entry.file_name().len() == len);
    found.next().expect("an entry").path()
}

/// Components of a cache, by their names in the table, and whether their bytes or lists are used.
fn components(cache: &Path) -> Vec<(&'static str, PathBuf)> {
    let version = cache.join("v1");
    let (group, answers) = (only(&version, 2), version.join("answers"));
    let entry = only(&group, 64);
    let removed = version.join("removed");
    fs::create_dir_all(&removed).expect("creates");
    let mut all = vec![
        ("answer", only(&answers, 64)),
        ("answers", answers),
        ("removed", removed),
        ("group", group),
        ("v1", version),
    ];
    for name in ["stamps", "contents.safetensors", "claims", "entry.json"] {
        all.push((name, entry.join(name)));
    }
    all.push(("entry", entry));
    all
}

/// Each component of a cache, changed in each way by another user.
#[test]
fn cache_that_others_can_change_is_not_used_and_leads_nowhere() {
    let is_root = is_root();
    let (file, other) = (even("t", 1, 3, 300_000), even("u", 2, 3, 1 << 20));
    let count = {
        let bench = Bench::new();
        bench.site.put(KEY, &file);
        load_cached(&bench.site, KEY);
        components(bench.folder.path()).len()
    };
    for (number, what) in (0..count).flat_map(|number| CHANGES.map(|what| (number, what))) {
        if what == "owner" && !is_root {
            continue;
        }
        let mut bench = Bench::new();
        bench.site.put(KEY, &file);
        bench.site.put("other.safetensors", &other);
        load_cached(&bench.site, KEY);
        let elsewhere = folder();
        let (name, path) = components(bench.folder.path()).swap_remove(number);
        let case = format!("{name}: {what}");
        change(&path, what, elsewhere.path());
        let before = tree(elsewhere.path());

        let (tensors, report) = load_cached(&bench.site, KEY);
        assert_all(&tensors, &[&file]);
        let is_trusted = matches!(
            name,
            "v1" | "group" | "entry" | "stamps" | "contents.safetensors"
        );
        assert_eq!(report.requests > 0, is_trusted, "{case}: {report}");
        if is_trusted {
            let reason = of_cache(&report).reason.as_deref().unwrap_or_default();
            let says = match what {
                "link" => "symbolic link",
                "owner" => "belongs to another user",
                _ => "can be changed by other users",
            };
            assert!(reason.contains(says), "{case}: {reason}");
        }
        let mut never = sites::faulty_at(&bench.server);
        cached_in(&mut never, bench.folder.path());
        never.options.set("cache_check", "never").expect("set");
        let asked = bench.server.requests().len();
        assert_all(&load_cached(&never, KEY).0, &[&file]);
        let is_asked = bench.server.requests().len() > asked;
        // Whatever is known has been asked and kept anew, but not in a directory of another user.
        let is_unknown = is_trusted || name == "answers";
        assert_eq!(is_asked, is_unknown, "{case}");

        if what != "link" {
            let mut shared = sites::faulty_at(&bench.server);
            cached_in(&mut shared, bench.folder.path());
            shared.options.set("cache_shared", "true").expect("set");
            let (tensors, report) = load_cached(&shared, KEY);
            assert_all(&tensors, &[&file]);
            assert_eq!(report.requests, 0, "{case}: {report}");
        }

        // Evictions and removals.
        bench.site.options.set("cache_limit", "3MiB").expect("set");
        assert_all(&load_cached(&bench.site, "other.safetensors").0, &[&other]);
        if let Ok(cache) = CacheDirectory::open(bench.folder.path()) {
            drop(cache.entries());
            let mut rules = Pruning::default();
            (rules.max_bytes, rules.unused_for) = (Some(0), Some(Duration::ZERO));
            drop(cache.prune(&rules));
            drop(cache.remove(None));
        } else {
            assert_eq!((name, what), ("v1", "link"));
        }
        let after = tree(elsewhere.path());
        let names = |tree: &BTreeMap<PathBuf, Vec<u8>>| tree.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&after), names(&before), "{case}");
        assert!(after == before, "{case}");
    }
}

/// Variables of the process in which the next test loads.
const HUB_URL: &str = "TEST_HUB_URL";

/// Each directory and file of a repository in a hub's cache, changed in each way by another user
/// before a model is downloaded.
#[test]
fn hub_cache_that_others_can_change_leads_nowhere() {
    let name = "guarded::hub_cache_that_others_can_change_leads_nowhere";
    let model = Model::new(5);
    if let Some(endpoint) = alone::variable(HUB_URL) {
        let pairs = [("endpoint", endpoint.as_str()), ("hf_cache", "true")];
        let mut store = StoreOptions::from_pairs(pairs).expect("options");
        if alone::variable("TEST_SHARED").is_some() {
            store.set("cache_shared", "true").expect("an option");
        }
        let location = Location::parse(&format!("hf://{MODEL}")).expect("a location");
        let checkpoint = Checkpoint::open_with(&location, store).expect("opens");
        let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
        assert_all(&tensors, &model.shards());
        return;
    }
    let is_root = is_root();
    let hub = Hub::start();
    let commit = hub.commit(MODEL, "main", &model.files());
    let run = |cache: &Path, is_shared: bool| {
        let (url, cache) = (hub.url(), cache.to_str().expect("UTF-8"));
        let mut variables = vec![(HUB_URL, &*url), ("HF_HUB_CACHE", cache)];
        if is_shared {
            variables.push(("TEST_SHARED", "1"));
        }
        let output = alone::run(name, &variables);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
    };
    let repository = |cache: &Path| cache.join("models--org--Model-1.5");
    let snapshot = format!("snapshots/{commit}");
    let staging = format!(".tload/{commit}");
    // Below what tload trusts, and where it only writes.
    let trusted = [".tload", &*staging, ".tload.lock"];
    let written = ["", "blobs", "snapshots", &*snapshot, "refs", "refs/main"];
    for component in trusted.into_iter().chain(written) {
        for what in CHANGES {
            let is_trusted = trusted.contains(&component);
            if what == "owner" && !is_root || what != "link" && !is_trusted {
                continue;
            }
            let (cache, elsewhere) = (folder(), folder());
            let mut path = repository(cache.path());
            path.extend(component.split('/').filter(|name| !name.is_empty()));
            fs::create_dir_all(path.parent().expect("below")).expect("creates");
            let mode = |mode| fs::Permissions::from_mode(mode);
            if let ".tload.lock" | "refs/main" = component {
                fs::write(&path, "older").expect("writes");
                fs::set_permissions(&path, mode(0o600)).expect("is ours");
            } else {
                fs::create_dir_all(&path).expect("creates");
                for above in path.ancestors().take_while(|above| *above != cache.path()) {
                    fs::set_permissions(above, mode(0o700)).expect("is ours");
                }
            }
            change(&path, what, elsewhere.path());
            let before = tree(elsewhere.path());
            run(cache.path(), false);
            assert!(tree(elsewhere.path()) == before, "{component}: {what}");
            // A reference is replaced, whatever it was.
            let is_used = component == "refs/main";
            let is_there = repository(cache.path()).join("refs/main");
            let is_there = fs::read_to_string(is_there).is_ok_and(|found| found == commit);
            assert_eq!(is_there, is_used, "{component}: {what}");
            if what != "link" {
                run(cache.path(), true);
                let named = read(&repository(cache.path()).join("refs/main"));
                assert_eq!(named, commit.as_bytes(), "{component}: {what}");
            }
        }
    }
}

/// A mirror with the right header and ends, and wrong bytes between them.
#[test]
fn bytes_of_a_mirror_do_not_become_those_of_the_origin() {
    let file = even("t", 7, 12, 2 << 20);
    let (server, site) = origin(&file);
    let mut wrong = file.clone();
    let middle = 1 << 20..file.len() - (1 << 20);
    wrong[middle].iter_mut().for_each(|byte| *byte ^= 0x55);
    let mirror = mirrors::mirror(&wrong);
    let begun = Instant::now();
    // One request after the other, for which the mirror is much faster.
    let serial = options(|it| (it.depth, it.extent_bytes) = (Some(1), Some(2 << 20)));
    let delay = Fault::Delay(Duration::from_millis(200));
    loop {
        server.fault(Rule::always(delay.clone()).from_byte(1));
        let cache = folder();
        let directory = cache.path().to_str().expect("UTF-8");
        let pairs = [
            ("cache_dir", directory),
            ("mirrors", &mirrors::place(&mirror)),
        ];
        let checkpoint = mirrors::open(&site, &mirrors::with(&site, &pairs));
        let (_, report) = load(&checkpoint, serial.clone()).expect("loads");
        drop(checkpoint);
        server.clear_faults();
        assert!(tload::cache::finish_caching(PATIENCE));
        // More than what is right at both ends.
        if report.mirrors[0].read_bytes > 2 << 20 {
            let reason = of_cache(&report).reason.as_deref().unwrap_or_default();
            assert!(reason.contains("mirrors"), "{report}");
            let checkpoint = mirrors::open(&site, &mirrors::with(&site, &pairs[..1]));
            let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
            assert_all(&tensors, &[&file]);
            return;
        }
        assert!(begun.elapsed() < 5 * PATIENCE, "{report}");
    }
}

#[test]
fn bytes_of_an_unverified_server_are_not_those_of_a_verified_one() {
    let Some(mut site) = sites::versitygw_tls() else {
        return;
    };
    let (file, cache) = (even("t", 1, 3, 300_000), folder());
    site.put(KEY, &file);
    cached_in(&mut site, cache.path());
    for (verify, is_requested) in [
        ("false", true),
        ("false", false),
        ("true", true),
        ("true", false),
    ] {
        site.options.set("tls_verify", verify).expect("an option");
        let (tensors, report) = load_cached(&site, KEY);
        assert_all(&tensors, &[&file]);
        assert_eq!(report.requests > 0, is_requested, "{verify}: {report}");
    }
}

/// A server of files without `ETag`, whose bytes depend on the whole target of the request. Their
/// last change was `age` seconds before the `Date` of its responses.
fn server(age: u32) -> Listener {
    const LEN: usize = 5000;
    Listener::start(move |head| {
        let target = head.split(' ').nth(1).unwrap_or_default();
        let body: String = target.chars().rev().cycle().take(LEN).collect();
        let lower = head.to_ascii_lowercase();
        let range = lower
            .lines()
            .find_map(|line| line.strip_prefix("range: bytes="));
        let (start, end) = range
            .and_then(|range| range.split_once('-'))
            .unwrap_or_default();
        let start: usize = start.parse().unwrap_or(0);
        let end = end.parse().unwrap_or(LEN).min(LEN - 1);
        let (minute, second) = (59 - age / 60, 59 - age % 60);
        format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{end}/{LEN}\r\n\
             Content-Length: {}\r\nDate: Fri, 27 Nov 2026 12:59:59 GMT\r\n\
             Last-Modified: Fri, 27 Nov 2026 12:{minute:02}:{second:02} GMT\r\n\
             Connection: close\r\n\r\n{}",
            end + 1 - start,
            &body[start..=end]
        )
    })
}

fn copied(server: &Listener, target: &str, folder: &Path) -> (CopyReport, String) {
    let location = Location::parse(&format!("{}{target}", server.url())).expect("a URL");
    let copy = CopyJob::new(&location, folder).store(sites::options(&[]));
    let report = copy.run().expect("copies");
    let bytes = read(&folder.join(location_name(target)));
    (report, String::from_utf8(bytes).expect("is text"))
}

fn location_name(target: &str) -> &str {
    let path = target.split('?').next().unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default()
}

/// URLs that are shown alike, with files of equal length and time.
#[test]
fn copy_takes_no_other_object_for_its_source() {
    let long = "/x".repeat(1000);
    let server = server(600);
    for [one, other] in [
        ["/f.json?id=1", "/f.json?id=2"],
        ["/f.json", "/f.json?id=2"],
        [
            "/f.json?versionId=1&X-Amz-Signature=a",
            "/f.json?versionId=2&X-Amz-Signature=a",
        ],
        [&format!("{long}/a/f.json"), &format!("{long}/b/f.json")],
    ] {
        let folder = folder();
        let mut texts = Vec::new();
        for target in [one, other] {
            let (report, text) = copied(&server, target, folder.path());
            assert_eq!(report.skipped_files, 0, "{target}");
            texts.push(text);
        }
        assert_ne!(texts[0], texts[1], "{other}");
        // Another signature is the same source.
        let (report, _) = copied(&server, other, folder.path());
        assert_eq!(report.skipped_files, 1, "{other}");
    }
    let folder = folder();
    copied(&server, "/f.json?X-Amz-Signature=a", folder.path());
    let (report, _) = copied(&server, "/f.json?X-Amz-Signature=b", folder.path());
    assert_eq!(report.skipped_files, 1);
}

#[test]
fn copy_of_a_recent_object_without_tag_is_not_skipped() {
    for (age, skipped) in [(0, 0), (59, 0), (60, 1), (600, 1)] {
        let (server, folder) = (server(age), folder());
        copied(&server, "/f.json", folder.path());
        let (report, _) = copied(&server, "/f.json", folder.path());
        assert_eq!(report.skipped_files, skipped, "{age} s");
    }
}
