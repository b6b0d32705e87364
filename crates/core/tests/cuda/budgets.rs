//! Budgets of host and devices: known before the first read, respected exactly, and free of
//! starvation.

use std::time::Instant;

use tload::{Device, DeviceMap, Dtype, ErrorKind, Order, Tensor, TensorStream};

use crate::fixtures::{Files, MIB, failure, hinted, load, options};
use crate::stub::{Cuda, PATIENCE, cuda};

fn peak(cuda: &Cuda) -> u64 {
    let peak = cuda.stub.count("peak_allocated_bytes");
    u64::try_from(peak).expect("a number of bytes")
}

/// Waits until the budget of the first device is used up, and then until reads stop.
fn fill(stream: &TensorStream, budget: u64) {
    let started = Instant::now();
    while stream.report().devices[0].memory_peak < budget && started.elapsed() < PATIENCE {
        tload_testbed::pause_between_looks();
    }
    let mut read = (0, 0);
    while read.1 < 2000 {
        let now = stream.progress().bytes_read;
        read = if now == read.0 {
            (now, read.1 + 1)
        } else {
            (now, 0)
        };
        std::thread::yield_now();
    }
}

/// Nothing is allocated beyond the budget before the caller receives, and then one tensor for each
/// that it has received.
#[test]
fn stalled_caller_stops_load_at_budget() {
    let cuda = cuda();
    let files = Files::even(1, 32, MIB);
    for (lanes, order) in [(1, Order::Ready), (3, Order::Ready), (2, Order::File)] {
        let limit = 4 * MIB as u64;
        let options = options(|it| {
            (it.lanes, it.order) = (Some(lanes), order);
            it.device_memory_limit = Some(limit + 1000);
            it.extent_bytes = Some(300_000);
        });
        let loader = files.loader().device(Device::Cuda(0)).options(options);
        cuda.stub.reset();
        let mut stream = loader.stream().expect("starts");
        fill(&stream, limit);
        assert_eq!(peak(&cuda), limit, "four tensors");
        for tensor in stream.by_ref() {
            drop(tensor.expect("loads"));
            assert!(
                peak(&cuda) <= limit + MIB as u64,
                "one more for the tensor that the caller holds"
            );
        }
        let device = &stream.report().devices[0];
        assert_eq!(
            (device.memory_peak, device.memory_limit),
            (limit, limit + 1000)
        );
    }
}

#[test]
fn caller_keeping_all_tensors_never_starves_load() {
    let cuda = cuda();
    let files = Files::even(2, 40, MIB);
    for (lanes, order) in [(1, Order::Ready), (3, Order::Ready), (3, Order::File)] {
        let options = options(|it| {
            (it.lanes, it.order) = (Some(lanes), order);
            it.device_memory_limit = Some(MIB as u64);
            it.memory_limit = Some(600_000);
        });
        let loader = files.loader().device(Device::Cuda(1)).options(options);
        let (kept, report) = load(&loader).expect("loads");
        files.assert_all(&kept);
        assert_eq!(report.devices[0].memory_peak, MIB as u64);
        assert!(report.memory_peak <= 600_000);
        assert_eq!(peak(&cuda), files.total());
        drop(kept);
    }
}

#[test]
fn staging_memory_fills_budget_without_exceeding_it() {
    let cuda = cuda();
    let files = Files::even(3, 40, MIB);
    for limit in [300_000, 2 * MIB as u64, 5 * MIB as u64 + 1] {
        tload::release_staging();
        let options = options(|it| {
            it.memory_limit = Some(limit);
            it.extent_bytes = Some(200_000);
        });
        let loader = files.loader().device(Device::Cuda(0)).options(options);
        let mut stream = loader.stream().expect("starts");
        let report = stream.report();
        let staging = report.staging.expect("staged");
        let registered = cuda.stub.live("registered_bytes");
        assert_eq!(Ok(staging.bytes), u64::try_from(registered));
        assert_eq!(staging.pinned_bytes, staging.bytes);
        assert!(staging.bytes <= limit && report.memory_peak <= limit);
        let slot = staging.bytes / staging.slots as u64;
        let all = staging.slots == 40 * 6;
        assert!(
            all || limit - staging.bytes < slot,
            "room for another slot: {staging:?}"
        );
        assert!(stream.all(|tensor| tensor.is_ok()));
    }
}

#[test]
fn too_small_limit_is_rejected_and_hinted_limit_suffices() {
    let cuda = cuda();
    let files = Files::of_lengths(4, &[1000, 5 * MIB, 4 * MIB]);
    let limited = |limit, device_limit| {
        let options = options(|it| {
            (it.memory_limit, it.device_memory_limit) = (limit, device_limit);
            it.extent_bytes = Some(MIB as u64);
        });
        files.loader().device(Device::Cuda(1)).options(options)
    };
    for limit in [1, 4096, 5 * MIB as u64 - 1] {
        let error = failure(limited(None, Some(limit)).stream());
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(error.tensor(), Some("t1"));
        let text = error.to_string();
        assert!(text.contains("cuda:1"), "{text}");
        assert!(text.contains(&format!("{limit} bytes")), "{text}");
        assert_eq!(hinted(&error), 5 * MIB as u64);
        assert_eq!(cuda.stub.count("cuMemAllocAsync"), 0);
        assert_eq!(cuda.stub.count("cuMemHostRegister_v2"), 0);
    }
    let (tensors, _) = load(&limited(None, Some(5 * MIB as u64))).expect("fits exactly");
    files.assert_all(&tensors);
    drop(tensors);
    let error = failure(limited(Some(4096), None).stream());
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let slot = hinted(&error);
    assert!(limited(Some(slot - 1), None).stream().is_err());
    let (tensors, report) = load(&limited(Some(slot), None)).expect("fits exactly");
    files.assert_all(&tensors);
    assert_eq!(report.memory_peak, slot);
}

/// Returns the bytes that this process has read by system calls.
fn bytes_read() -> u64 {
    let counts = std::fs::read_to_string("/proc/self/io").expect("procfs");
    let line = counts.lines().find_map(|line| line.strip_prefix("rchar:"));
    line.and_then(|number| number.trim().parse().ok())
        .expect("a count of bytes")
}

/// A GPU without room for the largest tensor is an error at once, not after minutes.
#[test]
fn full_gpu_is_rejected_before_first_read() {
    let cuda = cuda();
    let files = Files::of_lengths(5, &[MIB, 20 * MIB, 3 * MIB]);
    let options = |limit| {
        options(|it| {
            it.engine = tload::EngineChoice::Pread;
            it.device_memory_limit = limit;
        })
    };
    let free = 16 * MIB;
    cuda.stub.set("busy", &((1 << 30) - free).to_string());
    for (limit, asked) in [(None, 20 * MIB), (Some(22 * MIB), 22 * MIB)] {
        let loader = files.loader().device(Device::Cuda(0));
        let loader = loader.options(options(limit.map(|it| it as u64)));
        let before = bytes_read();
        let error = failure(loader.stream());
        assert!(bytes_read() - before < MIB as u64, "the file was read");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(error.tensor(), Some("t1"));
        let text = error.to_string();
        assert!(text.contains(&format!("{free} bytes) free")), "{text}");
        assert!(text.contains(&format!("{asked} bytes")), "{text}");
        assert!(error.hint().is_some_and(|it| it.contains("free memory")));
        assert_eq!(cuda.stub.count("cuMemAllocAsync"), 0);
        assert_eq!(cuda.stub.count("cuMemHostRegister_v2"), 0);
    }
}

#[test]
fn default_budget_shrinks_to_free_memory() {
    let cuda = cuda();
    let files = Files::even(6, 20, MIB);
    let free = 6 * MIB;
    cuda.stub.set("busy", &((1 << 30) - free).to_string());
    let loader = files.loader().device(Device::Cuda(0));
    let mut stream = loader.stream().expect("the largest fits");
    // Room is left for one more tensor, which the caller may hold while the next one arrives.
    fill(&stream, 4 * MIB as u64);
    let device = &stream.report().devices[0];
    assert_eq!(device.memory_limit, (free - free / 64 - MIB) as u64);
    assert_eq!(device.memory_peak, 4 * MIB as u64);
    // Another process frees its memory; the remaining tensors have room.
    cuda.stub.set("busy", "0");
    let tensors: Vec<Tensor> = stream.by_ref().map(|it| it.expect("loads")).collect();
    files.assert_all(&tensors);
}

#[test]
fn empty_tensors_need_no_host_memory() {
    let cuda = cuda();
    let mut files = Files::new();
    let empty = ("none".to_owned(), Dtype::F32, 0, Vec::new());
    let some = ("some".to_owned(), Dtype::U8, 100_000, vec![7; 100_000]);
    files.shard("0", vec![empty, some], None);
    let limited = |limit| {
        let options = options(|it| {
            (it.memory_limit, it.extent_bytes) = (Some(limit), Some(65_536));
        });
        let on_gpu = DeviceMap::new([("some", Device::Cuda(0))]).expect("a name");
        files.loader().device_map(on_gpu).options(options)
    };
    let error = failure(limited(1).stream());
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let (tensors, _) = load(&limited(hinted(&error))).expect("the hinted limit suffices");
    files.assert_all(&tensors);
    drop(tensors);
    cuda.assert_nothing_left();
}
