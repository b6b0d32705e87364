//! Signals: the command ends, removes its files, and exits with 128 plus the signal's number.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Once};

use signal_hook::consts::{SIGHUP, SIGINT};

use crate::command;

/// Sends SIGTERM. Ctrl-C would do the same, but children of a test runner in the background of a
/// script ignore it.
fn interrupt(child: &Child) {
    assert!(signal(child, "TERM"), "it had ended");
}

/// Sends a signal and returns whether the child was still running.
pub(crate) fn signal(child: &Child, name: &str) -> bool {
    let told = Command::new("kill")
        .args([&format!("-{name}"), &child.id().to_string()])
        .stderr(Stdio::null())
        .status();
    told.unwrap().success()
}

/// Lets commands end by SIGHUP and SIGINT also if this process ignores them, as under `nohup` and
/// in the background of a script: commands do not inherit a handler, but get the default action.
pub(crate) fn heed_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = mask.map(|mask| u64::from_str_radix(mask.trim(), 16).unwrap());
        for signal in [SIGHUP, SIGINT] {
            if ignored.is_some_and(|ignored| ignored >> (signal - 1) & 1 == 1) {
                signal_hook::flag::register(signal, Arc::default()).unwrap();
            }
        }
    });
}

#[test]
fn signals_reach_commands() {
    heed_signals();
    for (name, number) in [("HUP", SIGHUP), ("INT", SIGINT)] {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(signal(&child, name), "it had ended");
        assert_eq!(child.wait().unwrap().signal(), Some(number));
    }
}

#[test]
fn signals_that_the_runner_ignores_reach_commands() {
    let script = "trap '' HUP INT; exec \"$0\" --exact interrupt::signals_reach_commands";
    let again = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&again.stdout);
    assert!(
        again.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[track_caller]
fn was_interrupted(output: &Output) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{errors}");
}

/// Returns the names in a directory, sorted.
pub(crate) fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn interrupted_bench_removes_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let scratch = folder.path().to_str().unwrap();
    let mut child = command([
        "bench", "--size", "64MiB", "--rounds", "1000", "--no-fio", "--dir", scratch,
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    // The head is printed after the checkpoint is written and before the first run.
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
fn interrupted_synth_removes_its_files() {
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
    // Until there is more than one shard, each finished or being written.
    while !model.exists() || entries(&model).len() < 2 {
        tload_testbed::pause_between_looks();
    }
    interrupt(&child);
    was_interrupted(&child.wait_with_output().unwrap());
    assert!(!model.exists(), "{:?}", entries(&model));
}

/// Copies and loads that a signal ends midway. A moment is a range that the store does not answer,
/// so on no machine can the command get past it before the signal.
mod moments {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::process::{Child, Output, Stdio};

    use tload_testbed::{Fault, Operation, Rule};

    use super::signal;
    use crate::cp::tree;
    use crate::remote::{Lab, PATIENCE, ends_soon};
    use crate::{stderr, succeed};

    const MIB: u64 = 1 << 20;

    /// Length of a read, so that one begins within so many bytes of any moment.
    const EXTENT: u64 = MIB / 4;

    /// Puts a checkpoint of four shards of about six MiB into the store, and returns what it holds.
    fn files(lab: &Lab) -> BTreeMap<String, Vec<u8>> {
        let model = lab.path("model");
        let model = model.to_str().unwrap();
        succeed(["synth", model, "--size", "24MiB", "--shards", "4"]);
        let files = tree(Path::new(model));
        for (name, bytes) in &files {
            lab.server
                .put(&format!("bucket/model/{name}"), bytes.clone());
        }
        files
    }

    /// Returns the requests that are never answered in this round: those of one shard from some
    /// byte on. The first rounds are about lists and headers.
    fn moment(files: &BTreeMap<String, Vec<u8>>, round: usize) -> Rule {
        let rule = Rule::always(if round.is_multiple_of(2) {
            Fault::StallHeaders
        } else {
            Fault::StallBody(1000)
        });
        let shards: Vec<_> = files
            .iter()
            .filter(|(name, _)| name.ends_with(".safetensors"))
            .collect();
        let (name, bytes) = shards[round % shards.len()];
        match round {
            0 => Rule::always(Fault::StallHeaders).on(Operation::List),
            1..4 => rule.on(Operation::Get).path(name),
            _ => {
                let last = bytes.len() as u64 - EXTENT;
                let from = last * (round as u64 * 7 % 24) / 24;
                rule.on(Operation::Get).path(name).from_byte(from.max(1))
            }
        }
    }

    /// Starts the command and waits until the moment has come.
    fn start(lab: &Lab, arguments: &[&str]) -> Child {
        let before = lab.server.counts().faulted;
        let child = spawn(lab, arguments);
        let has_come = lab
            .server
            .wait_until(PATIENCE, |counts| counts.faulted > before);
        assert!(has_come, "{:?}", lab.server.counts());
        child
    }

    fn spawn(lab: &Lab, arguments: &[&str]) -> Child {
        super::heed_signals();
        lab.command(&[arguments, &["--store", "read_timeout=3600"]].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Sends one signal or two, by turns, and returns the output of the command.
    fn end(child: Child, round: usize) -> Output {
        let (name, status) = [("TERM", 143), ("HUP", 129)][round % 2];
        assert!(signal(&child, name), "round {round}: it had ended");
        if round.is_multiple_of(3) {
            signal(&child, name);
        }
        let output = ends_soon(child);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "round {round}: {text}");
        output
    }

    /// Asserts that every file in `target` is complete.
    #[track_caller]
    fn assert_whole(target: &Path, wanted: &BTreeMap<String, Vec<u8>>) {
        let found = if target.exists() {
            tree(target)
        } else {
            BTreeMap::new()
        };
        for (name, bytes) in found {
            if !name.contains(".tload-partial") {
                assert!(wanted.get(&name) == Some(&bytes), "{name} is not the file");
            }
        }
    }

    #[test]
    fn copy_interrupted_anywhere_leaves_no_partial_file() {
        let lab = Lab::start();
        let wanted = files(&lab);
        for round in 0..24 {
            let target = lab.path(&format!("copy-{round}"));
            let copy = ["cp", "s3://bucket/model", target.to_str().unwrap()];
            let (extent, depth) = (EXTENT.to_string(), (1 + round % 3).to_string());
            let wide = [&copy[..], &["--extent", &extent, "--depth", &depth]].concat();
            lab.server.fault(moment(&wanted, round));
            end(start(&lab, &wide), round);
            assert_whole(&target, &wanted);

            lab.server.clear_faults();
            assert!(lab.server.wait_for_idle(PATIENCE));
            let again = lab.run(&copy);
            assert!(again.status.success(), "{}", stderr(&again));
            assert!(tree(&target) == wanted, "round {round}");
            std::fs::remove_dir_all(&target).unwrap();
        }
    }

    /// A signal that arrives before the command listens takes its default action.
    #[test]
    fn copy_interrupted_before_handlers_leaves_no_partial_file() {
        let lab = Lab::start();
        let wanted = files(&lab);
        lab.server.fault(Rule::always(Fault::StallHeaders));
        for round in 0..8 {
            let target = lab.path("copy");
            let copy = ["cp", "s3://bucket/model", target.to_str().unwrap()];
            let child = spawn(&lab, &copy);
            assert!(signal(&child, "TERM"), "nothing answers it");
            let output = ends_soon(child);
            let code = output.status.code();
            assert!(
                code.is_none() || code == Some(143),
                "round {round}: {}",
                stderr(&output)
            );
            assert_whole(&target, &wanted);
        }
        lab.server.clear_faults();
    }

    #[test]
    fn interrupted_startup_ends_the_process_that_it_measures() {
        let lab = Lab::start();
        files(&lab);
        // Headers are read from byte 0.
        let tensors = Rule::always(Fault::StallBody(1000)).on(Operation::Get);
        lab.server.fault(tensors.from_byte(1));
        let bench = ["bench", "s3://bucket/model", "--startup"];
        let child = start(&lab, &bench);
        assert!(signal(&child, "TERM"), "it had ended");
        assert!(lab.server.wait_for_idle(PATIENCE), "it goes on to load");
        let output = ends_soon(child);
        assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
    }

    #[test]
    fn load_interrupted_anywhere_has_signal_status() {
        let lab = Lab::start();
        let wanted = files(&lab);
        let extent = EXTENT.to_string();
        for round in 0..24 {
            lab.server.fault(moment(&wanted, round));
            let load = [
                "load",
                "s3://bucket/model",
                "--digest",
                "--extent",
                &extent,
                "--memory-limit",
                "16MiB",
            ];
            let output = end(start(&lab, &load), round);
            let errors = stderr(&output);
            assert!(output.stdout.is_empty(), "half a result");
            assert!(
                errors.contains("interrupted") || errors.contains("cancelled"),
                "{errors}"
            );
            let useless = ["still held", "storage wait"];
            assert!(
                !useless.iter().any(|text| errors.contains(text)),
                "{errors}"
            );
            lab.server.clear_faults();
            assert!(lab.server.wait_for_idle(PATIENCE));
        }
    }
}
