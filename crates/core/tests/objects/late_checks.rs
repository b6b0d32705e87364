//! Digests that are looked up while the first tensors are read. The server holds the manifest back
//! until it has been asked for bytes of tensors: a load that waited for the manifest before its
//! first read would never end.

use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use tload::verify::{Algorithm, Digest, MANIFEST_NAME, Manifest, ManifestFile, ManifestTensor};
use tload::{Canceller, Checkpoint, ErrorKind, Loader, Result, Tensor, Verify};
use tload_testbed::{Fault, FaultyServer, Operation, Rule, pause_between_looks};

use crate::caching::PATIENCE;
use crate::fixtures::{assert_all, even, options};
use crate::sites::{Site, faulty_at};

const KEY: &str = "m.safetensors";

/// Model of which the manifest is held back.
struct Bench {
    server: Arc<FaultyServer>,
    site: Site,
    file: Vec<u8>,
    checkpoint: Checkpoint,
}

impl Bench {
    fn new() -> Self {
        let server = Arc::new(FaultyServer::start());
        let site = faulty_at(&server);
        let file = even("t", 1, 4, 1 << 20);
        site.put(KEY, &file);
        let checkpoint = site.checkpoint(KEY).expect("opens");
        let bench = Self {
            server,
            site,
            file,
            checkpoint,
        };
        bench.hold(&rendered(&bench.manifest()));
        bench
    }

    /// Returns the entry of the file in its manifest.
    fn manifest(&self) -> ManifestFile {
        let of = |bytes: &[u8]| {
            let of = |algorithm| Digest::compute(algorithm, bytes);
            (of(Algorithm::Crc64Nvme), of(Algorithm::Sha256))
        };
        let tensor = |info: &tload::TensorInfo| {
            let range = info.file_range();
            let [start, end] =
                [range.start, range.end].map(|at| usize::try_from(at).expect("small"));
            let (crc64nvme, sha256) = of(&self.file[start..end]);
            let tensor = ManifestTensor {
                range,
                crc64nvme,
                sha256,
                blake3: None,
            };
            (info.name().to_owned(), tensor)
        };
        let (crc64nvme, sha256) = of(&self.file);
        ManifestFile {
            bytes: self.file.len() as u64,
            crc64nvme,
            sha256,
            header: None,
            tensors: self.checkpoint.tensors().iter().map(tensor).collect(),
        }
    }

    /// Replaces the manifest, and holds it back until faults are cleared.
    fn hold(&self, manifest: &[u8]) {
        self.site.put(MANIFEST_NAME, manifest);
        self.server.forget_requests();
        let held = Rule::always(Fault::StallHeaders).path(MANIFEST_NAME);
        self.server.fault(held);
    }

    fn loader(&self) -> Loader {
        let loader = Loader::new(self.checkpoint.clone());
        loader.options(options(|it| it.verify = Verify::Require))
    }

    /// Waits until the server has been asked for bytes of tensors.
    fn wait_for_reads(&self) {
        let header = self.checkpoint.shards()[0].header_bytes();
        let started = Instant::now();
        let is_read = |request: &tload_testbed::Request| {
            let range = request.range.clone().unwrap_or_default();
            request.operation == Operation::Get && request.path.ends_with(KEY) && range.end > header
        };
        while !self.server.requests().iter().any(is_read) {
            if started.elapsed() >= PATIENCE {
                // The load may wait for the manifest.
                self.server.clear_faults();
                unreachable!("nothing is read");
            }
            pause_between_looks();
        }
    }
}

/// Returns the manifest of a model of one file.
fn rendered(file: &ManifestFile) -> Vec<u8> {
    let files = [(KEY.to_owned(), file.clone())].into();
    Manifest { files }.render()
}

/// Loads on another thread.
fn loads<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    loader: Loader,
) -> ScopedJoinHandle<'scope, Result<Vec<Tensor>>> {
    scope.spawn(move || loader.stream()?.collect())
}

#[test]
fn first_read_does_not_wait_for_digests() {
    let bench = Bench::new();
    thread::scope(|scope| {
        let load = loads(scope, bench.loader());
        bench.wait_for_reads();
        assert!(!load.is_finished(), "nothing is handed over unverified");
        bench.server.clear_faults();
        let tensors = load.join().expect("no panic").expect("all is right");
        assert_all(&tensors, &[&bench.file]);
    });
}

#[test]
fn wrong_manifest_is_an_error_of_the_start_during_first_reads() {
    let bench = Bench::new();
    let (mut longer, mut other) = (bench.manifest(), bench.manifest());
    longer.bytes += 1;
    other.crc64nvme = Digest::compute(Algorithm::Crc64Nvme, b"other");
    let table = [
        (rendered(&longer), ErrorKind::Corrupt, "bytes, and manifest"),
        (
            rendered(&other),
            ErrorKind::Corrupt,
            "the bytes do not match",
        ),
        (
            b"{".to_vec(),
            ErrorKind::InvalidFormat,
            "not a tload manifest",
        ),
    ];
    for (manifest, kind, message) in table {
        bench.hold(&manifest);
        thread::scope(|scope| {
            let loader = bench.loader();
            let start = scope.spawn(move || loader.stream().map(drop));
            bench.wait_for_reads();
            assert!(!start.is_finished(), "the start waits");
            bench.server.clear_faults();
            let error = start.join().expect("no panic").expect_err("refused");
            assert_eq!(error.kind(), kind, "{}", error.chain());
            assert!(error.message().contains(message), "{error}");
        });
    }
}

#[test]
fn load_is_cancelled_while_digests_are_looked_up() {
    let bench = Bench::new();
    let canceller = Canceller::default();
    thread::scope(|scope| {
        let load = loads(scope, bench.loader().cancelled_by(canceller.clone()));
        bench.wait_for_reads();
        canceller.cancel();
        // The manifest is still held back.
        let error = load.join().expect("no panic").expect_err("cancelled");
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", error.chain());
    });
    bench.server.clear_faults();
}
