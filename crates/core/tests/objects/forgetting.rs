//! Objects whose bytes turn out to be wrong: the cache forgets them, and no others.
//!
//! A byte that the store sent wrong is cached with a CRC that matches it.

use tload::cache::finish_caching;
use tload::ranks::finish_serving;
use tload::verify::{
    Algorithm, Digest, Expectation, Expected, FileOutcome, MANIFEST_NAME, ManifestTarget,
    Verification, VerifyOptions, VerifyReport,
};
use tload::{ErrorKind, Loader, Location, Report, Result, Tensor, Verify};
use tload_testbed::{Fault, Rule};
use tload_testing::ranks_as_threads;

use crate::caching::{Bench, KEY, PATIENCE, load_cached};
use crate::fixtures::{assert_all, even, folder, in_file_order, load};
use crate::sites::Site;

/// Returns a loader that compares the object with the digest of `file`.
fn verifying(site: &Site, file: &[u8]) -> Loader {
    let expected = Expectation::Of(Expected {
        by: "its manifest".to_owned(),
        len: Some(file.len() as u64),
        whole: Some(Digest::compute(Algorithm::Crc64Nvme, file)),
        ..Expected::default()
    });
    let mut options = in_file_order();
    options.verify = Verify::Require;
    let loader = Loader::new(site.checkpoint(KEY).expect("opens")).options(options);
    loader.expectations([expected])
}

#[test]
fn ranks_forget_object_with_wrong_digest() {
    let bench = Bench::new();
    let file = even("t", 1, 4, 1 << 20);
    bench.site.put(KEY, &file);
    bench.server.fault(Rule::once(Fault::Corrupt(3 << 20)));
    let kinds = std::thread::scope(|scope| {
        let ranks = ranks_as_threads(2).into_iter();
        let ranks = ranks.map(|group| {
            let loader = verifying(&bench.site, &file).group(group);
            scope.spawn(move || {
                let tensors = loader.stream()?.collect::<Result<Vec<_>>>();
                tensors.map(|tensors| tensors.len())
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let ended = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
        ended
            .map(|ended| ended.map_err(|error| error.kind()))
            .collect::<Vec<_>>()
    });
    assert_eq!(kinds, [Err(ErrorKind::Corrupt); 2]);
    assert!(finish_serving(PATIENCE));
    assert!(finish_caching(PATIENCE));
    let (tensors, _) = load_cached(&bench.site, KEY);
    assert_all(&tensors, &[&file]);
}

#[test]
fn object_with_wrong_digest_is_forgotten() {
    let bench = Bench::new();
    let file = even("t", 1, 4, 1 << 20);
    bench.site.put(KEY, &file);
    let load_verified = || {
        let loader = verifying(&bench.site, &file);
        let mut stream = loader.stream().expect("starts");
        let tensors: Result<Vec<_>> = stream.by_ref().collect();
        let report = stream.report();
        drop((stream, loader));
        assert!(finish_caching(PATIENCE));
        tensors.map(|tensors| (tensors, report))
    };
    let corrupt = Rule::once(Fault::Corrupt(3 << 20));
    bench.server.fault(corrupt);
    let error = load_verified().expect_err("a byte is wrong");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let (tensors, report) = load_verified().expect("loads");
    assert_all(&tensors, &[&file]);
    assert!(report.requests > 0, "{report}");
    let (tensors, report) = load_verified().expect("loads");
    assert_all(&tensors, &[&file]);
    assert_eq!(report.requests, 0, "{report}");
}

/// Only one of two objects has a wrong byte, and only that one is requested again. A manifest with
/// another length says nothing about bytes.
#[test]
fn other_objects_are_kept() {
    let bench = Bench::new();
    let files = [even("a", 1, 4, 1 << 20), even("b", 2, 4, 1 << 20)];
    let names = ["m/one.safetensors", "m/two.safetensors"];
    for (name, file) in names.iter().zip(&files) {
        bench.site.put(name, file);
    }
    let corrupt = Rule::always(Fault::Corrupt(3 << 20)).path("two");
    bench.server.fault(corrupt);
    load_cached(&bench.site, "m");
    bench.server.clear_faults();
    let expected = |file: &Vec<u8>, len: u64| {
        Expectation::Of(Expected {
            by: "its manifest".to_owned(),
            len: Some(len),
            whole: Some(Digest::compute(Algorithm::Crc64Nvme, file)),
            ..Expected::default()
        })
    };
    let load_verified = |lens: [u64; 2]| -> Result<(Vec<Tensor>, Report)> {
        let mut options = in_file_order();
        options.verify = Verify::Require;
        let checkpoint = bench.site.checkpoint("m").expect("opens");
        let loader = Loader::new(checkpoint).options(options);
        let each = files.iter().zip(lens);
        let loader = loader.expectations(each.map(|(file, len)| expected(file, len)));
        let mut stream = loader.stream()?;
        let tensors = stream.by_ref().collect::<Result<Vec<_>>>()?;
        Ok((tensors, stream.report()))
    };
    let lens = [0, 1].map(|at: usize| files[at].len() as u64);
    let error = load_verified([lens[0], 5]).expect_err("a manifest of another file");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(finish_caching(PATIENCE));
    let error = load_verified(lens).expect_err("the second one is wrong in the cache");
    let location = error.location().expect("of an object");
    assert!(location.ends_with(names[1]), "{error}");
    assert!(finish_caching(PATIENCE));
    bench.server.forget_requests();
    let (tensors, report) = load_verified(lens).expect("loads");
    assert_all(&tensors, &[&files[0], &files[1]]);
    let requested = bench.requested_bytes();
    assert!(
        (lens[1]..lens[1] + (1 << 20)).contains(&requested),
        "{requested}: {report}"
    );
}

/// The header is valid JSON no more: the first opening reads it again, and the cache has it right.
#[test]
fn invalid_header_is_read_again() {
    let bench = Bench::new();
    let file = even("t", 1, 4, 1 << 20);
    bench.site.put(KEY, &file);
    bench.server.fault(Rule::once(Fault::Corrupt(8)));
    let checkpoint = bench.site.checkpoint(KEY).expect("opens");
    let (tensors, report) = load(&checkpoint, in_file_order()).expect("loads");
    assert_all(&tensors, &[&file]);
    assert!(report.requests > 0, "{report}");
    drop(checkpoint);
    assert!(finish_caching(PATIENCE));
    for requests in [true, false] {
        let (tensors, report) = load_cached(&bench.site, KEY);
        assert_all(&tensors, &[&file]);
        assert_eq!(report.requests > 0, requests, "{report}");
    }
    // Without a cache, nothing but the origin can be wrong.
    bench.server.fault(Rule::once(Fault::Corrupt(8)));
    let plain = crate::sites::faulty_at(&bench.server);
    let error = plain.checkpoint(KEY).expect_err("an invalid header");
    assert_eq!(error.kind(), ErrorKind::InvalidFormat, "{error}");
}

/// The origin decides what a verification says: neither the cache nor what it has of the header.
#[test]
fn verification_compares_origin_where_cache_differs() {
    let good = even("t", 1, 4, 1 << 20);
    let described = folder();
    std::fs::write(described.path().join(KEY), &good).expect("a file");
    let manifest = described.path().join(MANIFEST_NAME);
    let mut options = VerifyOptions::default();
    options.write = Some(ManifestTarget::Path(manifest.clone()));
    let local = Verification::new(Location::from_path(described.path()));
    assert!(
        local
            .options(options)
            .run()
            .expect("reads")
            .written
            .is_some()
    );
    for is_wrong_at_origin in [false, true] {
        let bench = Bench::new();
        bench.site.put(KEY, &good);
        bench.server.fault(Rule::always(Fault::Corrupt(3 << 20)));
        load_cached(&bench.site, KEY);
        if !is_wrong_at_origin {
            bench.server.clear_faults();
        }
        let mut options = VerifyOptions::default();
        options.manifest = Some(Location::from_path(&manifest));
        let verify = || -> VerifyReport {
            let verification = Verification::new(bench.site.location(KEY));
            let verification = verification.options(options.clone());
            let report = verification.opening(bench.site.options.clone()).run();
            assert!(finish_caching(PATIENCE));
            report.expect("reads")
        };
        let report = verify();
        let wanted = if is_wrong_at_origin {
            FileOutcome::Differs
        } else {
            FileOutcome::Matches
        };
        assert_eq!(report.files[0].outcome, wanted, "{report}");
        let is_told = report.notes.iter().any(|note| note.contains("the cache"));
        assert_eq!(is_told, !is_wrong_at_origin, "{report}");
        bench.server.clear_faults();
        // The next one caches what it reads.
        for is_cached in [false, true] {
            bench.server.forget_requests();
            assert_eq!(verify().files[0].outcome, FileOutcome::Matches);
            let most = if is_cached { 1 << 20 } else { u64::MAX };
            assert!(
                bench.requested_bytes() < most,
                "{:?}",
                bench.server.requests()
            );
        }
    }
}
