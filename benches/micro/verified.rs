//! Overhead of verification: loads of a file in the page cache, where nothing else is slow.

use criterion::{BenchmarkId, Criterion, Throughput};
use tload::verify::{Algorithm, Digest, Expectation, Expected};
use tload::{Dtype, LoadOptions, Loader, Location, Verify};
use tload_testing::fixtures::{FileBuilder, Rng};

use crate::is_measuring;

const MIB: usize = 1 << 20;

/// Loads by one loader, so in reused memory: without verification, then with digests of the file
/// and of its tensors.
pub(crate) fn loads(criterion: &mut Criterion) {
    let (tensors, bytes) = if is_measuring() {
        (16, 16 * MIB)
    } else {
        (2, MIB)
    };
    let mut rng = Rng::new(1);
    let contents: Vec<_> = (0..tensors).map(|_| rng.bytes(bytes)).collect();
    let named = contents.iter().enumerate();
    let file = named
        .clone()
        .fold(FileBuilder::new(), |file, (index, bytes)| {
            file.tensor(&format!("t{index}"), Dtype::U8, &[bytes.len()], bytes)
        });
    let file = file.build();
    let folder =
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo creates the directory");
    let path = folder.path().join("m.safetensors");
    std::fs::write(&path, &file).expect("the disk has room");
    let loader = Loader::open(Location::from(path.as_path())).expect("a good checkpoint");
    let expected = |whole, each: Option<Algorithm>| {
        let digests = named.clone().map(|(index, bytes)| {
            let digest = each.map(|algorithm| Digest::compute(algorithm, bytes));
            (format!("t{index}"), digest.expect("asked for"))
        });
        Expectation::Of(Expected {
            by: "the bench".to_owned(),
            len: None,
            whole: Option::map(whole, |algorithm| Digest::compute(algorithm, &file)),
            tensors: each.map(|_| digests.collect()).unwrap_or_default(),
            ..Expected::default()
        })
    };
    let (crc, sha) = (Some(Algorithm::Crc64Nvme), Some(Algorithm::Sha256));
    let nothing = Expectation::Nothing {
        why: "nothing is compared".to_owned(),
    };
    let cases = [
        ("off", nothing),
        ("crc64nvme of tensors", expected(crc, crc)),
        ("crc64nvme of files", expected(crc, None)),
        ("crc32c of files", expected(Some(Algorithm::Crc32c), None)),
        ("sha256 of files", expected(sha, None)),
        ("blake3 of files", expected(Some(Algorithm::Blake3), None)),
    ];
    let mut group = criterion.benchmark_group("verify");
    group.throughput(Throughput::Bytes((tensors * bytes) as u64));
    group.sample_size(20);
    for (name, expectation) in cases {
        let mut options = LoadOptions::default();
        if name != "off" {
            options.verify = Verify::Require;
        }
        let loader = loader.clone().options(options).expectations([expectation]);
        group.bench_function(BenchmarkId::new("load", name), |bencher| {
            bencher.iter(|| {
                for tensor in loader.stream().expect("starts") {
                    drop(tensor.expect("all is right"));
                }
            });
        });
    }
}
