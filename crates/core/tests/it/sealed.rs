//! Sealed checkpoints against the plain ones that they were sealed from: over every engine, whole
//! and in slices, with small limits, and with faults.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tload::sealed::{Algorithm, Recipients, rekey, write_new_key};
use tload::{
    CacheMode, Checkpoint, ErrorKind, Indices, Key, LoadOptions, Loader, OpenOptions, Result,
    Selection, Slice, Tensor, Verify,
};

use crate::files::{even, evict, folder, location, mixed, options, read, write};
use crate::requirement;
use crate::sealing::{new_key, seal_with};

/// A checkpoint of several files, plain and sealed.
struct Site {
    folder: TempDir,
    key: Key,
}

impl Site {
    fn new(algorithm: Algorithm) -> Self {
        let folder = folder();
        let plain = folder.path().join("plain");
        // Some segments with many tensors, and some tensors with many segments.
        write(
            &plain.join("model-00001-of-00003.safetensors"),
            &mixed("a", 3, 60, 200_000),
        );
        write(
            &plain.join("model-00002-of-00003.safetensors"),
            &even("b", 4, 3, 5_000_001),
        );
        write(
            &plain.join("model-00003-of-00003.safetensors"),
            &even("c", 5, 400, 3_001),
        );
        write(&plain.join("config.json"), b"{}");
        // Nothing may take the sealed one for a manifest.
        write(&plain.join("tload-manifest.json"), b"{}");
        let site = Self {
            key: new_key(algorithm, &folder.path().join("key.json")),
            folder,
        };
        site.seal("sealed").expect("seals");
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn seal(&self, name: &str) -> Result<()> {
        seal_with(&self.key, &self.path("plain"), &self.path(name))
    }

    fn open(&self, name: &str) -> Result<Checkpoint> {
        self.open_path(&self.path(name))
    }

    fn open_path(&self, path: &Path) -> Result<Checkpoint> {
        Checkpoint::open_with(location(path), OpenOptions::default().key(self.key.clone()))
    }
}

/// Loads everything, sorted by name.
fn load(loader: Loader, options: &LoadOptions) -> Result<Vec<Tensor>> {
    let stream = loader.options(options.clone()).stream()?;
    let mut tensors: Vec<_> = stream.collect::<Result<_>>()?;
    tensors.sort_by(|one, other| one.name().cmp(other.name()));
    Ok(tensors)
}

fn require_equal(found: &[Tensor], wanted: &[Tensor], case: &str) {
    assert_eq!(found.len(), wanted.len(), "{case}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert_eq!(found.name(), wanted.name(), "{case}");
        assert_eq!(found.shape(), wanted.shape(), "{case}");
        assert!(found.bytes() == wanted.bytes(), "{case}: {}", found.name());
    }
}

/// Every engine and cache mode of this machine, with usual and with small limits.
fn variants() -> Vec<LoadOptions> {
    let mut variants = vec![LoadOptions::new()];
    for engine in requirement::engines() {
        for cache in [CacheMode::Auto, CacheMode::Direct, CacheMode::Buffered] {
            for small in [false, true] {
                variants.push(options(|it| {
                    (it.engine, it.cache) = (engine, cache);
                    if small {
                        it.extent_bytes = Some(100 << 10);
                        it.memory_limit = Some(6 << 20);
                        it.depth = Some(3);
                    }
                }));
            }
        }
    }
    variants
}

#[test]
fn loads_equal_those_of_plain_files_over_every_engine() {
    for algorithm in Algorithm::ALL {
        let site = Site::new(algorithm);
        let plain = Checkpoint::open(&*site.path("plain")).expect("opens");
        let wanted = load(plain.load(), &LoadOptions::new()).expect("loads");
        for options in variants() {
            evict(&site.path("sealed"));
            let sealed = site.open("sealed").expect("opens");
            assert_eq!(sealed.total_bytes(), plain.total_bytes());
            let found = load(sealed.load(), &options).expect("loads");
            require_equal(&found, &wanted, &format!("{options:?}"));
        }
    }
}

#[test]
fn slices_selections_and_single_reads_equal_those_of_plain_files() {
    let site = Site::new(Algorithm::Aes256);
    let plain = Checkpoint::open(&*site.path("plain")).expect("opens");
    let sealed = site.open("sealed").expect("opens");
    let slice = Slice::new([Indices::from(1_000_000..4_100_007)]);
    let some = |checkpoint: &Checkpoint| {
        let loader = checkpoint
            .load()
            .select(Selection::names(["b0", "b2", "c7"]));
        load(
            loader.slices([("b2".to_owned(), slice.clone())]),
            &LoadOptions::new(),
        )
    };
    require_equal(
        &some(&sealed).expect("loads"),
        &some(&plain).expect("loads"),
        "slices",
    );
    for name in ["a0", "b1", "c399"] {
        let one = |it: &Checkpoint| it.read(name, &Slice::default(), &LoadOptions::new());
        let (found, wanted) = (one(&sealed).expect("reads"), one(&plain).expect("reads"));
        require_equal(&[found], &[wanted], name);
    }
    let reader = sealed.reader(&LoadOptions::new()).expect("opens");
    let file = read(&site.path("plain/model-00002-of-00003.safetensors"));
    for range in [0..100, 1_048_500..1_048_540, 2_000_000..6_000_000] {
        let mut memory = vec![0; range.len()];
        let read = reader.read_bytes(1, range.start as u64, &mut memory);
        read.expect("reads");
        assert!(memory == file[range]);
    }
}

#[test]
fn single_files_and_lists_are_opened_with_the_key_file_beside_them() {
    let site = Site::new(Algorithm::Aes256);
    let name = "model-00002-of-00003.safetensors";
    let one = site
        .open_path(&site.path("sealed").join(name))
        .expect("opens");
    assert_eq!(one.tensors().len(), 3);
    let files = [1, 3].map(|number| format!("model-0000{number}-of-00003.safetensors"));
    let files = files.map(|name| location(&site.path("sealed").join(name)));
    let opening = OpenOptions::default().key(site.key.clone());
    let listed = Checkpoint::open_all_with(&files, opening).expect("opens");
    assert_eq!(listed.tensors().len(), 460);
}

#[test]
fn missing_and_wrong_keys_are_told_apart_before_the_first_tensor() {
    let site = Site::new(Algorithm::Aes256);
    let says = |opened: Result<Checkpoint>, kind: ErrorKind, words: &str| {
        let error = opened.expect_err(words);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let missing = "missing key";
    says(
        Checkpoint::open(&*site.path("sealed")),
        ErrorKind::PermissionDenied,
        missing,
    );
    let file = site.path("sealed/model-00002-of-00003.safetensors");
    says(
        Checkpoint::open(&*file),
        ErrorKind::PermissionDenied,
        missing,
    );
    says(
        site.open("plain"),
        ErrorKind::InvalidRequest,
        "is not sealed",
    );
    let other = site.path("other.json");
    write_new_key(Algorithm::Aes256, &other).expect("writes");
    let other = OpenOptions::default().key(Key::from_file(other));
    let opened = Checkpoint::open_with(location(&site.path("sealed")), other);
    says(opened, ErrorKind::PermissionDenied, "wrong key");
    let path = site.path("sealed/sealed.json");
    let text = String::from_utf8(read(&path)).expect("text");
    write(
        &path,
        text.replace("\"version\": 1", "\"version\": 7").as_bytes(),
    );
    says(site.open("sealed"), ErrorKind::Unsupported, "version 7");
    write(&path, text.as_bytes());
    let gone = site.path("sealed/config.json");
    std::fs::remove_file(gone).expect("removes");
    says(site.open("sealed"), ErrorKind::NotFound, "config.json");
}

#[test]
fn damage_is_an_error_and_none_of_its_bytes_is_handed_over() {
    let site = Site::new(Algorithm::Aes256);
    let path = site.path("sealed/model-00002-of-00003.safetensors");
    let good = read(&path);
    let plain = Checkpoint::open(&*site.path("plain")).expect("opens");
    let wanted = load(plain.load(), &LoadOptions::new()).expect("loads");
    for at in [40, 1_000_000, 1_048_575, 1_048_576, 5 << 20, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        write(&path, &bad);
        for options in [LoadOptions::new(), options(|it| it.depth = Some(2))] {
            // The header is in the first segment.
            let opened = match site.open("sealed") {
                Ok(opened) => opened,
                Err(error) => {
                    assert!(at < 1 << 20, "{error}");
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                    continue;
                }
            };
            let mut stream = opened.load().options(options).stream().expect("starts");
            let mut error = None;
            for tensor in &mut stream {
                match tensor {
                    Ok(tensor) => {
                        let same = wanted.iter().find(|it| it.name() == tensor.name());
                        assert!(tensor.bytes() == same.expect("known").bytes());
                    }
                    Err(found) => error = Some(found),
                }
            }
            let error = error.expect("damaged");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let segment = format!("segment {} is damaged", at >> 20);
            assert!(error.to_string().contains(&segment), "{error}");
            assert!(error.to_string().contains("model-00002"), "{error}");
        }
    }
    // Another length, and the file of another sealing with the same key.
    write(&path, &good[..good.len() - 1]);
    assert_eq!(
        site.open("sealed").expect_err("cut").kind(),
        ErrorKind::Corrupt
    );
    site.seal("again").expect("seals");
    let other = read(&site.path("again/model-00002-of-00003.safetensors"));
    write(&path, &other);
    assert_eq!(
        site.open("sealed").expect_err("another").kind(),
        ErrorKind::Corrupt
    );
    write(&path, &good);
    site.open("sealed").expect("whole again");
}

#[test]
fn views_of_sealed_files_are_refused_and_digests_hold() {
    let site = Site::new(Algorithm::Aes256);
    let sealed = site.open("sealed").expect("opens");
    let mapped = options(|it| it.cache = CacheMode::Map);
    let error = load(sealed.load(), &mapped).expect_err("no views");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // Digests beside the checkpoint are of the sealed bytes or sealed themselves. Those of the
    // sealed manifest count where digests are required; otherwise the tags of segments are enough.
    for (verify, is_compared) in [(Verify::Require, true), (Verify::Auto, false)] {
        let loader = sealed.load().options(options(|it| it.verify = verify));
        let mut stream = loader.stream().expect("begins");
        stream
            .by_ref()
            .for_each(|tensor| drop(tensor.expect("loads")));
        let verified = stream.report().verification;
        let compared = verified.map_or(0, |verified| verified.bytes);
        assert_eq!(compared > 0, is_compared, "{compared} bytes");
    }
}

#[test]
fn keysets_are_wrapped_later_and_files_stay() {
    let site = Site::new(Algorithm::Aes256);
    let before = read(&site.path("sealed/sealed.manifest"));
    let error = rekey(&site.path("sealed"), &site.key, &Recipients::new());
    assert_eq!(
        error.expect_err("no recipient").kind(),
        ErrorKind::InvalidRequest
    );
    let mut recipients = Recipients::new();
    let recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
    recipients.add(recipient).expect("a recipient");
    rekey(&site.path("sealed"), &site.key, &recipients).expect("rekeys");
    assert!(before == read(&site.path("sealed/sealed.manifest")));
    site.open("sealed").expect("the keyset is the same");
}
