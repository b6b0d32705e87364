//! Copies of a slot in one call of the driver: the same bytes, with fewer calls.

use tload::Device;
use tload::report::Report;

use crate::fixtures::{Files, MIB, load, options};
use crate::stub::{Cuda, cuda};

/// Functions that queue copies.
const CALLS: [&str; 2] = ["cuMemcpyHtoDAsync_v2", "cuMemcpyBatchAsync"];

/// Loads with batches or without; returns the calls of both functions, and the report.
fn calls(cuda: &Cuda, files: &Files, batch: bool) -> ([i64; 2], Report) {
    let before = CALLS.map(|name| cuda.stub.count(name));
    let options = options(|it| {
        it.trial.batch = batch;
        // No tensor lies in two slots.
        it.region_bytes = Some(MIB as u64);
    });
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let (tensors, report) = load(&loader).expect("loads");
    files.assert_all(&tensors);
    let [single, several] = CALLS.map(|name| cuda.stub.count(name));
    ([single - before[0], several - before[1]], report)
}

/// Small tensors with gaps between them cost one call a slot in place of one each.
#[test]
fn separate_copies_of_slot_are_one_call() {
    let cuda = cuda();
    let files = Files::of_lengths(1, &[50_001; 400]);
    let (single, report) = calls(&cuda, &files, false);
    assert_eq!(single, [400, 0]);
    assert_eq!(report.devices[0].copies, 400);
    let slots = i64::try_from(report.extents).expect("few");
    assert!((2..=20).contains(&slots), "{slots} slots");
    let (batched, report) = calls(&cuda, &files, true);
    assert_eq!(batched, [0, slots]);
    let device = &report.devices[0];
    assert_eq!((device.copies, device.copied_bytes), (400, files.total()));
}

/// Large tensors, and small ones without gaps, are one copy a slot: nothing to batch.
#[test]
fn slot_of_one_copy_is_no_batch() {
    let cuda = cuda();
    for files in [Files::even(2, 12, 3 * MIB), Files::even(3, 4000, 128)] {
        let (single, _) = calls(&cuda, &files, false);
        assert_eq!(calls(&cuda, &files, true).0, single);
        assert_eq!(single[1], 0);
    }
}

/// A platform may refuse batches that its driver has.
#[test]
fn unsupported_batches_become_single_copies() {
    let cuda = cuda();
    let files = Files::of_lengths(4, &[50_001; 100]);
    // The second one queues a part of itself.
    for fault in ["cuMemcpyBatchAsync:801", "batch_copy:801:30:1"] {
        cuda.stub.set("fail", fault);
        let (calls, report) = calls(&cuda, &files, true);
        assert!(calls.iter().all(|count| *count > 0), "{fault}: {calls:?}");
        assert_eq!(report.devices[0].copies, 100);
    }
}
