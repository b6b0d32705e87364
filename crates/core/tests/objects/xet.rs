//! Models of a hub in its content store: the right bytes, tokens for their hosts only, recovery,
//! and the bridge where the content store is of no use.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tload::cache::finish_caching;
use tload::internal::storage::{ObjectSource, Source};
use tload::{Checkpoint, Error, ErrorKind, Location};
use tload_testbed::{Fault, Hub, Request, Rule, reconstruction};
use tload_testing::fixtures::Rng;

use crate::caching::PATIENCE;
use crate::fixtures::{assert_all, even, folder, in_file_order, load, options};
use crate::hosts::outcome;
use crate::hubs::{MODEL, Model, assert_copied, copy, store};
use crate::secrets::{Told, show_error};

/// Length after which the testbed cuts bytes at the same places again.
const PERIOD: usize = 234_804;

fn location(rest: &str) -> Location {
    Location::parse(&format!("hf://{MODEL}{rest}")).expect("a location")
}

fn hub() -> (Hub, Model) {
    let (hub, model) = (Hub::start(), Model::new(1));
    hub.keep_in_xet();
    hub.commit(MODEL, "main", &model.files());
    (hub, model)
}

/// Returns requests to the server of large files: those of the bridge, and those for xorbs.
fn served(hub: &Hub) -> (Vec<Request>, Vec<Request>) {
    let requests = hub.files().requests().into_iter();
    requests.partition(|request| !request.path.starts_with("xorbs/"))
}

/// Returns the versions of all queries so far.
fn versions(hub: &Hub) -> Vec<String> {
    let queries = hub.queries().into_iter();
    let version = |path: &str| path.split('/').next().map(str::to_owned);
    queries.filter_map(|query| version(&query.path)).collect()
}

fn tokens(hub: &Hub) -> usize {
    let requests = hub.requests();
    let is_token = |path: &str| path.contains("/xet-read-token/");
    requests
        .iter()
        .filter(|request| is_token(&request.path))
        .count()
}

/// File of three equal periods and one other, in the content store.
struct Opened {
    hub: Hub,
    bytes: Vec<u8>,
    source: ObjectSource,
}

impl Opened {
    fn new(pairs: &[(&str, &str)]) -> Self {
        let mut rng = Rng::new(7);
        let (period, other) = (rng.bytes(PERIOD), rng.bytes(PERIOD));
        Self::of([&period[..], &other, &period, &period].concat(), pairs)
    }

    fn of(bytes: Vec<u8>, pairs: &[(&str, &str)]) -> Self {
        let hub = Hub::start();
        hub.keep_in_xet();
        hub.commit(MODEL, "main", &[("m.safetensors", &bytes)]);
        let all = [&[("token", "hf_hunter2"), ("retries", "2")], pairs].concat();
        let source = ObjectSource::at(&location("/m.safetensors"), &store(&hub, &all));
        Self {
            source: source.expect("opens"),
            hub,
            bytes,
        }
    }

    /// Opens a file of which the content store has delivered something.
    fn delivered() -> Self {
        Self::delivered_with(&[])
    }

    fn delivered_with(pairs: &[(&str, &str)]) -> Self {
        let opened = Self::new(pairs);
        opened.assert_reads(0, 1000);
        assert_eq!(opened.hub.queries().len(), 1);
        opened
    }

    fn assert_reads(&self, offset: usize, len: usize) {
        let found = self.source.fetch(offset as u64, len).expect("reads");
        let end = self.bytes.len().min(offset + len);
        assert!(
            found == self.bytes[offset..end],
            "{offset} {len}: wrong bytes"
        );
    }

    /// Reads everything, asserts that this fails without showing a secret, and returns the error.
    fn refused(&self) -> Error {
        self.refused_in(0, self.bytes.len())
    }

    fn refused_in(&self, offset: usize, len: usize) -> Error {
        let read = self.source.fetch(offset as u64, len);
        let error = read
            .map(|bytes| bytes.len())
            .expect_err("the content store fails");
        let mut shown = String::new();
        show_error(&mut shown, &error);
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(error.location().is_some(), "{shown}");
        error
    }

    fn has_used_bridge(&self) -> bool {
        // One request opens the file.
        served(&self.hub).0.len() > 1
    }
}

#[test]
fn model_in_content_store_is_read_from_there() {
    let (hub, model) = hub();
    let checkpoint = Checkpoint::open_with(location(""), store(&hub, &[])).expect("opens");
    let (tensors, report) = load(&checkpoint, in_file_order()).expect("loads");
    assert_all(&tensors, &model.shards());
    assert_eq!(report.retries, 0, "{report}");
    let (bridge, xorbs) = served(&hub);
    assert_eq!(bridge.len(), 2, "one for each header: {bridge:?}");
    assert!(xorbs.len() > 2, "{xorbs:?}");
    assert_eq!(tokens(&hub), 1);
}

/// Each end of a request is within a chunk, which the next request needs, too.
#[test]
fn load_requests_few_bytes_twice() {
    let hub = Hub::start();
    hub.keep_in_xet();
    let shards = [even("a", 5, 8, 6 << 20), even("b", 6, 8, 6 << 20)];
    let names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let files = [(names[0], &shards[0][..]), (names[1], &shards[1])];
    hub.commit(MODEL, "main", &files);
    let checkpoint = Checkpoint::open_with(location(""), store(&hub, &[])).expect("opens");
    let options = options(|it| it.hedge = Some(false));
    let (tensors, report) = load(&checkpoint, options).expect("loads");
    assert_all(&tensors, &[&shards[0], &shards[1]]);
    let (_, xorbs) = served(&hub);
    let ranges = xorbs.iter().filter_map(|request| request.range.clone());
    let requested: u64 = ranges.map(|range| range.end - range.start).sum();
    let len: u64 = shards.iter().map(|shard| shard.len() as u64).sum();
    assert!(requested - len < len / 33, "{requested} of {len}: {report}");
}

#[test]
fn any_range_of_repeated_contents_is_exact() {
    let opened = Opened::new(&[]);
    let len = opened.bytes.len();
    opened.assert_reads(0, len);
    let mut rng = Rng::new(3);
    for _ in 0..60 {
        let offset = rng.index(len);
        opened.assert_reads(offset, 1 + rng.index(len - offset));
    }
    for (offset, len) in [
        (0, 1),
        (len - 1, 1),
        (131_071, 2),
        (PERIOD - 3, 3),
        (PERIOD - 4, 5),
    ] {
        opened.assert_reads(offset, len);
    }
    assert!(!opened.has_used_bridge());
}

#[test]
fn identity_is_the_same_by_bridge() {
    let opened = Opened::delivered();
    let other = Hub::start();
    other.commit(MODEL, "main", &[("m.safetensors", &opened.bytes)]);
    let other = ObjectSource::at(&location("/m.safetensors"), &store(&other, &[])).expect("opens");
    assert_eq!(opened.source.identity(), other.identity());
}

#[test]
fn each_token_goes_to_its_host_only() {
    let opened = Opened::new(&[("header.x-team", "hunter2")]);
    opened.assert_reads(0, opened.bytes.len());
    for request in opened.hub.requests() {
        assert_eq!(
            request.headers["authorization"], "Bearer hf_hunter2",
            "{request:?}"
        );
    }
    for request in opened.hub.queries() {
        assert_eq!(
            request.headers["authorization"], "Bearer xet-hunter2-1",
            "{request:?}"
        );
        assert!(!request.headers.contains_key("x-team"), "{request:?}");
    }
    let (_, xorbs) = served(&opened.hub);
    assert!(!xorbs.is_empty());
    for request in xorbs {
        assert!(
            !request.headers.contains_key("authorization"),
            "{request:?}"
        );
        assert!(!request.headers.contains_key("x-team"), "{request:?}");
    }
}

#[test]
fn expired_token_is_renewed() {
    let opened = Opened::delivered_with(&[("retries", "0")]);
    opened.hub.expire_xet_tokens();
    opened.assert_reads(0, opened.bytes.len());
    opened.assert_reads(5, 5);
    assert_eq!(tokens(&opened.hub), 2);
    // Tokens that live for less than the margin are renewed before each use.
    opened.hub.set_xet_token_lifetime(10);
    opened.hub.expire_xet_tokens();
    opened.assert_reads(0, 5);
    let before = tokens(&opened.hub);
    opened.assert_reads(0, 5);
    assert!(tokens(&opened.hub) > before);
    assert!(!opened.has_used_bridge());
}

#[test]
fn token_is_for_query_not_for_each_term() {
    let opened = Opened::new(&[]);
    // They have expired when they arrive, as far as the margin goes.
    opened.hub.set_xet_token_lifetime(10);
    opened.assert_reads(0, opened.bytes.len());
    assert!(served(&opened.hub).1.len() > 1, "several terms");
    assert_eq!(tokens(&opened.hub), opened.hub.queries().len());
    assert!(!opened.has_used_bridge());
}

#[test]
fn neighbouring_terms_are_one_request() {
    let opened = Opened::new(&[]);
    opened.hub.split_xet_terms();
    opened.assert_reads(0, opened.bytes.len());
    let (_, xorbs) = served(&opened.hub);
    // 7 chunks of the first xorb, 3 of the second one, and twice the first 5 again.
    assert_eq!(xorbs.len(), 4, "{xorbs:?}");
    opened.assert_reads(PERIOD - 4, PERIOD);
    assert!(!opened.has_used_bridge());
}

#[test]
fn expired_url_is_asked_for_again() {
    for status in [401, 403] {
        let opened = Opened::delivered_with(&[("retries", "0")]);
        let rule = Rule::once(Fault::status(status, "AccessDenied"));
        opened.hub.files().fault(rule.path("xorbs/").after(2));
        opened.assert_reads(0, opened.bytes.len());
        assert_eq!(versions(&opened.hub), ["v2", "v2", "v2"]);
        assert!(!opened.has_used_bridge());
    }
}

/// It lasts for as long as the content store is kept.
#[test]
fn content_store_without_version_2_is_asked_by_version_1() {
    for status in [404, 501] {
        let opened = Opened::new(&[("retries", "0")]);
        opened.hub.forget_xet_version(2, status);
        opened.assert_reads(0, opened.bytes.len());
        opened.assert_reads(5, 5);
        let options = store(&opened.hub, &[("token", "hf_hunter2"), ("retries", "0")]);
        let again = ObjectSource::at(&location("/m.safetensors"), &options).expect("opens");
        assert_eq!(again.fetch(5, 7).expect("reads"), opened.bytes[5..12]);
        assert_eq!(versions(&opened.hub), ["v2", "v1", "v1", "v1"]);
        // Version 1 is gone, and the token is replaced by the other opening's.
        opened.hub.forget_xet_version(1, status);
        opened.assert_reads(5, 5);
        opened.assert_reads(5, 5);
        assert_eq!(versions(&opened.hub)[4..], ["v1", "v2", "v2", "v2"]);
        let bridge = served(&opened.hub).0;
        assert_eq!(bridge.len(), 2, "one for each opening: {bridge:?}");
    }
}

/// The read needs the seventh chunk of the first xorb and its first one, which have one URL.
#[test]
fn refused_url_of_several_ranges_is_replaced_by_version_1() {
    for has_version_1 in [true, false] {
        let opened = Opened::delivered_with(&[("retries", "0")]);
        let rule = Rule::once(Fault::status(403, "AccessDenied"));
        opened.hub.files().fault(rule.path("xorbs/"));
        if !has_version_1 {
            opened.hub.forget_xet_version(1, 404);
        }
        opened.assert_reads(PERIOD + 131_072, PERIOD);
        opened.assert_reads(PERIOD + 131_072, PERIOD);
        let wanted: &[_] = if has_version_1 {
            &["v2", "v2", "v1", "v1"]
        } else {
            &["v2", "v2", "v1", "v2", "v2"]
        };
        assert_eq!(versions(&opened.hub), wanted);
        assert!(!opened.has_used_bridge());
    }
}

#[test]
fn damaged_xorb_is_requested_again_and_then_an_error() {
    for (fault, words) in [
        (Fault::CutBody(1000), ""),
        (Fault::ShortBody(10), ""),
        (Fault::Corrupt(0), "version 255"),
        (Fault::Corrupt(2), "impossible lengths"),
        (Fault::Corrupt(4), "scheme 255"),
        (Fault::Corrupt(7), "impossible lengths"),
        (Fault::status(500, "InternalError"), "status 500"),
        (Fault::status(403, "AccessDenied"), "status 403"),
    ] {
        let opened = Opened::delivered();
        opened
            .hub
            .files()
            .fault(Rule::once(fault.clone()).path("xorbs/"));
        opened.assert_reads(0, opened.bytes.len());
        opened
            .hub
            .files()
            .fault(Rule::always(fault.clone()).path("xorbs/"));
        let error = opened.refused();
        let attempts = error.request().expect("a request").attempts;
        assert_eq!(attempts, 3, "{fault}: {}", error.chain());
        assert!(error.chain().contains(words), "{fault}: {}", error.chain());
        let hint = error.hint().expect("a hint");
        assert!(hint.contains("HF_HUB_DISABLE_XET=1"), "{fault}: {hint}");
        assert!(!opened.has_used_bridge(), "{fault}");
    }
}

#[test]
fn whole_xorb_is_read_only_where_its_beginning_was_requested() {
    let opened = Opened::delivered();
    let rule = Rule::always(Fault::IgnoreRange).path("xorbs/");
    opened.hub.files().fault(rule);
    opened.assert_reads(0, 100_000);
    // The third chunk is not at the beginning of the xorb.
    let error = opened.refused_in(140_000, 1000);
    let words = "other bytes than requested";
    assert!(error.chain().contains(words), "{}", error.chain());
    assert_eq!(error.request().expect("a request").attempts, 1);
    assert!(!opened.has_used_bridge());
}

/// The second term begins at the sixth chunk of its xorb.
#[test]
fn whole_xorb_in_place_of_later_term_is_refused() {
    let mut rng = Rng::new(7);
    let (first, second) = (rng.bytes(PERIOD), rng.bytes(PERIOD));
    let opened = Opened::of([&first[..], &second, &second].concat(), &[]);
    let (offset, len) = (PERIOD + 139_264, PERIOD);
    let rule = Rule::always(Fault::IgnoreRange).path("xorbs/").after(1);
    opened.hub.files().fault(rule);
    let error = opened.refused_in(offset, len);
    let words = "other bytes than requested";
    assert!(error.chain().contains(words), "{}", error.chain());
    assert_eq!(error.request().expect("a request").attempts, 1);
    let read = error.range().expect("a range").start;
    assert_eq!(read, 2 * PERIOD as u64, "the first term has been read");
    opened.hub.files().clear_faults();
    opened.assert_reads(offset, len);
    assert!(!opened.has_used_bridge());
}

/// The first two chunks of the file have 128 and 8 KiB.
#[test]
fn bytes_are_handed_on_before_xorb_is_complete() {
    let opened = Opened::delivered();
    let rule = Rule::once(Fault::CutBody(140_000)).path("xorbs/");
    opened.hub.files().fault(rule);
    opened.assert_reads(0, opened.bytes.len());
    let ranges = opened.hub.queries().into_iter();
    let ranges = ranges.map(|query| query.headers["range"].clone());
    let wanted = ["bytes=0-999", "bytes=0-939215", "bytes=139264-939215"];
    assert_eq!(ranges.collect::<Vec<_>>(), wanted);
}

#[test]
fn failed_query_is_repeated_and_then_an_error() {
    // A query of each version for the first one.
    for (status, attempts, queries) in [(404, 1, 2), (429, 3, 3), (500, 3, 3)] {
        let opened = Opened::delivered();
        if attempts > 1 {
            opened.hub.fail_query(status, None);
            opened.assert_reads(0, opened.bytes.len());
        }
        (0..queries).for_each(|_| opened.hub.fail_query(status, None));
        let error = opened.refused();
        assert_eq!(error.kind(), ErrorKind::Remote);
        assert!(
            error.chain().contains(&format!("status {status}")),
            "{}",
            error.chain()
        );
        assert!(error.hint().expect("a hint").contains("HF_HUB_DISABLE_XET"));
        assert_eq!(error.request().expect("a request").attempts, attempts);
        opened.assert_reads(0, opened.bytes.len());
    }
}

#[test]
fn hostile_reconstruction_is_refused() {
    let metadata = "http://169.254.169.254/xorb?signature=hunter2";
    let len = 4 * PERIOD;
    let reconstructions = [1, 2].into_iter().flat_map(|version| {
        let one_term = |len, url| reconstruction(version, len, url);
        [
            (one_term(len - 1, metadata), "of 939216 bytes"),
            (
                one_term(len, metadata),
                "the server names an address of a private network",
            ),
            (
                one_term(len, "ftp://host/hunter2"),
                "names a URL that is neither http nor https",
            ),
            (one_term(len, "nowhere"), "names a URL"),
        ]
        .map(|(body, words)| (version, body, words))
    });
    let others = [
        (json!({}), "not a reconstruction"),
        (json!("hunter2"), "not a reconstruction"),
        (Value::from("x".repeat(5 << 20)), "more than 4194304 bytes"),
        (reconstruction(1, len, metadata), "not a reconstruction"),
    ]
    .map(|(body, words)| (2, body, words));
    for (version, body, words) in reconstructions.chain(others) {
        let forget_other = |hub: &Hub| hub.forget_xet_version(3 - version, 404);
        let opened = Opened::delivered();
        forget_other(&opened.hub);
        opened.assert_reads(0, 1000);
        opened.hub.fail_query(200, Some(body.clone()));
        let error = opened.refused();
        assert!(error.chain().contains(words), "{}", error.chain());
        assert!(!error.chain().contains("redirect"), "{}", error.chain());
        assert_eq!(error.request().expect("a request").attempts, 1);
        // A store that begins like this is left.
        let opened = Opened::new(&[]);
        forget_other(&opened.hub);
        opened.hub.fail_query(200, Some(body));
        opened.assert_reads(0, len);
        assert!(opened.has_used_bridge());
    }
}

/// Each term is the last chunk of a long place, which is requested from its beginning.
#[test]
fn many_times_the_requested_bytes_are_refused() {
    const TERM: usize = 24_576;
    let opened = Opened::delivered();
    let chunk = |len: usize| {
        let [low, middle, high, _] = u32::try_from(len).expect("short").to_le_bytes();
        let header = [0, low, middle, high, 0, low, middle, high];
        [&header[..], &vec![7; len]].concat()
    };
    let xorb = [chunk(128 << 10).repeat(31), chunk(TERM)].concat();
    let files = opened.hub.files();
    let url = format!("{}/xorbs/hostile", files.url());
    let bytes = json!({"start": 0, "end": xorb.len() - 1});
    let place = json!({"chunks": {"start": 0, "end": 32}, "bytes": bytes});
    files.put("xorbs/hostile", xorb.clone());
    let term = json!({"hash": "a", "unpacked_length": TERM, "range": {"start": 31, "end": 32}});
    let terms = vec![term; (4 * PERIOD).div_ceil(TERM)];
    assert!(terms.len() * xorb.len() > 150 << 20);
    opened.hub.fail_query(
        200,
        Some(json!({
            "offset_into_first_range": 0,
            "terms": terms,
            "xorbs": {"a": [{"url": url, "ranges": [place]}]},
        })),
    );
    let error = opened.refused();
    assert_eq!(error.kind(), ErrorKind::Remote);
    let words = "many times the requested bytes";
    assert!(error.chain().contains(words), "{}", error.chain());
}

/// Name of a failure, and its cause.
type Failure<'a> = (&'a str, &'a dyn Fn(&Hub));

#[test]
fn content_store_of_no_use_is_left_for_bridge() {
    let told = Told::of_process();
    let failures: [Failure; 6] = [
        ("no token", &Hub::issue_no_xet_tokens),
        ("404", &|hub| {
            (0..2).for_each(|_| hub.fail_query(404, None));
        }),
        ("429", &|hub| hub.fail_query(429, None)),
        ("500", &|hub| hub.fail_query(500, None)),
        ("403", &|hub| {
            let rule = Rule::always(Fault::status(403, "AccessDenied"));
            hub.files().fault(rule.path("xorbs/"));
        }),
        ("version", &|hub| {
            hub.files()
                .fault(Rule::always(Fault::Corrupt(0)).path("xorbs/"));
        }),
    ];
    for (name, fail) in failures {
        let opened = Opened::new(&[("retries", "0")]);
        fail(&opened.hub);
        opened.assert_reads(0, 100_000);
        assert!(opened.has_used_bridge(), "{name}");
        let before = (opened.hub.queries().len(), tokens(&opened.hub));
        opened.assert_reads(0, opened.bytes.len());
        assert_eq!(
            (opened.hub.queries().len(), tokens(&opened.hub)),
            before,
            "{name}"
        );
    }
    let told = told.told();
    assert!(told.contains("its content store failed"), "{told}");
    assert!(!told.contains("hunter2"), "{told}");
}

/// Fails some requests of the content store, by their number.
type Busy<'a> = (&'a str, &'a dyn Fn(&Hub, usize));

#[test]
fn busy_content_store_is_waited_for_and_left_at_last() {
    let xorbs = |hub: &Hub, status, times| {
        let fault = Fault::StatusWithHeaders {
            status,
            code: "SlowDown".to_owned(),
            headers: vec![("Retry-After".to_owned(), "0".to_owned())],
        };
        hub.files().fault(Rule::times(times, fault).path("xorbs/"));
    };
    let ways: [Busy; 3] = [
        ("query, 429", &|hub, times| {
            (0..times).for_each(|_| hub.fail_query(429, None));
        }),
        ("xorb, 429", &|hub, times| xorbs(hub, 429, times)),
        ("xorb, 503", &|hub, times| xorbs(hub, 503, times)),
    ];
    for (name, fail) in ways {
        for (times, is_left) in [(2, false), (3, true)] {
            let opened = Opened::new(&[("retries", "2")]);
            fail(&opened.hub, times);
            opened.assert_reads(0, 100_000);
            assert_eq!(opened.has_used_bridge(), is_left, "{name}, {times}");
        }
    }
    let opened = Opened::new(&[("retries", "2")]);
    opened.hub.refuse_xet_tokens(429);
    opened.assert_reads(0, 100_000);
    assert_eq!(tokens(&opened.hub), 3);
    assert!(opened.has_used_bridge());
}

#[test]
fn pause_that_content_store_asks_for_is_kept() {
    let opened = Opened::new(&[]);
    let fault = Fault::StatusWithHeaders {
        status: 503,
        code: "SlowDown".to_owned(),
        headers: vec![("Retry-After".to_owned(), "1".to_owned())],
    };
    opened.hub.files().fault(Rule::once(fault).path("xorbs/"));
    let began = std::time::Instant::now();
    opened.assert_reads(0, 1000);
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert!(!opened.has_used_bridge());
}

/// Without a pause that it asks for, a failure does not tell that waiting would help.
#[test]
fn content_store_out_of_order_is_left_at_once() {
    let opened = Opened::new(&[("retries", "2")]);
    opened.hub.fail_query(503, None);
    opened.assert_reads(0, 1000);
    assert_eq!(opened.hub.queries().len(), 1);
    assert!(opened.has_used_bridge());
}

/// A part of the first chunk has arrived, which counts as progress, and not as delivered.
#[test]
fn content_store_that_breaks_off_in_first_chunk_is_left() {
    for retries in ["0", "1"] {
        let opened = Opened::new(&[("retries", retries)]);
        let rule = Rule::always(Fault::CutBody(100_000)).path("xorbs/");
        opened.hub.files().fault(rule);
        opened.assert_reads(0, opened.bytes.len());
        assert_eq!(opened.hub.queries().len(), 1);
        assert!(opened.has_used_bridge());
    }
}

#[test]
fn later_opening_knows_that_content_store_failed() {
    let opened = Opened::new(&[("retries", "0")]);
    opened.hub.issue_no_xet_tokens();
    opened.assert_reads(0, 1000);
    let options = store(&opened.hub, &[("token", "hf_hunter2"), ("retries", "0")]);
    for _ in 0..3 {
        let again = ObjectSource::at(&location("/m.safetensors"), &options).expect("opens");
        assert_eq!(again.fetch(5, 7).expect("reads"), opened.bytes[5..12]);
    }
    assert_eq!(tokens(&opened.hub), 1);
    // Other options may lead elsewhere.
    opened.hub.issue_xet_tokens();
    let options = store(&opened.hub, &[("token", "hf_hunter2"), ("retries", "1")]);
    let other = ObjectSource::at(&location("/m.safetensors"), &options).expect("opens");
    assert_eq!(other.fetch(5, 7).expect("reads"), opened.bytes[5..12]);
    assert_eq!(opened.hub.queries().len(), 1);
}

#[test]
fn failed_token_is_asked_for_once_by_parallel_reads() {
    let told = Told::of_process();
    let opened = Opened::new(&[("retries", "0")]);
    opened.hub.issue_no_xet_tokens();
    let ready = Barrier::new(16);
    thread::scope(|scope| {
        for index in 0..16 {
            let (opened, ready) = (&opened, &ready);
            scope.spawn(move || {
                ready.wait();
                opened.assert_reads(1000 * index, 1000);
            });
        }
    });
    assert_eq!(tokens(&opened.hub), 1);
    assert!(opened.has_used_bridge());
    let line = format!("hub=\"{}\"", opened.hub.url());
    assert_eq!(told.told().matches(&line).count(), 1, "one line in the log");
}

/// A refusal of the credentials of the hub would be another kind of error.
#[test]
fn refused_request_for_token_is_failure_of_content_store() {
    for status in [401, 403, 404] {
        let opened = Opened::delivered_with(&[("retries", "0")]);
        opened.hub.refuse_xet_tokens(status);
        opened.hub.expire_xet_tokens();
        let error = opened.refused();
        assert_eq!(error.kind(), ErrorKind::Remote, "{}", error.chain());
        let words = format!("token for its content store, responded with status {status}");
        assert!(error.chain().contains(&words), "{}", error.chain());
    }
}

#[test]
fn slow_content_store_is_left_for_bridge() {
    let opened = Opened::new(&[("retries", "0"), ("read_timeout", "8s")]);
    let pause = Duration::from_millis(50);
    let drip = Rule::always(Fault::Drip { bytes: 10, pause });
    opened.hub.files().fault(drip.path("xorbs/"));
    opened.assert_reads(0, opened.bytes.len());
    assert!(opened.has_used_bridge());
}

/// 64 KiB take 1.3 s, and the chunks in front of the range 4.5 s.
#[test]
fn skipped_chunks_are_progress_of_slow_request() {
    // On a busy machine, any single response may be too slow.
    assert!((0..10).any(|_| reads_what_a_slow_request_skips_to()));
}

fn reads_what_a_slow_request_skips_to() -> bool {
    let opened = Opened::delivered_with(&[("retries", "0"), ("read_timeout", "3s")]);
    let (bytes, pause) = (16_000, Duration::from_millis(300));
    let drip = Rule::once(Fault::Drip { bytes, pause });
    opened.hub.files().fault(drip.path("xorbs/"));
    let Ok(found) = opened.source.fetch(PERIOD as u64, 2 * PERIOD) else {
        return false;
    };
    assert!(found == opened.bytes[PERIOD..3 * PERIOD], "wrong bytes");
    let place = |request: &Request| request.headers.get("range").cloned();
    let (bridge, xorbs) = served(&opened.hub);
    assert_eq!(bridge.len(), 1, "{bridge:?}");
    let from_start = place(&xorbs[1]).is_some_and(|range| range.starts_with("bytes=0-"));
    assert!(from_start, "skips the first period: {xorbs:?}");
    true
}

#[test]
fn copy_comes_from_content_store() {
    let ((hub, model), target) = (hub(), folder());
    let report = copy(&hub, "", target.path());
    assert_copied(target.path(), &model);
    assert_eq!((report.copied_files, report.skipped_files), (6, 0));
    assert!(!served(&hub).1.is_empty());
    let report = copy(&hub, "", target.path());
    assert_eq!((report.copied_files, report.skipped_files), (0, 6));
}

#[test]
fn cache_is_filled_and_used() {
    let ((hub, model), folder) = (hub(), folder());
    let cache = folder.path().to_str().expect("UTF-8");
    let pairs = [("cache_dir", cache), ("cache_wait", "true")];
    let open = || Checkpoint::open_with(location(""), store(&hub, &pairs));
    for is_cached in [false, true] {
        let before = hub.queries().len();
        let (tensors, _) = load(&open().expect("opens"), in_file_order()).expect("loads");
        assert_all(&tensors, &model.shards());
        assert!(finish_caching(PATIENCE));
        assert_eq!(hub.queries().len() == before, is_cached);
    }
}

#[test]
fn variable_disables_content_store() {
    let hub = hub().0;
    let endpoint = ("HF_ENDPOINT", &*hub.url());
    for (value, is_used) in [("1", false), ("0", true)] {
        let variables = [endpoint, ("HF_HUB_DISABLE_XET", value)];
        let outcome = outcome(&format!("hf://{MODEL}"), "", &variables);
        assert!(outcome.starts_with("loaded"), "{outcome}");
        assert_eq!(!hub.queries().is_empty(), is_used);
    }
}
