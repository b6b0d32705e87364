//! Random loads: random tensors, sources, layouts, orders, budgets, depths and lanes.

use super::fixtures::{Rng, byte_len, tensor_info};
use super::sim::SimConfig;
use super::simulation::Simulation;
use tload::Order;
use tload::TensorInfo;
use tload::internal::plan::Layout;
use tload::internal::schedule::Depth;
use tload_format::Dtype;
use tload_storage::MemorySource;

impl Simulation {
    /// Returns a load without faults whose tensors have at most about `elements_max` elements.
    pub fn random(rng: &mut Rng, elements_max: usize) -> Self {
        let mut tensors = Vec::new();
        let sources: Vec<_> = (0..=rng.index(5))
            .map(|source| {
                let len = tensors_of(rng, source, elements_max, &mut tensors);
                let len = usize::try_from(len).expect("small");
                MemorySource::new(&format!("source {source}"), rng.bytes(len))
            })
            .collect();
        let layouts = sources
            .iter()
            .map(|_| Layout {
                extent_bytes: rng.pick(&[4096, 16_384, 65_536, 1 << 20]),
                alignment: rng.pick(&[1, 512, 4096]),
                gap_bytes: rng.pick(&[0, 4096, 65_536]),
            })
            .collect();
        let jobs = 1 + rng.index(12);
        let engines = (0..=rng.index(3))
            .map(|_| SimConfig {
                delay_max: rng.pick(&[0, 1, 7]),
                short_once_in: rng.pick(&[0, 1, 4]),
                ..SimConfig::new(rng.bits(), 1 + rng.index(jobs))
            })
            .collect();
        let mut simulation = Self {
            sources,
            layouts,
            tensors,
            order: rng.pick(&[Order::Ready, Order::File]),
            depth: Depth::fixed(jobs, rng.pick(&[1, 50_000, 1 << 20])),
            memory_limit: 0,
            engines,
        };
        // From the minimum that can work to plenty.
        let least = simulation.limit_min();
        simulation.memory_limit = least + rng.pick(&[0, 1, least / 2, 4 * least, 1 << 30]);
        simulation
    }
}

/// Appends consecutive tensors of a source: some empty, some at odd offsets, some with gaps between
/// them. Returns the length of the source.
fn tensors_of(
    rng: &mut Rng,
    source: usize,
    elements_max: usize,
    tensors: &mut Vec<TensorInfo>,
) -> u64 {
    let mut offset = 8 + rng.below(3000);
    for index in 0..rng.index(14) {
        if rng.once_in(3) {
            offset += rng.below(20_000).min(8 * elements_max as u64);
        }
        let dtype = rng.pick(&Dtype::ALL);
        let most = rng.pick(&[1, 9, 300, 5000, 60_000]).min(elements_max);
        let elements = rng.index(most + 1) / 4 * 4;
        if rng.once_in(2) {
            offset = offset.next_multiple_of(dtype.alignment() as u64);
        }
        let bytes = byte_len(dtype, elements).expect("multiples of four elements") as u64;
        tensors.push(tensor_info(
            format!("{source}.{index}"),
            dtype,
            vec![elements],
            source,
            offset..offset + bytes,
        ));
        offset += bytes;
    }
    offset + rng.below(100)
}
