//! Connections, threads and credentials that openings of one process share, and what they do not.
//! Tests that count them have a process of their own: others end what is idle.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tload::report::PhaseReport;
use tload::{Checkpoint, ErrorKind, LoadOptions, Location, Result, StoreOptions};
use tload_testbed::{Fault, FaultyServer, Hub, Rule};
use tload_testing::end_idle_threads;

use crate::alone::{self, is_alone, variable};
use crate::fixtures::{assert_all, even, folder, load, mixed, options};
use crate::lifecycle::{eventually, open_files, threads};
use crate::sites::{self, Site, faulty_at, faulty_web_at, proxied};

const KEY: &str = "lora/adapter_model.safetensors";

/// Number of small checkpoints that one process opens.
const ADAPTERS: usize = 1000;

fn open(location: &str, options: &StoreOptions) -> Result<Checkpoint> {
    Checkpoint::open_with(&Location::parse(location)?, options)
}

/// Few requests at a time, so that a load needs fewer connections than the one before has left.
fn narrow() -> LoadOptions {
    options(|it| it.depth = Some(2))
}

fn site() -> (Arc<FaultyServer>, Site) {
    let server = Arc::new(FaultyServer::start());
    let site = faulty_at(&server);
    (server, site)
}

/// Returns the access keys of the requests so far, each once.
fn access_keys(server: &FaultyServer) -> Vec<String> {
    let requests = server.requests();
    let key = |header: &String| {
        Some(
            header
                .split_once("Credential=")?
                .1
                .split_once('/')?
                .0
                .to_owned(),
        )
    };
    let headers = requests
        .iter()
        .filter_map(|it| it.headers.get("authorization"));
    let mut keys: Vec<_> = headers.filter_map(key).collect();
    keys.dedup();
    keys
}

fn names(phases: &[PhaseReport]) -> Vec<&str> {
    phases.iter().map(|phase| &*phase.phase).collect()
}

#[test]
fn later_openings_make_no_connection() {
    if !is_alone("kept::later_openings_make_no_connection") {
        return;
    }
    let (server, site) = site();
    let file = even("t", 1, 40, 100_000);
    site.put(KEY, &file);
    // As many as a load uses.
    let (_, report) = load(
        &site.checkpoint("lora").expect("opens"),
        LoadOptions::default(),
    )
    .expect("loads");
    for phase in ["client", "connect"] {
        assert!(
            names(&report.phases).contains(&phase),
            "{:?}",
            report.phases
        );
    }
    for _ in 0..10 {
        // On a busy machine, a connection is idle only a moment after its last response.
        eventually("each opening connects", || {
            let before = server.counts();
            let checkpoint = site.checkpoint("lora").expect("opens");
            let (tensors, report) = load(&checkpoint, narrow()).expect("loads");
            assert_all(&tensors, &[&file]);
            assert_eq!(report.retries, 0);
            let phases = names(&report.phases);
            for phase in ["threads", "client"] {
                assert!(!phases.contains(&phase), "{phases:?}");
            }
            assert!(
                server.counts().requests >= before.requests + 3,
                "lists, opens and reads again"
            );
            assert!(!format!("{checkpoint:?}").contains("testtest"));
            !phases.contains(&"connect") && server.counts().connections == before.connections
        });
    }
}

/// Nothing that a server says is kept.
#[test]
fn later_openings_see_changed_objects_lists_and_commits() {
    let (_server, site) = site();
    for seed in 0..3 {
        let (file, added) = (even("a", seed, 3, 1000), even("b", seed, 3, 1000));
        site.put(KEY, &file);
        let again = site.checkpoint("lora").expect("opens");
        assert_all(&load(&again, narrow()).expect("loads").0, &[&file]);
        let folder = format!("shards-{seed}");
        site.put(&format!("{folder}/a.safetensors"), &file);
        site.checkpoint(&folder).expect("opens");
        site.put(&format!("{folder}/b.safetensors"), &added);
        let both = site.checkpoint(&folder).expect("opens");
        assert_all(&load(&both, narrow()).expect("loads").0, &[&file, &added]);
    }
    let hub = Hub::start();
    let options = sites::options(&[("endpoint", &hub.url())]);
    for seed in 0..3 {
        let file = even("a", seed, 3, 1000);
        hub.commit("org/m", "main", &[("model.safetensors", &file)]);
        let checkpoint = open("hf://org/m", &options).expect("opens");
        assert_all(&load(&checkpoint, narrow()).expect("loads").0, &[&file]);
    }
}

/// Each opening with something else connects, and sends its own credentials.
#[test]
fn openings_with_other_options_share_nothing() {
    if !is_alone("kept::openings_with_other_options_share_nothing") {
        return;
    }
    let (server, site) = site();
    site.put(KEY, &even("t", 1, 3, 1000));
    let url = format!("s3://{}/{KEY}", sites::BUCKET);
    let others = [
        ("access_key_id", "AKIAOTHER"),
        ("retries", "2"),
        ("header.x-team", "weights"),
    ];
    let connects = |options: &StoreOptions| {
        let before = server.counts().connections;
        open(&url, options).expect("opens");
        server.counts().connections > before
    };
    let mut kept = site.options.clone();
    assert!(connects(&kept));
    for (name, value) in others {
        kept.set(name, value).expect("an option");
        assert!(connects(&kept), "{name}");
        eventually(name, || !connects(&kept));
    }
    let seconds = Cell::new(60);
    eventually("a deadline is an opening's own", || {
        seconds.set(seconds.get() + 1);
        let timeout = format!("{}s", seconds.get());
        let other = kept.clone().with("open_timeout", timeout);
        !connects(&other.expect("an option"))
    });
    eventually("the first is still there", || !connects(&site.options));
    assert_eq!(access_keys(&server), ["test", "AKIAOTHER", "test"]);
    // Another server at another endpoint.
    let connections = server.counts().connections;
    let (other, there) = self::site();
    there.put(KEY, &even("t", 2, 3, 1000));
    open(&url, &there.options).expect("opens");
    assert_eq!(server.counts().connections, connections);
    assert_eq!(access_keys(&other), ["test"]);
}

/// A signed URL is opened once: keeping its connections would use up descriptors.
#[test]
fn connections_of_signed_urls_are_not_kept() {
    if !is_alone("kept::connections_of_signed_urls_are_not_kept") {
        return;
    }
    let server = Arc::new(FaultyServer::start());
    let site = faulty_web_at(&server);
    let file = even("t", 1, 3, 1000);
    site.put(KEY, &file);
    for (query, kept) in [("", true), ("?signature=abc", false)] {
        let url = format!("{}{query}", site.location(KEY));
        let connects = || {
            let before = server.counts().connections;
            let checkpoint = open(&url, &site.options).expect("opens");
            let (tensors, _) = load(&checkpoint, narrow()).expect("loads");
            assert_all(&tensors, &[&file]);
            server.counts().connections > before
        };
        assert!(connects(), "{query}");
        if kept {
            eventually("each opening connects", || !connects());
        } else {
            assert!(connects(), "{query}");
        }
    }
}

/// A store whose server closed all connections works without an error or a retry.
#[test]
fn opening_after_restart_of_server_connects_anew() {
    if !is_alone("kept::opening_after_restart_of_server_connects_anew") {
        return;
    }
    let Some((site, proxy)) = proxied() else {
        return;
    };
    let file = even("t", 1, 8, 100_000);
    site.put(KEY, &file);
    for _ in 0..5 {
        let (tensors, report) =
            load(&site.checkpoint("lora").expect("opens"), narrow()).expect("loads");
        assert_all(&tensors, &[&file]);
        assert_eq!(report.retries, 0);
        proxy.enable(false).expect("toxiproxy responds");
        proxy.enable(true).expect("toxiproxy responds");
    }
}

/// A kept connection may die when the next request is sent over it. That is no retry: a new
/// connection could not have failed so.
#[test]
fn request_over_dead_connection_is_sent_again_at_once() {
    if !is_alone("kept::request_over_dead_connection_is_sent_again_at_once") {
        return;
    }
    let (server, mut site) = site();
    let file = even("t", 1, 3, 1000);
    site.put(KEY, &file);
    site.options.set("retries", "0").expect("an option");
    site.checkpoint(KEY).expect("opens");
    for fault in [Fault::CutBeforeHeaders, Fault::ResetBeforeHeaders] {
        let again = loop {
            let connections = server.counts().connections;
            server.fault(Rule::once(fault.clone()));
            match site.checkpoint(KEY) {
                Ok(again) => break again,
                // On a busy machine, a connection is idle only a moment after its last response.
                Err(error) => assert!(
                    server.counts().connections > connections,
                    "{}",
                    error.chain()
                ),
            }
        };
        let (tensors, report) = load(&again, narrow()).expect("loads");
        assert_all(&tensors, &[&file]);
        assert_eq!(report.retries, 0);
        // Over a new connection it is an error, and also the second time.
        server.fault(Rule::times(2, fault));
        let error = site.checkpoint(KEY).expect_err("no retry is allowed");
        assert_eq!(error.kind(), ErrorKind::Remote, "{}", error.chain());
        server.clear_faults();
        site.checkpoint(KEY).expect("opens");
    }
}

#[test]
fn idle_threads_and_connections_end() {
    if !is_alone("kept::idle_threads_and_connections_end") {
        return;
    }
    let (server, site) = site();
    let file = even("t", 1, 3, 1000);
    site.put(KEY, &file);
    let checkpoint = site.checkpoint(KEY).expect("opens");
    end_idle_threads();
    assert!(threads("tload-net") > 0, "they have a user");
    drop(checkpoint);
    let each = threads("tload-net");
    assert!(
        each > 0 && server.open_connections() > 0,
        "kept for the next"
    );
    // Those of a few other options are kept, too, and not more.
    for port in 0..10 {
        let other = site.options.clone().with("header.x-port", port.to_string());
        let url = format!("s3://{}/{KEY}", sites::BUCKET);
        open(&url, &other.expect("an option")).expect("opens");
    }
    // On a very slow machine they end by themselves meanwhile.
    eventually("too many threads are kept", || {
        threads("tload-net") <= 4 * each
    });
    // Those of a few buckets, likewise.
    let connections = server.open_connections();
    for bucket in 0..10 {
        let key = format!("bucket-{bucket}/{KEY}");
        server.put(&key, &*file);
        open(&format!("s3://{key}"), &site.options).expect("opens");
    }
    eventually("too many connections are kept", || {
        server.open_connections() <= connections + 4
    });
    eventually("threads are kept", || {
        end_idle_threads();
        threads("tload-net") == 0 && server.open_connections() == 0
    });
    let again = site.checkpoint(KEY).expect("opens");
    assert_all(&load(&again, narrow()).expect("loads").0, &[&file]);
}

/// Wrong credentials are forgotten when their file changes, and right ones too.
#[test]
fn changed_credentials_file_is_noticed() {
    const NAME: &str = "kept::changed_credentials_file_is_noticed";
    let Some(home) = variable("HOME").filter(|_| variable("AWS_PROFILE").is_some()) else {
        let home = folder();
        let path = home.path().to_str().expect("UTF-8");
        let variables = [
            ("HOME", path),
            ("AWS_PROFILE", "p"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ];
        let output = alone::run(NAME, &variables);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    };
    let server = FaultyServer::start();
    let file = even("t", 1, 3, 1000);
    server.put(&format!("models/{KEY}"), &*file);
    let pairs = [
        ("endpoint", server.url()),
        ("region", "us-east-1".to_owned()),
    ];
    let options = StoreOptions::from_pairs(pairs).expect("options");
    let try_open = || open(&format!("s3://models/{KEY}"), &options);
    let write = |key: &str| {
        let text = format!("[p]\naws_access_key_id = {key}\naws_secret_access_key = s\n");
        std::fs::create_dir_all(format!("{home}/.aws")).expect("a temporary folder");
        std::fs::write(format!("{home}/.aws/credentials"), text).expect("a temporary folder");
    };
    assert_eq!(
        try_open().expect_err("no credentials").kind(),
        ErrorKind::PermissionDenied
    );
    for key in ["AKIAONE", "AKIATWO"] {
        write("AKIAWRONG");
        server.require_access_key(Some(key));
        assert_eq!(
            try_open().expect_err("wrong").kind(),
            ErrorKind::PermissionDenied
        );
        write(key);
        let connections = server.counts().connections;
        for _ in 0..3 {
            let checkpoint = try_open().expect("right");
            assert_all(&load(&checkpoint, narrow()).expect("loads").0, &[&file]);
        }
        assert!(server.counts().connections > connections, "another store");
    }
    assert_eq!(
        access_keys(&server),
        ["AKIAWRONG", "AKIAONE", "AKIAWRONG", "AKIATWO"]
    );
}

#[test]
fn thousand_adapters_leave_nothing_behind() {
    if !is_alone("kept::thousand_adapters_leave_nothing_behind") {
        return;
    }
    let (server, site) = site();
    let files: Vec<_> = (0..ADAPTERS as u64)
        .map(|seed| mixed("t", seed, 4, 30_000))
        .collect();
    for (index, file) in files.iter().enumerate() {
        site.put(&format!("loras/{index}/adapter_model.safetensors"), file);
    }
    let (options, files) = (&site.options, &files);
    let load_some = |from: usize, to: usize| {
        std::thread::scope(|scope| {
            for first in 0..4 {
                scope.spawn(move || {
                    for index in (from..to).skip(first).step_by(4) {
                        let url = format!("s3://{}/loras/{index}", sites::BUCKET);
                        let checkpoint = open(&url, options).expect("opens");
                        let (tensors, report) =
                            load(&checkpoint, LoadOptions::default()).expect("loads");
                        assert_all(&tensors, &[&files[index]]);
                        assert_eq!(report.retries, 0);
                    }
                });
            }
        });
    };
    load_some(0, 200);
    let before = (
        open_files(),
        threads("tload-"),
        server.counts().connections,
        resident_bytes(),
    );
    load_some(200, ADAPTERS);
    let connections = server.counts().connections;
    assert!(
        connections <= before.2 + 40,
        "{connections} connections after {}",
        before.2
    );
    let resident = resident_bytes();
    assert!(
        resident < before.3 + (16 << 20),
        "{resident} bytes after {}",
        before.3
    );
    eventually("threads or descriptors leaked", || {
        threads("tload-") <= before.1 + 4 && open_files() <= before.0 + 40
    });
    eventually("threads or connections are kept", || {
        end_idle_threads();
        threads("tload-") == 0 && server.open_connections() == 0
    });
}

/// Returns the resident memory of this process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    kib.expect("the kernel's format") << 10
}

#[test]
fn timeout_of_opening_ends_its_request() {
    let (server, mut site) = site();
    site.put(KEY, &even("t", 1, 3, 1000));
    // Any stage may be the one that it ends.
    site.options.set("open_timeout", "0.3").expect("an option");
    server.fault(Rule::always(Fault::StallHeaders));
    let error = site.checkpoint("lora").expect_err("no response");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
    let closed = server.wait_until(Duration::from_secs(60), |counts| {
        counts.open_connections == 0
    });
    assert!(closed, "{:?}", server.counts());
}
