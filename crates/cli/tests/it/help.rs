//! Snapshots of the help, which is part of the interface: they show changes in review.
//! `TLOAD_UPDATE_HELP=1 cargo test -p tload-cli help` accepts a change.

use std::path::PathBuf;

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
        "verify",
        "cache",
        "cache ls",
        "cache stat",
        "cache rm",
        "cache prune",
        "cache warm",
        "serve",
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
        if std::env::var_os("TLOAD_UPDATE_HELP").is_some() {
            std::fs::write(&path, &help).expect("the recorded help can be written");
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(help, recorded, "{} differs", path.display());
    }
}

#[test]
fn version_is_that_of_crate() {
    let output = command(["--version"]).output().expect("the binary runs");
    let expected = format!("tload {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}
