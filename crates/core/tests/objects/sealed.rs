//! Sealed checkpoints in stores: the tensors are those of the plain one, and nothing on the way or
//! in the cache has a byte of them.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use tempfile::TempDir;
use tload::cache::finish_caching;
use tload::extend::CancelFlag;
use tload::sealed::{Algorithm, Recipients, SealOptions, Sealing, seal, write_new_key};
use tload::write::{TensorSpec, WriteOptions, Writer};
use tload::{
    Checkpoint, ErrorKind, Key, Location, OpenOptions, Report, Result, StoreOptions, Tensor,
    TensorInfo,
};
use tload_testbed::{Fault, Operation, Rule};

use crate::caching::PATIENCE;
use crate::fixtures::{assert_all, even, folder, in_file_order, load, read};
use crate::mirrors::{load_until, mirror, origin, with};
use crate::sites::{Site, on_sites};

/// Names of the weights, and of what a sealed checkpoint has beside them.
const NAMES: [&str; 4] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "sealed.json",
    "sealed.manifest",
];

/// A checkpoint of two files, one of many tensors in a segment and one of many segments in a
/// tensor, and what it is sealed as.
struct Sealed {
    folder: TempDir,
    key: Key,
    files: [Vec<u8>; 2],
}

impl Sealed {
    fn new() -> Self {
        let folder = folder();
        let files = [even("a", 1, 300, 4_001), even("b", 2, 3, 3_000_001)];
        let plain = folder.path().join("plain");
        std::fs::create_dir(&plain).expect("a new folder");
        for (name, file) in NAMES.iter().zip(&files) {
            std::fs::write(plain.join(name), file).expect("writes");
        }
        let key = folder.path().join("key.json");
        write_new_key(Algorithm::Aes256, &key).expect("writes");
        let key = Key::from_file(key);
        let options = SealOptions {
            algorithm: Algorithm::Aes256,
            recipients: Recipients::new(),
            key: Some(key.clone()),
            plain: Vec::new(),
        };
        let to = folder.path().join("sealed");
        seal(
            &Location::from_path(&plain),
            &StoreOptions::new(),
            &to,
            &options,
            &CancelFlag::default(),
        )
        .expect("seals");
        Self { folder, key, files }
    }

    fn stored(&self, name: &str) -> Vec<u8> {
        read(&self.folder.path().join("sealed").join(name))
    }

    fn put(&self, site: &Site, folder: &str) {
        for name in NAMES {
            site.put(&format!("{folder}/{name}"), &self.stored(name));
        }
    }

    /// Opens the checkpoint: as a list of files, since not every store can be listed.
    fn open(&self, site: &Site, options: &StoreOptions) -> Result<Checkpoint> {
        let options = OpenOptions::from(options).client(site.client.clone());
        let files = NAMES[..2].iter();
        let files: Vec<_> = files
            .map(|name| site.location(&format!("m/{name}")))
            .collect();
        Checkpoint::open_all_with(&files, options.key(self.key.clone()))
    }

    fn load(&self, site: &Site, options: &StoreOptions) -> (Vec<Tensor>, Report) {
        let checkpoint = self.open(site, options).expect("opens");
        load(&checkpoint, in_file_order()).expect("loads")
    }

    fn assert_all(&self, tensors: &[Tensor]) {
        assert_all(tensors, &self.files.each_ref().map(Vec::as_slice));
    }

    /// Returns the first of these files that has a part of a tensor or of a header.
    fn readable<'a>(&self, files: &'a [PathBuf]) -> Option<&'a Path> {
        let parts = self.files.iter().flat_map(|file| {
            let middle = file.len() / 2;
            [
                &file[16..48],
                &file[middle..middle + 32],
                &file[file.len() - 32..],
            ]
        });
        let parts: Vec<_> = parts.collect();
        let is_readable = |path: &&PathBuf| {
            let bytes = read(path);
            let has = |part: &&[u8]| bytes.windows(part.len()).any(|window| window == *part);
            parts.iter().any(has)
        };
        files.iter().find(is_readable).map(PathBuf::as_path)
    }
}

/// Returns all files below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(below(&path));
        } else {
            found.push(path);
        }
    }
    found
}

on_sites!(sealed_checkpoints_load_from_every_store:
    faulty, faulty_web, versitygw, s3s_fs, moto, fake_gcs, azurite, nginx, nginx_redirect, registry);
fn sealed_checkpoints_load_from_every_store(site: &Rc<Site>) {
    let sealed = Sealed::new();
    sealed.put(site, "m");
    sealed.assert_all(&sealed.load(site, &site.options).0);
    let plain = OpenOptions::from(&site.options).client(site.client.clone());
    let file = site.location(&format!("m/{}", NAMES[0]));
    let error = Checkpoint::open_with(file, plain).expect_err("has no key");
    assert_eq!(
        error.kind(),
        ErrorKind::PermissionDenied,
        "{}",
        error.chain()
    );
}

on_sites!(written_checkpoints_are_sealed_on_the_way: versitygw, moto, azurite);
fn written_checkpoints_are_sealed_on_the_way(site: &Rc<Site>) {
    let sealed = Sealed::new();
    let plain = Checkpoint::open(sealed.folder.path().join("plain")).expect("opens");
    let (tensors, _) = load(&plain, in_file_order()).expect("loads");
    // Creates the bucket.
    site.put("other", b"x");
    let to = site.location("m");
    let write = || -> Result<()> {
        let sealing = Sealing::new(&Recipients::new(), Some(&sealed.key))?;
        let options = WriteOptions::new().store(site.options.clone());
        let options = options
            .max_shard_bytes(5_000_000)
            .sealing(Arc::new(sealing));
        let spec = |info: &TensorInfo| {
            let shape: Vec<_> = info.shape().iter().map(|&dim| dim as u64).collect();
            TensorSpec::new(info.name(), info.dtype(), shape)
        };
        let specs: Vec<_> = plain.tensors().iter().map(spec).collect::<Result<_>>()?;
        let mut writer = Writer::planned(&to, specs.clone(), options)?;
        let order: Vec<_> = writer.order().map(str::to_owned).collect();
        for name in order {
            let spec = specs.iter().find(|it| it.name() == name);
            let tensor = tensors.iter().find(|it| it.name() == name);
            writer.begin(spec.expect("planned").clone())?;
            writer.write(tensor.expect("is there").bytes())?;
        }
        writer.finish().map(drop)
    };
    write().expect("is written");
    let error = write().expect_err("is there");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    let options = OpenOptions::from(&site.options).client(site.client.clone());
    let written = Checkpoint::open_with(to.clone(), options.key(sealed.key.clone()));
    let written = written.expect("opens");
    assert!(written.shards().len() > 1);
    let (found, _) = load(&written, in_file_order()).expect("loads");
    assert_eq!(found.len(), tensors.len());
    for tensor in &found {
        let wanted = tensors.iter().find(|it| it.name() == tensor.name());
        assert!(tensor.bytes() == wanted.expect("was written").bytes());
    }
}

on_sites!(cache_keeps_what_is_sealed: faulty, versitygw, azurite, nginx);
fn cache_keeps_what_is_sealed(site: &Rc<Site>) {
    let sealed = Sealed::new();
    sealed.put(site, "m");
    let cache = folder();
    let place = cache.path().to_str().expect("UTF-8");
    let options = with(site, &[("cache_dir", place), ("cache_wait", "true")]);
    sealed.assert_all(&sealed.load(site, &options).0);
    assert!(finish_caching(PATIENCE));
    let files = below(cache.path());
    assert!(files.len() >= 2, "both files are cached");
    assert_eq!(sealed.readable(&files), None);
    let (tensors, report) = sealed.load(site, &options);
    sealed.assert_all(&tensors);
    assert_eq!(report.remote_bytes, 0, "{report}");
    // The search finds what is not sealed.
    let plain = sealed.folder.path().join("plain").join(NAMES[1]);
    assert_eq!(sealed.readable(std::slice::from_ref(&plain)), Some(&*plain));
}

#[test]
fn damaged_cache_is_not_handed_over() {
    let sealed = Sealed::new();
    let (_server, site) = origin(b"");
    sealed.put(&site, "m");
    let cache = folder();
    let place = cache.path().to_str().expect("UTF-8");
    let options = with(&site, &[("cache_dir", place), ("cache_wait", "true")]);
    sealed.assert_all(&sealed.load(&site, &options).0);
    assert!(finish_caching(PATIENCE));
    for path in crate::caching::contents(cache.path()) {
        let mut bytes = read(&path);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).expect("writes");
    }
    match all(&sealed, &site, &options) {
        Ok(tensors) => sealed.assert_all(&tensors),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain()),
    }
    // Bytes that were not trusted are requested again.
    sealed.assert_all(&sealed.load(&site, &options).0);
}

fn all(sealed: &Sealed, site: &Site, options: &StoreOptions) -> Result<Vec<Tensor>> {
    let checkpoint = sealed.open(site, options)?;
    load(&checkpoint, in_file_order()).map(|(tensors, _)| tensors)
}

#[test]
fn mirrors_pass_ciphertext_on() {
    let sealed = Sealed::new();
    let (server, site) = origin(b"");
    sealed.put(&site, "m");
    let mirror = mirror(b"");
    for name in NAMES {
        mirror.put(&format!("copy/{name}"), sealed.stored(name));
    }
    let place = format!("{}/copy", mirror.url());
    let options = with(&site, &[("mirrors", &*place)]);
    let checkpoint = sealed.open(&site, &options).expect("opens");
    // A mirror is compared with the origin before it is read.
    let files = sealed.files.each_ref().map(Vec::as_slice);
    load_until(&checkpoint, &files, |mirror| mirror.read_bytes > 0);
    server.fault(Rule::always(Fault::StallHeaders).on(Operation::Get));
    let (tensors, report) = load(&checkpoint, in_file_order()).expect("loads");
    server.clear_faults();
    sealed.assert_all(&tensors);
    assert!(report.mirrors[0].read_bytes > 0, "{report}");
}
