//! Loads that end early, with copies in flight: the right error, and no leaks.

use std::fs::OpenOptions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tload::{Device, EngineChoice, ErrorKind, LoadOptions, Loader, Order, Result};
use tload_testing::fixtures::Rng;

use crate::fixtures::{Files, MIB, options};
use crate::growing_timeouts::until_it_stalls;
use crate::stub::cuda;

/// Few slots, slow copies, several lanes: at any moment something is in flight everywhere.
fn tight(rng: &mut Rng) -> LoadOptions {
    options(|it| {
        it.engine = rng.pick(&[EngineChoice::Auto, EngineChoice::Pread]);
        it.lanes = Some(1 + rng.index(3));
        it.order = rng.pick(&[Order::Ready, Order::File]);
        it.extent_bytes = Some(200_000);
        it.memory_limit = Some(rng.pick(&[250_000, 900_000, 5_000_000]));
        it.device_memory_limit = Some(rng.pick(&[MIB, 3 * MIB, 64 * MIB]) as u64);
    })
}

fn loader(files: &Files, options: LoadOptions) -> Loader {
    files.loader().device(Device::Cuda(0)).options(options)
}

#[test]
fn cancellation_at_any_moment_leaks_nothing() {
    let cuda = cuda();
    let files = Files::even(1, 24, MIB);
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        cuda.stub
            .set("copy_delay_us", rng.pick(&["0", "100", "1000", "4000"]));
        let loader = loader(&files, tight(&mut rng));
        let mut stream = loader.stream().expect("starts");
        let canceller = stream.canceller();
        let received = rng.index(24);
        let read = rng.below(files.total());
        let kept: Vec<_> = stream.by_ref().take(received).collect();
        if rng.once_in(2) {
            // While reads are in flight.
            let wanted = read.min((kept.len() as u64 + 1) * MIB as u64);
            while stream.progress().bytes_read < wanted {
                std::thread::yield_now();
            }
        }
        canceller.cancel();
        let error = stream.find_map(Result::err).expect("was cancelled");
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", error.chain());
        assert_eq!(stream.report().outcome, "cancelled");
        drop((stream, loader));
        for tensor in kept {
            crate::fixtures::assert_same(&files.contents, &tensor.expect("loads"));
        }
        if rng.once_in(4) {
            cuda.assert_nothing_left();
        }
        cuda.assert_in_order();
    }
}

#[test]
fn drop_at_any_moment_on_any_thread_is_safe() {
    let cuda = cuda();
    let files = Files::even(2, 16, MIB);
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        cuda.stub
            .set("copy_delay_us", rng.pick(&["0", "300", "3000"]));
        let loader = loader(&files, tight(&mut rng));
        let mut stream = loader.stream().expect("starts");
        let kept: Vec<_> = stream.by_ref().take(rng.index(10)).collect();
        std::thread::spawn(move || drop((stream, loader)))
            .join()
            .expect("drops");
        for tensor in kept {
            crate::fixtures::assert_same(&files.contents, &tensor.expect("loads"));
        }
        cuda.assert_in_order();
    }
}

/// Moments are counted in copies submitted to the driver: before the first, after the last, and
/// between.
#[test]
fn end_at_any_copy_leaks_nothing() {
    let cuda = cuda();
    let files = Files::even(5, 24, 100_000);
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        cuda.stub
            .set("copy_delay_us", rng.pick(&["0", "20", "200", "2000"]));
        let copies = || cuda.stub.count("cuMemcpyHtoDAsync_v2").unsigned_abs();
        let more = rng.index(28);
        let at = copies() + more as u64;
        let has_come = || copies() >= at;
        let loader = loader(&files, tight(&mut rng));
        let mut stream = loader.stream().expect("starts");
        let mut kept = Vec::new();
        if rng.once_in(3) {
            let canceller = stream.canceller();
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !has_come() && !is_over.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    canceller.cancel();
                });
                for item in stream.by_ref() {
                    match item {
                        Ok(tensor) => kept.push(tensor),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled),
                    }
                }
                is_over.store(true, Ordering::SeqCst);
            });
            drop((stream, loader));
        } else {
            while !has_come() {
                match stream.wait(Duration::from_micros(50)) {
                    Poll::Pending => {}
                    Poll::Ready(None) => break,
                    Poll::Ready(Some(tensor)) => kept.push(tensor.expect("loads")),
                }
            }
            // A copy of 200,000 bytes and their edges completes at most three tensors; none was
            // taken after the moment.
            assert!(kept.len() <= 3 * more, "seed {seed}");
            let dropping = move || drop((stream, loader));
            if rng.once_in(2) {
                dropping();
            } else {
                std::thread::spawn(dropping).join().expect("drops");
            }
        }
        for tensor in kept {
            crate::fixtures::assert_same(&files.contents, &tensor);
        }
        cuda.assert_nothing_left();
        cuda.assert_in_order();
    }
}

/// Copies that take longer than a drop waits: the lanes end by themselves and keep their slots
/// until then.
#[test]
fn hanging_copies_do_not_block_drop() {
    let cuda = cuda();
    let files = Files::even(3, 8, MIB);
    cuda.stub.set("copy_delay_us", "60000000");
    let options = options(|it| it.memory_limit = Some(3 * MIB as u64));
    let loader = loader(&files, options);
    let stream = loader.stream().expect("starts");
    while cuda.stub.count("cuMemcpyHtoDAsync_v2") == 0 {
        tload_testbed::pause_between_looks();
    }
    drop((stream, loader));
    assert!(cuda.stub.live("allocations") > 0, "the copy still runs");
    assert_eq!(tload::release_staging(), 0, "the slots are still in use");
    // Lets the device continue.
    cuda.stub.set("copy_delay_us", "0");
    cuda.assert_nothing_left();
}

#[test]
fn load_exceeding_timeout_fails() {
    let cuda = cuda();
    let files = Files::even(4, 8, MIB);
    cuda.stub.set("copy_delay_us", "60000000");
    for lanes in [1, 3] {
        until_it_stalls(|timeout| {
            let options = options(|it| {
                it.lanes = Some(lanes);
                it.timeout = Some(timeout);
            });
            // Opening the files for the load may already exceed the timeout.
            let mut stream = loader(&files, options).stream().ok()?;
            let error = stream
                .next()
                .expect("an item before the end")
                .expect_err("too slow");
            assert_eq!(stream.report().outcome, "timed_out");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            let copies = "copies to GPU memory have not ended";
            error.message().contains(copies).then_some(())
        });
    }
    cuda.stub.set("copy_delay_us", "0");
}

/// Reading fails while earlier bytes are still being copied.
#[test]
fn shrinking_file_ends_load_with_copies_in_flight() {
    let cuda = cuda();
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let files = Files::even(seed, 24, MIB);
        cuda.stub
            .set("copy_delay_us", rng.pick(&["0", "500", "2000"]));
        let mut options = tight(&mut rng);
        options.device_memory_limit = Some(2 * MIB as u64);
        options.memory_limit = Some(900_000);
        let mut stream = loader(&files, options).stream().expect("starts");
        let first = stream
            .next()
            .expect("the first of 24 tensors")
            .expect("loads");
        let file = OpenOptions::new().write(true).open(files.file("0"));
        file.expect("writable")
            .set_len(12 * MIB as u64 + 777)
            .expect("writable");
        let error = stream
            .by_ref()
            .find_map(Result::err)
            .expect("the file was truncated");
        assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
        crate::fixtures::assert_same(&files.contents, &first);
        drop((stream, first));
        cuda.assert_nothing_left();
        cuda.assert_in_order();
    }
}
