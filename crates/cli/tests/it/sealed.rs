//! `seal` and `unseal` that fail or are interrupted leave nothing, not even a new key; what the
//! other commands say of sealed checkpoints.

use std::fs;
use std::process::Stdio;

use tload_testbed::{Fault, Operation, Rule};

use crate::interrupt::{entries, signal};
use crate::remote::{Lab, PATIENCE};
use crate::{run, stderr, succeed};

/// Public key of a pair that was not kept.
const RECIPIENT: &str = "age10shvmrzlhj5ygxv6cuaetcl4wu3tuh2dpayun09e0s4h2hgdq33q436ret";

#[test]
fn failed_seals_leave_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    succeed([
        "synth",
        &path("model"),
        "--preset",
        "tiny",
        "--size",
        "1MiB",
    ]);
    fs::create_dir(path("there")).unwrap();
    let key = path("key.json");
    for (from, to) in [
        ("model", "there"),
        ("missing", "sealed"),
        ("model", "none/sealed"),
    ] {
        let output = run(["seal", &path(from), &path(to), "--new-key-file", &key]);
        assert!(!output.status.success(), "{from} {to}");
        assert_eq!(
            entries(folder.path()),
            ["model", "there"],
            "{}",
            stderr(&output)
        );
    }
    // A key that was there is not replaced and not removed.
    fs::write(&key, "mine").unwrap();
    let output = run([
        "seal",
        &path("model"),
        &path("sealed"),
        "--new-key-file",
        &key,
    ]);
    assert!(!output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(&key).unwrap(), "mine");
}

#[test]
fn target_is_not_below_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, key) = (path("model"), path("key.json"));
    succeed(["synth", &model, "--preset", "tiny", "--size", "1MiB"]);
    fs::create_dir(path("model/deep")).unwrap();
    for to in ["model/x", "model/deep/x", "model/../model/x"].map(path) {
        for (command, key_flag) in [("seal", "--new-key-file"), ("unseal", "--key-file")] {
            let output = run([command, &model, &to, key_flag, &key]);
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{command} {to}: {text}");
            assert!(text.contains("below the source"), "{command} {to}: {text}");
        }
    }
    assert_eq!(entries(folder.path()), ["model"]);
    succeed(["seal", &model, &path("model2"), "--new-key-file", &key]);
}

#[test]
fn interrupted_seals_leave_nothing() {
    let lab = Lab::start();
    lab.checkpoint();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    lab.server
        .fault(Rule::always(Fault::StallBody(1000)).on(Operation::Get));
    let (to, key) = (path("sealed"), path("key.json"));
    let child = lab
        .command(&[
            "seal",
            "s3://bucket/model",
            &to,
            "--new-key-file",
            &key,
            "--store",
            "read_timeout=3600",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(lab.server.wait_for_in_flight(1, PATIENCE));
    assert!(signal(&child, "TERM"), "it had ended");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
    assert!(
        entries(folder.path()).is_empty(),
        "{:?}",
        entries(folder.path())
    );
}

#[test]
fn sealed_manifest_takes_the_place_of_a_plain_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (plain, sealed, key) = (path("model"), path("sealed"), path("key.json"));
    succeed(["synth", &plain, "--preset", "tiny", "--size", "1MiB"]);
    succeed(["verify", &plain, "--write"]);
    succeed(["seal", &plain, &sealed, "--new-key-file", &key]);
    for location in [&sealed, &format!("{sealed}/model.safetensors")] {
        let text = succeed(["verify", location, "--key-file", &key]);
        assert!(text.contains("the sealed manifest"), "{text}");
    }
    // Nothing is written, and none is advised to be.
    let found = succeed(["doctor", &sealed, "--key-file", &key, "--json"]);
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    let mut findings = found["findings"].as_array().unwrap().iter();
    let checksums = findings.find(|it| it["title"] == "checksums").unwrap();
    assert_eq!(checksums["level"], "ok", "{checksums}");

    // A byte of another state is told by its tag, and each file by its own line.
    let weights = path("sealed/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    let output = run(["verify", &sealed, "--key-file", &key]);
    assert_eq!(output.status.code(), Some(11), "{}", stderr(&output));

    let output = run([
        "rekey",
        &plain,
        "--key-file",
        &key,
        "--recipient",
        RECIPIENT,
    ]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("is not sealed"), "{text}");
    let text = succeed([
        "rekey",
        &sealed,
        "--key-file",
        &key,
        "--recipient",
        RECIPIENT,
    ]);
    assert!(text.contains("rekeyed"), "{text}");
}
