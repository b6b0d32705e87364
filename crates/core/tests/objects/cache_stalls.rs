//! Responses that stop in the middle while the cache holds full buffers back, to write neighbours
//! together: what has arrived whole is written when the connection ends or the load is abandoned,
//! and nothing else is.

use std::ops::Range;
use std::time::Instant;

use tload::cache::finish_caching;
use tload::{LoadOptions, Loader};
use tload_testbed::{Fault, Request, Rule, pause_between_looks};

use crate::caching::{Bench, KEY, PATIENCE, load_cached, of_cache};
use crate::fixtures::{assert_all, even, load, options};

/// Length of the cache's buffers, bytes.
const BUFFER: u64 = 1 << 20;

/// Bytes of the response that arrive: some of a buffer behind two or three full ones, which are
/// fewer than are written together.
const SENT: usize = (3 << 20) + 12_345;

/// End of a response that has stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    /// The server closes the connection, and nothing is retried.
    Closed,
    /// The response stalls, and the caller drops the stream.
    Dropped,
    /// The response stalls, and the caller cancels the load.
    Cancelled,
}

fn in_one_request() -> LoadOptions {
    options(|it| {
        it.extent_bytes = Some(16 << 20);
        it.retries = Some(0);
    })
}

/// Loads until the response stops; the caller looks `looks` times before it abandons a load that
/// stalls. Returns the stretch of the object that the server sent.
fn interrupted(bench: &Bench, ending: Ending, looks: usize) -> Range<u64> {
    let checkpoint = bench.site.checkpoint(KEY).expect("opens");
    bench.server.forget_requests();
    let fault = match ending {
        Ending::Closed => Fault::CutBody(SENT),
        Ending::Dropped | Ending::Cancelled => Fault::StallBody(SENT),
    };
    bench.server.fault(Rule::once(fault).from_byte(1));
    if ending == Ending::Closed {
        load(&checkpoint, in_one_request()).expect_err("is cut short");
    } else {
        let before = bench.server.counts().body_bytes;
        let loader = Loader::new(checkpoint.clone()).options(in_one_request());
        let mut stream = loader.stream().expect("starts");
        // Other requests of the load are answered in full, in whatever order they arrive.
        let is_sent = || {
            // In this order: a request may arrive between the two.
            let sent = bench.server.counts().body_bytes - before;
            let requests = bench.server.requests();
            let others = requests.iter().filter(|it| !it.faulted);
            let others = others.filter_map(|it| it.range.clone());
            let others: u64 = others.map(|it| it.end - it.start).sum();
            requests.iter().any(|it| it.faulted) && sent >= others + SENT as u64
        };
        let started = Instant::now();
        while !is_sent() {
            assert!(started.elapsed() < PATIENCE, "nothing is sent");
            pause_between_looks();
        }
        (0..looks).for_each(|_| pause_between_looks());
        if ending == Ending::Cancelled {
            stream.cancel();
            stream.by_ref().for_each(drop);
        }
    }
    drop(checkpoint);
    assert!(finish_caching(PATIENCE));
    let requests = bench.server.requests();
    bench.server.clear_faults();
    let faulted = requests.iter().find(|request| request.faulted);
    let range = faulted.and_then(|it| it.range.clone()).expect("was sent");
    assert!(range.end - range.start > SENT as u64, "{range:?}");
    range.start..range.start + SENT as u64
}

/// Returns whether a request is for some of these bytes.
fn is_for(request: &Request, bytes: &Range<u64>) -> bool {
    let range = request.range.clone().unwrap_or_default();
    range.start < bytes.end && bytes.start < range.end
}

#[test]
fn full_buffers_of_a_stopped_response_are_kept_and_no_other_bytes() {
    for ending in [Ending::Closed, Ending::Dropped, Ending::Cancelled] {
        // The client may not have received all that was sent when its caller abandons the load.
        let keeps_all = (0..12).any(|round| {
            let bench = Bench::new();
            let file = even("t", 1, 1, 12 << 20);
            bench.site.put(KEY, &file);
            let sent = interrupted(&bench, ending, 1 << round);
            let full = sent.start..sent.end / BUFFER * BUFFER;
            assert!(full.end > full.start + BUFFER, "{full:?}");
            bench.server.forget_requests();
            let (tensors, report) = load_cached(&bench.site, KEY);
            assert_all(&tensors, &[&file]);
            assert_eq!(of_cache(&report).damaged_bytes, 0, "{report}");
            let requests = bench.server.requests();
            let rest = full.end..full.end + 1;
            assert!(
                requests.iter().any(|it| is_for(it, &rest)),
                "{ending:?}: part of a buffer was kept"
            );
            let (tensors, report) = load_cached(&bench.site, KEY);
            assert_all(&tensors, &[&file]);
            assert_eq!(report.requests, 0, "{report}");
            !requests.iter().any(|it| is_for(it, &full))
        });
        assert!(keeps_all, "{ending:?}: what had arrived was dropped");
    }
}
