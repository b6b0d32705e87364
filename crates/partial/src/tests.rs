//! Names of files after each way in which writing can go.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use tload_base::error::ErrorKind;

use super::{Partial, beside, remove_leftovers};

fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("a file")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("UTF-8");
    let mut names: Vec<_> = entries.map(|entry| name(entry.expect("listed"))).collect();
    names.sort();
    names
}

fn put(path: &Path, text: &str, may_replace: bool) -> tload_base::error::Result<()> {
    let mut partial = Partial::new(path)?;
    partial
        .create_file()?
        .write_all(text.as_bytes())
        .expect("room");
    partial.complete(may_replace)
}

#[test]
fn a_file_has_its_name_when_it_is_complete_and_not_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.json");
    let mut partial = Partial::new(&path).expect("a file's path");
    partial.refuse_existing().expect("is not there yet");
    assert!(names(folder.path()).is_empty());
    partial
        .create_file()
        .expect("room")
        .write_all(b"one")
        .expect("room");
    assert_eq!(
        names(folder.path()),
        [beside(&path).file_name().unwrap().to_str().unwrap()]
    );
    partial.complete(false).expect("the first");
    assert_eq!(
        (names(folder.path()), text(&path)),
        (vec!["m.json".to_owned()], "one".to_owned())
    );

    let error = put(&path, "two", false).expect_err("there is one");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(
        (names(folder.path()).len(), text(&path)),
        (1, "one".to_owned())
    );
    put(&path, "three", true).expect("replaces");
    assert_eq!(
        (names(folder.path()).len(), text(&path)),
        (1, "three".to_owned())
    );

    let mut dropped = Partial::new(&path).expect("a file's path");
    let _ = dropped.create_file().expect("room");
    drop(dropped);
    assert_eq!(
        (names(folder.path()).len(), text(&path)),
        (1, "three".to_owned())
    );
}

#[test]
fn a_folder_has_its_name_when_it_is_complete_and_not_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out");
    let begin = || {
        let mut partial = Partial::new(&path).expect("a folder's path");
        partial.create_folder().expect("room");
        let mode = fs::metadata(partial.beside()).expect("there").mode();
        assert_eq!(mode & 0o777, 0o700, "others may not look into it");
        fs::write(partial.beside().join("x"), "x").expect("room");
        partial
    };
    drop(begin());
    assert!(names(folder.path()).is_empty());
    let partial = begin();
    // An empty directory: a plain rename would replace it.
    fs::create_dir(&path).expect("room");
    let error = partial.complete(false).expect_err("there is one");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!((names(folder.path()).len(), names(&path).len()), (1, 0));
    fs::remove_dir(&path).expect("empty");
    begin().complete(false).expect("the first");
    assert_eq!((names(folder.path()).len(), names(&path).len()), (1, 1));
    let plain = folder.path().join("plain");
    fs::create_dir(&plain).expect("room");
    let mode = |path: &Path| fs::metadata(path).expect("there").mode();
    assert_eq!(mode(&path), mode(&plain), "as other directories");
}

#[test]
fn paths_that_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, kind) in [
        ("..", ErrorKind::InvalidRequest),
        ("none/m.json", ErrorKind::NotFound),
    ] {
        let error = put(&folder.path().join(name), "x", true).expect_err(name);
        assert_eq!(error.kind(), kind, "{error}");
    }
}

/// Only files of this name that no process has locked are removed.
#[test]
fn leftovers_of_killed_processes_are_removed_by_the_next_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let left = ".m.json.0123456789ab.tload-partial";
    let running = ".m.json.0123456789ac.tload-partial";
    let kept = [
        ".m.json.tload-partial",
        ".m.json.0123456789.tload-partial",
        ".m.json.0123456789ag.tload-partial",
        ".m.json.0123456789ab.tload-partial.json",
        ".other.0123456789ab.tload-partial",
        "m.json.0123456789ab.tload-partial",
    ];
    for name in kept.iter().chain([&left, &running]) {
        fs::write(at(name), "left").expect("room");
    }
    let link = ".m.json.0123456789ad.tload-partial";
    symlink(at(kept[0]), at(link)).expect("room");
    let folders = [
        ".m.json.0123456789ae.tload-partial",
        ".m.json.0123456789af.tload-partial",
    ];
    for name in folders {
        fs::create_dir(at(name)).expect("room");
        fs::write(at(name).join("x"), "x").expect("room");
    }
    let [_, running_folder] = folders;
    let held_folder = super::open_folder(&at(running_folder)).expect("there");
    flock(&held_folder, FlockOperation::NonBlockingLockExclusive).expect("free");
    let held = File::options()
        .write(true)
        .open(at(running))
        .expect("there");
    flock(&held, FlockOperation::NonBlockingLockExclusive).expect("free");

    put(&at("m.json"), "text", false).expect("writes");
    let mut wanted: Vec<_> = kept
        .iter()
        .chain([&running, &link, &running_folder])
        .copied()
        .collect();
    wanted.push("m.json");
    wanted.sort_unstable();
    assert_eq!(names(folder.path()), wanted);
    assert_eq!(text(&at(kept[0])), "left");
    drop((held, held_folder));
    let mut removed = remove_leftovers(&at("m.json"));
    removed.sort();
    assert_eq!(removed, [at(running), at(running_folder)]);
    assert!(!names(folder.path()).contains(&running.to_owned()));
}

#[test]
fn a_name_in_progress_is_not_written_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.json");
    let mut first = Partial::new(&path).expect("a file's path");
    first
        .create_file()
        .expect("room")
        .write_all(b"first")
        .expect("room");
    put(&path, "second", true).expect_err("this process writes it already");
    first.complete(false).expect("is still there");
    assert_eq!(text(&path), "first");
}
