//! Tests of single steps of a copy.

use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::*;
use crate::{journal, record};

#[test]
fn cancelled_copy_keeps_what_was_recorded() {
    let source = Location::from_path("model");
    let control = CopyJob::new(&source, "target").control();
    Ongoing::add(&control.ongoing.bytes_recorded, 7);
    assert_eq!(control.progress().bytes_kept, 0);
    control.cancel();
    assert_eq!(control.progress().bytes_kept, 7);
    Ongoing::add(&control.ongoing.bytes_kept, 9);
    assert_eq!(control.progress().bytes_kept, 9);
}

#[test]
fn copy_goes_on_from_its_target_after_a_failed_download() {
    let copy = CopyJob::new(Location::from_path("model"), "target");
    let (ongoing, control) = (&copy.ongoing, copy.control());
    let download = ongoing.begin_download();
    Ongoing::add(&download.bytes_total, 100);
    for counter in [
        &download.bytes_read,
        &download.bytes_kept,
        &download.requests,
    ] {
        Ongoing::add(counter, 30);
    }
    Ongoing::add(&download.bytes_recorded, 30);
    Ongoing::add(&download.retries, 2);
    let hint = || {
        control
            .timed_out(Duration::from_secs(1))
            .hint()
            .map(str::to_owned)
    };
    assert!(hint().is_some_and(|hint| hint.contains("the hub's cache")));
    ongoing.end_download();
    Ongoing::add(&ongoing.bytes_total, 100);
    Ongoing::add(&ongoing.bytes_read, 100);
    let progress = control.progress();
    assert_eq!((progress.bytes_done, progress.bytes_total), (130, 130));
    control.cancel();
    assert_eq!(control.progress().bytes_kept, 0);
    Ongoing::add(&ongoing.bytes_kept, 9);
    assert!(
        hint().is_some_and(|hint| hint.contains("9 B are kept in target")),
        "{:?}",
        hint()
    );
    let report = copy.report(Instant::now(), None, Vec::new());
    assert_eq!((report.requests, report.retries), (30, 2));
}

/// Listings of some stores lack what only opening an object tells.
#[test]
fn files_that_may_be_there_need_no_space() {
    let target = tempfile::tempdir().expect("a folder");
    let root = TargetDir::open(target.path()).expect("opens");
    let source = Location::parse("s3://bucket/model").expect("a location");
    let origin = journal::Origin {
        source: source.join("a.bin").digest(""),
        len: 8 << 40,
        e_tag: Some("\"x\"".to_owned()),
        version: None,
        modified: (1, 0),
        is_settled: true,
        file: None,
    };
    let file = std::fs::File::create(target.path().join("a.bin")).expect("creates");
    let stat = rustix::fs::fstat(&file).expect("stats");
    let record = record::Record::new(&origin, &stat);
    if !record.attach(&file) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = rustix::fs::open(target.path(), flags, Mode::empty()).expect("opens");
        record.put_beside(&folder, "a.bin").expect("writes");
    }
    let absent = |listed: journal::Origin, force| {
        let options = CopyOptions {
            force,
            ..CopyOptions::default()
        };
        let entry = Entry {
            name: "a.bin".to_owned(),
            location: source.join("a.bin"),
            listed: Some(listed),
            opened: None,
        };
        let copy = CopyJob::new(&source, target.path()).options(options);
        let absent = copy.absent(vec![entry], &root);
        absent
            .map(|absent| absent.len())
            .map_err(|error| error.kind())
    };
    let without_tag = journal::Origin {
        e_tag: None,
        ..origin.clone()
    };
    let changed = journal::Origin {
        e_tag: Some("\"y\"".to_owned()),
        ..origin.clone()
    };
    assert_eq!(absent(origin, false), Ok(0));
    assert_eq!(absent(without_tag.clone(), false), Ok(1));
    assert_eq!(absent(without_tag, true), Err(ErrorKind::OutOfMemory));
    assert_eq!(absent(changed, false), Err(ErrorKind::OutOfMemory));
}
