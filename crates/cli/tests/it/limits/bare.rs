//! Bare machines: no `/proc`, no `/sys`, no folder for temporary files, no home, no environment.

use super::under::Under;
use super::{Model, shown};
use crate::command;

const EMPTY: &str = "mount -t tmpfs none";

/// Directories that an empty file system is mounted over.
const HIDDEN: [&[&str]; 6] = [
    &["/proc"],
    &["/sys"],
    &["/dev/shm"],
    &["/proc", "/sys"],
    &["/proc", "/sys", "/dev"],
    &["/run", "/var/run"],
];

#[test]
fn load_without_proc_and_sys_succeeds() {
    let model = Model::with_shards(3);
    for hidden in HIDDEN {
        let what = hidden.join(" ");
        // If the directories are links to each other, the second already exists.
        let mounts: Vec<_> = hidden
            .iter()
            .map(|place| format!("{EMPTY} {place}"))
            .collect();
        let Some(under) = Under::new().mounts(&mounts.join(" && ")) else {
            return;
        };
        for engine in ["auto", "pread"] {
            let load = ["load", &model.text(), "--digest", "--engine", engine];
            let output = under.command(load).output().unwrap();
            model.assert_loaded(&format!("{what}, {engine}"), &output);
        }
        for arguments in [
            &["ls", &model.text()][..],
            &["doctor", &model.text()],
            &[
                "bench",
                &model.text(),
                "--rounds",
                "1",
                "--no-fio",
                "--cache-state",
                "warm",
            ],
        ] {
            let output = under.command(arguments).output().unwrap();
            assert!(
                output.status.success(),
                "{what}, {arguments:?}: {}",
                shown(&output)
            );
        }
    }
}

#[test]
fn load_without_environment_or_home_succeeds() {
    let model = Model::with_shards(3);
    let bare = || {
        let mut command = command(["load", &model.text(), "--digest"]);
        command.env_clear();
        command
    };
    model.assert_loaded("nothing", &bare().output().unwrap());
    let variables = [
        ("LC_ALL", "C"),
        ("LANG", "xx_YY.nonsense"),
        ("TZ", "Nowhere/At-All"),
        ("HOME", "/nonexistent"),
        ("TMPDIR", "/nonexistent"),
    ];
    model.assert_loaded("nonsense", &bare().envs(variables).output().unwrap());
    for arguments in [&["doctor"][..], &["ls", &model.text()]] {
        let output = command(arguments).env_clear().output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", shown(&output));
    }
}

/// A load writes no temporary files; a benchmark of a synthetic checkpoint does, and names the
/// directory where it cannot.
#[test]
fn load_without_temp_dir_succeeds() {
    let model = Model::with_shards(3);
    let output = command(["load", &model.text(), "--digest"])
        .env("TMPDIR", "/nonexistent")
        .output()
        .unwrap();
    model.assert_loaded("load", &output);
    let output = command([
        "bench",
        &model.text(),
        "--rounds",
        "1",
        "--no-fio",
        "--cache-state",
        "warm",
    ])
    .env("TMPDIR", "/nonexistent")
    .output()
    .unwrap();
    assert!(output.status.success(), "{}", shown(&output));
}
