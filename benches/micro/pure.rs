//! Steps without I/O: parsing a header, making a plan, taking extents from a schedule.

use std::convert::Infallible;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use tload::Order;
use tload::internal::plan::{Arrangement, Packing, Plan, Wanted, build};
use tload::internal::schedule::{Depth, Groups, Next, Schedule};
use tload_micro::{LAYOUT, dense, experts, header};

pub(crate) fn headers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("header");
    for tensors in [1000, 20_000] {
        let (header, file_bytes) = header(tensors);
        group.throughput(Throughput::Bytes(header.len() as u64));
        group.bench_function(BenchmarkId::new("parse", tensors), |bencher| {
            bencher.iter(|| {
                let parsed = tload_testing::parse_header(black_box(&header), file_bytes);
                assert_eq!(parsed, Ok(tensors));
            });
        });
    }
}

fn plan(wanted: &[Wanted], arrangement: Arrangement) -> Plan {
    let sources = wanted.last().map_or(0, |last| last.source + 1);
    build(wanted, &vec![LAYOUT; sources], &[arrangement])
}

pub(crate) fn plans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    for (model, wanted) in [("dense", dense()), ("experts", experts())] {
        group.throughput(Throughput::Elements(wanted.len() as u64));
        for (name, arrangement) in [
            ("in_place", Arrangement::InPlace),
            ("packed", Arrangement::Packed(Packing::default())),
        ] {
            group.bench_function(BenchmarkId::new(model, name), |bencher| {
                bencher.iter(|| plan(black_box(&wanted), arrangement));
            });
        }
    }
}

/// Begins one extent and ends another.
fn step(schedule: &mut Schedule, plan: &Plan, ending: &mut Option<usize>) -> Next {
    let now = Duration::ZERO;
    let next = schedule.next(0, now, plan, |_| Ok::<_, Infallible>(true));
    let Ok(next) = next;
    if let Some(extent) = ending.take() {
        schedule.ended(&plan.extents[extent], now);
    }
    if let Next::Extent(extent) = next {
        *ending = Some(extent);
    }
    next
}

/// Schedules all extents of 64 sources, with two in flight: one step is the overhead of one read.
pub(crate) fn schedules(criterion: &mut Criterion) {
    let plan = plan(&experts(), Arrangement::InPlace);
    let mut group = criterion.benchmark_group("schedule");
    group.throughput(Throughput::Elements(plan.extents.len() as u64));
    for (name, order) in [("ready", Order::Ready), ("file", Order::File)] {
        let fresh = || Schedule::new(&plan, order, Groups::one(Depth::fixed(128, 512 << 20)));
        let drain = |mut schedule: Schedule| {
            let mut ending = None;
            let mut extents = 0;
            while let Next::Extent(_) = step(&mut schedule, &plan, &mut ending) {
                extents += 1;
            }
            assert_eq!(extents, plan.extents.len());
            schedule
        };
        group.bench_function(name, |bencher| {
            bencher.iter_batched(fresh, drain, BatchSize::SmallInput);
        });
    }
}
