//! Checkpoints that take the place of others, and writers that meet.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use tempfile::tempdir;
use tload_base::error::ErrorKind;
use tload_base::options::{Location, StoreOptions};
use tload_write::{WriteOptions, Writer, remove_incomplete};

use crate::expected::{fill, specs, tensors};
use crate::files::{names, read, read_file, write};

fn replacing() -> WriteOptions {
    WriteOptions::new().replace(true).max_shard_bytes(100_000)
}

#[test]
fn replaced_checkpoint_keeps_files_beside_it() {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("model");
    let (old, new) = (tensors(9, 60_000, 1), tensors(7, 50_000, 2));
    write(&path, &old, replacing().manifest(true)).expect("is written");
    fs::write(path.join("config.json"), "{}").expect("is written");
    fs::create_dir_all(path.join("original/deep")).expect("is created");
    fs::write(path.join("original/deep/params.safetensors"), "x").expect("is written");
    symlink("config.json", path.join("link")).expect("is linked");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("is set");

    let report = write(&path, &new, replacing()).expect("is written");
    assert_eq!(read(&path), new);
    let mut wanted = report.files.clone();
    wanted.extend(
        [
            "config.json",
            "link",
            "model.safetensors.index.json",
            "original",
        ]
        .map(str::to_owned),
    );
    wanted.sort();
    assert_eq!(names(&path), wanted);
    assert_eq!(
        fs::read(path.join("original/deep/params.safetensors")).expect("is kept"),
        b"x"
    );
    assert_eq!(
        fs::read_link(path.join("link")).expect("is a link"),
        Path::new("config.json")
    );
    let mode = fs::metadata(&path).expect("is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o750);

    // The old one is kept, whole, until the explicit step.
    let kept = report.replaced.expect("is kept");
    assert_eq!(read(Path::new(&kept)), old);
    let removed =
        remove_incomplete(&Location::from_path(&path), &StoreOptions::new()).expect("is removed");
    assert_eq!(removed.len(), 1);
    assert_eq!(
        (removed[0].location.as_str(), removed[0].removed),
        (kept.as_str(), true)
    );
    assert_eq!(names(folder.path()), ["model"]);
    assert_eq!(read(&path), new);
}

#[test]
fn links_and_empty_directories_are_written_through() {
    let folder = tempdir().expect("a folder");
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    fs::create_dir(&real).expect("is created");
    symlink(&real, &link).expect("is linked");
    let tensors = tensors(4, 1000, 1);
    let report = write(&link, &tensors, WriteOptions::new()).expect("is written");
    assert_eq!(report.replaced, None);
    assert_eq!(read(&real), tensors);
    assert_eq!(names(folder.path()), ["link", "real"]);
    let file = folder.path().join("empty.safetensors");
    fs::write(&file, "").expect("is written");
    write(&file, &tensors, WriteOptions::new()).expect("is written");
    assert_eq!(read_file(&file), tensors);
}

#[test]
fn plain_names_do_not_replace_shards() {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("model");
    let tensors = tensors(4, 1000, 1);
    write(&path, &tensors, replacing().plain_names(true)).expect("is new");
    let error = write(&path, &tensors, replacing().plain_names(true)).expect_err("is not empty");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
}

/// One of two writers wins, and the other one's error names it.
#[test]
fn second_of_two_writers_fails() {
    let folder = tempdir().expect("a folder");
    let (old, first, second) = (tensors(3, 900, 1), tensors(4, 1000, 2), tensors(5, 1100, 3));
    for is_replaced in [false, true] {
        for name in ["model", "file.safetensors"] {
            let path = folder.path().join(format!("{is_replaced}.{name}"));
            let is_file = name == "file.safetensors";
            if is_replaced {
                write(&path, &old, replacing()).expect("is written");
            }
            let location = Location::from_path(&path);
            let begin = |tensors| {
                let writer = Writer::planned(&location, specs(tensors), replacing());
                let mut writer = writer.expect("begins");
                fill(&mut writer, tensors).expect("is written");
                writer
            };
            let (winner, loser) = (begin(&first), begin(&second));
            let report = winner.finish().expect("wins");
            let error = loser.finish().expect_err("loses");
            assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
            assert!(error.to_string().contains(&report.id), "{error}");
            let found = if is_file {
                read_file(&path)
            } else {
                read(&path)
            };
            assert_eq!(found, first);
            remove_incomplete(&location, &StoreOptions::new()).expect("removes the old one");
        }
    }
    assert_eq!(names(folder.path()).len(), 4);
}

#[test]
fn writers_at_the_same_time_leave_one_checkpoint() {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("model");
    let models: Vec<_> = (0..4).map(|seed| tensors(4, 20_000, seed)).collect();
    for round in 0..20 {
        let wins = std::thread::scope(|scope| {
            let writers: Vec<_> = models
                .iter()
                .map(|model| scope.spawn(|| write(&path, model, replacing())))
                .collect();
            let outcomes = writers.into_iter().map(|it| it.join().expect("no panic"));
            outcomes
                .map(|outcome| match outcome {
                    Ok(report) => Some(report.id),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
                        None
                    }
                })
                .collect::<Vec<_>>()
        });
        assert!(wins.iter().any(Option::is_some), "round {round}");
        let found = read(&path);
        let index = models.iter().position(|model| *model == found);
        assert!(wins[index.expect("one of the models")].is_some());
    }
    remove_incomplete(&Location::from_path(&path), &StoreOptions::new())
        .expect("removes the old ones");
    assert_eq!(names(folder.path()), ["model"]);
}

#[test]
fn running_writer_keeps_its_files() {
    let folder = tempdir().expect("a folder");
    let location = Location::from_path(folder.path().join("model"));
    let tensors = tensors(4, 1000, 1);
    let begun = Writer::planned(&location, specs(&tensors), WriteOptions::new());
    let mut writer = begun.expect("begins");
    let found = remove_incomplete(&location, &StoreOptions::new()).expect("looks");
    assert_eq!(
        found.iter().map(|it| it.removed).collect::<Vec<_>>(),
        [false]
    );
    // Names that are only similar are not touched.
    fs::create_dir(folder.path().join(".model.tload-mine")).expect("is created");
    fs::create_dir(folder.path().join(".models.tload-0123456789ab")).expect("is created");
    remove_incomplete(&location, &StoreOptions::new()).expect("looks");
    assert_eq!(names(folder.path()).len(), 3);
    fill(&mut writer, &tensors).expect("is written");
    writer.finish().expect("is written");
    assert_eq!(read(location.as_path().expect("a path")), tensors);
}

/// Returns the one stage beside `name`.
fn stage(folder: &Path, name: &str) -> std::path::PathBuf {
    let prefix = format!(".{name}.tload-");
    let mut names = names(folder).into_iter();
    folder.join(names.find(|it| it.starts_with(&prefix)).expect("is there"))
}

fn lock(path: &Path) -> fs::File {
    let file = fs::File::open(path).expect("is opened");
    flock(&file, FlockOperation::LockExclusive).expect("is locked");
    file
}

#[test]
fn files_made_at_the_last_moment_are_kept() {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("model");
    write(&path, &tensors(3, 900, 1), replacing()).expect("is written");
    fs::create_dir(path.join("original")).expect("is created");
    fs::write(path.join("config.json"), "{}").expect("is written");
    let (location, new) = (Location::from_path(&path), tensors(4, 1000, 2));
    let begun = Writer::planned(&location, specs(&new), replacing());
    let mut writer = begun.expect("begins");
    fill(&mut writer, &new).expect("is written");
    // The writer waits for the lock once it has linked what is there.
    let held = lock(&path);
    let stage = stage(folder.path(), "model");
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| writer.finish());
        let is_linked = || {
            ["config.json", "original"]
                .iter()
                .all(|name| stage.join(name).exists())
        };
        while !is_linked() {
            assert!(!ended.is_finished(), "it waits");
            std::thread::yield_now();
        }
        for name in ["late.json", "original/late"] {
            fs::write(path.join(name), name).expect("is written");
        }
        symlink("late.json", path.join("link")).expect("is linked");
        drop(held);
        ended.join().expect("no panic").expect("is written");
    });
    assert_eq!(read(&path), new);
    for name in ["late.json", "original/late"] {
        assert_eq!(fs::read_to_string(path.join(name)).expect("is kept"), name);
    }
    assert_eq!(
        fs::read_to_string(path.join("link")).expect("is kept"),
        "late.json"
    );
}

/// A program that runs under `flock DIRECTORY` has the lock until it ends.
#[test]
fn locked_destinations_are_errors() {
    let folder = tempdir().expect("a folder");
    for name in ["model", "file.safetensors"] {
        let path = folder.path().join(name);
        let (old, new) = (tensors(3, 900, 1), tensors(4, 1000, 2));
        write(&path, &old, replacing()).expect("is written");
        let location = Location::from_path(&path);
        let begin = || Writer::planned(&location, specs(&new), replacing());
        let mut writer = begin().expect("begins");
        fill(&mut writer, &new).expect("is written");
        let held = lock(&path);
        let errors = [
            begin().expect_err("is locked"),
            writer.finish().expect_err("is locked"),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert!(error.to_string().contains("locked"), "{error}");
        }
        drop(held);
        let report = write(&path, &new, replacing()).expect("is written");
        let kept = report.replaced.map(|path| read(Path::new(&path)));
        assert!(kept.is_none_or(|kept| kept == old));
    }
}

#[test]
fn private_directories_are_not_readable_while_they_are_written() {
    let mode = |path: &Path| {
        let metadata = fs::metadata(path).expect("is there");
        metadata.permissions().mode() & 0o7777
    };
    let folder = tempdir().expect("a folder");
    let usual = folder.path().join("usual");
    fs::create_dir(&usual).expect("is created");
    for wanted in [None, Some(0o700), Some(0o2750)] {
        let name = format!("{wanted:?}");
        let path = folder.path().join(&name);
        if let Some(mode) = wanted {
            write(&path, &tensors(3, 900, 1), replacing()).expect("is written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("is set");
        }
        let (location, new) = (Location::from_path(&path), tensors(4, 1000, 2));
        let mut writer = Writer::planned(&location, specs(&new), replacing()).expect("begins");
        fill(&mut writer, &new).expect("is written");
        assert_eq!(mode(&stage(folder.path(), &name)) & 0o777, 0o700);
        writer.finish().expect("is written");
        assert_eq!(
            mode(&path),
            wanted.unwrap_or_else(|| mode(&usual)),
            "{name}"
        );
    }
}

/// The root of a file system cannot be renamed: that is known before anything is written.
#[cfg(target_os = "linux")]
#[test]
fn mount_points_are_refused() {
    let begun = Writer::create(&Location::from_path("/proc"), replacing());
    let error = begun.expect_err("is a mount point");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    assert!(
        error.to_string().contains("root of a file system"),
        "{error}"
    );
}
