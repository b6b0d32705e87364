//! Commands that write to object stores, with a real server.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tload_testbed::{Versitygw, require};

use crate::cp::tree;
use crate::{run, stderr, succeed};

/// Returns the options of a server for `--store`.
pub(crate) fn options(server: &Versitygw) -> Vec<String> {
    vec![
        format!("endpoint={}", server.endpoint()),
        format!("region={}", server.region()),
        format!("access_key_id={}", server.access_key()),
        format!("secret_access_key={}", server.secret_key()),
        "environment=false".to_owned(),
    ]
}

struct Place {
    server: Versitygw,
    folder: tempfile::TempDir,
}

impl Place {
    fn start() -> Option<Self> {
        let server = require(Versitygw::start())?;
        server.put("models", "elsewhere/object", b"x").unwrap();
        let folder = tempfile::tempdir().unwrap();
        Some(Self { server, folder })
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn run_with(&self, flag: &str, words: &[&str]) -> Output {
        let mut words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        for option in options(&self.server) {
            words.extend([flag.to_owned(), option]);
        }
        run(words)
    }

    fn fails(&self, words: &[&str], status: i32, wanted: &str) {
        let output = self.run_with("--store", words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {text}");
        assert!(text.contains(wanted), "{words:?}: {text}");
    }

    fn succeeds(&self, words: &[&str]) -> String {
        let output = self.run_with("--store", words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn digest(&self, location: &str) -> Value {
        let answer = self.succeeds(&["load", location, "--digest", "--json"]);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["digest"].clone()
    }
}

const SIZE: [&str; 4] = ["--size", "12MiB", "--shards", "3"];

#[test]
fn store_is_written_read_and_copied() {
    let Some(place) = Place::start() else { return };
    let (made, local) = ("s3://models/made", place.at("made"));
    let synth = |more: &[&'static str]| [&["synth", made][..], &SIZE, more].concat();
    succeed([&["synth", &local][..], &SIZE].concat());
    let said = place.succeeds(&synth(&[]));
    assert!(said.starts_with("s3://models/made: "), "{said}");
    assert_eq!(place.digest(made), place.digest(&local), "the same tensors");
    place.fails(&synth(&[]), 2, "there is a checkpoint");
    place.succeeds(&synth(&["--force", "--seed", "7"]));
    assert_ne!(place.digest(made), place.digest(&local));

    // A copy back and forth has the same files.
    let (copy, back) = ("s3://models/deep/copy", place.at("back"));
    let answer = place.succeeds(&["cp", &local, copy, "--json"]);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let files = tree(Path::new(&local));
    assert_eq!(answer["copied_files"], files.len(), "{answer}");
    let again = place.succeeds(&["cp", &local, copy]);
    assert!(again.contains("nothing to copy"), "{again}");
    place.succeeds(&["cp", copy, &back]);
    assert_eq!(tree(Path::new(&back)), files);
    place.fails(&["cp", &back, made], 2, "empty prefix");
    // From a directory, options of the target are enough; a source of another kind has its own.
    let output = place.run_with("--target-store", &["cp", &local, "s3://models/other"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let url = "http://127.0.0.1:1/model.safetensors";
    let words = ["cp", url, "s3://models/never", "--store", "retries=0"];
    let output = place.run_with("--target-store", &words);
    assert_eq!(output.status.code(), Some(9), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("127.0.0.1:1"),
        "{}",
        stderr(&output)
    );
    place.fails(&["cp", &local, "hf://a/b"], 7, "hf upload");
}

#[test]
fn manifest_is_written_to_the_store() {
    let Some(place) = Place::start() else { return };
    let made = "s3://models/made";
    place.succeeds(&[&["synth", made][..], &SIZE].concat());
    let said = place.succeeds(&["verify", made, "--write"]);
    let manifest = "s3://models/made/tload-manifest.json";
    assert!(
        said.contains(&format!("wrote {manifest}")) || said.contains(manifest),
        "{said}"
    );
    let verified = place.succeeds(&["verify", made, "--json"]);
    let verified: Value = serde_json::from_str(&verified).unwrap();
    for file in verified["files"].as_array().unwrap() {
        assert_eq!(file["outcome"], "matches", "{file}");
    }
    place.fails(&["verify", made, "--write"], 2, "already exists");
    place.succeeds(&["verify", made, "--write", "--force"]);
    place.succeeds(&["verify", made, "--write", "s3://models/manifests/made.json"]);
    place.succeeds(&[
        "verify",
        made,
        "--manifest",
        "s3://models/manifests/made.json",
    ]);
    place.fails(
        &["verify", made, "--write", "hf://a/b"],
        7,
        "the target is a URL that no manifest can be written to",
    );
}

#[test]
fn leftovers_are_removed_by_request_only() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let (path, left) = (model.to_str().unwrap(), ".model.tload-0123456789ab");
    succeed(["synth", path, "--preset", "tiny", "--size", "1MiB"]);
    std::fs::create_dir(folder.path().join(left)).unwrap();
    let refused = run(["rm", path]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    for flag in [
        "--cache-dir=x",
        "--cache-limit=1GiB",
        "--cache-check=never",
        "--hf-cache",
    ] {
        for words in [
            &["rm", path, "--incomplete", flag][..],
            &["synth", path, flag],
        ] {
            let refused = run(words);
            let text = stderr(&refused);
            assert_eq!(refused.status.code(), Some(2), "{words:?}: {text}");
            assert!(text.contains("has no use for a cache"), "{words:?}: {text}");
        }
    }
    assert!(folder.path().join(left).exists());
    // The directory in progress of a killed `seal`.
    let partial = ".model.0123456789ab.tload-partial";
    std::fs::create_dir(folder.path().join(partial)).unwrap();
    std::fs::write(folder.path().join(partial).join("x"), "x").unwrap();
    let said = succeed(["rm", path, "--incomplete"]);
    for left in [left, partial] {
        assert!(said.contains(left), "{said}");
        assert!(!folder.path().join(left).exists() && model.exists());
    }
    assert_eq!(said.matches("removed").count(), 2, "{said}");
    let missing = folder.path().join("none/deep/model");
    for path in [path, missing.to_str().unwrap()] {
        let said = succeed(["rm", path, "--incomplete"]);
        assert!(said.contains("nothing to remove"), "{said}");
    }
    assert!(!folder.path().join("none").exists());
}
