//! Files that the package tensorizer wrote (`written_by_tensorizer.py`): their tensors are those
//! that it reads, and damage is found wherever it is.

mod written;

use sha2::{Digest as _, Sha256};
use tload_base::options::location::hexadecimal;
use tload_tensorizer::{
    DecryptError, FormatError, Index, Key, PREFIX_BYTES, Secret, TensorHeader, index_end, parse,
};
use zeroize::Zeroizing;

use written::{Tensors, expected, written};

fn index_in(place: u64) -> usize {
    usize::try_from(place).expect("in memory")
}

fn key() -> Secret {
    let bytes: Vec<u8> = (0..32).collect();
    Secret::Key(Key::new(&bytes).expect("32 bytes"))
}

fn passphrase(text: &str) -> Secret {
    Secret::Passphrase(Zeroizing::new(text.as_bytes().to_vec()))
}

fn index_of(file: &[u8]) -> Result<Index, FormatError> {
    let end = index_end(file, file.len() as u64)?;
    parse(&file[..index_in(end)], file.len() as u64)
}

fn bytes_of(file: &[u8], range: &std::ops::Range<u64>) -> Vec<u8> {
    file[index_in(range.start)..index_in(range.end)].to_vec()
}

/// Reads everything that a file holds, and compares all digests.
fn read(file: &[u8], secret: &Secret) -> Result<Tensors, String> {
    let index = index_of(file).map_err(|error| error.to_string())?;
    let mut tensors = Tensors::new();
    for tensor in &index.tensors {
        let header = bytes_of(file, &tensor.header);
        let header = TensorHeader::parse(&header, tensor, &index);
        let header = header.map_err(|error| error.to_string())?;
        let mut bytes = bytes_of(file, &tensor.range);
        if let Some(encryption) = &header.encryption {
            let text = |error: DecryptError| error.to_string();
            let key = secret.key(encryption).map_err(text)?;
            for at in 0..encryption.boxes.count() {
                let own = encryption.boxes.range(at);
                let own = index_in(own.start)..index_in(own.end);
                key.open(&encryption.boxes, at, &mut bytes[own])
                    .map_err(text)?;
            }
        }
        let mut digests = header.digests();
        digests.update(&bytes);
        digests.finish().map_err(|wrong| wrong.found)?;
        if tensor.is_meta() {
            bytes.resize(index_in(tensor.byte_len), 0);
        }
        let shape: Vec<_> = tensor.shape.iter().map(ToString::to_string).collect();
        let described = (
            tensor.dtype.to_string(),
            shape.join(","),
            hexadecimal(&Sha256::digest(&bytes)),
        );
        tensors.insert(tensor.name.clone(), described);
    }
    Ok(tensors)
}

/// Files, and what opens them.
fn files() -> [(&'static str, Secret); 7] {
    [
        ("v1", key()),
        ("v2", key()),
        ("v3", key()),
        ("v3_passphrase", passphrase("correct horse")),
        ("v4", key()),
        ("v4_encrypted", key()),
        ("v5", key()),
    ]
}

#[test]
fn files_of_every_version_have_the_tensors_that_the_package_reads() {
    for (name, secret) in files() {
        let file = written(name);
        let tensors = read(&file, &secret).expect(name);
        assert!(!tensors.is_empty());
        assert_eq!(tensors, expected(name), "{name}");
        let index = index_of(&file).expect(name);
        let version: u32 = name[1..2].parse().expect("a digit");
        assert_eq!(index.version, version);
        assert_eq!(
            index.is_encrypted,
            name.starts_with("v3") || name.ends_with('d')
        );
        let metas = index.tensors.iter().filter(|tensor| tensor.is_meta());
        assert_eq!(metas.count(), usize::from(version == 4), "{name}");
    }
}

#[test]
fn every_flipped_bit_is_found_or_changes_nothing() {
    for (name, secret) in files() {
        if name == "v3_passphrase" {
            continue;
        }
        let file = written(name);
        let right = expected(name);
        let mut harmless = 0;
        let index = index_of(&file).expect(name);
        let end = index.tensors.last().expect("some").range.end;
        // With one box, its size is not used.
        let boxes = index
            .tensors
            .iter()
            .filter(|tensor| index.is_encrypted && !tensor.is_meta());
        let sizes: Vec<_> = boxes.map(|tensor| tensor.header.clone()).collect();
        for at in 0..file.len() {
            // Between the last entry of the index and the first tensor, one byte is like another.
            let is_zero = file[at.saturating_sub(48)..(at + 48).min(file.len())]
                .iter()
                .all(|byte| *byte == 0);
            if is_zero && at % 9973 != 0 {
                continue;
            }
            let mut damaged = file.clone();
            damaged[at] ^= 1 << (at % 8);
            match read(&damaged, &secret) {
                Ok(tensors) => {
                    assert_eq!(tensors, right, "{name}, byte {at}");
                    // Sizes that nothing reads, and bytes behind the last tensor.
                    let place = at as u64;
                    let is_size = sizes.iter().any(|header| header.contains(&place));
                    let is_unused = (41..57).contains(&place) || place >= end || is_size;
                    assert!(is_unused, "{name}, byte {at}");
                    harmless += 1;
                }
                Err(error) => assert!(error.len() < 1000, "{error}"),
            }
        }
        assert_eq!(harmless, 24 + 8 * sizes.len(), "{name}");
    }
}

#[test]
fn truncation_is_found_at_every_boundary() {
    for (name, secret) in files() {
        let file = written(name);
        let index = index_of(&file).expect(name);
        let mut cuts: Vec<u64> = vec![0, 4, 5, 9, 41, 57, 65, PREFIX_BYTES, index.bytes];
        for tensor in &index.tensors {
            cuts.extend([tensor.header.start, tensor.header.end, tensor.range.end]);
        }
        let last = index.tensors.last().expect("some").range.end;
        let all = cuts
            .iter()
            .flat_map(|cut| [cut.saturating_sub(1), *cut, cut + 1]);
        for cut in all {
            let kept = &file[..usize::try_from(cut).unwrap().min(file.len())];
            let read = read(kept, &secret);
            assert_eq!(read.is_ok(), cut >= last, "{name} of {cut} bytes: {read:?}");
        }
    }
}

#[test]
fn unknown_versions_are_named() {
    for version in [0_u32, 6, u32::MAX] {
        let mut file = written("v1");
        file[5..9].copy_from_slice(&version.to_le_bytes());
        let error = index_of(&file).expect_err("there is none");
        let wanted = format!("found version {version} of the file, wanted 1 to 5");
        assert_eq!(error.to_string(), wanted);
        let error = error.into_error("x.tensors");
        let kind = tload_base::error::ErrorKind::Unsupported;
        assert_eq!((error.kind(), error.range()), (kind, Some(5..9)));
    }
    let mut file = written("v5");
    let at = usize::try_from(PREFIX_BYTES).unwrap();
    file[at] = 7;
    let error = index_of(&file).expect_err("there is none").to_string();
    assert_eq!(error, "found version 7 of the entry, wanted 1 or 5");
    // Flags are of later versions.
    for (name, flags) in [("v1", 1), ("v4", 2), ("v5", 4)] {
        let mut file = written(name);
        file[9] |= flags;
        let error = index_of(&file).expect_err(name).to_string();
        assert!(error.starts_with("flags: found ["), "{error}");
    }
}

#[test]
fn numbers_that_are_too_large_are_errors_before_memory_is_taken() {
    for (name, at, value, wanted) in [
        (
            "v1",
            65,
            u64::MAX,
            "length of the index: found 18446744073709551615",
        ),
        (
            "v1",
            65,
            1 << 40,
            "length of the index: found 1099511627776",
        ),
        ("v1", 65, 1 << 26, "the file ends within its index"),
        ("v1", 57, u64::MAX, "name of a tensor: found \"\""),
    ] {
        let mut file = written(name);
        file[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let error = index_of(&file).expect_err(wanted).to_string();
        assert!(error.starts_with(wanted), "{error}");
    }
}

#[test]
fn wrong_and_missing_keys_are_told_apart() {
    let other = Secret::Key(Key::new(&[7; 32]).expect("32 bytes"));
    let mismatch = "box 0 of 1 does not match its authenticator";
    for (name, secret, wanted) in [
        ("v3", other.clone(), mismatch),
        ("v3_passphrase", passphrase("wrong horse"), mismatch),
        ("v3_passphrase", other, mismatch),
        (
            "v3",
            passphrase("correct horse"),
            "found a passphrase, wanted the key",
        ),
    ] {
        let error = read(&written(name), &secret).expect_err(name);
        assert!(error.starts_with(wanted), "{error}");
    }
    assert_eq!(
        Key::new(&[0; 31]).err(),
        Some(DecryptError::KeyLength { found: 31 })
    );
}

#[test]
fn files_cannot_ask_for_expensive_keys() {
    let file = written("v3_passphrase");
    let index = index_of(&file).expect("valid");
    let tensor = &index.tensors[0];
    let header = TensorHeader::parse(&bytes_of(&file, &tensor.header), tensor, &index);
    let encryption = header.expect("valid").encryption.expect("it is encrypted");
    for (change, wanted) in [
        (
            (65, 1 << 13, 2, 16),
            "passes of the key derivation: found 65",
        ),
        ((0, 1 << 13, 2, 16), "passes of the key derivation: found 0"),
        (
            (1, (1 << 30) + 1, 2, 16),
            "memory of the key derivation: found 1073741825 bytes",
        ),
        ((1, 1024, 2, 16), "parameters of the key derivation"),
        (
            (1, 1 << 13, 1, 16),
            "algorithm of the key derivation: found 1",
        ),
        (
            (1, 1 << 13, 2, 15),
            "salt of the key derivation: found 15 bytes",
        ),
    ] {
        let (ops, memory_bytes, algorithm, salt) = change;
        let mut other = encryption.clone();
        let derivation = other.derivation.as_mut().expect("from a passphrase");
        (derivation.ops, derivation.memory_bytes) = (ops, memory_bytes);
        derivation.algorithm = algorithm;
        derivation.salt.truncate(salt);
        let error = passphrase("correct horse").key(&other).expect_err(wanted);
        assert!(error.to_string().starts_with(wanted), "{error}");
    }
}
