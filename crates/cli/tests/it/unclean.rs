//! Variables, options and files of stores whose values hold line breaks and blanks, as secrets made
//! from files do: an error names the one, and nothing is sent. `object_store` panics on them.

use std::fs;

use crate::{command, secrets, stderr};

/// Variables of a store that fails at the first request.
const BASE: [(&str, &str); 6] = [
    ("AWS_ACCESS_KEY_ID", "AKIA"),
    ("AWS_SECRET_ACCESS_KEY", "hunter2secret"),
    ("AWS_REGION", "eu-west-1"),
    ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
    ("AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMmh1bnRlcjI="),
    ("TLOAD_STORE", "retries=0"),
];

/// Returns what `tload ls URL` prints with more variables and options. It fails, without a panic.
fn refusal(url: &str, variables: &[(&str, &str)], options: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let mut command = command(["ls", url]);
    for option in options {
        command.args(["--store", option]);
    }
    for name in ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"] {
        command.env(name, home.path().join("none"));
    }
    command
        .env("HOME", home.path())
        .env("HTTP_PROXY", "http://127.0.0.1:1")
        .env("HTTPS_PROXY", "http://127.0.0.1:1");
    command.envs(BASE).envs(variables.iter().copied());
    let output = command.output().unwrap();
    secrets::assert_none("the command", &output);
    let text = stderr(&output);
    assert!(!output.status.success(), "{variables:?} {options:?}");
    assert!(!text.contains("panicked"), "{variables:?}: {text}");
    text
}

#[test]
fn variables_with_line_breaks_and_blanks_are_named() {
    let wrong = "contains a control character or a blank at an end";
    for (url, name, value) in [
        ("s3://b/m", "AWS_REGION", "eu-west-1"),
        ("s3://b/m", "AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ("s3://b/m", "AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1"),
        ("az://b/m", "AZURE_STORAGE_ACCOUNT_NAME", "account"),
        (
            "az://b/m",
            "AZURE_STORAGE_ACCOUNT_KEY",
            "aHVudGVyMmh1bnRlcjI=",
        ),
        ("az://b/m", "AZURE_TENANT_ID", "tenant"),
    ] {
        for end in ["\n", "\r\n", " "] {
            let text = refusal(url, &[(name, &format!("{value}{end}"))], &[]);
            assert!(text.contains(&format!("{name} {wrong}")), "{name}: {text}");
        }
    }
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", "AKIA\n"),
        ("AWS_SESSION_TOKEN", "hunter2token\n"),
    ] {
        let text = refusal("s3://b/m", &[(name, value)], &[]);
        let found = text.contains(&format!("{name} {wrong}"))
            || text.contains(&format!("a key or token of environment {wrong}"));
        assert!(found, "{name}: {text}");
    }
}

#[test]
fn regions_and_endpoints_that_are_none_are_refused() {
    let url = "s3://b/m";
    for region in ["us east 1", "é", "eu-west-1/"] {
        let wanted = format!("{region:?} is not the name of a region");
        let text = refusal(url, &[("AWS_REGION", region)], &[]);
        assert!(text.contains(&wanted), "{text}");
        let text = refusal(url, &[], &[&format!("region={region}")]);
        assert!(text.contains(&wanted), "{text}");
    }
    for url in [url, "gs://b/m", "az://b/m"] {
        let text = refusal(url, &[], &["endpoint=http://127.0.0.1:1/x y"]);
        assert!(text.contains("store option endpoint is"), "{text}");
    }
    let text = refusal(url, &[("AWS_ENDPOINT_URL", "http://127.0.0.1:1/x y")], &[]);
    assert!(text.contains("is not a URL"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    fs::write(&file, "[default]\nregion = us east 1\n").unwrap();
    let mut command = command(["ls", url, "--store", "retries=0"]);
    command
        .env("AWS_CONFIG_FILE", &file)
        .env("HOME", folder.path());
    for name in ["AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"] {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert!(text.contains("\"us east 1\" is not the name"), "{text}");
}

#[test]
fn two_options_in_one_are_told_apart() {
    for value in [
        "endpoint=http://127.0.0.1:1 region=eu-west-1",
        "retries=2,region=eu-west-1",
        "region=eu-west-1 endpoint=http://127.0.0.1:1",
    ] {
        let (first, _) = value.split_once('=').unwrap();
        for text in [
            refusal("s3://b/m", &[], &[value]),
            refusal("s3://b/m", &[("TLOAD_STORE", value)], &[]),
        ] {
            assert!(
                text.contains(&format!("store option {first} holds ")),
                "{text}"
            );
            assert!(text.contains("a line for each in TLOAD_STORE"), "{text}");
        }
    }
    // A value that looks like two is one.
    let text = refusal("s3://b/m", &[], &["session_token=a,region=b"]);
    assert!(!text.contains("holds"), "{text}");
}
