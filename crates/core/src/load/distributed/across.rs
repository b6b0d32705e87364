//! Agreement between the leaders of nodes: which of them reads what several nodes want.

use std::sync::Arc;
use std::time::Instant;

use crate::checkpoint::OpenedCheckpoint;
use crate::error::Result;
use crate::plan::{self, JointRange, NodeWants, SharePlan, Target};
use crate::ranks::Group;
use crate::verify::Verify;
use tload_ranks::{Cluster, Served, ServedRange};

/// Connection of a leader to the leaders of other nodes, and its part in what they share.
pub(super) struct Across {
    pub(super) cluster: Arc<Cluster>,
    /// Rank of this leader.
    rank: usize,
    /// Ranges that this node and others want, in file order.
    common: Vec<JointRange>,
}

impl Across {
    /// Connects the leader of this node with the leaders of the others. Returns `None` if the group
    /// cannot do that.
    ///
    /// # Errors
    ///
    /// Those of the group.
    pub(super) fn connect(
        group: &dyn Group,
        leaders: &[usize],
        deadline: Instant,
    ) -> Result<Option<Self>> {
        let transport = group.transport(leaders, deadline)?;
        Ok(transport.map(|transport| Self {
            cluster: Arc::new(Cluster::new(transport, group.rank(), leaders)),
            rank: group.rank(),
            common: Vec::new(),
        }))
    }

    /// Agrees with the other leaders on the owner of each range that several nodes want. `alone` is
    /// what this node would do without them.
    ///
    /// # Errors
    ///
    /// The failure or loss of another leader.
    pub(super) fn agree(
        &mut self,
        checkpoint: &OpenedCheckpoint,
        alone: &SharePlan,
        verify: &Verify,
        deadline: Instant,
    ) -> Result<()> {
        let others = self.cluster.exchange(&alone.dense, deadline)?;
        let node = |(leader, ranges)| NodeWants { leader, ranges };
        let mut nodes: Vec<_> = self.cluster.ranks().zip(others).map(node).collect();
        nodes.push(node((self.rank, alone.dense.clone())));
        let tensors: Vec<_> = checkpoint
            .tensors()
            .iter()
            .map(|it| (it.shard(), it.file_range()))
            .collect();
        self.common = plan::divide(&tensors, &nodes, *verify != Verify::Off);
        self.common.retain(|range| range.nodes.contains(&self.rank));
        Ok(())
    }

    /// Returns the ranges that this node and others want, in file order.
    pub(super) fn joint(&self) -> &[JointRange] {
        &self.common
    }

    /// Returns, by shared range, the other node that reads it, if one does.
    pub(super) fn owners(&self, shared: &SharePlan) -> Vec<Option<usize>> {
        let owner = |common: usize| Some(self.common[common].owner);
        let shared = shared.shared.iter();
        shared
            .map(|range| range.common.and_then(owner).filter(|it| *it != self.rank))
            .collect()
    }

    /// Returns the positions, behind those of the `own` ranks, of the nodes that want a shared
    /// range of this one.
    pub(super) fn needed_by(&self, common: Option<usize>, own: usize) -> Vec<usize> {
        let Some(common) = common.map(|index| &self.common[index]) else {
            return Vec::new();
        };
        let leaders = self.cluster.ranks().enumerate();
        leaders
            .filter(|(_, rank)| common.owner == self.rank && common.nodes.contains(rank))
            .map(|(index, _)| own + index)
            .collect()
    }

    /// Returns, by node, what it receives from this node; `targets` are the places of the shared
    /// ranges.
    pub(super) fn served(&self, shared: &SharePlan, targets: &[Target]) -> Vec<Served> {
        let mut served: Vec<Served> = self.cluster.ranks().map(|_| Served::default()).collect();
        for (range, target) in shared.shared.iter().zip(targets) {
            for node in self.needed_by(range.common, 0) {
                let (region, offset) = target.place.expect("shared ranges have bytes");
                served[node].0.push(ServedRange {
                    source: range.source,
                    range: range.range.clone(),
                    region,
                    offset: offset as u64,
                });
            }
        }
        served
    }

    /// Returns, by node, the number of bytes that this node receives from it.
    pub(super) fn expected(&self) -> Vec<u64> {
        let bytes = |node: usize| {
            let its = self.common.iter().filter(|range| range.owner == node);
            its.map(|range| range.range.end - range.range.start).sum()
        };
        self.cluster.ranks().map(bytes).collect()
    }
}
