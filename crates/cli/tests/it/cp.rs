//! `cp` between directories: copied, skipped, replaced, resumed and refused files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use tload::verify::{Algorithm, Digest};

use crate::requirement::requirement;
use crate::{run, stderr, succeed};

/// Returns path and bytes of all files below a directory.
pub(crate) fn tree(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            let below = tree(&path).into_iter();
            files.extend(below.map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else {
            files.insert(name, fs::read(&path).unwrap());
        }
    }
    files
}

pub(crate) fn names(directory: &Path) -> Vec<String> {
    tree(directory).into_keys().collect()
}

fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn modified(path: &Path) -> (i64, i64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.mtime(), metadata.mtime_nsec())
}

/// Returns the output of `cp --json` for a copy that must succeed.
#[track_caller]
fn copy(source: &Path, target: &Path, more: &[&str]) -> Value {
    let mut arguments = vec![
        "cp",
        source.to_str().unwrap(),
        target.to_str().unwrap(),
        "--json",
    ];
    arguments.extend(more);
    serde_json::from_str(&succeed(arguments)).unwrap()
}

#[track_caller]
fn refused(arguments: &[&str], status: i32, wanted: &[&str]) {
    let output = run([&["cp"], arguments].concat());
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    for wanted in wanted {
        assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}");
    }
}

#[test]
fn copy_is_complete_and_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let (model, target) = (folder.path().join("model"), folder.path().join("a/copy"));
    succeed([
        "synth",
        model.to_str().unwrap(),
        "--size",
        "8MiB",
        "--shards",
        "3",
    ]);
    write(&model.join("deep/er/tokenizer.model"), "tokens");
    write(&model.join("empty.txt"), "");
    let wanted = tree(&model);
    write(&model.join(".gitattributes"), "x");
    write(&model.join(".cache/x.json"), "x");
    write(
        &model.join("x/.y.tload-partial"),
        "left by an interrupted copy",
    );

    let report = copy(&model, &target, &["--extent", "1MiB"]);
    assert_eq!(tree(&target), wanted);
    let bytes: usize = wanted.values().map(Vec::len).sum();
    assert_eq!(report["copied_bytes"], bytes);
    assert_eq!(report["copied_files"], wanted.len());
    for name in wanted.keys() {
        assert_eq!(
            modified(&target.join(name)),
            modified(&model.join(name)),
            "{name}"
        );
    }
    let digest = |path: &Path| succeed(["load", path.to_str().unwrap(), "--digest", "--json"]);
    let digest = |path| serde_json::from_str::<Value>(&digest(path)).unwrap()["digest"].clone();
    assert_eq!(digest(&target), digest(&model));

    // A file with the same length and another time is copied again, the others are not.
    let config = target.join("config.json");
    write(&config, vec![b' '; wanted["config.json"].len()]);
    let report = copy(&model, &target, &[]);
    assert_eq!(
        (&report["copied_files"], &report["skipped_files"]),
        (&json!(1), &json!(wanted.len() - 1))
    );
    assert_eq!(report["skipped_bytes"], bytes - wanted["config.json"].len());
    assert_eq!(tree(&target), wanted);

    let text = succeed([
        "cp",
        model.to_str().unwrap(),
        target.to_str().unwrap(),
        "--force",
    ]);
    assert!(
        text.contains(&format!("{} files copied", wanted.len())),
        "{text}"
    );
}

#[test]
fn patterns_and_single_files() {
    let folder = tempfile::tempdir().unwrap();
    let (model, target) = (folder.path().join("model"), folder.path().join("copy"));
    for name in [
        "a.json",
        "b.bin",
        "deep/c.json",
        ".hidden/d.json",
        ".e.json",
    ] {
        write(&model.join(name), name);
    }
    copy(
        &model,
        &target,
        &["--include", "*.json", "--exclude", "deep/*"],
    );
    assert_eq!(names(&target), ["a.json"]);
    copy(&model, &target, &["--include", "*.json", "--hidden"]);
    assert_eq!(
        names(&target),
        [".e.json", ".hidden/d.json", "a.json", "deep/c.json"]
    );
    let single = folder.path().join("single");
    copy(&model.join(".e.json"), &single, &[]);
    assert_eq!(names(&single), [".e.json"]);

    let (model, single) = (model.to_str().unwrap(), single.to_str().unwrap());
    refused(
        &[model, single, "--include", "*.txt"],
        3,
        &["nothing to copy", "hint: "],
    );
    refused(
        &[model, single, "--include", "[a"],
        2,
        &["glob \"[a\" is malformed"],
    );
    refused(&["/nonexistent/x", single], 3, &["/nonexistent/x"]);
    refused(
        &[model, &format!("{single}/.e.json")],
        2,
        &["is not a directory"],
    );
    refused(&[model, "https://host/x"], 7, &["the store's own tool"]);
    refused(&[model, single, "--extent", "1"], 2, &["--extent is 1"]);
}

#[test]
fn weights_that_a_load_would_not_read_alone_are_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    for (name, shards) in [("sharded", "2"), ("single", "1")] {
        succeed(["synth", &text(name), "--size", "1MiB", "--shards", shards]);
    }
    // A pipeline with a model in a subdirectory.
    fs::create_dir(path("pipeline")).unwrap();
    fs::rename(path("single"), path("pipeline/unet")).unwrap();
    copy(&path("sharded"), &path("copy/unet"), &[]);
    let before = tree(&path("copy"));
    let names = [
        "model-00001-of-00002.safetensors",
        "copy/unet: ",
        "--include",
    ];
    let (pipeline, target) = (text("pipeline"), text("copy"));
    refused(&[&pipeline, &target], 2, &names);
    refused(&[&pipeline, &target, "--dry-run"], 2, &names);
    assert_eq!(tree(&path("copy")), before);
    copy(&path("pipeline"), &path("copy"), &["--include", "*"]);
    assert_eq!(tree(&path("copy")).len(), before.len() + 1);

    // The index of the same model in more shards does not name the shards of the earlier copy.
    fs::remove_dir_all(path("sharded")).unwrap();
    succeed(["synth", &text("sharded"), "--size", "1MiB", "--shards", "3"]);
    fs::remove_file(path("copy/unet/model.safetensors")).unwrap();
    copy(&path("sharded"), &path("copy/unet"), &[]);
    // A file by its own path.
    copy(
        &path("pipeline/unet/model.safetensors"),
        &path("copy/unet"),
        &[],
    );
}

#[test]
fn directory_links_are_followed_except_cycles() {
    let folder = tempfile::tempdir().unwrap();
    let (model, target) = (folder.path().join("model"), folder.path().join("copy"));
    write(&model.join("step-1000/a.bin"), "a");
    symlink("step-1000", model.join("latest")).unwrap();
    symlink("..", model.join("step-1000/up")).unwrap();
    symlink(".", model.join("here")).unwrap();
    copy(&model, &target, &[]);
    assert_eq!(names(&target), ["latest/a.bin", "step-1000/a.bin"]);

    write(&model.join(["a"; 64].join("/")), "as deep as it may be");
    copy(&model, &target, &["--include", "a"]);
    write(&model.join(["b"; 65].join("/")), "deeper");
    let (model, target) = (model.to_str().unwrap(), target.to_str().unwrap());
    refused(&[model, target], 2, &["more than 64 deep", "hint: "]);
}

#[test]
fn excluded_files_are_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let (model, target) = (folder.path().join("model"), folder.path().join("copy"));
    write(&model.join("a.json"), "a");
    write(&model.join(".cache/x.json"), "x");
    symlink("nowhere", model.join(".cache/gone")).unwrap();
    symlink("nowhere", model.join(".gone")).unwrap();
    symlink("nowhere", model.join("gone.bin")).unwrap();
    for more in [["--exclude", "*.bin"], ["--include", "*.json"]] {
        copy(&model, &target, &more);
        assert_eq!(names(&target), ["a.json"]);
    }
    let (model, target) = (model.to_str().unwrap(), target.to_str().unwrap());
    refused(&[model, target], 3, &["gone.bin"]);
    refused(
        &[model, target, "--exclude", "gone.bin", "--hidden"],
        3,
        &["gone"],
    );
}

/// Copies a source of 12 KiB over a file in progress, whose journal lists the range `done`. That
/// range holds zeros, so that the test sees whether it was read again.
fn interrupted(folder: &Path, change: impl Fn(&mut Value)) -> (Vec<u8>, Vec<u8>) {
    interrupted_and(folder, change, || {})
}

fn interrupted_and(
    folder: &Path,
    change: impl Fn(&mut Value),
    then: impl Fn(),
) -> (Vec<u8>, Vec<u8>) {
    let (source, target) = (folder.join("model/a.bin"), folder.join("copy"));
    let bytes: Vec<u8> = (0..12_288u32)
        .map(|i| u8::try_from(i % 251 + 1).unwrap())
        .collect();
    write(&source, &bytes);
    let metadata = fs::metadata(&source).unwrap();
    // A path with its length, as all that selects the file.
    let path = source.to_str().unwrap();
    let mut selects = (path.len() as u64).to_le_bytes().to_vec();
    selects.extend(path.as_bytes());
    let digest = Digest::compute(Algorithm::Sha256, &selects).to_string();
    let mut journal = json!({
        "format": 3,
        "origin": {
            "source": digest.strip_prefix("sha256:"), "len": 12_288, "e_tag": null,
            "version": null, "is_settled": true,
            "modified": [metadata.mtime(), metadata.mtime_nsec()],
            "file": {
                "inode": metadata.ino(), "changed": [metadata.ctime(), metadata.ctime_nsec()],
            },
        },
        "done": [{"start": 4096, "end": 8192}],
    });
    change(&mut journal);
    write(&target.join(".a.bin.tload-partial"), vec![0; 12_288]);
    write(
        &target.join(".a.bin.tload-partial.json"),
        journal.to_string(),
    );
    then();
    let report = copy(&folder.join("model"), &target, &[]);
    assert_eq!(report["copied_files"], 1);
    assert_eq!(names(&target), ["a.bin"]);
    let copied = fs::read(target.join("a.bin")).unwrap();
    let resumed = report["resumed_bytes"].as_u64().unwrap();
    assert_eq!(report["copied_bytes"], 12_288 - resumed);
    assert_eq!(copied != bytes, resumed > 0);
    (bytes, copied)
}

#[test]
fn resumed_copy_reads_missing_bytes_only() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wanted, copied) = interrupted(folder.path(), |_| {});
    wanted[4096..8192].fill(0);
    assert!(
        copied == wanted,
        "what the journal vouches for was read again, or more was kept"
    );
}

#[test]
fn journal_of_other_source_is_ignored() {
    for (at, value) in [
        ("/origin/len", json!(12_287)),
        ("/origin/modified", json!([1, 2])),
        ("/origin/source", json!("0".repeat(64))),
        ("/origin/e_tag", json!("x")),
        ("/origin/file/inode", json!(1)),
        ("/origin/file/changed", json!([1, 2])),
        ("/origin/file", json!(null)),
        // An older version of tload wrote it.
        ("/format", json!(2)),
        ("/done/0/end", json!(12_289)),
        ("/done", json!("x")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (wanted, copied) = interrupted(folder.path(), |journal| {
            *journal.pointer_mut(at).unwrap() = value.clone();
        });
        assert!(copied == wanted, "{at}");
    }
}

/// Writes a file with the same time as all others, like Nix and reproducible builds.
fn write_at_epoch(path: &Path, bytes: &str) {
    write(path, bytes);
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH).unwrap();
}

#[test]
fn another_version_of_the_same_length_and_time_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let (model, target) = (folder.path().join("model"), folder.path().join("copy"));
    let read = || fs::read_to_string(target.join("a.bin")).unwrap();
    write_at_epoch(&model.join("a.bin"), "old");
    assert_eq!(copy(&model, &target, &[])["copied_files"], 1);
    assert_eq!(modified(&target.join("a.bin")), (0, 0));
    assert_eq!(copy(&model, &target, &[])["skipped_files"], 1);

    // Replaces the old file, as a download does.
    write_at_epoch(&folder.path().join("next"), "new");
    fs::rename(folder.path().join("next"), model.join("a.bin")).unwrap();
    assert_eq!(copy(&model, &target, &[])["copied_files"], 1);
    assert_eq!(read(), "new");
    assert_eq!(copy(&model, &target, &[])["skipped_files"], 1);

    // Overwrites the old file in place.
    write_at_epoch(&model.join("a.bin"), "wer");
    assert_eq!(copy(&model, &target, &[])["copied_files"], 1);
    assert_eq!(read(), "wer");
}

#[test]
fn changed_or_unrecorded_target_is_copied_again() {
    let folder = tempfile::tempdir().unwrap();
    let (model, target) = (folder.path().join("model"), folder.path().join("copy"));
    write_at_epoch(&model.join("a.bin"), "right");
    // A file of an older tload, or of another program, has no record of its source.
    write_at_epoch(&target.join("a.bin"), "other");
    assert_eq!(copy(&model, &target, &[])["copied_files"], 1);
    assert_eq!(names(&target), ["a.bin"]);

    let copied = target.join("a.bin");
    for change in [
        |copied: &Path| write_at_epoch(copied, "longer than before"),
        |copied: &Path| write(copied, "wrong"),
        |copied: &Path| {
            // Another file with the same length and time.
            write_at_epoch(&copied.with_extension("new"), "wrong");
            fs::rename(copied.with_extension("new"), copied).unwrap();
        },
    ] {
        change(&copied);
        assert_eq!(copy(&model, &target, &[])["copied_files"], 1);
        assert_eq!(fs::read_to_string(&copied).unwrap(), "right");
        assert_eq!(copy(&model, &target, &[])["skipped_files"], 1);
    }
    // The source by another path is the same file.
    symlink(&model, folder.path().join("link")).unwrap();
    let report = copy(&folder.path().join("link"), &target, &[]);
    assert_eq!(report["skipped_files"], 1);
}

#[test]
fn partial_file_of_other_user_is_rejected() {
    const OTHER: u32 = 54_321;
    let is_root = rustix::process::geteuid().is_root();
    let found = is_root
        .then_some(())
        .ok_or_else(|| "only root can give files to another user".to_owned());
    if requirement("root", found).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (model, target) = (folder.path().join("model"), folder.path().join("copy"));
    let partial = target.join(".a.bin.tload-partial");
    write(&model.join("a.bin"), "right");
    write(&partial, "wrong");
    chown(&partial, Some(OTHER), Some(OTHER)).unwrap();
    let arguments = [model.to_str().unwrap(), target.to_str().unwrap()];
    for more in [None, Some("--force")] {
        let arguments: Vec<&str> = arguments.into_iter().chain(more).collect();
        let wanted = ["another user: uid 54321, wanted 0", "hint: remove it"];
        refused(&arguments, 5, &wanted);
        assert_eq!(fs::read_to_string(&partial).unwrap(), "wrong");
        assert_eq!(names(&target), [".a.bin.tload-partial"]);
    }
    fs::remove_file(&partial).unwrap();

    // A finished file of another user is not trusted to be a copy either.
    copy(&model, &target, &[]);
    chown(target.join("a.bin"), Some(OTHER), Some(OTHER)).unwrap();
    assert_eq!(copy(&model, &target, &[])["copied_files"], 1);
    // The owner of the directory could put any file there.
    chown(target.join("a.bin"), Some(OTHER), Some(OTHER)).unwrap();
    chown(&target, Some(OTHER), Some(OTHER)).unwrap();
    assert_eq!(copy(&model, &target, &[])["skipped_files"], 1);
}

/// A journal is trusted only as far as it agrees with the file in progress, and only if both have
/// the same owner.
#[test]
fn journal_of_other_user_is_ignored() {
    let is_root = rustix::process::geteuid().is_root();
    let found = is_root
        .then_some(())
        .ok_or_else(|| "only root can give files to another user".to_owned());
    if requirement("root", found).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("copy/.a.bin.tload-partial.json");
    let (wanted, copied) = interrupted_and(
        folder.path(),
        |_| {},
        || {
            chown(&journal, Some(54_321), None).unwrap();
        },
    );
    assert!(copied == wanted);
}

#[test]
fn copy_does_not_write_through_links() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write(&path("model/deep/a.bin"), "new");
    write(&path("outside/a.bin"), "old");
    fs::create_dir(path("copy")).unwrap();
    symlink(path("outside"), path("copy/deep")).unwrap();
    let (model, copy_path) = (path("model"), path("copy"));
    let arguments = [model.to_str().unwrap(), copy_path.to_str().unwrap()];
    for more in [None, Some("--force")] {
        let arguments: Vec<&str> = arguments.into_iter().chain(more).collect();
        refused(
            &arguments,
            2,
            &["\"deep/a.bin\"", "symbolic link", "hint: remove it"],
        );
    }
    assert_eq!(fs::read_to_string(path("outside/a.bin")).unwrap(), "old");
    assert_eq!(names(&path("outside")), ["a.bin"]);

    // A link under the final name is replaced; one under the name in progress is refused.
    fs::remove_file(path("copy/deep")).unwrap();
    fs::create_dir(path("copy/deep")).unwrap();
    symlink(path("outside/a.bin"), path("copy/deep/a.bin")).unwrap();
    copy(&path("model"), &path("copy"), &[]);
    assert!(!path("copy/deep/a.bin").is_symlink());
    symlink(
        path("outside/a.bin"),
        path("copy/deep/.a.bin.tload-partial"),
    )
    .unwrap();
    refused(&[arguments[0], arguments[1], "--force"], 1, &["deep/a.bin"]);
    fs::remove_file(path("copy/deep/.a.bin.tload-partial")).unwrap();
    fs::hard_link(
        path("outside/a.bin"),
        path("copy/deep/.a.bin.tload-partial"),
    )
    .unwrap();
    refused(
        &[arguments[0], arguments[1], "--force"],
        2,
        &["has hard links"],
    );
    assert_eq!(fs::read_to_string(path("outside/a.bin")).unwrap(), "old");
    assert_eq!(fs::read_to_string(path("copy/deep/a.bin")).unwrap(), "new");
}

#[test]
fn copy_larger_than_free_space_is_rejected_before_first_write() {
    let folder = tempfile::tempdir().unwrap();
    let (model, target) = (folder.path().join("model"), folder.path().join("copy"));
    write(&model.join("a.bin"), "");
    let sparse = fs::File::options()
        .write(true)
        .open(model.join("a.bin"))
        .unwrap();
    sparse.set_len(8 << 40).unwrap();
    refused(
        &[model.to_str().unwrap(), target.to_str().unwrap()],
        6,
        &[
            "needs 8.0 TiB (8796093022208 bytes)",
            "are free",
            "hint: free some space",
        ],
    );
    assert_eq!(names(&target), Vec::<String>::new());
}

/// A name that the target's file system does not take keeps no other file from being copied.
#[test]
fn names_that_are_too_long_are_left_out_and_fail_the_copy() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("from"), directory.path().join("to"));
    let fits = format!("{}.bin", "f".repeat(227));
    // As long as a name may be; that of its file in progress is not possible.
    let long = format!("{}.bin", "n".repeat(251));
    for name in ["a", "z/config.json", &fits, &long] {
        write(&source.join(name), "{}");
    }
    let paths = [source.to_str().unwrap(), target.to_str().unwrap()];
    refused(
        &paths,
        2,
        &["nnnn", "everything else was copied", "--skip-unusable"],
    );
    assert_eq!(names(&target), ["a", &fits, "z/config.json"]);
    let plan = copy(&source, &target, &["--dry-run"]);
    assert_eq!(plan["unusable"], json!([long]));
    let elsewhere = directory.path().join("none/yet");
    let plan = copy(&source, &elsewhere, &["--dry-run"]);
    assert_eq!(
        (&plan["unusable"], elsewhere.exists()),
        (&json!([long]), false)
    );
    let report = copy(&source, &target, &["--skip-unusable"]);
    assert_eq!(
        (&report["unusable"], &report["skipped_files"]),
        (&json!([long]), &json!(3))
    );
}

/// Names that are not UTF-8 cannot be shown or recorded.
#[test]
fn names_that_cannot_be_copied_are_left_out_and_fail_the_copy() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("from"), directory.path().join("to"));
    write(&source.join("a/config.json"), "{}");
    let odd = source.join(OsStr::from_bytes(b"odd\xff.bin"));
    if fs::write(&odd, "x").is_err() {
        // Some file systems have no such names.
        return;
    }
    let paths = [source.to_str().unwrap(), target.to_str().unwrap()];
    refused(
        &paths,
        2,
        &[
            "odd\u{fffd}.bin",
            "everything else was copied",
            "--skip-unusable",
        ],
    );
    assert_eq!(names(&target), ["a/config.json"]);
    let plan = copy(&source, &target, &["--dry-run"]);
    assert_eq!(plan["unusable"], json!(["odd\u{fffd}.bin"]));
    let report = copy(&source, &target, &["--skip-unusable"]);
    assert_eq!(report["unusable"], json!(["odd\u{fffd}.bin"]));
    assert_eq!(report["skipped_files"], 1);
    let report = copy(&source, &target, &["--exclude", "odd*"]);
    assert_eq!(report["unusable"], json!([]));
    let report = copy(&source, &target, &["--include", "*.json"]);
    assert_eq!(report["unusable"], json!([]));
}
