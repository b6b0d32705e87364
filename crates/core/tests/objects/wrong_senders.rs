//! Wrong bytes of a mirror, a peer or the cache: with a digest, the load fails, the error names the
//! senders, and this process does not use them any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tload::cache::finish_caching;
use tload::ranks::finish_serving;
use tload::verify::{Algorithm, Digest, Expectation, Expected};
use tload::{Checkpoint, Error, ErrorKind, Loader, Report, Result, Selection, Tensor, Verify};
use tload_testbed::{Fault, FaultyServer, Rule};
use tload_testing::ranks_as_threads;

use crate::caching::cached_in;
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

/// Mirror whose bytes are wrong, and its location, which no other mirror of this process has: a
/// later server may get the same port.
fn liar(file: &[u8]) -> (FaultyServer, String) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let server = FaultyServer::start();
    server.put(&format!("liar{number}/model.safetensors"), file);
    let place = format!("{}/liar{number}", server.url());
    (server, place)
}

/// Digests of the header and of each tensor.
fn by_tensor(file: &[u8], algorithm: Algorithm) -> Expectation {
    let view = safetensors::SafeTensors::deserialize(file).expect("a valid file");
    let digest = |bytes: &[u8]| Digest::compute(algorithm, bytes);
    let tensors = view
        .iter()
        .map(|(name, view)| (name.to_owned(), digest(view.data())))
        .collect();
    let length = file.first_chunk().expect("a length");
    let header = 8 + usize::try_from(u64::from_le_bytes(*length)).expect("small");
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

/// Loads until the wrong bytes come. A busy machine may read its first loads from the origin.
fn failure(loader: &Loader) -> (Error, Report) {
    let begun = Instant::now();
    loop {
        let (tensors, report) = run(loader);
        if let Err(error) = tensors {
            return (error, report);
        }
        assert!(begun.elapsed() < PATIENCE, "{report}");
    }
}

/// Returns the locations of the mirrors that have been dropped.
fn dropped(report: &Report) -> Vec<&str> {
    let mirrors = report.mirrors.iter().filter(|it| it.is_dropped);
    mirrors.map(|it| &*it.location).collect()
}

#[test]
fn lying_mirror_is_named_and_not_asked_again() {
    let file = file();
    let by_tensor =
        [Algorithm::Crc64Nvme, Algorithm::Blake3, Algorithm::Sha256].map(|it| by_tensor(&file, it));
    for (expected, of_tensor) in [
        (&by_tensor[0], true),
        (&by_tensor[1], true),
        (&by_tensor[2], true),
        (&of_whole(&file), false),
    ] {
        let (_server, site) = origin(&file);
        let (liar, location) = liar(&wrong(&file));
        // It owns all parts of the file.
        let options = with(&site, &[("peers", &location)]);
        let loader = loader(&open(&site, &options), expected);
        let (error, report) = failure(&loader);
        let chain = error.chain();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{chain}");
        assert_eq!(error.tensor(), of_tensor.then_some("t1"), "{chain}");
        assert_eq!(
            error.range() == Some(0..file.len() as u64),
            !of_tensor,
            "{chain}"
        );
        let compared = error.comparison().expect("digests");
        for wanted in [&*compared.expected, &*compared.found, "its manifest"] {
            assert!(error.message().contains(wanted), "{chain}");
        }
        let named = format!("{location} sent wrong bytes: expected ");
        assert!(error.message().starts_with(&named), "{chain}");
        let wanted = format!(
            "load again: this process does not read from {location} any more; if that fails too, \
             download the file again"
        );
        assert!(
            error.hint().is_some_and(|it| it.starts_with(&wanted)),
            "{chain}"
        );
        assert_eq!(dropped(&report), [&*location], "{report}");
        let failure = report.mirrors[0].failure.as_deref().expect("a failure");
        assert!(failure.contains("do not match its manifest"), "{failure}");
        let (tensors, report) = run(&loader);
        assert_all(&tensors.expect("loads from the origin"), &[&file]);
        assert_eq!(dropped(&report), [&*location], "{report}");
        // A new opening, which has an honest mirror beside it.
        liar.forget_requests();
        let honest = mirror(&file);
        let both = format!("{location},{}", place(&honest));
        let loader = self::loader(&open(&site, &with(&site, &[("mirrors", &both)])), expected);
        let (tensors, report) = run(&loader);
        assert_all(&tensors.expect("loads from the others"), &[&file]);
        assert_eq!(dropped(&report), [&*location], "{report}");
        assert!(liar.requests().is_empty(), "{:?}", liar.requests());
    }
}

/// Each peer sends some parts of one large tensor.
#[test]
fn all_mirrors_that_may_have_lied_are_named() {
    let file = even("t", 8, 1, 80 << 20);
    let (_server, site) = origin(&file);
    let peers = [(); 3].map(|()| liar(&wrong(&file)));
    let all = peers.each_ref().map(|(_, location)| &**location).join(",");
    let options = with(&site, &[("peers", &all)]);
    let checkpoint = open(&site, &options);
    let bytes =
        |report: &Report| -> Vec<u64> { report.mirrors.iter().map(|it| it.read_bytes).collect() };
    // Opens the peers.
    let begun = Instant::now();
    let mut before = vec![0; peers.len()];
    loop {
        let (_, report) = load(&checkpoint, in_file_order()).expect("is not verified");
        let now = bytes(&report);
        let more = now.iter().sum::<u64>() - before.iter().sum::<u64>();
        before = now;
        if more >= 80 << 20 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{report}");
    }
    let loader = loader(&checkpoint, &by_tensor(&file, Algorithm::Crc32c));
    let (error, report) = failure(&loader);
    let chain = error.chain();
    let sent = report.mirrors.iter().zip(&before);
    let sent = sent.filter(|(it, before)| it.read_bytes > **before);
    let sent: Vec<_> = sent.map(|(it, _)| &*it.location).collect();
    assert_eq!(dropped(&report), sent, "{chain}");
    // By chance, one of them may own all five parts.
    let named = if sent.len() > 1 {
        "one of http://"
    } else {
        "http://"
    };
    assert!(error.message().starts_with(named), "{chain}");
    let hint = error.hint().unwrap_or_default();
    for location in &sent {
        assert!(error.message().contains(location), "{chain}");
        assert!(hint.contains(location), "{chain}");
    }
    // None of them is asked again.
    let options = with(&site, &[("peers", &sent.join(","))]);
    let loader = self::loader(&open(&site, &options), &by_tensor(&file, Algorithm::Crc32c));
    let (tensors, report) = run(&loader);
    assert_all(&tensors.expect("loads"), &[&file]);
    assert_eq!(bytes(&report).iter().sum::<u64>(), 0, "{report}");
}

/// Bytes of the origin alone: no mirror is blamed.
#[test]
fn wrong_bytes_of_the_origin_blame_no_mirror() {
    let file = file();
    let (_server, site) = origin(&wrong(&file));
    // It does not have the file.
    let mirror = FaultyServer::start();
    let checkpoint = open(&site, &with(&site, &[("mirrors", &place(&mirror))]));
    let loader = loader(&checkpoint, &by_tensor(&file, Algorithm::Crc32c));
    for _ in 0..2 {
        let (tensors, report) = run(&loader);
        let error = tensors.expect_err("the origin is wrong");
        let chain = error.chain();
        assert!(error.message().starts_with("expected crc32c:"), "{chain}");
        assert!(chain.contains("download the file again"), "{chain}");
        assert!(dropped(&report).is_empty(), "{report}");
    }
}

/// The leader of a node reads for all of its ranks: each gets its error.
#[test]
fn every_rank_names_the_lying_mirror() {
    let file = file();
    let (_server, site) = origin(&file);
    let (_liar, location) = liar(&wrong(&file));
    let options = with(&site, &[("peers", &location)]);
    let expected = by_tensor(&file, Algorithm::Crc64Nvme);
    let load_by_two = || {
        std::thread::scope(|scope| {
            let ranks = ranks_as_threads(2).into_iter();
            let ranks = ranks.map(|group| {
                let loader = loader(&open(&site, &options), &expected).group(group);
                scope.spawn(move || loader.stream()?.collect::<Result<Vec<_>>>())
            });
            let ranks: Vec<_> = ranks.collect();
            let ended = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
            ended.collect::<Vec<_>>()
        })
    };
    let begun = Instant::now();
    let failed = loop {
        let ended = load_by_two();
        if ended.iter().all(Result::is_err) {
            break ended;
        }
        // A busy machine read from the origin.
        assert!(begun.elapsed() < PATIENCE);
    };
    for ended in failed {
        let error = ended.expect_err("a byte is wrong");
        let chain = error.chain();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{chain}");
        assert!(
            chain.contains(&format!("{location} sent wrong bytes")),
            "{chain}"
        );
    }
    for ended in load_by_two() {
        assert_all(&ended.expect("loads"), &[&file]);
    }
    assert!(finish_serving(PATIENCE));
}

/// A byte that the store sent wrong is cached with a CRC that matches it. An engine for files reads
/// a cached file that is complete, and the engine for stores any other.
#[test]
fn wrong_bytes_in_the_cache_are_forgotten() {
    let file = file();
    let expected = by_tensor(&file, Algorithm::Crc64Nvme);
    for selection in [Selection::all(), Selection::names(["t1"])] {
        let server = Arc::new(FaultyServer::start());
        let (mut site, folder) = (faulty_at(&server), folder());
        cached_in(&mut site, folder.path());
        site.put("m.safetensors", &file);
        let run = |of: &dyn Fn(&Checkpoint) -> Loader| {
            let checkpoint = site.checkpoint("m.safetensors").expect("opens");
            let outcome = run(&of(&checkpoint));
            drop(checkpoint);
            assert!(finish_caching(PATIENCE));
            outcome
        };
        let wrong = Fault::Corrupt(file.len() as u64 / 2);
        server.fault(Rule::always(wrong));
        let (tensors, _) = run(&|it| Loader::new(it.clone()).select(selection.clone()));
        tensors.expect("loads");
        server.clear_faults();
        let (tensors, _) = run(&|it| loader(it, &expected));
        let error = tensors.expect_err("a byte is wrong");
        let chain = error.chain();
        assert_eq!(error.tensor(), Some("t1"), "{chain}");
        let wanted = "load again: the cache has forgotten the object; if that fails too, download";
        assert!(
            error.hint().is_some_and(|it| it.starts_with(wanted)),
            "{chain}"
        );
        // It fills again.
        for requests in [true, false] {
            let (tensors, report) = run(&|it| loader(it, &expected));
            assert_all(&tensors.expect("loads"), &[&file]);
            assert_eq!(report.requests > 0, requests, "{report}");
        }
    }
}
