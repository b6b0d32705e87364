//! Conversions of files that the package tensorizer wrote (`crates/tensorizer/tests`): the tensors
//! are those that it reads; damage and wrong keys are told apart, and leave nothing behind.

#[path = "../../tensorizer/tests/written/mod.rs"]
mod written;

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use sha2::{Digest as _, Sha256};
use tload_base::error::{Error, ErrorKind};
use tload_base::options::Location;
use tload_base::options::location::hexadecimal;
use tload_migrate::{Convert, Converted, Secret, key_of, passphrase_of};

use written::{Tensors, expected, written};

#[expect(clippy::disallowed_methods, reason = "a test looks at files")]
fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("there")
}

/// Returns the tensors of a safetensors file.
fn tensors(path: &Path) -> Tensors {
    let bytes = read(path);
    let file = SafeTensors::deserialize(&bytes).expect("valid");
    let described = file.tensors().into_iter().map(|(name, tensor)| {
        let shape: Vec<_> = tensor.shape().iter().map(ToString::to_string).collect();
        let sha256 = hexadecimal(&Sha256::digest(tensor.data()));
        (name, (tensor.dtype().to_string(), shape.join(","), sha256))
    });
    described.collect()
}

fn key() -> Secret {
    key_of(&(0..32).collect::<Vec<u8>>()).expect("32 bytes")
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made the folder"))
    }

    fn target(&self) -> PathBuf {
        self.0.path().join("converted")
    }

    fn convert(&self, file: &[u8], secret: Option<Secret>) -> Result<Converted, Error> {
        let source = self.0.path().join("x.tensors");
        std::fs::write(&source, file).expect("the folder takes files");
        let convert = Convert::new(Location::from_path(&source), self.target());
        convert.secret(secret).run()
    }

    /// Requires that a failed conversion has left no file.
    fn require_empty(&self) {
        let left = std::fs::read_dir(self.target());
        assert_eq!(left.map_or(0, Iterator::count), 0);
    }
}

#[test]
fn converted_files_have_the_tensors_that_the_package_reads() {
    let digits = hexadecimal(&(0..32).collect::<Vec<u8>>()).to_uppercase();
    for (name, secret) in [
        ("v1", None),
        ("v2", None),
        ("v3", Some(key())),
        (
            "v3",
            Some(key_of(format!("{digits}\n").as_bytes()).expect("digits")),
        ),
        (
            "v3_passphrase",
            Some(passphrase_of(b"correct horse\n").expect("one")),
        ),
        ("v4", None),
        ("v4_encrypted", Some(key())),
        ("v5", None),
    ] {
        let place = Place::new();
        let is_encrypted = secret.is_some();
        let converted = place.convert(&written(name), secret).expect(name);
        assert_eq!(
            tensors(Path::new(&converted.path)),
            expected(name),
            "{name}"
        );
        assert_eq!(converted.decrypted, is_encrypted);
        assert_eq!(converted.tensors, expected(name).len());
        let zeros: &[&str] = if name.starts_with("v4") {
            &["meta"]
        } else {
            &[]
        };
        assert_eq!(converted.zeros, zeros);
    }
}

/// They would describe other weights than those that are there then.
#[test]
fn files_that_describe_weights_are_not_left_beside_others() {
    for name in [
        "sealed.json",
        "sealed.manifest",
        "tload-manifest.json",
        "model.sig",
    ] {
        let place = Place::new();
        std::fs::create_dir(place.target()).expect("the folder takes folders");
        let described = place.target().join(name);
        std::fs::write(&described, "{}").expect("the folder takes files");
        let source = place.0.path().join("x.tensors");
        std::fs::write(&source, written("v5")).expect("the folder takes files");
        let convert = Convert::new(Location::from_path(&source), place.target()).force(true);
        let error = convert.run().expect_err(name);
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        assert_eq!(std::fs::read_dir(place.target()).expect("there").count(), 1);
    }
}

#[test]
fn keys_that_are_wrong_missing_or_not_needed_are_told_apart() {
    let place = Place::new();
    let other = || key_of(&[7; 32]).expect("32 bytes");
    let phrase = |text: &[u8]| passphrase_of(text).expect("one");
    for (name, secret, kind, wanted) in [
        ("v3", None, ErrorKind::PermissionDenied, "no key was given"),
        (
            "v3",
            Some(other()),
            ErrorKind::PermissionDenied,
            "does not match its authenticator",
        ),
        (
            "v3",
            Some(phrase(b"x")),
            ErrorKind::PermissionDenied,
            "wanted the key",
        ),
        (
            "v3_passphrase",
            Some(phrase(b"wrong")),
            ErrorKind::PermissionDenied,
            "does not match its authenticator",
        ),
        (
            "v1",
            Some(other()),
            ErrorKind::InvalidRequest,
            "is not encrypted",
        ),
    ] {
        let error = place.convert(&written(name), secret).expect_err(name);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
        place.require_empty();
    }
    for contents in [&[7; 31][..], &[b'g'; 64], b"", &[b'a'; 63]] {
        let error = key_of(contents).expect_err("no key").to_string();
        assert!(
            error.starts_with(&format!("found {} bytes", contents.len())),
            "{error}"
        );
    }
    assert!(passphrase_of(b"\n").is_err());
}

#[test]
fn damage_is_named_and_leaves_nothing() {
    let place = Place::new();
    let len = written("v1").len();
    for (name, at, secret, kind, wanted) in [
        // The last byte of the last tensor is before eight zeros.
        (
            "v1",
            len - 9,
            None,
            ErrorKind::Corrupt,
            "the file's own digest of the tensor is crc32:",
        ),
        (
            "v1",
            5,
            None,
            ErrorKind::Unsupported,
            "found version 131 of the file",
        ),
        ("v1", 9, None, ErrorKind::InvalidFormat, "flags"),
        ("v1", 65, None, ErrorKind::InvalidFormat, "places"),
        (
            "v3",
            written("v3").len() - 9,
            Some(key()),
            ErrorKind::Corrupt,
            "box 0 of 1 does not",
        ),
    ] {
        let mut file = written(name);
        file[at] ^= 0x82;
        let error = place.convert(&file, secret).expect_err(name);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
        place.require_empty();
    }
    let error = place
        .convert(b"\x02\0\0\0\0\0\0\0{}", None)
        .expect_err("safetensors");
    assert!(
        error.to_string().ends_with("is not a file of Tensorizer"),
        "{error}"
    );
}

#[test]
fn an_existing_file_is_replaced_only_by_force() {
    let place = Place::new();
    place.convert(&written("v1"), None).expect("new");
    let error = place
        .convert(&written("v2"), None)
        .expect_err("there is one");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    let path = place.target().join("model.safetensors");
    assert_eq!(tensors(&path), expected("v1"));
    let source = Location::from_path(place.0.path().join("x.tensors"));
    let forced = Convert::new(source, place.target()).force(true);
    forced.run().expect("by force");
    assert_eq!(tensors(&path), expected("v2"));
    let control = Convert::new(Location::from_path("x"), place.target()).control();
    assert_eq!(control.progress().bytes_total, 0);
}

/// Loads take what an index names, so a file beside it would never be read.
#[test]
fn a_folder_with_other_weights_is_refused_even_by_force() {
    for name in [
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "consolidated.safetensors",
    ] {
        let place = Place::new();
        std::fs::create_dir(place.target()).expect("the folder takes folders");
        std::fs::write(place.target().join(name), "{}").expect("the folder takes files");
        std::fs::write(place.0.path().join("x.tensors"), written("v1")).expect("and others");
        for is_forced in [false, true] {
            let source = Location::from_path(place.0.path().join("x.tensors"));
            let convert = Convert::new(source, place.target()).force(is_forced);
            let error = convert.run().expect_err(name);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
            assert!(error.to_string().contains(name), "{error}");
            let left = std::fs::read_dir(place.target()).expect("there");
            assert_eq!(left.count(), 1);
        }
    }
}

#[test]
fn a_tensor_called_as_the_metadata_is_refused() {
    let place = Place::new();
    let mut file = written("v1");
    let (own, other) = (b"inner.weight", b"__metadata__");
    for at in 0..file.len() - own.len() {
        if file[at..].starts_with(own) {
            file[at..at + own.len()].copy_from_slice(other);
        }
    }
    let error = place
        .convert(&file, None)
        .expect_err("no reader would take it");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(error.tensor(), Some("__metadata__"), "{error}");
    place.require_empty();
}

#[test]
fn cancelled_conversions_leave_nothing() {
    let place = Place::new();
    let source = place.0.path().join("x.tensors");
    std::fs::write(&source, written("v1")).expect("the folder takes files");
    let convert = Convert::new(Location::from_path(&source), place.target());
    convert.control().cancel();
    let error = convert.run().expect_err("cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    place.require_empty();
}
