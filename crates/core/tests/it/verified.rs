//! Verification while streaming: every wrong byte is found before its tensor is handed over, and no
//! right byte is reported.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::task::Poll;
use std::time::{Duration, Instant};

use tload::CacheMode;
use tload::internal::check::LateCheck;
use tload::internal::plan::Layout;
use tload::internal::schedule::{Depth, InFlight};
use tload::internal::storage::{MemorySource, Source};
use tload::verify::{Algorithm, Digest, Expectation, Expected};
use tload::{
    Checkpoint, Dtype, Error, ErrorKind, Indices, LoadOptions, Loader, Order, Report, Selection,
    Slice, Tensor, TensorInfo, Verify,
};
use tload_base::crc::Polynomial;
use tload_testing::fixtures::{FileBuilder, Rng, tensor_info};
use tload_testing::sim::{INJECTED, Moments, SimConfig};
use tload_testing::simulation::{Simulation, Watched};

use crate::files::{folder, location, mixed, options, write};
use crate::requirement::{self, say, variable};

/// Time that threads may take before a check gives up on them.
const PATIENCE: Duration = Duration::from_secs(60);

const SEEDS: u64 = 800;

fn for_every_seed(check: impl Fn(u64)) {
    let one = variable("TLOAD_SEED").map(|text| text.parse().expect("TLOAD_SEED is a number"));
    let seeds = one.map_or(0..SEEDS, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(seed))) {
            say(&format!("repeat with TLOAD_SEED={seed}"));
            resume_unwind(panic);
        }
    }
}

/// Independent oracle: computes a CRC as the standards define it, eight bits at a time.
fn crc(reflected: u64, width: u32, bytes: &[u8]) -> u64 {
    let shifted = |crc: u64| crc >> 1 ^ if crc & 1 == 1 { reflected } else { 0 };
    let table: [u64; 256] =
        std::array::from_fn(|byte| (0..8).fold(byte as u64, |crc, _| shifted(crc)));
    let ones = u64::MAX >> (64 - width);
    let mut crc = ones;
    for byte in bytes {
        crc = crc >> 8 ^ table[usize::from(crc.to_le_bytes()[0] ^ byte)];
    }
    crc ^ ones
}

fn digest(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    let value = match algorithm {
        Algorithm::Crc32c => crc(0x82F6_3B78, 32, bytes).to_be_bytes()[4..].to_vec(),
        Algorithm::Crc64Nvme => crc(0x9A6C_9329_AC4B_C9B5, 64, bytes).to_be_bytes().to_vec(),
        // The Python tests have an independent oracle for SHA-256.
        Algorithm::Sha256 | _ => return Digest::compute(algorithm, bytes),
    };
    Digest::new(algorithm, &value).expect("as long as the algorithm says")
}

fn bytes_of<'a>(file: &'a [u8], tensor: &TensorInfo) -> &'a [u8] {
    let range = tensor.file_range();
    let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
    &file[start.expect("small")..end.expect("small")]
}

/// Digests known for a file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Nothing,
    Whole(Algorithm),
    Tensors(Algorithm),
    /// Digests of the tensors and of the whole, by one algorithm.
    Both(Algorithm),
}

fn expectation<'a>(
    known: Known,
    file: &[u8],
    tensors: impl Iterator<Item = &'a TensorInfo>,
) -> Expectation {
    let (whole, each) = match known {
        Known::Nothing => {
            return Expectation::Nothing {
                why: "no digest is known".to_owned(),
            };
        }
        Known::Whole(algorithm) => (Some(algorithm), None),
        Known::Tensors(algorithm) => (None, Some(algorithm)),
        Known::Both(algorithm) => (Some(algorithm), Some(algorithm)),
    };
    let of_tensor = |algorithm, tensor: &TensorInfo| {
        let digest = digest(algorithm, bytes_of(file, tensor));
        (tensor.name().to_owned(), digest)
    };
    let tensors = |algorithm| tensors.map(|tensor| of_tensor(algorithm, tensor)).collect();
    Expectation::Of(Expected {
        by: "the test".to_owned(),
        len: Some(file.len() as u64),
        whole: whole.map(|algorithm| digest(algorithm, file)),
        tensors: each.map(tensors).unwrap_or_default(),
        ..Expected::default()
    })
}

// Simulated storage: any order, any lanes, little memory.

/// Adds tensors of a source, contiguous, behind a header.
fn tensors_of(rng: &mut Rng, source: usize, tensors: &mut Vec<TensorInfo>) -> u64 {
    let mut offset = 8 + rng.below(3000);
    for index in 0..=rng.index(9) {
        let most = rng.pick(&[1, 9, 300, 5000, 60_000]);
        let bytes = rng.below(most + 1);
        let shape = vec![usize::try_from(bytes).expect("small")];
        let range = offset..offset + bytes;
        let name = format!("{source}.{index}");
        tensors.push(tensor_info(name, Dtype::U8, shape, source, range));
        offset += bytes;
    }
    offset
}

fn simulation(rng: &mut Rng) -> Simulation {
    let mut tensors = Vec::new();
    let sources: Vec<_> = (0..=rng.index(3))
        .map(|source| {
            let len = tensors_of(rng, source, &mut tensors);
            let len = usize::try_from(len).expect("small");
            MemorySource::new(&format!("source {source}"), rng.bytes(len))
        })
        .collect();
    let layouts = sources
        .iter()
        .map(|_| Layout {
            extent_bytes: rng.pick(&[4096, 16_384, 1 << 20]),
            alignment: rng.pick(&[1, 512, 4096]),
            gap_bytes: rng.pick(&[0, 4096]),
        })
        .collect();
    let jobs = 1 + rng.index(12);
    let engines = (0..=rng.index(4))
        .map(|_| SimConfig {
            delay_max: rng.pick(&[0, 1, 7]),
            short_once_in: rng.pick(&[0, 4]),
            ..SimConfig::new(rng.bits(), 1 + rng.index(jobs))
        })
        .collect();
    let mut simulation = Simulation {
        sources,
        layouts,
        tensors,
        order: rng.pick(&[Order::Ready, Order::File]),
        depth: Depth::fixed(jobs, rng.pick(&[1, 50_000, 1 << 20])),
        memory_limit: 0,
        engines,
    };
    let least = simulation.limit_min();
    simulation.memory_limit = least + rng.pick(&[0, 1, least / 2, 1 << 30]);
    simulation
}

fn known(rng: &mut Rng) -> Known {
    let algorithm = rng.pick(&Algorithm::ALL);
    rng.pick(&[
        Known::Nothing,
        Known::Whole(algorithm),
        Known::Whole(algorithm),
        Known::Tensors(algorithm),
        Known::Both(algorithm),
    ])
}

fn expectations(simulation: &Simulation, known: &[Known]) -> Vec<Expectation> {
    let sources = simulation.sources.iter().zip(known).enumerate();
    sources
        .map(|(index, (source, known))| {
            let tensors = simulation.tensors.iter();
            let own = tensors.filter(|tensor| tensor.shard() == index);
            expectation(*known, source.bytes(), own)
        })
        .collect()
}

/// Loads with a check; every wait is bounded.
fn outcome(
    simulation: &Simulation,
    expectations: &[Expectation],
) -> (Vec<Tensor>, Option<Error>, Option<(Report, Watched)>) {
    let check = match simulation.check(expectations, &Verify::Auto) {
        Ok(check) => check,
        Err(error) => return (Vec::new(), Some(error), None),
    };
    let (mut stream, watched) = simulation.checked_stream(Some(check));
    let (mut tensors, mut failure) = (Vec::new(), None);
    let since = Instant::now();
    loop {
        match stream.wait(PATIENCE) {
            Poll::Ready(None) => break,
            Poll::Ready(Some(Ok(tensor))) => tensors.push(tensor),
            Poll::Ready(Some(Err(error))) => failure = Some(error),
            Poll::Pending => assert!(since.elapsed() < PATIENCE, "{:?}", stream.progress()),
        }
    }
    let report = stream.report();
    drop(stream);
    (tensors, failure, Some((report, watched)))
}

fn assert_nothing_is_left(watched: &Watched) {
    let started = Instant::now();
    while watched.usage().charged > 0 && started.elapsed() < PATIENCE {
        tload_testbed::pause_between_looks();
    }
    assert_eq!(watched.usage().charged, 0, "bytes still charged");
    assert_eq!(watched.in_flight(), InFlight::default(), "still in flight");
}

#[test]
fn intact_tensors_arrive_and_are_all_verified() {
    for_every_seed(|seed| {
        let mut rng = Rng::new(seed);
        let simulation = simulation(&mut rng);
        let known: Vec<_> = simulation.sources.iter().map(|_| known(&mut rng)).collect();
        let expectations = expectations(&simulation, &known);
        let (tensors, failure, rest) = outcome(&simulation, &expectations);
        assert!(failure.is_none(), "{known:?}: {failure:?}");
        assert_eq!(tensors.len(), simulation.tensors.len());
        for tensor in &tensors {
            let source = &simulation.sources[tensor.info().shard()];
            assert!(tensor.bytes() == bytes_of(source.bytes(), tensor.info()));
        }
        let (report, watched) = rest.expect("it ran");
        let sources = simulation.sources.iter().zip(&known).enumerate();
        let wanted: u64 = sources
            .map(|(index, (source, known))| match known {
                Known::Nothing => 0,
                // The header is covered only as part of the whole.
                Known::Whole(_) | Known::Both(Algorithm::Sha256 | Algorithm::Blake3) => {
                    source.len()
                }
                Known::Tensors(_) | Known::Both(_) => {
                    let own = simulation.tensors.iter();
                    let own = own.filter(|tensor| tensor.shard() == index);
                    own.map(TensorInfo::byte_len).sum()
                }
            })
            .sum();
        let verification = report.verification.expect("was asked for");
        assert_eq!(verification.bytes, wanted);
        // Digests of tensors alone do not cover the header.
        let some = |known: &&Known| matches!(known, Known::Nothing | Known::Tensors(_));
        let some = known.iter().filter(some);
        assert_eq!(verification.unverified_files, some.count() as u64);
        drop(tensors);
        assert_nothing_is_left(&watched);
    });
}

#[test]
fn any_flipped_bit_is_found_before_its_tensor_is_handed_over() {
    for_every_seed(|seed| {
        let mut rng = Rng::new(!seed);
        let mut simulation = simulation(&mut rng);
        let known: Vec<_> = simulation.sources.iter().map(|_| known(&mut rng)).collect();
        let expectations = expectations(&simulation, &known);
        let flipped = rng.index(simulation.sources.len());
        let source = &simulation.sources[flipped];
        let mut bytes = source.bytes().to_vec();
        let at = rng.index(bytes.len());
        bytes[at] ^= 1 << rng.below(8);
        simulation.sources[flipped] = MemorySource::new(&format!("source {flipped}"), bytes);
        let contains = |tensor: &&TensorInfo| {
            tensor.shard() == flipped && tensor.file_range().contains(&(at as u64))
        };
        let wrong = simulation.tensors.iter().find(contains);
        let (tensors, failure, rest) = outcome(&simulation, &expectations);
        let is_found = match known[flipped] {
            Known::Nothing => false,
            Known::Tensors(_) => wrong.is_some(),
            Known::Whole(_) | Known::Both(_) => true,
        };
        if is_found {
            let error = failure.expect("a flipped bit went unnoticed");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
            let location = simulation.sources[flipped].location().to_string();
            assert_eq!(error.location(), Some(&*location));
            assert!(error.message().contains("the test"), "{error}");
            let range = error.range().expect("names the bytes");
            assert!(range.contains(&(at as u64)), "{error}");
            // Without a CRC, the digest of the whole does not follow from those of the tensors: it
            // is compared instead, including the header.
            let of_tensors = match known[flipped] {
                Known::Nothing
                | Known::Whole(_)
                | Known::Both(Algorithm::Sha256 | Algorithm::Blake3) => false,
                Known::Tensors(_) | Known::Both(_) => true,
            };
            if let Some(wrong) = wrong.filter(|_| of_tensors) {
                assert_eq!(error.tensor(), Some(wrong.name()));
                assert_eq!(range, wrong.file_range());
                let handed_over = tensors.iter().any(|tensor| tensor.name() == wrong.name());
                assert!(!handed_over, "the wrong tensor was handed over");
            }
        } else {
            assert!(failure.is_none(), "{failure:?}");
        }
        drop(tensors);
        if let Some((_, watched)) = rest {
            assert_nothing_is_left(&watched);
        }
    });
}

/// The check becomes ready, or refuses the load, at any read; or the load is cancelled before.
#[test]
fn nothing_is_handed_over_before_its_check() {
    for_every_seed(|seed| {
        let mut rng = Rng::new(seed ^ 0x1A7E);
        let mut simulation = simulation(&mut rng);
        if simulation.plan().extents.is_empty() {
            return;
        }
        let known: Vec<_> = simulation.sources.iter().map(|_| known(&mut rng)).collect();
        let expectations = expectations(&simulation, &known);
        let Ok(compared) = simulation.check(&expectations, &Verify::Auto) else {
            unreachable!("the bytes are right");
        };
        let flips = rng.once_in(3);
        if flips {
            // Found by reading alone: the check was made of the right bytes.
            let source = &mut simulation.sources[0];
            let mut bytes = source.bytes().to_vec();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            *source = MemorySource::new("source 0", bytes);
        }
        let late = LateCheck::pending(rng.pick(&[None, Some(Polynomial::Crc64Nvme)]));
        let (reads, seen) = (rng.below(2), AtomicU64::new(0));
        let (reached, is_reached) = channel();
        let moments = Moments::new(move || {
            if seen.fetch_add(1, Ordering::SeqCst) == reads {
                let _ = reached.send(());
            }
        });
        for engine in &mut simulation.engines {
            engine.moments = moments.clone();
        }
        drop(moments);
        let (mut stream, watched) = simulation.late_stream(Arc::clone(&late));
        is_reached
            .recv_timeout(PATIENCE)
            .expect("a read begins and ends without the check");
        let mut tensors = Vec::new();
        while let Poll::Ready(Some(tensor)) = stream.try_next() {
            tensors.push(tensor.expect("no read fails"));
        }
        let is_empty = |tensor: &Tensor| tensor.byte_len() == 0;
        assert!(tensors.iter().all(is_empty), "handed over unchecked");
        match rng.below(4) {
            0 => drop(stream),
            1 => {
                late.set(Err(Error::new(ErrorKind::Corrupt, "refused")));
                let item = stream.wait(PATIENCE);
                assert!(matches!(item, Poll::Ready(Some(Err(_)))), "{item:?}");
                drop(stream);
            }
            _ => {
                late.set(Ok(Some(compared.0)));
                let mut failure = None;
                loop {
                    match stream.wait(PATIENCE) {
                        Poll::Ready(None) => break,
                        Poll::Ready(Some(Ok(tensor))) => tensors.push(tensor),
                        Poll::Ready(Some(Err(error))) => failure = Some(error),
                        Poll::Pending => unreachable!("{:?}", stream.progress()),
                    }
                }
                assert_outcome(&simulation, &known, flips, &tensors, failure);
            }
        }
        drop(tensors);
        assert_nothing_is_left(&watched);
    });
}

/// Asserts that a load has handed over the right tensors, or found the wrong last byte.
fn assert_outcome(
    simulation: &Simulation,
    known: &[Known],
    flips: bool,
    tensors: &[Tensor],
    failure: Option<Error>,
) {
    let source = &simulation.sources[0];
    let own = simulation
        .tensors
        .iter()
        .filter(|tensor| tensor.shard() == 0);
    let wrong = own.filter(|it| it.file_range().end == source.len() && it.byte_len() > 0);
    let is_read = wrong.count() > 0;
    if flips && is_read && known[0] != Known::Nothing {
        let error = failure.expect("a flipped bit went unnoticed");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain());
        return;
    }
    assert!(failure.is_none(), "{failure:?}");
    assert_eq!(tensors.len(), simulation.tensors.len());
    for tensor in tensors {
        let source = &simulation.sources[tensor.info().shard()];
        assert!(tensor.bytes() == bytes_of(source.bytes(), tensor.info()));
    }
}

/// Flips every bit of a small file.
#[test]
fn every_flipped_bit_is_detected() {
    let mut rng = Rng::new(1);
    let file = rng.bytes(60);
    let tensor = |name: &str, range: std::ops::Range<u64>| {
        let len = usize::try_from(range.end - range.start).expect("small");
        tensor_info(name, Dtype::U8, vec![len], 0, range)
    };
    let mut simulation = Simulation {
        sources: vec![MemorySource::new("file", file.clone())],
        layouts: vec![Layout {
            extent_bytes: 4096,
            alignment: 1,
            gap_bytes: 0,
        }],
        tensors: vec![
            tensor("a", 10..11),
            tensor("b", 11..40),
            tensor("c", 40..60),
        ],
        order: Order::Ready,
        depth: Depth::fixed(4, 1 << 20),
        memory_limit: 1 << 20,
        engines: vec![SimConfig::new(1, 4)],
    };
    for algorithm in Algorithm::ALL {
        for known in [Known::Both(algorithm), Known::Whole(algorithm)] {
            let expectations = expectations(&simulation, &[known]);
            for bit in 0..file.len() * 8 {
                let mut bytes = file.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                simulation.sources = vec![MemorySource::new("file", bytes)];
                let (_, failure, _) = outcome(&simulation, &expectations);
                let kind = failure.map(|error| error.kind());
                assert_eq!(kind, Some(ErrorKind::Corrupt), "{known:?}, bit {bit}");
            }
            simulation.sources = vec![MemorySource::new("file", file.clone())];
        }
    }
}

/// Reads fail, or the caller drops the stream, while extents wait for their turn.
#[test]
fn waiting_extents_are_freed_at_end_of_load() {
    for_every_seed(|seed| {
        let mut rng = Rng::new(seed ^ 0x5A5A);
        let mut simulation = simulation(&mut rng);
        let known = vec![Known::Whole(Algorithm::Sha256); simulation.sources.len()];
        let expectations = expectations(&simulation, &known);
        let extents = simulation.plan().extents.len();
        let fails = extents > 0 && rng.once_in(2);
        if fails {
            let fault = rng.index(extents);
            for engine in &mut simulation.engines {
                engine.faults.insert(fault);
            }
            let (_, failure, rest) = outcome(&simulation, &expectations);
            let error = failure.expect("a failed read went unnoticed");
            assert_eq!((error.kind(), error.message()), (ErrorKind::Io, INJECTED));
            assert_nothing_is_left(&rest.expect("it ran").1);
            return;
        }
        let check = simulation.check(&expectations, &Verify::Require);
        let (mut stream, watched) =
            simulation.checked_stream(Some(check.expect("all of it can be compared")));
        for _ in 0..rng.index(simulation.tensors.len() + 1) {
            let item = stream.wait(PATIENCE);
            assert!(matches!(item, Poll::Ready(Some(Ok(_)))), "{item:?}");
        }
        drop(stream);
        assert_nothing_is_left(&watched);
    });
}

// Real files: every engine.

/// Returns options for each kind of memory here, in addition to views.
fn ways() -> Vec<LoadOptions> {
    let with_engine = |engine| {
        options(|it| {
            it.engine = engine;
            it.lanes = Some(3);
            it.extent_bytes = Some(65_536);
            it.verify = Verify::Require;
        })
    };
    let mut ways: Vec<_> = requirement::engines()
        .into_iter()
        .map(with_engine)
        .collect();
    ways.push(options(|it| {
        it.cache = CacheMode::Map;
        it.verify = Verify::Require;
    }));
    ways
}

/// Creates a checkpoint of two shards, and returns the expectation for each.
fn shards(path: &Path, known: Known) -> Vec<Expectation> {
    let files = [mixed("a", 1, 40, 200_000), mixed("b", 2, 5, 3_000_000)];
    for (index, file) in files.iter().enumerate() {
        write(&path.join(format!("{index}.safetensors")), file);
    }
    let checkpoint = Checkpoint::open(location(path)).expect("a good checkpoint");
    let of = |(shard, file): (usize, &Vec<u8>)| {
        let tensors = checkpoint.tensors().iter();
        expectation(
            known,
            file,
            tensors.filter(|tensor| tensor.shard() == shard),
        )
    };
    files.iter().enumerate().map(of).collect()
}

fn loader(path: &Path, options: &LoadOptions, expectations: &[Expectation]) -> Loader {
    Loader::open(location(path))
        .expect("a good checkpoint")
        .options(options.clone())
        .expectations(expectations.to_vec())
}

fn load(loader: &Loader) -> Result<(Vec<Tensor>, Report), (Vec<String>, Error)> {
    let mut stream = loader.stream().map_err(|error| (Vec::new(), error))?;
    let mut tensors = Vec::new();
    for tensor in &mut stream {
        match tensor {
            Ok(tensor) => tensors.push(tensor),
            Err(error) => {
                let names = tensors.iter().map(|tensor| tensor.name().to_owned());
                return Err((names.collect(), error));
            }
        }
    }
    Ok((tensors, stream.report()))
}

/// Changes one bit of a file, in place.
fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path);
    let file = file.expect("a file of this test");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("inside");
    file.write_all_at(&[byte[0] ^ 0x10], at).expect("takes it");
}

#[test]
fn files_are_compared_by_every_engine() {
    for algorithm in Algorithm::ALL {
        for known in [Known::Both(algorithm), Known::Whole(algorithm)] {
            let folder = folder();
            let expectations = shards(folder.path(), known);
            for way in ways() {
                let (_, report) =
                    load(&loader(folder.path(), &way, &expectations)).expect("all is right");
                let verification = report.verification.expect("was asked for");
                assert!(verification.bytes >= report.tensor_bytes);
                assert_eq!(verification.by[0].files, 2);
                assert_eq!(verification.unverified_files, 0);
            }
            let checkpoint = Checkpoint::open(location(folder.path())).expect("opens");
            let wrong = checkpoint.tensors().iter();
            let wrong = wrong.max_by_key(|tensor| tensor.byte_len()).expect("many");
            let at = wrong.file_range().end - 1;
            let path = folder.path().join(format!("{}.safetensors", wrong.shard()));
            flip(&path, at);
            for way in ways() {
                let loader = loader(folder.path(), &way, &expectations);
                let (names, error) = load(&loader).expect_err("a bit is wrong");
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
                assert_eq!(error.location(), path.to_str());
                assert!(error.range().expect("names the bytes").contains(&at));
                if known == Known::Both(algorithm) && !algorithm.is_secure() {
                    assert_eq!(error.tensor(), Some(wrong.name()));
                    assert!(!names.iter().any(|name| name == wrong.name()));
                }
            }
        }
    }
}

/// Engines compute the CRCs of files in the page cache while they copy: of equal tensors whose
/// lengths are even, and of others.
#[test]
fn copied_bytes_are_compared_by_every_engine() {
    const STEP: usize = 256 << 10;
    for (bytes, padding) in [(2 * STEP, 3840), (2 * STEP + 10_001, 5)] {
        let contents = Rng::new(9).bytes(bytes);
        let files = ["a", "b"].map(|prefix| {
            let file = FileBuilder::new().unaligned(padding);
            let names = [0, 1, 2].map(|index| format!("{prefix}{index}"));
            let add = |file: FileBuilder, name: &String| {
                file.tensor(name, Dtype::U8, &[bytes], &contents)
            };
            names.iter().fold(file, add).build()
        });
        for known in [
            Known::Both(Algorithm::Crc64Nvme),
            Known::Whole(Algorithm::Crc32c),
        ] {
            let folder = folder();
            let paths = ["0", "1"].map(|it| folder.path().join(format!("{it}.safetensors")));
            for (path, file) in paths.iter().zip(&files) {
                write(path, file);
            }
            let checkpoint = Checkpoint::open(location(folder.path())).expect("opens");
            let tensors = checkpoint.tensors();
            let expectations = [0, 1].map(|shard| {
                let own = tensors.iter().filter(|tensor| tensor.shard() == shard);
                expectation(known, &files[shard], own)
            });
            let middle = tensors.iter().find(|it| it.name() == "b1").expect("is in");
            let start = middle.file_range().start;
            assert_every_way_finds(folder.path(), &expectations, None);
            for at in [0, STEP - 1, STEP, bytes - 1] {
                let at = start + at as u64;
                flip(&paths[1], at);
                assert_every_way_finds(folder.path(), &expectations, Some(at));
                flip(&paths[1], at);
            }
        }
    }
}

/// Loads in every way, with small and large reads; `wrong` is the wrong byte.
fn assert_every_way_finds(path: &Path, expectations: &[Expectation], wrong: Option<u64>) {
    for mut way in ways() {
        for extent_bytes in [65_536, 4 << 20] {
            way.extent_bytes = Some(extent_bytes);
            let loaded = load(&loader(path, &way, expectations));
            let Some(wrong) = wrong else {
                let (_, report) = loaded.expect("all is right");
                let verification = report.verification.expect("was asked for");
                assert!(verification.bytes >= report.tensor_bytes);
                continue;
            };
            let (_, error) = loaded.expect_err("a bit is wrong");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
            assert!(error.range().expect("names the bytes").contains(&wrong));
        }
    }
}

#[test]
fn uncomparable_load_is_reported_or_rejected() {
    let folder = folder();
    let path = folder.path();
    let whole = shards(path, Known::Whole(Algorithm::Crc64Nvme));
    let each = shards(path, Known::Tensors(Algorithm::Crc64Nvme));
    let nothing = shards(path, Known::Nothing);
    let slice = || [("b0".to_owned(), Slice::new(vec![Indices::from(0..1)]))];
    let cases = [
        ("no digest is known", &nothing, Selection::all(), false),
        (
            "covers the whole file",
            &whole,
            Selection::names(["b0"]),
            false,
        ),
        (
            "a slice of tensor \"b0\" was requested",
            &each,
            Selection::names(["b0"]),
            true,
        ),
    ];
    for (why, expectations, selection, sliced) in cases {
        for strict in [false, true] {
            let way = options(|it| {
                it.verify = if strict {
                    Verify::Require
                } else {
                    Verify::Auto
                }
            });
            let mut loader = loader(path, &way, expectations).select(selection.clone());
            if sliced {
                loader = loader.slices(slice());
            }
            if strict {
                let error = loader.stream().expect_err("cannot be compared");
                assert_eq!(error.kind(), ErrorKind::InvalidRequest);
                assert!(error.message().contains(why), "{error}");
                assert!(error.hint().is_some());
            } else {
                let (_, report) = load(&loader).expect("loads all the same");
                let text = report.to_string();
                assert!(text.contains(why), "{text}");
                let verification = report.verification.expect("was asked for");
                assert_eq!((verification.bytes, verification.by.len()), (0, 0));
                assert!(verification.unverified[0].why.contains(why));
            }
        }
    }
    // A selection is compared if each tensor and the header have a digest.
    let way = options(|it| it.verify = Verify::Require);
    let both = shards(path, Known::Both(Algorithm::Crc64Nvme));
    let some = loader(path, &way, &both).select(Selection::names(["b0", "a3"]));
    let (tensors, report) = load(&some).expect("all is right");
    let bytes: u64 = tensors.iter().map(Tensor::byte_len).sum();
    assert_eq!(report.verification.expect("was asked for").bytes, bytes);
    // One tensor that is read by itself, without an engine, is verified too.
    let checkpoint = Checkpoint::open(location(path)).expect("opens");
    let error = checkpoint.read("b0", &Slice::default(), &way);
    let error = error.expect_err("there is no manifest beside it");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error:?}");
}

#[test]
fn known_mismatch_fails_before_first_tensor() {
    let folder = folder();
    let file = FileBuilder::new()
        .tensor("empty", Dtype::F32, &[0], &[])
        .tensor("a", Dtype::U8, &[4], &[1, 2, 3, 4])
        .build();
    let path = write(&folder.path().join("m.safetensors"), &file);
    let way = options(|it| it.verify = Verify::Require);
    let checkpoint = Checkpoint::open(location(&path)).expect("opens");
    let good = |known| expectation(known, &file, checkpoint.tensors().iter());
    let refusal = |expected: Expected| {
        let loader = loader(&path, &way, &[Expectation::Of(expected)]);
        let error = loader.stream().expect_err("is wrong");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        error
    };
    for algorithm in Algorithm::ALL {
        let Expectation::Of(expected) = good(Known::Both(algorithm)) else {
            unreachable!("something is known");
        };
        let loaded = load(&loader(&path, &way, &[Expectation::Of(expected.clone())]));
        assert_eq!(loaded.expect("all is right").0.len(), 2);

        let mut longer = expected.clone();
        longer.len = Some(file.len() as u64 + 1);
        let error = refusal(longer);
        assert!(error.message().contains("and the test says"), "{error}");

        let mut other = expected.clone();
        let wrong = expected.tensors["a"];
        other.tensors.insert("empty".to_owned(), wrong);
        let header = checkpoint.shards()[0].header_bytes();
        let header = &file[..usize::try_from(header).expect("small")];
        other.header = Some(digest(algorithm, header));
        other.whole = None;
        assert_eq!(refusal(other).tensor(), Some("empty"));

        // Only the CRC of a header follows from the others.
        if !algorithm.is_secure() {
            let mut other = expected.clone();
            other.whole = Some(wrong);
            let header = checkpoint.shards()[0].header_bytes();
            assert_eq!(refusal(other).range(), Some(0..header));
        }
    }
    // A file with nothing but a header.
    let empty = FileBuilder::new().build();
    let path = write(&folder.path().join("empty.safetensors"), &empty);
    let one = FileBuilder::new().tensor("e", Dtype::U8, &[0], &[]).build();
    let with_one = write(&folder.path().join("one.safetensors"), &one);
    for algorithm in Algorithm::ALL {
        for (path, file) in [(&path, &empty), (&with_one, &one)] {
            let known = Known::Whole(algorithm);
            let right = expectation(known, file, [].iter());
            load(&loader(path, &way, &[right])).expect("all is right");
        }
        let wrong = expectation(Known::Whole(algorithm), &empty, [].iter());
        let Expectation::Of(mut wrong) = wrong else {
            unreachable!("something is known");
        };
        wrong.len = None;
        let error = loader(&with_one, &way, &[Expectation::Of(wrong)]).stream();
        assert_eq!(error.expect_err("is wrong").kind(), ErrorKind::Corrupt);
    }
    // Each shard needs an expectation.
    let error = loader(&path, &way, &[]).stream().expect_err("none for it");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    // With verification off, expectations are ignored.
    let off = LoadOptions::default();
    let (_, report) = load(&loader(&path, &off, &[])).expect("nothing is compared");
    assert_eq!(report.verification, None);
}
