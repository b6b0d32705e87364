//! Failures: the status that the help promises, and one message with its causes and a hint.

use std::fs;
use std::process::Stdio;

use crate::{command, run, stderr, succeed};

#[track_caller]
fn fails(arguments: &[&str], status: i32, wanted: &[&str]) {
    let output = run(arguments);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(
        output.stdout.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    for wanted in wanted {
        assert_eq!(
            text.matches(wanted).count(),
            1,
            "{wanted:?} is not there once:\n{text}"
        );
    }
}

#[test]
fn a_missing_path_is_named_once_with_its_cause() {
    let wanted = ["error: /nonexistent/model", "No such file or directory"];
    for subcommand in ["ls", "load", "bench", "doctor"] {
        fails(&[subcommand, "/nonexistent/model"], 3, &wanted);
    }
}

#[test]
fn usage_errors_are_status_2() {
    fails(
        &["load", "x", "--extent", "4 parsecs"],
        2,
        &["is not a size"],
    );
    fails(
        &["load", "x", "--engine", "steam"],
        2,
        &["auto, uring, pread"],
    );
    fails(&["load", "x", "--depth", "0"], 2, &["--depth"]);
    fails(
        &["load", "x", "--timeout", "1 fortnight"],
        2,
        &["unknown unit"],
    );
    fails(
        &["bench", "x", "--size", "1GiB"],
        2,
        &["cannot be used with"],
    );
    fails(&["synth", "x", "--size", "1KiB"], 2, &["wants at least"]);
    fails(&["fly"], 2, &["unrecognized subcommand"]);
    fails(&["ls", "s3://bucket/model"], 7, &["s3://"]);
}

#[test]
fn a_bad_file_is_status_4() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, b"\x08\0\0\0\0\0\0\0not json").unwrap();
    fails(
        &["ls", path.to_str().unwrap()],
        4,
        &["error: ", "model.safetensors"],
    );
}

#[test]
fn a_wrong_name_is_status_3_and_a_small_limit_is_status_6() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let location = model.to_str().unwrap();
    succeed(["synth", location, "--size", "4MiB"]);
    fails(
        &["load", location, "--name", "norm.weight"],
        3,
        &["hint: did you mean"],
    );
    fails(
        &["load", location, "--memory-limit", "4KiB"],
        6,
        &["hint: "],
    );
}

#[test]
fn more_than_the_disk_holds_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fails(
        &["synth", model.to_str().unwrap(), "--size", "8000TiB"],
        6,
        &["are free", "hint: "],
    );
    assert!(!model.exists());
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let location = model.to_str().unwrap();
    succeed(["synth", location, "--preset", "moe", "--size", "16MiB"]);
    let mut child = command(["ls", location, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}
