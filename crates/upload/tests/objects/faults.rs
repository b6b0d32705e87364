//! Requests that fail in the middle of a copy, and what the next copy goes on from.

use std::fs;

use tempfile::tempdir;
use tload_base::error::ErrorKind;
use tload_base::options::StoreOptions;
use tload_copy::CopyOptions;
use tload_upload::UploadJob;
use tload_write::objects::Client;
use tload_write::{WriteOptions, Writer};

use crate::expected::{specs, tensors};
use crate::model::{INDEX, copy, copy_with, known_bytes, stored, total, write_model};
use crate::proxy::{Failure, Proxy};
use crate::sites::{Site, moto, versitygw};

fn through(proxy: &Proxy, site: &Site, retries: &str) -> StoreOptions {
    let pairs = site.pairs.iter().map(|(key, value)| match &**key {
        "endpoint" => (&**key, &*proxy.url),
        _ => (&**key, &**value),
    });
    StoreOptions::from_pairs(pairs.chain([("retries", retries)])).expect("valid")
}

/// One part at a time, so that it is known which have been sent.
fn one_by_one() -> CopyOptions {
    CopyOptions::default().depth(1)
}

fn servers() -> impl Iterator<Item = Site> {
    [versitygw(), moto()].into_iter().flatten()
}

/// Also where the answer to a request that succeeded is lost.
#[test]
fn failures_that_pass_are_retried() {
    for site in servers() {
        let folder = tempdir().expect("a folder");
        let files = write_model(folder.path(), 1);
        let proxy = Proxy::before(&site.address);
        for (at, failure) in [
            Failure::LostAnswer,
            Failure::LostRequest,
            Failure::Throttled,
        ]
        .into_iter()
        .enumerate()
        {
            for (number, request) in [
                "PUT .tload-write",
                "POST uploads",
                "PUT partNumber=2&",
                "POST uploadId=",
                "PUT config.json",
                "PUT index.json",
                "PUT .tload-copied",
            ]
            .into_iter()
            .enumerate()
            {
                let prefix = format!("retried/{at}/{number}");
                proxy.fail(request, failure, 2);
                let options = through(&proxy, &site, "8");
                let copied = copy_with(folder.path(), &site, &prefix, options, one_by_one());
                copied
                    .unwrap_or_else(|error| panic!("{} {failure:?} {request}: {error}", site.name));
                assert_eq!(proxy.left(), 0, "{failure:?} {request}");
                assert!(stored(&site, &prefix) == files, "{failure:?} {request}");
            }
        }
    }
}

/// Lets a copy fail at its third part, and returns the bytes that the journal has.
fn fail(site: &Site, proxy: &Proxy, prefix: &str, folder: &std::path::Path) {
    proxy.fail("PUT partNumber=3&", Failure::Expired, 1000);
    let options = through(proxy, site, "1");
    let error = copy_with(folder, site, prefix, options, one_by_one()).expect_err("fails");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("model-1.safetensors"), "{error}");
    assert!(proxy.left() > 900);
    assert!(!site.objects(prefix).contains_key(INDEX));
}

#[test]
fn failed_copy_goes_on_with_what_was_sent() {
    for site in servers() {
        let folder = tempdir().expect("a folder");
        let files = write_model(folder.path(), 2);
        let proxy = Proxy::before(&site.address);
        fail(&site, &proxy, "failed", folder.path());
        let known = known_bytes(&site, "failed", &files);
        assert!(known >= 16 << 20, "{known}");
        let report = copy(folder.path(), &site, "failed").expect(site.name);
        assert!(stored(&site, "failed") == files, "{}", site.name);
        assert_eq!(report.copied_bytes, total(&files) - known);
        assert_eq!(report.resumed_bytes + report.skipped_bytes, known);
    }
}

/// Parts that were sent are not lost with one answer about the journal.
#[test]
fn journal_that_cannot_be_written_is_written_when_the_copy_ends() {
    for site in servers() {
        let folder = tempdir().expect("a folder");
        let files = write_model(folder.path(), 8);
        let proxy = Proxy::before(&site.address);
        // The first request claims the place.
        proxy.fail("PUT .tload-write", Failure::Slow, 1);
        proxy.fail("PUT .tload-write", Failure::Expired, 1);
        let job = UploadJob::new(folder.path(), site.location("unwritten"));
        let job = job.store(through(&proxy, &site, "1")).options(one_by_one());
        let control = job.control();
        let error = job.run().expect_err("fails");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert_eq!(proxy.left(), 0);
        let known = known_bytes(&site, "unwritten", &files);
        let report = copy(folder.path(), &site, "unwritten").expect(site.name);
        assert!(stored(&site, "unwritten") == files, "{}", site.name);
        assert_eq!(report.resumed_bytes + report.skipped_bytes, known);
        assert_eq!(control.progress().bytes_kept, report.resumed_bytes);
    }
}

#[test]
fn what_has_changed_at_the_source_is_sent_again() {
    for site in servers() {
        let folder = tempdir().expect("a folder");
        write_model(folder.path(), 3);
        let proxy = Proxy::before(&site.address);
        fail(&site, &proxy, "changed", folder.path());
        let files = write_model(folder.path(), 4);
        fs::remove_file(folder.path().join("config.json")).expect("is removed");
        let report = copy(folder.path(), &site, "changed").expect(site.name);
        let mut wanted = files;
        wanted.remove("config.json");
        assert!(stored(&site, "changed") == wanted, "{}", site.name);
        assert_eq!(report.copied_bytes, total(&wanted));
    }
}

/// As after a rule of the bucket that aborts incomplete uploads.
#[test]
fn upload_that_is_gone_is_begun_again() {
    // Moto fails with 500 then.
    if let Some(site) = versitygw() {
        let folder = tempdir().expect("a folder");
        let files = write_model(folder.path(), 5);
        let proxy = Proxy::before(&site.address);
        fail(&site, &proxy, "gone", folder.path());
        let journal: serde_json::Value =
            serde_json::from_slice(&site.objects("gone")[".tload-write"]).expect("is JSON");
        let id = &journal["files"]["model-1.safetensors"]["upload"];
        let id = id.as_str().expect("has begun").to_owned();
        let client = Client::open(&site.location("gone"), &site.options()).expect("opens");
        let path = client.path("model-1.safetensors");
        client
            .wait(|client| async move { client.abort(&path, &id).await })
            .expect("is aborted");
        let error = copy(folder.path(), &site, "gone").expect_err("is gone");
        assert_eq!(error.kind(), ErrorKind::Changed, "{}: {error}", site.name);
        copy(folder.path(), &site, "gone").expect(site.name);
        assert!(stored(&site, "gone") == files, "{}", site.name);
    }
}

#[test]
fn copy_of_another_source_is_named_and_can_be_discarded() {
    for site in servers() {
        let (first, second) = (tempdir().expect("a folder"), tempdir().expect("a folder"));
        write_model(first.path(), 6);
        fs::write(second.path().join("model.safetensors"), "other").expect("is written");
        let proxy = Proxy::before(&site.address);
        fail(&site, &proxy, "two", first.path());
        let journal: serde_json::Value =
            serde_json::from_slice(&site.objects("two")[".tload-write"]).expect("is JSON");
        let error = copy(second.path(), &site, "two").expect_err("another has begun");
        assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
        let id = journal["write"].as_str().expect("an identifier");
        assert!(error.to_string().contains(id), "{error}");
        let force = CopyOptions::default().force(true);
        copy_with(second.path(), &site, "two", site.options(), force).expect(site.name);
        let names: Vec<_> = stored(&site, "two").into_keys().collect();
        assert_eq!(names, ["model.safetensors"], "{}", site.name);
    }
}

/// Files that a copy does not select are not taken for files that the source no longer has.
#[test]
fn copy_of_other_files_of_one_source_discards_nothing() {
    for site in servers() {
        let folder = tempdir().expect("a folder");
        let files = write_model(folder.path(), 9);
        let proxy = Proxy::before(&site.address);
        fail(&site, &proxy, "some", folder.path());
        let before = site.objects("some");
        for (include, exclude, names) in [
            (vec!["*.json".to_owned()], Vec::new(), None),
            (Vec::new(), vec!["empty".to_owned()], None),
            (Vec::new(), Vec::new(), Some(vec!["config.json".to_owned()])),
        ] {
            let mut options = one_by_one();
            (options.include, options.exclude, options.names) = (include, exclude, names);
            let error = copy_with(
                folder.path(),
                &site,
                "some",
                site.options(),
                options.clone(),
            );
            let error = error.expect_err("has begun with other files");
            assert_eq!(error.kind(), ErrorKind::Changed, "{options:?}: {error}");
            assert!(site.objects("some") == before, "{options:?}");
        }
        copy(folder.path(), &site, "some").expect(site.name);
        assert!(stored(&site, "some") == files, "{}", site.name);
    }
}

/// An upload is forgotten once it is gone, so that its parts do not stay where no list shows them.
#[test]
fn upload_that_cannot_be_aborted_is_not_forgotten() {
    for site in servers() {
        let folder = tempdir().expect("a folder");
        write_model(folder.path(), 10);
        let proxy = Proxy::before(&site.address);
        fail(&site, &proxy, "kept", folder.path());
        let files = write_model(folder.path(), 11);
        proxy.fail("DELETE uploadId=", Failure::Expired, 1000);
        let options = through(&proxy, &site, "1");
        let error = copy_with(folder.path(), &site, "kept", options, one_by_one());
        let error = error.expect_err("is not aborted");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(proxy.left() > 900);
        let journal = String::from_utf8(site.objects("kept")[".tload-write"].clone());
        assert!(journal.expect("text").contains("\"upload\":\""));
        copy(folder.path(), &site, "kept").expect(site.name);
        assert!(stored(&site, "kept") == files, "{}", site.name);
    }
}

#[test]
fn object_that_is_removed_meanwhile_is_missed() {
    for site in servers() {
        let folder = tempdir().expect("a folder");
        let files = write_model(folder.path(), 12);
        let proxy = Proxy::before(&site.address);
        proxy.fail("PUT index.json", Failure::Held, 1);
        let error = std::thread::scope(|scope| {
            let job = UploadJob::new(folder.path(), site.location("removed"));
            let job = job.store(through(&proxy, &site, "8")).options(one_by_one());
            let copying = scope.spawn(move || job.run());
            proxy.wait_for_held();
            let client = Client::open(&site.location("removed"), &site.options()).expect("opens");
            client
                .delete(vec![client.path("config.json")])
                .expect("is removed");
            proxy.release();
            copying.join().expect("no panic").expect_err("lacks a file")
        });
        assert_eq!(error.kind(), ErrorKind::Changed, "{}: {error}", site.name);
        assert!(error.to_string().contains("config.json"), "{error}");
        copy(folder.path(), &site, "removed").expect(site.name);
        assert!(stored(&site, "removed") == files, "{}", site.name);
    }
}

/// A writer whose shards have names of their own finds a copy that has begun, and a copy whose
/// claim is late finds the writer's shards.
#[test]
fn writer_of_other_names_and_copy_do_not_meet() {
    for site in servers() {
        let folder = tempdir().expect("a folder");
        let files = write_model(folder.path(), 13);
        let tensors = tensors(3, 900, 1);
        let begin = |prefix: &str| {
            let options = WriteOptions::new().store(site.options());
            Writer::planned(&site.location(prefix), specs(&tensors), options)
        };
        let finish = |mut writer: Writer| {
            let order: Vec<_> = writer.order().map(str::to_owned).collect();
            for name in order {
                let (dtype, shape, bytes) = &tensors[&name];
                writer
                    .tensor(name, *dtype, shape, bytes)
                    .expect("is stored");
            }
            writer.finish()
        };
        let proxy = Proxy::before(&site.address);
        let writer = begin("claimed").expect("begins");
        fail(&site, &proxy, "claimed", folder.path());
        let before = site.objects("claimed");
        for error in [finish(writer).err(), begin("claimed").err()] {
            let error = error.expect("is claimed");
            assert_eq!(error.kind(), ErrorKind::Changed, "{}: {error}", site.name);
            assert!(site.objects("claimed") == before, "{}", site.name);
        }
        copy(folder.path(), &site, "claimed").expect(site.name);
        assert!(stored(&site, "claimed") == files, "{}", site.name);

        proxy.fail("PUT .tload-write", Failure::Held, 1);
        let (error, before) = std::thread::scope(|scope| {
            let job = UploadJob::new(folder.path(), site.location("late"));
            let job = job.store(through(&proxy, &site, "8")).options(one_by_one());
            let copying = scope.spawn(move || job.run());
            proxy.wait_for_held();
            finish(begin("late").expect("begins")).expect("is first");
            let before = site.objects("late");
            proxy.release();
            let copied = copying.join().expect("no panic");
            (copied.expect_err("is late"), before)
        });
        assert_eq!(error.kind(), ErrorKind::Changed, "{}: {error}", site.name);
        assert!(site.objects("late") == before, "{}", site.name);
    }
}

/// Waits until the journal has as many parts and whole files.
fn wait_until_sent(site: &Site, prefix: &str, count: usize) {
    let client = Client::open(&site.location(prefix), &site.options()).expect("opens");
    let sent = || {
        let path = client.path(".tload-write");
        let text = client.wait(|client| async move { client.text(&path).await });
        let text = text.expect("is read").unwrap_or_default();
        let journal: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let files = journal["files"].as_object().into_iter().flatten();
        let sent = files.map(|(_, begun)| {
            let parts = begun["parts"].as_object().map_or(0, serde_json::Map::len);
            parts + usize::from(begun["is_done"] == true)
        });
        sent.sum::<usize>()
    };
    while sent() < count {
        std::thread::yield_now();
    }
}

#[test]
fn source_that_changes_meanwhile_is_noticed() {
    for site in servers() {
        let folder = tempdir().expect("a folder");
        let name = "model.safetensors";
        let path = folder.path().join(name);
        fs::write(&path, vec![1; 20 << 20]).expect("is written");
        let proxy = Proxy::before(&site.address);
        proxy.fail("PUT partNumber=3&", Failure::Throttled, 1_000_000);
        let job = UploadJob::new(folder.path(), site.location("moving"));
        let job = job.store(through(&proxy, &site, "12"));
        let error = std::thread::scope(|scope| {
            let copy = scope.spawn(move || job.run());
            wait_until_sent(&site, "moving", 2);
            fs::write(&path, vec![2; 20 << 20]).expect("is written");
            assert!(proxy.left() > 0, "from here on all requests pass");
            copy.join().expect("does not panic").expect_err("is mixed")
        });
        assert_eq!(error.kind(), ErrorKind::Changed, "{}: {error}", site.name);
        assert!(!site.objects("moving").contains_key(name), "{}", site.name);
        copy(folder.path(), &site, "moving").expect(site.name);
        assert!(site.objects("moving")[name] == vec![2; 20 << 20]);
    }
}

/// Two copies of one source to one place at a time: the second goes on with the first one's
/// journal, and the first is told by whom it was overtaken.
#[test]
fn first_of_two_copies_is_overtaken() {
    for site in servers() {
        let folder = tempdir().expect("a folder");
        let files = write_model(folder.path(), 7);
        let proxy = Proxy::before(&site.address);
        proxy.fail("POST uploadId=", Failure::Throttled, 1_000_000);
        let options = through(&proxy, &site, "12");
        let error = std::thread::scope(|scope| {
            let job = UploadJob::new(folder.path(), site.location("raced"));
            let first = scope.spawn(move || job.store(options).run());
            // It has sent all that it can, and its journal is not written any more.
            // Three parts, two, and all whole files but the index.
            wait_until_sent(&site, "raced", 9);
            copy(folder.path(), &site, "raced").expect(site.name);
            assert!(proxy.left() > 0, "from here on all requests pass");
            first
                .join()
                .expect("does not panic")
                .expect_err("was overtaken")
        });
        let record: serde_json::Value =
            serde_json::from_slice(&site.objects("raced")[".tload-copied"]).expect("is JSON");
        assert_eq!(error.kind(), ErrorKind::Changed, "{}: {error}", site.name);
        let id = record["write"].as_str().expect("an identifier");
        assert!(error.to_string().contains(id), "{error}");
        assert!(stored(&site, "raced") == files, "{}", site.name);
    }
}
