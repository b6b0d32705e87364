//! Whole loads to devices: every byte, for every engine and limit.

use tload::CacheMode;
use tload::internal::Trial;
use tload::internal::engine::available;
use tload::report::EngineReport;
use tload::{Device, Dtype, ErrorKind, LoadOptions, Loader, Order, Verify};
use tload_testing::fixtures::Rng;

use crate::fixtures::{Files, MIB, failure, hinted, load, options};
use crate::stub::{bytes, cuda};

#[test]
fn small_file_loads_to_device() {
    let cuda = cuda();
    let files = Files::of_lengths(1, &[4, 1000, 256, 3_000_000, 0, 17]);
    let loader = files.loader().device(Device::Cuda(1));
    let (tensors, report) = load(&loader).expect("loads");
    files.assert_all(&tensors);
    for tensor in tensors.iter().filter(|tensor| tensor.byte_len() > 0) {
        assert_eq!(tensor.ordinal(), Some(1));
        let device = tensor.device_bytes().expect("on a GPU");
        assert_eq!(device.len() as u64, tensor.byte_len());
    }
    let device = &report.devices[0];
    assert_eq!(device.device, "cuda:1");
    assert_eq!(device.copied_bytes, files.total());
    assert_eq!(report.outcome, "complete");
    assert_eq!(cuda.stub.count("pageable_copies"), 0);
    let text = report.to_string();
    assert!(text.contains("cuda:1"), "{text}");
}

/// Tensors are converted in host memory only. Those of the wanted dtype may go to a GPU.
#[test]
fn conversion_on_a_gpu_is_refused() {
    let _cuda = cuda();
    let files = Files::matrices(2, 30, 20);
    let loader = |dtype| {
        let options = LoadOptions::new().dtype(dtype);
        files.loader().device(Device::Cuda(1)).options(options)
    };
    let (tensors, report) = load(&loader(Dtype::Bf16)).expect("nothing to convert");
    files.assert_all(&tensors);
    assert_eq!(report.converted_tensors, 0);
    let error = loader(Dtype::F32).stream().expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.tensor(), Some("m0"));
    let message = "dtype=f32 converts tensors in host memory; this one goes to cuda:1";
    assert_eq!(error.message(), message);
}

/// Lanes of a GPU are busy with the driver, so other threads copy what is in memory. Other lanes
/// copy themselves, also those that verify.
#[test]
fn files_in_memory_are_copied_by_threads_for_gpu_only() {
    let _cuda = cuda();
    let files = Files::even(3, 40, MIB);
    let buffered = options(|it| it.cache = CacheMode::Buffered);
    load(&files.loader().options(buffered)).expect("brings the files into the page cache");
    let gpu = || files.loader().device(Device::Cuda(0));
    let engine = |loader: &Loader| load(loader).expect("loads").1.engine;
    let to_gpu = engine(&gpu());
    let to_host = engine(&files.loader());
    let verified = engine(&gpu().options(options(|it| it.verify = Verify::Auto)));
    let system = tload::internal::probe::file_system(files.path()).expect("has one");
    // The kernel may evict pages at any time, and files on tmpfs are always copied by threads.
    if files.are_resident() && !system.in_memory {
        let EngineReport { name, reason, .. } = to_gpu;
        assert_eq!(name, "pread", "{reason}");
        assert!(reason.contains("threads copy them"), "{reason}");
        // Other tests report loudly when there is no ring.
        if tload::internal::probe::ring().available {
            assert_eq!([to_host.name, verified.name], ["uring", "uring"]);
        }
    }
}

/// Copiers fill each slot together, in a ring of few slots.
#[test]
fn variants_of_slots_load_every_byte() {
    let _cuda = cuda();
    let mut files = Files::new();
    files.mixed("small", &mut Rng::new(8), 40, 100_000);
    for (shard, len) in [("a", 9 * MIB + 77), ("b", 3 * MIB)] {
        files.mixed(shard, &mut Rng::new(9), 3, len);
    }
    let buffered = options(|it| it.cache = CacheMode::Buffered);
    load(&files.loader().options(buffered)).expect("brings the files into the page cache");
    for variant in [
        "chunk=64KiB",
        "slot=2MiB",
        "chunk=1MiB,slot=2MiB,ring=6MiB,nice",
        "chunk=256KiB,slot=8MiB,ring=16MiB",
        "ring=1",
    ] {
        let trial: Trial = variant.parse().expect("valid");
        for cache in [CacheMode::Auto, CacheMode::Buffered] {
            let options = options(|it| {
                it.cache = cache;
                it.trial = trial;
            });
            let loader = files.loader().device(Device::Cuda(0)).options(options);
            let (tensors, report) = load(&loader).expect(variant);
            files.assert_all(&tensors);
            let staging = report.staging.as_ref().expect("to a GPU");
            let (slots, slot) = (staging.slots as u64, report.extent_bytes);
            let ring = trial.ring.map_or(u64::MAX, |ring| ring.max(slot));
            assert!(slots * slot <= ring, "{variant}: {staging:?}");
            let most = trial.slot.unwrap_or(u64::MAX);
            assert!(slot <= most, "{variant}: {report}");
            if report.engine.name == "pread" {
                let mut features = report.engine.features.iter();
                let has_strips = features.any(|it| it.starts_with("strips of "));
                assert_eq!(has_strips, trial.chunk.is_some(), "{variant}");
            }
        }
    }
}

/// Only some copies are timed.
#[test]
fn copy_seconds_cover_all_copies() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "20000");
    let files = Files::even(3, 40, MIB);
    let (tensors, report) = load(&files.loader().device(Device::Cuda(0))).expect("loads");
    files.assert_all(&tensors);
    let device = &report.devices[0];
    let least = 0.02 * f64::from(u32::try_from(device.copies).expect("few"));
    assert!(device.copy_seconds >= least, "{device:?}");
    assert!(device.copy_seconds < 60.0, "{device:?}");
    let timed = cuda.stub.count("cuEventElapsedTime").unsigned_abs();
    assert!(0 < timed && timed < device.copies, "{timed} of {device:?}");
}

/// The host load is the oracle for the device load.
#[test]
fn device_load_equals_host_load() {
    let _cuda = cuda();
    let mut files = Files::new();
    files.mixed("m", &mut Rng::new(7), 60, 200_000);
    let (on_host, _) = load(&files.loader()).expect("loads");
    let (on_device, _) = load(&files.loader().device(Device::Cuda(0))).expect("loads");
    assert_eq!(on_host.len(), on_device.len());
    for device in &on_device {
        let mut named = on_host.iter().filter(|host| host.name() == device.name());
        let host = named.next().expect("loaded on the host too");
        assert_eq!(device.dtype(), host.dtype());
        assert_eq!(device.shape(), host.shape());
        assert!(bytes(device) == host.bytes(), "{device:?}");
    }
}

/// Random engines, lanes, orders, limits, delays, shards and kinds of tensors.
#[test]
fn random_loads_are_complete() {
    let cuda = cuda();
    let engines = available();
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let mut files = Files::new();
        for shard in 0..=rng.index(4) {
            let count = 1 + rng.index(25);
            let bytes_max = rng.pick(&[100, 5000, 100_000, 2 * MIB]);
            files.mixed(&shard.to_string(), &mut rng, count, bytes_max);
        }
        let delay = rng.pick(&["0", "0", "50", "300"]);
        cuda.stub.set("copy_delay_us", delay);
        let mut options = options(|it| {
            it.engine = rng.pick(&engines);
            it.cache = rng.pick(&[CacheMode::Auto, CacheMode::Buffered]);
            it.lanes = Some(1 + rng.index(3));
            it.order = rng.pick(&[Order::Ready, Order::File]);
            (it.extent_bytes, it.memory_limit) = rng.pick(&[
                (None, None),
                (None, Some(300_000)),
                (Some(65_536), Some(1)),
                (Some(300_000), Some(1)),
            ]);
            it.device_memory_limit = rng.pick(&[None, Some(1)]);
            it.trial.batch = rng.pick(&[false, true]);
        });
        let ordinal = rng.index(2);
        // The smallest limits that errors hint at, plus some slots or bytes.
        for _ in 0..2 {
            let loader = files.loader().device(Device::Cuda(ordinal));
            match loader.options(options.clone()).stream().map(drop) {
                Ok(()) => break,
                Err(error) if error.hint().is_some_and(|it| it.contains("device_memory")) => {
                    options.device_memory_limit = Some(hinted(&error) + rng.below(100_000));
                }
                Err(error) => {
                    let slot = hinted(&error);
                    options.memory_limit = Some(slot * (1 + rng.below(4)) + rng.below(slot));
                }
            }
        }
        let loader = files.loader().device(Device::Cuda(ordinal));
        let loader = loader.options(options.clone());
        let mut stream = loader.stream().expect("starts");
        let in_order: Vec<_> = stream.tensors().map(|it| it.name().to_owned()).collect();
        let tensors: Vec<_> = stream
            .by_ref()
            .map(|tensor| tensor.unwrap_or_else(|error| panic!("seed {seed}: {error}")))
            .collect();
        let report = stream.report();
        files.assert_all(&tensors);
        if options.order == Order::File {
            let came: Vec<_> = tensors.iter().map(|it| it.name().to_owned()).collect();
            assert_eq!(came, in_order, "seed {seed}");
        }
        if let Some(limit) = options.memory_limit {
            assert!(report.memory_peak <= limit, "seed {seed}");
        }
        if let Some(limit) = options.device_memory_limit {
            let peak = report.devices[0].memory_peak;
            assert!(peak <= limit, "seed {seed}: {peak} of {limit}");
        }
        cuda.assert_in_order();
    }
}

/// One slot of staging memory, and a tensor many times as long.
#[test]
fn tensor_larger_than_staging_memory_streams_through_it() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "100");
    let files = Files::of_lengths(2, &[9 * MIB + 5, 100, 2 * MIB]);
    for engine in available() {
        for lanes in 1..=3 {
            let mut options = options(|it| {
                (it.engine, it.lanes) = (engine, Some(lanes));
                it.extent_bytes = Some(65_536);
                it.memory_limit = Some(1);
            });
            let loader = files.loader().device(Device::Cuda(0));
            let slot = hinted(&failure(loader.clone().options(options.clone()).stream()));
            options.memory_limit = Some(slot);
            let (tensors, report) = load(&loader.options(options)).expect("loads");
            files.assert_all(&tensors);
            let staging = report.staging.expect("bytes are staged");
            assert_eq!((staging.slots, staging.bytes), (1, slot));
            assert_eq!(report.memory_peak, slot);
        }
    }
}

/// Tensors of at least 16 bytes are aligned to 16; shorter ones to their own length, rounded up to
/// a power of two.
#[test]
fn tensors_are_aligned_for_kernels() {
    let _cuda = cuda();
    let mut rng = Rng::new(3);
    let mut files = Files::new();
    for shard in 0..6 {
        files.mixed(&shard.to_string(), &mut rng, 80, 2 * MIB);
    }
    let (tensors, _) = load(&files.loader().device(Device::Cuda(0))).expect("loads");
    files.assert_all(&tensors);
    for tensor in tensors.iter().filter(|tensor| tensor.byte_len() > 0) {
        let len = usize::try_from(tensor.byte_len()).expect("small");
        let wanted = len
            .next_power_of_two()
            .min(16)
            .max(tensor.dtype().alignment());
        let address = tensor.as_ptr().addr();
        assert_eq!(address % wanted, 0, "{tensor:?} at {address:#x}");
    }
}

#[test]
fn neighbours_share_copy_and_allocation() {
    let cuda = cuda();
    let files = Files::even(4, 4000, 128);
    let loader = files.loader().device(Device::Cuda(0));
    let (tensors, report) = load(&loader).expect("loads");
    files.assert_all(&tensors);
    let device = &report.devices[0];
    assert_eq!(device.copied_bytes, 4000 * 128);
    assert_eq!(device.copies, report.extents, "one copy per read");
    assert!(device.copies <= 2, "{} copies", device.copies);
    assert_eq!(cuda.stub.count("cuMemAllocAsync"), 1);
    // One kept tensor keeps its region alive, and nothing else.
    let kept = tensors
        .into_iter()
        .next()
        .expect("the first of 4000 tensors");
    assert_eq!(cuda.stub.live("allocations"), 1);
    drop(kept);
    assert_eq!(cuda.stub.live("allocations"), 0);
}

/// Distances that change for the sake of alignment cost copies, not bytes, and those only of
/// tensors that are too large to be joined.
#[test]
fn unaligned_neighbours_are_joined_if_they_are_small() {
    let _cuda = cuda();
    for (len, copies) in [(100, 1), (20_004, 50)] {
        let files = Files::of_lengths(5, &vec![len; 50]);
        let (tensors, report) = load(&files.loader().device(Device::Cuda(0))).expect("loads");
        files.assert_all(&tensors);
        assert_eq!(report.devices[0].copies, copies);
        assert_eq!(report.devices[0].copied_bytes, 50 * len as u64);
    }
}

#[test]
fn empty_tensors_need_no_device_memory() {
    let cuda = cuda();
    let mut files = Files::new();
    let empty = |name: &str| (name.to_owned(), Dtype::F32, 0, Vec::new());
    files.shard("0", vec![empty("a"), empty("b")], None);
    let loader = files.loader().device(Device::Cuda(0));
    let (tensors, report) = load(&loader.options(LoadOptions::default())).expect("loads");
    assert_eq!(tensors.len(), 2);
    assert!(tensors.iter().all(|tensor| tensor.ordinal().is_none()));
    assert_eq!(report.staging, None);
    assert_eq!(cuda.stub.count("cuMemAllocAsync"), 0);
    assert_eq!(cuda.stub.count("cuMemHostRegister_v2"), 0);
}

/// A tensor may be used and dropped on any thread, long after the stream.
#[test]
fn tensors_outlive_load_on_any_thread() {
    let cuda = cuda();
    let files = Files::even(6, 30, 100_000);
    let (tensors, _) = load(&files.loader().device(Device::Cuda(0))).expect("loads");
    std::thread::scope(|scope| {
        for tensor in tensors {
            let files = &files;
            scope.spawn(move || crate::fixtures::assert_same(&files.contents, &tensor));
        }
    });
    assert_eq!(cuda.stub.live("allocations"), 0);
}
