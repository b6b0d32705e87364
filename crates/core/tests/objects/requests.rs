//! Requests of a load: as few as possible, without unneeded bytes, and many at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tload::{ErrorKind, LoadOptions, Loader, Result, Selection};
use tload_testbed::{Fault, FaultyServer, Operation, Request, Rule};

use crate::fixtures::{assert_all, even, load, options};
use crate::sites::{Site, azurite, faulty_at};

const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum distance between the start of a read and the first tensor byte in it.
const ALIGNMENT: u64 = 64;

fn server() -> (Arc<FaultyServer>, Site) {
    let server = Arc::new(FaultyServer::start());
    let site = faulty_at(&server);
    (server, site)
}

fn gets(requests: &[Request]) -> Vec<std::ops::Range<u64>> {
    let ranges = requests.iter().map(|request| {
        assert_eq!(request.operation, Operation::Get, "{request:?}");
        assert!(!request.faulted, "{request:?}");
        request.range.clone().expect("always a range")
    });
    ranges.collect()
}

#[test]
fn neighbours_share_requests() {
    let (server, site) = server();
    let file = even("t", 1, 2000, 10_000);
    site.put("m.safetensors", &file);
    let checkpoint = site.checkpoint("m.safetensors").expect("opens");
    assert_eq!(gets(&server.requests()), vec![0..(256 << 10)]);
    server.forget_requests();
    let (tensors, report) = load(&checkpoint, LoadOptions::default()).expect("loads");
    assert_all(&tensors, &[&file]);
    let requests = gets(&server.requests());
    // More than one request, because idle connections get a share. Fewer than one per connection,
    // because none is shorter than 3 MB, apart from the remainder.
    assert!(requests.len() <= 7, "{requests:?}");
    assert_eq!(report.requests, requests.len() as u64);
    let bytes: u64 = requests.iter().map(|range| range.end - range.start).sum();
    assert_eq!(report.remote_bytes, bytes);
    assert!(bytes < file.len() as u64 + 1000, "{bytes}");
}

#[test]
fn large_tensor_is_split_into_requests() {
    let (server, site) = server();
    let file = even("t", 2, 1, 20_000_000);
    site.put("m.safetensors", &file);
    let checkpoint = site.checkpoint("m.safetensors").expect("opens");
    server.forget_requests();
    let mebibyte = options(|it| it.extent_bytes = Some(1 << 20));
    let (tensors, report) = load(&checkpoint, mebibyte).expect("loads");
    assert_all(&tensors, &[&file]);
    let mut requests = gets(&server.requests());
    requests.sort_by_key(|range| range.start);
    assert!((20..=22).contains(&requests.len()), "{requests:?}");
    assert!(
        requests
            .iter()
            .all(|range| range.end - range.start <= (1 << 20) + ALIGNMENT)
    );
    let wanted = checkpoint.tensors()[0].file_range();
    assert!(requests[0].start + ALIGNMENT > wanted.start && requests[0].start <= wanted.start);
    assert!(
        requests.windows(2).all(|pair| pair[0].end == pair[1].start),
        "{requests:?}"
    );
    assert_eq!(requests.last().expect("some").end, wanted.end);
    assert_eq!(report.retries, 0);
}

/// One request per shard, several at a time, returns header, length and identity.
#[test]
fn shards_open_concurrently_with_one_request_each() {
    let (server, site) = server();
    let shards: Vec<_> = (0..200)
        .map(|at| even(&format!("{at}."), at, 2, 3000))
        .collect();
    for (at, shard) in shards.iter().enumerate() {
        site.put(&format!("m/{at}.safetensors"), shard);
    }
    server.list_page_entries(70);
    server.fault(Rule::always(Fault::StallHeaders).on(Operation::Get));
    let checkpoint = std::thread::scope(|scope| {
        let opening = scope.spawn(|| faulty_at(&server).checkpoint("m"));
        let many = server.wait_for_in_flight(9, PATIENCE);
        server.clear_faults();
        let checkpoint = opening.join().expect("no panic").expect("opens");
        assert!(many, "{:?}", server.counts());
        checkpoint
    });
    let requests = server.requests();
    let count = |operation| {
        requests
            .iter()
            .filter(|request| request.operation == operation)
            .count()
    };
    assert_eq!(count(Operation::List), 3);
    assert_eq!((count(Operation::Get), count(Operation::Head)), (200, 0));
    let mut by_path = BTreeMap::new();
    for request in requests
        .iter()
        .filter(|request| request.operation == Operation::Get)
    {
        *by_path.entry(&request.path).or_insert(0) += 1;
    }
    assert!(by_path.len() == 200 && by_path.values().all(|count| *count == 1));

    server.forget_requests();
    let (tensors, _) = load(&checkpoint, LoadOptions::default()).expect("loads");
    let shards: Vec<_> = shards.iter().map(Vec::as_slice).collect();
    assert_all(&tensors, &shards);
    let requests = server.requests();
    assert_eq!(gets(&requests).len(), 200);
    // Every request names the state of the object that it wants.
    assert!(
        requests
            .iter()
            .all(|request| request.headers.contains_key("if-match"))
    );
}

/// Neither a repeated page nor an endless sequence of pages hangs.
#[test]
fn endless_list_is_error() {
    let (server, site) = server();
    site.put("m/a.safetensors", &even("t", 1, 1, 10));
    for (fault, requests) in [
        (Fault::RepeatedPage, 2..=3),
        (Fault::EndlessPages, 1000..=10_000),
    ] {
        server.forget_requests();
        server.fault(Rule::always(fault).on(Operation::List));
        let error = site.checkpoint("m").expect_err("an endless list");
        assert_eq!(error.kind(), ErrorKind::Remote, "{}", error.chain());
        assert!(error.message().contains("oversized"), "{}", error.chain());
        assert!(error.location().is_some() && error.hint().is_some());
        let sent = server.requests().len();
        assert!(requests.contains(&sent), "{sent}");
        server.clear_faults();
    }
    site.checkpoint("m").expect("opens");
}

/// As many requests as requested, and never more.
#[test]
fn load_keeps_depth_requests_in_flight() {
    let (server, site) = server();
    site.put("m.safetensors", &even("t", 3, 1, 40 << 20));
    let checkpoint = site.checkpoint("m.safetensors").expect("opens");
    for depth in [3, 16, 32] {
        let wanted = options(|it| {
            it.extent_bytes = Some(1 << 20);
            it.depth = Some(depth);
        });
        let loader = Loader::new(checkpoint.clone()).options(wanted);
        // No request is answered before all are in flight, so that an extra one would be counted.
        server.fault(Rule::always(Fault::StallHeaders));
        let mut stream = loader.stream().expect("starts");
        let reached = server.wait_for_in_flight(depth, PATIENCE);
        assert!(reached, "{:?}", server.counts());
        server.clear_faults();
        stream.by_ref().collect::<Result<Vec<_>>>().expect("loads");
        assert_eq!(stream.report().depth, depth);
        assert_eq!(server.counts().in_flight_max, depth);
    }
}

#[test]
fn selection_reads_only_selected_tensors() {
    let (server, site) = server();
    for shard in 0..4 {
        let file = even(&format!("{shard}."), shard, 4, 3_000_000);
        site.put(&format!("m/{shard}.safetensors"), &file);
    }
    let checkpoint = site.checkpoint("m").expect("opens");
    server.forget_requests();
    let names = ["1.0", "1.3", "2.1"];
    let loader = Loader::new(checkpoint.clone()).select(Selection::names(names));
    let tensors: Result<Vec<_>> = loader.stream().expect("starts").collect();
    assert_eq!(tensors.expect("loads").len(), 3);
    let requests = server.requests();
    assert_eq!(requests.len(), 3, "{requests:?}");
    let wanted = names.map(|name| checkpoint.get(name).expect(name).file_range());
    for range in gets(&requests) {
        let is_wanted = |wanted: &std::ops::Range<u64>| {
            range.end == wanted.end
                && (range.start..range.start + ALIGNMENT).contains(&wanted.start)
        };
        assert!(wanted.iter().any(is_wanted), "{range:?}");
    }
}

/// Bytes of the first request are not requested again, and a longer header costs one more.
#[test]
fn header_costs_at_most_two_requests() {
    let (server, site) = server();
    site.put("small.safetensors", &even("t", 1, 100, 10));
    site.checkpoint("small.safetensors").expect("opens");
    assert_eq!(server.requests().len(), 1);
    server.forget_requests();
    site.put("large.safetensors", &even(&"n".repeat(300), 1, 3000, 1));
    site.checkpoint("large.safetensors").expect("opens");
    let requests = gets(&server.requests());
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].start, requests[0].end);
}

/// Azure refuses a request whose signature does not cover its headers.
#[test]
fn signature_of_azure_covers_headers_of_options() {
    let Some(mut site) = azurite() else {
        return;
    };
    let file = even("t", 1, 4, 100_000);
    site.put("dir/m.safetensors", &file);
    for (name, value) in [
        ("header.x-ms-client-request-id", "one two"),
        ("header.x-ms-a-team", "models"),
        ("header.if-none-match", "\"other\""),
    ] {
        site.options.set(name, value).expect("an option");
    }
    let checkpoint = site.checkpoint("dir/").expect("lists and opens");
    let (tensors, report) = load(&checkpoint, LoadOptions::default()).expect("loads");
    assert_all(&tensors, &[&file]);
    assert_eq!(report.retries, 0, "{report}");
    site.options
        .set("header.x-ms-a-team", "ümläute")
        .expect("an option");
    let error = site.checkpoint("dir/").expect_err("cannot be signed");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{}", error.chain());
}
