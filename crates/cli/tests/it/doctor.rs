//! `doctor` on the machine that runs the tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::{command, json, run, stderr, succeed};

#[test]
fn every_finding_has_an_id_a_level_and_a_value() {
    let report = json(["doctor", "--json"]);
    let findings = report["findings"].as_array().unwrap();
    let ids: Vec<&str> = findings
        .iter()
        .map(|finding| finding["id"].as_str().unwrap())
        .collect();
    for id in [
        "kernel",
        "io_uring",
        "seccomp",
        "memory",
        "memlock",
        "open_files",
        "threads",
        "proc",
        "sys",
        "huge_pages",
        "numa",
        "gpu",
    ] {
        assert!(ids.contains(&id), "{id} is not in {ids:?}");
    }
    for finding in findings {
        assert!(["ok", "note", "warn"].contains(&finding["level"].as_str().unwrap()));
        assert!(!finding["value"].as_str().unwrap().is_empty(), "{finding}");
        // A finding that is not ok has advice, or its value is unknown.
        let advised = finding["advice"].is_string();
        let unknown = finding["value"].as_str().unwrap().starts_with("unknown");
        assert!(finding["level"] == "ok" || advised || unknown, "{finding}");
        let change = &finding["change"];
        assert!(
            change.is_null() || change["command"].is_string(),
            "{finding}"
        );
        assert!(finding["level"] != "ok" || change.is_null(), "{finding}");
    }
}

#[test]
fn checkpoint_adds_storage_findings() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let location = model.to_str().unwrap();
    succeed(["synth", location, "--size", "1MiB"]);
    let report = json(["doctor", location, "--json"]);
    let findings = report["findings"].as_array().unwrap();
    for id in [
        "checkpoint",
        "file_system",
        "mount",
        "direct_io",
        "page_cache",
        "verify",
    ] {
        assert!(findings.iter().any(|finding| finding["id"] == id), "{id}");
    }
    let text = succeed(["doctor", location]);
    assert!(text.contains(" in memory ("), "{text}");
    let mut last = text.lines().rev();
    let line = last.next().unwrap();
    // If a change is advised that is worth it, it is on the last line.
    match report["change_first"]["command"].as_str() {
        Some(command) if line != "Nothing needs fixing." => {
            assert!(
                line.starts_with("Fix first: ") && line.ends_with(command),
                "{text}"
            );
            assert!(last.next().unwrap().ends_with(" ok"), "{text}");
        }
        _ => assert_eq!(line, "Nothing needs fixing."),
    }
}

#[test]
fn missing_checksums_are_noted_until_manifest_exists() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let location = model.to_str().unwrap();
    succeed(["synth", location, "--size", "1MiB", "--shards", "2"]);
    let look = || {
        let report = json(["doctor", location, "--json"]);
        let findings = report["findings"].as_array().unwrap();
        let found = findings.iter().find(|finding| finding["id"] == "verify");
        found.expect("looks at checksums").clone()
    };

    let nothing = look();
    assert_eq!(nothing["level"], "note");
    let value = nothing["value"].as_str().unwrap();
    assert!(value.starts_with("none: "), "{nothing}");
    let advice = nothing["advice"].as_str().unwrap();
    assert!(
        advice.ends_with(&format!(": tload verify {location} --write")),
        "{advice}"
    );
    // The advice helps.
    let (_, command) = advice.rsplit_once("tload ").unwrap();
    succeed(command.split(' '));
    let all = look();
    assert_eq!((&all["level"], &all["advice"]), (&"ok".into(), &().into()));
    let value = all["value"].as_str().unwrap();
    assert!(value.starts_with("2 shards, by manifest "), "{all}");

    fs::write(model.join("tload-manifest.json"), "{}").unwrap();
    let broken = look();
    assert_eq!(broken["level"], "note");
    let value = broken["value"].as_str().unwrap();
    assert!(
        value.starts_with("unknown: ") && value.contains("tload-manifest.json"),
        "{broken}"
    );
    assert!(broken["advice"].is_string(), "{broken}");
}

#[test]
fn bad_location_keeps_machine_findings() {
    let output = run(["doctor", "/nonexistent/model", "--json"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["worst"], "fail");
    let findings = report["findings"].as_array().unwrap();
    let machine = json(["doctor", "--json"])["findings"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(findings.len(), machine + 1);
    let failed = findings.last().unwrap();
    assert_eq!(failed["level"], "fail");
    assert_eq!(failed["change"]["urgency"], "failure");
    assert!(report["change_first"]["command"].is_string());
    assert!(
        failed["value"]
            .as_str()
            .unwrap()
            .contains("/nonexistent/model")
    );

    let output = run(["doctor", "/nonexistent/model"]);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("\n1 failed, "), "{text}");
    // The failure is told once.
    assert_eq!(text.matches("/nonexistent/model").count(), 1, "{text}");
    assert!(text.ends_with("\nFix first: checkpoint\n"), "{text}");
    assert_eq!(stderr(&output), "");
}

#[test]
fn other_program_named_tload_on_path_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("tload");
    fs::write(&other, "another program").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    let own = Path::new(env!("CARGO_BIN_EXE_tload"));
    let look = |folders: [&Path; 2]| {
        let path = std::env::join_paths(folders).unwrap();
        let output = command(["doctor", "--json"]).env("PATH", path).output();
        let report: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let found = findings.iter().find(|finding| finding["id"] == "program");
        found.unwrap().clone()
    };
    let found = look([folder.path(), own.parent().unwrap()]);
    assert_eq!(found["level"], "warn");
    let wanted = format!("{} comes before {} on PATH", other.display(), own.display());
    assert_eq!(found["value"], wanted);
    let advice = found["advice"].as_str().unwrap();
    assert!(advice.contains("python -m tload"), "{advice}");
    let found = look([own.parent().unwrap(), folder.path()]);
    assert_eq!(found["level"], "ok", "{found}");
}

#[test]
fn settings_name_their_variables_and_arguments() {
    let output = command(["doctor", "--json", "--store", "session_token=hunter2"])
        .envs([("TLOAD_CACHE", "drop"), ("TLOAD_FOLLOW_SYMLINKS", "1")])
        .env("TLOAD_STORE", "region=eu-west-1")
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["id"] == "settings");
    assert_eq!(
        found.unwrap()["value"],
        "cache drop (TLOAD_CACHE), store region=eu-west-1 (TLOAD_STORE), store session_token=*** (--store), \
         follow-symlinks true (TLOAD_FOLLOW_SYMLINKS)"
    );
}
