//! Whatever the driver fails with, and whenever: a typed error that says what to do, nothing left, and the next load works.

use tload::{Device, Error, ErrorKind, Order, Result};

use crate::fixtures::{Files, MIB, load, options};
use crate::stub::{Cuda, cuda};

/// What a fault is to look like.
struct Wanted {
    /// As the stub's setting `fail` has it.
    fault: &'static str,
    kind: ErrorKind,
    message: &'static str,
    hint: &'static str,
    /// What the driver said.
    cause: &'static str,
}

const LOST: &str = "start a new process";
const LOOK: &str = "nvidia-smi";
const FREE: &str = "free memory of the GPU";

const TABLE: [Wanted; 21] = [
    wanted(
        "cuMemAllocAsync:2:1",
        ErrorKind::OutOfMemory,
        "cuda:0 has no room for",
        FREE,
        "",
    ),
    wanted(
        "cuMemAllocAsync:2:7",
        ErrorKind::OutOfMemory,
        "cuda:0 has no room for",
        FREE,
        "",
    ),
    wanted(
        "cuMemAllocAsync:999:3",
        ErrorKind::Device,
        "cannot allocate memory",
        LOOK,
        "UNKNOWN",
    ),
    wanted(
        "cuMemcpyHtoDAsync_v2:1:1:1",
        ErrorKind::Device,
        "to the GPU",
        LOOK,
        "INVALID_VALUE",
    ),
    wanted(
        "cuMemcpyHtoDAsync_v2:1:9:1",
        ErrorKind::Device,
        "to the GPU",
        LOOK,
        "INVALID_VALUE",
    ),
    wanted(
        "cuMemcpyHtoDAsync_v2:719:4",
        ErrorKind::Device,
        "to the GPU",
        LOST,
        "LAUNCH_FAILED (719)",
    ),
    wanted(
        "copy:719:1",
        ErrorKind::Device,
        "",
        LOST,
        "LAUNCH_FAILED (719)",
    ),
    wanted(
        "copy:700:8:1",
        ErrorKind::Device,
        "",
        LOST,
        "ILLEGAL_ADDRESS (700)",
    ),
    wanted(
        "copy:719:20:1",
        ErrorKind::Device,
        "",
        LOST,
        "LAUNCH_FAILED (719)",
    ),
    wanted(
        "cuStreamCreate:2:1:1",
        ErrorKind::OutOfMemory,
        "cannot make a stream",
        FREE,
        "OUT_OF_MEMORY",
    ),
    wanted(
        "cuStreamCreate:2:2:1",
        ErrorKind::OutOfMemory,
        "cannot make a stream",
        FREE,
        "OUT_OF_MEMORY",
    ),
    wanted(
        "cuEventCreate:2:1:1",
        ErrorKind::OutOfMemory,
        "cannot make an event",
        FREE,
        "OUT_OF_MEMORY",
    ),
    wanted(
        "cuEventCreate:2:2:1",
        ErrorKind::OutOfMemory,
        "cannot make an event",
        FREE,
        "OUT_OF_MEMORY",
    ),
    wanted(
        "cuEventCreate:2:3:1",
        ErrorKind::OutOfMemory,
        "cannot make an event",
        FREE,
        "OUT_OF_MEMORY",
    ),
    wanted(
        "cuEventRecord:999:2:1",
        ErrorKind::Device,
        "cannot record an event",
        LOOK,
        "UNKNOWN",
    ),
    wanted(
        "cuEventRecord:999:6:1",
        ErrorKind::Device,
        "cannot record an event",
        LOOK,
        "UNKNOWN",
    ),
    wanted(
        "cuEventQuery:999:5:1",
        ErrorKind::Device,
        "copying to the GPU failed",
        LOOK,
        "UNKNOWN",
    ),
    wanted(
        "cuDevicePrimaryCtxRetain:2:1:1",
        ErrorKind::OutOfMemory,
        "cannot use GPU cuda:0",
        FREE,
        "OUT_OF_MEMORY",
    ),
    wanted(
        "cuDevicePrimaryCtxRetain:802:1:1",
        ErrorKind::Device,
        "cannot use GPU cuda:0",
        LOOK,
        "SYSTEM_NOT_READY",
    ),
    wanted(
        "cuMemGetInfo_v2:999:1:1",
        ErrorKind::Device,
        "cannot query the free memory",
        LOOK,
        "UNKNOWN",
    ),
    wanted(
        "cuDeviceGetCount:999:1:1",
        ErrorKind::Device,
        "query the devices",
        LOOK,
        "UNKNOWN",
    ),
];

const fn wanted(
    fault: &'static str,
    kind: ErrorKind,
    message: &'static str,
    hint: &'static str,
    cause: &'static str,
) -> Wanted {
    Wanted {
        fault,
        kind,
        message,
        hint,
        cause,
    }
}

/// Twelve tensors by way of four slots, with some received and kept when the fault comes. The error, if it fails.
fn run(files: &Files, lanes: usize, order: Order) -> Result<()> {
    let options = options(|it| {
        (it.lanes, it.order) = (Some(lanes), order);
        it.extent_bytes = Some(300_000);
        it.memory_limit = Some(1_300_000);
        it.device_memory_limit = Some(3 * MIB as u64);
        it.timeout = Some(crate::stub::PATIENCE);
    });
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let mut stream = loader.stream()?;
    let mut kept = Vec::new();
    let mut ended: Option<Error> = None;
    for tensor in stream.by_ref() {
        match tensor {
            Ok(tensor) => {
                crate::fixtures::assert_same(&files.contents, &tensor);
                if kept.len() < 3 {
                    kept.push(tensor);
                }
            }
            Err(error) => ended = Some(error),
        }
    }
    for tensor in &kept {
        crate::fixtures::assert_same(&files.contents, tensor);
    }
    if let Some(error) = ended {
        assert_eq!(stream.report().outcome, error.kind().name());
        return Err(error);
    }
    Ok(())
}

fn assert_works(cuda: &Cuda, files: &Files) {
    let (tensors, _) = load(&files.loader().device(Device::Cuda(0))).expect("loads again");
    files.assert_all(&tensors);
    drop(tensors);
    cuda.recover();
}

#[test]
fn faults_are_told_apart_and_leave_nothing() {
    let cuda = cuda();
    let files = Files::even(1, 12, MIB);
    for wanted in &TABLE {
        for (lanes, delay) in [(1, "0"), (2, "200")] {
            cuda.stub.set("copy_delay_us", delay);
            cuda.stub.set("fail", wanted.fault);
            let error = run(&files, lanes, Order::Ready).expect_err(wanted.fault);
            let text = error.chain();
            let name = wanted.fault;
            assert_eq!(error.kind(), wanted.kind, "{name}: {text}");
            assert!(error.message().contains(wanted.message), "{name}: {text}");
            assert!(text.contains(wanted.cause), "{name}: {text}");
            let hint = error.hint().expect("says what to do");
            assert!(hint.contains(wanted.hint), "{name}: {hint}");
            if wanted.fault.starts_with("cuMemAllocAsync:2") {
                assert!(error.tensor().is_some(), "{name}: {text}");
            }
            cuda.recover();
            assert_works(&cuda, &files);
        }
    }
}

/// Every function that a load calls fails once, at every one of its first calls: the load ends well, or with an error, and never
/// hangs, mixes up bytes or leaves anything behind.
#[test]
fn any_call_may_fail_at_any_time() {
    let cuda = cuda();
    let files = Files::even(2, 12, MIB);
    let functions = [
        "cuMemAllocAsync",
        "cuMemFreeAsync",
        "cuMemcpyHtoDAsync_v2",
        "copy",
        "cuStreamCreate",
        "cuStreamWaitEvent",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuEventElapsedTime",
        "cuCtxRecordEvent",
        "cuMemHostRegister_v2",
        "cuDeviceGetAttribute",
        "cuDeviceGetPCIBusId",
    ];
    for (turn, function) in functions.into_iter().enumerate() {
        for call in [1, 2, 3, 4, 5, 10, 17] {
            // In turn.
            let (lanes, order) = [(1, Order::File), (3, Order::Ready)][(call + turn) % 2];
            cuda.stub.set("copy_delay_us", "30");
            cuda.stub.set("fail", &format!("{function}:999:{call}:1"));
            if let Err(error) = run(&files, lanes, order) {
                let text = error.chain();
                assert_eq!(error.kind(), ErrorKind::Device, "{function}: {text}");
                assert!(error.hint().is_some(), "{function}: {text}");
            }
            cuda.stub.set("fail", "");
            tload::release_staging();
            // Frees what could not be freed, too.
            assert_works(&cuda, &files);
        }
    }
}

/// The device has less than what was free when the load began.
#[test]
fn memory_that_others_take_meanwhile_is_missed_by_name() {
    let cuda = cuda();
    let files = Files::even(3, 12, MIB);
    let options = options(|it| it.device_memory_limit = Some(4 * MIB as u64));
    let loader = files.loader().device(Device::Cuda(1)).options(options);
    let mut stream = loader.stream().expect("starts");
    let first = stream.next().expect("there are 12").expect("has room");
    cuda.stub.set("busy", &(1 << 30).to_string());
    let error = stream.by_ref().find_map(Result::err).expect("no room");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let text = error.to_string();
    assert!(text.contains("cuda:1 has no room for 1.0 MiB"), "{text}");
    assert!(text.contains("0 B are free"), "{text}");
    assert!(error.tensor().is_some_and(|name| name.starts_with('t')));
    crate::fixtures::assert_same(&files.contents, &first);
    drop((first, stream));
    cuda.recover();
    assert_works(&cuda, &files);
}

/// A context that is lost stays lost: the next load says so, and does not hang.
#[test]
fn a_lost_context_is_told_to_every_later_load() {
    let cuda = cuda();
    let files = Files::even(4, 12, MIB);
    // Somebody else has the context too, so it outlives the load.
    let other = tload::cuda::Context::open(0).expect("there is one");
    cuda.stub.set("fail", "copy:719:3:1");
    run(&files, 1, Order::Ready).expect_err("lost");
    let error = run(&files, 1, Order::Ready).expect_err("still lost");
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.hint().is_some_and(|hint| hint.contains(LOST)));
    // The other device is well.
    let (tensors, _) = load(&files.loader().device(Device::Cuda(1))).expect("loads");
    files.assert_all(&tensors);
    drop((tensors, other));
    cuda.recover();
    assert_works(&cuda, &files);
}
