//! Secrets are never shown: not in errors, not in debug output, not in reports.

use std::fmt::{self, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, OnceLock};

use tload::internal::storage::ObjectSource;
use tload::{Checkpoint, Error, Loader, Location, StoreOptions};
use tload_testbed::{Fault, FaultyServer, Rule};

use crate::fixtures::{even, load, options};
use crate::sites;

/// Part of every secret, and of nothing else.
pub(crate) const MARK: &str = "hunter2";

/// Way to access a server, with a secret in every place that accepts one.
struct Way {
    name: &'static str,
    url: String,
    store: StoreOptions,
}

/// Parameters with which clouds sign URLs.
const SIGNED: &str = "X-Amz-Credential=AKIAhunter2&X-Amz-Security-Token=hunter2&X-Amz-Signature=hunter2&sv=2024-01-01&sig=hunter2\
     &X-Goog-Credential=hunter2&X-Goog-Signature=hunter2&Key-Pair-Id=hunter2&token=hunter2";

/// Key of a service account, complete except for the private key itself.
const SERVICE_ACCOUNT: &str = r#"{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n",
    "private_key_id": "hunter2", "client_email": "a@b", "disable_oauth": false}"#;

/// Keys of Azure accounts must be base64: this one contains the mark only when decoded, and is a
/// mark of its own.
const AZURE_KEY: &str = "aHVudGVyMmh1bnRlcjI=";

fn way(name: &'static str, url: impl Into<String>, pairs: &[(&str, &str)]) -> Way {
    // Any stage may be the one that it ends.
    let mut store = sites::options(&[("retries", "1"), ("read_timeout", "0.3")]);
    for (key, value) in pairs {
        store.set(key, *value).expect("an option");
    }
    Way {
        name,
        url: url.into(),
        store,
    }
}

fn ways(server: &str) -> Vec<Way> {
    let mut ways = ways_of_clouds(server);
    ways.extend(ways_of_the_web(server));
    ways
}

fn ways_of_clouds(server: &str) -> Vec<Way> {
    let endpoint = ("endpoint", server);
    let s3 = "s3://models/m.safetensors";
    let keys = [
        endpoint,
        ("access_key_id", "AKIAhunter2"),
        ("secret_access_key", "hunter2secret"),
        ("session_token", "hunter2token"),
        ("header.x-team", "hunter2header"),
    ];
    let other_names = [
        endpoint,
        ("aws_access_key_id", "AKIAhunter2"),
        ("aws_secret_access_key", "hunter2secret"),
    ];
    let azure = format!("{server}/account");
    let of_azure = |name, key, value| {
        let pairs = [("endpoint", &*azure), ("account", "account"), (key, value)];
        way(name, "az://models/m.safetensors", &pairs)
    };
    let signature = "sv=2024-01-01&sig=hunter2signature";
    vec![
        way("keys of S3", s3, &keys),
        way("keys under other names", s3, &other_names),
        way(
            "a bearer token",
            "gs://models/m.safetensors",
            &[endpoint, ("token", "hunter2bearer")],
        ),
        of_azure("a shared access signature", "sas", signature),
        of_azure("an account key", "account_key", AZURE_KEY),
        of_azure("a token of Azure", "token", "hunter2bearer"),
    ]
}

fn ways_of_the_web(server: &str) -> Vec<Way> {
    let host = server.strip_prefix("http://").expect("plain");
    let file = format!("{server}/models/m.safetensors");
    let proxy = ("proxy", "http://user:hunter2@127.0.0.1:1");
    vec![
        way("a signed URL", format!("{file}?{SIGNED}"), &[]),
        way(
            "a signed folder",
            format!("{server}/models?sig=hunter2"),
            &[],
        ),
        way(
            "user and password",
            format!("http://user:hunter2@{host}/models/m.safetensors"),
            &[],
        ),
        way(
            "odd user and password",
            format!("http://us%40er:hunter2%2F%3A@{host}/models/m.safetensors"),
            &[],
        ),
        way(
            "a header",
            &*file,
            &[("header.authorization", "Bearer hunter2")],
        ),
        way("a password of a proxy", &*file, &[proxy]),
    ]
}

/// Writes every representation of an error.
pub(crate) fn show_error(shown: &mut String, error: &Error) {
    let _ = write!(
        shown,
        "{error} {error:?} {error:#?} {} {:?} {:?}",
        error.chain(),
        error.request(),
        error.hint()
    );
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let _ = write!(shown, " {inner} {inner:?}");
        cause = inner.source();
    }
}

fn assert_no_secret(way: &str, shown: &str) {
    for mark in [MARK, AZURE_KEY] {
        let leak = shown.find(mark).map(|at| {
            let before: String = shown[..at].chars().rev().take(150).collect();
            before.chars().rev().collect::<String>()
        });
        assert_eq!(leak, None, "{way}: shows a secret after this text");
    }
}

/// Faults of opening and of reading.
fn faults() -> Vec<Fault> {
    vec![
        Fault::status(400, "InvalidRequest"),
        Fault::status(400, "ExpiredToken"),
        Fault::status(400, "AuthorizationHeaderMalformed"),
        Fault::status(401, "Unauthorized"),
        Fault::status(403, "AccessDenied"),
        Fault::status(403, "InvalidAccessKeyId"),
        Fault::status(403, "SignatureDoesNotMatch"),
        Fault::status(404, "NoSuchKey"),
        Fault::status(404, "NoSuchBucket"),
        Fault::status(407, "ProxyAuthenticationRequired"),
        Fault::status(412, "PreconditionFailed"),
        Fault::status(416, "InvalidRange"),
        Fault::status(500, "InternalError"),
        Fault::slow_down(0),
        Fault::wrong_region("eu-west-1"),
        Fault::clock_skew(),
        Fault::StatusWithHeaders {
            status: 302,
            code: "Found".to_owned(),
            headers: vec![(
                "Location".to_owned(),
                "http://127.0.0.1:1/?sig=hunter2".to_owned(),
            )],
        },
        Fault::StatusWithHeaders {
            status: 302,
            code: "Found".to_owned(),
            headers: vec![(
                "Location".to_owned(),
                "http://user:hunter2@host.invalid/".to_owned(),
            )],
        },
        Fault::StatusWithHeaders {
            status: 403,
            code: "signature=hunter2".to_owned(),
            headers: vec![],
        },
        Fault::CutBeforeHeaders,
        Fault::ResetBeforeHeaders,
        Fault::StallHeaders,
        Fault::CutBody(10),
        Fault::LongBody(10),
        Fault::ShortBody(10),
        Fault::WrongContentRange(7),
        Fault::NoContentRange,
        Fault::IgnoreRange,
        Fault::WrongTotal(3),
        Fault::NoEtag,
        Fault::WeakEtag,
        Fault::BadLastModified,
    ]
}

/// Everything that the core logs.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<String>);

impl Told {
    /// Returns the subscriber of this process, installed at the first call.
    pub(crate) fn of_process() -> &'static Self {
        static LISTENER: OnceLock<&'static Told> = OnceLock::new();
        LISTENER.get_or_init(|| {
            let listener: &'static Self = Box::leak(Box::default());
            tracing::subscriber::set_global_default(listener).expect("the only subscriber");
            // Callsites that other tests reached before are cached as disabled; this enables them.
            tracing::callsite::rebuild_interest_cache();
            listener
        })
    }

    pub(crate) fn told(&self) -> String {
        self.0
            .lock()
            .expect("no thread panics with the lock")
            .clone()
    }
}

impl tracing::Subscriber for &'static Told {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tload")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut told = self.0.lock().expect("no thread panics with the lock");
        event.record(
            &mut |field: &tracing::field::Field, value: &dyn fmt::Debug| {
                let _ = write!(told, "{field}={value:?} ");
            },
        );
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Every way with every fault, while opening and while reading.
#[test]
fn errors_show_no_secret() {
    let listener = Told::of_process();
    let server = Arc::new(FaultyServer::start());
    for way in ways(&server.url()) {
        let file = even("t", 1, 2, 5000);
        let mut errors = 0;
        let mut shown = format!("{:?} {:#?}", way.store, way.store);
        for fault in faults() {
            server.put("models/m.safetensors", file.clone());
            server.put("models/model.safetensors", file.clone());
            server.put("account/models/m.safetensors", file.clone());
            let location = Location::parse(&way.url).expect("a valid URL");
            let _ = write!(shown, "{location} {location:?} {location:#?}");
            server.fault(Rule::always(fault.clone()));
            if let Err(error) = Checkpoint::open_with(&location, &way.store) {
                show_error(&mut shown, &error);
                errors += 1;
            }
            server.clear_faults();
            let Ok(checkpoint) = Checkpoint::open_with(&location, &way.store) else {
                continue;
            };
            server.fault(Rule::always(fault));
            if let Err(error) = load(&checkpoint, options(|_| {})) {
                show_error(&mut shown, &error);
                errors += 1;
            }
            server.clear_faults();
        }
        assert!(errors >= 20, "{}: {errors} errors only", way.name);
        assert_no_secret(way.name, &shown);
    }
    let told = listener.told();
    // Retries are logged, for example.
    assert!(!told.is_empty(), "nothing was logged");
    assert_no_secret("the log", &told);
}

/// Open checkpoints, streams and reports show no secret either.
#[test]
fn open_objects_show_no_secret() {
    let server = Arc::new(FaultyServer::start());
    let file = even("t", 1, 2, 5000);
    for path in [
        "models/m.safetensors",
        "models/model.safetensors",
        "account/models/m.safetensors",
    ] {
        server.put(path, file.clone());
    }
    let mut opened = 0;
    let mut complaints = Vec::new();
    for way in ways(&server.url()) {
        let location = Location::parse(&way.url).expect("a valid URL");
        let Ok(checkpoint) = Checkpoint::open_with(&location, &way.store) else {
            continue;
        };
        opened += 1;
        let mut shown = format!("{checkpoint:?} {checkpoint:#?}");
        for shard in checkpoint.shards() {
            let _ = write!(shown, "{shard:?} {:?}", shard.location());
        }
        let loader = Loader::new(checkpoint);
        let stream = loader.stream().expect("starts");
        let _ = write!(shown, "{loader:?} {stream:?} {:?}", stream.canceller());
        let (_, report) = load(loader.checkpoint(), options(|_| {})).expect("loads");
        let _ = write!(
            shown,
            "{report} {report:?} {}",
            serde_json::to_string(&report).expect("JSON")
        );
        if let Ok(object) = ObjectSource::at(&location, &way.store) {
            let _ = write!(
                shown,
                "{object:?} {object:#?} {} {:?}",
                object.credentials(),
                object.identity()
            );
        }
        let checked = std::panic::catch_unwind(|| assert_no_secret(way.name, &shown));
        complaints.extend(
            checked
                .err()
                .and_then(|panic| panic.downcast_ref::<String>().cloned()),
        );
    }
    assert!(opened >= 9, "{opened} ways open");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Errors of requests without a response show no secret either.
#[test]
fn unreachable_servers_show_no_secret() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let refusing = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    for server in [refusing.as_str(), "http://host.invalid"] {
        for way in ways(server) {
            let location = Location::parse(&way.url).expect("a valid URL");
            let error = Checkpoint::open_with(&location, &way.store).expect_err("no server there");
            let mut shown = String::new();
            show_error(&mut shown, &error);
            assert_no_secret(way.name, &shown);
            assert!(error.hint().is_some(), "{}", error.chain());
        }
    }
}

/// Malformed options and URLs show no secret either.
#[test]
fn malformed_options_and_urls_show_no_secret() {
    let mut shown = String::new();
    for text in [
        "s3://key:hunter2@bucket/x",
        "gs://hunter2@bucket/x",
        "https://user:hunter2@/x",
        "https://user:hunter2@ho st/x?sig=hunter2",
        "https://user:hunter2@host:99999/x?sig=hunter2",
        "http://user:hunter2@127.0.0.1:1/a//b?sig=hunter2#hunter2",
        "ftp://user:hunter2@host/x",
        "http://host.invalid/%ff?sig=hunter2",
    ] {
        let store = sites::options(&[("retries", "0")]);
        let opened =
            Location::parse(text).and_then(|location| Checkpoint::open_with(&location, &store));
        show_error(&mut shown, &opened.expect_err(text));
    }
    for (key, value) in [
        ("secret_access_key", "hunter2\n"),
        ("session_token", "hunter2\r"),
        ("proxy", "user:hunter2@host"),
        ("proxy", "http://user:hunter2@ho st:1"),
        ("endpoint", "user:hunter2@host"),
        ("header.x", "hunter2\n"),
        ("hunter", "hunter2"),
        ("acces_key_id", "hunter2"),
    ] {
        show_error(
            &mut shown,
            &StoreOptions::new().with(key, value).expect_err(key),
        );
    }
    for text in ["hunter2", "=hunter2"] {
        show_error(&mut shown, &StoreOptions::parse(text).expect_err(text));
    }
    for (url, pairs) in [
        ("s3://models/m", vec![("access_key_id", "hunter2")]),
        ("s3://models/m", vec![("session_token", "hunter2")]),
        ("s3://models/m", vec![("aws_no_such_key", "hunter2")]),
        ("az://models/m", vec![("sas", "sig=hunter2")]),
        (
            "az://models/m",
            vec![("account", "a"), ("account_key", "hunter2")],
        ),
        (
            "gs://models/m",
            vec![("google_service_account_key", "{hunter2}")],
        ),
        (
            "gs://models/m",
            vec![("google_service_account_key", SERVICE_ACCOUNT)],
        ),
        ("hf://org/model", vec![("token", "hf_hunter2\u{e9}")]),
        ("gs://models/m", vec![("service_account", "/none/key.json")]),
        (
            "https://host.invalid/m",
            vec![("proxy", "http://user:hunter2@ho^st:1")],
        ),
    ] {
        let mut pairs = pairs;
        pairs.push(("retries", "0"));
        let store = sites::options(&pairs);
        let _ = write!(shown, "{store:?}");
        let location = Location::parse(url).expect("a valid URL");
        if let Err(error) = Checkpoint::open_with(&location, &store) {
            show_error(&mut shown, &error);
        }
    }
    assert_no_secret("refused at once", &shown);
}
