//! Files of Tensorizer, as the package wrote them (`crates/tensorizer/tests`): loads give the
//! tensors that the package reads.

#[path = "../../../tensorizer/tests/written/mod.rs"]
pub(crate) mod recorded;

use std::path::{Path, PathBuf};

use tload::verify::{Algorithm, Digest};
use tload::{Checkpoint, ErrorKind, Loader, Report, Selection, Verify};

use crate::files::{folder, location, options, read, write};
use crate::requirement;
use recorded::Tensors;

/// Writes a file of the package into a folder.
fn written(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(format!("{name}.tensors"));
    write(&path, &recorded::written(name))
}

/// Returns the tensors of a file that have bytes in it, according to the package.
fn expected(file: &str) -> Tensors {
    let mut tensors = recorded::expected(file);
    tensors.remove("meta");
    tensors
}

fn load(loader: &Loader) -> (Tensors, Report) {
    let mut stream = loader.stream().expect("it begins");
    let tensors = stream.by_ref().map(|tensor| {
        let tensor = tensor.expect("it is read");
        let shape: Vec<_> = tensor.shape().iter().map(ToString::to_string).collect();
        let sha256 = Digest::compute(Algorithm::Sha256, tensor.bytes()).to_hex();
        let described = (tensor.dtype().to_string(), shape.join(","), sha256);
        (tensor.name().to_owned(), described)
    });
    let tensors = tensors.collect();
    (tensors, stream.report())
}

#[test]
fn every_engine_loads_files_of_tensorizer() {
    let folder = folder();
    for name in ["v1", "v2", "v4", "v5"] {
        let path = written(folder.path(), name);
        for engine in requirement::engines() {
            let loader = Loader::open(location(&path)).expect(name);
            let loader = loader.options(options(|it| it.engine = engine));
            let (tensors, report) = load(&loader);
            assert_eq!(tensors, expected(name), "{name}, {engine:?}");
            let is_noted = report
                .notes
                .iter()
                .any(|note| note.ends_with(": meta and 0 more"));
            assert_eq!(is_noted, name == "v4", "{:?}", report.notes);
        }
    }
}

#[test]
fn some_tensors_are_selected_and_lists_of_files_join_formats() {
    let folder = folder();
    let path = written(folder.path(), "v2");
    let selection = Selection::glob("inner.*").expect("a glob");
    let loader = Loader::open(location(&path)).expect("valid");
    let (tensors, _) = load(&loader.select(selection));
    let mut wanted = expected("v2");
    wanted.retain(|name, _| name.starts_with("inner."));
    assert_eq!(tensors, wanted);
    let other = tload_testing::fixtures::FileBuilder::new();
    let other = other.tensor("x", tload::Dtype::U8, &[1], &[5]).build();
    let other = write(&folder.path().join("x.safetensors"), &other);
    let both = [location(&path), location(&other)];
    let checkpoint = Checkpoint::open_all(both).expect("one checkpoint");
    assert_eq!(checkpoint.tensors().len(), expected("v2").len() + 1);
}

#[test]
fn files_that_are_not_loaded_are_named() {
    let folder = folder();
    for name in ["v3", "v3_passphrase", "v4_encrypted"] {
        let path = written(folder.path(), name);
        let error = Checkpoint::open(location(&path)).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("missing key"), "{error}");
        assert!(error.hint().expect("has one").contains("TLOAD_KEY"));
    }
    let path = written(folder.path(), "v1");
    let mut bytes = read(&path);
    bytes[5] = 9;
    write(&path, &bytes);
    let error = Checkpoint::open(location(&path)).expect_err("version 9");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("found version 9 of the file"),
        "{error}"
    );
    let error = Checkpoint::open(location(folder.path())).expect_err("no safetensors");
    let hint = error.hint().expect("has one");
    assert!(
        hint.ends_with("is a file of Tensorizer: pass its path"),
        "{hint}"
    );
}

#[test]
fn loads_compare_the_digests_in_the_file() {
    let folder = folder();
    let compare = |path: &Path, verify: &Verify| {
        let loader = Loader::open(location(path)).expect("the index is intact");
        let loader = loader.options(options(|it| it.verify = verify.clone()));
        let mut stream = loader.stream()?;
        let read: Result<Vec<_>, _> = stream.by_ref().collect();
        read.map(|_| stream.report())
    };
    for (verify, algorithm) in [(Verify::Require, "crc32"), (Verify::Sha256(None), "sha256")] {
        for name in ["v1", "v2", "v4", "v5"] {
            let path = written(folder.path(), name);
            let report = compare(&path, &verify).expect(name);
            let verification = report.verification.expect("was asked for");
            assert_eq!(verification.unverified_files, 0, "{name}");
            assert_eq!(verification.bytes, report.tensor_bytes, "{name}");
            let good = read(&path);
            // The last byte of the last tensor; and the module in the header of the first, which
            // only its digest covers, and its type, which the index has too.
            let first = usize::try_from(73 + (256 << 10)).expect("small");
            for (at, kind) in [
                (good.len() - 9, ErrorKind::Corrupt),
                (first + 8, ErrorKind::Corrupt),
                (first + 10, ErrorKind::InvalidFormat),
            ] {
                let mut bytes = good.clone();
                bytes[at] ^= 1;
                write(&path, &bytes);
                let failed = compare(&path, &verify).expect_err("damaged");
                assert_eq!(failed.kind(), kind, "{name}, byte {at}: {failed}");
                let is_compared = failed.to_string().contains(algorithm);
                assert_eq!(is_compared, kind == ErrorKind::Corrupt, "{failed}");
            }
        }
    }
}

#[test]
fn some_tensors_are_compared_by_their_own_sha256() {
    let folder = folder();
    let path = written(folder.path(), "v2");
    let good = read(&path);
    let names = ["inner.weight", "weight", "bf16"];
    let load = |names: &[&str]| {
        let loader = Loader::open(location(&path)).expect("the index is intact");
        let loader = loader.select(Selection::names(names.iter().copied()));
        let loader = loader.options(options(|it| it.verify = Verify::Sha256(None)));
        let stream = loader.stream()?;
        stream.collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(load(&names).expect("loads").len(), 3);
    // The last byte of the last tensor, which is none of these.
    let mut bytes = good.clone();
    let at = good.len() - 9;
    bytes[at] ^= 1;
    write(&path, &bytes);
    assert_eq!(load(&names).expect("loads").len(), 3);
    let opened = Checkpoint::open(location(&path)).expect("opens");
    let own = opened.get("weight").expect("there").file_range().start;
    let mut bytes = good;
    bytes[usize::try_from(own).expect("small")] ^= 1;
    write(&path, &bytes);
    let failed = load(&names).expect_err("damaged");
    assert_eq!(failed.kind(), ErrorKind::Corrupt, "{failed}");
    assert!(failed.to_string().contains("sha256:"), "{failed}");
}

#[test]
fn manifests_cover_files_of_tensorizer() {
    use tload::verify::{ManifestTarget, Verification, VerifyOptions};
    let folder = folder();
    let path = written(folder.path(), "v2");
    let record = VerifyOptions::default().write(ManifestTarget::Beside);
    let report = Verification::new(location(&path)).options(record).run();
    assert!(report.expect("it reads").written.is_some());
    let loader = Loader::open(location(&path)).expect("valid");
    let loader = loader.options(options(|it| it.verify = Verify::Require));
    assert_eq!(load(&loader).0, expected("v2"));
    // The last byte of the last tensor.
    let mut bytes = read(&path);
    let at = bytes.len() - 9;
    bytes[at] ^= 1;
    write(&path, &bytes);
    let loader = Loader::open(location(&path)).expect("the index is intact");
    let loader = loader.options(options(|it| it.verify = Verify::Require));
    let stream = loader.stream().expect("it begins");
    let failed = stream.collect::<Result<Vec<_>, _>>();
    assert_eq!(failed.expect_err("damaged").kind(), ErrorKind::Corrupt);
}
