//! Taking regions from the pool and giving them back.

use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput};
use tload::internal::memory::{EventCount, Pool};

/// Number of regions held at a time, as in a load.
const HELD: usize = 32;

pub(crate) fn pool(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pool");
    group.throughput(Throughput::Elements(HELD as u64));
    for bytes in [64 << 10, 4 << 20] {
        let pool = Pool::new(1 << 30, Arc::<EventCount>::default());
        group.bench_function(BenchmarkId::new("take_and_give_back", bytes), |bencher| {
            bencher.iter(|| {
                let regions: Vec<_> = (0..HELD)
                    .map(|_| pool.try_region(bytes, 1).expect("there is memory"))
                    .collect();
                assert!(regions.iter().all(Option::is_some));
                regions
            });
        });
    }
}
