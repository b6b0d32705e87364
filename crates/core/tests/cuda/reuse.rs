//! Slots are not written again before their copies have run, and memory is not used before it is
//! ordered; the stub detects violations.

use tload::{Device, EngineChoice, Order};
use tload_testing::fixtures::Rng;

use crate::fixtures::{Files, MIB, load, options};
use crate::stub::cuda;

/// One to five slots, refilled as soon as they are free, and copies that are slower than reads.
#[test]
fn slots_wait_for_their_copies() {
    let cuda = cuda();
    let files = Files::even(1, 24, MIB + 100);
    for (slots, lanes, engine) in [
        (1, 1, EngineChoice::Pread),
        (2, 1, EngineChoice::Auto),
        (3, 2, EngineChoice::Pread),
        (5, 3, EngineChoice::Auto),
    ] {
        for (delay, bandwidth) in [("400", "0"), ("0", "2000000000"), ("37", "0")] {
            cuda.stub.set("copy_delay_us", delay);
            cuda.stub.set("bandwidth", bandwidth);
            let options = options(|it| {
                it.extent_bytes = Some(126_976);
                it.memory_limit = Some(slots * 118_784);
                it.region_bytes = Some(1);
                (it.lanes, it.engine) = (Some(lanes), engine);
            });
            let loader = files.loader().device(Device::Cuda(0)).options(options);
            let (tensors, report) = load(&loader).expect("loads");
            // Checked first: a violation names the cause, wrong bytes only the symptom.
            cuda.assert_in_order();
            files.assert_all(&tensors);
            let staging = report.staging.as_ref().expect("staged");
            assert_eq!(staging.slots as u64, slots);
            assert!(report.extents > 100, "{report}");
            assert_eq!(cuda.stub.count("pageable_copies"), 0);
        }
    }
}

/// Memory that the caller drops is reused by later regions while copies of others run.
#[test]
fn memory_of_dropped_tensors_is_reused_in_order() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "150");
    let files = Files::even(2, 60, 200_000);
    let mut rng = Rng::new(3);
    for order in [Order::Ready, Order::File] {
        let options = options(|it| {
            (it.order, it.lanes) = (order, Some(2));
            it.device_memory_limit = Some(2 * MIB as u64);
        });
        let loader = files.loader().device(Device::Cuda(1)).options(options);
        let mut kept = Vec::new();
        for tensor in loader.stream().expect("starts") {
            let tensor = tensor.expect("loads");
            crate::fixtures::assert_same(&files.contents, &tensor);
            if rng.once_in(5) {
                kept.push(tensor);
            }
        }
        for tensor in &kept {
            crate::fixtures::assert_same(&files.contents, tensor);
        }
    }
}
