//! Device memory from the caller's allocator: allocated on the caller's thread, within the budget,
//! in the order of the caller's stream.

#![expect(unsafe_code, reason = "gives memory to loads")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use tload::internal::metrics_text;
use tload::{
    Device, DeviceAllocator, DeviceMap, DeviceMemory, Error, ErrorKind, LoadOptions, Loader, Order,
    Report, Result, Selection, Tensor,
};
use tload_testing::fixtures::Rng;

use crate::fixtures::{Files, MIB, load, options};
use crate::foreign;
use crate::stub::cuda;

/// Calls and memory, recorded for the test.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    calls: AtomicUsize,
    /// Bytes of each GPU that are allocated, and their peak.
    out: Mutex<[(usize, usize); 2]>,
    /// Threads that called the allocator.
    threads: Mutex<Vec<ThreadId>>,
}

impl Seen {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    fn change(&self, ordinal: usize, change: impl FnOnce(usize) -> usize) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, most) = &mut out[ordinal];
        *now = change(*now);
        *most = (*most).max(*now);
    }

    fn out(&self, ordinal: usize) -> (usize, usize) {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)[ordinal]
    }
}

/// Allocator in the order of its own streams, with work of its own still to run there.
pub(crate) struct Ordered {
    streams: Vec<Arc<foreign::Stream>>,
    seen: Arc<Seen>,
    /// First call that fails, counted from 1.
    fails_at: usize,
    kind: ErrorKind,
    /// Returns memory that its stream keeps using for a while.
    dallies: bool,
}

impl Ordered {
    pub(crate) fn new(seen: &Arc<Seen>) -> Self {
        Self {
            streams: (0..2)
                .map(|ordinal| Arc::new(foreign::Stream::new(ordinal)))
                .collect(),
            seen: Arc::clone(seen),
            fails_at: usize::MAX,
            kind: ErrorKind::OutOfMemory,
            dallies: false,
        }
    }
}

struct Given {
    stream: Arc<foreign::Stream>,
    address: u64,
    ordinal: usize,
    bytes: usize,
    seen: Arc<Seen>,
}

impl Drop for Given {
    fn drop(&mut self) {
        self.stream.free(self.address);
        self.seen.change(self.ordinal, |now| now - self.bytes);
    }
}

impl DeviceAllocator for Ordered {
    fn allocate(&mut self, ordinal: usize, bytes: usize) -> Result<DeviceMemory> {
        let calls = self.seen.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let threads = self.seen.threads.lock();
        threads
            .unwrap_or_else(PoisonError::into_inner)
            .push(std::thread::current().id());
        if calls >= self.fails_at {
            return Err(Error::new(self.kind, "the caller's memory is exhausted"));
        }
        let stream = Arc::clone(&self.streams[ordinal]);
        let address = stream.allocate(bytes).expect("memory is available");
        if self.dallies {
            stream.dally(address);
        }
        stream.fill(address, bytes);
        self.seen.change(ordinal, |now| now + bytes);
        let raw = stream.raw;
        let owner = Arc::new(Given {
            stream,
            address,
            ordinal,
            bytes,
            seen: Arc::clone(&self.seen),
        });
        // SAFETY: just allocated in the order of the stream, which the owner keeps alive.
        Ok(unsafe { DeviceMemory::new(address, bytes, raw, owner) })
    }
}

/// Returns the number of loads that have ended with an error of this kind.
fn loads_ended(kind: ErrorKind) -> u64 {
    let text = metrics_text();
    let name = format!("tload_loads_total{{outcome=\"{}\"}} ", kind.name());
    let count = text.lines().find_map(|line| line.strip_prefix(&*name));
    count.map_or(0, |count| count.parse().expect("a number"))
}

fn load_with(loader: &Loader, allocator: Ordered) -> Result<(Vec<Tensor>, Report)> {
    let mut stream = loader.stream_with(Box::new(allocator))?;
    let tensors = stream.by_ref().collect::<Result<Vec<_>>>()?;
    Ok((tensors, stream.report()))
}

#[test]
fn tensors_in_caller_memory_return_its_owner() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "100");
    let files = Files::of_lengths(1, &[100, 200, 3 * MIB, 64, 2 * MIB]);
    let seen = Arc::new(Seen::default());
    let options = options(|it| it.region_bytes = Some(MIB as u64));
    let loader = files.loader().device(Device::Cuda(1)).options(options);
    let (tensors, report) = load_with(&loader, Ordered::new(&seen)).expect("loads");
    files.assert_all(&tensors);
    assert_eq!(seen.calls(), 4, "small neighbours share an allocation");
    for tensor in &tensors {
        let device = tensor.device_bytes().expect("on a GPU");
        let (owner, offset) = device.owner().expect("the caller's");
        let owner = owner
            .downcast_ref::<Given>()
            .expect("the owner that was passed");
        assert_eq!(owner.address + offset as u64, device.address());
    }
    assert_eq!(report.devices[0].copied_bytes, files.total());
    let (out, most) = seen.out(1);
    assert_eq!(out, most, "all memory is held");
    assert!(out as u64 >= files.total());
    drop(tensors);
    assert_eq!(seen.out(1).0, 0);
}

#[test]
fn allocator_is_called_on_caller_thread_only() {
    let _cuda = cuda();
    let files = Files::even(2, 40, MIB);
    let seen = Arc::new(Seen::default());
    let options = options(|it| {
        it.lanes = Some(3);
        it.device_memory_limit = Some(4 * MIB as u64);
    });
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let (tensors, _) = load_with(&loader, Ordered::new(&seen)).expect("loads");
    files.assert_all(&tensors);
    let threads = seen.threads.lock().expect("no panic");
    let here = std::thread::current().id();
    assert_eq!(threads.len(), 40);
    assert!(threads.iter().all(|thread| *thread == here));
}

/// The caller's stream still writes to the memory when the allocator returns it: without ordered
/// copies there would be a violation, and wrong bytes.
#[test]
fn copies_wait_for_allocator_stream() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "3000");
    let files = Files::of_lengths(7, &[100, 200, 3 * MIB, 64, 2 * MIB]);
    for lanes in [1, 2] {
        let seen = Arc::new(Seen::default());
        let mut allocator = Ordered::new(&seen);
        allocator.dallies = true;
        let options = options(|it| it.lanes = Some(lanes));
        let loader = files.loader().device(Device::Cuda(0)).options(options);
        let (tensors, _) = load_with(&loader, allocator).expect("loads");
        cuda.assert_in_order();
        files.assert_all(&tensors);
    }
}

/// Memory that the caller has not received yet stays within the budget, however slow the caller is.
#[test]
fn budget_limits_caller_memory() {
    let _cuda = cuda();
    let files = Files::even(3, 32, MIB);
    let seen = Arc::new(Seen::default());
    let limit = 5 * MIB;
    let options = options(|it| it.device_memory_limit = Some(limit as u64));
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let allocator = Box::new(Ordered::new(&seen));
    let mut stream = loader.stream_with(allocator).expect("starts");
    assert_eq!(seen.calls(), 5, "as many as fit, before the first read");
    let mut received = 0;
    for tensor in stream.by_ref() {
        drop(tensor.expect("loads"));
        received += 1;
        assert!(
            seen.calls() <= 5 + received,
            "at most one more per received tensor"
        );
    }
    assert_eq!(received, 32);
    let report = stream.report();
    assert_eq!(report.devices[0].memory_limit, limit as u64);
    assert_eq!(report.devices[0].memory_peak, limit as u64);
    // The tensor that the caller just received is still alive when the next one is allocated.
    assert_eq!(seen.out(0), (0, limit + MIB));
}

/// Random orders, sources, devices and budgets: some read can always proceed.
#[test]
fn tight_budgets_never_deadlock() {
    let cuda = cuda();
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut files = Files::new();
        for shard in 0..=rng.index(4) {
            let count = 1 + rng.index(12);
            files.mixed(&shard.to_string(), &mut rng, count, 2 * MIB);
        }
        cuda.stub.set("copy_delay_us", rng.pick(&["0", "0", "200"]));
        let devices = [Device::Cuda(0), Device::Cuda(1), Device::Cpu];
        let rules: Vec<_> = (0..4)
            .map(|digit| {
                let names = format!("*{digit}");
                (names, rng.pick(&devices))
            })
            .filter(|(names, _)| {
                let names = Selection::glob(names).expect("a pattern");
                files.loader().select(names).selected().is_ok()
            })
            .collect();
        let mut options = options(|it| {
            it.order = rng.pick(&[Order::Ready, Order::File]);
            it.lanes = Some(1 + rng.index(3));
            it.extent_bytes = Some(rng.pick(&[65_536, 400_000]));
            it.memory_limit = Some(1);
            it.device_memory_limit = Some(1);
            it.timeout = Some(crate::stub::PATIENCE);
        });
        let loader = files
            .loader()
            .device(Device::Cuda(rng.index(2)))
            .device_map(DeviceMap::new(rules).expect("globs"));
        let seen = Arc::new(Seen::default());
        settle(&loader, &mut options);
        if rng.once_in(2) {
            options.device_memory_limit = options.device_memory_limit.map(|it| it * 2);
            // Regions are larger, and their extents may be.
            settle(&loader, &mut options);
        }
        let loader = loader.options(options.clone());
        let mut stream = loader
            .stream_with(Box::new(Ordered::new(&seen)))
            .expect("starts");
        let keeps = rng.once_in(2);
        let mut kept = Vec::new();
        let mut count = 0;
        for tensor in stream.by_ref() {
            let tensor = tensor.unwrap_or_else(|error| panic!("seed {seed}: {}", error.chain()));
            crate::fixtures::assert_same(&files.contents, &tensor);
            count += 1;
            if keeps {
                kept.push(tensor);
            }
        }
        assert_eq!(count, files.contents.len(), "seed {seed}");
        for device in stream.report().devices {
            assert!(device.memory_peak <= device.memory_limit, "seed {seed}");
        }
        if keeps {
            files.assert_all(&kept);
        }
        cuda.assert_in_order();
    }
}

/// Sets the smallest sufficient limits, as hinted by errors.
fn settle(loader: &Loader, options: &mut LoadOptions) {
    while let Err(error) = loader.clone().options(options.clone()).stream() {
        let before = (options.memory_limit, options.device_memory_limit);
        let wanted = Some(crate::fixtures::hinted(&error));
        let hint = error.hint().expect("names the limit");
        if hint.contains("device_memory_limit") {
            options.device_memory_limit = wanted;
        } else {
            options.memory_limit = wanted;
        }
        let now = (options.memory_limit, options.device_memory_limit);
        assert!(now > before, "the hinted limit is larger");
    }
}

#[test]
fn failing_allocator_ends_load_naming_the_request() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "200");
    let files = Files::even(4, 30, MIB);
    for fails_at in [1, 2, 4, 9, 30] {
        for (kind, order) in [
            (ErrorKind::OutOfMemory, Order::Ready),
            (ErrorKind::Device, Order::File),
        ] {
            let seen = Arc::new(Seen::default());
            let mut allocator = Ordered::new(&seen);
            (allocator.fails_at, allocator.kind) = (fails_at, kind);
            let options = options(|it| {
                it.order = order;
                it.device_memory_limit = Some(3 * MIB as u64);
            });
            let loader = files.loader().device(Device::Cuda(0)).options(options);
            let before = loads_ended(kind);
            let error = load_with(&loader, allocator).expect_err("fails");
            assert_eq!(error.kind(), kind, "{}", error.chain());
            assert_eq!(loads_ended(kind), before + 1, "also if it never began");
            if kind == ErrorKind::OutOfMemory {
                let text = error.chain();
                assert!(text.contains("cuda:0 has no room for 1.0 MiB"), "{text}");
                assert!(text.contains("the caller's memory is exhausted"), "{text}");
                assert!(error.tensor().is_some() && error.hint().is_some(), "{text}");
            }
            assert_eq!(seen.calls(), fails_at, "not called again after a failure");
        }
    }
    let (tensors, _) = load(&files.loader().device(Device::Cuda(0))).expect("loads");
    files.assert_all(&tensors);
}

/// Allocator that panics at its third call.
struct Panics(Ordered);

impl DeviceAllocator for Panics {
    fn allocate(&mut self, ordinal: usize, bytes: usize) -> Result<DeviceMemory> {
        assert!(self.0.seen.calls() < 2, "the allocator gives up");
        self.0.allocate(ordinal, bytes)
    }
}

#[test]
fn panicking_allocator_leaks_nothing() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "200");
    let files = Files::even(5, 20, MIB);
    for limit in [2, 8] {
        let seen = Arc::new(Seen::default());
        let options = options(|it| it.device_memory_limit = Some(limit * MIB as u64));
        let loader = files.loader().device(Device::Cuda(0)).options(options);
        let panics = Panics(Ordered::new(&seen));
        let load = std::panic::AssertUnwindSafe(|| {
            for tensor in loader.stream_with(Box::new(panics)).expect("starts") {
                drop(tensor.expect("loads"));
            }
        });
        std::panic::catch_unwind(load).expect_err("panics");
        assert_eq!(seen.calls(), 2);
        cuda.assert_nothing_left();
    }
}

/// Allocator with a fixed number of free bytes.
struct Small(Ordered, u64);

impl DeviceAllocator for Small {
    fn allocate(&mut self, ordinal: usize, bytes: usize) -> Result<DeviceMemory> {
        self.0.allocate(ordinal, bytes)
    }

    fn free_bytes(&mut self, _ordinal: usize) -> Option<u64> {
        Some(self.1)
    }
}

#[test]
fn allocator_free_bytes_limit_the_budget() {
    let _cuda = cuda();
    let files = Files::of_lengths(6, &[MIB, 4 * MIB, MIB]);
    let seen = Arc::new(Seen::default());
    let loader = files.loader().device(Device::Cuda(0));
    let small = Small(Ordered::new(&seen), 3 * MIB as u64);
    let error = loader.stream_with(Box::new(small)).expect_err("too little");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(error.tensor(), Some("t1"));
    assert_eq!(seen.calls(), 0);
    let enough = Small(Ordered::new(&seen), 5 * MIB as u64);
    let mut stream = loader.stream_with(Box::new(enough)).expect("starts");
    assert_eq!(stream.report().devices[0].memory_limit, 4 * MIB as u64);
    assert!(stream.all(|tensor| tensor.is_ok()));
}
