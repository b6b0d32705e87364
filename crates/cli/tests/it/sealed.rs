//! `seal` and `unseal` that fail or are interrupted leave nothing, not even a new key.

use std::fs;
use std::process::Stdio;

use tload_testbed::{Fault, Operation, Rule};

use crate::interrupt::{entries, signal};
use crate::remote::{Lab, PATIENCE};
use crate::{run, stderr, succeed};

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
