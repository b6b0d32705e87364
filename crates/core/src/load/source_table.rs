//! Sources of a load while it is planned: files and objects that it reads itself, regions that the
//! leader of the node reads, bytes that other nodes read; and the place of each tensor in them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::destinations::Destinations;
use super::wanted::{Place, layout};
use crate::checkpoint::OpenedCheckpoint;
use crate::error::Result;
use crate::groups::{
    self, LeaderGroup, NodeGroup, NodeShares, Regions, Shares, Sources, WantedShard,
};
use crate::options::LoadOptions;
use crate::plan::{Layout, Plan, Strides, Wanted};
use crate::storage::ReadHints;
use crate::tensor::TensorInfo;
use tload_ranks::RankPlace;

/// Part of a load that others read, before it begins.
pub(crate) enum Others {
    /// The leader of the node.
    Leader(Shares),
    /// Leaders of other nodes, for this one.
    Nodes(NodeShares),
}

/// Sources of a load, and the place of each tensor in them.
pub(super) struct SourceTable {
    /// All but the regions of the leader.
    sources: Sources,
    /// By tensor.
    places: Vec<Place>,
    received: Received,
}

/// Sources that others read.
enum Received {
    Nothing,
    /// Behind all other sources, once the leader begins.
    Regions(Box<Shares>, Regions),
    /// Among the other sources.
    Nodes,
}

/// Shards that a load reads itself.
struct OwnShards {
    shards: Vec<WantedShard>,
    /// By shard of the checkpoint: its position among them.
    source_of: Vec<Option<usize>>,
}

impl SourceTable {
    /// Opens the sources of `tensors`. With `staged`, bytes pass through staging memory.
    ///
    /// # Errors
    ///
    /// Any error of opening a file for direct I/O or as a view; [`crate::ErrorKind::Unsupported`]
    /// for views of objects.
    pub(super) fn open(
        checkpoint: &OpenedCheckpoint,
        tensors: &[TensorInfo],
        others: Option<Others>,
        options: &LoadOptions,
        staged: bool,
    ) -> Result<Self> {
        let own = |is_own: &dyn Fn(usize) -> bool| OwnShards::new(checkpoint, tensors, is_own);
        match others {
            None => {
                let own = own(&|_| true);
                Ok(Self {
                    places: tensors.iter().map(|tensor| own.place(tensor)).collect(),
                    sources: groups::open(own.shards, options, true)?.into(),
                    received: Received::Nothing,
                })
            }
            Some(Others::Leader(shares)) => {
                let mut known = shares.plan.tensors.clone();
                known.resize(tensors.len(), None);
                let own = own(&|tensor| known[tensor].is_none());
                let used: BTreeSet<usize> =
                    known.iter().flatten().map(|place| place.region).collect();
                let used = used.into_iter().collect();
                let regions = Regions::new(used, &shares.plan, checkpoint.shards(), staged);
                let first = own.shards.len();
                let place = |(tensor, known): (&TensorInfo, &Option<RankPlace>)| {
                    let Some(known) = known else {
                        return own.place(tensor);
                    };
                    let strides = known.strides.clone();
                    let len = strides.as_ref().map_or(tensor.byte_len(), Strides::span);
                    Place {
                        source: first + regions.source_of(known.region),
                        range: known.offset..known.offset + len,
                        strides,
                    }
                };
                Ok(Self {
                    places: tensors.iter().zip(&known).map(place).collect(),
                    sources: groups::open(own.shards, options, false)?.into(),
                    received: Received::Regions(Box::new(shares), regions),
                })
            }
            Some(Others::Nodes(shares)) => {
                let (group, of_nodes) = NodeGroup::new(shares, tensors);
                let own = own(&|tensor| of_nodes[tensor].is_none());
                let first = own.shards.len();
                let place = |(tensor, number): (&TensorInfo, &Option<usize>)| match number {
                    None => own.place(tensor),
                    Some(number) => Place {
                        source: first + number,
                        range: tensor.file_range(),
                        strides: tensor.strides().cloned(),
                    },
                };
                let places = tensors.iter().zip(&of_nodes).map(place).collect();
                let mut sources = Sources::from(groups::open(own.shards, options, false)?);
                sources.add(Arc::new(group));
                Ok(Self {
                    places,
                    sources,
                    received: Received::Nodes,
                })
            }
        }
    }

    /// Returns the place of a tensor.
    pub(super) fn place(&self, tensor: usize) -> Place {
        self.places[tensor].clone()
    }

    /// Returns whether the load receives bytes from other nodes.
    pub(super) fn has_nodes(&self) -> bool {
        matches!(self.received, Received::Nodes)
    }

    /// Sorts the tensors in the order in which they are read, each with its index among `tensors`.
    /// May number the sources anew, also in `wanted`.
    pub(super) fn sort(&mut self, wanted: &mut [(usize, Wanted)], tensors: &[TensorInfo]) {
        if self.has_nodes() {
            // All nodes take what they share in the same order.
            self.sources.arrange(&in_file_order(wanted, tensors));
        } else {
            // Shared regions come after the files.
            wanted.sort_by_key(|(_, wanted)| (wanted.source, wanted.range.start));
        }
    }

    /// Returns whether another rank reads for this one.
    pub(super) fn is_received(&self) -> bool {
        matches!(self.received, Received::Regions(..))
    }

    /// Returns the number of sources that may be read at once.
    pub(super) fn read_at_once(&self) -> u64 {
        let sources = self.sources.members().len();
        let hints = (0..sources).map(|source| self.sources.hints(source));
        let reads = hints.map(|hints| hints.in_flight_bytes_max / hints.extent_bytes.max(1));
        reads.max().unwrap_or(1).min(sources as u64)
    }

    /// Returns the layout of each source.
    pub(super) fn layouts(&self, options: &LoadOptions, staged: bool) -> Vec<Layout> {
        let is_shared = !matches!(self.received, Received::Nothing);
        let own = |source: usize| {
            let hints = self.sources.hints(source);
            if self.sources.group_of(source).is_received() {
                received_layout(&hints, options, staged)
            } else {
                own_layout(hints, is_shared, options, staged)
            }
        };
        let mut layouts: Vec<_> = (0..self.sources.members().len()).map(own).collect();
        if let Received::Regions(_, regions) = &self.received {
            let layout = received_layout(&regions.hints, options, staged);
            layouts.resize(layouts.len() + regions.len(), layout);
        }
        layouts
    }

    /// Begins to receive what the leader reads. Returns the sources of `plan`, and those of the
    /// leader if there are any.
    ///
    /// # Errors
    ///
    /// Those of [`LeaderGroup::begin`].
    pub(super) fn begin(
        self,
        checkpoint: &OpenedCheckpoint,
        plan: &Plan,
        destinations: &Destinations,
        options: &LoadOptions,
    ) -> Result<(Sources, Option<Arc<LeaderGroup>>)> {
        let mut sources = self.sources;
        let Received::Regions(shares, regions) = self.received else {
            return Ok((sources, None));
        };
        let first = sources.members().len();
        let leader = Arc::new(LeaderGroup::begin(
            *shares,
            regions,
            first,
            plan,
            destinations,
            options,
            checkpoint,
        )?);
        sources.add(Arc::clone(&leader) as _);
        Ok((sources, Some(leader)))
    }
}

impl OwnShards {
    fn new(
        checkpoint: &OpenedCheckpoint,
        tensors: &[TensorInfo],
        is_own: impl Fn(usize) -> bool,
    ) -> Self {
        let mut source_of = vec![None; checkpoint.shards().len()];
        let mut shards: Vec<WantedShard> = Vec::new();
        let own = tensors
            .iter()
            .enumerate()
            .filter(|(index, tensor)| is_own(*index) && tensor.byte_len() > 0);
        for (_, tensor) in own {
            let source = *source_of[tensor.shard()].get_or_insert_with(|| {
                shards.push(WantedShard {
                    source: Arc::clone(checkpoint.shards()[tensor.shard()].source()),
                    ranges: Vec::new(),
                });
                shards.len() - 1
            });
            shards[source].ranges.push(tensor.file_range());
        }
        Self { shards, source_of }
    }

    /// Returns the place of a tensor of these shards.
    fn place(&self, tensor: &TensorInfo) -> Place {
        Place {
            // A tensor without bytes may be in any source.
            source: self.source_of[tensor.shard()].unwrap_or(0),
            range: tensor.file_range(),
            strides: tensor.strides().cloned(),
        }
    }
}

/// Numbers the sources of `wanted` anew, so that tensors are in the order of their files although
/// several sources have bytes of one. Returns the old numbers.
fn in_file_order(wanted: &mut [(usize, Wanted)], tensors: &[TensorInfo]) -> Vec<usize> {
    wanted.sort_by_key(|(index, wanted)| (tensors[*index].shard(), wanted.range.start));
    let mut order: Vec<usize> = Vec::new();
    for (_, wanted) in wanted {
        if order.last() != Some(&wanted.source) {
            order.push(wanted.source);
        }
        wanted.source = order.len() - 1;
    }
    order
}

/// Returns the layout of a source of a load's own. With `is_shared`, other ranks read, too.
fn own_layout(
    mut hints: ReadHints,
    is_shared: bool,
    options: &LoadOptions,
    staged: bool,
) -> Layout {
    if is_shared {
        // Read no bytes of gaps: other ranks may read those.
        hints.gap_bytes = 0;
    }
    layout(&hints, options, staged)
}

/// Returns the layout of a source that others read. An extent is no read of a file: it is one
/// message from another node, whose length is limited, or a slot of each rank.
fn received_layout(hints: &ReadHints, options: &LoadOptions, staged: bool) -> Layout {
    let mut layout = layout(hints, options, staged);
    layout.extent_bytes = layout.extent_bytes.min(hints.extent_bytes);
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_extents_apply_to_own_reads_only() {
        let hints = ReadHints {
            extent_bytes: 4 << 20,
            request_bytes: 4 << 20,
            alignment: 4096,
            gap_bytes: 16 << 10,
            depth: 8,
            in_flight_bytes: 32 << 20,
            in_flight_bytes_max: 32 << 20,
        };
        let options = LoadOptions::new().extent_bytes(1 << 30);
        let own = [false, true].map(|is_shared| own_layout(hints, is_shared, &options, false));
        assert_eq!(own.map(|layout| layout.extent_bytes), [1 << 30; 2]);
        assert_eq!(own.map(|layout| layout.gap_bytes), [16 << 10, 0]);
        let received = received_layout(&hints, &options, false);
        assert_eq!(received.extent_bytes, 4 << 20);
    }
}
