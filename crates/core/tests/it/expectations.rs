//! Expectations of loads: the order of authorities, the algorithms that count, where authorities
//! may be, and the deadline of the lookup.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tload::verify::{
    Algorithm, Digest, Expectation, Expected, MANIFEST_NAME, Manifest, ManifestTarget,
    Verification, VerifyOptions,
};
use tload::{
    Checkpoint, Dtype, Error, ErrorKind, Loader, OpenOptions, Report, Selection, Tensor, Verify,
};
use tload_testbed::slowfs::{Fault, Mount, Options as Slowness, Request, Rule};
use tload_testing::fixtures::{FileBuilder, Rng};

use crate::files::{folder, location, options, write};
use crate::growing_timeouts::until_it_stalls;
use crate::requirement;

const SHARD: &str = "m.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const SECRET: &str = "hunter2";

/// Creates a folder with one shard of three tensors, and a manifest beside it.
fn recorded() -> TempDir {
    let folder = folder();
    let mut rng = Rng::new(5);
    let file = FileBuilder::new()
        .tensor("a", Dtype::U8, &[2, 8], &rng.bytes(16))
        .tensor("b", Dtype::U8, &[30_000], &rng.bytes(30_000))
        .tensor("c", Dtype::U8, &[100], &rng.bytes(100))
        .build();
    write(&folder.path().join(SHARD), &file);
    record(folder.path());
    folder
}

fn record(path: &Path) {
    let mut options = VerifyOptions::default();
    options.write = Some(ManifestTarget::Beside);
    options.force = true;
    let report = Verification::new(location(path)).options(options).run();
    assert!(report.expect("reads").written.is_some());
}

fn read(path: &Path) -> Vec<u8> {
    #[expect(clippy::disallowed_methods, reason = "a test looks at files")]
    std::fs::read(path).expect("there")
}

/// Changes bytes of a file, in place.
fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = read(path);
    change(&mut bytes);
    std::fs::write(path, bytes).expect("ours");
}

fn loader(path: &Path, verify: &Verify) -> Loader {
    let loader = Loader::open(location(path)).expect("a good checkpoint");
    loader.options(options(|it| it.verify = verify.clone()))
}

fn load(loader: &Loader) -> Result<(Vec<Tensor>, Report), Error> {
    let mut stream = loader.stream()?;
    let tensors = stream.by_ref().collect::<Result<_, _>>()?;
    Ok((tensors, stream.report()))
}

fn manifest_of(folder: &Path) -> String {
    let path = folder.join(MANIFEST_NAME);
    path.into_os_string().into_string().expect("UTF-8")
}

#[test]
fn header_is_compared_when_index_omits_tensors() {
    let model = recorded();
    let path = model.path().join(SHARD);
    let index = format!(r#"{{"weight_map": {{"a": "{SHARD}", "c": "{SHARD}"}}}}"#);
    write(&model.path().join(INDEX), index.as_bytes());
    // Only manifests that the caller names have to list the index.
    let (_, report) = load(&loader(model.path(), &Verify::Require)).expect("all is right");
    let verification = report.verification.expect("was asked for");
    assert_eq!(
        (verification.bytes, verification.unverified_files),
        (116, 0)
    );
    record(model.path());
    // The same bytes in another shape.
    change(&path, |file| {
        let shape = |text: &[u8]| text == b"[2, 8]";
        let at = file.windows(6).position(shape).expect("the shape of a");
        file[at..at + 6].copy_from_slice(b"[8, 2]");
    });
    for choice in [
        Verify::Auto,
        Verify::Require,
        Verify::Manifest(manifest_of(model.path())),
    ] {
        for selection in [Selection::all(), Selection::names(["a"])] {
            let loader = loader(model.path(), &choice).select(selection);
            let error = load(&loader).expect_err("the header is another");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{choice}: {error}");
            let header = Checkpoint::open(location(&path)).expect("opens");
            let header = header.shards()[0].header_bytes();
            assert_eq!(error.range(), Some(0..header), "{choice}: {error}");
        }
    }
}

/// SHA-256 digests of tensors and of the whole do not cover a header that is read without the rest
/// of the file.
#[test]
fn uncomparable_header_is_reported_or_rejected() {
    let model = recorded();
    let path = model.path().join(SHARD);
    let file = read(&path);
    let checkpoint = Checkpoint::open(location(&path)).expect("opens");
    let header = usize::try_from(checkpoint.shards()[0].header_bytes()).expect("small");
    let of_tensor = |name: &str| {
        let range = checkpoint.get(name).expect("there").file_range();
        let at = |offset| usize::try_from(offset).expect("small");
        let bytes = &file[at(range.start)..at(range.end)];
        (name.to_owned(), Digest::compute(Algorithm::Sha256, bytes))
    };
    let mut expected = Expected {
        by: "the test".to_owned(),
        whole: Some(Digest::compute(Algorithm::Sha256, &file)),
        tensors: ["a", "b", "c"].map(of_tensor).into(),
        ..Expected::default()
    };
    let loader = |choice: &Verify, expected: &Expected, names: &[&str]| {
        loader(&path, choice)
            .select(Selection::names(names.iter().copied()))
            .expectations([Expectation::Of(expected.clone())])
    };
    let why = "covers the header only as part of the whole file";
    for choice in [Verify::Require, Verify::Sha256(None)] {
        let error = load(&loader(&choice, &expected, &["a"])).expect_err("is not known");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        assert!(error.message().contains(why), "{error}");
        load(&loader(&choice, &expected, &["a", "b", "c"])).expect("the whole is read");
    }
    let (_, report) = load(&loader(&Verify::Auto, &expected, &["a"])).expect("loads");
    let verification = report.verification.expect("was asked for");
    assert_eq!(verification.bytes, 16);
    assert!(verification.unverified[0].why.contains(why));
    // An authority with a digest of the header itself is used.
    expected.header = Some(Digest::compute(Algorithm::Sha256, &file[..header]));
    for choice in [Verify::Require, Verify::Sha256(None)] {
        let (_, report) = load(&loader(&choice, &expected, &["a"])).expect("is known");
        let verification = report.verification.expect("was asked for");
        assert_eq!(verification.by[0].algorithm, "sha256");
    }
    expected.header = Some(Digest::compute(Algorithm::Sha256, b"another"));
    let error = load(&loader(&Verify::Require, &expected, &["a"])).expect_err("is another");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(error.range(), Some(0..header as u64));
}

/// A tensor changed by a multiple of the polynomial keeps its CRC. So `require` is no defense
/// against deliberate changes; `sha256` is.
#[test]
fn crc_collision_passes_require_but_not_sha256() {
    let model = recorded();
    let manifest = manifest_of(model.path());
    let of_sha = [Verify::Sha256(None), Verify::Sha256(Some(manifest.clone()))];
    let of_crc = [Verify::Require, Verify::Manifest(manifest)];
    for choice in &of_sha {
        for selection in [Selection::all(), Selection::names(["b"])] {
            let some = loader(model.path(), choice).select(selection);
            let (tensors, report) = load(&some).expect("all is right");
            let text = report.to_string();
            assert!(text.contains("1 file with blake3 from manifest "), "{text}");
            let verification = report.verification.expect("was asked for");
            let bytes = tensors.iter().map(|tensor| tensor.bytes().len() as u64);
            assert_eq!(
                (verification.bytes, verification.unverified_files),
                (bytes.sum(), 0)
            );
        }
    }
    // CRC-64/NVME, reflected: the coefficients of x^63 to x^0 from the lowest bit on, and x^64
    // before them. The bits of a message are divided in this order, the lowest of each byte first.
    let polynomial = 1_u128 | 0x9A6C_9329_AC4B_C9B5_u128 << 1;
    let at = Checkpoint::open(location(model.path())).expect("opens");
    let at = at.get("b").expect("there").file_range().start + 1234;
    let at = usize::try_from(at).expect("small");
    let before = read(&model.path().join(SHARD));
    change(&model.path().join(SHARD), |file| {
        let forged = file[at..].iter_mut().zip(polynomial.to_le_bytes());
        forged.for_each(|(byte, other)| *byte ^= other);
    });
    assert_ne!(read(&model.path().join(SHARD)), before);
    for choice in &of_crc {
        let (tensors, report) = load(&loader(model.path(), choice)).expect("no CRC differs");
        let b = tensors.iter().find(|tensor| tensor.name() == "b");
        assert!(b.expect("was loaded").bytes() != &before[at - 1234..at - 1234 + 30_000]);
        let verification = report.verification.expect("was asked for");
        assert_eq!(verification.by[0].algorithm, "crc64nvme");
    }
    for choice in &of_sha {
        let error = load(&loader(model.path(), choice)).expect_err("it is forged");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("expected blake3:"), "{error}");
        assert_eq!(error.tensor(), Some("b"));
    }
}

/// Manifests of older releases, and other authorities, have a SHA-256 of files only.
#[test]
fn sha256_without_blake3_covers_whole_files() {
    let model = recorded();
    let path = model.path().join(MANIFEST_NAME);
    let mut manifest = Manifest::parse(&read(&path)).expect("tload's own");
    for file in manifest.files.values_mut() {
        assert!(file.header.take().is_some());
        for tensor in file.tensors.values_mut() {
            assert!(tensor.blake3.take().is_some());
        }
    }
    write(&path, &manifest.render());
    let len = read(&model.path().join(SHARD)).len() as u64;
    let named = Verify::Sha256(Some(manifest_of(model.path())));
    for choice in [Verify::Sha256(None), named] {
        let (_, report) = load(&loader(model.path(), &choice)).expect("all is right");
        let verification = report.verification.expect("was asked for");
        assert_eq!(
            (verification.bytes, verification.unverified_files),
            (len, 0)
        );
        assert_eq!(verification.by[0].algorithm, "sha256");
        // The digest covers the whole file, so all of it has to be read.
        let some = loader(model.path(), &choice).select(Selection::names(["b"]));
        let error = load(&some).expect_err("the whole cannot be compared");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        let hint = error.hint().expect("a hint");
        assert!(hint.contains("load every tensor of the file"), "{hint}");
    }
}

/// The header gives the bytes their meaning, and a CRC of it can be forged like any other.
#[test]
fn changed_header_fails_sha256_whatever_is_selected() {
    let model = recorded();
    change(&model.path().join(SHARD), |file| {
        let dtype = file.windows(4).position(|text| text == b"\"U8\"");
        file[dtype.expect("one")..][..4].copy_from_slice(b"\"I8\"");
    });
    for selection in [Selection::all(), Selection::names(["b"])] {
        let some = loader(model.path(), &Verify::Sha256(None)).select(selection);
        let error = load(&some).expect_err("the header is another");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("expected blake3:"), "{error}");
        assert_eq!(error.range().expect("names the header").start, 0);
    }
}

#[test]
fn sha256_choice_fails_without_sha256() {
    let folder = folder();
    let file = FileBuilder::new().tensor("a", Dtype::U8, &[4], b"1234");
    let path = write(&folder.path().join(SHARD), &file.build());
    let choice = Verify::Sha256(None);
    let error = load(&loader(&path, &choice)).expect_err("no digest is known");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    let expected = Expected {
        by: "the store".to_owned(),
        whole: Some(Digest::compute(Algorithm::Crc64Nvme, &read(&path))),
        ..Expected::default()
    };
    let by_crc = loader(&path, &choice).expectations([Expectation::Of(expected)]);
    let error = load(&by_crc).expect_err("a CRC does not count");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    assert!(
        error.message().contains("the store has no SHA-256 of it"),
        "{error}"
    );
    assert!(error.hint().expect("a hint").contains("verify=require"));
}

/// Opens with symbolic links allowed.
fn following(path: &Path, verify: &Verify) -> Loader {
    let mut opening = OpenOptions::default();
    opening.follow_symlinks = true;
    let loader = Loader::open_with(location(path), opening).expect("a good checkpoint");
    loader.options(options(|it| it.verify = verify.clone()))
}

#[test]
fn sidecar_links_out_of_folder_are_rejected() {
    let model = recorded();
    let outside = folder();
    let manifest = model.path().join(MANIFEST_NAME);
    let private = outside.path().join("private.json");
    std::fs::rename(&manifest, &private).expect("ours");
    symlink(&private, &manifest).expect("takes links");
    let named = Verify::Manifest(manifest_of(model.path()));
    for choice in [Verify::Auto, Verify::Require, Verify::Sha256(None)] {
        let error = load(&loader(model.path(), &choice)).expect_err("leads out");
        assert_eq!(
            error.kind(),
            ErrorKind::PermissionDenied,
            "{}",
            error.chain()
        );
        assert_eq!(error.location(), manifest.to_str());
        assert!(error.hint().expect("a hint").contains("follow_symlinks"));
        load(&following(model.path(), &choice)).expect("allowed");
    }
    load(&loader(model.path(), &named)).expect("the caller named it");
    let error = Verification::new(location(model.path())).run();
    assert_eq!(
        error.expect_err("leads out").kind(),
        ErrorKind::PermissionDenied
    );

    // Links that stay in the folder belong to the folder's author.
    std::fs::remove_file(&manifest).expect("ours");
    std::fs::rename(&private, model.path().join("real.json")).expect("ours");
    symlink("real.json", &manifest).expect("takes links");
    load(&loader(model.path(), &Verify::Require)).expect("stays in the folder");

    // A signature is treated alike, and errors tell nothing of the link's target.
    std::fs::remove_file(&manifest).expect("ours");
    let signature = model.path().join("model.sig");
    for text in [
        SECRET.to_owned(),
        format!(r#"{{"dsseEnvelope":"{SECRET}"}}"#),
    ] {
        std::fs::write(&private, text).expect("ours");
        symlink(&private, &signature).expect("takes links");
        let error = load(&loader(model.path(), &Verify::Auto)).expect_err("leads out");
        assert_eq!(
            error.kind(),
            ErrorKind::PermissionDenied,
            "{}",
            error.chain()
        );
        let error = load(&following(model.path(), &Verify::Auto)).expect_err("is none");
        assert_eq!(error.kind(), ErrorKind::InvalidFormat, "{}", error.chain());
        assert!(!error.chain().contains(SECRET), "{}", error.chain());
        std::fs::remove_file(&signature).expect("ours");
    }
}

#[test]
fn manifest_errors_do_not_quote_contents() {
    let model = recorded();
    for text in [
        format!("{{\"tload_manifest\":\"{SECRET}\"}}"),
        format!("{{\"tload_manifest\":1,\"files\":\"{SECRET}\"}}"),
        format!("{{\"tload_manifest\":1,\"files\":{{}},\"{SECRET}\":1}}"),
        format!("{{\"tload_manifest\":1,\"files\":{{\"a\":{{\"bytes\":\"{SECRET}\"}}}}}}"),
        format!(
            "{{\"tload_manifest\":1,\"files\":{{\"a\":{{\"bytes\":1,\"crc64nvme\":\"{SECRET}\"}}}}}}"
        ),
        format!("{{{SECRET}"),
    ] {
        let path: PathBuf = model.path().join(MANIFEST_NAME);
        std::fs::write(&path, &text).expect("ours");
        let error = load(&loader(model.path(), &Verify::Auto)).expect_err("is none");
        assert_eq!(error.kind(), ErrorKind::InvalidFormat, "{}", error.chain());
        assert!(!error.chain().contains(SECRET), "{}", error.chain());
        assert!(error.message().contains("column"), "{error}");
    }
}

/// A mount may fail after the checkpoint was opened: the load's timeout applies then as well.
#[test]
fn digest_lookup_times_out_naming_location() {
    let model = recorded();
    let mount = Mount::start("slow::serves", model.path(), &Slowness::default());
    let Some(mount) = requirement::requirement("fuse", mount) else {
        return;
    };
    let loader = loader(mount.path(), &Verify::Auto);
    let manifest = mount.path().join(MANIFEST_NAME);
    mount.fault(
        &Rule::always(Fault::Hold)
            .on(Request::Open)
            .file(MANIFEST_NAME),
    );
    until_it_stalls(|timeout| {
        let hurried = loader.clone().options(options(|it| {
            it.verify = Verify::Auto;
            it.timeout = Some(timeout);
        }));
        let error = hurried.stream().expect_err("hangs");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{}", error.chain());
        (error.location() == manifest.to_str()).then_some(())
    });
    mount.clear_faults();
    mount.release();
}
