//! Ends of a load: every one is immediate and leaks nothing.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tload::verify::{Algorithm, Digest, Expectation, Expected};
use tload::{
    Checkpoint, ErrorKind, LoadOptions, Loader, Location, Result, StoreOptions, TensorStream,
    Verify,
};
use tload_testbed::{Fault, FaultyServer, Rule};
use tload_testing::fixtures::Rng;

use crate::alone::is_alone;
use crate::fixtures::{assert_all, even, load, options};
use crate::sites::{Site, faulty_at};

const PATIENCE: Duration = Duration::from_secs(60);
const KEY: &str = "m.safetensors";

struct Bench {
    server: Arc<FaultyServer>,
    site: Site,
    file: Vec<u8>,
}

impl Bench {
    /// Creates a store whose unanswered requests only the caller ends.
    fn new() -> Self {
        let server = Arc::new(FaultyServer::start());
        let mut site = faulty_at(&server);
        site.options.set("read_timeout", "3600").expect("an option");
        let file = even("t", 1, 80, 1 << 18);
        site.put(KEY, &file);
        Self { server, site, file }
    }

    fn open(&self) -> Checkpoint {
        self.site.checkpoint(KEY).expect("opens")
    }

    /// Starts a load and waits until 64 of its requests are in flight and stalled.
    fn stalled(&self, loader: &Loader, fault: Fault) -> TensorStream {
        self.server.fault(Rule::always(fault).from_byte(1));
        let stream = loader.clone().options(wide()).stream().expect("starts");
        let in_flight = self.server.wait_for_in_flight(64, PATIENCE);
        assert!(in_flight, "{:?}", self.server.counts());
        stream
    }

    fn assert_no_connections(&self) {
        eventually("connections leaked", || {
            self.site.client.close_idle();
            self.server.open_connections() == 0
        });
    }

    /// Waits until the threads of dropped loads have ended, with those that later openings may use.
    fn assert_no_threads(&self) {
        eventually("threads leaked", || {
            self.site.client.close_idle();
            threads("tload-") == 0
        });
    }
}

fn wide() -> LoadOptions {
    options(|it| (it.depth, it.extent_bytes) = (Some(64), Some(1 << 18)))
}

/// Waits until `holds` returns true.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        tload_testbed::pause_between_looks();
    }
}

/// Counts the threads of this process whose names begin with `name`.
pub(crate) fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    let names = tasks.filter_map(|task| {
        let path = task.ok()?.path().join("comm");
        std::fs::read_to_string(path).ok()
    });
    names.filter(|found| found.starts_with(name)).count()
}

pub(crate) fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

#[test]
fn drop_with_requests_in_flight_leaks_nothing() {
    if !is_alone("lifecycle::drop_with_requests_in_flight_leaks_nothing") {
        return;
    }
    let bench = Bench::new();
    for fault in [
        Fault::StallHeaders,
        Fault::StallBody(1000),
        Fault::StallBody(0),
    ] {
        let loader = Loader::new(bench.open());
        assert!(
            threads("tload-net") > 0,
            "requests run on threads of their own"
        );
        let stream = bench.stalled(&loader, fault);
        drop(stream);
        // The threads may live as long as the checkpoint.
        bench.server.clear_faults();
        let (tensors, report) = load(loader.checkpoint(), wide()).expect("loads");
        assert_all(&tensors, &[&bench.file]);
        assert_eq!(report.outcome, "complete");
        drop(loader);
        bench.assert_no_connections();
        bench.assert_no_threads();
    }
}

#[test]
fn cancel_with_requests_in_flight_leaks_no_connection() {
    let bench = Bench::new();
    for fault in [Fault::StallHeaders, Fault::StallBody(1000)] {
        let loader = Loader::new(bench.open());
        let mut stream = bench.stalled(&loader, fault.clone());
        let canceller = stream.canceller();
        std::thread::scope(|scope| {
            scope.spawn(move || canceller.cancel());
            let error = stream.find_map(Result::err).expect("cancelled");
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", error.chain());
        });
        assert_eq!(stream.report().outcome, "cancelled");
        bench.server.clear_faults();
        // A second load of this loader reuses its cached memory.
        let again = loader.clone().options(wide()).stream().expect("starts");
        let tensors: Result<Vec<_>> = again.collect();
        assert_all(&tensors.expect("loads"), &[&bench.file]);
        drop((stream, loader));
        bench.assert_no_connections();
    }
}

/// Cancellation interrupts the backoff.
#[test]
fn cancel_interrupts_backoff() {
    let bench = Bench::new();
    let loader = Loader::new(bench.open()).options(options(|it| it.depth = Some(1)));
    bench.server.forget_requests();
    bench.server.fault(Rule::always(Fault::slow_down(30)));
    let mut stream = loader.stream().expect("starts");
    eventually("no request", || bench.server.requests().len() == 1);
    assert!(bench.server.wait_for_idle(PATIENCE));
    stream.cancel();
    let error = stream.find_map(Result::err).expect("cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", error.chain());
    drop((stream, loader));
    bench.assert_no_connections();
    assert_eq!(
        bench.server.requests().len(),
        1,
        "no retry after the cancellation"
    );
}

#[test]
fn timeout_applies_to_silence_and_backoff() {
    let bench = Bench::new();
    let checkpoint = bench.open();
    for fault in [
        Fault::StallHeaders,
        Fault::StallBody(1000),
        Fault::slow_down(30),
    ] {
        bench.server.fault(Rule::always(fault));
        // Any stage may be the one that it ends.
        let limited = options(|it| it.timeout = Some(Duration::from_millis(200)));
        let error = load(&checkpoint, limited).expect_err("takes too long");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
        bench.server.clear_faults();
    }
    assert_all(&load(&checkpoint, wide()).expect("loads").0, &[&bench.file]);
}

#[test]
fn load_succeeds_after_failed_one() {
    let bench = Bench::new();
    let loader = Loader::new(bench.open()).options(options(|it| it.retries = Some(0)));
    for fault in [
        Fault::status(500, "InternalError"),
        Fault::status(403, "AccessDenied"),
        Fault::CutBody(5),
    ] {
        bench.server.fault(Rule::always(fault));
        let mut stream = loader.stream().expect("starts");
        assert!(stream.find_map(Result::err).is_some());
        assert!(stream.next().is_none(), "no item follows an error");
        bench.server.clear_faults();
        let tensors: Result<Vec<_>> = loader.stream().expect("starts").collect();
        assert_all(&tensors.expect("loads"), &[&bench.file]);
    }
}

#[test]
fn concurrent_loads_do_not_interfere() {
    let bench = Bench::new();
    let checkpoint = bench.open();
    std::thread::scope(|scope| {
        for depth in [1, 3, 16, 64] {
            let (checkpoint, file) = (&checkpoint, &bench.file);
            scope.spawn(move || {
                let options =
                    options(|it| (it.depth, it.extent_bytes) = (Some(depth), Some(1 << 17)));
                assert_all(&load(checkpoint, options).expect("loads").0, &[file]);
            });
        }
    });
    // A stalled load does not delay another one.
    let loader = Loader::new(checkpoint);
    let stalled = bench.stalled(&loader, Fault::StallHeaders);
    bench.server.fault(Rule::always(Fault::StallHeaders));
    bench.server.clear_faults();
    assert_eq!(stalled.map(Result::unwrap).count(), 80);
}

/// Fifty loads that end in every way leak neither descriptors nor threads.
#[test]
fn loads_ending_in_every_way_leak_nothing() {
    if !is_alone("lifecycle::loads_ending_in_every_way_leak_nothing") {
        return;
    }
    let bench = Bench::new();
    let mut rng = Rng::new(1);
    let mut wanted = None;
    for round in 0..50 {
        let loader = Loader::new(bench.open()).options(wide());
        match round % 5 {
            0 => drop(loader.stream().expect("starts")),
            1 => {
                let mut stream = bench.stalled(&loader, Fault::StallBody(9));
                stream.cancel();
                assert!(stream.find_map(Result::err).is_some());
            }
            2 => drop(bench.stalled(&loader, Fault::StallHeaders)),
            3 => {
                bench.server.fault(Rule::times(3, Fault::ResetBody(1000)));
                assert_eq!(
                    loader.stream().expect("starts").map(Result::unwrap).count(),
                    80
                );
            }
            _ => {
                let few = rng.index(80);
                assert_eq!(loader.stream().expect("starts").take(few).count(), few);
            }
        }
        bench.server.clear_faults();
        drop(loader);
        bench.assert_no_connections();
        bench.assert_no_threads();
        // The first round may open descriptors that stay open.
        let wanted = *wanted.get_or_insert_with(open_files);
        eventually("descriptors leaked", || open_files() <= wanted);
    }
}

/// Moments are counted in requests that the server has accepted: before the first, after the last,
/// and between. Some of them fail or stall, so that some moments fall into a backoff.
#[test]
fn end_at_any_moment_leaks_nothing() {
    if !is_alone("lifecycle::end_at_any_moment_leaks_nothing") {
        return;
    }
    let bench = Bench::new();
    let file = even("t", 2, 40, 60_000);
    bench.site.put("small.safetensors", &file);
    let mut rng = Rng::new(5);
    let mut wanted = None;
    for round in 0..200 {
        let checkpoint = bench.site.checkpoint("small.safetensors").expect("opens");
        let loader = Loader::new(checkpoint).options(options(|it| {
            it.depth = Some(rng.pick(&[1, 4, 16]));
            it.extent_bytes = Some(rng.pick(&[8192, 65_536]));
            it.memory_limit = Some(rng.pick(&[2 << 20, 8 << 20]));
        }));
        let fault = match rng.below(5) {
            0 => Some(Fault::StallHeaders),
            1 => Some(Fault::StallBody(rng.index(8000))),
            2 => Some(Fault::ResetBody(rng.index(8000))),
            3 => Some(Fault::slow_down(30)),
            _ => None,
        };
        if let Some(fault) = fault {
            let few = 1 + rng.index(3);
            let rule = Rule::times(few, fault).from_byte(1).after(rng.index(12));
            bench.server.fault(rule);
        }
        end_at(&bench.server, &mut rng, loader, &file, round % 3);
        bench.server.clear_faults();
        bench.assert_no_connections();
        bench.assert_no_threads();
        let wanted = *wanted.get_or_insert_with(open_files);
        eventually("descriptors leaked", || open_files() <= wanted);
    }
}

/// Starts a load and ends it once the server has seen some of its requests.
fn end_at(server: &FaultyServer, rng: &mut Rng, loader: Loader, file: &[u8], ending: usize) {
    let at = server.counts().requests + rng.index(45);
    let has_come = || server.counts().requests >= at;
    // Stalled requests never add up: the number of turns limits the wait.
    let turns = 100 + rng.below(1000);
    let mut stream = loader.stream().expect("starts");
    let mut kept = Vec::new();
    if ending == 0 {
        let canceller = stream.canceller();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = (0..100 * turns).any(|_| {
                    std::hint::spin_loop();
                    has_come()
                });
                canceller.cancel();
            });
            let is_ours = |error: &tload::Error| error.kind() == ErrorKind::Cancelled;
            for item in stream.by_ref() {
                match item {
                    Ok(tensor) => kept.push(tensor),
                    Err(error) => assert!(is_ours(&error), "{}", error.chain()),
                }
            }
        });
    } else {
        for _ in 0..turns {
            if has_come() {
                break;
            }
            match stream.wait(Duration::from_micros(50)) {
                Poll::Pending => {}
                Poll::Ready(None) => break,
                Poll::Ready(Some(tensor)) => kept.push(tensor.expect("only transient faults")),
            }
        }
        if ending == 1 {
            drop(stream);
        } else {
            let dropping = std::thread::spawn(move || drop((stream, loader)));
            dropping.join().expect("drops on any thread");
        }
    }
    let theirs = safetensors::SafeTensors::deserialize(file).expect("a valid file");
    for tensor in kept {
        let view = theirs.tensor(tensor.name()).expect("in the file");
        assert!(tensor.bytes() == view.data(), "{tensor:?}: wrong bytes");
    }
}

/// A server that does not respond delays the opening of a checkpoint at most until `open_timeout`.
#[test]
fn opening_ends_at_open_timeout() {
    let server = FaultyServer::start();
    server.put("models/m.safetensors", vec![0; 64]);
    server.fault(Rule::always(Fault::StallHeaders));
    let options = StoreOptions::from_pairs([
        ("endpoint", server.url()),
        ("anonymous", "true".to_owned()),
        // Any stage may be the one that it ends.
        ("open_timeout", "0.3".to_owned()),
    ])
    .expect("valid options");
    for location in ["s3://models/m.safetensors", "s3://models/m"] {
        let location = Location::parse(location).expect("a URL");
        let error =
            Checkpoint::open_with(&location, &options).expect_err("the server does not respond");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
        assert_eq!(error.location(), Some(&*location.to_string()));
    }
}

/// A deadline does not hide why the server had to be asked again and again.
#[test]
fn opening_that_takes_too_long_names_the_last_failure() {
    let server = FaultyServer::start();
    server.put("models/m.safetensors", vec![0; 64]);
    server.fault(Rule::always(Fault::status(503, "SlowDown")));
    let location = Location::parse("s3://models/m.safetensors").expect("a URL");
    let opened = |timeout: &str| {
        let options = StoreOptions::from_pairs([
            ("endpoint", server.url()),
            ("anonymous", "true".to_owned()),
            ("retries", "100000".to_owned()),
            ("open_timeout", timeout.to_owned()),
        ]);
        let opened = Checkpoint::open_with(&location, options.expect("valid options"));
        let error = opened.expect_err("the server refuses");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
        error.message().to_owned()
    };
    // A busy machine may not have an answer within the first.
    let says_why = |timeout: &&str| {
        let said = opened(timeout);
        said.contains("the last failure: ") && said.contains("SlowDown")
    };
    assert!(["1", "10", "100"].iter().any(says_why));
}

/// Neither loads nor requests of an opened checkpoint are limited by `open_timeout`.
#[test]
fn open_timeout_does_not_limit_loads() {
    const LIMIT: Duration = Duration::from_millis(300);
    let server = FaultyServer::start();
    let file = even("t", 3, 4, 1000);
    server.put("models/m.safetensors", file.clone());
    let store = StoreOptions::from_pairs([
        ("endpoint", server.url()),
        ("anonymous", "true".to_owned()),
        ("open_timeout", LIMIT.as_secs_f64().to_string()),
    ])
    .expect("valid options");
    let location = Location::parse("s3://models/m.safetensors").expect("a URL");
    // Retries on a busy machine, which may need longer.
    let checkpoint = loop {
        match Checkpoint::open_with(&location, &store) {
            Ok(checkpoint) => break checkpoint,
            Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain()),
        }
    };
    let (_open, opened) = std::sync::mpsc::channel::<()>();
    opened.recv_timeout(LIMIT * 2).expect_err("nothing is sent");
    // With a SHA-256 of the whole file, the header is read again.
    let expected = Expectation::Of(Expected {
        by: "the test".to_owned(),
        whole: Some(Digest::compute(Algorithm::Sha256, &file)),
        ..Expected::default()
    });
    for expectations in [None, Some(expected)] {
        let mut loader =
            Loader::new(checkpoint.clone()).options(options(|it| it.verify = Verify::Auto));
        if let Some(expected) = expectations {
            loader = loader.expectations([expected]);
        }
        let mut stream = loader.stream().expect("open_timeout does not apply");
        let tensors: Vec<_> = stream.by_ref().collect::<Result<_, _>>().expect("loads");
        assert_eq!(tensors.len(), 4);
    }
}
