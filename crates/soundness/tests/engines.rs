//! Loads of real files by every engine of this system, on many threads, cancelled and dropped, for
//! sanitizers, which rebuild all dependencies: this crate has few.

use std::path::Path;

use tload::CacheMode;
use tload::{Dtype, EngineChoice, ErrorKind, LoadOptions, Loader, Location, Order, Result, Tensor};
use tload_testing::fixtures::{FileBuilder, Rng};

const SHARDS: usize = 3;
const TENSORS: usize = 16;
const ROUNDS: usize = 120;

fn bytes(shard: usize, tensor: usize) -> Vec<u8> {
    let mut rng = Rng::new((shard * 100 + tensor) as u64);
    let most = rng.pick(&[10, 5000, 300_000]);
    let len = rng.index(most);
    rng.bytes(len)
}

fn checkpoint() -> tempfile::TempDir {
    let folder =
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo creates the directory");
    for shard in 0..SHARDS {
        let file = (0..TENSORS).fold(FileBuilder::new().unaligned(shard), |file, tensor| {
            let bytes = bytes(shard, tensor);
            file.tensor(
                &format!("{shard}.{tensor}"),
                Dtype::U8,
                &[bytes.len()],
                &bytes,
            )
        });
        let path = folder.path().join(format!("m-{shard}.safetensors"));
        std::fs::write(path, file.build()).expect("the directory is writable");
    }
    folder
}

fn engines() -> Vec<EngineChoice> {
    let mut engines = vec![EngineChoice::Pread];
    if cfg!(feature = "rings") && tload::internal::probe::ring().available {
        engines.extend([EngineChoice::Uring, EngineChoice::TokioUring]);
    }
    engines
}

fn assert_right(tensor: &Tensor) {
    let mut numbers = tensor
        .name()
        .split('.')
        .map(|number| number.parse().expect("ours"));
    let (shard, index) = (numbers.next().expect("two"), numbers.next().expect("two"));
    assert!(
        tensor.bytes() == bytes(shard, index),
        "{tensor:?}: wrong bytes"
    );
}

fn load(folder: &Path, engine: EngineChoice, rng: &mut Rng) -> Result<()> {
    let mut options = LoadOptions::default();
    (options.engine, options.order) = (engine, rng.pick(&[Order::Ready, Order::File]));
    options.cache = rng.pick(&[CacheMode::Auto, CacheMode::Buffered, CacheMode::Drop]);
    if engine == EngineChoice::Pread && rng.once_in(4) {
        (options.engine, options.cache) = (EngineChoice::Auto, CacheMode::Map);
    }
    options.lanes = Some(1 + rng.index(3));
    options.extent_bytes = Some(rng.pick(&[8192, 65_536, 1 << 20]));
    options.memory_limit = Some(rng.pick(&[2 << 20, 8 << 20]));
    let loader = Loader::open(Location::from(folder))?.options(options);
    // The second load reuses the memory of the first.
    for _ in 0..2 {
        let mut stream = loader.stream()?;
        let canceller = stream.canceller();
        let kept = stream.by_ref().take(rng.index(SHARDS * TENSORS + 1));
        let kept = kept.collect::<Result<Vec<_>>>()?;
        match rng.below(4) {
            0 => std::thread::scope(|scope| {
                scope.spawn(|| canceller.cancel());
                for item in stream {
                    match item {
                        Ok(tensor) => assert_right(&tensor),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled),
                    }
                }
            }),
            1 => drop(stream),
            _ => {
                for tensor in stream {
                    assert_right(&tensor?);
                }
            }
        }
        kept.iter().for_each(assert_right);
    }
    Ok(())
}

#[test]
fn loads_on_many_threads() {
    let folder = checkpoint();
    let engines = engines();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (folder, engines) = (folder.path(), &engines);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for round in 0..ROUNDS / 4 {
                    let engine = engines[round % engines.len()];
                    let loaded = load(folder, engine, &mut rng);
                    assert!(
                        loaded.is_ok(),
                        "{:?}",
                        loaded.map_err(|error| error.chain())
                    );
                }
            });
        }
    });
}
