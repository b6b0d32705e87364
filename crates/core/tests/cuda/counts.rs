//! Cost of a load for the driver: calls, copies, allocations, events and bytes on the way,
//! predicted from the sizes of regions and extents, and counted. Each load is counted a second time
//! with regions of 1 MiB and an alignment of 64, which were the defaults before.

use tload::{CacheMode, Device, EngineChoice};

use crate::fixtures::{Files, MIB, load, options};
use crate::stub::{Cuda, cuda};

const EXTENT: usize = 4 * MIB;

/// Predicted needs of a load. Everything else follows: an event is recorded for each
/// allocation and behind the copies of each extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Predicted {
    allocations: i64,
    extents: i64,
    copies: i64,
}

/// Maximum number of the driver's calls for a load, for an allocation and for an extent, which may
/// be timed. A copy is one more.
const CALLS: [i64; 3] = [80, 24, 24];

/// Loads `files` and compares what the driver has counted, before the tensors are dropped. Returns
/// the number of its calls, except those that look whether an event has fired: how many these are
/// depends on time.
fn assert_counts(cuda: &Cuda, files: &Files, variant: &str, predicted: Predicted) -> i64 {
    cuda.stub.reset();
    let options = options(|it| {
        it.engine = EngineChoice::Pread;
        it.cache = CacheMode::Buffered;
        it.extent_bytes = Some(EXTENT as u64);
        it.trial = variant.parse().expect("a variant");
    });
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let (tensors, report) = load(&loader).expect("loads");
    let count = |name: &str| cuda.stub.count(name);
    // A look by itself makes the context current, which takes five more calls.
    let calls = count("calls") - 6 * count("cuEventQuery");
    let Predicted {
        allocations,
        extents,
        copies,
    } = predicted;
    let counted = Predicted {
        allocations: count("cuMemAllocAsync"),
        extents: i64::try_from(report.extents).expect("few"),
        copies: count("cuMemcpyHtoDAsync_v2"),
    };
    assert_eq!(counted, predicted, "{variant:?}");
    assert_eq!(Ok(copies), i64::try_from(report.devices[0].copies));
    let timed = count("cuEventElapsedTime");
    assert_eq!(count("cuEventRecord"), allocations + extents + timed);
    let [once, allocation, extent] = CALLS;
    let calls_max = once + allocation * allocations + extent * extents + copies;
    assert!(
        calls <= calls_max,
        "{variant:?}: {calls} of {calls_max} calls"
    );
    assert_eq!(Ok(files.total()), u64::try_from(count("copied_bytes")));
    // Only the edges of extents are read in addition.
    let edges = 2 * 4096 * report.extents;
    assert!((files.total()..=files.total() + edges).contains(&report.read_bytes));
    assert_eq!(count("pageable_copies"), 0);
    files.assert_all(&tensors);
    drop(tensors);
    cuda.assert_in_order();
    calls
}

/// Checks both variants of a load. Returns the number of calls of each.
fn assert_variants(cuda: &Cuda, files: &Files, before: Predicted, after: Predicted) -> [i64; 2] {
    [("regions=1MiB,align=64", before), ("", after)]
        .map(|(variant, predicted)| assert_counts(cuda, files, variant, predicted))
}

/// 24 tensors of 3 MiB. 21 of them fill a region of 64 MiB with 16 extents, and 3 one of 3.
#[test]
fn large_tensors_share_regions() {
    let cuda = cuda();
    let files = Files::even(1, 24, 3 * MIB);
    let before = Predicted {
        allocations: 24,
        extents: 24,
        copies: 24,
    };
    let after = Predicted {
        allocations: 2,
        extents: 16 + 3,
        copies: 16 + 3,
    };
    let [before, after] = assert_variants(&cuda, &files, before, after);
    assert!(after < before * 2 / 3, "{after} of {before} calls");
}

/// 3,000 tensors, two of three of 176 bytes, as scales of quantized weights are: 47.2 MiB in 12
/// extents. At multiples of 64, each of these begins a copy.
#[test]
fn small_tensors_share_regions_and_copies() {
    let cuda = cuda();
    let files = Files::of_lengths(2, &[176, 176, 48 << 10].repeat(1000));
    let before = Predicted {
        allocations: 48,
        extents: 48,
        copies: 2001,
    };
    let after = Predicted {
        allocations: 1,
        extents: 12,
        copies: 12,
    };
    let [before, after] = assert_variants(&cuda, &files, before, after);
    assert!(after < before / 8, "{after} of {before} calls");
}

/// 3,000 tensors of lengths that are no multiples of 16, most of them small: those are joined. What
/// is left is a copy for each large tensor, for the small ones between two of them, and for each
/// part of these at the edge of an extent.
#[test]
fn small_tensors_of_odd_lengths_are_joined() {
    let _cuda = cuda();
    let lengths = [4, 12, 100, 190, 34, 6, 1000, 262_148].repeat(150);
    let files = Files::of_lengths(3, &lengths);
    let options = options(|it| it.extent_bytes = Some(EXTENT as u64));
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let (tensors, report) = load(&loader).expect("loads");
    files.assert_all(&tensors);
    let most = 2 * 150 + 8 * report.extents;
    let copies = report.devices[0].copies;
    println!(
        "{copies} copies of {} tensors in {} extents",
        lengths.len(),
        report.extents
    );
    assert!(copies <= most, "{copies} of {most}");
}
