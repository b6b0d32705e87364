//! Several devices, and several concurrent loads.

use tload::{Device, DeviceMap, ErrorKind, Order};
use tload_testing::fixtures::Rng;

use crate::fixtures::{Files, MIB, failure, load, options};
use crate::stub::cuda;

#[test]
fn concurrent_loads_to_two_devices_succeed() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "100");
    let files = [Files::even(1, 20, MIB), Files::even(2, 20, MIB)];
    std::thread::scope(|scope| {
        for (ordinal, files) in files.iter().enumerate() {
            scope.spawn(move || {
                let loader = files.loader().device(Device::Cuda(ordinal));
                let (tensors, _) = load(&loader).expect("loads");
                files.assert_all(&tensors);
                assert!(tensors.iter().all(|it| it.ordinal() == Some(ordinal)));
            });
        }
    });
}

/// Some of the loads keep all tensors, some drop them at once, and one is dropped early.
#[test]
fn eight_concurrent_loads_succeed() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "50");
    let mut files = Files::new();
    for shard in 0..3 {
        files.mixed(&shard.to_string(), &mut Rng::new(shard), 30, MIB);
    }
    let loader = files.loader();
    for round in 0..3 {
        std::thread::scope(|scope| {
            for index in 0..8 {
                let (loader, files) = (loader.clone(), &files);
                scope.spawn(move || {
                    let options = options(|it| {
                        it.lanes = Some(1 + (index + round) % 3);
                        it.extent_bytes = Some(300_000);
                        it.memory_limit = [None, Some(MIB as u64)][index % 2];
                        it.device_memory_limit = [None, Some(3 * MIB as u64)][index / 2 % 2];
                    });
                    let loader = loader.device(Device::Cuda(index % 2)).options(options);
                    let mut stream = loader.stream().expect("starts");
                    if index == 5 {
                        let _ = stream.next();
                        return;
                    }
                    let tensors: Vec<_> = stream
                        .by_ref()
                        .map(|tensor| tensor.expect("loads"))
                        .collect();
                    files.assert_all(&tensors);
                });
            }
        });
        cuda.assert_in_order();
    }
}

#[test]
fn one_load_fills_two_devices_and_host() {
    let cuda = cuda();
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let mut files = Files::new();
        // Ensures that every pattern below matches a tensor.
        let lengths = [0, 100, 5000, 2 * MIB + 1];
        let tensors = (0..40)
            .map(|index| {
                let len = rng.pick(&lengths);
                (format!("t{index}"), tload::Dtype::U8, len, rng.bytes(len))
            })
            .collect();
        files.shard("0", tensors, None);
        let options = options(|it| {
            it.order = rng.pick(&[Order::Ready, Order::File]);
            it.lanes = Some(1 + rng.index(2));
            it.memory_limit = rng.pick(&[None, Some(4 * MIB as u64)]);
            it.device_memory_limit = rng.pick(&[None, Some(2 * MIB as u64 + 1)]);
            it.extent_bytes = Some(400_000);
        });
        let rules = [("*[036]", Device::Cuda(0)), ("*[1234]", Device::Cuda(1))];
        let rules = DeviceMap::new(rules).expect("globs");
        let loader = files.loader().device_map(rules).options(options.clone());
        let devices = loader.selected_devices().expect("all of them");
        let (tensors, report) = load(&loader).expect("loads");
        files.assert_all(&tensors);
        for (info, device) in loader.selected().expect("all").iter().zip(devices) {
            let mut named = tensors.iter().filter(|it| it.name() == info.name());
            let tensor = named.next().expect("every selected tensor arrived");
            let on = tensor.ordinal().map_or(Device::Cpu, Device::Cuda);
            assert!(tensor.byte_len() == 0 || on == device, "{tensor:?} on {on}");
        }
        assert_eq!(report.devices.len(), 2);
        let limit = options.memory_limit.unwrap_or(u64::MAX);
        assert!(report.memory_peak <= limit, "{report}");
        cuda.assert_in_order();
    }
}

#[test]
fn missing_device_is_rejected_with_visible_count() {
    let cuda = cuda();
    let files = Files::even(3, 2, 1000);
    for ordinal in [2, 99_999] {
        let error = failure(files.loader().device(Device::Cuda(ordinal)).stream());
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        let wanted =
            format!("there is no cuda:{ordinal}: this process sees 2 GPUs, cuda:0 to cuda:1");
        assert_eq!(error.message(), wanted);
        assert!(
            error
                .hint()
                .is_some_and(|it| it.contains("CUDA_VISIBLE_DEVICES"))
        );
    }
    cuda.stub.set("devices", "1");
    let error = failure(files.loader().device(Device::Cuda(1)).stream());
    assert!(error.message().contains("sees one GPU, cuda:0"), "{error}");
    // A valid device does not make up for an invalid one.
    let rules = DeviceMap::new([("t1", Device::Cuda(7))]).expect("a name");
    let error = failure(
        files
            .loader()
            .device(Device::Cuda(0))
            .device_map(rules)
            .stream(),
    );
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
}
