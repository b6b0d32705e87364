//! Checkpoints for object stores, and helpers to load and compare them.

use std::path::Path;

use tempfile::TempDir;
use tload::{Checkpoint, Dtype, LoadOptions, Loader, Location, Order, Report, Result, Tensor};
use tload_testing::fixtures::{FileBuilder, Rng};

/// Creates a temporary folder on the disk that cargo builds on.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made the folder")
}

/// Returns a file of tensors `{prefix}0`, `{prefix}1`, … of several dtypes, of 0 to `bytes_max`
/// bytes each.
pub(crate) fn mixed(prefix: &str, seed: u64, tensors: usize, bytes_max: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut file = FileBuilder::new();
    // Wide elements first, as writers do it, so that every tensor is aligned.
    let dtypes = [
        (Dtype::I64, 8),
        (Dtype::F32, 4),
        (Dtype::Bf16, 2),
        (Dtype::U8, 1),
    ];
    for index in 0..tensors {
        let (dtype, bytes) = dtypes[index * dtypes.len() / tensors];
        let elements = match rng.below(6) {
            0 => rng.index(9),
            _ => rng.index(bytes_max / bytes + 1),
        };
        let contents = rng.bytes(elements * bytes);
        file = file.tensor(&format!("{prefix}{index}"), dtype, &[elements], &contents);
    }
    file.build()
}

/// Returns a file of `count` U8 tensors of `bytes` bytes each.
pub(crate) fn even(prefix: &str, seed: u64, count: usize, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let file = (0..count).fold(FileBuilder::new(), |file, index| {
        let name = format!("{prefix}{index}");
        file.tensor(&name, Dtype::U8, &[bytes], &rng.bytes(bytes))
    });
    file.build()
}

/// Returns an index that maps tensors to shards: name and file.
pub(crate) fn index(placed: &[(String, &str)]) -> Vec<u8> {
    let map: serde_json::Map<_, _> = placed
        .iter()
        .map(|(tensor, shard)| (tensor.clone(), (*shard).into()))
        .collect();
    serde_json::json!({"metadata": {}, "weight_map": map})
        .to_string()
        .into_bytes()
}

pub(crate) fn options(set: impl FnOnce(&mut LoadOptions)) -> LoadOptions {
    let mut options = LoadOptions::default();
    set(&mut options);
    options
}

pub(crate) fn in_file_order() -> LoadOptions {
    options(|it| it.order = Order::File)
}

/// Loads everything and returns it with the report.
pub(crate) fn load(checkpoint: &Checkpoint, options: LoadOptions) -> Result<(Vec<Tensor>, Report)> {
    let loader = Loader::new(checkpoint.clone()).options(options);
    let mut stream = loader.stream()?;
    let tensors = stream.by_ref().collect::<Result<Vec<_>>>()?;
    Ok((tensors, stream.report()))
}

/// Loads from a local folder or file, in file order.
pub(crate) fn load_local(path: &Path) -> Vec<Tensor> {
    let checkpoint = Checkpoint::open(Location::from_path(path)).expect("a valid checkpoint");
    load(&checkpoint, in_file_order()).expect("loads").0
}

/// Asserts that both are the same tensors in the same order, byte for byte.
pub(crate) fn assert_same(found: &[Tensor], wanted: &[Tensor]) {
    let names = |tensors: &[Tensor]| {
        let names = tensors.iter().map(|tensor| tensor.name().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(found), names(wanted));
    for (found, wanted) in found.iter().zip(wanted) {
        let name = found.name();
        assert_eq!(found.dtype(), wanted.dtype(), "{name}");
        assert_eq!(found.shape(), wanted.shape(), "{name}");
        assert!(found.bytes() == wanted.bytes(), "{name}: wrong bytes");
        let address = found.as_ptr().addr();
        assert_eq!(address % found.dtype().alignment(), 0, "{name}: alignment");
    }
}

/// Asserts that the tensors are those of these files, in any order.
pub(crate) fn assert_all(tensors: &[Tensor], files: &[&[u8]]) {
    let mut found = 0;
    for file in files {
        let theirs = safetensors::SafeTensors::deserialize(file).expect("a valid file");
        for (name, view) in theirs.iter() {
            let mut named = tensors.iter().filter(|tensor| tensor.name() == name);
            let tensor = named.next().expect(name);
            assert!(named.next().is_none(), "{name} arrived twice");
            assert_eq!(tensor.shape(), view.shape(), "{name}");
            assert!(tensor.bytes() == view.data(), "{name}: wrong bytes");
            found += 1;
        }
    }
    assert_eq!(tensors.len(), found, "no other tensors");
}

/// Returns the bytes of a local file.
#[expect(
    clippy::disallowed_methods,
    reason = "a test reads a file that is not opened as a checkpoint"
)]
pub(crate) fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("the file exists")
}
