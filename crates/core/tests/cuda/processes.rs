//! Tests that need a process of their own: lookup of the driver, `fork`, and leaks of many loads.

#![expect(unsafe_code, reason = "forks")]

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tload::{Device, Error, ErrorKind, Loader, Order, Target};
use tload_cuda_stub::Stub;
use tload_testing::fixtures::Rng;

use crate::fixtures::{Files, MIB, failure, load, options};

/// Marks the second process of a test.
const MARK: &str = "TLOAD_TEST_ALONE";

/// Runs `body` in a process of its own that looks for libraries in `libraries`: it executes the
/// test `name` of this file again.
fn alone(name: &str, libraries: &Path, set: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(MARK).is_some() {
        body();
        return;
    }
    let this = std::env::current_exe().expect("a process knows its executable");
    let test = format!("processes::{name}");
    let output = Command::new(this)
        .args(["--exact", &test, "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .env("LD_LIBRARY_PATH", OsString::from(libraries))
        .envs(set.iter().copied())
        .output()
        .expect("starts");
    let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (printed(&output.stdout), printed(&output.stderr));
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{out}\n{err}"
    );
}

fn refused() -> Error {
    let files = Files::even(1, 2, 1000);
    let error = failure(files.loader().device(Device::Cuda(0)).stream());
    // Without a GPU, loads to the host still work.
    let (tensors, _) = load(&files.loader()).expect("loads");
    files.assert_all(&tensors);
    error
}

#[test]
fn driver_is_found_in_library_path() {
    let folder = tload_cuda_stub::folder();
    alone(
        "driver_is_found_in_library_path",
        folder.path(),
        &[],
        || {
            let facts = tload::internal::cuda::driver().expect("found");
            assert_eq!((facts.version, facts.devices), (12_080, 2));
            let files = Files::even(1, 10, MIB);
            let (tensors, report) = load(&files.loader().device(Device::Cuda(1))).expect("loads");
            files.assert_all(&tensors);
            assert_eq!(report.devices[0].copied_bytes, files.total());
        },
    );
}

/// Many systems have only `libcuda.so.1`.
#[test]
fn driver_is_found_without_unversioned_name() {
    let folder = tload_cuda_stub::folder();
    std::fs::remove_file(folder.path().join("libcuda.so")).expect("the stub was there");
    alone(
        "driver_is_found_without_unversioned_name",
        folder.path(),
        &[],
        || {
            assert!(tload::internal::cuda::driver().is_ok());
            let files = Files::even(1, 2, 1000);
            let (tensors, _) = load(&files.loader().device(Device::Cuda(0))).expect("loads");
            files.assert_all(&tensors);
        },
    );
}

#[test]
fn missing_driver_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    alone("missing_driver_is_reported", folder.path(), &[], || {
        if Path::new("/proc/driver/nvidia/version").exists() {
            // This machine has a driver of its own.
            return;
        }
        let error = refused();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.message().contains("no CUDA driver was found"),
            "{error}"
        );
        assert!(error.hint().is_some_and(|it| it.contains("device=cpu")));
    });
}

/// The file is not even a library.
#[test]
fn broken_driver_library_is_unsupported() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.path().join(name), "not a library").expect("a temporary folder");
    }
    alone(
        "broken_driver_library_is_unsupported",
        folder.path(),
        &[],
        || {
            let error = refused();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.chain());
        },
    );
}

#[test]
fn driver_without_gpus_is_reported() {
    let folder = tload_cuda_stub::folder();
    let set = [("TLOAD_CUDA_STUB_DEVICES", "0")];
    alone(
        "driver_without_gpus_is_reported",
        folder.path(),
        &set,
        || {
            let error = refused();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(error.message(), "the CUDA driver finds no GPU");
            assert!(
                error
                    .hint()
                    .is_some_and(|it| it.contains("CUDA_VISIBLE_DEVICES"))
            );
            // The failure is not cached.
            Stub::load().set("devices", "1");
            let files = Files::even(1, 2, 1000);
            let (tensors, _) = load(&files.loader().device(Device::Cuda(0))).expect("loads");
            files.assert_all(&tensors);
        },
    );
}

#[test]
fn toolkit_stub_is_not_mistaken_for_driver() {
    let folder = tload_cuda_stub::folder();
    let set = [("TLOAD_CUDA_STUB_STUB_LIBRARY", "1")];
    alone(
        "toolkit_stub_is_not_mistaken_for_driver",
        folder.path(),
        &set,
        || {
            let error = refused();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains("toolkit's stub"), "{error}");
            assert!(
                error
                    .hint()
                    .is_some_and(|it| it.contains("LD_LIBRARY_PATH"))
            );
        },
    );
}

/// Drivers older than 12.5 cannot record a whole context: frees wait for the device. Those older
/// than 12.8 have no batches.
#[test]
fn older_driver_frees_in_order_and_copies_singly() {
    let folder = tload_cuda_stub::folder();
    let set = [("TLOAD_CUDA_STUB_VERSION", "12040")];
    alone(
        "older_driver_frees_in_order_and_copies_singly",
        folder.path(),
        &set,
        || {
            let stub = Stub::load();
            let files = Files::of_lengths(4, &[50_001; 60]);
            let options = options(|it| it.trial.batch = true);
            let loader = files.loader().device(Device::Cuda(0)).options(options);
            let (tensors, report) = load(&loader).expect("loads");
            files.assert_all(&tensors);
            assert!(report.devices[0].copy_seconds >= 0.0);
            assert_eq!(stub.count("cuMemcpyHtoDAsync_v2"), 60);
            drop(tensors);
            tload::release_staging();
            assert_eq!(stub.live("allocations"), 0);
            let newer = ["cuCtxRecordEvent", "cuMemcpyBatchAsync"];
            assert_eq!(newer.map(|function| stub.count(function)), [0, 0]);
            assert_eq!(stub.count("violations"), 0, "{}", stub.last_violation());
        },
    );
}

#[test]
fn newer_driver_gets_batches_without_index() {
    let folder = tload_cuda_stub::folder();
    let set = [("TLOAD_CUDA_STUB_VERSION", "13000")];
    alone(
        "newer_driver_gets_batches_without_index",
        folder.path(),
        &set,
        || {
            let stub = Stub::load();
            let files = Files::of_lengths(5, &[50_001; 60]);
            let options = options(|it| it.trial.batch = true);
            let loader = files.loader().device(Device::Cuda(0)).options(options);
            let (tensors, _) = load(&loader).expect("loads");
            files.assert_all(&tensors);
            assert!(stub.count("cuMemcpyBatchAsync_v2") > 0);
            assert_eq!(stub.count("cuMemcpyBatchAsync"), 0);
            stub.set("fail", "batch_copy:1:2:1");
            let error = load(&loader).expect_err("a copy of the batch fails");
            assert!(error.chain().contains("INVALID_VALUE"), "{}", error.chain());
        },
    );
}

#[test]
fn old_driver_is_rejected_with_its_version() {
    let folder = tload_cuda_stub::folder();
    let set = [("TLOAD_CUDA_STUB_VERSION", "11030")];
    alone(
        "old_driver_is_rejected_with_its_version",
        folder.path(),
        &set,
        || {
            let error = refused();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains("CUDA 11.3"), "{error}");
            assert!(error.message().contains("11.4 or newer"), "{error}");
        },
    );
}

/// The error quotes the driver's own status.
#[test]
fn driver_initialization_failure_is_quoted() {
    let folder = tload_cuda_stub::folder();
    let set = [("TLOAD_CUDA_STUB_FAIL", "cuInit:803")];
    alone(
        "driver_initialization_failure_is_quoted",
        folder.path(),
        &set,
        || {
            let error = refused();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let text = error.chain();
            assert!(text.contains("SYSTEM_DRIVER_MISMATCH (803)"), "{text}");
        },
    );
}

/// A forked child gets an error; it neither hangs nor harms its parent.
#[test]
fn forked_child_gets_clear_error() {
    let folder = tload_cuda_stub::folder();
    alone("forked_child_gets_clear_error", folder.path(), &[], || {
        let files = Files::even(1, 6, MIB);
        let loader = files.loader().device(Device::Cuda(0));
        let (mut tensors, _) = load(&loader).expect("loads");
        // SAFETY: this process has no other thread that could hold a lock: lanes have ended,
        // and tests run one at a time.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let child = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let error = failure(loader.stream());
                assert_eq!(error.kind(), ErrorKind::Device, "{}", error.chain());
                let hint = error.hint().expect("has a hint");
                assert!(hint.contains("fork"), "{hint}");
                // The parent's memory cannot be freed here; the attempt has no effect.
                tensors.pop();
                assert_eq!(tload::release_staging(), 0, "the parent's memory stays");
                // Loads to the host still work.
                let (tensors, _) = load(&files.loader()).expect("loads");
                files.assert_all(&tensors);
            }));
            // SAFETY: ends the child without the destructors and exit handlers of its parent.
            unsafe { libc::_exit(i32::from(child.is_err())) };
        }
        assert_eq!(wait_for(child), 0, "the child's status");
        files.assert_all(&tensors);
        let (again, _) = load(&loader).expect("loads");
        files.assert_all(&again);
        assert_eq!(Stub::load().count("violations"), 0);
    });
}

/// Any lock may be held by a thread of the parent at the moment of the fork.
#[test]
fn forked_child_blocks_on_no_lock_of_parent_threads() {
    let folder = tload_cuda_stub::folder();
    let name = "forked_child_blocks_on_no_lock_of_parent_threads";
    alone(name, folder.path(), &[], || {
        let files = Files::even(1, 12, 50_000);
        let loader = files
            .loader()
            .options(options(|it| it.memory_limit = Some(MIB as u64)));
        // Allocates and frees staging memory with each load.
        let into = |loader: &Loader| {
            let mut memory: Vec<_> = files.contents.keys().map(|_| vec![0_u8; 50_000]).collect();
            let targets = files.contents.keys().zip(&mut memory).map(|(name, bytes)| {
                // SAFETY: the load ends before the memory is freed: it is complete, or its stream
                // is dropped.
                let target =
                    unsafe { Target::host(NonNull::from(&mut bytes[0]), bytes.len(), None) };
                (name.clone(), target)
            });
            let (tensors, _) = load(&loader.clone().targets(targets)).expect("loads");
            files.assert_all(&tensors);
        };
        let abandon = |loader: &Loader| {
            let mut stream = loader.stream().expect("starts");
            assert!(stream.next().is_some_and(|tensor| tensor.is_ok()));
            stream.cancel();
        };
        let (mut kept, _) = load(&loader).expect("loads");
        let is_over = AtomicBool::new(false);
        let again_and_again = |work: &dyn Fn()| {
            while !is_over.load(Ordering::Relaxed) {
                work();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| again_and_again(&|| into(&loader)));
            scope.spawn(|| again_and_again(&|| abandon(&loader)));
            for _ in 0..2 {
                scope.spawn(|| again_and_again(&|| _ = tload::release_staging()));
                scope.spawn(|| again_and_again(&|| _ = tload::orphaned_bytes()));
            }
            for _ in 0..60 {
                // SAFETY: the child uses only tload and the allocator, which handles forks, and
                // ends without running destructors.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let child = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        kept.clear();
                        tload::release_staging();
                        tload::orphaned_bytes();
                        abandon(&loader);
                        into(&loader);
                        let (tensors, _) = load(&loader).expect("loads");
                        files.assert_all(&tensors);
                        drop(loader.clone());
                        tload::release_staging();
                    }));
                    // SAFETY: ends the child without destructors and exit handlers of its parent.
                    unsafe { libc::_exit(i32::from(child.is_err())) };
                }
                let status = std::panic::catch_unwind(|| wait_for(child));
                // The threads must end whatever the result.
                is_over.store(
                    status.as_ref().map_or(true, |status| *status != 0),
                    Ordering::Relaxed,
                );
                assert_eq!(status.expect("the child ends"), 0, "the child's status");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        files.assert_all(&kept);
    });
}

/// Returns a child's status; kills a child that hangs.
fn wait_for(child: libc::pid_t) -> i32 {
    let started = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: `child` is a child of this process, and `status` a local variable.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        assert!(ended >= 0, "a child of this process");
        if ended == child {
            return status;
        }
        let hangs = started.elapsed() > crate::stub::PATIENCE;
        if hangs {
            // SAFETY: a child of this process that was not waited for yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        assert!(!hangs, "the child hangs");
        tload_testbed::pause_between_looks();
    }
}

/// Returns the number of open descriptors and of threads of this process.
fn counts() -> (usize, usize) {
    let entries = |folder| std::fs::read_dir(folder).expect("procfs").count();
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

/// Waits until the counts have fallen to `wanted` or the timeout has expired: the kernel tears
/// rings down asynchronously, and the stub's threads end by themselves.
fn settled(wanted: (usize, usize), patience: Duration) -> (usize, usize) {
    let started = Instant::now();
    loop {
        tload::release_staging();
        let now = counts();
        let over = started.elapsed() > patience;
        if (now.0 <= wanted.0 && now.1 <= wanted.1) || over {
            return now;
        }
        tload_testbed::pause_between_looks();
    }
}

#[test]
fn many_loads_leak_nothing() {
    let folder = tload_cuda_stub::folder();
    alone("many_loads_leak_nothing", folder.path(), &[], || {
        let stub = Stub::load();
        let mut files = Files::new();
        for shard in 0..2 {
            files.mixed(&shard.to_string(), &mut Rng::new(shard), 20, 300_000);
        }
        let mut rng = Rng::new(1);
        // Opens what the process opens once.
        (0..12).for_each(|_| one(stub, &files, &mut rng));
        let before = settled((0, 0), Duration::from_secs(5));
        (0..200).for_each(|_| one(stub, &files, &mut rng));
        let after = settled(before, crate::stub::PATIENCE);
        assert!(
            after.0 <= before.0 && after.1 <= before.1,
            "descriptors and threads: {before:?} before, {after:?} after"
        );
        for kind in [
            "allocations",
            "registrations",
            "streams",
            "events",
            "contexts",
            "threads",
        ] {
            assert_eq!(stub.live(kind), 0, "{kind}");
        }
        assert_eq!(stub.count("violations"), 0, "{}", stub.last_violation());
    });
}

/// Runs a load that completes, is cancelled, is dropped or fails.
fn one(stub: &Stub, files: &Files, rng: &mut Rng) {
    stub.set("copy_delay_us", rng.pick(&["0", "100"]));
    let call = rng.below(30) + 1;
    let fault = rng.pick(&["cuMemAllocAsync:2", "copy:719", "cuMemcpyHtoDAsync_v2:1"]);
    let fails = rng.once_in(3);
    if fails {
        stub.set("fail", &format!("{fault}:{call}:1"));
    }
    let options = options(|it| {
        it.lanes = Some(1 + rng.index(3));
        it.order = rng.pick(&[Order::Ready, Order::File]);
        it.memory_limit = rng.pick(&[None, Some(2 * MIB as u64)]);
        it.timeout = rng.once_in(3).then_some(Duration::from_secs(100));
    });
    let loader = files.loader().device(Device::Cuda(rng.index(2)));
    if let Ok(mut stream) = loader.options(options).stream() {
        let kept: Vec<_> = stream.by_ref().take(rng.index(50)).collect();
        match rng.below(3) {
            0 => stream.cancel(),
            1 => drop(stream),
            _ => assert!(fails || stream.all(|tensor| tensor.is_ok())),
        }
        drop(kept);
    }
    if fails {
        // A lost context is destroyed when its last user is gone.
        let started = Instant::now();
        while stub.live("contexts") > 0 && started.elapsed() < crate::stub::PATIENCE {
            tload::release_staging();
            tload_testbed::pause_between_looks();
        }
        stub.set("fail", "");
    }
}
