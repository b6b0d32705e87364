//! Driver faults of any kind at any time: a typed error with a hint, no leaks, and the next load
//! works.

use tload::internal::Trial;
use tload::{Device, Error, ErrorKind, Order, Result};

use crate::fixtures::{Files, MIB, load, options};
use crate::stub::{Cuda, cuda};

/// Fault, with the error expected of it.
struct Wanted {
    /// Value of the stub's setting `fail`.
    fault: &'static str,
    kind: ErrorKind,
    message: &'static str,
    hint: &'static str,
    /// The driver's status, in the chain of causes.
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
        "cannot create a stream",
        FREE,
        "OUT_OF_MEMORY",
    ),
    wanted(
        "cuStreamCreate:2:2:1",
        ErrorKind::OutOfMemory,
        "cannot create a stream",
        FREE,
        "OUT_OF_MEMORY",
    ),
    wanted(
        "cuEventCreate:2:1:1",
        ErrorKind::OutOfMemory,
        "cannot create an event",
        FREE,
        "OUT_OF_MEMORY",
    ),
    wanted(
        "cuEventCreate:2:2:1",
        ErrorKind::OutOfMemory,
        "cannot create an event",
        FREE,
        "OUT_OF_MEMORY",
    ),
    wanted(
        "cuEventCreate:2:3:1",
        ErrorKind::OutOfMemory,
        "cannot create an event",
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

/// Faults of loads whose slots have several copies each, in batches.
const BATCHES: [Wanted; 7] = [
    wanted(
        "cuMemcpyBatchAsync:1:1:1",
        ErrorKind::Device,
        "to the GPU in",
        LOOK,
        "INVALID_VALUE",
    ),
    wanted(
        "cuMemcpyBatchAsync:719:4",
        ErrorKind::Device,
        "to the GPU in",
        LOST,
        "LAUNCH_FAILED (719)",
    ),
    // The first copies of a batch have been queued.
    wanted(
        "batch_copy:1:2:1",
        ErrorKind::Device,
        "to the GPU in",
        LOOK,
        "INVALID_VALUE",
    ),
    wanted(
        "batch_copy:999:11:1",
        ErrorKind::Device,
        "to the GPU in",
        LOOK,
        "UNKNOWN",
    ),
    wanted(
        "copy:719:1",
        ErrorKind::Device,
        "",
        LOST,
        "LAUNCH_FAILED (719)",
    ),
    wanted(
        "copy:700:20:1",
        ErrorKind::Device,
        "",
        LOST,
        "ILLEGAL_ADDRESS (700)",
    ),
    wanted(
        "cuEventRecord:999:6:1",
        ErrorKind::Device,
        "cannot record an event",
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

fn in_batches() -> Trial {
    Trial {
        batch: true,
        ..Trial::default()
    }
}

/// Tensors that cannot share a copy: several copies a slot.
fn scattered(seed: u64) -> Files {
    Files::of_lengths(seed, &[50_001; 120])
}

/// Loads all tensors through four slots, with some received and kept when the fault occurs.
/// Returns the error, if the load fails.
fn run(files: &Files, lanes: usize, order: Order, trial: Trial) -> Result<()> {
    let options = options(|it| {
        (it.lanes, it.order, it.trial) = (Some(lanes), order, trial);
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
    let (tensors, _) =
        load(&files.loader().device(Device::Cuda(0))).expect("loads after the fault");
    files.assert_all(&tensors);
    drop(tensors);
    cuda.recover();
}

#[test]
fn driver_faults_are_classified_and_leak_nothing() {
    assert_classified(&TABLE, &Files::even(1, 12, MIB), Trial::default());
}

#[test]
fn faults_of_batches_are_classified_and_leak_nothing() {
    assert_classified(&BATCHES, &scattered(5), in_batches());
}

fn assert_classified(table: &[Wanted], files: &Files, trial: Trial) {
    let cuda = cuda();
    for wanted in table {
        for (lanes, delay) in [(1, "0"), (2, "200")] {
            cuda.stub.set("copy_delay_us", delay);
            cuda.stub.set("fail", wanted.fault);
            let error = run(files, lanes, Order::Ready, trial).expect_err(wanted.fault);
            let text = error.chain();
            let name = wanted.fault;
            assert_eq!(error.kind(), wanted.kind, "{name}: {text}");
            assert!(error.message().contains(wanted.message), "{name}: {text}");
            assert!(text.contains(wanted.cause), "{name}: {text}");
            let hint = error.hint().expect("has a hint");
            assert!(hint.contains(wanted.hint), "{name}: {hint}");
            if wanted.fault.starts_with("cuMemAllocAsync:2") {
                assert!(error.tensor().is_some(), "{name}: {text}");
            }
            cuda.recover();
            assert_works(&cuda, files);
        }
    }
}

/// Every function that a load calls fails once, at each of its first calls: the load completes or
/// ends with an error, and never hangs, mixes up bytes or leaks.
#[test]
fn any_failing_driver_call_ends_load_cleanly() {
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
        "cuEventElapsedTime",
        "cuCtxRecordEvent",
        "cuMemHostRegister_v2",
        "cuDeviceGetAttribute",
        "cuDeviceGetPCIBusId",
    ];
    assert_ends_cleanly(&functions, &Files::even(2, 12, MIB), Trial::default());
    let functions = ["cuMemcpyBatchAsync", "batch_copy", "copy", "cuEventRecord"];
    assert_ends_cleanly(&functions, &scattered(6), in_batches());
}

fn assert_ends_cleanly(functions: &[&str], files: &Files, trial: Trial) {
    let cuda = cuda();
    for (turn, function) in functions.iter().enumerate() {
        for call in [1, 2, 3, 4, 5, 10, 17] {
            // Alternates.
            let (lanes, order) = [(1, Order::File), (3, Order::Ready)][(call + turn) % 2];
            cuda.stub.set("copy_delay_us", "30");
            cuda.stub.set("fail", &format!("{function}:999:{call}:1"));
            if let Err(error) = run(files, lanes, order, trial) {
                let text = error.chain();
                assert_eq!(error.kind(), ErrorKind::Device, "{function}: {text}");
                assert!(error.hint().is_some(), "{function}: {text}");
            }
            cuda.stub.set("fail", "");
            tload::release_staging();
            // Also frees memory whose release failed.
            assert_works(&cuda, files);
        }
    }
}

/// The device has less free memory than when the load began.
#[test]
fn memory_taken_during_load_is_out_of_memory_with_tensor() {
    let cuda = cuda();
    let files = Files::even(3, 12, MIB);
    let options = options(|it| it.device_memory_limit = Some(4 * MIB as u64));
    let loader = files.loader().device(Device::Cuda(1)).options(options);
    let mut stream = loader.stream().expect("starts");
    let first = stream
        .next()
        .expect("the first of 12 tensors")
        .expect("fits");
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

/// A lost context stays lost: the next load reports it and does not hang.
#[test]
fn lost_context_is_reported_by_later_loads() {
    let cuda = cuda();
    let files = Files::even(4, 12, MIB);
    // A second user keeps the context, so it outlives the load.
    let other = tload::internal::cuda::Context::open(0).expect("the stub has GPU 0");
    cuda.stub.set("fail", "copy:719:3:1");
    let trial = Trial::default();
    run(&files, 1, Order::Ready, trial).expect_err("lost");
    let error = run(&files, 1, Order::Ready, trial).expect_err("still lost");
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.hint().is_some_and(|hint| hint.contains(LOST)));
    // The other device still works.
    let (tensors, _) = load(&files.loader().device(Device::Cuda(1))).expect("loads");
    files.assert_all(&tensors);
    drop((tensors, other));
    cuda.recover();
    assert_works(&cuda, &files);
}
