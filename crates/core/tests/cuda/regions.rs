//! Regions that several tensors share: within the limit, without a deadlock, whatever the caller
//! keeps, and no larger than a small or full device allows.

use std::sync::Arc;

use tload::{Device, LoadOptions, Loader, Order, Report, Tensor, TensorStream};
use tload_testing::fixtures::Rng;

use crate::allocators::{Ordered, Seen};
use crate::fixtures::{Files, MIB, assert_same, load, options};
use crate::stub::{Cuda, PATIENCE, cuda};

/// Behaviour of a caller.
#[derive(Clone, Copy, Debug)]
enum Caller {
    /// Keeps none.
    Drops,
    /// Keeps all.
    Keeps,
    /// Keeps one of many.
    KeepsFew,
    /// Keeps none, and receives only when the load has used up its budget.
    IsSlow,
}

const CALLERS: [Caller; 4] = [
    Caller::Drops,
    Caller::Keeps,
    Caller::KeepsFew,
    Caller::IsSlow,
];

fn peak(cuda: &Cuda) -> u64 {
    let peak = cuda.stub.count("peak_allocated_bytes");
    u64::try_from(peak).expect("a number of bytes")
}

/// Waits until the load has copied nothing for a while: it waits for the caller, or is done.
fn wait_until_idle(stream: &TensorStream) {
    let copied = || {
        stream
            .report()
            .devices
            .first()
            .map_or(0, |it| it.copied_bytes)
    };
    let (mut before, mut looks) = (copied(), 0);
    while looks < 200 {
        std::thread::yield_now();
        let now = copied();
        looks = if now == before { looks + 1 } else { 0 };
        before = now;
    }
}

/// Receives everything as `caller` does, and returns what it kept.
fn receive(files: &Files, mut stream: TensorStream, caller: Caller) -> (Vec<Tensor>, Report) {
    let mut kept = Vec::new();
    let mut count = 0;
    loop {
        if matches!(caller, Caller::IsSlow) && count % 16 == 0 {
            wait_until_idle(&stream);
        }
        let Some(tensor) = stream.next() else { break };
        let tensor = tensor.map_err(|error| (caller, error.chain()));
        let tensor = tensor.expect("loads");
        assert_same(&files.contents, &tensor);
        if matches!(caller, Caller::Keeps) || matches!(caller, Caller::KeepsFew) && count % 40 == 0
        {
            kept.push(tensor);
        }
        count += 1;
    }
    assert_eq!(count, files.contents.len());
    (kept, stream.report())
}

/// Returns files of tensors of many lengths, a large one among them.
fn files(shards: usize) -> Files {
    let mut rng = Rng::new(5);
    let mut files = Files::new();
    for shard in 0..shards {
        files.mixed(&shard.to_string(), &mut rng, 60, 100_000);
    }
    files
}

fn limited(loader: Loader, limit: u64, region: Option<u64>, order: Order) -> Loader {
    loader.device(Device::Cuda(0)).options(options(|it| {
        it.device_memory_limit = Some(limit);
        it.region_bytes = region;
        it.order = order;
        it.lanes = Some(2);
        it.extent_bytes = Some(65_536);
        it.timeout = Some(PATIENCE);
    }))
}

#[test]
fn shared_regions_stay_within_limit_whatever_the_caller_keeps() {
    let cuda = cuda();
    for shards in [1, 3] {
        let files = files(shards);
        let largest = files.contents.values().map(Vec::len).max().expect("some") as u64;
        for (limit, region) in [
            (largest, None),
            (2 * largest + 77, None),
            (8 * MIB as u64, None),
            (8 * MIB as u64, Some(300_000)),
        ] {
            for (caller, order) in CALLERS
                .into_iter()
                .flat_map(|caller| [(caller, Order::Ready), (caller, Order::File)])
            {
                let loader = limited(files.loader(), limit, region, order);
                cuda.stub.reset();
                let (kept, report) = receive(&files, loader.stream().expect("starts"), caller);
                let device = &report.devices[0];
                assert_eq!(device.memory_limit, limit);
                assert!(device.memory_peak <= limit, "{caller:?}: {device:?}");
                if matches!(caller, Caller::Drops | Caller::IsSlow) {
                    // The caller holds one tensor, and so a region that it has received.
                    let held = largest.max(region.unwrap_or(limit / 8));
                    assert!(peak(&cuda) <= limit + held, "{caller:?}: {}", peak(&cuda));
                }
                drop(kept);
                let seen = Arc::new(Seen::default());
                let stream = loader.stream_with(Box::new(Ordered::new(&seen)));
                let (kept, report) = receive(&files, stream.expect("starts"), caller);
                assert!(report.devices[0].memory_peak <= limit, "{caller:?}");
                drop(kept);
            }
        }
    }
}

/// A budget holds at least eight regions, so a region that waits for its last tensor stops nothing.
#[test]
fn region_size_follows_option_limit_and_tensors() {
    let cuda = cuda();
    let files = Files::even(2, 64, 128 << 10);
    let allocations = |options: LoadOptions| {
        cuda.stub.reset();
        let loader = files.loader().device(Device::Cuda(0)).options(options);
        let (tensors, _) = load(&loader).expect("loads");
        files.assert_all(&tensors);
        cuda.stub.count("cuMemAllocAsync")
    };
    let set = |region: Option<u64>, limit: Option<u64>| {
        allocations(options(|it| {
            (it.region_bytes, it.device_memory_limit) = (region, limit);
        }))
    };
    let mib = MIB as u64;
    assert_eq!(set(None, None), 1, "8 MiB in a region of 64");
    assert_eq!(set(Some(2 * mib), None), 4);
    assert_eq!(set(Some(1), None), 64, "one for each tensor");
    assert_eq!(set(None, Some(8 * mib)), 8, "an eighth of the limit");
    assert_eq!(set(Some(64 * mib), Some(16 * mib)), 4);
    assert_eq!(
        set(None, Some(128 << 10)),
        64,
        "the limit is that of a tensor"
    );
}

/// On a nearly full device, regions are small enough for a load that the caller drops as it goes.
#[test]
fn regions_fit_into_free_memory() {
    let cuda = cuda();
    let files = Files::even(3, 100, MIB);
    cuda.stub.set("busy", &((1 << 30) - 20 * MIB).to_string());
    let loader = files.loader().device(Device::Cuda(0));
    let (_, report) = receive(&files, loader.stream().expect("starts"), Caller::Drops);
    assert!(peak(&cuda) <= 20 * MIB as u64, "{report}");
}

/// A tensor that is kept retains its region; the others are freed.
#[test]
fn kept_tensor_retains_one_region() {
    let cuda = cuda();
    let files = Files::even(4, 64, 100_000);
    let options = options(|it| {
        it.region_bytes = Some(1_000_000);
        it.order = Order::File;
    });
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let (mut tensors, _) = load(&loader).expect("loads");
    tensors.truncate(1);
    assert_eq!(cuda.stub.live("allocations"), 1);
    assert_eq!(cuda.stub.live("allocated_bytes"), 1_000_000);
}

/// Larger regions, of a caller that keeps all tensors.
#[test]
fn loads_that_keep_all_have_larger_regions() {
    let cuda = cuda();
    let files = Files::even(5, 6, 20 * MIB);
    let loader = files.loader().device(Device::Cuda(0));
    for (loader, allocations) in [(loader.clone(), 2), (loader.keeping_all(), 1)] {
        cuda.stub.reset();
        cuda.stub.set("memory", "4294967296");
        let (tensors, _) = load(&loader).expect("loads");
        files.assert_all(&tensors);
        assert_eq!(cuda.stub.count("cuMemAllocAsync"), allocations);
    }
}
