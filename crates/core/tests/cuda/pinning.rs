//! Staging memory: pinned whole, in pieces or not at all; kept for the next load, and freed on
//! request.

use tload::CacheMode;
use tload::report::StagingReport;
use tload::{Device, LoadOptions, Loader};

use crate::fixtures::{Files, MIB, load, options};
use crate::stub::{Cuda, cuda};

/// Loads and checks everything; returns the report's staging memory and notes.
fn staging(files: &Files, loader: &Loader) -> (StagingReport, Vec<String>) {
    let (tensors, report) = load(loader).expect("loads");
    files.assert_all(&tensors);
    (report.staging.expect("bytes are staged"), report.notes)
}

/// Returns a checkpoint and options for five slots of 30 MiB plus the edges of reads: more than can
/// be pinned at once on some kernels.
fn large(cuda: &Cuda) -> (Files, LoadOptions) {
    cuda.stub.set("register_max", &(100 * MIB).to_string());
    let files = Files::of_lengths(1, &[30 * MIB, MIB, MIB, MIB, 30 * MIB - 77]);
    let options = options(|it| {
        it.cache = CacheMode::Buffered;
        (it.depth, it.extent_bytes) = (Some(8), Some(32 << 20));
        it.in_flight_bytes = Some(1 << 30);
        it.region_bytes = Some(1);
    });
    (files, options)
}

#[test]
fn unpinnable_memory_is_used_unpinned() {
    let cuda = cuda();
    let files = Files::even(2, 20, MIB);
    for fault in ["cuMemHostRegister_v2:2", "cuMemHostRegister_v2:801"] {
        tload::release_staging();
        cuda.stub.reset();
        cuda.stub.set("fail", fault);
        cuda.stub.set("copy_delay_us", "100");
        let options = options(|it| {
            it.extent_bytes = Some(200_000);
            it.memory_limit = Some(700_000);
        });
        let loader = files.loader().device(Device::Cuda(0)).options(options);
        let (staging, notes) = staging(&files, &loader);
        assert_eq!(staging.pinned_bytes, 0);
        let refusal = staging.refusal.expect("has a reason");
        assert!(refusal.contains("cannot pin memory"), "{refusal}");
        assert!(
            notes.iter().any(|note| note.contains(&refusal)),
            "{notes:?}"
        );
        assert!(cuda.stub.count("pageable_copies") > 0);
        assert_eq!(cuda.stub.count("pinned_copies"), 0);
        assert_eq!(cuda.stub.live("registrations"), 0);
    }
}

#[test]
fn memory_is_pinned_in_pieces_if_pinning_at_once_fails() {
    let cuda = cuda();
    let (files, options) = large(&cuda);
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let (first, notes) = staging(&files, &loader);
    assert!(first.bytes > 100 << 20, "{first:?}");
    assert_eq!(first.pinned_bytes, first.bytes);
    assert_eq!(first.refusal, None);
    assert_eq!(notes, [] as [&str; 0]);
    // A piece is as many whole slots as fit into 64 MiB.
    let slot = first.bytes / first.slots as u64;
    let pieces = first.bytes.div_ceil((64 << 20) / slot * slot);
    assert_eq!(Ok(cuda.stub.live("registrations")), i64::try_from(pieces));
    // The driver refuses copies that begin in one registration and end in another; all copies were
    // pinned.
    assert_eq!(cuda.stub.count("pageable_copies"), 0);
    // The next load reuses the memory, although no slot may cross two pieces.
    let (second, _) = staging(&files, &loader);
    assert!(second.reused, "{second:?}");
    assert_eq!(second.slots, first.slots);
    assert_eq!(Ok(cuda.stub.live("registrations")), i64::try_from(pieces));
}

#[test]
fn large_memory_is_pinned_as_far_as_possible() {
    let cuda = cuda();
    let (files, options) = large(&cuda);
    // Pinning everything fails, pinning the first piece succeeds, and all later ones fail.
    cuda.stub.set("fail", "cuMemHostRegister_v2:2:3");
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let (staging, notes) = staging(&files, &loader);
    let slot = staging.bytes / staging.slots as u64;
    assert_eq!(staging.pinned_bytes, (64 << 20) / slot * slot);
    assert!(staging.refusal.is_some() && notes.len() == 1);
    assert!(cuda.stub.count("pinned_copies") > 0);
    assert!(cuda.stub.count("pageable_copies") > 0);
    assert_eq!(cuda.stub.live("registrations"), 1);
}

#[test]
fn staging_memory_is_reused_by_later_loads() {
    let cuda = cuda();
    let files = Files::even(3, 12, MIB);
    let loader = |limit: u64, device| {
        let options = options(|it| it.memory_limit = Some(limit));
        files.loader().device(device).options(options)
    };
    let limit = 8 * MIB as u64;
    let (first, _) = staging(&files, &loader(limit, Device::Cuda(0)));
    assert!(!first.reused);
    for device in [Device::Cuda(0), Device::Cuda(1)] {
        // Pinned for all devices.
        let (next, _) = staging(&files, &loader(limit, device));
        assert!(next.reused);
        assert_eq!((next.bytes, next.slots), (first.bytes, first.slots));
        assert_eq!(next.pinned_bytes, first.pinned_bytes);
    }
    assert_eq!(cuda.stub.count("cuMemHostRegister_v2"), 1);
    assert_eq!(cuda.stub.count("pageable_copies"), 0);
    // A lower limit replaces staging memory that would exceed it.
    let (smaller, _) = staging(&files, &loader(limit / 2, Device::Cuda(0)));
    assert!(!smaller.reused && smaller.bytes <= limit / 2);
    assert_eq!(cuda.stub.live("registrations"), 1);
    let freed = tload::release_staging() as u64;
    assert_eq!(freed, smaller.bytes);
    assert_eq!(cuda.stub.live("registrations"), 0);
    assert_eq!(tload::release_staging(), 0);
    let (fresh, _) = staging(&files, &loader(limit, Device::Cuda(0)));
    assert!(!fresh.reused);
}

#[test]
fn staging_memory_in_use_is_not_released() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "500");
    let files = Files::even(4, 20, MIB);
    let options = options(|it| it.memory_limit = Some(2 * MIB as u64));
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let mut tensors = Vec::new();
    for tensor in loader.stream().expect("starts") {
        tensors.push(tensor.expect("loads"));
        if tensors.len() < 10 {
            assert_eq!(tload::release_staging(), 0);
        }
    }
    files.assert_all(&tensors);
}

/// A host-only load through slots leaves memory that is not pinned; a load to a GPU does not reuse
/// it.
#[test]
fn unpinned_memory_is_not_reused_for_gpu() {
    let cuda = cuda();
    let files = Files::even(5, 4, 1000);
    let memory: Vec<Box<[u8]>> = (0..4).map(|_| vec![0; 1000].into()).collect();
    let targets = memory.iter().enumerate().map(|(index, memory)| {
        let start = std::ptr::NonNull::from(&**memory).cast();
        #[expect(unsafe_code, reason = "lends memory to a load")]
        // SAFETY: the memory is kept below until the load is over and not accessed meanwhile.
        let target = unsafe { tload::Target::host(start, 1000, None) };
        (format!("t{index}"), target)
    });
    let (_, report) = load(&files.loader().targets(targets)).expect("loads");
    assert_eq!(report.staging.expect("staged").pinned_bytes, 0);
    drop(memory);
    let (staging, _) = staging(&files, &files.loader().device(Device::Cuda(0)));
    assert!(!staging.reused);
    assert_eq!(cuda.stub.count("pageable_copies"), 0);
}
