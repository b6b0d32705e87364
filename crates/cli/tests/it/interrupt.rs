//! A signal ends what is running, removes what it made, and is status 128 and the signal's number.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use crate::command;

/// Ctrl-C is the same to us, but a test runner in the background of a script has its children ignore it.
fn interrupt(child: &Child) {
    assert!(signal(child, "TERM"), "it had ended");
}

/// Whether there was still somebody to tell.
pub(crate) fn signal(child: &Child, name: &str) -> bool {
    let told = Command::new("kill")
        .args([&format!("-{name}"), &child.id().to_string()])
        .stderr(Stdio::null())
        .status();
    told.unwrap().success()
}

#[track_caller]
fn was_interrupted(output: &Output) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{errors}");
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_benchmark_removes_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let scratch = folder.path().to_str().unwrap();
    let mut child = command([
        "bench", "--size", "64MiB", "--rounds", "1000", "--no-fio", "--dir", scratch,
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    // It says what it measures once it has made it, before the first run.
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("synthetic llama"), "{line}");
    assert_eq!(entries(folder.path()).len(), 1);

    interrupt(&child);
    was_interrupted(&child.wait_with_output().unwrap());
    assert_eq!(entries(folder.path()), Vec::<String>::new());
}

#[test]
fn synth_removes_what_it_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let child = command([
        "synth",
        model.to_str().unwrap(),
        "--size",
        "2GiB",
        "--shards",
        "64",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    // Until a shard is finished and another one is being written.
    while !model.exists() || entries(&model).len() < 2 {
        thread::yield_now();
    }
    interrupt(&child);
    was_interrupted(&child.wait_with_output().unwrap());
    assert!(!model.exists(), "{:?}", entries(&model));
}
