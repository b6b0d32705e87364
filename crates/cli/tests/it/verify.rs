//! `verify`: output, manifests and exit status.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde_json::Value;

use crate::{run, stderr, succeed};

/// Checkpoint of three shards.
struct Model {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Model {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        succeed([
            "synth",
            path.to_str().unwrap(),
            "--size",
            "2MiB",
            "--shards",
            "3",
        ]);
        Self {
            _folder: folder,
            path,
        }
    }

    fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Returns the path of a file as text.
    fn at(&self, name: &str) -> String {
        self.path.join(name).to_str().unwrap().to_owned()
    }

    fn shards(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.path).unwrap();
        let mut shards: Vec<_> = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "safetensors")
            })
            .collect();
        shards.sort();
        shards
    }
}

fn flip_last_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn written_manifest_is_compared_and_mismatches_are_named() {
    let model = Model::new();
    let text = succeed(["verify", model.text(), "--write"]);
    let manifest = model.at("tload-manifest.json");
    assert!(text.contains(&format!("wrote {manifest}")), "{text}");
    let text = succeed(["verify", model.text()]);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("file "), "{text}");
    assert!(
        lines[0].ends_with("verified by") || lines[0].contains("verified by"),
        "{text}"
    );
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.ends_with("matches"))
            .count(),
        4,
        "{text}"
    );

    let shards = model.shards();
    flip_last_bit(&shards[1]);
    let output = run(["verify", model.text()]);
    let (text, errors) = (
        String::from_utf8(output.stdout.clone()).unwrap(),
        stderr(&output),
    );
    assert_eq!(output.status.code(), Some(11), "{text}{errors}");
    let name = shards[1].file_name().unwrap().to_str().unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name}: tensor ")))
        .unwrap();
    for part in [
        "bytes ",
        "expected crc64nvme:",
        "(manifest ",
        "found crc64nvme:",
    ] {
        assert!(line.contains(part), "{part:?} is not in {line}");
    }
    assert!(
        errors.contains("error: ") && errors.contains(name),
        "{errors}"
    );
    assert!(errors.contains("hint: download the file again"), "{errors}");

    fs::remove_file(&shards[0]).unwrap();
    let output = run(["verify", model.text(), "--json"]);
    assert_eq!(output.status.code(), Some(11));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let outcomes: Vec<_> = report["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["missing", "differs", "matches", "matches"]);
    let mismatch = &report["files"][1]["mismatches"][0];
    assert!(
        mismatch["tensor"].is_string() && mismatch["range"][1].is_u64(),
        "{mismatch}"
    );
}

#[test]
fn existing_manifest_is_kept_unless_forced() {
    let model = Model::new();
    succeed(["verify", model.text(), "--write"]);
    let output = run(["verify", model.text(), "--write"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("already exists"),
        "{}",
        stderr(&output)
    );
    flip_last_bit(&model.shards()[0]);
    succeed(["verify", model.text(), "--write", "--force"]);
    succeed(["verify", model.text()]);
    let elsewhere = model.at("../elsewhere.json");
    succeed(["verify", model.text(), "--write", &elsewhere]);
    fs::remove_file(model.at("tload-manifest.json")).unwrap();
    succeed(["verify", model.text(), "--manifest", &elsewhere]);
    let output = run(["verify", model.text(), "--force"]);
    assert_eq!(
        output.status.code(),
        Some(2),
        "--force replaces what --write writes"
    );
}

#[test]
fn force_replaces_manifests_only() {
    let model = Model::new();
    let [manifest, link, folder, pipe] =
        ["m.json", "link", "folder", "pipe"].map(|name| model.at(&format!("../{name}")));
    succeed(["verify", model.text(), "--write", &manifest]);
    std::os::unix::fs::symlink(&manifest, &link).unwrap();
    fs::create_dir(&folder).unwrap();
    let rights = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, rights, 0).unwrap();
    let shard = model.shards().remove(0).to_str().unwrap().to_owned();
    for path in [shard, model.at("config.json"), link, folder, pipe] {
        let number = || fs::symlink_metadata(&path).unwrap().ino();
        let before = number();
        let output = run(["verify", model.text(), "--write", &path, "--force"]);
        assert_eq!(output.status.code(), Some(2), "{path}: {}", stderr(&output));
        assert_eq!((number(), output.stdout.len()), (before, 0), "{path}");
    }
    succeed(["verify", model.text(), "--write", &manifest, "--force"]);
    // A damaged one is known by its name.
    fs::write(model.at("tload-manifest.json"), "{").unwrap();
    succeed(["verify", model.text(), "--write", "--force"]);
    succeed(["verify", model.text()]);
}

#[test]
fn exit_statuses_match_error_kinds() {
    let model = Model::new();
    let output = run(["verify", model.text()]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.ends_with(": 4 files, nothing compared\n"), "{text}");
    let errors = stderr(&output);
    assert!(errors.contains("no digest is known for"), "{errors}");
    assert!(
        errors.contains("note: ") && errors.contains("there is no tload-manifest.json"),
        "{errors}"
    );
    for (arguments, status) in [
        (vec!["verify", "/nonexistent"], 3),
        (
            vec!["verify", model.text(), "--manifest", "/nonexistent"],
            3,
        ),
        (vec!["verify", "ftp://host/model"], 7),
        (vec!["verify"], 2),
    ] {
        assert_eq!(run(&arguments).status.code(), Some(status), "{arguments:?}");
    }
    fs::write(model.at("tload-manifest.json"), "{}").unwrap();
    assert_eq!(run(["verify", model.text()]).status.code(), Some(4));
    fs::write(model.at("tload-manifest.json"), r#"{"tload_manifest": 9}"#).unwrap();
    let output = run(["verify", model.text()]);
    assert_eq!(output.status.code(), Some(7));
    assert!(stderr(&output).contains("version 9"), "{}", stderr(&output));
}

#[test]
fn names_cannot_move_the_cursor() {
    let model = Model::new();
    let manifest = r#"{"tload_manifest": 1, "files": {"a\u001b[2Jb.safetensors": {"bytes": 1,
        "crc64nvme": "0000000000000000",
        "sha256": "0000000000000000000000000000000000000000000000000000000000000000"}}}"#;
    fs::write(model.at("tload-manifest.json"), manifest).unwrap();
    let output = run(["verify", model.text()]);
    assert_eq!(output.status.code(), Some(11));
    let all = [output.stdout.clone(), output.stderr.clone()].concat();
    assert!(!all.contains(&0x1b), "{}", String::from_utf8_lossy(&all));
}

/// Moves a shard elsewhere and puts a link to it in its place.
fn put_link(model: &Model) -> String {
    let shard = model.shards().remove(1);
    let outside = model.path.parent().unwrap().join("outside");
    fs::rename(&shard, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &shard).unwrap();
    shard.to_str().unwrap().to_owned()
}

#[test]
fn rejected_link_hint_names_flag() {
    let model = Model::new();
    succeed(["verify", model.text(), "--write"]);
    let link = put_link(&model);
    let output = run(["verify", model.text()]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = stderr(&output);
    for text in [&shown, &errors] {
        assert!(!text.contains("\\n"), "{text}");
        assert!(!text.contains("follow_symlinks"), "{text}");
        assert!(text.contains("--follow-symlinks"), "{text}");
        assert!(text.contains(&format!("{link}: a symbolic link")), "{text}");
    }
    assert!(errors.contains("\n  hint: "), "{errors}");
    succeed(["verify", model.text(), "--follow-symlinks"]);
}

#[test]
fn unwritable_target_fails_before_work_and_leaves_nothing() {
    let model = Model::new();
    let output = run(["verify", model.text(), "--write", &model.at("none/m.json")]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    let before = fs::read_dir(&model.path).unwrap().count();
    succeed(["verify", model.text(), "--write"]);
    assert_eq!(fs::read_dir(&model.path).unwrap().count(), before + 1);
}
