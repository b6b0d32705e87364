//! Patches made, applied to files and to memory, damaged, forged, and meant for another base.

#![expect(
    clippy::disallowed_methods,
    clippy::semicolon_if_nothing_returned,
    clippy::similar_names,
    reason = "compares files with std::fs; tables of closures; paths of patches"
)]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype as Type, TensorView, serialize};
use serde_json::{Value, json};
use tempfile::TempDir;
use tload::{Checkpoint, Error, ErrorKind, Result, Slice};

use super::*;

type Tensors = BTreeMap<String, (Type, Vec<usize>, Vec<u8>)>;

const ELEMENTS: usize = 3000;

fn numbers(seed: usize, len: usize) -> Vec<u8> {
    let number = |at: usize| u8::try_from((at * 7 + seed * 13 + at / 251) % 256);
    (0..len)
        .map(|at| number(at).expect("a remainder"))
        .collect()
}

fn tensors() -> Tensors {
    let mut tensors = Tensors::new();
    let names = ["a", "b", "c", "gone", "other_shape", "dense"];
    for (seed, name) in names.into_iter().enumerate() {
        let bytes = numbers(seed, 2 * ELEMENTS);
        tensors.insert(name.to_owned(), (Type::BF16, vec![30, 100], bytes));
    }
    tensors.insert("empty".to_owned(), (Type::F32, vec![0], Vec::new()));
    tensors.insert("bytes".to_owned(), (Type::U8, vec![1001], numbers(9, 1001)));
    tensors
}

fn flip(tensors: &mut Tensors, name: &str, at: usize) {
    tensors.get_mut(name).expect("there").2[at] ^= 0xFF;
}

/// Changes some elements, most of one tensor, a shape, and which tensors there are.
fn changed() -> Tensors {
    let mut tensors = nudged();
    tensors.get_mut("other_shape").expect("there").1 = vec![100, 30];
    tensors.remove("gone");
    tensors.insert("added".to_owned(), (Type::U8, vec![3], vec![1, 2, 3]));
    tensors
}

/// Only values differ: of some elements, and of most of one tensor.
fn nudged() -> Tensors {
    let mut tensors = tensors();
    for (name, at) in [("a", 0), ("a", 2), ("a", 3), ("b", 5999), ("bytes", 500)] {
        flip(&mut tensors, name, at);
    }
    let dense = &mut tensors.get_mut("dense").expect("there").2;
    for byte in dense {
        *byte ^= 1;
    }
    tensors
}

fn write(path: &Path, tensors: &Tensors, metadata: Option<HashMap<String, String>>) -> PathBuf {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).expect("fits");
        (name, view)
    });
    fs::write(path, serialize(views, metadata).expect("serializes")).expect("a temporary folder");
    path.to_owned()
}

/// Writes two shards with an index.
fn write_shards(folder: &Path, tensors: &Tensors) {
    fs::create_dir(folder).expect("a temporary folder");
    let mut map = serde_json::Map::new();
    let mut halves = [Tensors::new(), Tensors::new()];
    for (number, (name, tensor)) in tensors.iter().enumerate() {
        halves[number % 2].insert(name.clone(), tensor.clone());
        let file = format!("model-0000{}-of-00002.safetensors", number % 2 + 1);
        map.insert(name.clone(), json!(file));
    }
    for (number, half) in halves.iter().enumerate() {
        let name = format!("model-0000{}-of-00002.safetensors", number + 1);
        write(&folder.join(name), half, None);
    }
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    fs::write(folder.join("model.safetensors.index.json"), index).expect("there is room");
}

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path).expect("opens")
}

fn make(base: &Path, new: &Path, patch: &Path) -> Summary {
    let (base, new) = (open(base), open(new));
    diff(&base, &new, patch, &Control::default()).expect("writes")
}

fn apply_to(base: &Path, patch: &Path, out: &Path) -> Result<Summary> {
    let patch = Patch::open(&Checkpoint::open(patch)?)?;
    apply(&Checkpoint::open(base)?, &patch, out, &Control::default())
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).expect("a folder");
    let paths = files.map(|it| it.expect("listed").path());
    let name = |path: &Path| {
        path.file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    };
    let read = |path: PathBuf| (name(&path), fs::read(&path).expect("written"));
    paths.map(read).collect()
}

/// Two versions of a checkpoint, and the patch between them.
struct Versions {
    folder: TempDir,
    summary: Summary,
}

impl Versions {
    fn new(new: &Tensors) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write_shards(&folder.path().join("base"), &tensors());
        write_shards(&folder.path().join("new"), new);
        let path = |name| folder.path().join(name);
        let summary = make(&path("base"), &path("new"), &path("patch.safetensors"));
        Self { folder, summary }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn patch(&self) -> PathBuf {
        self.path("patch.safetensors")
    }

    fn open(&self) -> Patch {
        Patch::open(&open(&self.patch())).expect("opens")
    }

    /// Applies the patch to `base`, which must fail and leave nothing behind.
    #[track_caller]
    fn refused(&self, base: &Path) -> Error {
        let before = contents_of_all(self.folder.path());
        let error = apply_to(base, &self.patch(), &self.path("out")).expect_err("refused");
        assert!(contents_of_all(self.folder.path()) == before, "{error}");
        error
    }
}

/// Returns the names of all files and folders, and the lengths of files.
fn contents_of_all(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("listed").path();
        let metadata = fs::metadata(&path).expect("there");
        if metadata.is_dir() {
            all.extend(contents_of_all(&path));
        }
        all.insert(
            path,
            if metadata.is_file() {
                metadata.len()
            } else {
                0
            },
        );
    }
    all
}

#[test]
fn applied_patch_gives_equal_files() {
    let versions = Versions::new(&changed());
    let summary = versions.summary;
    assert_eq!((summary.sparse, summary.whole, summary.removed), (3, 3, 1));
    assert_eq!((summary.tensors, summary.elements), (8, 4));
    let (base, out) = (versions.path("base"), versions.path("out"));
    let control = Control::default();
    let applied = apply(&open(&base), &versions.open(), &out, &control).expect("applies");
    assert_eq!(applied, summary);
    assert_eq!(control.bytes_done(), control.bytes_total());
    assert_eq!(control.bytes_total(), summary.total_bytes);
    assert!(contents(&out) == contents(&versions.path("new")));
    let again = apply_to(&base, &versions.patch(), &out).expect_err("exists");
    assert_eq!(again.kind(), ErrorKind::InvalidRequest);
    let names: Vec<_> = contents_of_all(versions.folder.path())
        .into_keys()
        .collect();
    assert!(
        !names
            .iter()
            .any(|it| it.to_string_lossy().contains("tload-tmp")),
        "{names:?}"
    );
}

#[test]
fn checkpoints_of_every_form_have_patches() {
    type Form = (&'static str, fn(&Path, &Tensors));
    let forms: [Form; 3] = [
        ("m.safetensors", |path, tensors| {
            drop(write(path, tensors, None))
        }),
        ("folder", |path, tensors| {
            fs::create_dir(path).expect("a temporary folder");
            let pairs = HashMap::from([("key".to_owned(), "value".to_owned())]);
            write(&path.join("model.safetensors"), tensors, Some(pairs));
        }),
        ("shards", write_shards),
    ];
    for (name, form) in forms {
        for new in [tensors(), nudged(), changed(), Tensors::new()] {
            if name == "shards" && new.is_empty() {
                continue;
            }
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = |version: &str| folder.path().join(version).join(name);
            for (version, tensors) in [("base", &tensors()), ("new", &new)] {
                fs::create_dir(folder.path().join(version)).expect("a temporary folder");
                form(&path(version), tensors);
            }
            let patch = folder.path().join("patch.safetensors");
            let summary = make(&path("base"), &path("new"), &patch);
            assert_eq!(summary.patch_bytes == 0, new == tensors() || new.is_empty());
            let out = folder.path().join("out");
            apply_to(&path("base"), &patch, &out).expect("applies");
            let wanted = match name {
                "m.safetensors" => folder.path().join("new"),
                _ => path("new"),
            };
            assert!(contents(&out) == contents(&wanted), "{name}");
        }
    }
}

#[test]
fn changes_that_are_not_kept_are_read_again() {
    let versions = Versions::new(&nudged());
    let (base, new) = (open(&versions.path("base")), open(&versions.path("new")));
    for kept_bytes_max in [0, 10, 20] {
        let again = versions.path(&format!("{kept_bytes_max}.safetensors"));
        let control = Control::default();
        let summary = diff::diff_keeping(&base, &new, &again, &control, kept_bytes_max);
        assert_eq!(summary.expect("writes"), versions.summary);
        assert!(fs::read(again).expect("written") == fs::read(versions.patch()).expect("written"));
        assert_eq!(
            control.bytes_done(),
            control.bytes_total(),
            "{kept_bytes_max}"
        );
    }
}

/// Tensors that take several pieces and windows.
#[test]
fn elements_are_replaced_across_pieces_and_windows() {
    let len = 2 * pieces::PIECE_BYTES + 6;
    let (mut base, mut new) = (Tensors::new(), Tensors::new());
    let mut bytes = numbers(1, len);
    base.insert("x".to_owned(), (Type::BF16, vec![len / 2], bytes.clone()));
    // More than a window has, on both sides of each border between pieces, first and last.
    let edge = pieces::PIECE_BYTES;
    for at in (0..len)
        .step_by(14)
        .chain([edge - 1, edge, 2 * edge - 2, 2 * edge, len - 1])
    {
        bytes[at] ^= 0x55;
    }
    new.insert("x".to_owned(), (Type::BF16, vec![len / 2], bytes));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name| folder.path().join(name);
    write(&path("base.safetensors"), &base, None);
    write(&path("new.safetensors"), &new, None);
    let summary = make(
        &path("base.safetensors"),
        &path("new.safetensors"),
        &path("p.safetensors"),
    );
    assert!(summary.elements > 1 << 20 && summary.sparse == 1);
    apply_to(
        &path("base.safetensors"),
        &path("p.safetensors"),
        &path("out"),
    )
    .expect("applies");
    let out = fs::read(path("out/new.safetensors")).expect("written");
    assert!(out == fs::read(path("new.safetensors")).expect("written"));
    let patch = Patch::open(&open(&path("p.safetensors"))).expect("opens");
    for kept_bytes_max in [0, u64::MAX] {
        let mut state = base.clone();
        let memory = memory(&mut state);
        patch
            .apply_in_place(
                memory,
                &patch.keep(kept_bytes_max).expect("is read"),
                &Control::default(),
            )
            .expect("applies");
        assert!(state == new);
    }
}

#[test]
fn other_base_is_refused_and_nothing_is_left() {
    type Other = (&'static str, fn(&mut Tensors), &'static str);
    let others: [Other; 5] = [
        ("a", |it| flip(it, "a", 77), "SHA-256"),
        ("c", |it| flip(it, "c", 77), "SHA-256"),
        ("c", |it| drop(it.remove("c")), "none of this name"),
        (
            "b",
            |it| it.get_mut("b").expect("there").1 = vec![3000],
            "[3000], wanted BF16 [30, 100]",
        ),
        (
            "b",
            |it| it.get_mut("b").expect("there").0 = Type::F16,
            "F16",
        ),
    ];
    let versions = Versions::new(&nudged());
    for (name, change, text) in others {
        let mut other = tensors();
        change(&mut other);
        let base = write(&versions.path("other.safetensors"), &other, None);
        let error = versions.refused(&base);
        assert_eq!(
            (error.kind(), error.tensor()),
            (ErrorKind::Corrupt, Some(name)),
            "{error}"
        );
        assert!(error.message().contains(text), "{error}");
    }
    let error = versions.refused(&versions.path("new"));
    assert!(
        error.message().contains("after the patch already"),
        "{error}"
    );
}

fn memory(tensors: &mut Tensors) -> Vec<TensorMemory<'_>> {
    let tensors = tensors.iter_mut();
    tensors
        .map(|(name, (_, _, bytes))| TensorMemory {
            names: vec![name.clone()],
            bytes,
        })
        .collect()
}

fn put(patch: &Patch, memory: Vec<TensorMemory<'_>>, control: &Control) -> Result<Summary> {
    patch.apply_in_place(memory, &patch.fetch()?, control)
}

#[test]
fn patch_is_applied_in_place_or_not_at_all() {
    let versions = Versions::new(&nudged());
    let patch = versions.open();
    for kept_bytes_max in [0, u64::MAX] {
        let mut state = tensors();
        state.insert("unknown".to_owned(), (Type::U8, vec![1], vec![7]));
        let mut wanted = nudged();
        wanted.insert("unknown".to_owned(), state["unknown"].clone());
        let control = Control::default();
        let memory = memory(&mut state);
        let summary = patch
            .apply_in_place(
                memory,
                &patch.keep(kept_bytes_max).expect("is read"),
                &control,
            )
            .expect("applies");
        assert_eq!((summary.sparse, summary.whole, summary.tensors), (3, 1, 8));
        assert!(state == wanted && control.bytes_done() == control.bytes_total());
    }
}

#[test]
fn memory_that_is_not_the_base_stays_as_it_is() {
    type Other = (&'static str, ErrorKind, &'static str, fn(&mut Tensors));
    let others: [Other; 6] = [
        ("a", ErrorKind::Corrupt, "after the patch already", |it| {
            *it = nudged()
        }),
        ("bytes", ErrorKind::Corrupt, "SHA-256", |it| {
            flip(it, "bytes", 3)
        }),
        ("c", ErrorKind::Corrupt, "SHA-256", |it| flip(it, "c", 3)),
        ("a", ErrorKind::NoSuchTensor, "not given", |it| {
            drop(it.remove("a"))
        }),
        (
            "a",
            ErrorKind::Corrupt,
            "has 5998 bytes, and BF16 [30, 100] has 6000",
            |it| {
                it.get_mut("a").expect("there").2.truncate(5998);
            },
        ),
        ("dense", ErrorKind::Corrupt, "has 0 bytes", |it| {
            it.get_mut("dense").expect("there").2.clear();
        }),
    ];
    let versions = Versions::new(&nudged());
    let patch = versions.open();
    for (name, kind, text, change) in others {
        let mut state = tensors();
        change(&mut state);
        let before = state.clone();
        let refused = put(&patch, memory(&mut state), &Control::default());
        let error = refused.expect_err("another base");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(state == before, "{error}");
        // Any changed tensor of an applied patch may be the first to be noticed.
        assert!(
            error.tensor() == Some(name) || text.contains("already"),
            "{error}"
        );
        assert!(
            error.message().starts_with("nothing was written: "),
            "{error}"
        );
        assert!(error.message().contains(text), "{error}");
    }
}

#[test]
fn memory_cannot_follow_other_tensors_and_shapes() {
    let mut reshaped = nudged();
    reshaped.get_mut("other_shape").expect("there").1 = vec![100, 30];
    let mut added = nudged();
    added.insert("added".to_owned(), (Type::U8, vec![3], vec![1, 2, 3]));
    for (name, new, kind) in [
        ("gone", changed(), ErrorKind::Unsupported),
        ("other_shape", reshaped, ErrorKind::Unsupported),
        ("added", added, ErrorKind::NoSuchTensor),
    ] {
        let versions = Versions::new(&new);
        let mut state = tensors();
        let applied = put(&versions.open(), memory(&mut state), &Control::default());
        let error = applied.expect_err("memory stays");
        assert_eq!(
            (error.kind(), error.tensor()),
            (kind, Some(name)),
            "{error}"
        );
        assert!(state == tensors());
    }
}

fn tied<'m>(names: &[&str], bytes: &'m mut [u8]) -> TensorMemory<'m> {
    let names = names.iter().map(|it| (*it).to_owned()).collect();
    TensorMemory { names, bytes }
}

#[test]
fn tied_tensors_change_together() {
    let mut base = tensors();
    base.insert("tied".to_owned(), base["a"].clone());
    let mut new = base.clone();
    flip(&mut new, "a", 8);
    for is_tied in [true, false] {
        if is_tied {
            flip(&mut new, "tied", 8);
        } else {
            new.insert("tied".to_owned(), base["tied"].clone());
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name| folder.path().join(name);
        write(&path("base.safetensors"), &base, None);
        write(&path("new.safetensors"), &new, None);
        make(
            &path("base.safetensors"),
            &path("new.safetensors"),
            &path("p.safetensors"),
        );
        let patch = Patch::open(&open(&path("p.safetensors"))).expect("opens");
        let mut bytes = base["a"].2.clone();
        let memory = vec![tied(&["alias", "a", "tied"], &mut bytes)];
        let applied = put(&patch, memory, &Control::default());
        if is_tied {
            assert_eq!(applied.expect("applies").sparse, 1);
            assert!(bytes == new["a"].2);
        } else {
            let error = applied.expect_err("one of them stays");
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(bytes == base["a"].2);
        }
        let (mut one, mut other) = (base["a"].2.clone(), base["a"].2.clone());
        let twice = vec![tied(&["a"], &mut one), tied(&["a"], &mut other)];
        let twice = put(&patch, twice, &Control::default());
        assert_eq!(twice.expect_err("twice").kind(), ErrorKind::InvalidRequest);
    }
}

/// Reads a patch, changes it, and writes it anew.
fn forge(patch: &Path, change: impl Fn(&mut Tensors, &mut Value)) {
    let checkpoint = open(patch);
    let mut tensors = Tensors::new();
    for info in checkpoint.tensors() {
        let options = tload::LoadOptions::new();
        let bytes = checkpoint
            .read(info.name(), &Slice::default(), &options)
            .expect("reads");
        let dtype: Type = serde_json::from_value(json!(info.dtype().name())).expect("known");
        let tensor = (dtype, info.shape().to_vec(), bytes.bytes().to_vec());
        tensors.insert(info.name().to_owned(), tensor);
    }
    let mut metadata: HashMap<String, String> = checkpoint.metadata().clone().into_iter().collect();
    let mut record: Value = serde_json::from_str(&metadata["delta"]).expect("JSON");
    change(&mut tensors, &mut record);
    metadata.insert("delta".to_owned(), record.to_string());
    drop(checkpoint);
    fs::remove_file(patch).expect("ours");
    write(patch, &tensors, Some(metadata));
}

fn set_index(tensors: &mut Tensors, name: &str, at: usize, index: i32) {
    let (_, _, bytes) = tensors.get_mut(&format!("{name}.indices")).expect("sparse");
    bytes[4 * at..][..4].copy_from_slice(&index.to_le_bytes());
}

fn of<'r>(record: &'r mut Value, name: &str) -> &'r mut Value {
    let tensors = record["tensors"].as_array_mut().expect("a list");
    tensors
        .iter_mut()
        .find(|it| it["name"] == name)
        .expect("there")
}

type Forgery = (&'static str, fn(&mut Tensors, &mut Value));

const FORGERIES: [Forgery; 23] = [
    ("index 3000 of 3000", |it, _| set_index(it, "a", 1, 3000)),
    ("index -1 of 3000", |it, _| set_index(it, "a", 0, -1)),
    ("index 0 is not above", |it, _| set_index(it, "a", 1, 0)),
    ("index 1 is not above", |it, _| set_index(it, "a", 0, 2999)),
    ("has 2 indices and 1 values", |it, _| {
        let (_, shape, bytes) = it.get_mut("a.values").expect("sparse");
        (*shape, *bytes) = (vec![1], vec![1, 2]);
    }),
    ("no rows", |it, _| {
        it.get_mut("a.values").expect("sparse").1 = vec![2, 1]
    }),
    ("its values are F16", |it, _| {
        it.get_mut("a.values").expect("sparse").0 = Type::F16
    }),
    ("its indices are U32", |it, _| {
        it.get_mut("a.indices").expect("sparse").0 = Type::U32
    }),
    ("lacks this tensor", |it, _| drop(it.remove("a.values"))),
    ("lacks this tensor", |it, _| drop(it.remove("dense"))),
    ("dtype or shape is not", |it, _| {
        it.get_mut("dense").expect("whole").1 = vec![3000]
    }),
    ("lacks this tensor", |it, _| {
        drop(it.remove("tload.delta/header.0"))
    }),
    ("header is invalid", |it, _| {
        it.get_mut("tload.delta/header.0").expect("there").2[9] = b'x'
    }),
    ("another length", |it, _| {
        it.get_mut("tload.delta/header.0").expect("there").2[0] ^= 1
    }),
    ("no name of one file", |_, it| {
        it["files"][0]["name"] = json!("../x.safetensors")
    }),
    ("no name of one file", |_, it| {
        it["files"][0]["name"] = it["files"][1]["name"].clone()
    }),
    ("no name of one file", |_, it| {
        it["index"] = json!("../x.index.json")
    }),
    ("tensor twice", |_, it| {
        let again = it["tensors"][0].clone();
        it["tensors"].as_array_mut().expect("a list").push(again);
    }),
    ("the record does not", |_, it| {
        drop(it["tensors"].as_array_mut().expect("a list").pop());
    }),
    ("unknown dtype", |_, it| of(it, "c")["dtype"] = json!("F17")),
    ("shape too large", |_, it| {
        of(it, "c")["shape"] = json!([u64::MAX, 3])
    }),
    ("in a header is not", |_, it| {
        of(it, "c")["shape"] = json!([3000])
    }),
    ("no digest of its base", |_, it| {
        of(it, "a")["base_sha256"] = Value::Null
    }),
];

#[test]
fn hostile_patches_are_refused() {
    for (text, forgery) in FORGERIES {
        let versions = Versions::new(&nudged());
        forge(&versions.patch(), forgery);
        let error = versions.refused(&versions.path("base"));
        assert_eq!(
            error.kind(),
            ErrorKind::InvalidFormat,
            "{text}: {}",
            error.chain()
        );
        assert!(error.message().contains(text), "{text}: {error}");
        let mut state = tensors();
        if let Ok(patch) = Patch::open(&open(&versions.patch())) {
            let applied = put(&patch, memory(&mut state), &Control::default());
            assert!(applied.is_ok() != (state == tensors()), "{text}");
            assert!(applied.is_err() || state == nudged(), "{text}");
        }
    }
}

#[test]
fn damaged_values_are_refused() {
    for name in ["a.values", "dense"] {
        let versions = Versions::new(&nudged());
        forge(&versions.patch(), |it, _| {
            it.get_mut(name).expect("there").2[0] ^= 1
        });
        let error = versions.refused(&versions.path("base"));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
        assert!(
            error
                .location()
                .is_some_and(|it| it.contains("patch.safetensors")),
            "{error}"
        );
        let mut state = tensors();
        let memory = memory(&mut state);
        let error = put(&versions.open(), memory, &Control::default());
        let error = error.expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
        assert!(state == tensors() && error.message().starts_with("nothing was written"));
    }
}

#[test]
fn files_that_are_no_patches_are_refused() {
    let versions = Versions::new(&nudged());
    let whole = fs::read(versions.patch()).expect("written");
    let replace = |bytes: &[u8]| {
        fs::remove_file(versions.patch()).expect("ours");
        fs::write(versions.patch(), bytes).expect("there is room");
    };
    for len in [0, 7, 100, whole.len() / 2, whole.len() - 1] {
        replace(&whole[..len]);
        let error = versions.refused(&versions.path("base"));
        assert_eq!(error.kind(), ErrorKind::InvalidFormat, "{len}: {error}");
    }
    let pairs = |pairs: &[(&str, &str)]| {
        let pairs = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Some(pairs.collect::<HashMap<_, _>>())
    };
    let format = ("format", "tload.delta");
    for (metadata, kind, text) in [
        (None, ErrorKind::InvalidFormat, "is no patch"),
        (
            pairs(&[("format", "pt")]),
            ErrorKind::InvalidFormat,
            "is no patch",
        ),
        (
            pairs(&[format]),
            ErrorKind::Unsupported,
            "version \"\", wanted \"1\"",
        ),
        (
            pairs(&[format, ("version", "2")]),
            ErrorKind::Unsupported,
            "version \"2\"",
        ),
        (
            pairs(&[format, ("version", "1")]),
            ErrorKind::InvalidFormat,
            "no record",
        ),
        (
            pairs(&[format, ("version", "1"), ("delta", "{\"tensors\": 3}")]),
            ErrorKind::InvalidFormat,
            "record of the patch is invalid",
        ),
    ] {
        write(&versions.patch(), &tensors(), metadata);
        let error = versions.refused(&versions.path("base"));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
}

#[test]
fn failed_second_reading_says_what_was_written() {
    let versions = Versions::new(&nudged());
    let patch = versions.open();
    let mut state = tensors();
    let control = Control::default();
    let (matched, _) = patch.match_up(memory(&mut state)).expect("the base");
    // A patch that changes between both readings.
    fs::write(versions.patch(), b"another").expect("there is room");
    let error = patch
        .put(&matched, &Kept::new(), &control)
        .expect_err("changed");
    drop(matched);
    assert!(
        error.message().starts_with("0 of 4 tensors were written, "),
        "{error}"
    );
    assert!(error.message().contains(" in part: "), "{error}");
    assert!(state == tensors());
}

#[test]
fn cancelled_calls_write_nothing() {
    let versions = Versions::new(&nudged());
    let (base, new) = (open(&versions.path("base")), open(&versions.path("new")));
    let control = Control::default();
    control.cancel();
    let (before, again) = (
        contents_of_all(versions.folder.path()),
        versions.path("again"),
    );
    let mut state = tensors();
    let in_place = put(&versions.open(), memory(&mut state), &control);
    for outcome in [
        diff(&base, &new, &again, &control),
        apply(&base, &versions.open(), &versions.path("out"), &control),
        in_place,
    ] {
        assert_eq!(outcome.expect_err("cancelled").kind(), ErrorKind::Cancelled);
    }
    assert!(contents_of_all(versions.folder.path()) == before && state == tensors());
}

/// Checkpoints whose shards hold other tensors than the index names, and indexes of another name.
#[test]
fn patch_has_the_index_that_was_opened_or_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let one: Tensors = tensors().into_iter().take(1).collect();
    let other: Tensors = tensors().into_iter().skip(1).collect();
    write(&path("base.safetensors"), &tensors(), None);
    for (case, index, second, is_refused) in [
        (
            "other name",
            "pipeline.safetensors.index.json",
            &other,
            false,
        ),
        ("left out", "model.safetensors.index.json", &tensors(), true),
    ] {
        let new = path(case);
        fs::create_dir(&new).expect("a temporary folder");
        write(&new.join("x-1.safetensors"), &one, None);
        write(&new.join("x-2.safetensors"), second, None);
        let files = [("x-1.safetensors", &one), ("x-2.safetensors", &other)];
        let map: BTreeMap<_, _> = files
            .iter()
            .flat_map(|(file, names)| names.keys().map(move |name| (name, file)))
            .collect();
        let text = serde_json::json!({"weight_map": map}).to_string();
        fs::write(new.join(index), text).expect("writes");
        let (patch, out) = (path(&format!("{case}.patch")), path(&format!("{case}.out")));
        let (base, opened) = (open(&path("base.safetensors")), open(&new));
        let made = diff(&base, &opened, &patch, &Control::default());
        if is_refused {
            assert_eq!(made.expect_err(case).kind(), ErrorKind::Unsupported);
            assert!(!patch.exists());
            continue;
        }
        made.expect("writes");
        apply_to(&path("base.safetensors"), &patch, &out).expect("applies");
        assert!(contents(&out) == contents(&new), "{case}");
    }
}

#[test]
fn names_that_patches_cannot_have() {
    let mut base = tensors();
    base.insert("a.indices".to_owned(), (Type::U8, vec![1], vec![7]));
    let mut new = base.clone();
    flip(&mut new, "a", 0);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name| folder.path().join(name);
    fs::create_dir(path("new")).expect("a temporary folder");
    write(&path("m.safetensors"), &base, None);
    write(&path("new/m.safetensors"), &new, None);
    let summary = make(
        &path("m.safetensors"),
        &path("new"),
        &path("patch.safetensors"),
    );
    assert_eq!((summary.sparse, summary.whole), (0, 1));
    apply_to(
        &path("m.safetensors"),
        &path("patch.safetensors"),
        &path("out"),
    )
    .expect("applies");
    assert!(contents(&path("out")) == contents(&path("new")));

    new.insert("tload.delta/x".to_owned(), (Type::U8, vec![1], vec![7]));
    write(&path("new/m.safetensors"), &new, None);
    let (old, new) = (open(&path("m.safetensors")), open(&path("new")));
    let control = Control::default();
    let error = diff(&old, &new, &path("p"), &control).expect_err("a name of ours");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(!path("p").exists());
}

#[test]
fn summary_is_one_line() {
    let versions = Versions::new(&changed());
    let text = "8 tensors, 30.3 KiB: 4 elements changed in 3 of them, 3 replaced, 1 removed; 11.7 KiB of changes";
    assert_eq!(versions.summary.to_string(), text);
    let none = make(
        &versions.path("base"),
        &versions.path("base"),
        &versions.path("none"),
    );
    assert_eq!(none.to_string(), "8 tensors, 36.1 KiB: no differences");
}
