//! Snapshots of the help, which is part of the interface: they show changes in review.
//! `TLOAD_BLESS=1 cargo test -p tload-cli --test it help` accepts a change.

use std::path::PathBuf;

use tload_testbed::assert_recorded;

use crate::command;

#[test]
fn help_is_as_recorded() {
    for name in [
        "tload",
        "ls",
        "load",
        "synth",
        "bench",
        "cp",
        "convert",
        "verify",
        "rm",
        "diff",
        "apply",
        "seal",
        "unseal",
        "rekey",
        "cache",
        "cache ls",
        "cache stat",
        "cache rm",
        "cache prune",
        "cache warm",
        "serve",
        "exec",
        "doctor",
        "completions",
        "man",
    ] {
        let mut arguments = vec!["--help"];
        if name != "tload" {
            arguments.splice(0..0, name.split(' '));
        }
        // clap takes the width of the terminal from this variable.
        let output = command(arguments)
            .env("COLUMNS", "100")
            .output()
            .expect("the binary runs");
        assert!(output.status.success());
        let help = String::from_utf8(output.stdout).expect("help is UTF-8");
        let path: PathBuf = [
            env!("CARGO_MANIFEST_DIR"),
            "tests/it/help",
            &format!("{}.txt", name.replace(' ', "-")),
        ]
        .iter()
        .collect();
        assert_recorded(&path, &help);
    }
}

#[test]
fn version_is_that_of_crate() {
    let output = command(["--version"]).output().expect("the binary runs");
    let expected = format!("tload {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}
