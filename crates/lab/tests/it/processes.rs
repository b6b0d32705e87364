//! Servers live as long as what holds them, and no longer than the tests.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use tload_lab::{Toxiproxy, require, tool};

use crate::client::assert_gone;

/// Set for the process that is killed.
const VICTIM: &str = "TLOAD_LAB_VICTIM";

#[test]
fn a_server_outlives_the_thread_that_started_it() {
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
fn a_server_dies_with_its_starter() {
    if std::env::var_os(VICTIM).is_some() {
        return victim();
    }
    if require(tool("toxiproxy")).is_none() {
        return;
    }
    // What it leaves behind.
    let folder = tempfile::tempdir().expect("a folder");
    let mut victim = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "processes::a_server_dies_with_its_starter"])
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

/// Starts a server, says where it is, and waits to be killed.
fn victim() {
    let server = Toxiproxy::start().expect("it starts");
    let proxy = server.proxy("127.0.0.1:1").expect("a proxy");
    // On a line of its own, after what the test harness wrote.
    let mut output = std::io::stdout();
    writeln!(output, "\nproxy: {}", proxy.address()).expect("it is read");
    output.flush().expect("it is read");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn what_is_missing_says_how_to_get_it() {
    let reason = tool("nothing").expect_err("no such server");
    assert!(reason.contains("run tools/servers nothing"), "{reason}");
}
