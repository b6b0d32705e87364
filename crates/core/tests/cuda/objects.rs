//! Objects loaded to a device: bytes from the network take the same path.

use std::sync::Arc;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use tload::{Checkpoint, Device, Loader, Order, StoreOptions};
use tload_testing::fixtures::Rng;

use crate::fixtures::{Files, MIB, load, options};
use crate::stub::cuda;

/// Puts the shards of `files` into an in-memory store.
#[expect(clippy::disallowed_methods, reason = "a test reads whole files")]
fn store(files: &Files, shards: usize) -> Arc<InMemory> {
    let store = Arc::new(InMemory::new());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    for shard in 0..shards {
        let bytes = std::fs::read(files.file(&shard.to_string())).expect("just written");
        let key = Path::parse(format!("m/{shard}.safetensors")).expect("a key");
        let put = store.put(&key, bytes.into());
        runtime.block_on(put).expect("puts in memory succeed");
    }
    store
}

#[test]
fn objects_load_to_device() {
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "100");
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let mut files = Files::new();
        let shards = 1 + rng.index(3);
        for shard in 0..shards {
            files.mixed(&shard.to_string(), &mut rng, 25, MIB);
        }
        let store = store(&files, shards);
        let checkpoint = Checkpoint::open_in(store, "m", &StoreOptions::default());
        let options = options(|it| {
            it.order = rng.pick(&[Order::Ready, Order::File]);
            it.extent_bytes = Some(300_000);
            it.memory_limit = rng.pick(&[None, Some(2 * MIB as u64)]);
            it.device_memory_limit = rng.pick(&[None, Some(4 * MIB as u64)]);
        });
        let loader = Loader::new(checkpoint.expect("opens"))
            .device(Device::Cuda(rng.index(2)))
            .options(options);
        let (tensors, report) = load(&loader).expect("loads");
        files.assert_all(&tensors);
        assert_eq!(report.engine.name, "object");
        assert_eq!(report.devices[0].copied_bytes, files.total());
    }
}

/// A file and an object in one checkpoint: two kinds of engines fill the same staging memory.
#[test]
fn files_and_objects_load_to_one_device() {
    let _cuda = cuda();
    let server = tload_testbed::FaultyServer::start();
    let mut files = Files::new();
    let mut rng = Rng::new(9);
    files.mixed("0", &mut rng, 20, MIB);
    files.mixed("1", &mut rng, 20, MIB);
    #[expect(clippy::disallowed_methods, reason = "a test reads a whole file")]
    let remote = std::fs::read(files.file("1")).expect("just written");
    server.put("web/1.safetensors", remote);
    let locations = [
        tload::Location::from(files.file("0").as_path()),
        tload::Location::parse(&format!("{}/web/1.safetensors", server.url())).expect("a URL"),
    ];
    for (order, limit) in [
        (Order::Ready, None),
        (Order::File, Some(3 * MIB as u64)),
        (Order::Ready, Some(3 * MIB as u64)),
    ] {
        let store = StoreOptions::default();
        let checkpoint = Checkpoint::open_all_with(&locations, &store).expect("opens");
        let options = options(|it| {
            (it.order, it.memory_limit, it.device_memory_limit) = (order, limit, limit);
            it.extent_bytes = Some(300_000);
        });
        let loader = Loader::new(checkpoint).device(Device::Cuda(0));
        let (tensors, report) = load(&loader.options(options)).expect("loads");
        files.assert_all(&tensors);
        assert!(report.engine.name.contains("object"), "{report}");
    }
}
