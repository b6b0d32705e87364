//! Failures under `--json`: one object on standard output with the error, beside any partial
//! result. Deadlines and signals: `hung_mounts.rs`.

use std::fs;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::errors::corrupted;
use crate::{command, run, stderr, succeed};

/// Returns the commands that answer in JSON, for a location.
fn commands<'a>(location: &'a str, target: &'a str) -> [Vec<&'a str>; 5] {
    [
        vec!["load", location],
        vec!["ls", location],
        vec!["verify", location],
        vec!["cp", location, target],
        vec!["doctor", location],
    ]
}

/// Returns the answer of a command that must have failed.
#[track_caller]
fn failure(output: &Output, status: i32, kind: &str) -> Value {
    let errors = stderr(output);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(status), "{errors}");
    let answer: Value = serde_json::from_str(&shown).expect("one object");
    let error = &answer["error"];
    assert_eq!(error["kind"], kind, "{shown}");
    assert_eq!(error["exit_status"], status, "{shown}");
    let message = error["message"].as_str().expect("a text");
    assert!(
        errors.ends_with(&format!("error: {message}\n")),
        "{message} is not in {errors}"
    );
    answer
}

fn with<'a>(arguments: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [arguments, more, &["--json"]].concat()
}

fn folder() -> (TempDir, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, target) = (path("model"), path("target"));
    (folder, model, target)
}

#[test]
fn rejected_argument_is_reported_as_json() {
    let (_folder, model, target) = folder();
    succeed(["synth", &model, "--size", "4MiB"]);
    for command in commands(&model, &target) {
        let output = run(with(&command, &["--store", "tls_verify=perhaps"]));
        let answer = failure(&output, 2, "invalid_request");
        assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
    }
    let output = run(with(&["cp", &model, &target], &["--extent", "1"]));
    let error = &failure(&output, 2, "invalid_request")["error"];
    assert!(error["message"].as_str().unwrap().contains("--extent is 1"));
}

#[test]
fn rejected_variable_is_reported_as_json() {
    for arguments in commands("model", "target") {
        let output = command(with(&arguments, &[]))
            .env("TLOAD_TIMEOUT", "1 fortnight")
            .output()
            .unwrap();
        let error = &failure(&output, 2, "invalid_request")["error"];
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("TLOAD_TIMEOUT="), "{message}");
        let output = command(&arguments)
            .env("TLOAD_TIMEOUT", "1 fortnight")
            .output()
            .unwrap();
        assert!(output.stdout.is_empty(), "text was wanted");
    }
}

/// The arguments are unknown then, `--json` included.
#[test]
fn command_line_errors_are_text() {
    for arguments in commands("model", "target") {
        let output = run(with(&arguments, &["--no-such-option"]));
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        assert!(stderr(&output).contains("--no-such-option"));
    }
}

#[test]
fn unopenable_location_is_reported_as_json() {
    let (_folder, model, target) = folder();
    for command in commands(&model, &target) {
        let output = run(with(&command, &[]));
        let answer = failure(&output, 3, "not_found");
        assert_eq!(answer["error"]["location"], *model, "{answer}");
        assert_eq!(answer["error"]["errno"], 2, "{answer}");
        // `doctor` still prints the findings about the machine.
        assert_eq!(answer["findings"].is_array(), command[0] == "doctor");
    }
    fs::create_dir(&model).unwrap();
    let file = format!("{model}/model.safetensors");
    fs::write(&file, b"\x08\0\0\0\0\0\0\0not json").unwrap();
    for command in [["load", &model], ["ls", &model], ["doctor", &model]] {
        let answer = failure(&run(with(&command, &[])), 4, "invalid_format");
        assert_eq!(answer["error"]["location"], *file, "{answer}");
    }
}

#[test]
fn mismatch_error_is_json_beside_result() {
    let (_folder, model, _) = folder();
    corrupted(model.as_ref());
    let verified = run(with(&["verify", &model], &[]));
    let answer = failure(&verified, 11, "corrupt");
    let files = answer["files"].as_array().unwrap();
    assert!(files.iter().any(|file| file["outcome"] == "differs"));
    let loaded = run(with(&["load", &model], &["--verify"]));
    let answer = failure(&loaded, 11, "corrupt");
    assert_eq!(answer["report"]["outcome"], "corrupt");
    let error = &answer["error"];
    assert!(error["tensor"].is_string(), "{error}");
    assert!(error["range"][1].as_u64() > error["range"][0].as_u64());
    assert!(error["expected"].as_str().unwrap().starts_with("crc64nvme"));
}

#[test]
fn unwritable_target_is_reported_as_json() {
    let (_folder, model, target) = folder();
    succeed(["synth", &model, "--size", "1MiB"]);
    fs::write(&target, "a file").unwrap();
    let output = run(with(&["cp", &model, &format!("{target}/below")], &[]));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let status = answer["error"]["exit_status"].as_i64();
    assert_eq!(status, output.status.code().map(Into::into));
    assert_ne!(status, Some(0));
}

#[test]
fn successful_json_has_no_error() {
    let (_folder, model, target) = folder();
    succeed(["synth", &model, "--size", "1MiB"]);
    succeed(["verify", &model, "--write"]);
    for command in commands(&model, &target) {
        let output = run(with(&command, &[]));
        assert!(output.status.success(), "{}", stderr(&output));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer.get("error"), None, "{answer}");
    }
}

/// A benchmark writes its JSON to a file.
#[test]
fn failing_bench_reports_error_as_json() {
    let (_folder, model, target) = folder();
    let bench = |more: &[&str]| {
        let head = ["bench", &model, "--no-fio", "--rounds", "1"];
        let output = run([&head[..], &["--json", &target], more].concat());
        let answer: Value = serde_json::from_slice(&fs::read(&target).unwrap()).unwrap();
        assert_eq!(
            answer["error"]["exit_status"].as_i64(),
            output.status.code().map(Into::into),
            "{answer}"
        );
        answer
    };
    assert_eq!(bench(&[])["error"]["kind"], "not_found");
    let answer = bench(&["--store", "tls_verify=perhaps"]);
    assert_eq!(answer["error"]["kind"], "invalid_request");
    let answer = bench(&["--plot", "out.png"]);
    assert_eq!(answer["error"]["kind"], "invalid_request");
    corrupted(model.as_ref());
    let answer = bench(&["--verify", "--cache-state", "warm"]);
    assert_eq!(answer["error"]["kind"], "corrupt");
    assert_eq!(answer["complete"], false);
    assert!(answer["cells"].is_array());
}

/// The store refuses reads of an object that the command has opened.
#[test]
fn store_failing_mid_load_is_reported_as_json() {
    use tload_testbed::{Fault, Operation, Rule};

    let lab = crate::remote::Lab::start();
    let model = lab.checkpoint();
    succeed(["verify", model.to_str().unwrap(), "--write"]);
    let manifest = fs::read(model.join("tload-manifest.json")).unwrap();
    lab.server.put("bucket/model/tload-manifest.json", manifest);
    let refused = || Rule::always(Fault::status(403, "AccessDenied")).on(Operation::Get);
    let target = lab.path("copy");
    let target = target.to_str().unwrap();
    for command in commands("s3://bucket/model", target) {
        let (rule, more) = match command[0] {
            "load" | "cp" => (refused().from_byte(1), &["--extent", "1MiB"][..]),
            // One request reads a whole shard.
            "verify" => (refused().path(".safetensors"), &[][..]),
            _ => continue,
        };
        lab.server.fault(rule);
        let answer = failure(&lab.run(&with(&command, more)), 5, "permission_denied");
        lab.server.clear_faults();
        let error = &answer["error"];
        assert_eq!(error["operation"], "GET", "{error}");
        assert_eq!(error["status"], 403, "{error}");
        assert!(error["hint"].is_string(), "{error}");
        assert_eq!(answer["report"].is_object(), command[0] == "load");
    }
}

/// The deadline may pass during opening or reading. There is JSON in both cases; with more time, it
/// passes during reading.
#[test]
fn timed_out_load_is_reported_as_json() {
    use tload_testbed::{Fault, Operation, Rule};

    let lab = crate::remote::Lab::start();
    lab.checkpoint();
    let never = Rule::always(Fault::StallHeaders).on(Operation::Get);
    lab.server.fault(never.from_byte(1));
    // On a busy machine, a short one may expire before the load begins.
    let has_begun = ["0.000001", "0.3", "3", "30", "100"].iter().any(|timeout| {
        let load = ["load", "s3://bucket/model", "--timeout", timeout];
        let output = lab.run(&with(&load, &["--store", "read_timeout=3600"]));
        let answer = failure(&output, 8, "timed_out");
        if answer["report"].is_object() {
            assert_eq!(answer["report"]["outcome"], "timed_out");
        }
        answer["report"].is_object()
    });
    assert!(has_begun);
}
