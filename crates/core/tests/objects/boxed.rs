//! Encrypted files of Tensorizer in stores: the tensors are as they were, nothing on the way or in
//! the cache has a byte of them, and damage on the way is not handed over.

#[path = "../../../tensorizer/tests/written/boxes.rs"]
#[expect(dead_code, reason = "files are damaged at their places, not objects")]
mod boxes;

use std::collections::BTreeMap;
use std::rc::Rc;

use tload::cache::finish_caching;
use tload::{Checkpoint, ErrorKind, Key, OpenOptions, Report, Result, StoreOptions, Tensor};
use tload_testing::fixtures::Rng;

use crate::caching::{PATIENCE, files};
use crate::fixtures::{folder, in_file_order, load, read};
use crate::mirrors::{origin, with};
use crate::sites::{Site, on_sites};
use boxes::{BoxedFile, KEY};

const NAME: &str = "m/model.tensors";

/// A file of small tensors and of one of many boxes, and what is in it.
struct Encrypted {
    file: BoxedFile,
    plain: BTreeMap<String, Vec<u8>>,
}

impl Encrypted {
    fn new() -> Self {
        let mut rng = Rng::new(4);
        let lengths = [4_001; 60].into_iter().chain([3_000_001, 500_000]);
        let tensors = lengths.enumerate();
        let tensors: Vec<_> = tensors
            .map(|(number, len)| (format!("t{number}"), rng.bytes(len)))
            .collect();
        Self {
            file: BoxedFile::new(&tensors, 200_000),
            plain: tensors.into_iter().collect(),
        }
    }

    fn load(site: &Site, options: &StoreOptions) -> Result<(Vec<Tensor>, Report)> {
        let options = OpenOptions::from(options).client(site.client.clone());
        // Bytes of a key are no text.
        let digits = KEY.map(|byte| format!("{byte:02x}")).concat();
        let options = options.key(Key::from_text(digits));
        let checkpoint = Checkpoint::open_with(site.location(NAME), options)?;
        load(&checkpoint, in_file_order())
    }

    fn assert_all(&self, tensors: &[Tensor]) {
        assert_eq!(tensors.len(), self.plain.len());
        for tensor in tensors {
            assert!(
                tensor.bytes() == self.plain[tensor.name()],
                "{}",
                tensor.name()
            );
        }
    }
}

on_sites!(encrypted_files_load_from_every_store:
    faulty, faulty_web, versitygw, s3s_fs, moto, fake_gcs, azurite, nginx, nginx_redirect, registry);
fn encrypted_files_load_from_every_store(site: &Rc<Site>) {
    let encrypted = Encrypted::new();
    site.put(NAME, &encrypted.file.bytes);
    let loaded = Encrypted::load(site, &site.options);
    encrypted.assert_all(&loaded.expect("loads").0);
    let plain = OpenOptions::from(&site.options).client(site.client.clone());
    let error = Checkpoint::open_with(site.location(NAME), plain).expect_err("has no key");
    assert_eq!(
        error.kind(),
        ErrorKind::PermissionDenied,
        "{}",
        error.chain()
    );
}

#[test]
fn the_cache_keeps_what_is_encrypted_and_its_damage_is_not_handed_over() {
    let encrypted = Encrypted::new();
    let (_server, site) = origin(b"");
    site.put(NAME, &encrypted.file.bytes);
    let cache = folder();
    let place = cache.path().to_str().expect("UTF-8");
    let options = with(&site, &[("cache_dir", place), ("cache_wait", "true")]);
    encrypted.assert_all(&Encrypted::load(&site, &options).expect("loads").0);
    assert!(finish_caching(PATIENCE));
    let cached = files(cache.path(), "contents");
    assert!(!cached.is_empty(), "the file is cached");
    for path in &cached {
        let bytes = read(path);
        let has = |wanted: &[u8]| bytes.windows(wanted.len()).any(|window| window == wanted);
        let mut tensors = ["t0", "t60", "t61"]
            .iter()
            .map(|name| &encrypted.plain[*name]);
        assert!(!tensors.any(|tensor| has(&tensor[..32]) || has(&tensor[tensor.len() - 32..])));
    }
    let (tensors, report) = Encrypted::load(&site, &options).expect("loads");
    encrypted.assert_all(&tensors);
    assert_eq!(report.remote_bytes, 0, "{report}");
    for path in &cached {
        let mut bytes = read(path);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(path, bytes).expect("writes");
    }
    match Encrypted::load(&site, &options) {
        Ok((tensors, _)) => encrypted.assert_all(&tensors),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain()),
    }
    // Bytes that were not trusted are requested again.
    encrypted.assert_all(&Encrypted::load(&site, &options).expect("loads").0);
}
