//! Faults of the content store of a hub, which fails on command: of its tokens, of its queries, and
//! of the xorbs. Before anything has come from it, the bridge is used.

use std::time::Duration;

use serde_json::{Value, json};
use tload::ErrorKind::{Remote, TimedOut};
use tload::{Loader, Location, StoreOptions};
use tload_testbed::{Fault, Hub, Rule, reconstruction};

use crate::bench::{Oracle, load, watched};
use crate::files::even;
use crate::on_objects::serially;
use crate::row::{Ended, Names, Outcome, Place, Retried, Row, Via, fails};

/// Enough for a transient fault.
const RETRIES: &str = "2";

const MODEL: &str = "org/model";

/// Number of failures that is more than all attempts of a load.
const ALWAYS: usize = 50;

/// Means by which the content store fails.
#[derive(Clone, Debug)]
enum Fail {
    /// Responses to requests for tokens: a status, or a body.
    Tokens(u16, Option<Value>),
    /// The next responses to queries, as many as this.
    Queries(u16, Option<Value>, usize),
    /// Responses with bytes of xorbs.
    Xorbs(Rule),
}

/// Row about the content store, with its fault and options.
#[derive(Clone, Debug)]
pub(crate) struct HubFault {
    pub(crate) row: Row,
    fail: Fail,
    /// True if something has come from the content store before it fails.
    has_delivered: bool,
    read_timeout: &'static str,
}

/// Returns a row about a content store that fails from its first use on.
fn first(fault: &'static str, fail: Fail, retried: Retried) -> HubFault {
    let made = match &fail {
        Fail::Tokens(status, None) => format!("token: status {status}"),
        Fail::Tokens(_, Some(_)) => "token: another body".to_owned(),
        Fail::Queries(status, None, times) => format!("query: status {status}{}", count(*times)),
        Fail::Queries(_, Some(_), times) => format!("query: another body{}", count(*times)),
        Fail::Xorbs(rule) => format!("xorb: {rule}"),
    };
    HubFault {
        row: Row {
            place: Place::Hubs,
            fault,
            made,
            engines: &[Via::Object],
            outcome: Outcome::Loads(retried),
        },
        fail,
        has_delivered: false,
        // Long enough never to expire, unless a row is about it.
        read_timeout: "20",
    }
}

/// Returns a row about a content store that fails once something has come from it.
fn later(fault: &'static str, fail: Fail, outcome: Outcome) -> HubFault {
    let fail = match fail {
        Fail::Xorbs(rule) => Fail::Xorbs(rule.after(1)),
        Fail::Tokens(..) | Fail::Queries(..) => fail,
    };
    let unfinished = first(fault, fail, Retried::No);
    let made = format!("{}, later", unfinished.row.made);
    HubFault {
        row: Row {
            made,
            outcome,
            ..unfinished.row
        },
        has_delivered: true,
        ..unfinished
    }
}

fn count(times: usize) -> &'static str {
    match times {
        1 => ", once",
        _ => "",
    }
}

fn refuses(says: &'static [&'static str], retried: Retried) -> Outcome {
    fails(Remote, says, Names::Range, retried)
}

fn xorbs(fault: Fault) -> Fail {
    Fail::Xorbs(Rule::always(fault).path("xorbs/"))
}

fn xorb(fault: Fault) -> Fail {
    Fail::Xorbs(Rule::once(fault).path("xorbs/"))
}

fn asks_for_patience(status: u16) -> Fault {
    Fault::StatusWithHeaders {
        status,
        code: "SlowDown".to_owned(),
        headers: vec![("Retry-After".to_owned(), "0".to_owned())],
    }
}

fn drips() -> Fault {
    Fault::Drip {
        bytes: 10,
        pause: Duration::from_millis(50),
    }
}

/// Address that no server on this machine may name.
const METADATA: &str = "http://169.254.169.254/";

pub(crate) fn rows() -> Vec<HubFault> {
    let groups = [left(), waited_for(), tokens(), queries(), damaged()];
    groups.into_iter().flatten().collect()
}

/// A content store of no use: the bridge is used at once.
fn left() -> Vec<HubFault> {
    let narrower = json!({"accessToken": "x", "exp": u64::MAX, "casUrl": METADATA});
    let left = |fault, fail| first(fault, fail, Retried::No);
    vec![
        left("the hub has no tokens", Fail::Tokens(404, None)),
        left("the hub denies tokens", Fail::Tokens(403, None)),
        left(
            "the hub sends something else than a token",
            Fail::Tokens(200, Some(json!({"accessToken": 5}))),
        ),
        left(
            "the hub names a metadata service as content store",
            Fail::Tokens(200, Some(narrower)),
        ),
        left(
            "the content store does not know the file",
            Fail::Queries(404, None, ALWAYS),
        ),
        left(
            "the content store does not know version 2 of the query",
            Fail::Queries(404, None, 1),
        ),
        left("the content store fails", Fail::Queries(503, None, ALWAYS)),
        left(
            "the content store sends something else than terms",
            Fail::Queries(200, Some(json!([])), ALWAYS),
        ),
        left(
            "presigned URLs are refused",
            xorbs(Fault::status(403, "AccessDenied")),
        ),
        left("chunks have an unknown version", xorbs(Fault::Corrupt(0))),
        left("xorbs drip", xorbs(drips())).impatient("4"),
    ]
}

/// A content store that asks to wait: the bridge is used at the last attempt.
fn waited_for() -> Vec<HubFault> {
    let waits = |fault, fail| first(fault, fail, Retried::Yes);
    vec![
        // A part that counts as progress has come.
        waits(
            "connections break off within the first chunk",
            xorbs(Fault::CutBody(100_000)),
        ),
        waits(
            "the hub always asks for fewer requests for tokens",
            Fail::Tokens(429, None),
        ),
        waits(
            "the content store asks for fewer queries, once",
            Fail::Queries(429, None, 1),
        ),
        waits(
            "the content store always asks for fewer queries",
            Fail::Queries(429, None, ALWAYS),
        ),
        waits(
            "the host of xorbs asks to wait, once",
            xorb(asks_for_patience(503)),
        ),
        waits(
            "the host of xorbs always asks to wait",
            xorbs(asks_for_patience(503)),
        ),
    ]
}

/// Tokens, renewed during the load.
fn tokens() -> Vec<HubFault> {
    let words: &[&str] = &["token for its content store", "status 404"];
    vec![
        later(
            "the hub has no more tokens",
            Fail::Tokens(404, None),
            refuses(words, Retried::No),
        ),
        later(
            "the hub fails when it is asked for a token",
            Fail::Tokens(500, None),
            refuses(&["status 500", "3 attempts"], Retried::Yes),
        ),
        later(
            "the hub sends something else than another token",
            Fail::Tokens(200, Some(json!("x"))),
            refuses(&["malformed"], Retried::No),
        ),
    ]
}

/// Queries during the load.
fn queries() -> Vec<HubFault> {
    let hostile = |fault, body, says| {
        let fail = Fail::Queries(200, Some(body), ALWAYS);
        later(fault, fail, refuses(says, Retried::No))
    };
    vec![
        later(
            "the content store fails, once",
            Fail::Queries(500, None, 1),
            Outcome::Loads(Retried::Yes),
        ),
        later(
            "the content store keeps failing",
            Fail::Queries(500, None, ALWAYS),
            refuses(&["status 500", "3 attempts"], Retried::Yes),
        ),
        hostile(
            "the content store sends something else than terms, later",
            json!({}),
            &["not a reconstruction"],
        ),
        hostile(
            "the content store sends too few terms",
            reconstruction(2, 1000, METADATA),
            &["the terms have 1000 of"],
        ),
        hostile(
            "the content store sends terms that are too long for their chunks",
            reconstruction(2, usize::MAX, METADATA),
            &["a length that its chunks cannot have"],
        ),
        hostile(
            "the content store names a metadata service",
            reconstruction(2, 1 << 20, METADATA),
            &["names an address of a private network"],
        ),
    ]
}

/// Xorbs during the load.
fn damaged() -> Vec<HubFault> {
    let again = |fault, what| later(fault, xorb(what), Outcome::Loads(Retried::Yes));
    let stays = |fault, what, says| later(fault, xorbs(what), refuses(says, Retried::Yes));
    vec![
        later(
            "a presigned URL has expired",
            xorb(Fault::status(403, "AccessDenied")),
            Outcome::Loads(Retried::No),
        ),
        stays(
            "presigned URLs are refused, later",
            Fault::status(403, "AccessDenied"),
            &["status 403", "3 attempts"],
        ),
        again(
            "the host of xorbs fails, once",
            Fault::status(500, "InternalError"),
        ),
        stays(
            "the host of xorbs keeps failing",
            Fault::status(500, "InternalError"),
            &["status 500", "3 attempts"],
        ),
        again(
            "a connection breaks off within a chunk",
            Fault::CutBody(1000),
        ),
        stays(
            "connections break off within a chunk",
            Fault::CutBody(1000),
            &["3 attempts"],
        ),
        again("a xorb ends within a chunk", Fault::ShortBody(10)),
        stays(
            "xorbs end within a chunk",
            Fault::ShortBody(10),
            &["ended within a chunk", "3 attempts"],
        ),
        stays(
            "chunks have an unknown version, later",
            Fault::Corrupt(0),
            &["version 255", "3 attempts"],
        ),
        stays(
            "chunks have impossible lengths",
            Fault::Corrupt(2),
            &["impossible lengths", "3 attempts"],
        ),
        later(
            "a byte of a chunk is corrupted in transit",
            xorb(Fault::Corrupt(1000)),
            Outcome::Wrong,
        ),
        later(
            "xorbs drip, later",
            xorbs(drips()),
            fails(
                TimedOut,
                &["too slow", "3 attempts"],
                Names::Range,
                Retried::Yes,
            ),
        )
        // Its first use has half of it.
        .impatient("2"),
    ]
}

impl HubFault {
    /// Sets a short read timeout, seconds.
    fn impatient(self, read_timeout: &'static str) -> Self {
        let made = format!("{}; `read_timeout={read_timeout}`", self.row.made);
        Self {
            row: Row { made, ..self.row },
            read_timeout,
            ..self
        }
    }

    /// Runs the row; returns `None` if it hangs.
    pub(crate) fn run(&self) -> Option<Ended> {
        let hub = Hub::start();
        hub.keep_in_xet();
        let file = even("0.", 1, 4, 1 << 20);
        hub.commit(MODEL, "main", &[("m-0.safetensors", &file)]);
        let spared = usize::from(self.has_delivered);
        if let (Fail::Tokens(..), true) = (&self.fail, self.has_delivered) {
            // One for each query.
            hub.set_xet_token_lifetime(10);
        }
        match &self.fail {
            Fail::Tokens(status, body) => hub.fail_xet_tokens(*status, body.clone(), spared),
            Fail::Queries(status, body, times) => {
                hub.spare_queries(spared);
                (0..*times).for_each(|_| hub.fail_query(*status, body.clone()));
            }
            Fail::Xorbs(rule) => hub.files().fault(rule.clone()),
        }
        let pairs = [
            ("environment", "false"),
            ("endpoint", &hub.url()),
            ("retries", RETRIES),
            ("read_timeout", self.read_timeout),
        ];
        let store = StoreOptions::from_pairs(pairs).expect("valid options");
        let oracle = Oracle(vec![file]);
        let location = Location::parse(&format!("hf://{MODEL}/m-0.safetensors")).expect("a URL");
        watched(
            || {
                let loader = Loader::open_with(&location, &store);
                let loader = loader.map(|loader| loader.options(serially()));
                load(&oracle, loader, |tensor| tensor.bytes().to_vec())
            },
            || (),
            || hub.files().clear_faults(),
        )
    }
}
