//! Early start: what a thread prepares while the checkpoint is opened is used by the load, or freed
//! without one.

use tload::internal::EarlyStart;
use tload::{CacheMode, Device, ErrorKind, LoadOptions, Loader, Location, Selection};

use crate::fixtures::{Files, MIB, failure, load, options};
use crate::stub::cuda;

fn early_options(set: impl FnOnce(&mut LoadOptions)) -> LoadOptions {
    options(|it| {
        it.trial.early = true;
        set(it);
    })
}

fn begin(files: &Files, ordinals: &[usize], options: &LoadOptions) -> Option<EarlyStart> {
    EarlyStart::begin(ordinals, vec![Location::from(files.path())], options)
}

#[test]
fn load_takes_what_was_prepared() {
    let cuda = cuda();
    for lengths in [vec![3 * MIB + 77; 30], vec![5000; 40], vec![9 * MIB, 1, 70]] {
        tload::release_staging();
        cuda.stub.reset();
        let files = Files::of_lengths(1, &lengths);
        let options = early_options(|_| ());
        let early = begin(&files, &[1], &options).expect("begins");
        let loader = files.loader().device(Device::Cuda(1)).options(options);
        for reused in [false, true] {
            let (tensors, report) =
                load(&loader.clone().prepared_by(early.clone())).expect("loads");
            cuda.assert_in_order();
            files.assert_all(&tensors);
            let staging = report.staging.expect("bytes are staged");
            assert_eq!(staging.reused, reused, "by a load");
            assert_eq!(staging.pinned_bytes, staging.bytes);
            assert_eq!(cuda.stub.count("cuMemHostRegister_v2"), 1, "once");
        }
    }
}

#[test]
fn nothing_is_left_of_a_load_that_does_not_begin() {
    let cuda = cuda();
    let files = Files::even(1, 20, MIB);
    let options = early_options(|_| ());
    // Ended before, while and after it is prepared.
    for delay in ["0", "20000"] {
        cuda.stub.set("register_us_per_mib", delay);
        drop(begin(&files, &[0, 1], &options).expect("begins"));
        begin(&files, &[0], &options).expect("begins").end();
        let unknown = |loader: Loader| loader.select(Selection::names(["unknown"]));
        let too_small =
            |loader: Loader| loader.options(early_options(|it| it.device_memory_limit = Some(1)));
        let refusals: [(&dyn Fn(Loader) -> Loader, ErrorKind); 2] = [
            (&unknown, ErrorKind::NoSuchTensor),
            (&too_small, ErrorKind::OutOfMemory),
        ];
        for (refused, kind) in refusals {
            let early = begin(&files, &[0], &options).expect("begins");
            let loader = refused(files.loader().device(Device::Cuda(0)));
            let error = failure(loader.prepared_by(early).stream());
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(tload::release_staging(), 0, "nothing is kept");
        }
        cuda.assert_nothing_left();
    }
}

/// The errors of a load are the same, at the same place, whether it was prepared or not.
#[test]
fn failures_are_those_of_the_load() {
    let cuda = cuda();
    let files = Files::even(1, 20, MIB);
    for (fault, ordinal) in [
        ("cuDevicePrimaryCtxRetain:2", 0),
        ("cuDevicePrimaryCtxRetain:999", 0),
        ("cuMemAllocAsync:2", 0),
        ("", 7),
    ] {
        let outcome = |is_early: bool| {
            tload::release_staging();
            cuda.stub.reset();
            cuda.stub.set("fail", fault);
            let options = early_options(|_| ());
            let begun = is_early.then(|| begin(&files, &[ordinal], &options));
            let early = begun.flatten();
            let loader = files
                .loader()
                .device(Device::Cuda(ordinal))
                .options(options);
            let error = failure(match early {
                Some(early) => loader.prepared_by(early).stream(),
                None => loader.stream(),
            });
            cuda.assert_nothing_left();
            (error.kind(), error.to_string())
        };
        assert_eq!(outcome(true), outcome(false), "{fault}");
    }
    // A refusal to pin is no failure: the load tries again, and says why.
    cuda.stub.reset();
    cuda.stub.set("fail", "cuMemHostRegister_v2:2");
    let options = early_options(|_| ());
    let early = begin(&files, &[0], &options).expect("begins");
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let (tensors, report) = load(&loader.prepared_by(early)).expect("loads");
    files.assert_all(&tensors);
    let staging = report.staging.expect("bytes are staged");
    assert!(staging.refusal.is_some() && !staging.reused, "{staging:?}");
}

#[test]
fn memory_is_left_to_loads_with_limits() {
    let cuda = cuda();
    let files = Files::even(1, 20, MIB);
    let limited = early_options(|it| it.memory_limit = Some(3 << 20));
    let early = begin(&files, &[0], &limited).expect("contexts are opened");
    let loader = files.loader().device(Device::Cuda(0)).options(limited);
    let (tensors, report) = load(&loader.prepared_by(early)).expect("loads");
    files.assert_all(&tensors);
    assert!(report.staging.expect("bytes are staged").bytes <= 3 << 20);
    assert_eq!(cuda.stub.count("cuMemHostRegister_v2"), 1, "by the load");
    assert!(begin(&files, &[], &early_options(|_| ())).is_none());
    assert!(begin(&files, &[0], &options(|_| ())).is_none());
    let mapped = early_options(|it| it.cache = CacheMode::Map);
    assert!(begin(&files, &[0], &mapped).is_none(), "nothing is staged");
}
