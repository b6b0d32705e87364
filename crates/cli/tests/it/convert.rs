//! `tload convert`, with files that the package tensorizer wrote.

#[path = "../../../tensorizer/tests/written/mod.rs"]
#[expect(dead_code, reason = "other crates use the rest")]
mod recorded;

use std::net::TcpListener;

use serde_json::Value;
use tload_testbed::{Versitygw, require};

use crate::{run, stderr, succeed};

#[test]
fn converts_and_says_why_it_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let key: Vec<u8> = (0..32).collect();
    std::fs::write(at("key"), &key).unwrap();
    std::fs::write(at("other"), "Zebra".repeat(13).split_at(64).0).unwrap();
    std::fs::write(at("passphrase"), "correct horse\n").unwrap();
    for name in ["v4", "v4_encrypted", "v3_passphrase"] {
        std::fs::write(at(name), recorded::written(name)).unwrap();
    }
    for (name, options, status, wanted) in [
        ("v4", &[][..], 0, "6 tensors"),
        (
            "v4_encrypted",
            &["--key-file", "key"],
            0,
            "5 tensors decrypted",
        ),
        (
            "v3_passphrase",
            &["--passphrase-file", "passphrase"],
            0,
            "5 tensors decrypted",
        ),
        ("v4_encrypted", &[], 5, "no key was given"),
        (
            "v4_encrypted",
            &["--passphrase-file", "passphrase"],
            5,
            "wanted the key",
        ),
        (
            "v4_encrypted",
            &["--key-file", "other"],
            2,
            "found 64 bytes, wanted a key",
        ),
        (
            "v4_encrypted",
            &["--key-file", "passphrase"],
            2,
            "found 14 bytes, wanted a key",
        ),
        ("v4", &["--key-file", "key"], 2, "is not encrypted"),
        ("v4", &["--key-file", "missing"], 3, "missing"),
    ] {
        let target = at(&format!("{name}-{status}-{}", options.join("")));
        let source = at(name);
        let options = options.iter().map(|option| {
            let is_file = !option.starts_with("--");
            if is_file {
                at(option)
            } else {
                (*option).to_owned()
            }
        });
        let options: Vec<_> = options.collect();
        let mut arguments = vec!["convert", &source, &target];
        arguments.extend(options.iter().map(String::as_str));
        let output = run(arguments);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(text.contains(wanted), "{text}");
        assert!(!text.contains("Zebra") && !text.contains("horse"), "{text}");
        if name.starts_with("v4") && status == 0 {
            assert!(
                text.contains("\"meta\" has no bytes in the file: wrote zeros"),
                "{text}"
            );
        }
    }
}

/// Restarted jobs and replicas convert to one place at a time.
#[test]
fn several_conversions_to_one_folder_leave_one_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("x.tensors"), folder.path().join("out"));
    std::fs::write(&source, recorded::written("v5")).unwrap();
    let statuses = std::thread::scope(|scope| {
        let running: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    let (source, target) = (source.to_str().unwrap(), target.to_str().unwrap());
                    run(["convert", source, target, "--quiet"]).status.code()
                })
            })
            .collect();
        let ended = running.into_iter().map(|it| it.join().unwrap());
        ended.collect::<Vec<_>>()
    });
    assert_eq!(
        statuses.iter().filter(|it| **it == Some(0)).count(),
        1,
        "{statuses:?}"
    );
    assert!(
        statuses.iter().all(|it| matches!(it, Some(0 | 2))),
        "{statuses:?}"
    );
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 1);
    let loaded = run(["load", target.to_str().unwrap(), "--quiet"]);
    assert_eq!(loaded.status.code(), Some(0));
}

#[test]
fn result_is_replaced_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, target) = (at("v4.tensors"), at("out"));
    std::fs::write(&source, recorded::written("v4")).unwrap();
    let answer: Value =
        serde_json::from_str(&succeed(["convert", &source, &target, "--json"])).unwrap();
    assert_eq!(answer["tensors"], 6, "{answer}");
    let again = run(["convert", &source, &target]);
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
    succeed(["convert", &source, &target, "--force"]);
    // One file is opened wherever it is, so nothing needs this.
    let refused = run(["convert", &source, &target, "--force", "--follow-symlinks"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn timeout_ends_a_conversion() {
    // Connections are accepted by the system, and nothing answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = format!("http://{}/a.tensors", silent.local_addr().unwrap());
    let target = folder.path().join("out");
    let output = run([
        "convert",
        &source,
        target.to_str().unwrap(),
        "--timeout",
        "300ms",
    ]);
    assert_eq!(output.status.code(), Some(8), "{}", stderr(&output));
    assert!(!target.join("model.safetensors").exists());
}

#[test]
fn objects_are_converted_from_the_cache() {
    let Some(server) = require(Versitygw::start()) else {
        return;
    };
    server
        .put("weights", "v4.tensors", &recorded::written("v4"))
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let convert = |target: &str, check: &str| {
        let mut words = ["convert", "s3://weights/v4.tensors", &at(target)].map(str::to_owned);
        let mut words: Vec<String> = words.iter_mut().map(std::mem::take).collect();
        for option in crate::written::options(&server) {
            words.extend(["--store".to_owned(), option]);
        }
        words.extend(["--cache-dir", &at("cache"), "--cache-check", check].map(str::to_owned));
        run(words)
    };
    let first = convert("empty", "offline");
    assert!(!first.status.success(), "nothing is in the cache yet");
    for (target, check) in [("one", "always"), ("two", "offline")] {
        let output = convert(target, check);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let read = |name: &str| std::fs::read(folder.path().join(name).join("model.safetensors"));
    assert_eq!(read("one").unwrap(), read("two").unwrap());
}
