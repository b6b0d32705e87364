//! Checkpoints whose files all match a manifest and which are a different checkpoint nonetheless:
//! by their index, or by a missing file. On a file system and in an object store.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tload::verify::{
    Algorithm, Digest, FileOutcome, ManifestTarget, Verification, VerifyOptions, VerifyReport,
};
use tload::{
    Checkpoint, Dtype, Error, ErrorKind, Loader, Location, OpenOptions, Report, Result, Selection,
    Tensor, Verify,
};
use tload_testing::fixtures::{FileBuilder, Rng};

use crate::fixtures::{even, folder, index, options, read};
use crate::sites::{self, Site};

const INDEX: &str = "model.safetensors.index.json";

/// Files of a checkpoint, by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Returns an index that maps each tensor to the shard of its first letter, except `x0`.
fn placing(tensors: &[&str], x: &str) -> Vec<u8> {
    let shard = |tensor: &str| match tensor {
        "x0" => format!("{x}.safetensors"),
        _ => format!("{}.safetensors", &tensor[..1]),
    };
    let placed = tensors
        .iter()
        .map(|tensor| ((*tensor).to_owned(), shard(tensor)));
    let placed: Vec<_> = placed.collect();
    let placed: Vec<_> = placed
        .iter()
        .map(|(tensor, shard)| (tensor.clone(), shard.as_str()))
        .collect();
    index(&placed)
}

fn without_index() -> Files {
    [
        ("a.safetensors", even("a", 1, 2, 3_000)),
        ("b.safetensors", even("b", 2, 2, 3_000)),
        ("config.json", b"{}".to_vec()),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

fn with_index() -> Files {
    let mut files = without_index();
    let index = placing(&["a0", "a1", "b0", "b1"], "");
    files.insert(INDEX.to_owned(), index);
    files
}

const SHARED: [&str; 5] = ["a0", "a1", "b0", "b1", "x0"];

/// Both shards have a tensor `x0`; the index says which one is used.
fn shared() -> Files {
    let shard = |prefix: &str, seed| {
        let mut rng = Rng::new(seed);
        let names = [format!("{prefix}0"), format!("{prefix}1"), "x0".to_owned()];
        let file = names.iter().fold(FileBuilder::new(), |file, name| {
            file.tensor(name, Dtype::U8, &[3_000], &rng.bytes(3_000))
        });
        file.build()
    };
    [
        ("a.safetensors", shard("a", 1)),
        ("b.safetensors", shard("b", 2)),
        (INDEX, placing(&SHARED, "a")),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

struct Attack {
    name: &'static str,
    files: fn() -> Files,
    change: fn(&mut Files),
    /// All bytes of each file are read; only then can SHA-256 be compared.
    reads_all: bool,
    kind: ErrorKind,
    /// Fragment of the error's message.
    message: &'static str,
    /// File and outcome in the report of a full verification.
    found: (&'static str, FileOutcome),
}

fn attacks() -> [Attack; 5] {
    [
        Attack {
            name: "an index that omits a shard",
            files: with_index,
            change: |files| drop(files.insert(INDEX.to_owned(), placing(&["a0", "a1"], ""))),
            reads_all: true,
            kind: ErrorKind::Corrupt,
            message: "bytes, and manifest ",
            found: (INDEX, FileOutcome::Differs),
        },
        Attack {
            name: "an index that points a tensor at another file",
            files: shared,
            change: |files| drop(files.insert(INDEX.to_owned(), placing(&SHARED, "b"))),
            reads_all: false,
            kind: ErrorKind::Corrupt,
            message: "the bytes do not match manifest ",
            found: (INDEX, FileOutcome::Differs),
        },
        Attack {
            name: "an index that is added",
            files: without_index,
            change: |files| drop(files.insert(INDEX.to_owned(), placing(&["a0", "a1"], ""))),
            reads_all: true,
            kind: ErrorKind::InvalidRequest,
            message: "does not list it",
            found: (INDEX, FileOutcome::Extra),
        },
        Attack {
            name: "an index that is removed",
            files: with_index,
            change: |files| drop(files.remove(INDEX)),
            reads_all: true,
            kind: ErrorKind::Corrupt,
            message: "lists \"model.safetensors.index.json\", which is not a file of the checkpoint",
            found: (INDEX, FileOutcome::Missing),
        },
        Attack {
            name: "a missing shard that no index names",
            files: without_index,
            change: |files| drop(files.remove("b.safetensors")),
            reads_all: true,
            kind: ErrorKind::Corrupt,
            message: "lists \"b.safetensors\", which is not a file of the checkpoint",
            found: ("b.safetensors", FileOutcome::Missing),
        },
    ]
}

/// Files in a folder and in a store, with their manifest apart from both.
struct Places {
    model: TempDir,
    site: Site,
    manifest: (TempDir, PathBuf),
}

impl Places {
    fn new(files: &Files) -> Self {
        let safe = folder();
        let manifest = safe.path().join("manifest.json");
        let places = Self {
            model: folder(),
            site: sites::faulty(),
            manifest: (safe, manifest.clone()),
        };
        places.fill(files);
        let mut options = VerifyOptions::default();
        options.write = Some(ManifestTarget::Path(manifest));
        let location = Location::from_path(places.model.path());
        let report = Verification::new(&location).options(options).run();
        let report = report.expect("reads");
        assert!(report.written.is_some(), "{report:?}");
        places
    }

    /// Replaces the files of the folder with these, and puts them into the store under a prefix of
    /// their own.
    fn fill(&self, files: &Files) {
        for entry in std::fs::read_dir(self.model.path()).expect("readable") {
            std::fs::remove_file(entry.expect("listed").path()).expect("removable");
        }
        for (name, bytes) in files {
            std::fs::write(self.model.path().join(name), bytes).expect("writable");
            self.site.put(&format!("{}/{name}", prefix(files)), bytes);
        }
    }

    /// Opens the checkpoint in each place.
    fn checkpoints(&self, files: &Files) -> [Checkpoint; 2] {
        let local = Checkpoint::open(Location::from_path(self.model.path()));
        [local, self.site.checkpoint(&prefix(files))].map(|opened| opened.expect("opens"))
    }

    fn sha256(&self) -> Verify {
        let path = self.manifest.1.to_str().expect("UTF-8");
        format!("sha256:{path}").parse().expect("a choice")
    }

    /// Returns the verification modes that name the manifest.
    fn choices(&self, reads_all: bool) -> Vec<Verify> {
        let sha256 = reads_all.then(|| self.sha256());
        sha256.into_iter().chain([self.crc()]).collect()
    }

    fn crc(&self) -> Verify {
        let path = self.manifest.1.to_str().expect("UTF-8");
        path.parse().expect("a choice")
    }

    /// Returns the reports of full verifications.
    fn verified(&self, files: &Files) -> [VerifyReport; 2] {
        let local = Location::from_path(self.model.path());
        let remote = self.site.location(&prefix(files));
        [local, remote].map(|location| {
            let mut options = VerifyOptions::default();
            options.manifest = Some(Location::from_path(&self.manifest.1));
            let opening: OpenOptions = self.site.options.clone().into();
            let verification = Verification::new(&location).options(options);
            verification.opening(opening).run().expect("reads")
        })
    }
}

/// Returns a prefix unique to these files.
fn prefix(files: &Files) -> String {
    let bytes = files.iter().flat_map(|(name, bytes)| {
        let name = name.bytes();
        name.chain(bytes.iter().copied())
    });
    let sum = bytes.fold(7_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    format!("model-{sum:x}")
}

fn load(
    checkpoint: &Checkpoint,
    choice: &Verify,
    selection: Selection,
) -> Result<(Vec<Tensor>, Report), Error> {
    let loader = Loader::new(checkpoint.clone()).select(selection);
    let loader = loader.options(options(|it| it.verify = choice.clone()));
    let mut stream = loader.stream()?;
    let tensors = stream.by_ref().collect::<Result<Vec<_>>>()?;
    Ok((tensors, stream.report()))
}

fn glob() -> Selection {
    Selection::glob("*").expect("a glob")
}

#[test]
fn tampered_index_or_file_set_is_rejected() {
    for attack in attacks() {
        let what = attack.name;
        let mut files = (attack.files)();
        let places = Places::new(&files);
        for checkpoint in places.checkpoints(&files) {
            for choice in places.choices(attack.reads_all) {
                let (tensors, report) = load(&checkpoint, &choice, Selection::all()).expect(what);
                assert_eq!(tensors.len(), checkpoint.tensors().len());
                let verification = report.verification.expect("was requested");
                assert_eq!(verification.unverified_files, 0, "{what}");
            }
        }
        for report in places.verified(&files) {
            assert!(report.error().is_none(), "{what}: {report:?}");
        }

        (attack.change)(&mut files);
        places.fill(&files);
        for checkpoint in places.checkpoints(&files) {
            let unseen = load(&checkpoint, &Verify::Off, Selection::all());
            unseen.expect("a valid checkpoint by itself");
            for choice in places.choices(attack.reads_all) {
                for selection in [Selection::all(), glob()] {
                    let error = load(&checkpoint, &choice, selection).expect_err(what);
                    let shown = error.chain();
                    assert_eq!(error.kind(), attack.kind, "{what}, {choice}: {shown}");
                    let message = error.message();
                    assert!(
                        message.contains(attack.message),
                        "{what}, {choice}: {shown}"
                    );
                    assert!(error.location().is_some(), "{shown}");
                    assert!(error.hint().is_some(), "{shown}");
                }
            }
        }
        for report in places.verified(&files) {
            assert!(report.error().is_some(), "{what}: {report:?}");
            let (name, outcome) = attack.found;
            let file = report.files.iter().find(|file| file.name == name);
            assert_eq!(file.expect(name).outcome, outcome, "{what}");
        }
    }
}

#[test]
fn named_files_and_tensors_may_be_part_of_manifest() {
    let mut files = without_index();
    let places = Places::new(&files);
    files.remove("b.safetensors");
    places.fill(&files);
    let names = || Selection::names(["a0", "a1"]);
    for checkpoint in places.checkpoints(&files) {
        for choice in [places.sha256(), places.crc()] {
            let (tensors, _) = load(&checkpoint, &choice, names()).expect("the tensors were named");
            assert_eq!(tensors.len(), 2);
        }
    }
    let single = places.model.path().join("a.safetensors");
    let remote = format!("{}/a.safetensors", prefix(&files));
    let single = Location::from_path(single);
    for checkpoint in [
        Checkpoint::open(&single).expect("opens"),
        Checkpoint::open_all(&[single]).expect("opens"),
        places.site.checkpoint(&remote).expect("opens"),
    ] {
        for choice in [places.sha256(), places.crc()] {
            load(&checkpoint, &choice, Selection::all()).expect("the file was named");
        }
    }
    // A different index is an error also for named tensors: it decides which file they are in.
    let mut files = with_index();
    let places = Places::new(&files);
    files.insert(INDEX.to_owned(), placing(&["a0", "a1"], ""));
    places.fill(&files);
    for checkpoint in places.checkpoints(&files) {
        for choice in [places.sha256(), places.crc()] {
            let error = load(&checkpoint, &choice, names()).expect_err("the index differs");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain());
        }
    }
}

/// As older versions or other programs may have written it.
#[test]
fn manifest_without_index_is_rejected_with_hint() {
    let files = with_index();
    let places = Places::new(&files);
    let path = &places.manifest.1;
    let edit = |edit: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>)| {
        let text = read(path);
        let mut manifest: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        edit(manifest["files"].as_object_mut().expect("files"));
        std::fs::write(path, manifest.to_string()).expect("writable");
    };
    edit(&|files| assert!(files.remove(INDEX).is_some()));
    for checkpoint in places.checkpoints(&files) {
        for choice in [places.sha256(), places.crc()] {
            for selection in [Selection::all(), Selection::names(["a0"])] {
                let error =
                    load(&checkpoint, &choice, selection).expect_err("the index is not listed");
                assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{}", error.chain());
                let hint = error.hint().expect("a hint");
                assert!(
                    hint.contains("tload verify LOCATION --write --force"),
                    "{hint}"
                );
                let location = error.location().expect("a location");
                assert!(location.ends_with(INDEX), "{location}");
            }
        }
    }
}

/// A manifest beside the checkpoint is used even if the caller does not name it, and so is a
/// signature.
#[test]
fn index_is_compared_with_adjacent_manifest_or_signature() {
    let all = [Verify::Auto, Verify::Require, Verify::Sha256(None)];
    for (beside, choices) in [
        ("tload-manifest.json", &all[..]),
        ("model.sig", &[Verify::Sha256(None)]),
    ] {
        let mut files = with_index();
        let places = Places::new(&files);
        let said = match beside {
            "model.sig" => signature(&files),
            _ => read(&places.manifest.1),
        };
        files.insert(beside.to_owned(), said);
        places.fill(&files);
        for checkpoint in places.checkpoints(&files) {
            for choice in choices {
                load(&checkpoint, choice, Selection::all()).expect("everything matches");
            }
        }
        files.insert(INDEX.to_owned(), placing(&["a0", "a1"], ""));
        places.fill(&files);
        for checkpoint in places.checkpoints(&files) {
            for choice in choices {
                let error =
                    load(&checkpoint, choice, Selection::all()).expect_err("the index differs");
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain());
                let location = error.location().expect("a location");
                assert!(location.ends_with(INDEX), "{}", error.chain());
            }
        }
    }
}

/// Returns a signature of these files, as model-signing makes it.
fn signature(files: &Files) -> Vec<u8> {
    let kind = "application/vnd.in-toto+json";
    let digests = files.values().map(Sha256::digest);
    let root = digests.fold(Sha256::new(), sha2::Digest::chain_update);
    let resources = files.iter().map(|(name, bytes)| {
        let digest = hexadecimal(&Sha256::digest(bytes));
        json!({"name": name, "algorithm": "sha256", "digest": digest})
    });
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "https://model_signing/signature/v1.0",
        "subject": [{"digest": {"sha256": hexadecimal(&root.finalize())}}],
        "predicate": {
            "serialization": {"method": "files"},
            "resources": resources.collect::<Vec<_>>(),
        },
    });
    let payload = BASE64_STANDARD.encode(statement.to_string());
    let envelope = json!({"payload": payload, "payloadType": kind});
    json!({"dsseEnvelope": envelope}).to_string().into_bytes()
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digest = Digest::new(Algorithm::Sha256, bytes).expect("32 bytes");
    digest.to_string()["sha256:".len()..].to_owned()
}
