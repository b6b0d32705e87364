//! Standard input, output and error that are closed, full, or not read to the end.

use std::ffi::OsStr;
use std::fs;
use std::process::{Command, Output, Stdio};

use super::{Model, assert_refused, shown};
use crate::{command, stderr, succeed};

/// Runs a line of shell in which `"$0"` is `tload` and `"$1"` the checkpoint.
fn shell(line: &str, model: &Model) -> Output {
    Command::new("bash")
        .args(["-o", "pipefail", "-c", line, env!("CARGO_BIN_EXE_tload")])
        .arg(model.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn closed_pipe_exits_successfully() {
    let model = Model::with_shards(3);
    for line in [
        r#""$0" ls "$1" | head -1"#,
        r#""$0" ls "$1" --json | head -1"#,
        r#""$0" load "$1" --json --digest | head -1"#,
        r#""$0" doctor "$1" | head -1"#,
        r#""$0" doctor --json | head -1"#,
        r#""$0" load --help | head -1"#,
        r#""$0" --version | head -1"#,
    ] {
        let output = shell(line, &model);
        assert!(output.status.success(), "{line}: {}", shown(&output));
        assert_eq!(stderr(&output), "", "{line}");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).lines().count(),
            1,
            "{line}"
        );
    }
}

/// The status is all that a reader who has left can still see.
#[test]
fn failure_keeps_its_status_without_a_reader() {
    let model = Model::with_shards(1);
    succeed(["verify", &model.text(), "--write"]);
    let shard = model.path().join("model.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let gone = model.path().join("gone");
    for (subcommand, path, status) in [("verify", model.path(), 11), ("doctor", gone, 3)] {
        for json in [None, Some("--json")] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut failing = command([OsStr::new(subcommand), path.as_os_str()]);
            let output = failing.args(json).stdout(writer).output().unwrap();
            let what = format!("{subcommand} {json:?}");
            assert_refused(&what, &output, status, &["error: "]);
        }
    }
}

#[test]
fn closed_standard_streams_keep_exit_status() {
    let model = Model::with_shards(3);
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"] {
        let output = shell(&format!(r#""$0" load "$1" --digest {closed}"#), &model);
        assert!(output.status.success(), "{closed}: {}", shown(&output));
        if !closed.contains(" >") && !closed.starts_with('>') {
            model.assert_loaded(closed, &output);
        }
    }
}
