//! `doctor` of a checkpoint in an object store: what it shows and measures, and what a store does
//! to it that fails.

use serde_json::Value;
use tload_testbed::{Fault, FaultyServer, Operation, Rule};

use crate::remote::Lab;
use crate::{command, stderr};

const MODEL: &str = "s3://bucket/model";

fn find<'a>(report: &'a Value, id: &str) -> &'a Value {
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["id"] == id);
    assert!(found.is_some(), "no {id} in {report}");
    found.unwrap()
}

#[test]
fn store_is_described_and_measured() {
    let lab = Lab::start();
    lab.checkpoint();
    let report = lab.json(&["doctor", MODEL]);
    for (id, value) in [
        ("credentials", "anonymous"),
        ("connection", "no TLS, 1 address, no proxy"),
        ("validator", "told apart by ETag"),
    ] {
        assert_eq!(find(&report, id)["value"], value);
        assert_eq!(find(&report, id)["level"], "ok", "{id}");
    }
    let round_trip = find(&report, "round_trip")["value"].as_str().unwrap();
    assert!(round_trip.starts_with("median "), "{round_trip}");
    let throughput = find(&report, "throughput")["value"].as_str().unwrap();
    for shown in [
        "with 1 connection",
        "with 16 connections",
        "round trips dominate",
    ] {
        assert!(throughput.contains(shown), "{throughput}");
    }
    let store = &report["store"];
    assert_eq!(store["endpoint"], lab.server.url());
    assert_eq!(
        (&store["tls"], &store["proxy"]),
        (&false.into(), &Value::Null)
    );
    assert!(store["first_response_seconds"].as_f64().unwrap() > 0.0);
    assert!(!store["round_trip_seconds"].as_array().unwrap().is_empty());
    let size: u64 = lab.json(&["ls", MODEL])["shards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|shard| shard["file_bytes"].as_u64().unwrap())
        .sum();
    let rates = store["rates"].as_array().unwrap();
    for (rate, connections) in rates.iter().zip([1, 16]) {
        assert_eq!(rate["connections"], connections);
        let bytes = rate["bytes"].as_u64().unwrap();
        assert!((1..=size).contains(&bytes), "{rate}");
    }
    assert_eq!(rates.len(), 2);
    assert_eq!(lab.json(&["doctor"])["store"], Value::Null);
}

#[test]
fn redirects_are_warning() {
    let lab = Lab::start();
    let model = lab.checkpoint();
    let other = FaultyServer::start();
    let name = crate::cp::names(&model)
        .into_iter()
        .find(|name| name.ends_with(".safetensors"))
        .unwrap();
    let path = format!("bucket/model/{name}");
    other.put(&path, std::fs::read(model.join(&name)).unwrap());
    lab.server.fault(Rule::always(Fault::redirect(&format!(
        "{}/{path}",
        other.url()
    ))));
    let report = lab.json(&["doctor", &format!("s3://{path}")]);
    let found = find(&report, "store");
    assert_eq!(found["level"], "warn", "{found}");
    let host = other.url().replace("http://", "");
    assert_eq!(report["store"]["redirected_to"], host);
    assert_eq!(report["store"]["endpoint"], lab.server.url());
}

#[test]
fn missing_validator_is_warning() {
    let lab = Lab::start();
    lab.checkpoint();
    lab.server.leave_out_validators();
    let arguments = ["doctor", MODEL, "--store", "allow_unversioned=true"];
    let report = lab.json(&arguments);
    assert_eq!(find(&report, "validator")["level"], "warn");
    assert_eq!(report["store"]["validator"], Value::Null);
}

#[test]
fn silent_store_fails_with_advice_on_network() {
    let lab = Lab::start();
    lab.checkpoint();
    lab.server.fault(Rule::always(Fault::StallHeaders));
    // At any stage, the finding is the same.
    let output = lab.run(&["doctor", MODEL, "--timeout", "300ms"]);
    assert_eq!(output.status.code(), Some(8), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("did not answer within 300ms"), "{text}");
    assert!(text.contains("the firewall"), "{text}");
    assert!(!text.contains("umount"), "{text}");
}

#[test]
fn store_that_falls_silent_while_measured_is_warning() {
    let lab = Lab::start();
    lab.checkpoint();
    lab.server.forget_requests();
    lab.json(&["ls", MODEL]);
    let opening = lab.server.requests().len();
    lab.server
        .fault(Rule::always(Fault::StallHeaders).after(opening));
    let report = lab.json(&["doctor", MODEL, "--timeout", "5s"]);
    let found = find(&report, "store");
    assert_eq!(found["level"], "warn");
    let value = found["value"].as_str().unwrap();
    assert!(value.starts_with("unknown: "), "{value}");
    assert!(value.contains("did not answer"), "{value}");
    assert!(found["advice"].is_string());
    assert_eq!(report["store"], Value::Null);
}

#[test]
fn store_that_compresses_is_failure_told_once() {
    let lab = Lab::start();
    lab.checkpoint();
    lab.server
        .fault(Rule::always(Fault::Encoded("gzip")).on(Operation::Get));
    let output = lab.run(&["doctor", MODEL]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("\nfail  checkpoint "), "{text}");
    assert!(text.ends_with("\nFix first: checkpoint\n"), "{text}");
}

#[test]
fn real_store_is_measured_with_credentials() {
    let Some(server) = tload_testbed::require(tload_testbed::Versitygw::start()) else {
        return;
    };
    let lab = Lab::start();
    let model = lab.checkpoint();
    for (name, bytes) in crate::cp::tree(&model) {
        server.put("weights", &format!("m/{name}"), &bytes).unwrap();
    }
    let mut command = command(["doctor", "s3://weights/m", "--json"]);
    for option in [
        format!("endpoint={}", server.endpoint()),
        format!("region={}", server.region()),
        format!("access_key_id={}", server.access_key()),
        format!("secret_access_key={}", server.secret_key()),
        "environment=false".to_owned(),
    ] {
        command.args(["--store", &option]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains(server.secret_key()), "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        find(&report, "credentials")["value"],
        "option access_key_id"
    );
    assert_eq!(find(&report, "region")["value"], server.region());
    assert_eq!(find(&report, "clock")["level"], "ok");
    assert_eq!(report["store"]["rates"].as_array().unwrap().len(), 2);
}
