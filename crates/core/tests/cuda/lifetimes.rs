//! Memory that the caller drops, at any time and on any thread, is freed after the caller's own use
//! of it.

#![expect(unsafe_code, reason = "submits work that uses memory of a load")]

use std::time::Instant;

use tload::internal::cuda::Context;
use tload::{Device, DeviceMap, ErrorKind, Order};

use crate::fixtures::{Files, MIB, failure, load, options, separate};
use crate::foreign::Stream;
use crate::stub::{PATIENCE, bytes, cuda};

/// A caller's stream may still use a tensor that is dropped on the host: its memory is freed after
/// that use.
#[test]
fn memory_is_freed_after_queued_caller_work() {
    let cuda = cuda();
    let files = Files::even(1, 3, MIB);
    let (tensors, _) = load(&files.loader().device(Device::Cuda(0))).expect("loads");
    let context = Context::open(0).expect("the stub has GPU 0");
    let fill: extern "C" fn(u64, u8, usize, u64) -> u32 = {
        let address = cuda
            .stub
            .symbol("cuMemsetD8Async")
            .expect("the stub has it");
        // SAFETY: the type that CUDA's manual gives for this name.
        unsafe { std::mem::transmute_copy(&address) }
    };
    {
        let _bound = context.bind().expect("a context");
        let address = tensors[0].as_ptr().addr() as u64;
        assert_eq!(fill(address, 0, MIB, 0), 0);
    }
    // A violation unless the free is ordered behind the work above.
    drop(tensors);
    cuda.assert_in_order();
    context.synchronize().expect("the context is not lost");
}

/// A stream of another GPU may still copy from a tensor that is dropped on the host: its memory is
/// freed after that copy, too.
#[test]
fn memory_is_freed_after_queued_peer_copies() {
    let cuda = cuda();
    let files = Files::even(1, 3, MIB);
    // A driver since 12.5, an older one, and one whose devices have no pools.
    for (key, value) in [
        ("missing", ""),
        ("missing", "cuCtxRecordEvent"),
        ("fail", "cuDeviceGetAttribute:1"),
    ] {
        cuda.stub.set("missing", "");
        cuda.stub.set(key, value);
        let (tensors, _) = load(&files.loader().device(Device::Cuda(0))).expect("loads");
        let peer = Stream::new(1);
        let copy = peer.allocate(MIB).expect("room");
        peer.dally(copy);
        peer.copy(copy, tensors[0].as_ptr().addr() as u64, MIB);
        drop(tensors);
        cuda.assert_in_order();
        peer.free(copy);
        drop(peer);
        assert_eq!(cuda.stub.live("allocations"), 0);
        tload::release_staging();
        assert_eq!(
            cuda.stub.live("contexts"),
            0,
            "no context is kept or created"
        );
    }
}

/// A full device gets room when the GPU is done with memory that was dropped, which may be late:
/// only the lane that needs it waits for that.
#[test]
fn wait_for_freed_memory_blocks_no_caller() {
    let cuda = cuda();
    for is_cancelled in [true, false] {
        let small = Files::even(1, 1, MIB);
        let (before, _) = load(&small.loader().device(Device::Cuda(0))).expect("loads");
        let other = Stream::new(0);
        let busy = other.allocate(MIB).expect("room");
        cuda.stub.set("memory", &(4 * MIB).to_string());
        let files = Files::even(2, 8, MIB);
        let options = options(|it| it.device_memory_limit = Some(2 * MIB as u64));
        let loader = files.loader().device(Device::Cuda(0)).options(options);
        let mut stream = loader.stream().expect("starts");
        wait_until(|| stream.report().devices[0].copied_bytes == 2 * MIB as u64);
        // Until the setting changes again.
        cuda.stub.set("copy_delay_us", "3600000000");
        other.dally(busy);
        drop(before);
        let tried = || cuda.stub.count("cuMemAllocAsync");
        let tried_before = tried();
        let first = stream.next().expect("two are there").expect("loads");
        wait_until(|| tried() > tried_before);
        let canceller = stream.canceller();
        let (sender, answered) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if is_cancelled {
                canceller.cancel();
            }
            drop(canceller);
            let _ = stream.report();
            sender.send(stream)
        });
        let stream = answered.recv_timeout(PATIENCE);
        let mut stream = stream
            .inspect_err(|_| cuda.stub.set("copy_delay_us", "0"))
            .expect("answers");
        if is_cancelled {
            let error = stream.find_map(Result::err).expect("was cancelled");
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", error.chain());
        }
        // Room for a tensor that has been received and is not dropped yet.
        drop(first);
        cuda.stub.set("copy_delay_us", "0");
        assert_eq!(stream.flatten().count(), if is_cancelled { 0 } else { 7 });
        other.free(busy);
        drop(other);
        cuda.stub.set("memory", "1073741824");
    }
}

/// Two lanes and two full GPUs: each lane waits for the GPU whose memory it needs, and for the
/// other one afterwards.
#[test]
fn wait_for_freed_memory_is_that_of_its_gpu() {
    let cuda = cuda();
    // Cancelled while both lanes wait for the first GPU, or for the second one; or not at all.
    for cancelled_at in [Some(0), Some(1), None] {
        let small = Files::even(1, 1, MIB);
        let before = |ordinal| {
            let loaded = load(&small.loader().device(Device::Cuda(ordinal)));
            loaded.expect("loads").0
        };
        let before = [before(0), before(1)];
        let others = [Stream::new(0), Stream::new(1)];
        let busy = [&others[0], &others[1]].map(|other| other.allocate(MIB).expect("room"));
        cuda.stub.set("memory", &(3 * MIB).to_string());
        let files = Files::even(2, 4, MIB);
        let rules = [("t[02]", Device::Cuda(0)), ("t[13]", Device::Cuda(1))];
        let options = options(|it| {
            it.device_memory_limit = Some(MIB as u64);
            it.lanes = Some(2);
            it.order = Order::File;
        });
        let rules = DeviceMap::new(rules).expect("globs");
        let loader = files.loader().device_map(rules).options(options);
        let mut stream = loader.stream().expect("starts");
        wait_until(|| {
            let devices = stream.report().devices;
            devices.iter().all(|it| it.copied_bytes == MIB as u64) && devices.len() == 2
        });
        // The first GPU's memory is freed without the second one, and not the other way round.
        let stalled = ["0", "0,1"];
        for (((ordinal, other), before), busy) in others.iter().enumerate().zip(before).zip(busy) {
            cuda.stub.set("stalled", stalled[ordinal]);
            other.dally(busy);
            drop(before);
        }
        let tried = || cuda.stub.count("cuMemAllocAsync");
        let mut tried_before = tried();
        let mut held: Vec<_> = stream.by_ref().take(2).collect();
        // Both lanes try; then one gets memory, and both try again.
        for (ordinal, (stalled, tries)) in [("1", 2), ("", 3)].into_iter().enumerate() {
            wait_until(|| tried() >= tried_before + tries);
            if cancelled_at == Some(ordinal) {
                stream.canceller().cancel();
                let error = stream
                    .by_ref()
                    .find_map(Result::err)
                    .expect("was cancelled");
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", error.chain());
                break;
            }
            tried_before = tried();
            cuda.stub.set("stalled", stalled);
        }
        cuda.stub.set("stalled", "");
        held.extend(stream);
        let tensors: Vec<_> = held.into_iter().map(|it| it.expect("loads")).collect();
        let names: Vec<_> = tensors.iter().map(tload::Tensor::name).collect();
        let count = if cancelled_at.is_some() { 2 } else { 4 };
        assert_eq!(names, ["t0", "t1", "t2", "t3"][..count], "{cancelled_at:?}");
        drop(tensors);
        for (other, busy) in others.iter().zip(busy) {
            other.free(busy);
        }
        drop(others);
        cuda.stub.set("memory", "1073741824");
    }
}

fn wait_until(is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        tload_testbed::pause_between_looks();
    }
}

/// A lost GPU copies nothing, so it does not delay the release of another GPU's memory.
#[test]
fn memory_is_freed_if_another_gpu_is_lost() {
    let cuda = cuda();
    let files = Files::even(1, 3, MIB);
    let loader = files.loader().device(Device::Cuda(0)).options(separate());
    let (tensors, _) = load(&loader).expect("loads");
    let lost = Context::open(1).expect("the stub has GPU 1");
    cuda.stub.set("fail", "copy:719");
    let error = failure(files.loader().device(Device::Cuda(1)).stream());
    assert!(lost.is_lost(&error), "{error}");
    cuda.stub.set("fail", "");
    let live = cuda.stub.live("allocations");
    drop(tensors);
    assert_eq!(cuda.stub.live("allocations"), live - 3);
    drop(lost);
    cuda.recover();
}

/// Memory that cannot be freed when it is dropped (for example during a graph capture) is freed
/// later, possibly by another load: contexts that have other users keep their memory.
#[test]
fn memory_not_freed_on_drop_is_freed_by_later_load() {
    let cuda = cuda();
    let files = Files::even(2, 3, MIB);
    let other = Context::open(0).expect("the stub has GPU 0");
    let loader = files.loader().device(Device::Cuda(0)).options(separate());
    for fault in ["cuMemFreeAsync:800", "cuEventCreate:800"] {
        let (tensors, _) = load(&loader).expect("loads");
        cuda.stub.set("fail", fault);
        drop(tensors);
        assert_eq!(cuda.stub.live("allocations"), 3, "{fault}");
        cuda.stub.set("fail", "");
        let (tensors, _) = load(&loader).expect("loads");
        files.assert_all(&tensors);
        assert_eq!(cuda.stub.live("allocations"), 3, "{fault}");
        drop(tensors);
        assert_eq!(cuda.stub.live("allocations"), 0, "{fault}");
    }
    drop(other);
}

/// If the driver cannot record the context, the drop waits for the device.
#[test]
fn memory_is_freed_if_context_cannot_be_recorded() {
    let cuda = cuda();
    let files = Files::even(2, 3, MIB);
    let (tensors, _) = load(&files.loader().device(Device::Cuda(0))).expect("loads");
    cuda.stub.set("fail", "cuCtxRecordEvent:801");
    drop(tensors);
    assert_eq!(cuda.stub.live("allocations"), 0);
}

/// While another thread captures a graph, calls of tload must neither fail nor disturb it; calls
/// that would are deferred.
#[test]
fn load_survives_graph_capture_on_another_thread() {
    let cuda = cuda();
    let files = Files::even(2, 6, MIB);
    let loader = files.loader().device(Device::Cuda(0));
    let (before, _) = load(&loader).expect("loads");
    cuda.stub.set("capturing", "1");
    let (tensors, _) = load(&loader).expect("loads during the capture");
    files.assert_all(&tensors);
    drop(before);
    cuda.stub.set("capturing", "0");
    drop(tensors);
    let (again, _) = load(&loader).expect("loads");
    drop(again);
    assert_eq!(
        cuda.stub.live("allocations"),
        0,
        "deferred frees are not lost"
    );
}

/// A tensor keeps its context alive when the loader, the stream and all staging memory are gone.
#[test]
fn tensor_keeps_its_bytes_after_load_is_dropped() {
    let cuda = cuda();
    let files = Files::even(3, 1, MIB);
    let loader = files.loader().device(Device::Cuda(1));
    let (tensors, _) = load(&loader).expect("loads");
    drop(loader);
    tload::release_staging();
    assert_eq!(cuda.stub.live("registrations"), 0);
    assert!(bytes(&tensors[0]) == files.contents["t0"]);
    let clone = tensors[0].clone();
    drop(tensors);
    std::thread::spawn(move || drop(clone))
        .join()
        .expect("drops on any thread");
    assert_eq!(cuda.stub.live("allocations"), 0);
    assert_eq!(cuda.stub.live("contexts"), 0);
}
