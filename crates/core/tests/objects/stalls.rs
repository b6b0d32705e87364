//! Requests that take much longer than others: hedged, limited by a minimum speed, and neither if
//! disabled.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tload::{Checkpoint, ErrorKind, LoadOptions, Loader, Report, Result, Tensor};
use tload_testbed::{Fault, FaultyServer, Rule};

use crate::fixtures::{assert_all, even, load, options};
use crate::growing_timeouts::until_it_stalls;
use crate::sites::{Site, faulty_at};

const MIB: usize = 1 << 20;

/// Server with one file of 32 reads.
struct Bench {
    server: Arc<FaultyServer>,
    site: Site,
    file: Vec<u8>,
}

impl Bench {
    fn new(read_timeout: &str) -> Self {
        let server = Arc::new(FaultyServer::start());
        let mut site = faulty_at(&server);
        site.options
            .set("read_timeout", read_timeout)
            .expect("an option");
        let file = even("t", 3, 32, MIB / 4);
        site.put("m.safetensors", &file);
        Self { server, site, file }
    }

    fn open(&self) -> Checkpoint {
        let opened = self.site.checkpoint("m.safetensors").expect("opens");
        self.server.forget_requests();
        opened
    }
}

/// Returns options for one request at a time, each for one read.
fn serially(set: impl FnOnce(&mut LoadOptions)) -> LoadOptions {
    options(|it| {
        (it.depth, it.extent_bytes) = (Some(1), Some(MIB as u64 / 4));
        set(it);
    })
}

fn loaded(checkpoint: &Checkpoint, options: LoadOptions) -> Result<(Vec<Tensor>, Report)> {
    load(checkpoint, options)
}

/// Loads with one request that stalls, after enough others to know the usual latency. On a busy
/// machine, others may appear to stall, too: then it loads again.
fn with_one_stall(bench: &Bench, fault: &Fault, options: &LoadOptions) -> Report {
    for _ in 0..20 {
        let checkpoint = bench.open();
        bench
            .server
            .fault(Rule::once(fault.clone()).from_byte(1).after(24));
        let (tensors, report) = loaded(&checkpoint, options.clone()).expect("loads");
        bench.server.clear_faults();
        assert_all(&tensors, &[&bench.file]);
        assert!(report.stalls > 0, "{fault:?}: {report}");
        if report.stalls == 1 {
            return report;
        }
    }
    unreachable!("this machine always stalls");
}

#[test]
fn stalled_request_is_hedged_and_first_response_wins() {
    // A read timeout of a minute does not detect the stall.
    let bench = Bench::new("60");
    for fault in [Fault::StallBody(100_000), Fault::StallHeaders] {
        let report = with_one_stall(&bench, &fault, &serially(|_| ()));
        assert_eq!(
            (report.hedges, report.hedges_won),
            (1, 1),
            "{fault:?}: {report}"
        );
        assert_eq!(report.retries, 0, "{fault:?}: {report}");
        let requests = bench.server.requests();
        assert_eq!(requests.len() as u64, report.requests, "{fault:?}");
        // Only missing bytes are requested again.
        let range = |index: usize| requests[index].range.clone().expect("a range");
        let (stalled, second) = (range(24), range(25));
        assert_eq!(stalled.end, second.end);
        let came = second.start - stalled.start;
        let most = if matches!(fault, Fault::StallHeaders) {
            0
        } else {
            100_000
        };
        assert_eq!(came, most, "{fault:?}");
        assert!(report.to_string().contains("hedged"), "{report}");
    }
}

/// A progress bar follows a slow link before the first tensor of a large request is complete.
#[test]
fn progress_counts_bytes_of_requests_that_are_not_complete() {
    let bench = Bench::new("60");
    let stall = Rule::once(Fault::StallBody(100_000)).from_byte(1);
    let checkpoint = bench.open();
    bench.server.fault(stall);
    let alone = serially(|it| it.hedge = Some(false));
    let stream = Loader::new(checkpoint).options(alone).stream();
    let mut stream = stream.expect("starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while stream.progress().bytes_read < 100_000 {
        assert!(Instant::now() < deadline, "{:?}", stream.progress());
        assert!(stream.wait(Duration::from_millis(5)).is_pending());
    }
    let progress = stream.progress();
    assert_eq!(progress.bytes_done(), 100_000, "{progress:?}");
    assert_eq!(progress.tensors_received, 0, "{progress:?}");
    assert_eq!(stream.report().read_bytes, 0);
}

#[test]
fn disabled_hedging_sends_nothing_twice() {
    let bench = Bench::new("3");
    let alone = serially(|it| it.hedge = Some(false));
    let report = with_one_stall(&bench, &Fault::StallBody(100_000), &alone);
    assert_eq!(report.hedges, 0, "{report}");
    assert_eq!((report.retries, report.request_retries), (1, 1), "{report}");
    let last = report.last_retry.expect("has a last retry");
    assert!(last.contains("m.safetensors ["), "{last}");
}

/// At most one request in twenty is hedged, however many stall.
#[test]
fn hedging_is_limited_when_whole_store_is_slow() {
    let bench = Bench::new("0.9");
    let checkpoint = bench.open();
    bench.server.fault(
        Rule::times(6, Fault::StallBody(100_000))
            .from_byte(1)
            .after(20),
    );
    let (tensors, report) = loaded(&checkpoint, serially(|_| ())).expect("loads");
    assert_all(&tensors, &[&bench.file]);
    assert!((1..=3).contains(&report.hedges), "{report}");
    assert!(report.stalls > report.hedges, "{report}");
}

/// A trickle of bytes is not progress: neither the silence that the timeout detects nor a usable
/// transfer.
#[test]
fn dripping_server_times_out_without_load_timeout() {
    // Longer than any other request takes on a busy machine.
    let bench = Bench::new("3");
    let checkpoint = bench.open();
    let drip = Fault::Drip {
        bytes: 64,
        pause: Duration::from_millis(20),
    };
    bench.server.fault(Rule::always(drip.clone()).from_byte(1));
    let impatient = serially(|it| it.retries = Some(1));
    let error = loaded(&checkpoint, impatient).expect_err("drips forever");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
    assert_eq!(error.request().expect("a request").attempts, 2);
    bench.server.clear_faults();
    // A single drip is transient, and the bytes that arrived are kept.
    bench.server.forget_requests();
    bench.server.fault(Rule::once(drip).from_byte(1).after(3));
    let (tensors, report) = loaded(&checkpoint, serially(|_| ())).expect("loads");
    assert_all(&tensors, &[&bench.file]);
    assert_eq!(report.request_retries, 1, "{report}");
    let requests = bench.server.requests();
    let range = |index: usize| requests[index].range.clone().expect("a range");
    assert!(
        range(4).start > range(3).start,
        "continues where it stopped"
    );
    assert_eq!(range(4).end, range(3).end);
}

/// A server that accepts requests and never responds: all memory is freed, since nothing else
/// writes to it.
#[test]
fn silent_server_times_out_and_leaks_nothing() {
    let bench = Bench::new("60");
    let checkpoint = bench.open();
    bench
        .server
        .fault(Rule::always(Fault::StallHeaders).from_byte(1));
    until_it_stalls(|timeout| {
        let limited = options(|it| it.timeout = Some(timeout));
        let loader = Loader::new(checkpoint.clone()).options(limited);
        let mut stream = loader.stream().ok()?;
        let error = stream.find_map(Result::err).expect("no bytes arrive");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
        assert!(!error.message().contains("still held"), "{error}");
        assert_eq!(stream.report().parked_bytes, 0, "{}", stream.report());
        error.message().contains("m.safetensors [").then_some(())
    });
    bench.server.clear_faults();
}
