//! Objects of servers that send neither `ETag` nor `Last-Modified`: refused, or compared once more
//! at the end.

use std::path::Path;
use std::sync::Arc;

use tload::copy::{CopyJob, CopyReport};
use tload::verify::Verification;
use tload::{Checkpoint, Error, ErrorKind, Loader, Report, Result, Selection, Tensor};
use tload_testbed::{Fault, FaultyServer, Rule};

use crate::fixtures::{assert_all, even, folder, index, options, read};
use crate::sites::{Site, faulty_at, faulty_web_at, nginx_bare};

const KEY: &str = "m.safetensors";

/// Allows the site to send no validators.
fn allowing(mut site: Site) -> Site {
    let set = site.options.set("allow_unversioned", "true");
    set.expect("an option");
    site
}

/// Starts a server that sends no validators, as S3 and as a web server.
fn bare() -> [(Arc<FaultyServer>, Site); 2] {
    [faulty_at, faulty_web_at].map(|site| {
        let server = Arc::new(FaultyServer::start());
        server.leave_out_validators();
        let site = site(&server);
        (server, site)
    })
}

/// Returns two states of one file, of the same length and with the same header.
fn states() -> [Vec<u8>; 2] {
    let states = [1, 2].map(|seed| even("t", seed, 4, 1 << 20));
    assert_eq!(states[0].len(), states[1].len());
    states
}

/// Returns a loader with one request at a time, of 256 KiB each.
fn serially(checkpoint: Checkpoint) -> Loader {
    let serial = options(|it| (it.depth, it.extent_bytes) = (Some(1), Some(256 << 10)));
    Loader::new(checkpoint).options(serial)
}

fn load(loader: &Loader) -> (Result<Vec<Tensor>>, Report) {
    let mut stream = loader.stream().expect("starts");
    let tensors = stream.by_ref().collect();
    (tensors, stream.report())
}

fn expect_refusal(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.chain());
    let says = "neither ETag nor Last-Modified";
    assert!(error.message().contains(says), "{}", error.chain());
    let location = error.location().expect("an error of an object");
    assert!(location.ends_with(KEY), "{location}");
    let hint = error.hint().expect("a hint");
    assert!(hint.contains("allow_unversioned=true"), "{hint}");
}

fn expect_changed(error: &Error, says: &str) {
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
    assert!(error.message().contains(says), "{}", error.chain());
    let location = error.location().expect("an error of an object");
    assert!(location.ends_with(KEY), "{location}");
    assert!(error.hint().is_some(), "{}", error.chain());
}

fn copy(site: &Site, key: &str, target: &Path) -> Result<CopyReport> {
    let copy = CopyJob::new(site.location(key), target);
    copy.store(site.options.clone()).run()
}

#[test]
fn objects_without_validator_are_rejected_by_default() {
    for (_server, site) in bare() {
        // Includes a file that arrives whole with its header: its tensors are requested once more.
        for file in [even("t", 1, 4, 1 << 20), even("t", 1, 4, 100)] {
            site.put(KEY, &file);
            expect_refusal(&site.checkpoint(KEY).expect_err("no validator"));
            if file.len() > 1 << 20 {
                let target = folder();
                let error = copy(&site, KEY, target.path()).expect_err("no validator");
                expect_refusal(&error);
                let left = std::fs::read_dir(target.path()).expect("created").count();
                assert_eq!(left, 0, "nothing was written");
            }
        }
    }
}

/// A single response is of one state.
#[test]
fn small_file_without_validator_is_copied() {
    for (_server, site) in bare() {
        site.put("config.json", b"{}");
        let target = folder();
        let report = copy(&site, "config.json", target.path()).expect("copies");
        assert_eq!((report.copied_files, report.unversioned_files), (1, 0));
    }
}

#[test]
fn allowed_objects_without_validator_load_with_note() {
    for (_server, site) in bare() {
        let site = allowing(site);
        for file in [
            even("t", 1, 4, 1 << 20),
            even("t", 1, 4, 100),
            even("t", 1, 0, 0),
        ] {
            site.put(KEY, &file);
            let (tensors, report) = load(&serially(site.checkpoint(KEY).expect("opens")));
            assert_all(&tensors.expect("loads"), &[&file]);
            let is_told =
                |note: &String| note.contains("neither ETag nor Last-Modified of 1 object");
            let has_read = report.requests > 0;
            assert_eq!(
                report.notes.iter().any(is_told),
                has_read,
                "{:?}",
                report.notes
            );
        }
        let target = folder();
        site.put(KEY, &states()[0]);
        let report = copy(&site, KEY, target.path()).expect("copies");
        assert_eq!(report.unversioned_files, 1);
        let copied = read(&target.path().join(KEY));
        assert!(copied == states()[0]);
    }
}

/// Replaced right before the third read of tensors.
#[test]
fn unversioned_object_replaced_during_load_is_changed() {
    let [old, new] = states();
    for (replacement, says) in [
        (new, "first or last bytes"),
        (even("t", 2, 4, 1 << 21), "length"),
    ] {
        for (server, site) in bare() {
            let site = allowing(site);
            site.put(KEY, &old);
            let loader = serially(site.checkpoint(KEY).expect("opens"));
            let replaced = Fault::ChangeBefore(replacement.clone());
            server.fault(Rule::once(replaced).from_byte(1).after(2));
            let (tensors, report) = load(&loader);
            expect_changed(&tensors.expect_err("the object was replaced"), says);
            assert_eq!(report.outcome, "changed");
        }
    }
}

/// The header is longer than the first read and equal in both states: only the end of the object
/// differs.
#[test]
fn objects_differing_after_long_header_are_distinguished() {
    let [old, new] = [1, 2].map(|seed| even(&"n".repeat(300), seed, 2000, 100));
    assert_eq!(old[..1 << 19], new[..1 << 19], "the same header");
    for (server, site) in bare() {
        let site = allowing(site);
        site.put(KEY, &old);
        let loader = serially(site.checkpoint(KEY).expect("opens"));
        server.fault(Rule::once(Fault::ChangeBefore(new.clone())).from_byte(1 << 19));
        expect_changed(
            &load(&loader).0.expect_err("the object was replaced"),
            "last bytes",
        );
    }
}

/// Only the middle of the header differs, behind the first read.
#[test]
fn objects_differing_inside_long_header_are_distinguished() {
    let old = even(&"n".repeat(300), 1, 2000, 100);
    let mut new = old.clone();
    let header_end = 8 + u64::from_le_bytes(*old.first_chunk().expect("a header"));
    let middle = 400_000;
    assert!(header_end > 1 << 19);
    // Changes a letter in a tensor's name, which keeps the header valid.
    let at = middle
        + old[middle..]
            .iter()
            .position(|&byte| byte == b'n')
            .expect("a name");
    new[at] = b'm';
    for (server, site) in bare() {
        let site = allowing(site);
        site.put(KEY, &old);
        let loader = serially(site.checkpoint(KEY).expect("opens"));
        server.fault(Rule::once(Fault::ChangeBefore(new.clone())).from_byte(1 << 19));
        let error = load(&loader).0.err();
        expect_changed(
            &error.expect("the object was replaced"),
            "first or last bytes",
        );
    }
}

#[test]
fn tensor_of_replaced_unversioned_object_is_changed() {
    let [old, new] = states();
    for (_server, site) in bare() {
        let site = allowing(site);
        site.put(KEY, &old);
        let checkpoint = site.checkpoint(KEY).expect("opens");
        let read = || {
            checkpoint.read(
                "t1",
                &tload::Slice::default(),
                &tload::LoadOptions::default(),
            )
        };
        read().expect("reads");
        site.put(KEY, &new);
        expect_changed(
            &read().expect_err("the object was replaced"),
            "first or last bytes",
        );
        let some = Loader::new(checkpoint.clone()).select(Selection::names(["t2"]));
        expect_changed(
            &load(&some).0.expect_err("the object was replaced"),
            "first or last bytes",
        );
    }
}

#[test]
fn unversioned_object_replaced_during_copy_leaves_no_file() {
    let [old, new] = states();
    for (server, site) in bare() {
        let site = allowing(site);
        site.put(KEY, &old);
        server.fault(
            Rule::once(Fault::ChangeBefore(new.clone()))
                .from_byte(1)
                .after(1),
        );
        let target = folder();
        let error = copy(&site, KEY, target.path()).expect_err("the object was replaced");
        expect_changed(&error, "first or last bytes");
        assert!(!target.path().join(KEY).exists(), "half old, half new");
        // Bytes of the old state are not resumed.
        copy(&site, KEY, target.path()).expect("copies");
        let copied = read(&target.path().join(KEY));
        assert!(copied == new);
    }
}

#[test]
fn unversioned_object_replaced_during_verification_fails() {
    let [old, new] = states();
    for (server, site) in bare() {
        let site = allowing(site);
        site.put(KEY, &old);
        let verify = || {
            let verification = Verification::new(site.location(KEY));
            verification.opening(&site.options).run().expect("runs")
        };
        let notes = verify().notes;
        assert!(
            notes.iter().any(|note| note.contains("neither ETag")),
            "{notes:?}"
        );
        let target = folder();
        let write = |name: &str| {
            let mut wanted = tload::verify::VerifyOptions::default();
            wanted.write = Some(tload::verify::ManifestTarget::Path(
                target.path().join(name),
            ));
            let verification = Verification::new(site.location(KEY)).options(wanted);
            verification.opening(&site.options).run().expect("runs")
        };
        assert!(write("good").written.is_some());
        server.fault(
            Rule::once(Fault::ChangeBefore(new.clone()))
                .from_byte(1 << 18)
                .after(1),
        );
        let report = write("bad");
        assert!(report.written.is_none(), "a manifest of a mixture");
        let error = report.files[0].error.as_ref().expect("changed");
        assert_eq!(error.kind, ErrorKind::Changed.name(), "{}", error.message);
    }
}

/// An index without a validator is compared like its shards.
#[test]
fn replaced_unversioned_index_is_changed() {
    const INDEX: &str = "m/model.safetensors.index.json";
    let file = even("t", 1, 2, 1000);
    let placed = |total: u64| {
        let text = String::from_utf8(index(&[("t0".to_owned(), "a.safetensors")])).expect("text");
        text.replace("{}", &format!("{{\"total_size\":{total}}}"))
            .into_bytes()
    };
    for (_server, site) in bare() {
        let site = allowing(site);
        site.put("m/a.safetensors", &file);
        site.put(INDEX, &placed(1));
        let checkpoint = site.checkpoint("m").expect("opens");
        load(&serially(checkpoint.clone())).0.expect("loads");
        site.put(INDEX, &placed(2));
        let error = load(&serially(checkpoint))
            .0
            .expect_err("the index was replaced");
        assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
        let location = error.location().expect("an error of the index");
        assert!(location.ends_with(INDEX), "{location}");
    }
}

#[test]
fn nginx_without_validators_is_rejected_unless_allowed() {
    let (Some(refusing), Some(site)) = (nginx_bare(), nginx_bare()) else {
        return;
    };
    let [old, new] = states();
    refusing.put(KEY, &old);
    expect_refusal(&refusing.checkpoint(KEY).expect_err("no validator"));
    let site = allowing(site);
    site.put(KEY, &old);
    let loader = serially(site.checkpoint(KEY).expect("opens"));
    let (tensors, report) = load(&loader);
    assert_all(&tensors.expect("loads"), &[&old]);
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("neither ETag"))
    );
    site.put(KEY, &new);
    expect_changed(
        &load(&loader).0.expect_err("the file was replaced"),
        "first or last bytes",
    );
}
