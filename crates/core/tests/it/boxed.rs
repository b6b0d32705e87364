//! Encrypted files of Tensorizer, loaded with a key: those that the package wrote, and larger ones,
//! over every engine, whole and in slices, with small limits, and with faults.

#[path = "../../../tensorizer/tests/written/boxes.rs"]
mod boxes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tload::verify::{Algorithm, Digest, Verification};
use tload::{
    CacheMode, Checkpoint, Error, ErrorKind, Indices, Key, LoadOptions, Loader, OpenOptions,
    Result, Selection, Slice, Tensor, Verify,
};
use tload_testing::fixtures::Rng;

use crate::files::{evict, folder, location, options, read, write};
use crate::requirement;
use crate::tensorizer::recorded;
use boxes::{BoxedFile, KEY};

/// Bytes by name.
type Plain = BTreeMap<String, Vec<u8>>;

/// An encrypted file, and what is in it.
struct Site {
    folder: TempDir,
    file: BoxedFile,
    plain: Plain,
}

fn hex(key: &[u8]) -> Key {
    let digits: Vec<_> = key.iter().map(|byte| format!("{byte:02x}")).collect();
    Key::from_text(digits.concat())
}

fn open(path: &Path, key: Key) -> Result<Checkpoint> {
    Checkpoint::open_with(location(path), OpenOptions::default().key(key))
}

impl Site {
    /// Some reads with many boxes, and some boxes with many reads.
    fn new() -> Self {
        let mut rng = Rng::new(9);
        let mut tensors = Vec::new();
        for (count, bytes) in [(150, 4_001), (2, 3_000_001), (20, 131_072), (1, 1)] {
            for _ in 0..count {
                tensors.push((format!("t{}", tensors.len()), rng.bytes(bytes)));
            }
        }
        let site = Self {
            folder: folder(),
            file: BoxedFile::new(&tensors, 180_000),
            plain: tensors.into_iter().collect(),
        };
        site.write(&site.file.bytes);
        site
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("model.tensors")
    }

    fn write(&self, bytes: &[u8]) {
        write(&self.path(), bytes);
    }

    fn open(&self) -> Result<Checkpoint> {
        open(&self.path(), hex(&KEY))
    }

    /// Loads everything, and requires that no tensor is another one than it was.
    fn load(&self, options: LoadOptions) -> Result<usize> {
        let mut stream = self.open()?.load().options(options).stream()?;
        let mut count = 0;
        let mut failed = None;
        for tensor in &mut stream {
            match tensor {
                Ok(tensor) => {
                    let wanted = &self.plain[tensor.name()];
                    assert!(tensor.bytes() == wanted, "{}: other bytes", tensor.name());
                    count += 1;
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(count), Err)
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

/// Describes loaded tensors as those of the package are recorded.
fn described(loader: &Loader) -> recorded::Tensors {
    let tensors = loader.stream().expect("it begins").map(|tensor| {
        let tensor = tensor.expect("it is read");
        let shape: Vec<_> = tensor.shape().iter().map(ToString::to_string).collect();
        let sha256 = Digest::compute(Algorithm::Sha256, tensor.bytes()).to_hex();
        let described = (tensor.dtype().to_string(), shape.join(","), sha256);
        (tensor.name().to_owned(), described)
    });
    tensors.collect()
}

#[test]
fn files_of_the_package_load_with_every_form_of_their_key() {
    let folder = folder();
    let raw: Vec<u8> = (0..32).collect();
    let of_raw = Key::from_file(write(&folder.path().join("raw"), &raw));
    let phrase = write(&folder.path().join("phrase"), b"correct horse\n");
    let command = format!("cat '{}'", folder.path().join("raw").display());
    for (name, key) in [
        ("v3", hex(&raw)),
        ("v3", of_raw.clone()),
        ("v3", Key::from_command(command)),
        ("v3_passphrase", Key::from_text("correct horse")),
        ("v3_passphrase", Key::from_file(phrase)),
        ("v4_encrypted", of_raw),
    ] {
        let path = folder.path().join(format!("{name}.tensors"));
        write(&path, &recorded::written(name));
        let mut wanted = recorded::expected(name);
        wanted.remove("meta");
        for verify in [Verify::Off, Verify::Auto, Verify::Sha256(None)] {
            let opened = open(&path, key.clone()).expect(name);
            assert!(opened.is_sealed());
            let loader = opened.load().options(options(|it| it.verify = verify));
            assert_eq!(described(&loader), wanted, "{name}");
        }
    }
}

#[test]
fn loads_equal_the_plain_tensors_over_every_engine() {
    let site = Site::new();
    for options in variants() {
        evict(site.folder.path());
        let count = site.load(options.clone()).expect("loads");
        assert_eq!(count, site.plain.len(), "{options:?}");
    }
    let mapped = options(|it| it.cache = CacheMode::Map);
    let error = site.load(mapped).expect_err("no views");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[test]
fn slices_selections_and_single_reads_equal_the_plain_tensors() {
    let site = Site::new();
    let opened = site.open().expect("opens");
    let slice = Slice::new([Indices::from(1_000_000..2_100_007)]);
    let loader = opened
        .load()
        .select(Selection::names(["t3", "t151", "t171"]));
    let loader = loader.slices([("t151".to_owned(), slice)]);
    let tensors: Vec<Tensor> = loader
        .stream()
        .expect("begins")
        .map(|it| it.expect("loads"))
        .collect();
    assert_eq!(tensors.len(), 3);
    for tensor in &tensors {
        let whole = &site.plain[tensor.name()][..];
        let wanted = if tensor.name() == "t151" {
            &whole[1_000_000..2_100_007]
        } else {
            whole
        };
        assert!(tensor.bytes() == wanted, "{}", tensor.name());
    }
    for name in ["t0", "t150", "t172"] {
        let one = opened.read(name, &Slice::default(), &LoadOptions::new());
        assert!(one.expect("reads").bytes() == site.plain[name], "{name}");
    }
    let reader = opened.reader(&LoadOptions::new()).expect("opens");
    // All of a tensor, from within the header before it; and what is not encrypted.
    let start = site.file.tensors[151].start as u64;
    let mut memory = vec![0; 3_000_101];
    reader
        .read_bytes(0, start - 100, &mut memory)
        .expect("reads");
    assert!(memory[100..] == site.plain["t151"]);
    let at = usize::try_from(start).expect("small");
    assert!(memory[..100] == site.file.bytes[at - 100..at]);
    let mut memory = [0; 90];
    reader.read_bytes(0, 0, &mut memory).expect("reads");
    assert!(memory == site.file.bytes[..90]);
}

#[test]
fn missing_wrong_and_useless_keys_are_told_apart_before_the_first_tensor() {
    let site = Site::new();
    let says = |opened: Result<Checkpoint>, kind: ErrorKind, words: &str| {
        let error = opened.expect_err(words);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.to_string().contains("horse"), "{error}");
    };
    let denied = ErrorKind::PermissionDenied;
    says(Checkpoint::open(&*site.path()), denied, "missing key");
    says(open(&site.path(), hex(&[7; 32])), denied, "wrong key");
    let phrase = || Key::from_text("another horse");
    says(
        open(&site.path(), phrase()),
        denied,
        "not derived from a passphrase",
    );
    let derived = site.folder.path().join("derived.tensors");
    write(&derived, &recorded::written("v3_passphrase"));
    says(open(&derived, phrase()), denied, "wrong key");
    // As long as a key.
    let text = "horse ".repeat(10) + "and ";
    says(open(&derived, Key::from_text(text)), denied, "wrong key");
    let plain = site.folder.path().join("plain.tensors");
    write(&plain, &recorded::written("v1"));
    says(
        open(&plain, hex(&KEY)),
        ErrorKind::InvalidRequest,
        "is not encrypted",
    );
    let gone = Key::from_file(site.folder.path().join("gone"));
    says(open(&site.path(), gone), ErrorKind::NotFound, "gone");
    // Other names than those of weights are looked at as well.
    let other = site.folder.path().join("model.bin");
    write(&other, &site.file.bytes);
    open(&other, hex(&KEY)).expect("opens");
}

#[test]
fn damage_is_an_error_and_none_of_its_bytes_is_handed_over() {
    let site = Site::new();
    let end = site.file.bytes.len() - 9;
    let large = &site.file.tensors[151];
    let boxed = |number: usize| format!("box {number} of 17 does not match its authenticator");
    let (corrupt, invalid) = (ErrorKind::Corrupt, ErrorKind::InvalidFormat);
    for (at, kind, words) in [
        // Bytes of the first box, of one in the middle, of the last one; of the last tensor.
        (large.start, corrupt, boxed(0)),
        (large.start + 2_400_000, corrupt, boxed(13)),
        (large.start + 3_000_000, corrupt, boxed(16)),
        (end, corrupt, "box 0 of 1 ".to_owned()),
        // An authenticator, and the nonce, which all boxes of a tensor share.
        (large.macs + 16 * 16, corrupt, boxed(16)),
        (large.nonce + 23, corrupt, "of 17 does not match".to_owned()),
        // Numbers of the header and of the index.
        (large.nonce - 8, corrupt, boxed(0)),
        (large.nonce + 24, invalid, "number of boxes".to_owned()),
        (large.header, invalid, "length of the header".to_owned()),
        (57, invalid, "number of tensors".to_owned()),
    ] {
        let mut bad = site.file.bytes.clone();
        bad[at] ^= 1;
        site.write(&bad);
        for options in [LoadOptions::new(), options(|it| it.depth = Some(2))] {
            let error = site.load(options).expect_err("damaged");
            assert_eq!(error.kind(), kind, "byte {at}: {error}");
            assert!(error.to_string().contains(&words), "byte {at}: {error}");
        }
    }
    for len in [80, large.header + 3, large.start + 1, end] {
        site.write(&site.file.bytes[..len]);
        let error = site.load(LoadOptions::new()).expect_err("cut");
        assert_eq!(error.kind(), invalid, "{len} bytes: {error}");
    }
    site.write(&site.file.bytes);
    site.load(LoadOptions::new()).expect("whole again");
}

#[test]
fn digests_in_the_file_are_those_of_the_opened_tensors() {
    let site = Site::new();
    let require = || options(|it| it.verify = Verify::Require);
    let sha256 = || options(|it| it.verify = Verify::Sha256(None));
    for options in [require(), sha256()] {
        assert_eq!(site.load(options).expect("loads"), site.plain.len());
    }
    let verify = |key: Option<Key>| {
        let mut opening = OpenOptions::default();
        opening.key = key;
        Verification::new(location(&site.path()))
            .opening(opening)
            .run()
    };
    let error_of = |key| -> Option<Error> {
        match verify(key) {
            Ok(report) => report.error(),
            Err(error) => Some(error),
        }
    };
    assert!(error_of(Some(hex(&KEY))).is_none());
    let error = error_of(None).expect("no key");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    // The digests of a tensor, whose boxes open.
    let mut bad = site.file.bytes.clone();
    bad[site.file.tensors[151].sha256] ^= 1;
    site.write(&bad);
    site.load(require()).expect("the CRC is enough");
    let error = site.load(sha256()).expect_err("another digest");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("t151"), "{error}");
    let mut bad = site.file.bytes.clone();
    bad[site.file.tensors[151].sha256 - 6] ^= 1;
    site.write(&bad);
    site.load(LoadOptions::new()).expect("nothing is compared");
    let error = site.load(require()).expect_err("another digest");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("t151"), "{error}");
    let error = error_of(Some(hex(&KEY))).expect("another digest");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(read(&site.path()) == bad);
}
