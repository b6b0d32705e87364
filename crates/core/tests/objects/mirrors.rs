//! Mirrors and peers: ranges come from wherever they come fast, and never a byte that the origin
//! does not have.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tload::report::MirrorReport;
use tload::{Checkpoint, ErrorKind, Loader, Report, Selection, StoreOptions, Tensor};
use tload_testbed::{Fault, FaultyServer, Nginx, Operation, Rule, require};

use crate::fixtures::{assert_all, even, folder, in_file_order, load};
use crate::sites::{Site, faulty_at, versitygw};

const KEY: &str = "m/model.safetensors";
/// A mirror that a busy machine made look a hundred times slower than the origin is used again
/// after more than a minute: its speed counts twice every ten seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns a file of 24 MiB.
fn file() -> Vec<u8> {
    even("t", 7, 12, 2 << 20)
}

/// An origin that has the file.
pub(crate) fn origin(file: &[u8]) -> (Arc<FaultyServer>, Site) {
    let server = Arc::new(FaultyServer::start());
    let site = faulty_at(&server);
    site.put(KEY, file);
    (server, site)
}

/// A mirror that has `file` under the name that the origin's file has below `m`.
pub(crate) fn mirror(file: &[u8]) -> FaultyServer {
    let server = FaultyServer::start();
    server.put("copy/model.safetensors", file);
    server
}

pub(crate) fn place(server: &FaultyServer) -> String {
    format!("{}/copy", server.url())
}

pub(crate) fn with(site: &Site, pairs: &[(&str, &str)]) -> StoreOptions {
    let mut options = site.options.clone();
    for (name, value) in pairs {
        options.set(name, *value).expect("an option");
    }
    options
}

pub(crate) fn open(site: &Site, options: &StoreOptions) -> Checkpoint {
    Checkpoint::open_with(site.location("m"), options).expect("opens")
}

fn all(checkpoint: &Checkpoint) -> (Vec<Tensor>, Report) {
    load(checkpoint, in_file_order()).expect("loads")
}

/// Loads again and again, until the report of the only mirror is as wanted.
pub(crate) fn load_until(
    checkpoint: &Checkpoint,
    files: &[&[u8]],
    is_enough: impl Fn(&MirrorReport) -> bool,
) -> MirrorReport {
    let begun = Instant::now();
    loop {
        let (tensors, report) = all(checkpoint);
        assert_all(&tensors, files);
        assert_eq!(report.mirrors.len(), 1);
        let mirror = &report.mirrors[0];
        if is_enough(mirror) {
            return mirror.clone();
        }
        assert!(begun.elapsed() < PATIENCE, "{report}");
    }
}

/// Requests for objects that were answered without a fault.
fn served(server: &FaultyServer) -> usize {
    let requests = server.requests();
    let good = requests
        .iter()
        .filter(|it| it.operation == Operation::Get && !it.faulted);
    good.count()
}

#[test]
fn mirror_serves_what_the_origin_does_not_send() {
    let file = file();
    let (server, site) = origin(&file);
    let mirror = mirror(&file);
    let options = with(&site, &[("mirrors", &place(&mirror))]);
    let checkpoint = open(&site, &options);
    load_until(&checkpoint, &[&file], |mirror| mirror.read_bytes > 0);
    server.fault(Rule::always(Fault::StallHeaders).on(Operation::Get));
    let (tensors, report) = all(&checkpoint);
    assert_all(&tensors, &[&file]);
    assert!(report.mirrors[0].read_bytes > 24 << 20, "{report}");
    assert_eq!(report.mirrors[0].failure, None);
    assert!(report.to_string().contains("mirror   "), "{report}");
    server.clear_faults();
}

#[test]
fn mirror_takes_over_from_an_origin_that_fails() {
    let file = file();
    let (server, site) = origin(&file);
    let mirror = mirror(&file);
    let options = with(&site, &[("mirrors", &place(&mirror)), ("retries", "1")]);
    let checkpoint = open(&site, &options);
    load_until(&checkpoint, &[&file], |mirror| mirror.read_bytes > 0);
    server.fault(Rule::always(Fault::status(500, "InternalError")).on(Operation::Get));
    // The last request of a load asks whether the object is still the one that was opened.
    let error = load(&checkpoint, in_file_order()).err();
    assert!(error.is_none_or(|error| error.kind() == ErrorKind::Remote));
}

/// Mirrors are compared with the origin's file when they are opened.
#[test]
fn failure_of_the_origin_is_not_that_of_a_mirror() {
    let file = file();
    let (server, site) = origin(&file);
    let mirror = mirror(&file);
    let checkpoint = open(&site, &with(&site, &[("mirrors", &place(&mirror))]));
    let edge = file.len() as u64 - (64 << 10);
    let refusal = Fault::status(403, "AccessDenied");
    server.fault(Rule::always(refusal).on(Operation::Get).from_byte(edge));
    while !server.requests().iter().any(|it| it.faulted) {
        assert_all(&all(&checkpoint).0, &[&file]);
    }
    server.clear_faults();
    let mirror = load_until(&checkpoint, &[&file], |mirror| mirror.read_bytes > 0);
    assert_eq!((mirror.failure, mirror.is_dropped), (None, false));
}

#[test]
fn files_with_another_etag_are_compared() {
    let (Some(site), Some(nginx)) = (versitygw(), require(Nginx::start())) else {
        return;
    };
    let file = file();
    site.put(KEY, &file);
    nginx.put("copy/model.safetensors", &file).expect("a file");
    let place = format!("{}/copy", nginx.url());
    let checkpoint = open(&site, &with(&site, &[("mirrors", &place)]));
    let mirror = load_until(&checkpoint, &[&file], |mirror| mirror.read_bytes > 0);
    assert_eq!((mirror.failure, mirror.is_dropped), (None, false));
}

#[test]
fn mirror_with_other_bytes_is_dropped_and_named() {
    let file = file();
    let mut header = file.clone();
    header[9] ^= 1;
    let mut tail = file.clone();
    *tail.last_mut().expect("bytes") ^= 1;
    for (other, wanted) in [
        (&file[..file.len() - 1], "bytes; the origin's file has"),
        (&header, "begins with other bytes"),
        (&tail, "ends with other bytes"),
    ] {
        let (_server, site) = origin(&file);
        let mirror = mirror(other);
        let place = place(&mirror);
        let checkpoint = open(&site, &with(&site, &[("mirrors", &place)]));
        let report = load_until(&checkpoint, &[&file], |mirror| mirror.is_dropped);
        let failure = report.failure.expect("a failure");
        assert!(failure.contains(wanted), "{failure}");
        assert_eq!((&report.location, report.read_bytes), (&place, 0));
    }
}

#[test]
fn dropped_mirror_is_not_asked_for_other_files() {
    let (file, other) = (even("a", 1, 4, 1 << 20), even("b", 2, 4, 1 << 20));
    let site = faulty_at(&Arc::new(FaultyServer::start()));
    site.put("m/a.safetensors", &file);
    site.put("m/b.safetensors", &other);
    let mut wrong = file.clone();
    *wrong.last_mut().expect("bytes") ^= 1;
    let mirror = FaultyServer::start();
    mirror.put("copy/a.safetensors", &*wrong);
    mirror.put("copy/b.safetensors", &*other);
    let checkpoint = open(&site, &with(&site, &[("mirrors", &place(&mirror))]));
    let begun = Instant::now();
    loop {
        let of_file = Loader::new(checkpoint.clone()).select(Selection::names(["a0"]));
        let mut stream = of_file.stream().expect("starts");
        assert!(stream.by_ref().all(|tensor| tensor.is_ok()));
        if stream.report().mirrors[0].is_dropped {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", stream.report());
    }
    assert_all(&all(&checkpoint).0, &[&file, &other]);
    let mut asked = mirror.requests().into_iter();
    assert!(!asked.any(|it| it.path.ends_with("b.safetensors")));
}

#[test]
fn mirror_that_changes_or_cuts_is_left() {
    let file = file();
    for fault in [
        Fault::CutBody(100_000),
        Fault::ResetBeforeHeaders,
        Fault::status(403, "AccessDenied"),
        Fault::ChangeBefore(even("u", 9, 12, 2 << 20)),
        Fault::LongBody(5),
        Fault::IgnoreRange,
        Fault::WrongContentRange(1),
    ] {
        let (_server, site) = origin(&file);
        let mirror = mirror(&file);
        let checkpoint = open(&site, &with(&site, &[("mirrors", &place(&mirror))]));
        let shown = fault.to_string();
        load_until(&checkpoint, &[&file], |mirror| mirror.read_bytes > 0);
        mirror.fault(Rule::always(fault).on(Operation::Get));
        let report = load_until(&checkpoint, &[&file], |mirror| mirror.failure.is_some());
        assert!(report.failure.is_some(), "{shown}");
    }
}

#[test]
fn dripping_mirror_is_left_within_the_range() {
    let file = file();
    let (_server, site) = origin(&file);
    let mirror = mirror(&file);
    let checkpoint = open(&site, &with(&site, &[("mirrors", &place(&mirror))]));
    load_until(&checkpoint, &[&file], |mirror| mirror.read_bytes > 0);
    let pause = Duration::from_millis(100);
    mirror.fault(Rule::always(Fault::Drip { bytes: 10, pause }).on(Operation::Get));
    let report = load_until(&checkpoint, &[&file], |mirror| mirror.failure.is_some());
    let failure = report.failure.expect("it was too slow");
    assert!(failure.contains("several times faster"), "{failure}");
    mirror.clear_faults();
}

#[test]
fn unreachable_mirror_costs_nothing() {
    let file = file();
    let (_server, site) = origin(&file);
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("bound")
    };
    let place = format!("http://{gone}/copy");
    let checkpoint = open(&site, &with(&site, &[("mirrors", &place)]));
    let report = load_until(&checkpoint, &[&file], |mirror| mirror.failure.is_some());
    assert_eq!(report.read_bytes, 0);
}

#[test]
fn credentials_stay_with_the_origin() {
    let file = file();
    let (_server, site) = origin(&file);
    let mirror = mirror(&file);
    let options = with(
        &site,
        &[
            ("header.x-team", "hunter2"),
            ("mirrors", &place(&mirror)),
            ("mirror_token", "for-mirrors"),
        ],
    );
    let shown = format!("{options:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("for-mirrors"));
    let checkpoint = open(&site, &options);
    load_until(&checkpoint, &[&file], |mirror| mirror.read_bytes > 0);
    for request in mirror.requests() {
        let headers = &request.headers;
        assert_eq!(headers["authorization"], "Bearer for-mirrors");
        let text = format!("{headers:?}");
        assert!(
            !text.contains("hunter2") && !text.contains("testtest"),
            "{text}"
        );
    }
}

#[test]
fn every_part_comes_from_its_owner() {
    // Five parts.
    let file = even("t", 8, 10, 8 << 20);
    let (server, site) = origin(&file);
    let mirrors = [(); 3].map(|()| mirror(&file));
    let peers = mirrors.each_ref().map(place).join(",");
    let options = with(&site, &[("peers", &peers)]);
    let ask = || {
        let checkpoint = open(&site, &options);
        let header = served(&server);
        let (tensors, report) = all(&checkpoint);
        assert_all(&tensors, &[&file]);
        // At the end one request asks whether the object is still the same.
        assert!(served(&server) <= header + 1, "{:?}", server.requests());
        report
            .mirrors
            .iter()
            .map(|it| it.read_bytes)
            .collect::<Vec<_>>()
    };
    let (first, second) = (ask(), ask());
    assert_eq!(first, second, "every process asks the same peers");
    assert!(first.iter().sum::<u64>() >= 80 << 20, "{first:?}");
    // The parts of a peer that is gone have other owners.
    mirrors[0].fault(Rule::always(Fault::ResetBeforeHeaders));
    let third = ask();
    assert!(
        third.iter().filter(|bytes| **bytes > 0).count() <= 2,
        "{third:?}"
    );
    assert!(third.iter().sum::<u64>() >= 80 << 20, "{third:?}");
}

/// It has the length and both ends of the origin's: a peer may have asked the origin a while ago.
#[test]
fn version_that_a_peer_had_before_is_not_read() {
    let file = file();
    let (_server, site) = origin(&file);
    let mut before = file.clone();
    before[12 << 20..13 << 20].fill(0x55);
    let peer = mirror(&file);
    // With another ETag.
    peer.put("copy/model.safetensors", &*before);
    let checkpoint = open(&site, &with(&site, &[("peers", &place(&peer))]));
    let other = load_until(&checkpoint, &[&file], |it| it.failure.is_some());
    assert_eq!((other.read_bytes, other.is_dropped), (0, false));
    let failure = other.failure.unwrap_or_default();
    assert!(failure.contains("has the ETag \""), "{failure}");
    // The entity tags of a mirror are its own.
    let copy = mirror(&before);
    copy.put("copy/model.safetensors", &*file);
    let checkpoint = open(&site, &with(&site, &[("mirrors", &place(&copy))]));
    load_until(&checkpoint, &[&file], |it| it.read_bytes > 0);
}

/// A machine that restarts is paused, and used again when it is back.
#[test]
fn peer_that_comes_back_is_used_again() {
    let file = file();
    let (_server, site) = origin(&file);
    let peer = mirror(&file);
    let checkpoint = open(&site, &with(&site, &[("peers", &place(&peer))]));
    load_until(&checkpoint, &[&file], |it| it.read_bytes > 0);
    peer.fault(Rule::always(Fault::ResetBeforeHeaders));
    let gone = load_until(&checkpoint, &[&file], |it| it.failure.is_some());
    assert!(!gone.is_dropped, "{gone:?}");
    let gone = load_until(&checkpoint, &[&file], |_| true);
    peer.clear_faults();
    load_until(&checkpoint, &[&file], |it| it.read_bytes > gone.read_bytes);
    // One that cannot be reached when it is needed first.
    let checkpoint = open(&site, &with(&site, &[("peers", &place(&peer))]));
    peer.fault(Rule::always(Fault::ResetBeforeHeaders));
    let gone = load_until(&checkpoint, &[&file], |it| it.failure.is_some());
    assert_eq!((gone.read_bytes, gone.is_dropped), (0, false));
    peer.clear_faults();
    load_until(&checkpoint, &[&file], |it| it.read_bytes > 0);
}

/// No peer can be reached, and the origin falls silent: its own limits apply. A request is left for
/// another place after 10 s, which there is none of.
#[test]
fn silent_origin_without_peers_is_an_error() {
    let file = file();
    let (server, site) = origin(&file);
    let peer = mirror(&file);
    peer.fault(Rule::always(Fault::ResetBeforeHeaders));
    let options = [
        ("peers", &*place(&peer)),
        ("read_timeout", "11"),
        ("retries", "0"),
    ];
    let checkpoint = open(&site, &with(&site, &options));
    server.fault(Rule::always(Fault::StallBody(100)).from_byte(1 << 20));
    let mut loading = in_file_order();
    loading.timeout = Some(PATIENCE);
    let error = load(&checkpoint, loading).expect_err("nothing comes");
    assert!(error.message().contains("read timeout"), "{error}");
    server.clear_faults();
}

/// Variable that is set in the child process of the test below.
#[cfg(target_os = "linux")]
const MARK: &str = "TLOAD_TEST_PEER_NAMES";

/// A child process has a mount namespace, and in it a file of host names of its own.
#[cfg(target_os = "linux")]
#[test]
fn peers_are_resolved_again_while_they_are_read() {
    if std::env::var_os(MARK).is_some() {
        return resolve_again();
    }
    let unshare = || {
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        command
    };
    let tried = unshare().arg("true").output();
    let can = match tried {
        Ok(output) if output.status.success() => Ok(()),
        tried => Err(format!("cannot make a mount namespace: {tried:?}")),
    };
    if tload_testbed::require_named("mount", can).is_none() {
        return;
    }
    let name = "mirrors::peers_are_resolved_again_while_they_are_read";
    let child = unshare()
        .arg(std::env::current_exe().expect("a process knows its executable"))
        .args(["--exact", name, "--test-threads=1", "--nocapture"])
        .env(MARK, "1")
        .output()
        .expect("starts");
    let output = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{output}");
}

#[cfg(target_os = "linux")]
fn resolve_again() {
    let folder = folder();
    let hosts = folder.path().join("hosts");
    let write = |addresses: &[SocketAddr]| {
        let line = |address: &SocketAddr| format!("{} tload-peers\n", address.ip());
        let lines: String = addresses.iter().map(line).collect();
        std::fs::write(&hosts, format!("127.0.0.1 localhost\n{lines}")).expect("writes");
    };
    write(&[]);
    rustix::mount::mount_bind(&hosts, "/etc/hosts").expect("a mount namespace");
    let file = file();
    let (_server, site) = origin(&file);
    let start = |ip: &str, port: u16| {
        let ip: std::net::IpAddr = ip.parse().expect("an address");
        let peer = FaultyServer::start_at((ip, port).into());
        peer.put("copy/model.safetensors", &*file);
        peer
    };
    let one = start("127.0.0.2", 0);
    // Addresses decide who owns the two parts of the file: with one other peer, it may own none.
    let port = one.address().port();
    let others: Vec<FaultyServer> = (3..35)
        .map(|last| start(&format!("127.0.0.{last}"), port))
        .collect();
    let peers = std::iter::once(&one).chain(&others);
    let all_at: Vec<SocketAddr> = peers.map(FaultyServer::address).collect();
    let name = format!("http://tload-peers:{}/copy", one.address().port());
    // The name leads nowhere at first.
    let checkpoint = open(&site, &with(&site, &[("peers", &name)]));
    let begun = Instant::now();
    let from = |report: &Report, peer: &FaultyServer| {
        let mut mirrors = report.mirrors.iter();
        let found = mirrors.find(|it| it.location == place(peer));
        found.map_or(0, |it| it.read_bytes)
    };
    let until = |is_enough: &dyn Fn(&Report) -> bool| loop {
        let (tensors, report) = all(&checkpoint);
        assert_all(&tensors, &[&file]);
        if is_enough(&report) {
            return report;
        }
        assert!(begun.elapsed() < PATIENCE, "{report}");
    };
    until(&|report| report.mirrors.is_empty());
    write(&[one.address()]);
    until(&|report| from(report, &one) > 0);
    let from_others =
        |report: &Report| -> u64 { others.iter().map(|other| from(report, other)).sum() };
    write(&all_at);
    until(&|report| from_others(report) > 0);
    // Those that have gone would own parts still.
    write(&[one.address()]);
    let before = Cell::new([0, 0]);
    until(&|report| {
        let now = [from(report, &one), from_others(report)];
        let before = before.replace(now);
        now[0] > before[0] && now[1] == before[1]
    });
}

#[test]
fn contradictory_and_invalid_options_are_refused() {
    let site = faulty_at(&Arc::new(FaultyServer::start()));
    for place in ["", "/models", "ftp://h/x", "http://h/a,,http://h/b"] {
        let set = site.options.clone().with("mirrors", place);
        let error = set.expect_err(place);
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{place}");
    }
    let file = file();
    let (_server, site) = origin(&file);
    for (pairs, wanted) in [
        (
            &[("mirrors", "http://h/a"), ("peers", "http://h/a")][..],
            "exclude each other",
        ),
        (
            &[("mirrors", "s3://b/a"), ("mirror_token", "t")],
            "mirror_token",
        ),
        (
            &[("peers", "https://h/a")],
            "not a URL of a plain web server",
        ),
    ] {
        let options = with(&site, pairs);
        let error = Checkpoint::open_with(site.location("m"), &options).expect_err(wanted);
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(error.to_string().contains(wanted), "{error}");
    }
}
