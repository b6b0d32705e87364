//! Digests that are looked up while the first tensors are read. The server holds the manifest back
//! until it has been asked for bytes of tensors: a load that waited for the manifest before its
//! first read would never end.

#![expect(unsafe_code, reason = "lends memory to a load")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use tload::verify::{Algorithm, Digest, MANIFEST_NAME, Manifest, ManifestFile, ManifestTensor};
use tload::{Canceller, Checkpoint, ErrorKind, Loader, Result, Target, Tensor, Verify};
use tload_testbed::{Fault, FaultyServer, Operation, Request, Rule, pause_between_looks};

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

    /// Returns whether a request is for bytes of tensors.
    fn is_read(&self, request: &Request) -> bool {
        let header = self.checkpoint.shards()[0].header_bytes();
        let range = request.range.clone().unwrap_or_default();
        request.operation == Operation::Get && request.path.ends_with(KEY) && range.end > header
    }

    /// Waits until the server has been asked for bytes of tensors.
    fn wait_for_reads(&self) {
        self.wait_for(|request| self.is_read(request));
    }

    fn wait_for(&self, is_it: impl Fn(&Request) -> bool) {
        let started = Instant::now();
        while !self.server.requests().iter().any(&is_it) {
            if started.elapsed() >= PATIENCE {
                // The load may wait for the manifest.
                self.server.clear_faults();
                unreachable!("no such request");
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
fn refused_load_leaves_memory_of_caller_as_it_was() {
    let bench = Bench::new();
    let mut longer = bench.manifest();
    longer.bytes += 1;
    bench.hold(&rendered(&longer));
    let lent = |info: &tload::TensorInfo| {
        let len = usize::try_from(info.byte_len()).expect("small");
        (info.name().to_owned(), vec![0xEE; len])
    };
    let mut memory: Vec<_> = bench.checkpoint.tensors().iter().map(lent).collect();
    let targets = memory.iter_mut().map(|(name, bytes)| {
        let start = NonNull::from(&mut bytes[0]);
        // SAFETY: the memory outlives the load, and is not used before its end.
        let target = unsafe { Target::host(start, bytes.len(), None) };
        (name.clone(), target)
    });
    let loader = bench.loader().targets(targets);
    thread::scope(|scope| {
        let start = scope.spawn(move || loader.stream().map(drop));
        bench.wait_for(|request| request.path.ends_with(MANIFEST_NAME));
        bench.server.clear_faults();
        let error = start.join().expect("no panic").expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain());
    });
    let requests = bench.server.requests();
    assert!(!requests.iter().any(|it| bench.is_read(it)), "no read");
    for (name, bytes) in &memory {
        assert!(bytes.iter().all(|byte| *byte == 0xEE), "{name}");
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
