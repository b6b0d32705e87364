//! Failures: the documented status, and one message with its causes and a hint.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::{command, run, stderr, succeed};

#[track_caller]
fn fails(arguments: &[&str], status: i32, wanted: &[&str]) {
    let output = run(arguments);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(
        output.stdout.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    for wanted in wanted {
        assert_eq!(
            text.matches(wanted).count(),
            1,
            "{wanted:?} is not there once:\n{text}"
        );
    }
}

#[test]
fn missing_path_is_named_once_with_cause() {
    let wanted = ["error: /nonexistent/model", "No such file or directory"];
    for subcommand in ["ls", "load", "bench"] {
        fails(&[subcommand, "/nonexistent/model"], 3, &wanted);
    }
}

#[test]
fn usage_errors_are_status_2() {
    fails(
        &["load", "x", "--extent", "4 parsecs"],
        2,
        &["with a unit such as \"4 MiB\""],
    );
    fails(&["load", "x", "--order", "random"], 2, &["ready, file"]);
    for (flag, wanted) in [
        ("--depth", "must lie between 1 and 4096"),
        ("--lanes", "must lie between 1 and 256"),
    ] {
        fails(&["load", "x", flag, "0"], 2, &[flag, wanted]);
        fails(&["bench", "x", flag, "1,0"], 2, &[flag, wanted]);
    }
    fails(&["load", "x", "--device", "toaster"], 2, &["toaster"]);
    // Neither is a manifest.
    let choices = "off, auto, require, sha256";
    fails(&["load", "x", "--verify=atuo"], 2, &["atuo", choices]);
    for arguments in [
        ["load", "x", "--verify", "auto"],
        ["load", "--verify", "auto", "x"],
        ["bench", "x", "--verify", "auto"],
    ] {
        fails(&arguments, 2, &["tip: ", "write '--verify=auto'"]);
    }
    fails(
        &["load", "x", "--device", "mps"],
        7,
        &["CUDA GPUs", "hint: use --device cpu"],
    );
    fails(
        &["load", "x", "--timeout", "1 fortnight"],
        2,
        &["must be a positive duration"],
    );
    fails(
        &["bench", "x", "--size", "1GiB"],
        2,
        &["cannot be used with"],
    );
    fails(&["synth", "x", "--size", "1KiB"], 2, &["needs at least"]);
    fails(&["fly"], 2, &["unrecognized subcommand"]);
}

/// Runs `load` of a good checkpoint with variables.
fn with_variables(variables: &[(&str, &str)], more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let location = model.to_str().unwrap();
    succeed(["synth", location, "--preset", "tiny"]);
    command([&["load", location], more].concat())
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

#[test]
fn invalid_variable_is_named_and_overridden_by_flag() {
    for (variable, value, wanted) in [
        ("TLOAD_ORDER", "random", "ready, file"),
        ("TLOAD_DEPTH", "0", "must lie between 1 and 4096"),
        ("TLOAD_EXTENT", "4 parsecs", "with a unit such as"),
        (
            "TLOAD_TIMEOUT",
            "1 fortnight",
            "must be a positive duration",
        ),
    ] {
        let output = with_variables(&[(variable, value)], &[]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        let start = format!("error: {variable}={value}: ");
        assert!(text.starts_with(&start) && text.contains(wanted), "{text}");
        assert!(!text.contains("--"), "{text}");
    }
    let output = command(["load", "x"])
        .env("TLOAD_CACHE", OsStr::from_bytes(b"\xff"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(
        text.starts_with("error: TLOAD_CACHE=") && text.contains("is not UTF-8"),
        "{text}"
    );
    let output = with_variables(&[("TLOAD_ENGINE", "bogus")], &["--engine", "pread"]);
    assert!(output.status.success(), "{}", stderr(&output));
    // A mistake on the command line comes first.
    let output = with_variables(&[("TLOAD_ENGINE", "bogus")], &["--depth", "0"]);
    assert!(stderr(&output).contains("--depth"), "{}", stderr(&output));
}

/// Commands below commands, too.
#[test]
fn variables_of_every_command_are_named_and_unset_if_blank() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let cache = folder.path().join("cache");
    let [model, cache] = [model, cache].map(|it| it.to_str().unwrap().to_owned());
    succeed(["synth", &model, "--preset", "tiny"]);
    fs::create_dir_all(format!("{cache}/v1")).unwrap();
    let of_cache = ["--cache-dir", &*cache];
    for (words, variable, status_if_blank) in [
        (&["load", &model][..], "TLOAD_DEPTH", 0),
        (&["ls", &model], "TLOAD_TIMEOUT", 0),
        (&["cp", &model, &cache], "TLOAD_EXTENT", 0),
        // It is a local path.
        (&["cache", "warm", &model], "TLOAD_DEPTH", 2),
        (&["cache", "warm", &model], "TLOAD_TIMEOUT", 2),
        (
            &["cache", "prune", "--unused-for", "1h"],
            "TLOAD_CACHE_LIMIT",
            0,
        ),
    ] {
        let is_of_cache = words[0] == "cache";
        let run = |value: &str| {
            let mut command = command(words);
            command.args(of_cache.iter().filter(|_| is_of_cache));
            command.env(variable, value).output().unwrap()
        };
        let wrong = run("wrong");
        let start = format!("error: {variable}=wrong: ");
        assert!(
            stderr(&wrong).starts_with(&start),
            "{words:?}: {}",
            stderr(&wrong)
        );
        assert_eq!(wrong.status.code(), Some(2), "{words:?}");
        let blank = run(" ");
        assert_eq!(
            blank.status.code(),
            Some(status_if_blank),
            "{words:?}: {}",
            stderr(&blank)
        );
        assert!(
            !stderr(&blank).contains(variable),
            "{words:?}: {}",
            stderr(&blank)
        );
    }
    // The directory has a variable, too.
    let mut command = command(["cache", "ls"]);
    let output = command.env("TLOAD_CACHE_DIR", "").output().unwrap();
    assert!(
        stderr(&output).contains("no directory for the cache is set"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn blank_variable_is_unset_and_seconds_need_no_unit() {
    let names = [
        "ENGINE",
        "DEPTH",
        "EXTENT",
        "LANES",
        "IN_FLIGHT",
        "MEMORY_LIMIT",
        "CACHE",
        "ORDER",
        "TIMEOUT",
        "RETRIES",
        "STORE",
    ]
    .map(|name| format!("TLOAD_{name}"));
    for value in ["", " "] {
        let variables: Vec<_> = names.iter().map(|name| (name.as_str(), value)).collect();
        let output = with_variables(&variables, &[]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    for value in ["10", "1e1", "20.5", "50000ms", "30s", "2m"] {
        let output = with_variables(&[("TLOAD_TIMEOUT", value)], &[]);
        assert!(output.status.success(), "{value}: {}", stderr(&output));
    }
}

#[test]
fn values_have_the_forms_that_python_takes() {
    for (variables, flags) in [
        (
            [("TLOAD_VERIFY", "auto "), ("TLOAD_CACHE", " auto")],
            &[][..],
        ),
        ([("TLOAD_VERIFY", "1"), ("TLOAD_HEDGE", "0")], &[]),
        (
            [("TLOAD_TIMEOUT", "1h30m"), ("TLOAD_MEMORY_LIMIT", "1e9")],
            &["--verify"],
        ),
        (
            [("TLOAD_VERIFY", "off"), ("TLOAD_EXTENT", "1 MiB ")],
            &["--verify=true", "--timeout", "2 min"],
        ),
    ] {
        let output = with_variables(&variables, &[flags, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let loaded: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(
            loaded["report"]["verification"].is_object(),
            "{variables:?}"
        );
    }
    for off in ["--verify=false", "--verify=off"] {
        let output = with_variables(&[("TLOAD_VERIFY", "auto")], &[off, "--json"]);
        let loaded: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(loaded["report"]["verification"].is_null(), "{off}");
    }
}

#[test]
fn unknown_variables_get_a_warning_or_a_finding() {
    let misspelt = [("TLOAD_DEPTHH", "3"), ("TLOAD_ORDER", "file")];
    let output = with_variables(&misspelt, &[]);
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    let warning =
        "environment variable TLOAD_DEPTHH is unknown and has no effect; did you mean TLOAD_DEPTH?";
    assert_eq!(
        text.matches(&format!("warning: {warning}\n")).count(),
        1,
        "{text}"
    );
    assert!(!text.contains("TLOAD_ORDER"), "{text}");

    let output = command(["doctor"]).envs(misspelt).output().unwrap();
    let shown = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(shown.contains(&format!("→ {warning}")), "{shown}");
    assert!(
        !stderr(&output).contains("TLOAD_DEPTHH"),
        "{}",
        stderr(&output)
    );
}

/// The load fails once it has all bytes of a tensor, which is after its start.
#[test]
fn failed_load_shows_partial_report() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let location = model.to_str().unwrap();
    corrupted(&model);
    let load = ["load", location, "--digest", "--verify"];
    let output = run(load);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(11), "{text}");
    assert!(output.stdout.is_empty());
    for wanted in ["(corrupt)", "\ntime ", "\nerror: "] {
        assert_eq!(text.matches(wanted).count(), 1, "{wanted}:\n{text}");
    }

    let output = run([&load[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(11));
    let loaded: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(loaded["report"]["outcome"], "corrupt");
    assert_eq!(loaded["digest"], serde_json::Value::Null);
    assert_eq!(loaded["error"]["kind"], "corrupt");
    assert!(
        stderr(&output).starts_with("error: "),
        "{}",
        stderr(&output)
    );
}

/// Writes a checkpoint, a manifest beside it, and then a wrong bit.
pub(crate) fn corrupted(model: &Path) {
    let location = model.to_str().unwrap();
    succeed(["synth", location, "--size", "4MiB"]);
    succeed(["verify", location, "--write"]);
    let mut shards = fs::read_dir(model)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let shard = shards
        .find(|path| path.extension() == Some(OsStr::new("safetensors")))
        .unwrap();
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(shard, bytes).unwrap();
}

#[test]
fn invalid_file_is_status_4() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, b"\x08\0\0\0\0\0\0\0not json").unwrap();
    fails(
        &["ls", path.to_str().unwrap()],
        4,
        &["error: ", "model.safetensors"],
    );
}

#[test]
fn unknown_tensor_is_status_3_and_small_limit_is_status_6() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let location = model.to_str().unwrap();
    succeed(["synth", location, "--size", "4MiB"]);
    fails(
        &["load", location, "--name", "norm.weight"],
        3,
        &["hint: did you mean"],
    );
    fails(
        &["load", location, "--memory-limit", "4KiB"],
        6,
        &["hint: "],
    );
}

#[test]
fn wrong_names_are_answered_with_near_ones_or_the_command_that_lists_them() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("my model");
    let location = model.to_str().unwrap();
    succeed(["synth", location, "--size", "4MiB"]);
    let list = format!("hint: list the names with tload ls '{location}'");
    let near = r#"hint: did you mean "model.layers.*"?"#;
    for (filter, name, hint) in [
        ("--name", "vision", &*list),
        ("--glob", "vision.*", &list),
        ("--regex", "^vision", &list),
        ("--glob", "model.layer.*", near),
    ] {
        fails(&["load", location, filter, name], 3, &[hint]);
    }
    for (flag, value, near) in [
        ("--engine", "io_uring", r#"did you mean "uring"?"#),
        ("--cache", "mmap", r#"did you mean "map"?"#),
        ("--verify=requre", "--json", r#"did you mean "require"?"#),
    ] {
        fails(&["load", location, flag, value], 2, &[near]);
    }
    let model = folder.path().join("mymodel");
    fails(
        &["ls", model.to_str().unwrap()],
        3,
        &[&format!("did you mean {location:?}?")],
    );
}

#[test]
fn hints_name_flags() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let location = model.to_str().unwrap();
    succeed(["synth", location, "--size", "4MiB"]);
    fails(
        &["load", location, "--memory-limit", "4KiB"],
        6,
        &["set --memory-limit"],
    );
    fails(
        &["load", location, "--extent", "1"],
        2,
        &["'--extent <SIZE>': it must lie between 4096"],
    );
}

#[test]
fn synth_does_not_write_into_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    fails(&["synth", path, "--size", "1MiB"], 2, &["is a file"]);
}

#[test]
fn nothing_is_written_to_a_path_that_looks_like_a_url() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().to_str().unwrap();
    for arguments in [
        &["synth", "https://host/m", "--size", "1MiB"][..],
        &["man", "gs://bucket/m"],
        &["verify", model, "--write=https://host/m.json"],
        &["bench", "--dir", "s3://bucket/m", "--size", "1MiB"],
    ] {
        fails(arguments, 7, &["the target is a URL"]);
    }
}

#[test]
fn model_larger_than_free_space_is_rejected_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fails(
        &["synth", model.to_str().unwrap(), "--size", "8000TiB"],
        6,
        &["are free", "hint: "],
    );
    assert!(!model.exists());
}

#[test]
fn closed_pipe_mid_output_exits_successfully() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let location = model.to_str().unwrap();
    succeed(["synth", location, "--preset", "moe", "--size", "16MiB"]);
    let mut child = command(["ls", location, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}
