//! Servers live until they are dropped, and no longer than the test process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use tload_testbed::{Toxiproxy, require, tool};

use crate::client::assert_gone;

/// Environment variable set for the process that is killed.
const VICTIM: &str = "TLOAD_TESTBED_VICTIM";

#[test]
fn server_outlives_starting_thread() {
    let started = std::thread::spawn(Toxiproxy::start)
        .join()
        .expect("it ends");
    let Some(server) = require(started) else {
        return;
    };
    server.proxy("127.0.0.1:1").expect("it still answers");
}

#[test]
#[cfg(target_os = "linux")]
fn server_dies_with_starting_process() {
    if std::env::var_os(VICTIM).is_some() {
        return victim();
    }
    if require(tool("toxiproxy")).is_none() {
        return;
    }
    // Holds the files that the killed process leaves behind.
    let folder = tempfile::tempdir().expect("a folder");
    let mut victim = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "processes::server_dies_with_starting_process"])
        .arg("--nocapture")
        .env(VICTIM, "1")
        .env("TMPDIR", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let output = victim.stdout.take().expect("it is piped");
    let address = BufReader::new(output)
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("proxy: ").map(str::to_owned));
    victim.kill().expect("it runs");
    victim.wait().expect("it ends");
    assert_gone(&address.expect("an address"));
}

/// Starts a server, prints its address, and waits to be killed.
fn victim() {
    let server = Toxiproxy::start().expect("it starts");
    let proxy = server.proxy("127.0.0.1:1").expect("a proxy");
    // On a line of its own, after the output of the test harness.
    let mut output = std::io::stdout();
    writeln!(output, "\nproxy: {}", proxy.address()).expect("it is read");
    output.flush().expect("it is read");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn missing_tool_error_names_install_command() {
    let reason = tool("nothing").expect_err("no such server");
    assert!(reason.contains("run tools/servers nothing"), "{reason}");
}
