//! Denials by the system: rings, writing, a network.

use super::under::Under;
use super::{Model, assert_refused, shown};
use crate::cp::names;
use crate::stderr;

const REFUSALS: [(i32, &str); 2] = [(libc::EPERM, "seccomp"), (libc::ENOSYS, "gVisor")];

#[test]
fn load_without_rings_uses_threads_and_reports_reason() {
    let model = Model::with_shards(3);
    for (errno, hint) in REFUSALS {
        let under = Under::new().without_rings(errno);
        let load = [
            "load",
            &model.text(),
            "--digest",
            "--json",
            "--cache",
            "direct",
        ];
        let output = under.command(load).output().unwrap();
        if !stderr(&output).contains("refuses direct I/O") {
            model.assert_loaded(hint, &output);
            let loaded: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(loaded["report"]["engine"]["name"], "pread");
            assert!(stderr(&output).contains(hint), "{}", shown(&output));
        }
        for engine in ["uring", "tokio-uring"] {
            let load = ["load", &model.text(), "--engine", engine];
            let output = under.command(load).output().unwrap();
            assert_refused(engine, &output, 7, &[hint, "os error"]);
        }
        let bench = [
            "bench",
            &model.text(),
            "--rounds",
            "1",
            "--no-fio",
            "--cache-state",
            "warm",
        ];
        let output = under.command(bench).output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
    }
}

/// Nothing can be written anywhere, as in a container with a read-only root.
#[test]
fn read_only_file_system_is_readable() {
    let model = Model::with_shards(3);
    let script = "mount --rbind / / && mount -o remount,bind,ro,noatime / && mount -t tmpfs -o ro none /dev/shm";
    let Some(under) = Under::new().mounts(script) else {
        return;
    };
    let load = ["load", &model.text(), "--digest"];
    model.assert_loaded("load", &under.command(load).output().unwrap());
    let bench = [
        "bench",
        &model.text(),
        "--rounds",
        "1",
        "--no-fio",
        "--cache-state",
        "warm",
    ];
    let output = under.command(bench).output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    let target = model.folder.path().join("copy");
    let cp = ["cp", &model.text(), target.to_str().unwrap()];
    let output = under.command(cp).output().unwrap();
    assert_refused("cp", &output, 1, &["Read-only file system"]);
}

#[test]
fn store_without_network_is_unreachable_error() {
    let Some(under) = Under::new().no_network() else {
        return;
    };
    for (url, named) in [
        ("s3://bucket/model", "s3://bucket/model"),
        ("gs://bucket/model", "gs://bucket/model"),
        ("https://host.invalid/model.safetensors", "host.invalid"),
        ("http://127.0.0.1:1/model.safetensors", "127.0.0.1:1"),
    ] {
        let mut command = under.command(["ls", url, "--store", "retries=0"]);
        command.args(["--store", "open_timeout=20"]);
        if !url.starts_with("http") {
            command.args(["--store", "anonymous=true"]);
        }
        let output = command.output().unwrap();
        assert_refused(url, &output, 9, &[named, "hint: "]);
    }
}

/// A shard of another user: the other shards are compared, and the system's error is printed once,
/// unchanged.
#[test]
fn unreadable_file_does_not_stop_verification() {
    use std::os::unix::fs::PermissionsExt;
    let model = Model::with_shards(3);
    crate::succeed(["verify", &model.text(), "--write"]);
    let Some(user) = Under::new().user() else {
        return;
    };
    let files = std::fs::read_dir(model.path()).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let mut shards: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|it| it == "safetensors"))
        .collect();
    shards.sort();
    std::fs::set_permissions(&shards[1], PermissionsExt::from_mode(0o600)).unwrap();
    let output = user.command(["verify", &model.text()]).output().unwrap();
    let name = shards[1].display().to_string();
    let wanted = [
        &*name,
        "cannot open",
        "Permission denied",
        "hint: let this user",
    ];
    assert_refused("verify", &output, 5, &wanted);
    let table = String::from_utf8_lossy(&output.stdout);
    assert_eq!(table.matches(" matches\n").count(), 3, "{table}");
    assert_eq!(table.matches(" failed\n").count(), 1, "{table}");
    assert!(!stderr(&output).contains("\\n"), "{}", shown(&output));
}

#[test]
fn denied_writes_get_hints_about_writing() {
    let model = Model::with_shards(1);
    let Some(user) = Under::new().user() else {
        return;
    };
    let folder = model.folder.path();
    let [copy, made] = ["copy", "made"].map(|name| folder.join(name).display().to_string());
    let model = model.text();
    for arguments in [
        &["verify", &*model, "--write"][..],
        &["cp", &model, &copy],
        &["synth", &made, "--size", "1MiB"],
    ] {
        let output = user.command(arguments).output().unwrap();
        let wanted = ["Permission denied", "hint: give this user write permission"];
        assert_refused(arguments[0], &output, 5, &wanted);
    }
}

/// The record of a copied file is then a hidden file beside it, which only `cp` reads.
#[test]
fn copy_without_xattrs_is_recognised_by_record_file() {
    let model = Model::with_shards(3);
    let folder = model.folder.path();
    let place = folder.join("ramfs");
    std::fs::create_dir(&place).unwrap();
    let (place, model_text) = (place.to_str().unwrap(), model.text());
    let program = env!("CARGO_BIN_EXE_tload");
    let script = format!(
        "mount -t ramfs none '{place}'\n'{program}' cp '{model_text}' '{place}'\n\
         test -e '{place}/.config.json.tload-copied'\n"
    );
    let Some(under) = Under::new().mounts(&script) else {
        return;
    };
    let files = u64::try_from(names(&model.path()).len()).unwrap();
    let counted = |under: &Under, arguments: &[&str]| -> (u64, u64) {
        let output = under.command(arguments).output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
        // The copy of the script has printed a line.
        let json = String::from_utf8(output.stdout).unwrap();
        let json = &json[json.find('{').unwrap()..];
        let report: serde_json::Value = serde_json::from_str(json).unwrap();
        let count = |key: &str| report[key].as_u64().unwrap();
        (count("copied_files"), count("skipped_files"))
    };
    let again = ["cp", &model_text, place, "--json"];
    assert_eq!(counted(&under, &again), (0, files));
    let elsewhere = folder.join("elsewhere");
    let onward = elsewhere.to_str().unwrap();
    let onward = ["cp", place, onward, "--hidden", "--json"];
    assert_eq!(counted(&under, &onward), (files, 0));
    assert_eq!(names(&elsewhere), names(&model.path()));
    let output = under.command(["load", place, "--digest"]).output().unwrap();
    model.assert_loaded("ramfs", &output);
    let changed = format!("touch '{place}/config.json'");
    let under = under.mounts(&changed).unwrap();
    assert_eq!(counted(&under, &again), (1, files - 1));
}
