//! Transient failures: the load succeeds, and requests only the missing bytes again.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tload::{Checkpoint, ErrorKind, LoadOptions, Report, Result, Tensor};
use tload_testbed::{Fault, FaultyServer, Operation, Request, Rule};

use crate::fixtures::{assert_all, even, load, options};
use crate::sites::{Site, faulty_at, faulty_web_at};

/// Server with one file of three reads.
struct Bench {
    server: Arc<FaultyServer>,
    site: Site,
    file: Vec<u8>,
}

impl Bench {
    /// `read_timeout` detects a silent store; it must be long where no fault is silence, so that a
    /// busy machine does not appear silent.
    fn new(site: impl Fn(&Arc<FaultyServer>) -> Site, read_timeout: &str) -> Self {
        let server = Arc::new(FaultyServer::start());
        let mut site = site(&server);
        let patience = site.options.set("read_timeout", read_timeout);
        patience.expect("an option");
        let file = even("t", 1, 1, 3 << 20);
        site.put("m.safetensors", &file);
        Self { server, site, file }
    }

    fn open(&self) -> Checkpoint {
        let opened = self.site.checkpoint("m.safetensors");
        self.server.forget_requests();
        opened.expect("opens")
    }
}

/// Loads with one request at a time.
fn load_serially(checkpoint: &Checkpoint, retries: Option<u32>) -> Result<(Vec<Tensor>, Report)> {
    let serial = options(|it| {
        (it.depth, it.extent_bytes, it.retries) = (Some(1), Some(1 << 20), retries);
    });
    load(checkpoint, serial)
}

fn ranges(requests: &[Request]) -> Vec<Range<u64>> {
    let range = |request: &Request| request.range.clone().expect("a range");
    requests.iter().map(range).collect()
}

/// Returns faults of the second read, with the number of its bytes that may have arrived.
fn passing() -> Vec<(&'static str, Fault, RangeInclusive<u64>)> {
    let status = |status, code| Fault::status(status, code);
    let asks = |status: u16, code: &str| Fault::StatusWithHeaders {
        status,
        code: code.to_owned(),
        headers: vec![("Retry-After".to_owned(), "0".to_owned())],
    };
    vec![
        ("408", status(408, "RequestTimeout"), 0..=0),
        ("400 RequestTimeout", status(400, "RequestTimeout"), 0..=0),
        ("429", asks(429, "TooManyRequests"), 0..=0),
        ("500", status(500, "InternalError"), 0..=0),
        ("502", status(502, "BadGateway"), 0..=0),
        ("503", Fault::slow_down(0), 0..=0),
        ("503 without a code", status(503, ""), 0..=0),
        ("504", status(504, "GatewayTimeout"), 0..=0),
        ("closed before headers", Fault::CutBeforeHeaders, 0..=0),
        ("reset before headers", Fault::ResetBeforeHeaders, 0..=0),
        ("closed at once", Fault::CutBody(0), 0..=0),
        (
            "closed in the body",
            Fault::CutBody(100_000),
            100_000..=100_000,
        ),
        ("closed after one byte", Fault::CutBody(1), 1..=1),
        ("reset in the body", Fault::ResetBody(100_000), 0..=100_000),
        ("silent", Fault::StallHeaders, 0..=0),
        (
            "silent in the body",
            Fault::StallBody(90_000),
            90_000..=90_000,
        ),
        (
            "a short body",
            Fault::ShortBody(1000),
            (1 << 20) - 1064..=(1 << 20) - 936,
        ),
    ]
}

/// Returns the read timeout in seconds: short where silence is the fault.
fn patience_with(fault: &Fault) -> &'static str {
    if matches!(fault, Fault::StallHeaders | Fault::StallBody(_)) {
        "3"
    } else {
        "60"
    }
}

#[test]
fn retry_requests_only_missing_bytes() {
    for site in [faulty_at, faulty_web_at] {
        let bench = Bench::new(site, "60");
        let checkpoint = bench.open();
        let (_, report) = load_serially(&checkpoint, None).expect("loads");
        assert_eq!(report.retries, 0);
        let undisturbed = ranges(&bench.server.requests());
        assert_eq!(undisturbed.len(), 3);
        for (name, fault, kept) in passing() {
            let bench = Bench::new(site, patience_with(&fault));
            let checkpoint = bench.open();
            bench.server.fault(Rule::once(fault).from_byte(1).after(1));
            let (tensors, report) = match load_serially(&checkpoint, None) {
                Ok(loaded) => loaded,
                Err(error) => panic!("{name}: {}", error.chain()),
            };
            bench.server.clear_faults();
            assert_all(&tensors, &[&bench.file]);
            assert_eq!(report.retries, 1, "{name}");
            let requests = bench.server.requests();
            let faulted: Vec<_> = requests.iter().map(|request| request.faulted).collect();
            assert_eq!(faulted, [false, true, false, false], "{name}");
            let mut asked = ranges(&requests);
            let again = asked.remove(2);
            assert_eq!(asked, undisturbed, "{name}");
            assert_eq!(again.end, undisturbed[1].end, "{name}");
            let came = again.start - undisturbed[1].start;
            assert!(kept.contains(&came), "{name}: {came} bytes arrived");
            let missing: u64 = again.end - again.start;
            let whole: u64 = undisturbed
                .iter()
                .map(|range| range.end - range.start)
                .sum();
            assert_eq!(
                report.remote_bytes, whole,
                "{name}: {missing} requested again"
            );
        }
    }
}

/// The delay that a server asks for is respected.
#[test]
fn retry_after_is_respected() {
    let bench = Bench::new(faulty_at, "60");
    let checkpoint = bench.open();
    bench
        .server
        .fault(Rule::once(Fault::slow_down(1)).from_byte(1));
    let started = Instant::now();
    let (tensors, report) = load_serially(&checkpoint, None).expect("loads");
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert_all(&tensors, &[&bench.file]);
    assert_eq!(report.retries, 1);
}

/// Opening, listing and reading an index are retried like reads.
#[test]
fn opening_is_retried() {
    for (name, fault, _) in passing() {
        let bench = Bench::new(faulty_at, patience_with(&fault));
        bench
            .site
            .put("m/model.safetensors", &even("t", 2, 2, 500_000));
        bench
            .server
            .fault(Rule::once(fault.clone()).on(Operation::Get));
        // The body of a list is shorter than the bytes that these faults let pass.
        let in_body = matches!(
            fault,
            Fault::ShortBody(_) | Fault::CutBody(_) | Fault::ResetBody(_) | Fault::StallBody(_)
        );
        let faulted_list = !in_body;
        if faulted_list {
            bench.server.fault(Rule::once(fault).on(Operation::List));
        }
        let opened = bench.site.checkpoint("m");
        if let Err(error) = &opened {
            panic!("{name}: {}", error.chain());
        }
        let (tensors, _) =
            load(&opened.expect("checked above"), LoadOptions::default()).expect("loads");
        assert_eq!(tensors.len(), 2);
        let requests = bench.server.requests();
        let count = |operation| {
            requests
                .iter()
                .filter(|request| request.operation == operation)
                .count()
        };
        let lists = 1 + usize::from(faulted_list);
        assert_eq!(
            (count(Operation::List), count(Operation::Head)),
            (lists, 0),
            "{name}"
        );
        let faulted = requests.iter().filter(|request| request.faulted).count();
        assert_eq!(faulted, lists, "{name}");
    }
}

/// Progress resets the count of attempts: as many as needed are made. A request without enough
/// progress counts.
#[test]
fn progress_resets_retry_count() {
    let bench = Bench::new(faulty_at, "60");
    let checkpoint = bench.open();
    bench
        .server
        .fault(Rule::always(Fault::CutBody(100_000)).from_byte(1));
    let (tensors, report) = load_serially(&checkpoint, Some(1)).expect("loads");
    assert_all(&tensors, &[&bench.file]);
    assert!(report.retries >= 30, "{report}");
    let asked: u64 = ranges(&bench.server.requests())
        .iter()
        .map(|range| range.end - range.start)
        .sum();
    let whole: u64 = report.remote_bytes;
    assert!(whole < 3 << 20 | 1 << 12 && asked > whole);

    bench.server.clear_faults();
    bench.server.forget_requests();
    bench
        .server
        .fault(Rule::always(Fault::CutBody(10_000)).from_byte(1));
    let error = load_serially(&checkpoint, Some(3)).expect_err("too little progress each time");
    assert_eq!(error.kind(), ErrorKind::Remote, "{}", error.chain());
    assert_eq!(error.request().expect("a request").attempts, 4);
    let range = error.range().expect("a range");
    let first = ranges(&bench.server.requests())[0].clone();
    assert_eq!(bench.server.requests().len(), 4);
    assert!(
        range.start >= first.start && range.end <= first.end,
        "{range:?}"
    );
}

/// Many requests in flight and many failures: every byte is right.
#[test]
fn many_concurrent_faults_are_survived() {
    let server = Arc::new(FaultyServer::start());
    let mut site = faulty_at(&server);
    // Some faults are silent; on a busy machine, no other request may appear so.
    site.options.set("read_timeout", "6").expect("an option");
    let file = even("t", 7, 40, 700_000);
    site.put("m.safetensors", &file);
    let checkpoint = site.checkpoint("m.safetensors").expect("opens");
    for (at, (_, fault, _)) in passing().into_iter().enumerate() {
        server.fault(Rule::times(2, fault).from_byte(1).after(at * 3));
    }
    let small = options(|it| (it.extent_bytes, it.depth) = (Some(200_000), Some(12)));
    let (tensors, report) = load(&checkpoint, small).expect("loads");
    assert_all(&tensors, &[&file]);
    let faulted = server
        .requests()
        .iter()
        .filter(|request| request.faulted)
        .count();
    assert_eq!(faulted, 2 * passing().len());
    // A body fault may hit a request for fewer bytes, and let all of them pass.
    let retries = usize::try_from(report.retries).expect("few");
    assert!((faulted - 10..=faulted).contains(&retries), "{report}");
}
