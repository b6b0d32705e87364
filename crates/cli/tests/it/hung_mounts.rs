//! Mounts that do not answer: commands still end by a signal or at their deadline, and name the
//! file that they waited for.
//!
//! A thread that waits for such a mount cannot be killed. A process that ends keeps that thread
//! until the mount answers: its main thread is a zombie (`Z`), and its parent does not get its
//! status yet.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tload_testbed::slowfs::{Fault, Mount, Options, Request, Rule, serve_if_asked};

use crate::cp::tree;
use crate::interrupt::signal;
use crate::requirement::requirement;
use crate::{command, stderr, succeed};

/// Serves the file system. Not a test: the process that [`Mount::start`] starts runs it.
#[test]
fn serves() {
    serve_if_asked();
}

/// Time limit of any step of a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Checkpoint on a mount that does not answer some request.
struct Hung {
    mount: Mount,
    backing: TempDir,
    scratch: TempDir,
}

impl Hung {
    fn start() -> Option<Self> {
        let backing = tempfile::tempdir().unwrap();
        succeed(["synth", text(backing.path()), "--size", "4MiB", "--force"]);
        // The kernel asks for names and files each time.
        let options = Options {
            ttl: Duration::ZERO,
            ..Options::default()
        };
        let mount = Mount::start("hung_mounts::serves", backing.path(), &options);
        Some(Self {
            mount: requirement("fuse", mount)?,
            backing,
            scratch: tempfile::tempdir().unwrap(),
        })
    }

    /// Runs a command with this `TLOAD_TIMEOUT` until such a request hangs.
    fn child(&self, name: &str, rule: &Rule, flags: &[&str], timeout: &str) -> Child {
        let child = self.start_child(name, rule, flags, timeout);
        assert!(
            self.mount.wait_for_held(1, PATIENCE),
            "{name} never asked for {rule}"
        );
        child
    }

    /// Starts a command whose requests of this kind hang.
    fn start_child(&self, name: &str, rule: &Rule, flags: &[&str], timeout: &str) -> Child {
        self.mount.fault(rule);
        let model = text(self.mount.path());
        let target = self.scratch.path().join(name);
        let mut arguments = vec![name, model];
        if name == "cp" {
            arguments.push(text(&target));
        }
        command(arguments.into_iter().chain(flags.iter().copied()))
            .env("TLOAD_TIMEOUT", timeout)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Returns the output of a command that must end while the mount does not answer.
    fn output(&self, name: &str, child: Child) -> Output {
        let ended = is_over(&child);
        // Also if the command has not ended: otherwise it could not be killed.
        self.mount.clear_faults();
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(ended, "{name} waited for the mount: {errors}");
        output
    }
}

fn hold(request: Request) -> Rule {
    Rule::always(Fault::Hold).on(request)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Waits until the process has ended, except for threads that cannot end.
fn is_over(child: &Child) -> bool {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let (_, after_name) = stat.rsplit_once(')').unwrap();
        if after_name.trim_start().starts_with('Z') {
            return true;
        }
        tload_testbed::pause_between_looks();
    }
    false
}

#[test]
fn signal_ends_commands_waiting_for_mount() {
    let Some(hung) = Hung::start() else {
        return;
    };
    for (round, name) in ["load", "ls", "doctor", "verify", "cp"]
        .into_iter()
        .enumerate()
    {
        let mut rules = vec![hold(Request::Open), hold(Request::Read)];
        if name == "load" {
            // After the headers, when files are opened again for reads.
            rules.push(hold(Request::Open).after(1));
        }
        for rule in &rules {
            let flags: &[&str] = if name == "doctor" {
                &["--timeout", "1h"]
            } else {
                &[]
            };
            let child = hung.child(name, rule, flags, "");
            assert!(signal(&child, "TERM"), "{name}");
            if round % 2 == 0 {
                signal(&child, "TERM");
            }
            let output = hung.output(name, child);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(143), "{name}: {errors}");
            let says_so = errors.contains("interrupted") || errors.contains("cancelled");
            assert!(says_so, "{name}: {errors}");
            assert!(output.stdout.is_empty(), "{name}: half a result");
        }
    }
}

/// A file in the target is complete, whichever read hangs, and the same command resumes the copy.
#[test]
fn copy_of_files_interrupted_anywhere_leaves_no_partial_file() {
    let Some(hung) = Hung::start() else {
        return;
    };
    let wanted = tree(hung.backing.path());
    let target = hung.scratch.path().join("cp");
    for round in 0..8 {
        // Reads are at most 1 MiB, so one begins after each of these bytes.
        let rule = hold(Request::Read).from_byte(round << 18);
        let child = hung.child("cp", &rule, &["--extent", "256KiB"], "");
        assert!(signal(&child, "TERM"), "round {round}: it had ended");
        if round % 2 == 0 {
            signal(&child, "TERM");
        }
        let output = hung.output("cp", child);
        assert_eq!(output.status.code(), Some(143), "round {round}");
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
        succeed(["cp", text(hung.mount.path()), text(&target)]);
        assert!(tree(&target) == wanted, "round {round}");
        std::fs::remove_dir_all(&target).unwrap();
    }
}

#[test]
fn deadline_ends_commands_waiting_for_mount() {
    let Some(hung) = Hung::start() else {
        return;
    };
    for name in ["load", "ls", "verify", "cp"] {
        for request in [Request::Open, Request::Read] {
            // On a busy machine, it may expire before the request.
            let (flags, variable): (&[&str], _) = match request {
                Request::Read => (&["--timeout", "200ms"], ""),
                Request::Open | Request::Stat => (&[], "200ms"),
            };
            let child = hung.start_child(name, &hold(request), flags, variable);
            let output = hung.output(name, child);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(8), "{name}: {errors}");
            assert!(errors.contains(text(hung.mount.path())), "{name}: {errors}");
            assert!(errors.contains("took longer than"), "{name}: {errors}");
        }
    }
}

/// The JSON is complete however the command ends, even if it does not stop by itself.
#[test]
fn json_tells_of_a_deadline_and_of_signals() {
    let Some(hung) = Hung::start() else {
        return;
    };
    for name in ["load", "ls", "verify", "cp", "doctor"] {
        // At any stage, the deadline has the same outcome.
        for (signals, timeout) in [(0, "200ms"), (1, "1h"), (2, "1h")] {
            let flags = ["--json", "--timeout", timeout];
            let child = hung.start_child(name, &hold(Request::Open), &flags, "");
            if signals > 0 {
                assert!(hung.mount.wait_for_held(1, PATIENCE), "{name}");
            }
            for _ in 0..signals {
                signal(&child, "TERM");
            }
            let output = hung.output(name, child);
            let errors = stderr(&output);
            let (status, kind) = [(8, "timed_out"), (143, "cancelled")][signals.min(1)];
            assert_eq!(output.status.code(), Some(status), "{name}: {errors}");
            let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let error = &answer["error"];
            assert_eq!(error["kind"], kind, "{name}: {answer}");
            assert_eq!(error["exit_status"], status, "{name}: {answer}");
            let message = error["message"].as_str().unwrap();
            assert!(errors.contains(message), "{name}: {message}, {errors}");
        }
    }
}

#[test]
fn doctor_reports_hung_mount_and_machine_findings() {
    let Some(hung) = Hung::start() else {
        return;
    };
    // At any stage, the finding is the same.
    let flags = ["--timeout", "200ms", "--json"];
    let child = hung.start_child("doctor", &hold(Request::Open), &flags, "");
    let output = hung.output("doctor", child);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{errors}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings[0]["id"], "kernel", "the machine first");
    let last = findings.last().unwrap();
    let value = last["value"].as_str().unwrap();
    assert!(value.contains("did not answer within 200ms"), "{value}");
    assert_eq!(last["change"]["urgency"], "hang");
    assert!(last["advice"].is_string());
}
