//! Tests of the command as a user runs it: the binary, its output and its exit status.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

mod against;
mod bench;
mod cache;
mod checkpoints;
mod configuration;
mod convert;
mod cp;
mod cuda;
mod delta;
mod display;
mod doctor;
mod doctor_store;
mod errors;
#[cfg(target_os = "linux")]
mod exec;
mod help;
mod hub;
#[cfg(target_os = "linux")]
mod hung_mounts;
mod interrupt;
mod json;
#[cfg(target_os = "linux")]
mod limits;
mod ls;
mod offered;
mod pages;
#[cfg(target_os = "linux")]
mod ranks;
mod remote;
mod requirement;
mod sealed;
mod secrets;
mod serve;
mod store;
mod terminal_escapes;
mod traces;
mod unclean;
mod verified;
mod verify;
mod written;

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Returns a command for the binary, without the caller's `TLOAD_*` variables and configuration.
fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tload"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TLOAD_") {
            command.env_remove(name);
        }
    }
    command.env("TLOAD_CONFIG", "");
    command
}

fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    let output = command(arguments).output().expect("the binary runs");
    secrets::assert_none("the command", &output);
    output
}

/// Returns the standard output of a run that must succeed.
fn succeed<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    let output = run(arguments);
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        stderr(&output)
    );
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

fn json<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Value {
    serde_json::from_str(&succeed(arguments)).expect("output is JSON")
}

fn stderr(output: &Output) -> String {
    secrets::assert_none("the command", output);
    String::from_utf8_lossy(&output.stderr).into_owned()
}
