//! A signal ends what is running, removes what it made, and is status 128 and the signal's number.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use crate::cp::tree;
use crate::{command, succeed};

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

fn start(arguments: &[&str]) -> Child {
    command(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
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

fn checkpoint(folder: &Path, size: &str) -> String {
    let model = folder.join("model").to_str().unwrap().to_owned();
    succeed(["synth", &model, "--size", size, "--shards", "4"]);
    model
}

/// Waits for so many turns of this loop: any moment of a load of milliseconds.
fn spin(round: usize) {
    for _ in 0..round * 997 % 211 * 20_000 {
        std::hint::spin_loop();
    }
}

/// Every name that is there means the whole file, whenever the copy was ended, and the same command goes on from there.
#[test]
fn a_copy_ended_at_any_moment_leaves_nothing_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let model = checkpoint(folder.path(), "24MiB");
    let wanted = tree(Path::new(&model));
    let mut interrupted = 0;
    for round in 0..24 {
        let target = folder.path().join("copy");
        let child = start(&["cp", &model, target.to_str().unwrap(), "--extent", "256KiB"]);
        // In the midst of it, most times: something is there.
        while round % 4 > 0 && !target.exists() {
            thread::yield_now();
        }
        spin(round);
        let name = ["TERM", "HUP"][round % 2];
        signal(&child, name);
        if round % 3 == 0 {
            signal(&child, name);
        }
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let statuses: &[Option<i32>] = match (output.status.code(), name) {
            // It was over before, or had not begun to listen.
            (Some(0) | None, _) => &[Some(0), None],
            (_, "TERM") => &[Some(143)],
            _ => &[Some(129)],
        };
        assert!(
            statuses.contains(&output.status.code()),
            "{name}: {:?} {errors}",
            output.status
        );
        interrupted += usize::from(output.status.code().is_some_and(|code| code > 0));
        let found = if target.exists() {
            tree(&target)
        } else {
            BTreeMap::new()
        };
        for (name, bytes) in found {
            if !name.contains(".tload-partial") {
                assert!(wanted.get(&name) == Some(&bytes), "{name} is not the file");
            }
        }
        succeed(["cp", &model, target.to_str().unwrap()]);
        assert!(tree(&target) == wanted, "round {round}");
        fs::remove_dir_all(&target).unwrap();
    }
    assert!(
        interrupted >= 4,
        "only {interrupted} of 24 copies were ended"
    );
}

/// Waits until the command listens for signals, where that can be seen.
fn until_it_listens(child: &mut Child) {
    let catches = |status: &str| {
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))?;
        let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
        // SIGTERM, which it sets last.
        Some(mask >> 14 & 1 == 1)
    };
    while let Ok(status) = fs::read_to_string(format!("/proc/{}/status", child.id())) {
        let is_over = child.try_wait().unwrap().is_some();
        if is_over || catches(&status) == Some(true) {
            return;
        }
        thread::yield_now();
    }
}

#[test]
fn a_load_ended_at_any_moment_has_the_signals_status() {
    let folder = tempfile::tempdir().unwrap();
    let model = checkpoint(folder.path(), "96MiB");
    let mut interrupted = 0;
    for round in 0..32 {
        // With the digest of every tensor it takes its time, after it has begun to listen.
        let mut child = start(&["load", &model, "--digest", "--memory-limit", "16MiB"]);
        // And sometimes before.
        if round % 4 > 0 {
            until_it_listens(&mut child);
        }
        spin(round);
        let name = ["TERM", "HUP"][round % 2];
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        let wanted = [143, 129][round % 2];
        let errors = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        // Before it listens, a signal does what it does to every process.
        assert!(
            code.is_none() || code == Some(0) || code == Some(wanted),
            "{name}: {:?} {errors}",
            output.status
        );
        if code == Some(wanted) {
            interrupted += 1;
            assert!(output.stdout.is_empty(), "half a result");
            assert!(
                errors.contains("interrupted") || errors.contains("cancelled"),
                "{errors}"
            );
        }
    }
    assert!(
        interrupted >= 6,
        "only {interrupted} of 32 loads were ended"
    );
}
