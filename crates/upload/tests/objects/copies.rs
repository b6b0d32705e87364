//! Copies that succeed, that have nothing to do, and that are refused.

use std::fs;

use tempfile::tempdir;
use tload_base::error::ErrorKind;
use tload_copy::{CopyAction, CopyOptions};
use tload_upload::UploadJob;
use tload_write::{WriteOptions, Writer};

use crate::expected::{specs, tensors};
use crate::model::{copy, copy_with, stored, total, write_model};
use crate::sites::{azurite, moto, on_each, versitygw};

#[test]
fn copy_is_complete_and_not_repeated() {
    on_each(|site| {
        let folder = tempdir().expect("a folder");
        let files = write_model(folder.path(), 1);
        let report = copy(folder.path(), site, "copied").expect(site.name);
        assert!(stored(site, "copied") == files, "{}", site.name);
        assert_eq!(report.copied_files, files.len() as u64);
        assert_eq!(report.copied_bytes, total(&files));
        let objects = site.objects("copied");
        assert!(!objects.contains_key(".tload-write"), "the claim is gone");

        let again = copy(folder.path(), site, "copied").expect(site.name);
        assert_eq!((again.copied_files, again.copied_bytes), (0, 0));
        assert_eq!(again.skipped_files, files.len() as u64);
        assert_eq!(again.skipped_bytes, total(&files));

        // Another state of the source must not be mixed with this one.
        fs::write(folder.path().join("config.json"), "changed").expect("is written");
        let error = copy(folder.path(), site, "copied").expect_err("is there");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        assert!(error.to_string().contains("config.json"), "{error}");
        assert!(stored(site, "copied") == files);
    });
}

#[test]
fn objects_are_copied_from_store_to_store() {
    let Some(from) = versitygw() else { return };
    let folder = tempdir().expect("a folder");
    let files = write_model(folder.path(), 2);
    copy(folder.path(), &from, "source").expect("is copied");
    for to in [moto(), azurite()].into_iter().flatten() {
        let job = || {
            UploadJob::new(from.location("source"), to.location("target"))
                .store(from.options())
                .target_store(to.options())
        };
        let report = job().run().expect(to.name);
        assert_eq!(report.copied_bytes, total(&files));
        assert!(stored(&to, "target") == files, "{}", to.name);
        let again = job().run().expect(to.name);
        assert_eq!(again.skipped_files, files.len() as u64, "{}", to.name);
    }
    // Within one store, and not into itself.
    copy(from.location("source"), &from, "beside").expect("is copied");
    assert!(stored(&from, "beside") == files);
    for below in ["source", "source/deep/x"] {
        let error = copy(from.location("source"), &from, below).expect_err("is the source");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    }
}

#[test]
fn prefix_that_is_not_empty_is_refused() {
    on_each(|site| {
        let folder = tempdir().expect("a folder");
        write_model(folder.path(), 3);
        site.put("file/notes.txt", b"x");
        site.put("folder/deep/notes.txt", b"x");
        for prefix in ["file", "folder"] {
            let error = copy(folder.path(), site, prefix).expect_err("is not empty");
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        }
        assert_eq!(site.objects("file").len(), 1);
        let error = copy(folder.path(), site, "a.safetensors").expect_err("an object");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    });
}

/// A writer of plain names and a copy keep each other off, and tell who is there.
#[test]
fn writer_and_copy_do_not_meet() {
    on_each(|site| {
        let folder = tempdir().expect("a folder");
        write_model(folder.path(), 4);
        let options = WriteOptions::new().store(site.options()).plain_names(true);
        let location = site.location("claimed");
        let begin = || Writer::planned(&location, specs(&tensors(3, 900, 1)), options.clone());
        let writer = begin().expect("begins");
        let claim = site.objects("claimed")[".tload-write"].clone();
        let error = copy(folder.path(), site, "claimed").expect_err("is claimed");
        assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
        let id = String::from_utf8(claim).expect("text");
        assert!(error.to_string().contains(&id), "{error}");
        drop(writer);
        copy(folder.path(), site, "claimed").expect(site.name);
        let error = begin().expect_err("is not empty");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    });
}

#[test]
fn dry_run_writes_nothing_and_tells_what_a_copy_would_do() {
    on_each(|site| {
        let folder = tempdir().expect("a folder");
        let files = write_model(folder.path(), 5);
        let dry = || {
            let options = CopyOptions::default().dry_run(true);
            copy_with(folder.path(), site, "dry", site.options(), options).expect(site.name)
        };
        let plan = dry().plan.expect("a plan");
        assert_eq!(plan.needed_bytes, total(&files));
        assert!(plan.files.iter().all(|it| it.action == CopyAction::Copy));
        assert!(site.objects("dry").is_empty(), "{}", site.name);
        copy(folder.path(), site, "dry").expect(site.name);
        let plan = dry().plan.expect("a plan");
        assert_eq!(plan.needed_bytes, 0);
        assert!(plan.files.iter().all(|it| it.action == CopyAction::Skip));
        assert_eq!(plan.files.len(), files.len());
    });
}
