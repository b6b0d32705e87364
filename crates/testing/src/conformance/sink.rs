//! Contract of sinks: each tensor once, when its last byte has arrived, and every lease released.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::run_all;
use crate::fixtures::{Rng, tensor_info};
use tload::TensorInfo;
use tload::internal::engine::Wait;
use tload::internal::plan::{Arrangement, Layout, Plan, Wanted, build};
use tload::internal::sink::Sink;
use tload_format::Dtype;
use tload_memory::{Filled, Pool, RegionWriter, Slab};

/// Seeds of each check at most. Miri takes seconds for one.
const SEEDS_MAX: usize = if cfg!(miri) { 4 } else { usize::MAX };

/// Numbers of elements of tensors. Miri makes and compares their bytes one by one.
const ELEMENTS: &[usize] = if cfg!(miri) {
    &[0, 1, 3, 100, 2500]
} else {
    &[0, 1, 3, 100, 4096, 20_001]
};

/// Input for the sinks of one load.
#[derive(Clone, Debug)]
pub struct SinkRequest {
    /// Plan of the load.
    pub plan: Arc<Plan>,
    /// Tensors of the plan, in its order.
    pub tensors: Arc<[TensorInfo]>,
}

/// Function that makes the sinks of a load: one per lane, `count` in total.
type Open<'a, S> = &'a dyn Fn(&SinkRequest, usize) -> Vec<S>;

/// Function that describes a finished tensor: its index in [`SinkRequest::tensors`] and its bytes.
type Describe<'a, T> = &'a dyn Fn(&T) -> (usize, Vec<u8>);

/// Runs all checks on sinks made by `open`, for tensors that lie in memory as `arrangement` says:
/// tensors in place get leases of their regions; others, of a slab.
pub fn sink_suite<S: Sink>(
    name: &str,
    arrangement: Arrangement,
    open: Open<'_, S>,
    describe: Describe<'_, S::Tensor>,
) {
    run_all(
        name,
        &[
            ("each tensor once, at its last piece", &|| {
                each_tensor_once(arrangement, open, describe);
            }),
            ("tensors outlive the sink", &|| {
                tensors_outlive(arrangement, open, describe);
            }),
            ("dropped halfway", &|| dropped_halfway(arrangement, open)),
        ],
    );
}

/// Source, the tensors to read from it, and the memory that they are read into.
struct Storage {
    bytes: Vec<u8>,
    request: SinkRequest,
    memory: Memory,
}

/// Memory of the leases.
enum Memory {
    Regions(Pool),
    Slots(Arc<Slab>),
}

impl Storage {
    fn new(rng: &mut Rng, arrangement: Arrangement) -> Self {
        let mut tensors = Vec::new();
        let mut offset = 8 + rng.below(5000);
        for index in 0..=rng.index(12) {
            if rng.once_in(4) {
                offset += rng.below(9000);
            }
            let dtype = rng.pick(&[Dtype::U8, Dtype::Bf16, Dtype::F32, Dtype::I64]);
            let elements = rng.pick(ELEMENTS);
            let bytes = (elements * dtype.bits() / 8) as u64;
            tensors.push(tensor_info(
                format!("t{index}"),
                dtype,
                vec![elements],
                0,
                offset..offset + bytes,
            ));
            offset += bytes;
        }
        let wanted: Vec<_> = tensors
            .iter()
            .map(|tensor| Wanted {
                source: 0,
                range: tensor.file_range(),
                strides: None,
                alignment: tensor.dtype().alignment(),
                destination: 0,
            })
            .collect();
        let layout = Layout {
            extent_bytes: rng.pick(&[4096, 16_384, 1 << 20]),
            alignment: rng.pick(&[1, 512, 4096]),
            gap_bytes: rng.pick(&[0, 4096]),
        };
        let len = usize::try_from(offset).expect("small");
        let plan = build(&wanted, &[layout], &[arrangement]);
        let memory = match arrangement {
            Arrangement::InPlace | Arrangement::Published => {
                Memory::Regions(Pool::new(64 << 20, Arc::default()))
            }
            Arrangement::Packed(_) | Arrangement::Scattered => {
                let slots = plan.extents.len().max(1);
                let slab = Slab::new(plan.window_bytes_max(), slots, Arc::default());
                Memory::Slots(slab.expect("maps"))
            }
        };
        Self {
            bytes: rng.bytes(len),
            request: SinkRequest {
                plan: Arc::new(plan),
                tensors: tensors.into(),
            },
            memory,
        }
    }

    /// Returns every extent, filled from the source.
    fn extents(&self) -> Vec<(usize, Filled)> {
        let plan = &*self.request.plan;
        let mut filled = Vec::new();
        for region in &plan.regions {
            let mut writer: Option<RegionWriter> = match &self.memory {
                Memory::Regions(pool) => {
                    let writer = pool.try_region(region.bytes, region.tensors);
                    Some(writer.expect("maps").expect("fits"))
                }
                Memory::Slots(_) => None,
            };
            for index in region.extents.clone() {
                let extent = &plan.extents[index];
                let start = usize::try_from(extent.offset).expect("small");
                let end = (start + extent.window).min(self.bytes.len());
                let lease = match (&mut writer, &self.memory) {
                    (Some(writer), _) => writer.carve(extent.window),
                    (None, Memory::Slots(slab)) => slab.try_lease(extent.window).expect("a slot"),
                    (None, Memory::Regions(_)) => unreachable!("regions have writers"),
                };
                filled.push((index, lease.fill_from(&self.bytes[start..end])));
            }
        }
        filled
    }

    fn wanted(&self, index: usize) -> &[u8] {
        let range = self.request.tensors[index].file_range();
        let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
        &self.bytes[start.expect("small")..end.expect("small")]
    }

    fn assert_memory_is_back(self) {
        match self.memory {
            Memory::Regions(pool) => {
                pool.close();
                assert_eq!(pool.usage().charged, 0, "bytes that were kept");
            }
            Memory::Slots(slab) => {
                let free = std::iter::from_fn(|| slab.try_lease(1)).collect::<Vec<_>>();
                assert_eq!(free.len(), slab.slots(), "slots that are back");
            }
        }
    }
}

/// Submits extents in any order, over any number of lanes: a tensor never completes before its last
/// piece, and never twice.
fn each_tensor_once<S: Sink>(
    arrangement: Arrangement,
    open: Open<'_, S>,
    describe: Describe<'_, S::Tensor>,
) {
    for seed in (0..100).take(SEEDS_MAX) {
        let mut rng = Rng::new(seed);
        let storage = Storage::new(&mut rng, arrangement);
        let lanes = 1 + rng.index(3);
        let mut sinks = open(&storage.request, lanes);
        let mut missing: Vec<u32> = storage
            .request
            .plan
            .targets
            .iter()
            .map(|target| target.pieces)
            .collect();
        let mut extents = storage.extents();
        rng.shuffle(&mut extents);
        let mut finished = BTreeMap::new();
        let mut ready = Vec::new();
        for (index, filled) in extents {
            let extent = &storage.request.plan.extents[index];
            for piece in &storage.request.plan.pieces[extent.pieces.clone()] {
                missing[piece.tensor] -= 1;
            }
            let sink = &mut sinks[rng.index(lanes)];
            sink.submit(extent, filled).expect("a good extent");
            let wait = rng.pick(&[Wait::No, Wait::ForOne]);
            sink.reap(wait, &mut ready).expect("nothing fails");
            for tensor in ready.drain(..) {
                let (index, bytes) = describe(&tensor);
                assert_eq!(missing[index], 0, "seed {seed}: tensor {index} came early");
                assert!(bytes == storage.wanted(index), "seed {seed}: wrong bytes");
                let twice = finished.insert(index, tensor).is_some();
                assert!(!twice, "seed {seed}: tensor {index} came twice");
            }
        }
        for sink in &mut sinks {
            while sink.in_flight() > 0 {
                sink.reap(Wait::ForOne, &mut ready).expect("nothing fails");
            }
            sink.reap(Wait::No, &mut ready).expect("nothing fails");
        }
        finished.extend(ready.drain(..).map(|tensor| (describe(&tensor).0, tensor)));
        let with_bytes = (0..missing.len()).filter(|&index| !storage.wanted(index).is_empty());
        assert!(
            finished.keys().copied().eq(with_bytes),
            "seed {seed}: all of them"
        );
        drop((sinks, finished));
        storage.assert_memory_is_back();
    }
}

fn tensors_outlive<S: Sink>(
    arrangement: Arrangement,
    open: Open<'_, S>,
    describe: Describe<'_, S::Tensor>,
) {
    for seed in (100..120).take(SEEDS_MAX) {
        let storage = Storage::new(&mut Rng::new(seed), arrangement);
        let mut sink = open(&storage.request, 1).remove(0);
        let mut ready = Vec::new();
        for (index, filled) in storage.extents() {
            let extent = &storage.request.plan.extents[index];
            sink.submit(extent, filled).expect("a good extent");
        }
        while sink.in_flight() > 0 {
            sink.reap(Wait::ForOne, &mut ready).expect("nothing fails");
        }
        sink.reap(Wait::No, &mut ready).expect("nothing fails");
        drop(sink);
        for tensor in &ready {
            let (index, bytes) = describe(tensor);
            assert!(bytes == storage.wanted(index), "seed {seed}: wrong bytes");
        }
        drop(ready);
        storage.assert_memory_is_back();
    }
}

fn dropped_halfway<S: Sink>(arrangement: Arrangement, open: Open<'_, S>) {
    for seed in (120..140).take(SEEDS_MAX) {
        let mut rng = Rng::new(seed);
        let storage = Storage::new(&mut rng, arrangement);
        let mut sink = open(&storage.request, 1).remove(0);
        let mut extents = storage.extents();
        rng.shuffle(&mut extents);
        for (index, filled) in extents.drain(..extents.len() / 2) {
            let extent = &storage.request.plan.extents[index];
            sink.submit(extent, filled).expect("a good extent");
        }
        drop((sink, extents));
        storage.assert_memory_is_back();
    }
}
