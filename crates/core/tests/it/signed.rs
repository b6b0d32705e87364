//! Whole folders compared with a checked signature: unsigned files are refused, and files in the
//! folder that vouch for others change nothing. Also the reports for unreadable files and
//! unwritable manifests.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::collections::BTreeMap;
use std::path::Path;

use tempfile::TempDir;
use tload::verify::{
    Algorithm, Digest, FileOutcome, MANIFEST_NAME, Manifest, ManifestTarget, SignedFiles,
    Verification, VerifyOptions, VerifyReport, read_signature,
};
use tload::{Dtype, ErrorKind, Location, OpenOptions, Result};
use tload_testing::fixtures::FileBuilder;

use crate::files::{folder, read, write};

const SHARD: &str = "model.safetensors";

/// Creates a model with code beside its weights, and the digests that its author would sign.
fn model() -> (TempDir, SignedFiles) {
    let folder = folder();
    let shard = FileBuilder::new().tensor("t", Dtype::U8, &[4], b"1234");
    write(&folder.path().join(SHARD), &shard.build());
    write(&folder.path().join("config.json"), b"{}");
    write(&folder.path().join("code/model.py"), b"pass");
    let files = [SHARD, "config.json", "code/model.py"];
    let files = files.map(|name| (name.to_owned(), sha256(&folder.path().join(name))));
    let signed = SignedFiles {
        files: files.into(),
        ignored: vec!["model.sig".to_owned(), ".git".to_owned()],
    };
    (folder, signed)
}

fn sha256(path: &Path) -> Digest {
    use sha2::Digest as _;
    Digest::new(Algorithm::Sha256, &sha2::Sha256::digest(read(path))).unwrap()
}

fn verify(path: &Path, set: impl FnOnce(&mut VerifyOptions)) -> Result<VerifyReport> {
    let mut options = VerifyOptions::default();
    set(&mut options);
    let verification = Verification::new(Location::from_path(path));
    verification.options(options).run()
}

fn against(path: &Path, signed: &SignedFiles) -> VerifyReport {
    verify(path, |it| it.signed = Some(signed.clone())).unwrap()
}

fn outcome(report: &VerifyReport, name: &str) -> Option<FileOutcome> {
    let mut files = report.files.iter().filter(|file| file.name == name);
    files.next().map(|file| file.outcome)
}

#[test]
fn signed_files_are_compared_and_all_others_are_extra() {
    let (folder, signed) = model();
    let at = |name: &str| folder.path().join(name);
    // Left out on purpose, with everything below.
    write(&at("model.sig"), b"{}");
    write(&at(".git/hooks/evil"), b"x");
    let report = against(folder.path(), &signed);
    assert!(report.ok(), "{:?}", report.error());
    assert_eq!(report.count(FileOutcome::Matches), 3);
    let by = format!("signature {}", at("model.sig").display());
    assert!(
        report
            .files
            .iter()
            .all(|file| file.verified_by == [by.clone()])
    );

    for (name, good) in [("config.json", &b"{}"[..]), ("code/model.py", b"pass")] {
        write(&at(name), b"evil");
        let report = against(folder.path(), &signed);
        assert_eq!(outcome(&report, name), Some(FileOutcome::Differs), "{name}");
        let error = report.error().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let comparison = error.comparison().unwrap();
        assert_eq!(comparison.expected, signed.files[name].to_string());
        assert_eq!(comparison.found, sha256(&at(name)).to_string());
        assert_eq!(comparison.by, by);
        std::fs::remove_file(at(name)).unwrap();
        let report = against(folder.path(), &signed);
        assert_eq!(outcome(&report, name), Some(FileOutcome::Missing), "{name}");
        write(&at(name), good);
    }
    // Refused whatever it is: a file, a hidden one, one with weights, a link.
    for name in ["evil.py", "a/.hidden", "more.safetensors", "code/link"] {
        if name.ends_with("link") {
            std::os::unix::fs::symlink("/etc/hostname", at(name)).unwrap();
        } else {
            write(&at(name), &read(&at(SHARD)));
        }
        let report = against(folder.path(), &signed);
        assert_eq!(outcome(&report, name), Some(FileOutcome::Extra), "{name}");
        let error = report.error().unwrap();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Corrupt, "is not signed")
        );
        assert!(error.location().unwrap().starts_with(name), "{error}");
        std::fs::remove_file(at(name)).unwrap();
    }
    assert!(against(folder.path(), &signed).ok());
}

#[test]
fn unsigned_sidecars_do_not_vouch_for_files() {
    let (folder, signed) = model();
    let shard = folder.path().join(SHARD);
    let forged = FileBuilder::new().tensor("t", Dtype::U8, &[4], b"evil");
    write(&shard, &forged.build());
    verify(folder.path(), |it| it.write = Some(ManifestTarget::Beside)).unwrap();
    // A signature that is added later is ignored, whatever it holds.
    write(&folder.path().join("model.sig"), b"no signature at all");
    let report = against(folder.path(), &signed);
    assert_eq!(outcome(&report, SHARD), Some(FileOutcome::Differs));
    assert_eq!(outcome(&report, MANIFEST_NAME), Some(FileOutcome::Extra));
    // Unsigned weights are refused even if a manifest has them.
    let mut fewer = signed;
    fewer.files.remove(SHARD);
    let report = against(folder.path(), &fewer);
    assert_eq!(outcome(&report, SHARD), Some(FileOutcome::Extra));
    assert_eq!(report.error().unwrap().kind(), ErrorKind::Corrupt);
}

#[test]
fn single_file_is_compared_with_note_about_rest() {
    let (folder, signed) = model();
    write(&folder.path().join("evil.py"), b"x");
    let report = against(&folder.path().join(SHARD), &signed);
    assert!(report.ok(), "{:?}", report.error());
    assert_eq!(report.files.len(), 1);
    assert!(
        report.notes[0].contains("pass the directory"),
        "{:?}",
        report.notes
    );
    let unsigned = SignedFiles {
        files: BTreeMap::new(),
        ..signed
    };
    assert!(!against(&folder.path().join(SHARD), &unsigned).ok());
}

#[test]
fn signed_name_outside_directory_is_rejected_before_first_read() {
    let (folder, mut signed) = model();
    let digest = signed.files[SHARD];
    signed.files.insert("../outside".to_owned(), digest);
    let error = verify(folder.path(), |it| it.signed = Some(signed)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidFormat);
    assert!(error.message().contains("leaves the directory"), "{error}");
}

#[test]
fn signed_only_files_are_not_in_manifest() {
    let (folder, signed) = model();
    let report = verify(folder.path(), |it| {
        it.signed = Some(signed);
        it.write = Some(ManifestTarget::Beside);
    });
    assert!(report.unwrap().written.is_some());
    let manifest = Manifest::parse(&read(&folder.path().join(MANIFEST_NAME))).unwrap();
    assert_eq!(manifest.files.keys().collect::<Vec<_>>(), [SHARD]);
}

#[test]
fn signature_is_read_beside_named_location() {
    let (folder, _) = model();
    let of = |path: &Path| read_signature(&Location::from_path(path), OpenOptions::default());
    let error = of(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.message(), "there is no signature");
    let path = folder.path().join("model.sig");
    write(&path, b"{\"a\": 1}");
    for named in [folder.path(), &folder.path().join(SHARD)] {
        let found = of(named).unwrap();
        assert_eq!(found.text, b"{\"a\": 1}");
        assert_eq!(found.location.as_path(), Some(&*path));
    }
}

/// Returns a signature with an unsupported predicate type: none of it is compared.
fn some_signature() -> String {
    use base64::Engine as _;
    let statement =
        r#"{"_type": "https://in-toto.io/Statement/v1", "subject": [], "predicateType": "other"}"#;
    let payload = base64::prelude::BASE64_STANDARD.encode(statement);
    let kind = "application/vnd.in-toto+json";
    format!(r#"{{"dsseEnvelope": {{"payload": "{payload}", "payloadType": "{kind}"}}}}"#)
}

#[test]
fn manifest_beside_signature_is_noted() {
    let (folder, _) = model();
    let elsewhere = crate::files::folder();
    let record = |target: ManifestTarget| {
        let report = verify(folder.path(), |it| {
            (it.write, it.force) = (Some(target), true);
        });
        report.unwrap().notes
    };
    assert!(record(ManifestTarget::Beside).is_empty());
    write(
        &folder.path().join("model.sig"),
        some_signature().as_bytes(),
    );
    let notes = record(ManifestTarget::Beside);
    assert!(notes[0].contains("sign the model again"), "{notes:?}");
    let path = elsewhere.path().join("m.json");
    assert!(record(ManifestTarget::Path(path)).is_empty());
}

#[test]
fn unwritable_target_fails_before_reading() {
    let (folder, _) = model();
    let target = folder.path().join("none/m.json");
    let mut options = VerifyOptions::default();
    options.write = Some(ManifestTarget::Path(target.clone()));
    let verification = Verification::new(Location::from_path(folder.path())).options(options);
    let control = verification.control();
    let error = verification.run().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.location(), target.to_str());
    assert_eq!(control.progress().bytes_done, 0);
}

#[test]
fn unreadable_file_keeps_its_error() {
    let (folder, _) = model();
    let elsewhere = crate::files::folder();
    let outside = elsewhere.path().join("x.safetensors");
    let shard = folder.path().join(SHARD);
    std::fs::rename(&shard, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &shard).unwrap();
    let error = verify(folder.path(), |_| ()).unwrap().error().unwrap();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(error.location(), shard.to_str());
    assert!(error.message().starts_with("a symbolic link"), "{error}");
    assert!(error.hint().unwrap().contains("follow_symlinks"), "{error}");
}
