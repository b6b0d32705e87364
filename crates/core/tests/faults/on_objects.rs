//! Faults of objects: a store that fails on command (`tload_testbed::FaultyServer`), and stores
//! that cannot be reached.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tload::ErrorKind::{Changed, Corrupt, PermissionDenied, Remote, TimedOut, Unsupported};
use tload::sealed::Algorithm;
use tload::{ErrorKind, Key, LoadOptions, Loader, Location, StoreOptions, Verify};
use tload_testbed::{BlackHole, Fault, FaultyServer, Operation, Rule};

use crate::bench::{Oracle, load, until_tabled, watched, write_manifest};
use crate::files::{even, folder, options, read, write};
use crate::row::{Ended, Names, Outcome, Place, Retried, Row, Via, fails};
use crate::sealing::{new_key, seal_with};

/// Name of the file.
const NAME: &str = "m-0.safetensors";

/// Enough for a transient fault.
const RETRIES: &str = "2";

/// Offset of the flipped byte: the middle of the third tensor.
const FLIPPED: u64 = 2_500_000;

/// Address that the endpoint names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    /// The store's own.
    Right,
    /// A port without a listener.
    Closed,
    /// A port that drops packets.
    Hole,
    /// The store's own, but with TLS, which it does not speak.
    Tls,
    /// The store's own, through a proxy at a port without a listener.
    Proxy,
}

/// Row about objects, with its rules and options.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each changes a row by itself"
)]
pub(crate) struct ObjectFault {
    pub(crate) row: Row,
    rules: Vec<Rule>,
    /// Begins the fault before the checkpoint is opened.
    at_opening: bool,
    address: Address,
    /// Sends no validators; the value is whether that is allowed.
    is_bare: Option<bool>,
    /// Opens an index.
    has_index: bool,
    /// Opens the folder, which is listed.
    is_listed: bool,
    read_timeout: &'static str,
    set: fn(&mut LoadOptions),
    /// The load has a timeout.
    is_hurried: bool,
}

/// Returns a row about reads of tensors, not of the header.
fn on_read(fault: &'static str, rule: Rule, outcome: Outcome) -> ObjectFault {
    let rule = rule.on(Operation::Get).from_byte(1);
    ObjectFault {
        row: Row {
            place: Place::Objects,
            fault,
            made: rule.to_string(),
            engines: &[Via::Object],
            outcome,
        },
        rules: vec![rule],
        at_opening: false,
        address: Address::Right,
        is_bare: None,
        has_index: false,
        is_listed: false,
        // Long enough never to expire, unless a row is about it.
        read_timeout: "20",
        set: |_| {},
        is_hurried: false,
    }
}

/// Returns a row about opening a checkpoint at a wrong address.
fn nowhere(fault: &'static str, address: Address, made: &str, outcome: Outcome) -> ObjectFault {
    let unruled = on_read(fault, Rule::always(Fault::NoEtag), outcome);
    ObjectFault {
        row: Row {
            made: made.to_owned(),
            ..unruled.row
        },
        rules: Vec::new(),
        at_opening: true,
        address,
        ..unruled
    }
}

fn asks_for_patience(status: u16, code: &str) -> Fault {
    Fault::StatusWithHeaders {
        status,
        code: code.to_owned(),
        headers: vec![("Retry-After".to_owned(), "0".to_owned())],
    }
}

pub(crate) fn rows() -> Vec<ObjectFault> {
    let groups = [
        passing(),
        staying(),
        refusing(),
        strange(),
        listing(),
        garbled(),
        changing(),
        bare(),
        unreachable(),
    ];
    groups.into_iter().flatten().collect()
}

/// Transient faults: a retry helps.
fn passing() -> Vec<ObjectFault> {
    let again = |fault, what| on_read(fault, Rule::once(what), Outcome::Loads(Retried::Yes));
    vec![
        again(
            "the store asks for fewer requests",
            asks_for_patience(503, "SlowDown"),
        ),
        again(
            "the store reports too many requests",
            asks_for_patience(429, "TooManyRequests"),
        ),
        again("the store fails", Fault::status(500, "InternalError")),
        again("a gateway fails", Fault::status(502, "BadGateway")),
        again(
            "the connection is closed before the response",
            Fault::CutBeforeHeaders,
        ),
        again(
            "the connection is reset before the response",
            Fault::ResetBeforeHeaders,
        ),
        again(
            "the connection is closed in the response body",
            Fault::CutBody(100_000),
        ),
        again(
            "the connection is reset in the response body",
            Fault::ResetBody(100_000),
        ),
        again(
            "the store accepts the request and stays silent",
            Fault::StallHeaders,
        )
        .impatient(),
        again(
            "the store falls silent in the response body",
            Fault::StallBody(90_000),
        )
        .impatient(),
        again("body and Content-Length are short", Fault::ShortBody(1000)),
        again("the body exceeds Content-Length", Fault::WrongLength(-5)),
        on_read(
            "the body falls short of Content-Length, but is complete",
            Rule::once(Fault::WrongLength(5)),
            Outcome::Loads(Retried::No),
        ),
        on_read(
            "one request in three fails",
            Rule::always(Fault::status(500, "InternalError")).every(3),
            Outcome::Loads(Retried::Yes),
        ),
        on_read(
            "the body trickles in",
            Rule::times(
                2,
                Fault::Drip {
                    bytes: 30_000,
                    pause: Duration::from_millis(20),
                },
            ),
            Outcome::Loads(Retried::No),
        ),
        on_read(
            "responses are delayed",
            Rule::always(Fault::Delay(Duration::from_millis(100))),
            Outcome::Loads(Retried::No),
        ),
    ]
}

/// Persistent faults: retries do not help.
fn staying() -> Vec<ObjectFault> {
    let stays = |fault, what, kind, says| {
        let outcome = fails(kind, says, Names::Range, Retried::Yes);
        on_read(fault, Rule::always(what), outcome)
    };
    vec![
        stays(
            "the store keeps asking for fewer requests",
            asks_for_patience(503, "SlowDown"),
            Remote,
            &["busy", "status 503", "3 attempts"],
        ),
        stays(
            "the store keeps failing",
            Fault::status(500, "InternalError"),
            Remote,
            &["failed", "status 500", "3 attempts"],
        ),
        stays(
            "every connection is reset",
            Fault::ResetBeforeHeaders,
            Remote,
            &["was lost", "3 attempts"],
        ),
        stays(
            "every connection is closed in the response body",
            Fault::CutBody(10),
            Remote,
            &["3 attempts"],
        ),
        stays(
            "the store is always silent",
            Fault::StallHeaders,
            TimedOut,
            &["read_timeout", "3 attempts"],
        )
        .impatient(),
        on_read(
            "the store is silent, and the load has a timeout",
            Rule::always(Fault::StallBody(10)),
            fails(
                TimedOut,
                &["longer than its timeout of", "m-0.safetensors ["],
                Names::Location,
                Retried::No,
            ),
        )
        .hurried(),
    ]
}

/// Refused requests.
fn refusing() -> Vec<ObjectFault> {
    let refuses = |fault, what, kind, says| {
        let outcome = fails(kind, says, Names::Range, Retried::No);
        on_read(fault, Rule::always(what), outcome)
    };
    let denied = Rule::always(Fault::status(403, "AccessDenied"))
        .on(Operation::Get)
        .from_byte(1)
        .after(2);
    let after = refuses(
        "credentials are denied after two requests",
        Fault::status(403, "AccessDenied"),
        PermissionDenied,
        &["s3:GetObject", "status 403"],
    );
    vec![
        ObjectFault {
            row: Row {
                made: format!("{denied}, after two requests"),
                ..after.row
            },
            rules: vec![denied],
            ..after
        },
        refuses(
            "the session of the credentials has expired",
            Fault::status(400, "ExpiredToken"),
            PermissionDenied,
            &["expired", "status 400"],
        ),
        refuses(
            "the clock of this machine is wrong",
            Fault::clock_skew(),
            PermissionDenied,
            &["clock", "status 403"],
        ),
        refuses(
            "the object is archived",
            Fault::status(403, "InvalidObjectState"),
            Unsupported,
            &["archived"],
        ),
        refuses(
            "the bucket is in another region",
            Fault::wrong_region("eu-west-1"),
            ErrorKind::InvalidRequest,
            &["region=eu-west-1"],
        ),
    ]
}

/// Lists that cannot be read to their end.
fn listing() -> Vec<ObjectFault> {
    let on_list = |fault, what, says| {
        let outcome = fails(Remote, says, Names::Location, Retried::No);
        let rule = Rule::always(what).on(Operation::List);
        ObjectFault {
            at_opening: true,
            is_listed: true,
            rules: vec![rule.clone()],
            ..on_read(fault, rule, outcome)
        }
    };
    vec![
        on_list(
            "a list names the same next page again and again",
            Fault::RepeatedPage,
            &["oversized"],
        ),
        on_list("a list ends early", Fault::TruncatedPage, &["ends early"]),
    ]
}

/// Malformed responses.
#[expect(clippy::too_many_lines, reason = "a table")]
fn strange() -> Vec<ObjectFault> {
    let refuses = |fault, what, kind, says, retried| {
        on_read(
            fault,
            Rule::always(what),
            fails(kind, says, Names::Range, retried),
        )
    };
    let no = Retried::No;
    vec![
        refuses(
            "the body is too long",
            Fault::LongBody(5),
            Remote,
            &["more than"],
            no,
        ),
        refuses(
            "the response has other bytes",
            Fault::WrongContentRange(5),
            Remote,
            &["different range"],
            no,
        ),
        refuses(
            "the response has no Content-Range",
            Fault::NoContentRange,
            Remote,
            &["no Content-Range"],
            no,
        ),
        on_read(
            "the store sends whole objects only, of at most 16 MiB",
            Rule::always(Fault::IgnoreRange),
            Outcome::Loads(Retried::No),
        ),
        refuses(
            "the response is compressed",
            Fault::Encoded("gzip"),
            Unsupported,
            &["Content-Encoding: gzip"],
            no,
        ),
        refuses(
            "the response is not HTTP",
            Fault::Garbage(b"220 mail ready\r\n".to_vec()),
            Remote,
            &[],
            Retried::Yes,
        ),
        refuses(
            "the response head ends early",
            Fault::Garbage(b"HTTP/1.1 206 Partial Con".to_vec()),
            Remote,
            &["was lost"],
            Retried::Yes,
        ),
        refuses(
            "a redirect leads to a port without a listener",
            Fault::redirect("http://127.0.0.1:1/gone"),
            Remote,
            &["refuses connections"],
            Retried::Yes,
        ),
        refuses(
            "a redirect leads to a metadata service",
            Fault::redirect("http://169.254.169.254/latest/meta-data"),
            Remote,
            &["redirects to an address of a private network"],
            no,
        ),
        refuses(
            "a redirect leads away from HTTP",
            Fault::redirect("file:///etc/passwd"),
            Remote,
            &["neither http nor https"],
            no,
        ),
    ]
}

/// Wrong bytes in a well-formed response.
fn garbled() -> Vec<ObjectFault> {
    vec![
        on_read(
            "a byte is corrupted in transit",
            Rule::always(Fault::Corrupt(FLIPPED)),
            Outcome::Wrong,
        ),
        on_read(
            "a byte is corrupted in transit, and a manifest has digests",
            Rule::always(Fault::Corrupt(FLIPPED)),
            fails(
                Corrupt,
                &["0.2", "tload-manifest.json"],
                Names::TensorAndRange,
                Retried::No,
            ),
        )
        .with(|it| it.verify = Verify::Require, "; `verify=require`"),
    ]
}

const INDEX: &str = "model.safetensors.index.json";

/// Returns an index of the one object.
fn index(total_size: u64) -> Vec<u8> {
    let placed = (0..4).map(|tensor| (format!("0.{tensor}"), "m-0.safetensors".into()));
    let weight_map: serde_json::Map<_, serde_json::Value> = placed.collect();
    let metadata = serde_json::json!({"total_size": total_size});
    let index = serde_json::json!({"metadata": metadata, "weight_map": weight_map});
    index.to_string().into_bytes()
}

/// Objects that are replaced or removed.
fn changing() -> Vec<ObjectFault> {
    let changes = |fault, what, says| {
        let outcome = fails(Changed, says, Names::Range, Retried::No);
        on_read(fault, Rule::once(what), outcome)
    };
    let replaced = Rule::once(Fault::ChangeBefore(index(2))).path(INDEX);
    vec![
        ObjectFault {
            has_index: true,
            rules: vec![replaced],
            ..on_read(
                "the index is replaced during the load",
                Rule::once(Fault::ChangeBefore(index(2))),
                fails(
                    Changed,
                    &["changed while it was read", INDEX],
                    Names::Location,
                    Retried::No,
                ),
            )
        },
        changes(
            "the object is replaced during the load",
            Fault::ChangeBefore(other_state()),
            &["changed while it was read", "status 412"],
        ),
        changes(
            "the object is removed during the load",
            Fault::RemoveBefore,
            &["was removed"],
        ),
        changes(
            "the object is shorter than it was",
            Fault::status(416, "InvalidRange"),
            &["shorter than it was"],
        ),
        changes(
            "the object has a different length",
            Fault::WrongTotal(77_777_777),
            &["its length changed from", "77777777"],
        ),
        changes(
            "the response has a different ETag",
            Fault::WeakEtag,
            &["its ETag changed from"],
        ),
    ]
}

/// Returns the bytes of the file in another state.
fn other_state() -> Vec<u8> {
    even("0.", 9, 4, 1 << 20)
}

/// Returns a rule that replaces the object between two reads.
fn replaced_meanwhile(bytes: Vec<u8>) -> Rule {
    let replaced = Rule::once(Fault::ChangeBefore(bytes));
    replaced.on(Operation::Get).from_byte(1).after(1)
}

/// Stores that send no validators.
fn bare() -> Vec<ObjectFault> {
    let says_nothing = |fault, rules: Vec<Rule>, is_allowed: bool, outcome| {
        let made = rules.first().map(|rule| format!("; {rule}"));
        let allowed = if is_allowed {
            "; `allow_unversioned=true`"
        } else {
            ""
        };
        let unruled = on_read(fault, Rule::always(Fault::NoEtag), outcome);
        ObjectFault {
            row: Row {
                made: format!("both headers omitted{allowed}{}", made.unwrap_or_default()),
                ..unruled.row
            },
            rules,
            is_bare: Some(is_allowed),
            ..unruled
        }
    };
    vec![
        says_nothing(
            "the store sends neither ETag nor Last-Modified",
            Vec::new(),
            false,
            fails(
                Unsupported,
                &["neither ETag nor Last-Modified"],
                Names::Location,
                Retried::No,
            ),
        ),
        says_nothing(
            "the store sends neither ETag nor Last-Modified, and that is allowed",
            Vec::new(),
            true,
            Outcome::Loads(Retried::No),
        ),
        says_nothing(
            "the object is replaced during the load, and the store sends neither ETag nor Last-Modified",
            vec![replaced_meanwhile(other_state())],
            true,
            Outcome::Mixed {
                kind: Changed,
                says: &["its first or last bytes"],
            },
        ),
    ]
}

/// Stores that cannot be reached.
fn unreachable() -> Vec<ObjectFault> {
    let fails = |kind, says| fails(kind, says, Names::Location, Retried::Yes);
    vec![
        nowhere(
            "connections are refused",
            Address::Closed,
            "a port without a listener",
            fails(Remote, &["refuse"]),
        ),
        nowhere(
            "packets are dropped",
            Address::Hole,
            // Set for this row only, so that no busy machine meets it.
            "a port whose queue is full; `connect_timeout=0.3`",
            fails(Remote, &["connecting to", "timed out", "connect_timeout"]),
        ),
        nowhere(
            "the store does not speak TLS",
            Address::Tls,
            "an `https` endpoint that speaks HTTP",
            fails(Remote, &["TLS"]),
        ),
        nowhere(
            "the proxy refuses connections",
            Address::Proxy,
            "a port without a listener as `proxy`",
            fails(Remote, &["the proxy http://", "refuses connections"]),
        ),
    ]
}

impl ObjectFault {
    /// Sets a short read timeout.
    fn impatient(self) -> Self {
        let row = Row {
            made: format!("{}; `read_timeout=2`", self.row.made),
            ..self.row
        };
        Self {
            read_timeout: "2",
            row,
            ..self
        }
    }

    fn with(self, set: fn(&mut LoadOptions), words: &str) -> Self {
        let row = Row {
            made: format!("{}{words}", self.row.made),
            ..self.row
        };
        Self { row, set, ..self }
    }

    /// Sets a timeout, which is to end the request that is not answered.
    fn hurried(self) -> Self {
        let hurried = self.with(|_| {}, "; a `timeout`");
        Self {
            is_hurried: true,
            ..hurried
        }
    }

    /// Returns the row as it holds for sealed objects; `None` if it is about a plain index or a
    /// manifest of plain digests.
    pub(crate) fn when_sealed(mut self) -> Option<Self> {
        if matches!(self.row.outcome, Outcome::Mixed { .. }) {
            // As long as the sealed file, so that only the tags tell.
            let mut bytes = other_state();
            bytes.resize(Bench::sealed().stored.0[0].len(), 0);
            self.rules = vec![replaced_meanwhile(bytes)];
        }
        self.row.outcome = self.row.outcome.when_sealed();
        let is_of_plain = self.has_index || self.row.made.contains("verify=");
        (!is_of_plain).then_some(self)
    }

    /// Runs the row with the store that `start` returns; returns `None` if it hangs.
    pub(crate) fn run(&self, start: fn() -> Bench) -> Option<Ended> {
        if !self.is_hurried {
            return self.run_within(&start(), None);
        }
        until_tabled(&self.row, |timeout| {
            self.run_within(&start(), Some(timeout))
        })
    }

    fn run_within(&self, bench: &Bench, timeout: Option<Duration>) -> Option<Ended> {
        let mut store = self.store(&bench.server);
        if let Some(is_allowed) = self.is_bare {
            bench.server.leave_out_validators();
            let set = store
                .options
                .set("allow_unversioned", is_allowed.to_string());
            set.expect("an option");
        }
        let mut opened = NAME;
        if self.has_index {
            bench.server.put(&format!("models/{INDEX}"), index(1));
            opened = INDEX;
        }
        if self.is_listed {
            opened = "";
        }
        let begin = || {
            for rule in &self.rules {
                bench.server.fault(rule.clone());
            }
        };
        if self.at_opening {
            begin();
        }
        let mut wanted = serially();
        (self.set)(&mut wanted);
        wanted.timeout = timeout;
        watched(
            || {
                bench.load_at(opened, &store.options, wanted, || {
                    if !self.at_opening {
                        begin();
                    }
                })
            },
            || (),
            || bench.server.clear_faults(),
        )
    }

    /// Returns the options that reach the store.
    fn store(&self, server: &FaultyServer) -> Reached {
        let (mut url, mut hole, mut proxy) = (server.url(), None, None);
        let closed = || {
            // Was free a moment ago.
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            format!("http://{}", listener.local_addr().expect("bound"))
        };
        match self.address {
            Address::Right => {}
            Address::Closed => url = closed(),
            Address::Proxy => proxy = Some(closed()),
            Address::Hole => {
                let black = BlackHole::start().expect("a port");
                url = black.url();
                hole = Some(black);
            }
            Address::Tls => url = url.replace("http://", "https://"),
        }
        let mut options = options_at(&url, self.read_timeout);
        if hole.is_some() {
            // Nothing but the connection, which a busy machine does not make.
            options.set("connect_timeout", "0.3").expect("an option");
        }
        if let Some(proxy) = proxy {
            options.set("proxy", proxy).expect("a URL");
        }
        Reached {
            options,
            _hole: hole,
        }
    }
}

/// Runs one load without faults: the first request of a process opens descriptors that stay.
pub(crate) fn warm_up() {
    let bench = Bench::start();
    let store = options_at(&bench.server.url(), "20");
    let ended = bench.load(&store, serially(), || ());
    assert!(ended.is_whole && ended.wrong_bytes == 0, "{ended}");
}

struct Reached {
    options: StoreOptions,
    _hole: Option<BlackHole>,
}

/// Returns options for one request at a time, so that the order in which rules match is known.
pub(crate) fn serially() -> LoadOptions {
    options(|it| {
        it.depth = Some(1);
        it.extent_bytes = Some(1 << 20);
    })
}

pub(crate) fn options_at(url: &str, read_timeout: &str) -> StoreOptions {
    let pairs = [
        ("environment", "false"),
        ("endpoint", url),
        ("region", "us-east-1"),
        ("access_key_id", "test"),
        ("secret_access_key", "testtest"),
        ("retries", RETRIES),
        ("read_timeout", read_timeout),
        ("connect_timeout", "20"),
    ];
    StoreOptions::from_pairs(pairs).expect("valid options")
}

/// Returns the bytes of the file.
fn plain() -> Vec<u8> {
    even("0.", 1, 4, 1 << 20)
}

/// Store with one file of four tensors.
pub(crate) struct Bench {
    pub(crate) oracle: Oracle,
    pub(crate) server: FaultyServer,
    /// The file as it is stored.
    stored: Oracle,
    /// Key of a file that is stored sealed.
    key: Option<Key>,
    /// Directory with the file of the key.
    _local: TempDir,
}

impl Bench {
    pub(crate) fn start() -> Self {
        let local = folder();
        let path = write(&local.path().join(NAME), &plain());
        write_manifest(&Location::from(path));
        let directory = local.path().to_owned();
        Self::of(local, &directory, None)
    }

    /// Starts a store with the same file, sealed.
    pub(crate) fn sealed() -> Self {
        let local = folder();
        let path = |name: &str| local.path().join(name);
        let key = new_key(Algorithm::Aes256, &path("key.json"));
        write(&path("plain").join(NAME), &plain());
        seal_with(&key, &path("plain"), &path("sealed")).expect("seals");
        let directory = path("sealed");
        Self::of(local, &directory, Some(key))
    }

    /// Starts a store with the files of a directory.
    fn of(local: TempDir, directory: &Path, key: Option<Key>) -> Self {
        let server = FaultyServer::start();
        for entry in directory.read_dir().expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a file").display();
            server.put(&format!("models/{name}"), read(&path));
        }
        Self {
            oracle: Oracle(vec![plain()]),
            server,
            stored: Oracle(vec![read(&directory.join(NAME))]),
            key,
            _local: local,
        }
    }

    /// Opens the checkpoint, calls `then`, and loads.
    pub(crate) fn load(
        &self,
        store: &StoreOptions,
        options: LoadOptions,
        then: impl FnOnce(),
    ) -> Ended {
        self.load_at(NAME, store, options, then)
    }

    /// Like [`Self::load`], for a shard or an index.
    fn load_at(
        &self,
        opened: &str,
        store: &StoreOptions,
        options: LoadOptions,
        then: impl FnOnce(),
    ) -> Ended {
        let location = Location::parse(&format!("s3://models/{opened}")).expect("a URL");
        let mut opening = tload::OpenOptions::from(store.clone());
        opening.key.clone_from(&self.key);
        let loader = Loader::open_with(&location, opening);
        then();
        let loader = loader.map(|loader| loader.options(options));
        let ended = load(&self.oracle, loader, |tensor| tensor.bytes().to_vec());
        let location = ended.error.as_ref().and_then(tload::Error::location);
        let file_len = self.stored.len_of(location);
        Ended { file_len, ..ended }
    }
}
