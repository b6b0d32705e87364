//! `tload doctor` under each limit: it reports the limit, and puts the one that stops loads first.

use rustix::process::Resource;
use serde_json::Value;

use super::under::Under;
use super::{Model, shown};

/// Returns the report of `tload doctor` under limits.
fn examine(under: &Under, model: &Model) -> Value {
    let output = under
        .command(["doctor", &model.text(), "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn find<'a>(report: &'a Value, id: &str) -> &'a Value {
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["id"] == id);
    assert!(found.is_some(), "no {id} in {report}");
    found.unwrap()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[test]
fn seccomp_filter_is_named_as_cause() {
    let model = Model::with_shards(3);
    for errno in [libc::EPERM, libc::ENOSYS] {
        let report = examine(&Under::new().without_rings(errno), &model);
        let ring = find(&report, "io_uring");
        assert_eq!(ring["level"], "warn");
        assert!(
            text(ring, "value").ends_with(", blocked by a seccomp filter"),
            "{ring}"
        );
        assert_eq!(ring["change"]["urgency"], "speed");
        assert!(
            text(&ring["change"], "command").contains("io_uring_setup"),
            "{ring}"
        );
        assert_eq!(find(&report, "seccomp")["level"], "note");
    }
}

#[test]
fn doctor_names_sysctl_that_disables_io_uring() {
    let model = Model::with_shards(3);
    let switch = model.folder.path().join("switch");
    std::fs::write(&switch, "2\n").unwrap();
    let script = format!(
        "mount --bind {} /proc/sys/kernel/io_uring_disabled",
        switch.display()
    );
    if !std::path::Path::new("/proc/sys/kernel/io_uring_disabled").exists() {
        // Kernels before 6.6 do not have this sysctl.
        return;
    }
    let Some(under) = Under::new().without_rings(libc::EPERM).mounts(&script) else {
        return;
    };
    let report = examine(&under, &model);
    let ring = find(&report, "io_uring");
    assert!(
        text(ring, "value").ends_with(", blocked by sysctl kernel.io_uring_disabled"),
        "{ring}"
    );
    let command = text(&ring["change"], "command");
    assert!(
        command.starts_with("sysctl -w kernel.io_uring_disabled=0"),
        "{command}"
    );
}

#[test]
fn open_file_limit_below_shards_is_first_fix() {
    let model = Model::with_shards(100);
    let raised = Under::new().limits(Resource::Nofile, 64, 4096);
    // Changes for speed come after it.
    let report = examine(&raised.without_rings(libc::EPERM), &model);
    assert_eq!(report["change_first"]["id"], "open_files", "{report}");
    assert_eq!(report["change_first"]["command"], "ulimit -n 264");
    // The value is the limit that the command was started with.
    assert_eq!(
        find(&report, "open_files")["value"],
        "64, may be raised to 4096"
    );

    let fixed = Under::new().limit(Resource::Nofile, 64);
    let output = fixed.command(["doctor", &model.text()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = stdout.lines().last().unwrap();
    assert_eq!(last, "Fix first: checkpoint");
    assert!(stdout.contains("ulimit -n 264"), "{stdout}");
}

#[test]
fn doctor_reports_user_limits() {
    let model = Model::with_shards(3);
    let Some(user) = Under::new().user() else {
        return;
    };
    let under = user
        .limit(Resource::Memlock, 64 << 10)
        .limit(Resource::Nproc, 5);
    let report = examine(&under, &model);
    let memlock = find(&report, "memlock");
    assert_eq!(memlock["value"], "64.0 KiB");
    assert_eq!(memlock["level"], "note");
    assert!(
        text(&memlock["change"], "command").contains("ulimit -l 65536"),
        "{memlock}"
    );
    let threads = find(&report, "threads");
    assert!(
        text(threads, "value").starts_with("5 for this user"),
        "{threads}"
    );
    assert_eq!(threads["level"], "warn");
}

#[test]
fn unmounted_proc_and_sys_are_findings() {
    let model = Model::with_shards(3);
    let Some(under) = Under::new().mounts("mount -t tmpfs none /sys && mount -t tmpfs none /proc")
    else {
        return;
    };
    let report = examine(&under, &model);
    for (id, command) in [
        ("proc", "mount -t proc proc /proc"),
        ("sys", "mount -t sysfs sysfs /sys"),
    ] {
        let finding = find(&report, id);
        assert_eq!(finding["value"], "not mounted");
        assert!(
            text(&finding["change"], "command").starts_with(command),
            "{finding}"
        );
    }
    // These need neither.
    for id in ["memlock", "open_files", "threads", "io_uring"] {
        assert!(
            !text(find(&report, id), "value").starts_with("unknown"),
            "{id}"
        );
    }
}
