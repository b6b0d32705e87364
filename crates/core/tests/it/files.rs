//! Folders and files for tests, and comparisons with the `safetensors` crate.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tload::internal::probe;
use tload::verify::{ManifestTarget, Verification, VerifyOptions};
use tload::{Checkpoint, Dtype, LoadOptions, Loader, Location, Report, Result, Tensor};
use tload_testing::fixtures::{FileBuilder, Rng, byte_len};

/// Creates a folder on the disk that cargo builds on: `/tmp` may be memory, which has no direct
/// I/O.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made the folder")
}

pub(crate) fn write(path: &Path, bytes: &[u8]) -> PathBuf {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).expect("a temporary folder");
    }
    std::fs::write(path, bytes).expect("the temporary folder takes files");
    path.to_owned()
}

/// Drops the pages of every file in a folder from the page cache. Returns whether none is left.
pub(crate) fn evict(folder: &Path) -> bool {
    let files = std::fs::read_dir(folder).expect("a folder of this test");
    let mut gone = true;
    for file in files {
        let path = file.expect("listed").path();
        gone &= probe::evict(&path).is_ok()
            && probe::residency(&path).is_ok_and(|found| found.resident_bytes == 0);
    }
    gone
}

/// Reads the whole file, for comparing.
#[expect(clippy::disallowed_methods, reason = "the oracle reads by itself")]
pub(crate) fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("a file of this test")
}

pub(crate) fn location(path: &Path) -> Location {
    Location::from(path)
}

pub(crate) fn options(set: impl FnOnce(&mut LoadOptions)) -> LoadOptions {
    let mut options = LoadOptions::default();
    set(&mut options);
    options
}

/// Creates a file of `tensors` tensors whose names begin with `prefix`, of all dtypes and of
/// lengths from zero to `bytes_max`.
pub(crate) fn mixed(prefix: &str, seed: u64, tensors: usize, bytes_max: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut file = FileBuilder::new();
    let mut wanted: Vec<_> = (0..tensors)
        .map(|index| {
            let dtype = rng.pick(&Dtype::ALL);
            let max = bytes_max * 8 / dtype.bits();
            let elements = match rng.below(6) {
                0 => rng.index(9),
                1 => rng.index(max.min(70_000) + 1),
                _ => rng.index(max + 1),
            };
            // Sub-byte elements must fill whole bytes.
            let elements = elements / 8 * 8 + if dtype.bits() < 8 { 0 } else { elements % 8 };
            (format!("{prefix}{index}"), dtype, elements)
        })
        .collect();
    // Wide elements first, as writers do, so that every tensor is aligned.
    wanted.sort_by_key(|(_, dtype, _)| std::cmp::Reverse(dtype.alignment()));
    for (name, dtype, elements) in wanted {
        let len = byte_len(dtype, elements).expect("whole bytes");
        file = file.tensor(&name, dtype, &[elements], &rng.bytes(len));
    }
    file.build()
}

/// Creates a file of `count` U8 tensors of `bytes` bytes each: `{prefix}0`, `{prefix}1`, …
pub(crate) fn even(prefix: &str, seed: u64, count: usize, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let file = (0..count).fold(FileBuilder::new(), |file, index| {
        file.tensor(
            &format!("{prefix}{index}"),
            Dtype::U8,
            &[bytes],
            &rng.bytes(bytes),
        )
    });
    file.build()
}

/// Loads everything with these options; panics on any error.
pub(crate) fn load(path: &Path, options: LoadOptions) -> Vec<Tensor> {
    let loader = Loader::open(location(path)).expect("a good checkpoint");
    let stream = loader.options(options).stream().expect("starts");
    stream.collect::<Result<_>>().expect("loads")
}

/// Loads, and returns the report too.
pub(crate) fn load_with_report(path: &Path, options: LoadOptions) -> (Vec<Tensor>, Report) {
    let loader = Loader::open(location(path)).expect("a good checkpoint");
    let mut stream = loader.options(options).stream().expect("starts");
    let tensors = stream
        .by_ref()
        .map(|tensor| tensor.expect("loads"))
        .collect();
    (tensors, stream.report())
}

/// Compares a loaded tensor with the file that it came from.
pub(crate) fn assert_same(tensor: &Tensor, file: &[u8]) {
    let name = tensor.name();
    let theirs = safetensors::SafeTensors::deserialize(file).expect("a valid file");
    let view = theirs.tensor(name).expect("in the file");
    assert_eq!(
        safetensors::Dtype::from(tensor.dtype()),
        view.dtype(),
        "{name}"
    );
    assert_eq!(tensor.shape(), view.shape(), "{name}");
    assert!(tensor.bytes() == view.data(), "{name}: other bytes");
    let address = tensor.as_ptr().addr();
    assert_eq!(address % tensor.dtype().alignment(), 0, "{name}: alignment");
}

/// Asserts that `tensors` are exactly those of `files`, byte for byte.
pub(crate) fn assert_all(tensors: &[Tensor], files: &[&[u8]]) {
    let mut found = 0;
    for file in files {
        let theirs = safetensors::SafeTensors::deserialize(file).expect("a valid file");
        for (name, view) in theirs.iter() {
            let mut named = tensors.iter().filter(|tensor| tensor.name() == name);
            let tensor = named.next().expect(name);
            assert!(named.next().is_none(), "{name} came twice");
            assert_eq!(tensor.shape(), view.shape(), "{name}");
            assert_eq!(
                safetensors::Dtype::from(tensor.dtype()),
                view.dtype(),
                "{name}"
            );
            assert!(tensor.bytes() == view.data(), "{name}: other bytes");
            let address = tensor.as_ptr().addr();
            assert_eq!(address % tensor.dtype().alignment(), 0, "{name}: alignment");
            found += 1;
        }
    }
    assert_eq!(tensors.len(), found, "no others");
}

pub(crate) fn open(path: &Path) -> Result<Checkpoint> {
    Checkpoint::open(location(path))
}

/// Writes a manifest beside the files of a checkpoint.
pub(crate) fn write_manifest(model: &Path) {
    let mut options = VerifyOptions::default();
    options.write = Some(ManifestTarget::Beside);
    let written = Verification::new(location(model)).options(options).run();
    written.expect("can be written");
}
