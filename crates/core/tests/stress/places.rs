//! Sources and destinations of loads and copies: files by every engine, views, a slow file system,
//! objects, a simulator, and simulated GPUs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tload::CacheMode;
use tload::verify::{MANIFEST_NAME, ManifestTarget, Verification, VerifyOptions};
use tload::{
    Checkpoint, Device, Dtype, EngineChoice, LoadOptions, Loader, Location, Order, Result,
    StoreOptions, Verify,
};
use tload_cuda_stub::Stub;
use tload_testbed::slowfs::{self, Mount, serve_if_asked};
use tload_testbed::{Fault, FaultyServer, Operation, Rule};
use tload_testing::fixtures::{FileBuilder, Rng};

use crate::overlay::Overlay;

const SHARDS: usize = 3;

/// Number of tensors of each shard.
const TENSORS: usize = 20;

/// Bytes of every tensor, by name.
pub(crate) type Contents = BTreeMap<String, Vec<u8>>;

/// Not a test: the process that serves a slow file system.
#[test]
fn serves() {
    serve_if_asked();
}

/// Checkpoint in all places, with everything that must outlive its loads.
pub(crate) struct Land {
    pub(crate) contents: Contents,
    /// Bytes of every file, by name.
    pub(crate) files: Contents,
    folder: TempDir,
    slow: Option<Mount>,
    /// A mount on which some reads return a wrong byte.
    garbled: Option<Mount>,
    /// The files again, on overlayfs, where only `mincore` tells which pages are cached.
    overlay: Option<Overlay>,
    server: Arc<FaultyServer>,
    garbling: Arc<FaultyServer>,
    /// Responds without `ETag` and `Last-Modified`.
    unversioned: Arc<FaultyServer>,
    /// Redirects every object to another port and host name.
    redirecting: Arc<FaultyServer>,
    pub(crate) places: Vec<Place>,
}

/// Way to load the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Files(EngineChoice, CacheMode),
    Overlay(EngineChoice),
    Views,
    /// A file system that is slow, returns short reads, and fails from time to time.
    Slow(EngineChoice),
    /// A server with all faults of object stores.
    Objects,
    /// A server with the same faults that sends no validators.
    UnversionedObjects,
    /// The server of `Objects`, behind one that redirects.
    RedirectedObjects,
    /// Copies, some of them cancelled and resumed, compared as files: [`crate::copies::run`].
    Copies,
    /// Files with wrong bytes, verified.
    GarbledFiles(EngineChoice),
    GarbledObjects,
    Gpu(usize),
    /// No disk: [`crate::loads::simulated`].
    Simulated,
}

impl Place {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Files(engine, cache) => format!("files, {engine}, cache={cache}"),
            Self::Overlay(engine) => format!("files on an overlay, {engine}"),
            Self::Views => "files, cache=map".to_owned(),
            Self::Slow(engine) => format!("a slow file system, {engine}"),
            Self::Objects => "objects".to_owned(),
            Self::UnversionedObjects => "objects without versions".to_owned(),
            Self::RedirectedObjects => "objects behind redirects".to_owned(),
            Self::Copies => "copies of files and objects".to_owned(),
            Self::GarbledFiles(engine) => {
                format!("files with wrong bytes, {engine}, verify=require")
            }
            Self::GarbledObjects => "objects with wrong bytes, verify=require".to_owned(),
            Self::Gpu(ordinal) => format!("files to cuda:{ordinal} (simulated)"),
            Self::Simulated => "a simulator".to_owned(),
        }
    }

    /// Returns whether a load may fail here through an injected fault.
    pub(crate) fn may_fail(self) -> bool {
        let fails = matches!(
            self,
            Self::Slow(_)
                | Self::Objects
                | Self::UnversionedObjects
                | Self::RedirectedObjects
                | Self::Copies
                | Self::Simulated
        );
        fails || self.is_garbled()
    }

    /// Returns whether bytes are corrupted here, which verification must detect.
    pub(crate) fn is_garbled(self) -> bool {
        matches!(self, Self::GarbledFiles(_) | Self::GarbledObjects)
    }
}

/// Prints past the test harness, which shows a test's output only when it fails.
pub(crate) fn say(line: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Like `requirement` of the other tests: a loud skip, or a failure when `TLOAD_REQUIRE` says so.
fn required<T>(name: &str, found: Result<T, String>) -> Option<T> {
    let reason = match found {
        Ok(found) => return Some(found),
        Err(reason) => reason,
    };
    let wanted = variable("TLOAD_REQUIRE").unwrap_or_default();
    let mut wanted = wanted.split(',').map(str::trim);
    assert!(
        !wanted.any(|wanted| wanted == name || wanted == "all"),
        "TLOAD_REQUIRE names {name}, which is missing: {reason}"
    );
    say(&format!("SKIPPED: needs {name}: {reason}"));
    None
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests are steered from outside; the library is not"
)]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn shard_name(shard: usize) -> String {
    format!("m-{shard}.safetensors")
}

/// Builds a shard of tensors of a few bytes to some hundred thousand, half of the time unaligned.
fn shard(rng: &mut Rng, shard: usize, contents: &mut Contents) -> Vec<u8> {
    let mut file = FileBuilder::new();
    for tensor in 0..TENSORS {
        let most = rng.pick(&[16, 5000, 70_000, 400_000]);
        let len = rng.index(most);
        let bytes = rng.bytes(len);
        let name = format!("{shard}.{tensor}");
        file = file.tensor(&name, Dtype::U8, &[bytes.len()], &bytes);
        contents.insert(name, bytes);
    }
    if rng.once_in(2) {
        file = file.unaligned(rng.index(100));
    }
    file.build()
}

impl Land {
    pub(crate) fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let folder = folder.expect("cargo made the folder");
        let servers = [(); 4].map(|()| Arc::new(FaultyServer::start()));
        let mut files = Contents::new();
        let mut put = |name: &str, bytes: &[u8]| {
            files.insert(name.to_owned(), bytes.to_vec());
            std::fs::write(folder.path().join(name), bytes)
                .expect("the temporary folder is writable");
            for server in &servers {
                server.put(&format!("models/m/{name}"), bytes.to_vec());
            }
        };
        let mut rng = Rng::new(seed);
        let mut contents = Contents::new();
        let shards: Vec<_> = (0..SHARDS)
            .map(|index| shard(&mut rng, index, &mut contents))
            .collect();
        for (index, bytes) in shards.iter().enumerate() {
            put(&shard_name(index), bytes);
        }
        put(MANIFEST_NAME, &manifest(folder.path()));
        let [server, garbling, unversioned, redirecting] = servers;
        unversioned.leave_out_validators();
        redirect(&redirecting, &server, files.keys());
        let found = tload::internal::probe::ring().error.map_or(Ok(()), Err);
        let _ = required("uring", found);
        let engines = tload::internal::engine::available();
        let slow = required("fuse", mount(folder.path(), failing()));
        let garbled = required("fuse", mount(folder.path(), slowfs::Options::default()));
        let overlay = required("overlay", Overlay::mount(folder.path()));
        let mut places = vec![
            Place::Views,
            Place::Objects,
            Place::UnversionedObjects,
            Place::RedirectedObjects,
            Place::Copies,
            Place::GarbledObjects,
            Place::Simulated,
        ];
        for &engine in &engines {
            let caches = [CacheMode::Auto, CacheMode::Buffered, CacheMode::Drop];
            places.extend(caches.map(|cache| Place::Files(engine, cache)));
            places.extend(overlay.as_ref().map(|_| Place::Overlay(engine)));
            if slow.is_some() && garbled.is_some() {
                places.extend([Place::Slow(engine), Place::GarbledFiles(engine)]);
            }
        }
        garble(&mut rng, &shards, garbled.as_ref(), &garbling);
        let stub = Stub::load();
        stub.set("copy_delay_us", "50");
        places.extend([Place::Gpu(0), Place::Gpu(1)]);
        Self {
            contents,
            files,
            folder,
            slow,
            garbled,
            overlay,
            server,
            garbling,
            unversioned,
            redirecting,
            places,
        }
    }

    /// Returns a random way of verifying what is at `place`.
    fn verify(&self, rng: &mut Rng, place: Place) -> Verify {
        if place.is_garbled() {
            return Verify::Require;
        }
        let manifest = self.folder.path().join(MANIFEST_NAME);
        let manifest = manifest.to_str().expect("UTF-8").to_owned();
        match rng.below(6) {
            0 => Verify::Require,
            1 => Verify::Manifest(manifest),
            2 => Verify::Sha256(Some(manifest)),
            _ => Verify::Off,
        }
    }

    /// Returns a loader of the checkpoint at `place` with random options, after injecting a fault
    /// if the place is faulty.
    pub(crate) fn loader(&self, rng: &mut Rng, place: Place) -> Result<Loader> {
        let mut options = LoadOptions::default();
        options.lanes = Some(1 + rng.index(3));
        options.order = rng.pick(&[Order::Ready, Order::File]);
        options.extent_bytes = Some(rng.pick(&[16 << 10, 64 << 10, 1 << 20]));
        options.memory_limit = Some(rng.pick(&[2 << 20, 4 << 20, 64 << 20]));
        options.depth = rng.pick(&[None, Some(1), Some(16)]);
        options.verify = self.verify(rng, place);
        let loader = match place {
            Place::Files(engine, cache) => {
                (options.engine, options.cache) = (engine, cache);
                local(self.folder.path())
            }
            Place::Overlay(engine) => {
                options.engine = engine;
                let overlay = self.overlay.as_ref().expect("mounted for this place");
                local(&overlay.path())
            }
            Place::Views => {
                options.cache = CacheMode::Map;
                local(self.folder.path())
            }
            Place::Slow(engine) => {
                options.engine = engine;
                // Readers cannot notice how the page cache treats short answers: tests/it/slow.rs.
                options.cache = CacheMode::Direct;
                let mount = self.slow.as_ref().expect("mounted for this place");
                local(mount.path())
            }
            Place::Objects | Place::UnversionedObjects | Place::RedirectedObjects => {
                options.retries = Some(rng.pick(&[0, 8]));
                let (location, store) = self.objects(rng, place);
                Checkpoint::open_with(&location, store).map(Loader::new)
            }
            Place::GarbledFiles(engine) => {
                (options.engine, options.cache) = (engine, CacheMode::Direct);
                let mount = self.garbled.as_ref().expect("mounted for this place");
                local(mount.path())
            }
            Place::GarbledObjects => {
                let location = Location::parse("s3://models/m").expect("a URL");
                Checkpoint::open_with(&location, store(&self.garbling)).map(Loader::new)
            }
            Place::Gpu(ordinal) => {
                options.device_memory_limit = Some(rng.pick(&[4 << 20, 64 << 20]));
                let loader = local(self.folder.path());
                loader.map(|loader| loader.device(Device::Cuda(ordinal)))
            }
            Place::Copies | Place::Simulated => unreachable!("it has no loader"),
        };
        loader.map(|loader| loader.options(options))
    }

    /// Returns a random source of copies.
    pub(crate) fn source(&self, rng: &mut Rng) -> (Location, StoreOptions) {
        match rng.below(3) {
            0 => (Location::from(self.folder.path()), StoreOptions::new()),
            1 => self.objects(rng, Place::Objects),
            _ => self.objects(rng, Place::RedirectedObjects),
        }
    }

    /// Returns the checkpoint in an object store, after injecting a fault.
    fn objects(&self, rng: &mut Rng, place: Place) -> (Location, StoreOptions) {
        let unversioned = place == Place::UnversionedObjects;
        let server = if unversioned {
            &self.unversioned
        } else {
            &self.server
        };
        misbehave(server, rng);
        let location = Location::parse("s3://models/m").expect("a URL");
        let mut store = store(if place == Place::RedirectedObjects {
            &self.redirecting
        } else {
            server
        });
        if unversioned {
            store
                .set("allow_unversioned", "true")
                .expect("a valid option");
        }
        (location, store)
    }
}

/// Redirects requests for the objects with these names to `server`, under another host name.
fn redirect<'a>(
    redirecting: &FaultyServer,
    server: &FaultyServer,
    names: impl Iterator<Item = &'a String>,
) {
    let url = server.url().replace("127.0.0.1", "localhost");
    for name in names {
        let to = Fault::redirect(&format!("{url}/models/m/{name}"));
        for operation in [Operation::Get, Operation::Head] {
            redirecting.fault(Rule::always(to.clone()).on(operation).path(name));
        }
    }
}

/// Injects a transient fault into one of the next responses; stalls end with a retry.
fn misbehave(server: &FaultyServer, rng: &mut Rng) {
    let at = rng.index(60_000);
    let fault = match rng.below(9) {
        0 => Fault::CutBody(at),
        1 => Fault::ResetBody(at),
        2 => Fault::status(500, "InternalError"),
        3 => Fault::slow_down(0),
        4 => Fault::ShortBody(1 + rng.index(100)),
        5 => Fault::WrongContentRange(1),
        6 => Fault::ResetBeforeHeaders,
        7 => Fault::Drip {
            bytes: 4096,
            pause: Duration::from_millis(1),
        },
        _ => Fault::StallBody(at),
    };
    let rule = Rule::times(1 + rng.index(2), fault);
    server.fault(rule.from_byte(1).after(rng.index(6)));
}

fn store(server: &FaultyServer) -> StoreOptions {
    StoreOptions::from_pairs([
        ("environment", "false".to_owned()),
        ("endpoint", server.url()),
        ("region", "us-east-1".to_owned()),
        ("access_key_id", "test".to_owned()),
        ("secret_access_key", "testtest".to_owned()),
        ("read_timeout", "1".to_owned()),
    ])
    .expect("valid options")
}

/// Writes the manifest of `folder` and returns its bytes.
#[expect(clippy::disallowed_methods, reason = "a test reads what was written")]
fn manifest(folder: &Path) -> Vec<u8> {
    let mut options = VerifyOptions::default();
    options.write = Some(ManifestTarget::Beside);
    let report = Verification::new(Location::from(folder))
        .options(options)
        .run();
    let written = report.expect("the files are readable").written;
    std::fs::read(written.expect("was asked for")).expect("was just written")
}

/// Corrupts, from now on, one byte behind the header of each shard in one read of six.
fn garble(rng: &mut Rng, shards: &[Vec<u8>], mount: Option<&Mount>, server: &FaultyServer) {
    for (index, bytes) in shards.iter().enumerate() {
        let half = bytes.len() / 2;
        let mut at = || (half + rng.index(bytes.len() - half)) as u64;
        if let Some(mount) = mount {
            let rule = slowfs::Rule::always(slowfs::Fault::Flip(at()));
            mount.fault(&rule.file(&shard_name(index)).every(6));
        }
        let rule = Rule::always(Fault::Corrupt(at())).from_byte(1);
        server.fault(rule.path(&shard_name(index)).every(6));
    }
}

fn local(folder: &Path) -> Result<Loader> {
    Loader::open(Location::from(folder))
}

/// Asserts that no use or release of GPU memory was unordered with its other uses.
pub(crate) fn assert_gpus_are_clean() {
    let stub = Stub::load();
    tload::release_staging();
    assert_eq!(stub.count("violations"), 0, "{}", stub.last_violation());
}

/// Returns options of a file system that is slow, returns short reads, and fails from time to time.
fn failing() -> slowfs::Options {
    slowfs::Options {
        latency: Duration::from_micros(500),
        short_every: 7,
        eio_every: 211,
        // Spares the headers.
        fault_from: 4096,
        ..slowfs::Options::default()
    }
}

fn mount(folder: &Path, slowness: slowfs::Options) -> Result<Mount, String> {
    let slowness = slowfs::Options {
        direct: true,
        ..slowness
    };
    Mount::start("places::serves", folder, &slowness)
}
