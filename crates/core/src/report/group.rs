//! Part of a report on a load that several ranks shared.

use serde::Serialize;

/// Statistics of one rank of a load with a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupReport {
    /// This rank.
    pub rank: usize,
    /// Number of ranks of the group.
    pub size: usize,
    /// Ranks of this rank's node that share their reads, this one included.
    pub node_ranks: Vec<usize>,
    /// Rank that reads the shared bytes of the node.
    pub leader: usize,
    /// Scope of the sharing: `"node"`, `"cluster"` or `"none"`.
    pub share: String,
    /// Reason why less is shared than was requested, if so.
    pub reason: Option<String>,
    /// Distinct bytes of the checkpoint that the ranks of the node want.
    pub unique_bytes: u64,
    /// Bytes that this rank read from storage, for itself and for others.
    pub read_bytes: u64,
    /// Bytes that this rank received from other nodes, for the ranks of its own: if it leads the
    /// node and nodes share with each other.
    pub node_received_bytes: u64,
    /// Bytes that this rank read itself because it had fallen behind or had lost the leader; or
    /// another node, if it leads its own.
    pub reread_bytes: u64,
    /// Bytes read on the node divided by `unique_bytes`, as far as this rank knows them: on the
    /// leader, those of all ranks that have finished. Below 1 where other nodes read for this one.
    pub amplification: f64,
    /// Seconds that this rank waited for the other ranks before its first read.
    pub join_seconds: f64,
    /// Rank whose part of the load was the last to be taken over, where the leader knows it.
    pub slowest_rank: Option<usize>,
}

/// Returns how many times over `read` bytes are the `unique` bytes; 0 if there are none.
pub(crate) fn amplification(read: u64, unique: u64) -> f64 {
    if unique == 0 {
        return 0.0;
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "a ratio; fifteen digits are enough"
    )]
    {
        read as f64 / unique as f64
    }
}
