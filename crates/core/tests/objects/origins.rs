//! The origin decides: bytes of a mirror, a peer or the cache that do not match their digest are
//! read again from the origin, once; the place that sent them is dropped and named.

#![expect(unsafe_code, reason = "lends memory to a load")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tload::testing::fixtures::{FileBuilder, Rng};
use tload::verify::{Algorithm, Digest, Expectation, Expected};
use tload::{
    Checkpoint, Dtype, Error, ErrorKind, Loader, Report, Result, Selection, Target, Tensor, Verify,
    finish_caching,
};
use tload_testbed::{Fault, FaultyServer, Operation, Rule};

use crate::fixtures::{assert_all, even, folder, in_file_order, load};
use crate::mirrors::{mirror, open, origin, place, with};
use crate::sites::faulty_at;

const PATIENCE: Duration = Duration::from_secs(60);

/// Length of a tensor: several reads each, which begin and end within other tensors.
const TENSOR_BYTES: usize = (9 << 20) + 1000;

/// Returns a file of three tensors, each larger than a read.
fn file() -> Vec<u8> {
    even("t", 7, 3, TENSOR_BYTES)
}

/// Returns the file with a wrong byte in the middle of the second tensor.
fn wrong(file: &[u8]) -> Vec<u8> {
    let mut wrong = file.to_vec();
    wrong[file.len() / 2] ^= 1;
    wrong
}

/// Length of the header with the length before it.
fn header_bytes(file: &[u8]) -> usize {
    let length = file.first_chunk().expect("a length");
    8 + usize::try_from(u64::from_le_bytes(*length)).expect("small")
}

/// Digests of the header and of each tensor.
fn by_tensor(file: &[u8], algorithm: Algorithm) -> Expectation {
    let view = safetensors::SafeTensors::deserialize(file).expect("a valid file");
    let digest = |bytes: &[u8]| Digest::compute(algorithm, bytes);
    let tensors = view
        .iter()
        .map(|(name, view)| (name.to_owned(), digest(view.data())))
        .collect();
    let header = header_bytes(file);
    Expectation::Of(Expected {
        by: "its manifest".to_owned(),
        len: Some(file.len() as u64),
        header: Some(digest(&file[..header])),
        tensors,
        ..Expected::default()
    })
}

/// Digest of the whole.
fn of_whole(file: &[u8]) -> Expectation {
    Expectation::Of(Expected {
        by: "its manifest".to_owned(),
        len: Some(file.len() as u64),
        whole: Some(Digest::compute(Algorithm::Crc64Nvme, file)),
        ..Expected::default()
    })
}

fn loader(checkpoint: &Checkpoint, expected: &Expectation) -> Loader {
    let mut options = in_file_order();
    options.verify = Verify::Require;
    let loader = Loader::new(checkpoint.clone()).options(options);
    loader.expectations([expected.clone()])
}

fn run(loader: &Loader) -> (Result<Vec<Tensor>, Error>, Report) {
    let mut stream = loader.stream().expect("starts");
    let tensors = stream.by_ref().collect();
    (tensors, stream.report())
}

fn was_read_again(report: &Report) -> bool {
    report
        .notes
        .iter()
        .any(|it| it.contains("read again from the origin"))
}

#[test]
fn wrong_bytes_of_a_peer_are_read_again_from_the_origin() {
    let file = file();
    for algorithm in [Algorithm::Crc64Nvme, Algorithm::Blake3, Algorithm::Sha256] {
        let (_server, site) = origin(&file);
        let peer = mirror(&wrong(&file));
        let checkpoint = open(&site, &with(&site, &[("peers", &place(&peer))]));
        let loader = loader(&checkpoint, &by_tensor(&file, algorithm));
        let (tensors, report) = run(&loader);
        assert_all(&tensors.expect("loads"), &[&file]);
        let (peer, sent) = (&report.mirrors[0], report.mirrors[0].read_bytes);
        assert!(peer.is_dropped && was_read_again(&report), "{report}");
        let failure = peer.failure.as_deref().expect("a failure");
        assert!(failure.contains("do not match its manifest"), "{failure}");
        assert!(failure.contains("\"t1\""), "{failure}");
        let (tensors, report) = run(&loader);
        assert_all(&tensors.expect("loads"), &[&file]);
        assert_eq!(report.mirrors[0].read_bytes, sent, "it is not asked again");
        assert!(!was_read_again(&report), "{report}");
    }
}

/// Extents of a file with SHA-256 wait for their turn, so the other lanes' may not have been passed
/// on when a CRC turns out to be wrong: then the load fails rather than waiting for itself.
#[test]
fn mixed_digests_end_the_load() {
    let file = file();
    let (mut crc, sha) = (
        by_tensor(&file, Algorithm::Crc32c),
        by_tensor(&file, Algorithm::Sha256),
    );
    if let (Expectation::Of(crc), Expectation::Of(sha)) = (&mut crc, sha) {
        for (name, digest) in sha.tensors {
            if name != "t1" {
                crc.tensors.insert(name, digest);
            }
        }
    }
    for _ in 0..4 {
        let (_server, site) = origin(&file);
        let peer = mirror(&wrong(&file));
        let checkpoint = open(&site, &with(&site, &[("peers", &place(&peer))]));
        let (tensors, report) = run(&loader(&checkpoint, &crc));
        assert!(report.mirrors[0].is_dropped, "{report}");
        match tensors {
            Ok(tensors) => assert_all(&tensors, &[&file]),
            Err(error) => {
                let hint = error.hint().unwrap_or_default();
                assert!(hint.contains(&place(&peer)), "{}", error.chain());
            }
        }
    }
}

/// The caller's memory holds the wrong bytes already when they turn out to be wrong.
#[test]
fn wrong_bytes_in_memory_of_the_caller_are_replaced() {
    let file = file();
    let (_server, site) = origin(&file);
    let peer = mirror(&wrong(&file));
    let checkpoint = open(&site, &with(&site, &[("peers", &place(&peer))]));
    let memory: Vec<&'static mut [u8]> = (0..3)
        .map(|_| &mut *vec![0xEE; TENSOR_BYTES].leak())
        .collect();
    let starts: Vec<_> = memory
        .into_iter()
        .map(|memory| std::ptr::NonNull::from(memory).cast::<u8>())
        .collect();
    let targets = starts.iter().enumerate().map(|(index, start)| {
        // SAFETY: leaked, so valid forever; read below only after the load.
        let target = unsafe { Target::host(*start, TENSOR_BYTES, Some(Arc::new(()))) };
        (format!("t{index}"), target)
    });
    let loader = loader(&checkpoint, &by_tensor(&file, Algorithm::Crc64Nvme));
    let (tensors, report) = run(&loader.targets(targets.collect::<Vec<_>>()));
    drop(tensors.expect("loads"));
    assert!(was_read_again(&report), "{report}");
    let view = safetensors::SafeTensors::deserialize(&file).expect("a valid file");
    for (index, start) in starts.iter().enumerate() {
        // SAFETY: leaked above, and the load has ended.
        let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), TENSOR_BYTES) };
        let wanted = view.tensor(&format!("t{index}")).expect("is there");
        assert!(bytes == wanted.data(), "t{index}: wrong bytes");
    }
}

#[test]
fn only_the_mirror_that_lies_is_dropped() {
    let file = file();
    let (_server, site) = origin(&file);
    let (honest, lying) = (mirror(&file), mirror(&wrong(&file)));
    let places = format!("{},{}", place(&honest), place(&lying));
    let checkpoint = open(&site, &with(&site, &[("mirrors", &places)]));
    let loader = loader(&checkpoint, &by_tensor(&file, Algorithm::Blake3));
    let begun = Instant::now();
    loop {
        let (tensors, report) = run(&loader);
        assert_all(&tensors.expect("loads"), &[&file]);
        let is_dropped = |server| {
            let mut mirrors = report.mirrors.iter();
            mirrors.any(|it| it.location == place(server) && it.is_dropped)
        };
        assert!(!is_dropped(&honest), "{report}");
        assert_eq!(is_dropped(&lying), was_read_again(&report), "{report}");
        if is_dropped(&lying) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{report}");
    }
}

#[test]
fn wrong_bytes_of_the_origin_fail_the_load() {
    let file = file();
    let (_server, site) = origin(&wrong(&file));
    let peer = mirror(&wrong(&file));
    let checkpoint = open(&site, &with(&site, &[("peers", &place(&peer))]));
    let loader = loader(&checkpoint, &by_tensor(&file, Algorithm::Crc32c));
    let (tensors, report) = run(&loader);
    let error = tensors.expect_err("the origin is wrong too");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain());
    assert!(!report.mirrors[0].is_dropped, "{report}");
    assert!(!was_read_again(&report), "{report}");
}

/// A failed extent is never passed on: what waits for that, to be read again, ends with the load.
#[test]
fn tensor_that_waits_for_a_failed_one_ends_with_the_load() {
    let mut rng = Rng::new(3);
    // Small ones, whose reads begin and end within others.
    let kib = 1 << 10;
    let tensors = [
        ("a", 96 * kib),
        ("t", 384 * kib),
        ("u", 1000),
        ("z", 64 * kib),
    ];
    let file = tensors
        .iter()
        .fold(FileBuilder::new(), |file, &(name, len)| {
            file.tensor(name, Dtype::U8, &[len], &rng.bytes(len))
        });
    let file = file.build();
    let at = |offset: usize| header_bytes(&file) + offset * kib;
    // The origin has one wrong tensor, the peer three.
    let mut wrong = file.clone();
    wrong[at(480) + 10] ^= 1;
    let (server, site) = origin(&wrong);
    wrong[at(96) - 1] ^= 1;
    wrong[at(200)] ^= 1;
    let peer = mirror(&wrong);
    let checkpoint = open(&site, &with(&site, &[("peers", &place(&peer))]));
    let mut options = in_file_order();
    (options.lanes, options.depth) = (Some(1), Some(16));
    options.extent_bytes = Some(64 * kib as u64);
    // Opens the peer's file.
    load(&checkpoint, options.clone()).expect("loads without verification");
    // While the first tensor is read again, the last extent arrives, and then the second one.
    let delay = |ms, from: usize| {
        let delay = Fault::Delay(Duration::from_millis(ms));
        Rule::once(delay).from_byte(from as u64)
    };
    peer.fault(delay(400, at(150)));
    peer.fault(delay(200, at(420)));
    server.fault(Rule::always(Fault::Delay(Duration::from_secs(1))));
    options.verify = Verify::Require;
    let loader = Loader::new(checkpoint).options(options);
    let expected = by_tensor(&file, Algorithm::Crc32c);
    let (tensors, _) = run(&loader.expectations([expected]));
    let error = tensors.expect_err("the origin is wrong too");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain());
    assert!(error.chain().contains("\"u\""), "{}", error.chain());
}

/// The origin's own bytes were wrong the first time: those of the mirror were right.
#[test]
fn mirror_whose_bytes_match_is_not_dropped() {
    let file = file();
    let (server, site) = origin(&file);
    let mirror = mirror(&file);
    let checkpoint = open(&site, &with(&site, &[("mirrors", &place(&mirror))]));
    let loader = loader(&checkpoint, &by_tensor(&file, Algorithm::Crc32c));
    let begun = Instant::now();
    loop {
        server.fault(Rule::once(Fault::Corrupt(file.len() as u64 / 2)).on(Operation::Get));
        let (tensors, report) = run(&loader);
        server.clear_faults();
        assert!(!report.mirrors[0].is_dropped, "{report}");
        match tensors {
            Ok(tensors) => assert_all(&tensors, &[&file]),
            // All of the tensor came from the origin.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain()),
        }
        if was_read_again(&report) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{report}");
    }
}

/// The error has both: the digest that does not match, and the reason why the origin cannot help.
#[test]
fn origin_that_cannot_be_read_again_is_the_cause() {
    let file = file();
    let (server, site) = origin(&file);
    let peer = mirror(&wrong(&file));
    let checkpoint = open(&site, &with(&site, &[("peers", &place(&peer))]));
    let loader = loader(&checkpoint, &by_tensor(&file, Algorithm::Crc64Nvme));
    server.fault(
        Rule::always(Fault::status(403, "AccessDenied"))
            .from_byte(1)
            .after(1),
    );
    let (tensors, report) = run(&loader);
    let chain = tensors.expect_err("bytes are wrong").chain();
    assert!(chain.contains("do not match its manifest"), "{chain}");
    assert!(chain.contains("access is denied"), "{chain}");
    assert!(report.mirrors[0].is_dropped, "{report}");
}

/// Other tensors of the file have been handed over.
#[test]
fn wrong_whole_of_a_peer_is_an_error_that_names_it() {
    let file = file();
    let (_server, site) = origin(&file);
    let peer = mirror(&wrong(&file));
    let checkpoint = open(&site, &with(&site, &[("peers", &place(&peer))]));
    let loader = loader(&checkpoint, &of_whole(&file));
    let (tensors, report) = run(&loader);
    let error = tensors.expect_err("bytes are wrong");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain());
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains(&place(&peer))),
        "{}",
        error.chain()
    );
    assert!(report.mirrors[0].is_dropped, "{report}");
    let (tensors, _) = run(&loader);
    assert_all(&tensors.expect("loads from the origin"), &[&file]);
}

/// A byte that the store sent wrong is cached with a CRC that matches it. An engine for files reads
/// a cached file that is complete, and the engine for stores any other.
#[test]
fn wrong_bytes_in_the_cache_are_read_again_from_the_origin() {
    let file = file();
    let expected = by_tensor(&file, Algorithm::Crc64Nvme);
    for selection in [Selection::all(), Selection::names(["t1"])] {
        let server = Arc::new(FaultyServer::start());
        let (mut site, folder) = (faulty_at(&server), folder());
        let directory = folder.path().to_str().expect("UTF-8");
        for (key, value) in [("cache_dir", directory), ("cache_wait", "true")] {
            site.options.set(key, value).expect("an option");
        }
        site.put("m.safetensors", &file);
        let run = |of: &dyn Fn(&Checkpoint) -> Loader| {
            let checkpoint = site.checkpoint("m.safetensors").expect("opens");
            let (tensors, report) = run(&of(&checkpoint));
            drop(checkpoint);
            assert!(finish_caching(PATIENCE));
            (tensors.expect("loads"), report)
        };
        let wrong = Fault::Corrupt(file.len() as u64 / 2);
        server.fault(Rule::always(wrong));
        run(&|it| Loader::new(it.clone()).tensors(selection.clone()));
        server.clear_faults();
        let (tensors, report) = run(&|it| loader(it, &expected));
        assert_all(&tensors, &[&file]);
        let damaged = |report: &Report| report.cache.as_ref().map_or(0, |it| it.damaged_bytes);
        assert!(damaged(&report) > 0 && was_read_again(&report), "{report}");
        // It is gone from the cache, which fills again.
        for requests in [true, false] {
            let (tensors, report) = run(&|it| loader(it, &expected));
            assert_all(&tensors, &[&file]);
            assert!(!was_read_again(&report), "{report}");
            assert_eq!(report.requests > 0, requests, "{report}");
        }
    }
}
