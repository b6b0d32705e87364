//! Secrets in the environment and in arguments: no command shows one, whatever its arguments and
//! however it fails.

use std::process::Output;

use crate::{command, stderr};

/// Parts, one of which is in every secret of any test.
pub(crate) const SECRETS: &str = include_str!("../../../../tests/secrets.txt");

pub(crate) const VARIABLES: [(&str, &str); 13] = [
    ("AWS_ACCESS_KEY_ID", "AKIAhunter2"),
    ("AWS_SECRET_ACCESS_KEY", "hunter2secret"),
    ("AWS_SESSION_TOKEN", "hunter2token"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
    ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
    ("AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMmh1bnRlcjI="),
    (
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        r#"{"type": "service_account", "private_key": "hunter2", "private_key_id": "hunter2", "client_email": "a@b"}"#,
    ),
    ("HF_TOKEN", "hf_hunter2"),
    ("HF_HOME", "/nonexistent"),
    ("HTTP_PROXY", "http://user:hunter2@127.0.0.1:1"),
    ("HTTPS_PROXY", "http://user:hunter2@127.0.0.1:1"),
    (
        "TLOAD_STORE",
        "header.authorization=Bearer hunter2\nretries=0",
    ),
    ("RUST_BACKTRACE", "1"),
];

/// Panics if a secret was printed, without showing it.
#[track_caller]
pub(crate) fn assert_none(what: &str, output: &Output) {
    for text in [&output.stdout, &output.stderr] {
        let text = String::from_utf8_lossy(text);
        for secret in SECRETS.lines().filter(|line| !line.is_empty()) {
            let before = text.find(secret).map(|at| text[..at].to_owned());
            assert_eq!(before, None, "{what} shows a secret after this");
        }
    }
}

#[test]
fn commands_hide_secrets_of_environment_and_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("copy").to_str().unwrap().to_owned();
    let signed = "https://user:hunter2@127.0.0.1:1/m.safetensors?X-Amz-Signature=hunter2&sig=hunter2&X-Goog-Signature=hunter2";
    let endpoint = "endpoint=http://user:hunter2@127.0.0.1:1";
    for url in [
        "s3://bucket/m",
        "gs://bucket/m",
        "az://bucket/m",
        "hf://org/m",
        signed,
    ] {
        for arguments in [
            &["ls"][..],
            &["ls", "--json"],
            &["load"],
            &["load", "--json"],
            &["doctor"],
            &["doctor", "--json"],
            &["bench", "--rounds", "1"],
            &["cp"],
        ] {
            for store in [
                "endpoint=http://127.0.0.1:1",
                endpoint,
                "proxy=http://user:hunter2@127.0.0.1:1",
            ] {
                let mut command = command(arguments);
                command.arg(url);
                if arguments == ["cp"] {
                    command.arg(&target);
                }
                command.args(["--store", store, "--store", "open_timeout=10"]);
                let output = command.envs(VARIABLES).output().unwrap();
                let what = format!("{arguments:?} of {}", url.split_once(':').unwrap().0);
                assert!(!output.status.success(), "{what}: no server listens");
                assert!(!stderr(&output).contains("panicked"), "{what}");
                assert_none(&what, &output);
            }
        }
    }
}

/// Servers echo the token that they refuse; commands do not, as text or as JSON.
#[test]
fn secrets_echoed_by_server_are_redacted() {
    let server = tload_testbed::FaultyServer::start();
    let token = "hf_hunter2hunter2";
    // Secrets in base64, and percent-encoded.
    for said in [token, "aGZfaHVudGVyMmh1bnRlcjI=", "hf%5F%68unter2hunter2"] {
        let answer = format!(
            "HTTP/1.1 403 {said}\r\nx-request-id: {said}\r\nx-error-message: Invalid token {said}\r\nContent-Length: 0\r\n\r\n"
        );
        server.clear_faults();
        server.fault(tload_testbed::Rule::always(tload_testbed::Fault::Garbage(
            answer.into_bytes(),
        )));
        for arguments in [
            &["ls"][..],
            &["ls", "--json"],
            &["load", "--json"],
            &["doctor", "--json"],
        ] {
            let mut command = command(arguments);
            command.args(["hf://org/m", "--store", "retries=1"]);
            command.envs([("HF_TOKEN", token), ("HF_ENDPOINT", &server.url())]);
            command.envs([
                ("HF_HOME", "/nonexistent"),
                ("RUST_LOG", "trace"),
                ("TLOAD_LOG", "debug"),
            ]);
            let output = command.output().unwrap();
            assert!(!output.status.success(), "{arguments:?}");
            assert_none(&format!("{arguments:?}"), &output);
            let shown = [output.stdout, output.stderr].concat();
            let shown = String::from_utf8_lossy(&shown);
            assert!(!shown.contains(said), "{arguments:?} shows {said}");
            assert!(
                shown.contains("Invalid token ***"),
                "{arguments:?}: {shown}"
            );
        }
    }
    assert!(!server.requests().is_empty());
}

#[test]
fn secret_search_finds_printed_secret() {
    let output = std::process::Command::new("sh")
        .args(["-c", "echo fine; echo a hun''ter2 >&2"])
        .output()
        .unwrap();
    let found = std::panic::catch_unwind(|| assert_none("echo", &output)).unwrap_err();
    let said = found.downcast_ref::<String>().unwrap();
    assert!(
        said.contains("\"a \"") && !said.contains("hunter2"),
        "{said}"
    );
}
