//! Verification of whole checkpoints: good files match, and one flipped bit is found and named.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tload::verify::{
    FileOutcome, MANIFEST_NAME, Manifest, ManifestTarget, Verification, Verify, VerifyOptions,
    VerifyReport, find,
};
use tload::{Checkpoint, Dtype, ErrorKind, Location, Result};
use tload_testing::fixtures::{FileBuilder, Rng};

/// Folder with two shards and an index.
struct Model(TempDir);

/// Length of a tensor that takes more than two reads of a verification; others are short or empty.
const LONG: usize = 9 << 20;

const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "sub/model-00002-of-00002.safetensors",
];
const INDEX: &str = "model.safetensors.index.json";

impl Model {
    fn new() -> Self {
        let model = Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let mut rng = Rng::new(7);
        let mut shard = |prefix: &str, lens: [usize; 4]| {
            let tensors = lens.into_iter().enumerate();
            let file = tensors.fold(FileBuilder::new(), |file, (at, len)| {
                file.tensor(&format!("{prefix}{at}"), Dtype::U8, &[len], &rng.bytes(len))
            });
            file.build()
        };
        model.put(SHARDS[0], &shard("a", [10, LONG, 0, 1001]));
        model.put(SHARDS[1], &shard("b", [1, 0, 70_000, 0]));
        let placed = |prefix: &'static str, shard: &'static str| {
            (0..4).map(move |at| format!("\"{prefix}{at}\": \"{shard}\""))
        };
        let placed: Vec<_> = placed("a", SHARDS[0])
            .chain(placed("b", SHARDS[1]))
            .collect();
        let index = format!("{{\"weight_map\": {{{}}}}}", placed.join(","));
        model.put(INDEX, index.as_bytes());
        model
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        #[expect(clippy::disallowed_methods, reason = "a test looks at files")]
        fs::read(self.path(name)).unwrap()
    }

    fn run(&self, set: impl FnOnce(&mut VerifyOptions)) -> Result<VerifyReport> {
        verify(self.0.path(), set)
    }

    /// Writes a manifest beside the model.
    fn record(&self) -> Manifest {
        let report = self
            .run(|it| it.write = Some(ManifestTarget::Beside))
            .unwrap();
        assert!(report.ok(), "{:?}", report.error());
        let path = self.path(MANIFEST_NAME).display().to_string();
        assert_eq!(report.written, Some(path));
        Manifest::parse(&self.bytes(MANIFEST_NAME)).unwrap()
    }

    /// Returns the tensors of a shard with their ranges.
    fn tensors(&self, name: &str) -> Vec<(String, std::ops::Range<u64>)> {
        let checkpoint = Checkpoint::open(Location::from_path(self.path(name))).unwrap();
        let tensors = checkpoint.tensors().iter();
        tensors
            .map(|tensor| (tensor.name().to_owned(), tensor.file_range()))
            .collect()
    }
}

fn verify(path: &Path, set: impl FnOnce(&mut VerifyOptions)) -> Result<VerifyReport> {
    let mut options = VerifyOptions::default();
    set(&mut options);
    Verification::new(Location::from_path(path))
        .options(options)
        .run()
}

fn nothing(_: &mut VerifyOptions) {}

fn outcomes(report: &VerifyReport) -> Vec<(&str, FileOutcome)> {
    let files = report.files.iter();
    files
        .map(|file| (file.name.as_str(), file.outcome))
        .collect()
}

#[test]
fn written_manifest_verifies_and_is_reproducible() {
    let model = Model::new();
    let manifest = model.record();
    let names: Vec<_> = manifest.files.keys().map(String::as_str).collect();
    assert_eq!(names, [SHARDS[0], INDEX, SHARDS[1]]);
    for name in SHARDS {
        let said = &manifest.files[name];
        assert_eq!(said.bytes, model.bytes(name).len() as u64);
        let mut listed: Vec<_> = said
            .tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.range.clone()))
            .collect();
        listed.sort_by_key(|(_, range)| (range.start, range.end));
        let mut wanted = model.tensors(name);
        wanted.sort_by_key(|(_, range)| (range.start, range.end));
        assert_eq!(listed.len(), 4);
        let sorted = |mut all: Vec<(String, std::ops::Range<u64>)>| {
            all.sort_by_key(|(name, _)| name.clone());
            all
        };
        assert_eq!(sorted(listed), sorted(wanted));
    }
    assert!(manifest.files[INDEX].tensors.is_empty());

    let report = model.run(nothing).unwrap();
    assert!(report.ok(), "{:?}", report.error());
    let bytes: usize = [SHARDS[0], INDEX, SHARDS[1]]
        .map(|name| model.bytes(name).len())
        .iter()
        .sum();
    assert_eq!(report.bytes, bytes as u64);
    for file in &report.files {
        assert_eq!(file.outcome, FileOutcome::Matches);
        let by = format!("manifest {}", model.path(MANIFEST_NAME).display());
        assert_eq!(file.verified_by, [by]);
    }
    // A single file or an index is compared with the same manifest, and no other file is missing.
    for (name, files) in [(SHARDS[0], 1), (INDEX, 3)] {
        let report = verify(&model.path(name), nothing).unwrap();
        assert_eq!(
            (report.ok(), report.files.len()),
            (true, files),
            "{name}: {:?}",
            report.error()
        );
    }
    let before = model.bytes(MANIFEST_NAME);
    let again = model.run(|it| (it.write, it.force) = (Some(ManifestTarget::Beside), true));
    assert!(again.unwrap().ok());
    assert_eq!(model.bytes(MANIFEST_NAME), before);
}

#[test]
fn flipped_bit_anywhere_is_found_and_named() {
    let model = Model::new();
    model.record();
    for name in SHARDS {
        let good = model.bytes(name);
        let tensors = model.tensors(name);
        let header_end = tensors.iter().map(|(_, range)| range.start).min().unwrap();
        let mut at: Vec<u64> = vec![
            0,
            7,
            8,
            header_end / 2,
            header_end - 1,
            good.len() as u64 - 1,
        ];
        for (_, range) in tensors.iter().filter(|(_, range)| !range.is_empty()) {
            at.extend([
                range.start,
                range.end - 1,
                range.start + (range.end - range.start) / 2,
            ]);
        }
        for at in at {
            let mut bad = good.clone();
            bad[usize::try_from(at).unwrap()] ^= 0x10;
            model.put(name, &bad);
            let report = model.run(nothing).unwrap();
            let error = report.error().expect("a bit is flipped");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {error}");
            assert!(error.location().unwrap().starts_with(name), "{error}");
            let owner = tensors.iter().find(|(_, range)| range.contains(&at));
            assert_eq!(error.tensor(), owner.map(|(name, _)| name.as_str()), "{at}");
            let wanted = owner.map_or(0..header_end, |(_, range)| range.clone());
            assert_eq!(error.range(), Some(wanted), "{at}");
            let algorithm = if owner.is_some() {
                "crc64nvme"
            } else {
                "blake3"
            };
            let (expected, found) = (
                format!("expected {algorithm}:"),
                format!("), found {algorithm}:"),
            );
            assert!(error.message().starts_with(&expected), "{error}");
            assert!(error.message().contains(&found), "{error}");
            let others = report.files.iter().filter(|file| file.name != name);
            assert!(
                others
                    .into_iter()
                    .all(|file| file.outcome == FileOutcome::Matches)
            );
            // No manifest is written if a file differs.
            let refused = model.run(|it| {
                it.write = Some(ManifestTarget::Path(model.path("other.json")));
            });
            assert_eq!(refused.unwrap().written, None);
            assert!(!model.path("other.json").exists());
        }
        model.put(name, &good);
    }
    let index = model.bytes(INDEX);
    model.put(
        INDEX,
        &String::from_utf8(index)
            .unwrap()
            .replace("\"a0\"", "\"a9\"")
            .into_bytes(),
    );
    let error = model.run(nothing).unwrap().error().expect("another index");
    assert!(error.location().unwrap().starts_with(INDEX), "{error}");
}

#[test]
fn report_lists_all_bad_files() {
    let model = Model::new();
    model.record();
    let mut short = model.bytes(SHARDS[0]);
    short.truncate(short.len() - 1);
    model.put(SHARDS[0], &short);
    fs::remove_file(model.path(SHARDS[1])).unwrap();
    let report = model.run(nothing).unwrap();
    let wanted = [
        (SHARDS[0], FileOutcome::Differs),
        (INDEX, FileOutcome::Matches),
        (SHARDS[1], FileOutcome::Missing),
    ];
    assert_eq!(outcomes(&report), wanted);
    let mismatch = &report.files[0].mismatches[0];
    let len = short.len() as u64;
    assert_eq!(mismatch.range, len..len + 1);
    assert_eq!(mismatch.expected, format!("{} bytes", len + 1));
    assert_eq!(mismatch.found, format!("{len} bytes"));
    let error = report.error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("1 more of its files"), "{error}");

    let mut long = short;
    long.extend([0, 0]);
    model.put(SHARDS[0], &long);
    // Without its index the folder consists of the files in the manifest.
    fs::remove_file(model.path(INDEX)).unwrap();
    model.put("extra.safetensors", &FileBuilder::new().build());
    let report = model.run(nothing);
    let report = report.unwrap();
    let outcome = |name: &str| {
        let mut files = report.files.iter().filter(|file| file.name == name);
        files.next().map(|file| file.outcome)
    };
    assert_eq!(outcome(SHARDS[0]), Some(FileOutcome::Differs));
    assert_eq!(outcome(INDEX), Some(FileOutcome::Missing));
    assert_eq!(outcome(SHARDS[1]), Some(FileOutcome::Missing));
}

#[test]
fn shard_missing_from_manifest_is_extra() {
    let folder = Model(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let shard = |name: &str| {
        FileBuilder::new()
            .tensor(name, Dtype::U8, &[1], &[1])
            .build()
    };
    folder.put("a.safetensors", &shard("a"));
    let report = folder
        .run(|it| it.write = Some(ManifestTarget::Beside))
        .unwrap();
    assert!(report.ok());
    folder.put("b.safetensors", &shard("b"));
    let report = folder.run(nothing).unwrap();
    let wanted = [
        ("a.safetensors", FileOutcome::Matches),
        ("b.safetensors", FileOutcome::Extra),
    ];
    assert_eq!(outcomes(&report), wanted);
    let error = report.error().unwrap();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Corrupt, "is not in the manifest")
    );
    fs::remove_file(folder.path("a.safetensors")).unwrap();
    fs::remove_file(folder.path("b.safetensors")).unwrap();
    let report = folder.run(nothing).unwrap();
    assert_eq!(outcomes(&report), [("a.safetensors", FileOutcome::Missing)]);
}

#[test]
fn left_out_files_are_named_and_no_part_of_manifest() {
    let folder = Model(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    for name in ["adapter_model", "model"] {
        let file = FileBuilder::new().tensor(name, Dtype::U8, &[1], &[1]);
        folder.put(&format!("{name}.safetensors"), &file.build());
    }
    let report = folder
        .run(|it| it.write = Some(ManifestTarget::Beside))
        .unwrap();
    let file = report.files.iter().map(|file| file.name.as_str());
    assert!(file.eq(["model.safetensors"]));
    let note = report.notes.concat();
    assert!(
        note.contains("left out: adapter_model.safetensors"),
        "{note}"
    );
    assert!(folder.run(nothing).unwrap().ok());
}

#[test]
fn unknown_files_fail_until_manifest_is_written() {
    let model = Model::new();
    let report = model.run(nothing).unwrap();
    assert!(
        report
            .files
            .iter()
            .all(|file| file.outcome == FileOutcome::Unverified)
    );
    assert_eq!(report.bytes, 0, "nothing to compare, nothing to read");
    let error = report.error().expect("nothing was compared");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("--write"), "{error}");
    for silent in [
        "there is no tload-manifest.json",
        "neither in a huggingface_hub cache",
        "there is no model.sig",
    ] {
        let said = &report.files[0].silent;
        assert!(said.iter().any(|why| why.contains(silent)), "{said:?}");
    }
}

#[test]
fn manifest_is_replaced_only_with_force_and_then_not_compared() {
    let model = Model::new();
    model.record();
    let beside = || Some(ManifestTarget::Beside);
    let error = model.run(|it| it.write = beside()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert!(error.message().contains("already exists"), "{error}");
    let bytes = model.bytes(SHARDS[1]);
    let mut other = bytes.clone();
    *other.last_mut().unwrap() ^= 1;
    model.put(SHARDS[1], &other);
    assert!(!model.run(nothing).unwrap().ok());
    // With another target it is an additional manifest, and the existing one is compared with.
    let elsewhere = model.path("elsewhere.json");
    let report = model
        .run(|it| it.write = Some(ManifestTarget::Path(elsewhere.clone())))
        .unwrap();
    assert_eq!((report.ok(), report.written), (false, None));
    let report = model
        .run(|it| (it.write, it.force) = (beside(), true))
        .unwrap();
    assert!(report.ok() && report.written.is_some());
    assert!(model.run(nothing).unwrap().ok());
    // Another path of the same file.
    let again = model.path("sub/..").join(MANIFEST_NAME);
    model.put(SHARDS[1], &bytes);
    let report = model
        .run(|it| (it.write, it.force) = (Some(ManifestTarget::Path(again)), true))
        .unwrap();
    assert!(report.ok() && report.written.is_some());
    assert!(model.run(nothing).unwrap().ok());

    let report = model
        .run(|it| it.write = Some(ManifestTarget::Path(elsewhere.clone())))
        .unwrap();
    assert!(report.ok());
    fs::remove_file(model.path(MANIFEST_NAME)).unwrap();
    let with = |it: &mut VerifyOptions| it.manifest = Some(Location::from_path(elsewhere.clone()));
    assert!(model.run(with).unwrap().ok());
    let error = model
        .run(|it| it.manifest = Some(Location::from_path("none.json")))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn broken_header_is_compared_with_manifest_and_fails_without() {
    let model = Model::new();
    let good = model.bytes(SHARDS[1]);
    let mut bad = good.clone();
    bad[9] = b'}';
    model.put(SHARDS[1], &bad);
    let report = model.run(nothing).unwrap();
    assert_eq!(report.error().unwrap().kind(), ErrorKind::InvalidFormat);
    let file = report
        .files
        .iter()
        .find(|file| file.name == SHARDS[1])
        .unwrap();
    assert_eq!(file.outcome, FileOutcome::Failed);
    let report = model
        .run(|it| it.write = Some(ManifestTarget::Beside))
        .unwrap();
    assert_eq!(report.written, None);
    // Only the expectation counts, whether the file is a valid checkpoint or not.
    model.put(SHARDS[1], &good);
    model.record();
    model.put(SHARDS[1], &bad);
    let report = model.run(nothing).unwrap();
    let file = report
        .files
        .iter()
        .find(|file| file.name == SHARDS[1])
        .unwrap();
    assert_eq!(
        (file.outcome, file.mismatches.len()),
        (FileOutcome::Differs, 1)
    );
}

#[test]
fn hostile_manifests_are_rejected_and_named() {
    let model = Model::new();
    let manifest = String::from_utf8({
        model.record();
        model.bytes(MANIFEST_NAME)
    })
    .unwrap();
    let path = model.path(MANIFEST_NAME).display().to_string();
    for (text, kind) in [
        (
            manifest.replace(SHARDS[1], "../outside.safetensors"),
            ErrorKind::InvalidFormat,
        ),
        (
            manifest.replace(SHARDS[1], "/etc/passwd"),
            ErrorKind::InvalidFormat,
        ),
        (
            manifest.replace("\"tload_manifest\": 1", "\"tload_manifest\": 2"),
            ErrorKind::Unsupported,
        ),
        (
            manifest.replacen("\"bytes\": ", "\"bytes\": 9999999999999999999999", 1),
            ErrorKind::InvalidFormat,
        ),
        (" ".repeat(100 << 20), ErrorKind::InvalidFormat),
        ("[".repeat(10 << 20), ErrorKind::InvalidFormat),
        (String::new(), ErrorKind::InvalidFormat),
    ] {
        model.put(MANIFEST_NAME, text.as_bytes());
        let error = model.run(nothing).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.location(), Some(path.as_str()));
        assert!(error.to_string().len() < 1000);
        let checkpoint = Checkpoint::open(Location::from_path(model.0.path())).unwrap();
        assert_eq!(find(&checkpoint, &Verify::Auto).unwrap_err().kind(), kind);
    }
    fs::remove_file(model.path(MANIFEST_NAME)).unwrap();
    let file = fs::File::create(model.path(MANIFEST_NAME)).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = model.run(nothing).unwrap_err();
    assert!(error.message().contains("at most 256.0 MiB"), "{error}");
    fs::remove_file(model.path(MANIFEST_NAME)).unwrap();
    fs::create_dir(model.path(MANIFEST_NAME)).unwrap();
    assert_eq!(
        model.run(nothing).unwrap_err().kind(),
        ErrorKind::InvalidRequest
    );
}

#[test]
fn find_returns_manifest_expectations() {
    let model = Model::new();
    let checkpoint = Checkpoint::open(Location::from_path(model.0.path())).unwrap();
    let expected = |choice: &Verify| find(&checkpoint, choice);
    for expectation in expected(&Verify::Auto).unwrap() {
        let tload::verify::Expectation::Nothing { why } = expectation else {
            panic!("{expectation:?}");
        };
        assert!(why.contains("there is no tload-manifest.json"), "{why}");
    }
    let manifest = model.record();
    let path = model.path(MANIFEST_NAME).display().to_string();
    for choice in [Verify::Auto, Verify::Require, Verify::Manifest(path)] {
        let found = expected(&choice).unwrap();
        assert_eq!(found.len(), checkpoint.shards().len());
        for (shard, expectation) in checkpoint.shards().iter().zip(found) {
            let tload::verify::Expectation::Of(expected) = expectation else {
                panic!("{expectation:?}");
            };
            let name = shard.location().as_path().unwrap();
            let name = name.strip_prefix(model.0.path()).unwrap().to_str().unwrap();
            let said = &manifest.files[name];
            assert_eq!(expected.len, Some(said.bytes));
            assert_eq!(expected.whole, Some(said.crc64nvme));
            assert!(expected.by.starts_with("manifest "));
            assert_eq!(expected.tensors.len(), said.tensors.len());
            for (tensor, digest) in expected.tensors {
                assert_eq!(digest, said.tensors[&tensor].crc64nvme);
            }
        }
    }
    let error = expected(&Verify::Manifest("none.json".to_owned())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(expected(&Verify::Off).unwrap().len(), 2);
}

#[test]
fn cancelled_verification_writes_no_manifest() {
    let model = Model::new();
    let mut options = VerifyOptions::default();
    options.write = Some(ManifestTarget::Beside);
    let verification = Verification::new(Location::from_path(model.0.path())).options(options);
    let control = verification.control();
    control.cancel();
    assert_eq!(verification.run().unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(!model.path(MANIFEST_NAME).exists());
    assert_eq!(control.progress().bytes_done, 0);
}
