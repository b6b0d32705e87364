//! `--html` of `load`, `bench` and `doctor`: complete files without secrets, and errors before the
//! work begins.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::secrets::{SECRETS, VARIABLES};
use crate::{command, run, stderr, succeed};

/// Name of a folder that would be markup.
const HOSTILE: &str = "<script>alert(1)<!-- \"x\" & 'y'";

const PAGE_MAX: usize = 200_000;

fn model(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join(name);
    succeed(["synth", model.to_str().unwrap(), "--preset", "tiny"]);
    (folder, model)
}

/// Returns a page, which loads nothing from elsewhere and shows no secret.
#[track_caller]
fn page(path: &Path) -> String {
    let page = fs::read_to_string(path).unwrap();
    assert!(
        page.starts_with("<!doctype html>") && page.ends_with("</html>"),
        "{page}"
    );
    assert!(page.len() <= PAGE_MAX, "{} bytes", page.len());
    let elsewhere = page.replace("http://www.w3.org/2000/svg", "");
    for part in ["<script", "src=", "@import", "url("] {
        assert!(!elsewhere.contains(part), "{part}: {page}");
    }
    for secret in SECRETS.lines().filter(|line| !line.is_empty()) {
        assert!(!page.contains(secret), "the page has a secret");
    }
    page
}

#[test]
fn pages_show_results_and_escape_names() {
    let (folder, model) = model(HOSTILE);
    let (model, html) = (model.to_str().unwrap(), folder.path().join("a.html"));
    let path = html.to_str().unwrap();

    let text = succeed(["load", model, "--html", path]);
    assert!(
        text.contains(" tensors, "),
        "the report is printed too: {text}"
    );
    let shown = page(&html);
    let parts = [
        "complete",
        "Start",
        "first read",
        "Where the time went",
        "Reads",
        "Shards",
        "the largest first",
        "Machine",
        "kernel",
        "Options",
        "&#60;script&#62;alert(1)",
    ];
    for part in parts {
        assert!(shown.contains(part), "{part}: {shown}");
    }

    succeed(["doctor", model, "--html", path]);
    let shown = page(&html);
    for part in ["In order", "io_uring", "&#60;script&#62;alert(1)"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }

    let bench = ["bench", model, "--rounds", "1", "--no-fio", "--html", path];
    let sweep = ["--depth", "1,2", "--extent", "64KiB,128KiB"];
    succeed(bench.iter().chain(&sweep));
    let shown = page(&html);
    let parts = [
        "Comparison",
        "ceiling: raw reads",
        "Sweep",
        "extent \\ depth",
        "All 8 runs",
        "<svg",
    ];
    for part in parts {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    succeed(bench.iter().chain(&["--startup"]));
    assert!(page(&html).contains("process"));
}

#[test]
fn bad_path_fails_before_the_work() {
    let (folder, model) = model("model");
    let model = model.to_str().unwrap();
    let missing = folder.path().join("no/a.file");
    for flag in ["--html", "--trace"] {
        for command in ["load", "bench", "doctor"] {
            if (command, flag) == ("doctor", "--trace") {
                continue;
            }
            let output = run([command, model, flag, missing.to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(3), "{command} {flag}");
            assert_eq!(output.stdout, b"", "{command} {flag}");
            let text = stderr(&output);
            assert!(text.contains("create the directory first"), "{text}");
        }
    }
}

#[test]
fn two_exports_and_weights_are_not_one_file() {
    let (folder, model) = model("model");
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (one, same, shard) = (
        path("x"),
        path("model/../x"),
        path("model/model.safetensors"),
    );
    let weights = fs::read(&shard).unwrap();
    let model = model.to_str().unwrap();
    for (arguments, wanted) in [
        (
            &["load", model, "--html", &one, "--trace", &one][..],
            "of two exports",
        ),
        (
            &["load", model, "--html", &one, "--trace", &same],
            "of two exports",
        ),
        (
            &["bench", model, "--json", &one, "--csv", &one],
            "of two exports",
        ),
        (
            &["bench", model, "--markdown", &one, "--trace", &same],
            "of two exports",
        ),
        (&["load", model, "--html", &shard], "of a checkpoint"),
        (&["load", model, "--trace", &shard], "of a checkpoint"),
        (&["bench", model, "--json", &shard], "of a checkpoint"),
        (&["doctor", model, "--html", &shard], "of a checkpoint"),
    ] {
        let output = run(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(wanted), "{arguments:?}: {text}");
        assert!(!Path::new(&one).exists(), "{arguments:?}");
        assert!(fs::read(&shard).unwrap() == weights, "{arguments:?}");
    }
    let null = "/dev/null";
    succeed(["load", model, "--html", null, "--trace", null]);
}

#[test]
fn full_disk_is_an_error_after_the_report() {
    let (_folder, model) = model("model");
    let model = model.to_str().unwrap();
    for flag in ["--html", "--trace"] {
        let output = run(["load", model, flag, "/dev/full"]);
        let text = stderr(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("/dev/full: cannot write"), "{text}");
        assert!(
            text.contains("free some space, or write it elsewhere"),
            "{text}"
        );
    }
}

#[test]
fn existing_page_is_replaced_and_failure_has_a_page() {
    let (folder, model) = model("model");
    let html = folder.path().join("a.html");
    fs::write(&html, "before").unwrap();
    let path = html.to_str().unwrap();
    succeed(["load", model.to_str().unwrap(), "--html", path]);
    assert!(page(&html).contains("complete"));
    for command in ["load", "doctor"] {
        let missing = folder.path().join("gone");
        let output = run([command, missing.to_str().unwrap(), "--html", path]);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let shown = page(&html);
        assert!(shown.contains("gone") && shown.contains("fail"), "{shown}");
    }
    let names = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 2, "the model and the page");
}

#[test]
fn pages_and_traces_hide_secrets_of_environment_and_arguments() {
    let (folder, model) = model("model");
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (html, trace) = (path("a.html"), path("a.json"));
    let model = model.to_str().unwrap();
    let key = ["--store", "secret_access_key=hunter2"];
    let nowhere = "https://user:hunter2@127.0.0.1:1/m.safetensors?X-Amz-Signature=hunter2";
    let unknown = "ftp://user:hunter2@127.0.0.1:1/m";
    let store = ["--store", "header.x-key=hunter2", "--store", "retries=0"];
    let proxy = ["--store", "proxy=http://user:hunter2@127.0.0.1:1"];
    let both = ["--html", &html, "--trace", &trace];
    let mut loaded = 0;
    for (location, more) in [
        (model, &key[..]),
        (nowhere, &proxy[..]),
        (unknown, &proxy[..]),
    ] {
        let verify = format!("--verify={nowhere}");
        for arguments in [
            [&["load", location][..], &both].concat(),
            [&["load", location, &verify], &both[..]].concat(),
            [&["doctor", location], &both[..2]].concat(),
            [&["bench", location, "--rounds", "1"], &both[..]].concat(),
        ] {
            let mut command = command(&arguments);
            // Those of this test: variables of other tests name proxies for all hosts.
            let variables = VARIABLES
                .iter()
                .filter(|(name, _)| !name.ends_with("_PROXY"));
            command.envs(variables.copied()).args(store).args(more);
            command.env("TLOAD_STORE", "header.authorization=Bearer hunter2");
            let output = command.output().unwrap();
            crate::secrets::assert_none(arguments[0], &output);
            loaded += usize::from(output.status.success());
            page(Path::new(&html));
            let trace = fs::read_to_string(&trace).unwrap_or_default();
            for secret in SECRETS.lines().filter(|line| !line.is_empty()) {
                assert!(!trace.contains(secret), "the trace has a secret");
            }
        }
    }
    assert!(loaded >= 3, "only {loaded} commands succeeded");
}
