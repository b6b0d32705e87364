//! `--store` and its variable: error messages, without secrets.

use std::fs;

use crate::{command, run, stderr, succeed};

const SECRET: &str = "hush-hush";

#[track_caller]
fn wrong(arguments: &[&str], wanted: &str) {
    let output = run(arguments);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}");
    assert!(!text.contains(SECRET), "{text}");
}

#[test]
fn mistakes_are_status_2_and_show_no_value() {
    for head in [
        &["ls", "x"][..],
        &["load", "x"],
        &["bench", "x"],
        &["doctor"],
        &["cp", "x", "y"],
    ] {
        let with = |option: &'static str| [head, &["--store", option]].concat();
        wrong(&with(SECRET), "has no key");
        wrong(&with("endpoit=hush-hush"), "endpoit");
        wrong(&with("endpoint=hush-hush"), "a URL");
        wrong(&with("tls_verify=perhaps"), "true or false");
    }
    wrong(&["load", "x", "--retries", "few"], "--retries");
}

#[test]
fn options_of_stores_that_are_passed_as_flags_get_a_tip() {
    for (flag, option) in [
        ("--endpoint", "endpoint"),
        ("--endpoint-url", "endpoint"),
        ("--region", "region"),
        ("--secret-access-key", "secret_access_key"),
        ("--anonymous", "anonymous"),
    ] {
        for command in [&["ls", "x"][..], &["load", "x"], &["cache", "warm", "x"]] {
            let tip = format!("tip: it is an option of stores: '--store {option}=VALUE'");
            wrong(&[command, &[flag, SECRET]].concat(), &tip);
            let joined = format!("{flag}={SECRET}");
            wrong(&[command, &[&joined]].concat(), &tip);
        }
    }
    wrong(&["ls", "x", "--sot"], "a similar argument exists: '--sort'");
}

#[test]
fn store_variable_has_one_option_per_line_and_flag_overrides() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let model = model.to_str().unwrap();
    succeed(["synth", model, "--preset", "tiny"]);
    let ls = |variable: &str, more: &[&str]| {
        let arguments = [&["ls", model], more].concat();
        command(arguments)
            .env("TLOAD_STORE", variable)
            .output()
            .unwrap()
    };
    assert!(ls("region=a,b\nanonymous=true\n", &[]).status.success());
    assert!(ls(" ", &[]).status.success());
    let output = ls("region=a\nhush-hush", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!stderr(&output).contains(SECRET), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("TLOAD_STORE"),
        "{}",
        stderr(&output)
    );
    // The flag takes precedence for its key; the other keys of the variable still apply.
    let output = ls("region=a\nhush-hush", &["--store", "region=b"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(ls("region=a", &["--store", "region=b"]).status.success());
}

#[test]
fn exports_have_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, exports) = (path("model"), ["out.json", "out.csv", "out.md"].map(path));
    succeed(["synth", &model, "--preset", "tiny"]);
    let [json, csv, markdown] = &exports;
    let output = run([
        "bench",
        &model,
        "--rounds",
        "1",
        "--no-fio",
        "--store",
        "secret_access_key=hush-hush",
        "--store=header.authorization=hush-hush",
        "--store",
        "proxy=http://me:hush-hush@localhost:1",
        "--json",
        json,
        "--csv",
        csv,
        "--markdown",
        markdown,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    for export in &exports {
        let text = fs::read_to_string(export).unwrap();
        assert!(text.contains("secret_access_key=***"), "{text}");
        assert!(text.contains("proxy=http://localhost:1"), "{text}");
        assert!(!text.contains(SECRET), "{text}");
    }
}
