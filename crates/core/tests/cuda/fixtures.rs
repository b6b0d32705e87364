//! Checkpoints to load, their contents, and helpers to load and compare them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tload::{Dtype, Error, LoadOptions, Loader, Location, Report, Result, Tensor, TensorStream};
use tload_testing::fixtures::{FileBuilder, Rng, byte_len};

use crate::stub::bytes;

pub(crate) const MIB: usize = 1 << 20;

/// Bytes of every tensor as written, by name.
pub(crate) type Contents = BTreeMap<String, Vec<u8>>;

/// Checkpoint in a temporary folder, with its contents. Dropping it removes the folder.
pub(crate) struct Files {
    folder: TempDir,
    pub(crate) contents: Contents,
}

impl Files {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        Self {
            folder: folder.expect("cargo made the folder"),
            contents: Contents::new(),
        }
    }

    /// Returns one file of `count` U8 tensors of `len` bytes each: `t0`, `t1`, …
    pub(crate) fn even(seed: u64, count: usize, len: usize) -> Self {
        Self::of_lengths(seed, &vec![len; count])
    }

    /// Returns one file of U8 tensors of these lengths: `t0`, `t1`, …
    pub(crate) fn of_lengths(seed: u64, lengths: &[usize]) -> Self {
        let mut files = Self::new();
        let mut rng = Rng::new(seed);
        let tensors = lengths.iter().enumerate().map(|(index, len)| {
            let name = format!("t{index}");
            (name, Dtype::U8, *len, rng.bytes(*len))
        });
        let tensors = tensors.collect();
        files.shard("0", tensors, None);
        files
    }

    /// Returns one file of `count` matrices of 2 bytes an element: `m0`, `m1`, …
    pub(crate) fn matrices(count: usize, rows: usize, columns: usize) -> Self {
        let mut files = Self::new();
        let mut file = FileBuilder::new();
        let mut rng = Rng::new(3);
        for index in 0..count {
            let (name, contents) = (format!("m{index}"), rng.bytes(rows * columns * 2));
            file = file.tensor(&name, Dtype::Bf16, &[rows, columns], &contents);
            files.contents.insert(name, contents);
        }
        std::fs::write(files.file("0"), file.build()).expect("the temporary folder is writable");
        files
    }

    /// Writes a shard; with `padding`, its tensors are unaligned.
    pub(crate) fn shard(
        &mut self,
        name: &str,
        tensors: Vec<(String, Dtype, usize, Vec<u8>)>,
        padding: Option<usize>,
    ) -> PathBuf {
        let mut file = FileBuilder::new();
        for (name, dtype, elements, bytes) in tensors {
            // A scalar has no dimensions.
            let shape: &[usize] = if elements == 1 { &[] } else { &[elements] };
            file = file.tensor(&name, dtype, shape, &bytes);
            self.contents.insert(name, bytes);
        }
        if let Some(padding) = padding {
            file = file.unaligned(padding);
        }
        let path = self.folder.path().join(format!("{name}.safetensors"));
        std::fs::write(&path, file.build()).expect("the temporary folder is writable");
        path
    }

    /// Writes a shard of tensors of all dtypes: small ones, large ones, scalars and empty ones.
    pub(crate) fn mixed(&mut self, name: &str, rng: &mut Rng, count: usize, bytes_max: usize) {
        let mut tensors: Vec<_> = (0..count)
            .map(|index| {
                let dtype = rng.pick(&Dtype::ALL);
                let max = bytes_max * 8 / dtype.bits();
                let elements = match rng.below(6) {
                    0 => rng.index(3),
                    1 | 2 => rng.index(200),
                    3 => rng.index(max.min(70_000) + 1),
                    _ => rng.index(max + 1),
                };
                // Sub-byte elements must fill whole bytes.
                let elements = elements / 8 * 8 + if dtype.bits() < 8 { 0 } else { elements % 8 };
                let len = byte_len(dtype, elements).expect("whole bytes");
                (format!("{name}.{index}"), dtype, elements, rng.bytes(len))
            })
            .collect();
        let padding = rng.once_in(3).then(|| rng.index(100));
        if padding.is_none() {
            // Wide elements first, as writers do it, so that every tensor is aligned.
            tensors.sort_by_key(|(_, dtype, _, _)| std::cmp::Reverse(dtype.alignment()));
        }
        self.shard(name, tensors, padding);
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of a shard.
    pub(crate) fn file(&self, shard: &str) -> PathBuf {
        self.path().join(format!("{shard}.safetensors"))
    }

    /// Returns whether the page cache has all pages of the files now.
    pub(crate) fn are_resident(&self) -> bool {
        let mut files = std::fs::read_dir(self.path()).expect("is a directory");
        files.all(|file| {
            let path = file.expect("is listed").path();
            let found = tload::internal::probe::residency(&path).expect("Linux answers");
            found.resident_bytes == found.total_bytes
        })
    }

    pub(crate) fn loader(&self) -> Loader {
        Loader::open(Location::from(self.path())).expect("a valid checkpoint")
    }

    pub(crate) fn total(&self) -> u64 {
        self.contents.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// Asserts that these are all of the tensors, byte for byte.
    pub(crate) fn assert_all(&self, tensors: &[Tensor]) {
        assert_all(&self.contents, tensors);
    }
}

pub(crate) fn assert_all(contents: &Contents, tensors: &[Tensor]) {
    let mut seen = std::collections::BTreeSet::new();
    for tensor in tensors {
        assert_same(contents, tensor);
        assert!(
            seen.insert(tensor.name()),
            "{} arrived twice",
            tensor.name()
        );
    }
    assert_eq!(seen.len(), contents.len(), "all tensors arrived");
}

pub(crate) fn assert_same(contents: &Contents, tensor: &Tensor) {
    let name = tensor.name();
    assert!(bytes(tensor) == contents[name], "{name}: wrong bytes");
    let alignment = if tensor.target().is_some() {
        1
    } else {
        tensor.dtype().alignment()
    };
    assert_eq!(tensor.as_ptr().addr() % alignment, 0, "{name}: alignment");
}

pub(crate) fn options(set: impl FnOnce(&mut LoadOptions)) -> LoadOptions {
    let mut options = LoadOptions::default();
    set(&mut options);
    options
}

/// Options that give every tensor on a GPU a region of its own.
pub(crate) fn separate() -> LoadOptions {
    options(|it| it.region_bytes = Some(1))
}

/// Loads everything and keeps it.
pub(crate) fn load(loader: &Loader) -> Result<(Vec<Tensor>, Report)> {
    let mut stream = loader.stream()?;
    let tensors = stream.by_ref().collect::<Result<Vec<_>>>()?;
    Ok((tensors, stream.report()))
}

/// Returns the error that ends a load, at the start or later.
pub(crate) fn failure(stream: Result<TensorStream>) -> Error {
    match stream {
        Err(error) => error,
        Ok(mut stream) => {
            let error = stream.find_map(Result::err).expect("the load fails");
            assert!(stream.next().is_none(), "an error is the last item");
            assert_eq!(stream.report().outcome, error.kind().name());
            error
        }
    }
}

/// Returns the number of bytes that an error's hint calls sufficient.
pub(crate) fn hinted(error: &Error) -> u64 {
    let hint = error.hint().expect("has a hint");
    let number = hint.split("at least ").nth(1);
    let number = number.and_then(|rest| rest.split(' ').next());
    let number = number.and_then(|number| number.parse().ok());
    assert!(number.is_some(), "no exact number: {}", error.chain());
    number.unwrap_or_default()
}
