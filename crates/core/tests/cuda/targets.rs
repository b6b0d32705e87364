//! Memory of the caller, on the host and on devices, is filled in place.

#![expect(unsafe_code, reason = "lends memory to loads")]

use std::ptr::NonNull;
use std::sync::Arc;

use tload::{
    Device, ErrorKind, KeepAlive, LoadTarget, LoadTargetRules, Loader, Order, Selection, Target,
};
use tload_testing::fixtures::Rng;

use crate::fixtures::{Files, MIB, failure, load, options};
use crate::foreign;
use crate::stub::{Cuda, bytes, cuda};

/// Bytes around lent memory, on either side, that must stay untouched.
const MARGIN: usize = 64;
pub(crate) const UNTOUCHED: u8 = 0xEE;

/// Memory of a test with margins, on the host or standing for a device's.
pub(crate) struct Lent {
    memory: NonNull<[u8]>,
    pub(crate) len: usize,
    /// The GPU, and the driver that has adopted the memory.
    device: Option<(i32, &'static tload_cuda_stub::Stub)>,
}

// SAFETY: the value owns the memory.
unsafe impl Send for Lent {}
// SAFETY: `&Lent` is only used when no load writes any more.
unsafe impl Sync for Lent {}

impl Lent {
    pub(crate) fn new(cuda: &Cuda, len: usize, device: Option<i32>) -> Arc<Self> {
        let memory = vec![UNTOUCHED; len + 2 * MARGIN].into_boxed_slice();
        let memory = NonNull::from(Box::leak(memory));
        if let Some(ordinal) = device {
            let start: *mut u8 = memory.as_ptr().cast();
            cuda.stub.adopt(start, memory.len(), ordinal);
        }
        Arc::new(Self {
            memory,
            len,
            device: device.map(|ordinal| (ordinal, cuda.stub)),
        })
    }

    fn start(&self) -> NonNull<u8> {
        let start: NonNull<u8> = self.memory.cast();
        // SAFETY: inside the memory, which has a margin at its front.
        unsafe { start.add(MARGIN) }
    }

    fn target(self: &Arc<Self>) -> Target {
        self.target_behind(0)
    }

    /// Like [`Self::target`], for memory that a stream may still use.
    fn target_behind(self: &Arc<Self>, stream: u64) -> Target {
        let owner: KeepAlive = Arc::<Self>::clone(self);
        let owner = Some(owner);
        let Some((ordinal, _)) = self.device else {
            // SAFETY: the owner keeps the memory alive; tests read only what has been delivered.
            return unsafe { Target::host(self.start(), self.len, owner) };
        };
        let ordinal = usize::try_from(ordinal).expect("small");
        let address = self.address();
        // SAFETY: as above; the stream lives.
        unsafe { Target::cuda(ordinal, address, self.len, stream, owner) }
    }

    pub(crate) fn address(&self) -> u64 {
        self.start().as_ptr().expose_provenance() as u64
    }

    /// Returns all bytes, with the margins.
    fn all(&self) -> &[u8] {
        // SAFETY: the value owns the memory; no load writes any more.
        unsafe { self.memory.as_ref() }
    }

    pub(crate) fn assert_is(&self, bytes: &[u8]) {
        let all = self.all();
        assert!(all[MARGIN..MARGIN + self.len] == *bytes, "wrong bytes");
        let mut margins = all[..MARGIN].iter().chain(&all[MARGIN + self.len..]);
        assert!(
            margins.all(|byte| *byte == UNTOUCHED),
            "a byte beside the target was written"
        );
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some((_, stub)) = self.device {
            stub.disown(self.memory.as_ptr().cast());
        }
        // SAFETY: leaked in `new`, and dropped once.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

/// Targets on all devices, small and large, beside tensors that have none.
#[test]
fn targets_are_filled_and_margins_untouched() {
    let cuda = cuda();
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut files = Files::new();
        for shard in 0..=rng.index(3) {
            files.mixed(&shard.to_string(), &mut rng, 30, MIB);
        }
        cuda.stub.set("copy_delay_us", rng.pick(&["0", "150"]));
        let places = [None, Some(0), Some(1)];
        let lent: Vec<_> = files
            .contents
            .iter()
            .filter(|(_, bytes)| !bytes.is_empty())
            .filter_map(|(name, bytes)| {
                let device = rng.pick(&places);
                let wanted = !rng.once_in(3);
                wanted.then(|| (name.clone(), Lent::new(&cuda, bytes.len(), device)))
            })
            .collect();
        let options = options(|it| {
            it.order = rng.pick(&[Order::Ready, Order::File]);
            it.lanes = Some(1 + rng.index(3));
            it.extent_bytes = rng.pick(&[None, Some(100_000)]);
            it.memory_limit = rng.pick(&[None, Some(3 * MIB as u64)]);
        });
        let loader = files
            .loader()
            .device(rng.pick(&[Device::Cpu, Device::Cuda(0)]))
            .options(options)
            .targets(
                lent.iter()
                    .map(|(name, lent)| (name.clone(), lent.target())),
            );
        let (tensors, _) = load(&loader).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        files.assert_all(&tensors);
        for (name, lent) in &lent {
            lent.assert_is(&files.contents[name]);
            let mut named = tensors.iter().filter(|tensor| tensor.name() == name);
            let tensor = named.next().expect("the tensor arrived");
            assert!(tensor.target().is_some(), "{name} is not in its target");
        }
        drop(tensors);
        drop(loader);
        for (name, lent) in &lent {
            assert_eq!(Arc::strong_count(lent), 1, "{name} is still in use");
        }
    }
}

/// Only host memory of the caller: no GPU is used.
#[test]
fn host_targets_need_no_gpu() {
    let cuda = cuda();
    let files = Files::even(1, 20, 300_000);
    let lent: Vec<_> = files
        .contents
        .iter()
        .map(|(name, bytes)| (name.clone(), Lent::new(&cuda, bytes.len(), None)))
        .collect();
    let targets = lent
        .iter()
        .map(|(name, lent)| (name.clone(), lent.target()));
    let (_, report) = load(&files.loader().targets(targets)).expect("loads");
    for (name, lent) in &lent {
        lent.assert_is(&files.contents[name]);
    }
    assert_eq!(report.copied_bytes, files.total());
    let staging = report.staging.expect("staged");
    assert_eq!((staging.pinned_bytes, staging.refusal), (0, None));
    assert_eq!(report.devices, []);
    assert_eq!(cuda.stub.count("cuDevicePrimaryCtxRetain"), 0);
}

#[test]
fn target_of_wrong_length_is_rejected_before_any_write() {
    let cuda = cuda();
    let files = Files::even(2, 3, 1000);
    for (len, device) in [(999, None), (1001, Some(0)), (0, Some(1))] {
        let good = Lent::new(&cuda, 1000, device);
        let bad = Lent::new(&cuda, len, device);
        let loader = files.loader().targets([
            ("t0".to_owned(), good.target()),
            ("t1".to_owned(), bad.target()),
        ]);
        let error = failure(loader.stream());
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert_eq!(error.tensor(), Some("t1"));
        let text = error.message();
        assert!(text.contains(&format!("{len} bytes")), "{text}");
        drop(loader);
        good.assert_is(&[UNTOUCHED; 1000]);
    }
}

/// A load that fails half-way releases the caller's memory: no copy writes to it any more.
#[test]
fn failed_load_releases_targets() {
    let cuda = cuda();
    let files = Files::even(3, 8, MIB);
    for (fault, delay) in [("cuMemcpyHtoDAsync_v2:1:5:1", "500"), ("", "3000")] {
        cuda.stub.set("copy_delay_us", delay);
        cuda.stub.set("fail", fault);
        let lent: Vec<_> = files
            .contents
            .iter()
            .map(|(name, bytes)| (name.clone(), Lent::new(&cuda, bytes.len(), Some(0))))
            .collect();
        let targets = lent
            .iter()
            .map(|(name, lent)| (name.clone(), lent.target()));
        let options = options(|it| it.extent_bytes = Some(200_000));
        let loader = files.loader().targets(targets).options(options);
        let mut stream = loader.stream().expect("starts");
        if fault.is_empty() {
            // While copies run.
            let _ = stream.next();
            stream.cancel();
        }
        let ended = stream.by_ref().find_map(Result::err).expect("fails");
        assert!(matches!(
            ended.kind(),
            ErrorKind::Device | ErrorKind::Cancelled
        ));
        drop((stream, loader));
        cuda.assert_nothing_left();
        // Disowned here: a violation if a copy were still to run.
        drop(lent);
        cuda.assert_in_order();
        cuda.stub.reset();
    }
}

#[test]
fn receivers_are_filled() {
    let cuda = cuda();
    let mut files = Files::new();
    files.mixed("0", &mut Rng::new(4), 40, 200_000);
    let infos = files.loader().selected().expect("all of them");
    let mut lent = Vec::new();
    let receivers: Vec<_> = infos
        .iter()
        .enumerate()
        .map(|(index, info)| {
            let len = usize::try_from(info.byte_len()).expect("small");
            let device = [None, Some(0), Some(1)][index % 3];
            let memory = (len > 0 && index % 5 > 0).then(|| {
                let memory = Lent::new(&cuda, len, device);
                lent.push((info.name().to_owned(), Arc::clone(&memory)));
                memory.target()
            });
            LoadTarget {
                name: info.name().to_owned(),
                dtype: Some(info.dtype()),
                shape: info.shape().to_vec(),
                device: device.map_or(Device::Cpu, |ordinal| {
                    Device::Cuda(usize::try_from(ordinal).expect("small"))
                }),
                memory,
                layout: None,
            }
        })
        .collect();
    let devices: Vec<_> = receivers
        .iter()
        .map(|it| (it.name.clone(), it.device))
        .collect();
    let loader: Loader = files
        .loader()
        .into_targets(receivers, LoadTargetRules::default())
        .expect("all receivers match");
    let (tensors, _) = load(&loader).expect("loads");
    files.assert_all(&tensors);
    for (name, lent) in &lent {
        lent.assert_is(&files.contents[name]);
    }
    for (name, device) in devices {
        let mut named = tensors.iter().filter(|tensor| tensor.name() == name);
        let tensor = named.next().expect("the tensor arrived");
        let on = tensor.ordinal().map_or(Device::Cpu, Device::Cuda);
        assert!(tensor.byte_len() == 0 || on == device, "{name} on {on}");
    }
}

/// Some tensors of a device have targets there, the others get memory of the load.
#[test]
fn device_mixes_targets_and_own_memory() {
    let cuda = cuda();
    let files = Files::even(5, 10, 300_000);
    let lent = Lent::new(&cuda, 300_000, Some(0));
    let loader = files
        .loader()
        .device(Device::Cuda(0))
        .targets([("t3".to_owned(), lent.target())]);
    let selected = loader.clone().select(Selection::names(["t3", "t4"]));
    let (tensors, _) = load(&selected).expect("loads");
    assert_eq!(tensors.len(), 2);
    for tensor in &tensors {
        assert!(bytes(tensor) == files.contents[tensor.name()]);
    }
    let (tensors, report) = load(&loader).expect("loads");
    files.assert_all(&tensors);
    let copied: u64 = report.devices.iter().map(|it| it.copied_bytes).sum();
    assert_eq!(copied, files.total());
}

/// The caller's stream still writes to the memory when the load begins; the load's copies must come
/// after those writes.
#[test]
fn copies_wait_for_writes_in_caller_stream() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "3000");
    let files = Files::even(6, 3, MIB);
    for lanes in [1, 2] {
        let stream = foreign::Stream::new(1);
        let lent: Vec<_> = files
            .contents
            .iter()
            .map(|(name, bytes)| (name.clone(), Lent::new(&cuda, bytes.len(), Some(1))))
            .collect();
        for (_, lent) in &lent {
            stream.dally(lent.address());
            stream.fill(lent.address(), lent.len);
        }
        let targets = lent
            .iter()
            .map(|(name, lent)| (name.clone(), lent.target_behind(stream.raw)));
        let options = options(|it| it.lanes = Some(lanes));
        let loader = files.loader().targets(targets).options(options);
        load(&loader).expect("loads");
        drop((loader, stream));
        for (name, lent) in &lent {
            lent.assert_is(&files.contents[name]);
        }
    }
}

/// A cancelled load ends at once, while reads and copies are in flight. From then on the memory is
/// the caller's again.
#[test]
fn targets_are_not_written_after_stream_end() {
    let cuda = cuda();
    let files = Files::even(3, 24, MIB);
    for (round, device) in [None, Some(0), Some(1)]
        .into_iter()
        .cycle()
        .take(30)
        .enumerate()
    {
        cuda.stub.set("copy_delay_us", "500");
        let lent: Vec<_> = files
            .contents
            .keys()
            .map(|name| (name.clone(), Lent::new(&cuda, MIB, device)))
            .collect();
        let targets = lent
            .iter()
            .map(|(name, lent)| (name.clone(), lent.target()));
        let options = options(|it| {
            it.extent_bytes = Some(100_000);
            it.lanes = Some(1 + round % 3);
        });
        let loader = files.loader().targets(targets).options(options);
        let mut stream = loader.stream().expect("starts");
        for _ in 0..round % 8 {
            stream.next().expect("one of 24 tensors").expect("loads");
        }
        stream.cancel();
        let last = stream.by_ref().last().expect("an error");
        assert_eq!(last.expect_err("cancelled").kind(), ErrorKind::Cancelled);
        for (_, lent) in &lent {
            // SAFETY: the stream has ended, so the memory is the test's again.
            unsafe { lent.start().write_bytes(0xAA, MIB) };
        }
        drop(stream);
        cuda.stub.set("copy_delay_us", "0");
        drop(loader);
        for (_, lent) in &lent {
            lent.assert_is(&vec![0xAA; MIB]);
        }
    }
}
