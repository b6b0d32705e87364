//! Errors of timeouts: each names the object that was waited for, and the stage.

use std::sync::Arc;
use std::time::Duration;

use tload::{Checkpoint, Error, ErrorKind, Loader, Result, Verify};
use tload_testbed::{Fault, FaultyServer, Operation, Rule};

use crate::fixtures::{even, options};
use crate::growing_timeouts::until_it_stalls;
use crate::sites::{Site, faulty_at};

const KEY: &str = "m/model.safetensors";

/// Part of a load that a request without an answer holds up.
struct Stage {
    /// Request that is not answered.
    rule: Rule,
    /// Opened below the bucket.
    opened: &'static str,
    is_opening: bool,
    memory_limit: Option<u64>,
    /// End of the location that the error names.
    names: &'static str,
    /// Parts of the message, some with alternatives: the request and its caller have one timeout.
    says: &'static [&'static str],
}

fn silent() -> Rule {
    Rule::always(Fault::StallHeaders)
}

fn opening(rule: Rule, opened: &'static str, says: &'static [&'static str]) -> Stage {
    Stage {
        rule,
        opened,
        is_opening: true,
        memory_limit: None,
        names: opened,
        says,
    }
}

fn loading(rule: Rule, names: &'static str, says: &'static [&'static str]) -> Stage {
    Stage {
        is_opening: false,
        names,
        ..opening(rule, KEY, says)
    }
}

fn stages() -> Vec<Stage> {
    vec![
        opening(
            silent().on(Operation::Get),
            KEY,
            &[
                "opening took longer",
                "requesting its header|reading its header",
            ],
        ),
        opening(
            silent().on(Operation::List),
            "m",
            &["opening took longer", "listing it|looking it up"],
        ),
        loading(
            silent().on(Operation::Head),
            KEY,
            &["the expected digests", "requesting its checksum"],
        ),
        loading(
            silent().path("manifest"),
            "tload-manifest.json",
            &["the expected digests", "reading it"],
        ),
        loading(
            silent().on(Operation::Get).from_byte(1),
            KEY,
            &["the load took longer", "wait", "model.safetensors ["],
        ),
        // All requests are answered, but no tensor is taken.
        Stage {
            memory_limit: Some(3 << 20),
            ..loading(
                silent().path("nothing"),
                KEY,
                &["the load took longer", "until received tensors"],
            )
        },
    ]
}

fn open(site: &Site, opened: &str, timeout: Option<Duration>) -> Result<Checkpoint> {
    let mut store = site.options.clone();
    if let Some(timeout) = timeout {
        let seconds = timeout.as_secs_f64().to_string();
        store.set("open_timeout", seconds).expect("an option");
    }
    Checkpoint::open_with(site.location(opened), &store)
}

/// Returns the error of the stage's timeout.
fn late(site: &Site, server: &FaultyServer, stage: &Stage, timeout: Duration) -> Error {
    if stage.is_opening {
        server.fault(stage.rule.clone());
        return open(site, stage.opened, Some(timeout)).expect_err("is not answered");
    }
    let checkpoint = open(site, stage.opened, None).expect("opens");
    server.fault(stage.rule.clone());
    let loader = Loader::new(checkpoint).options(options(|it| {
        it.verify = Verify::Auto;
        it.timeout = Some(timeout);
        it.memory_limit = stage.memory_limit;
        it.extent_bytes = Some(1 << 18);
    }));
    match loader.stream() {
        Err(error) => error,
        Ok(mut stream) => {
            // No tensor is taken before the timeout has expired.
            while stream.report().outcome == "running" {
                tload_testbed::pause_between_looks();
            }
            stream.find_map(Result::err).expect("is late")
        }
    }
}

#[test]
fn timeout_names_the_object_and_the_stage() {
    let server = Arc::new(FaultyServer::start());
    let mut site = faulty_at(&server);
    let patient = site.options.set("read_timeout", "3600");
    patient.expect("an option");
    site.put(KEY, &even("t", 1, 40, 1 << 18));
    for stage in stages() {
        until_it_stalls(|timeout| {
            let error = late(&site, &server, &stage, timeout);
            server.clear_faults();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
            // Whichever stage the timeout has ended.
            let location = error.location().expect("names what was waited for");
            assert!(location.contains("/m"), "{}", error.chain());
            let says = |words: &&str| words.split('|').any(|it| error.message().contains(it));
            let is_right = location.ends_with(stage.names) && stage.says.iter().all(says);
            is_right.then_some(())
        });
    }
}
