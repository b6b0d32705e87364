//! Part of a report on a load that several ranks shared.

use serde::Serialize;

use crate::error::listed_ranks;
use crate::options::format_bytes;

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
    /// Bytes that all ranks of the node read, divided by `unique_bytes`; below 1 where other nodes
    /// read for this one. The leader knows what the others have read once they have finished;
    /// before that, and on other ranks, these are the bytes that the ranks planned to read, and
    /// what this rank read again. `None` if nothing is shared.
    pub amplification: Option<f64>,
    /// Seconds that this rank waited for the other ranks before its first read.
    pub join_seconds: f64,
    /// Rank whose part of the load was the last to be taken over; `None` on every rank but the
    /// leader, and there while one of the others has not finished.
    pub slowest_rank: Option<usize>,
}

impl GroupReport {
    /// Adds what the ranks of the node did: `others` are those that have finished, with the bytes
    /// that each read and the seconds that it took, and this rank and the leader's reads for all
    /// have read `own_bytes`. By their plan, the ranks read `planned_bytes` together.
    pub(crate) fn set_node(
        &mut self,
        own_bytes: u64,
        planned_bytes: u64,
        others: &[(usize, u64, f64)],
    ) {
        let has_finished =
            |rank: &usize| *rank == self.rank || others.iter().any(|other| other.0 == *rank);
        if !self.node_ranks.iter().all(has_finished) {
            self.set_amplification(planned_bytes + self.reread_bytes);
            return;
        }
        let slowest = others.iter().max_by(|one, other| one.2.total_cmp(&other.2));
        self.slowest_rank = slowest.map(|(rank, ..)| *rank);
        let others = others.iter().filter(|(rank, ..)| *rank != self.rank);
        self.set_amplification(own_bytes + others.map(|(_, bytes, _)| bytes).sum::<u64>());
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a ratio; fifteen digits are enough"
    )]
    fn set_amplification(&mut self, read_bytes: u64) {
        if self.unique_bytes > 0 {
            self.amplification = Some(read_bytes as f64 / self.unique_bytes as f64);
        }
    }

    /// Returns the line of a report, for example `group    rank 1 of 2: rank 0 reads for ranks 0
    /// and 1, 24.0 MiB received in shared memory, amplification 1.00`.
    pub(super) fn line(&self, received_bytes: u64) -> String {
        use std::fmt::Write as _;

        let mut line = format!("group    rank {} of {}", self.rank, self.size);
        // Writing to a string cannot fail.
        if self.share == "none" {
            line += ": nothing is shared";
        } else if self.rank == self.leader {
            let (read, ranks) = (format_bytes(self.read_bytes), self.node_ranks.len());
            let _ = write!(line, ", leader: read {read} for {ranks} ranks");
        } else {
            let (reader, ranks) = (self.leader, listed_ranks(&self.node_ranks));
            let received = format_bytes(received_bytes);
            let _ = write!(
                line,
                ": rank {reader} reads for {ranks}, {received} received in shared memory"
            );
        }
        if self.node_received_bytes > 0 {
            let bytes = format_bytes(self.node_received_bytes);
            let _ = write!(line, ", {bytes} from other nodes");
        }
        if let Some(amplification) = self.amplification {
            let _ = write!(line, ", amplification {amplification:.2}");
        }
        if let Some(reason) = &self.reason {
            let _ = write!(line, " ({reason})");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amplification_is_that_of_the_node_or_of_its_plan() {
        let report = |rank, others: &[(usize, u64, f64)]| {
            let mut report = GroupReport {
                rank,
                node_ranks: vec![4, 5],
                unique_bytes: 100,
                ..GroupReport::default()
            };
            report.set_node(50, 105, others);
            (report.amplification, report.slowest_rank)
        };
        assert_eq!(report(4, &[]), (Some(1.05), None));
        assert_eq!(report(4, &[(4, 50, 3.0)]), (Some(1.05), None));
        assert_eq!(report(4, &[(5, 50, 2.0)]), (Some(1.0), Some(5)));
        let both = [(5, 70, 2.0), (4, 50, 3.0)];
        assert_eq!(report(4, &both), (Some(1.2), Some(4)));
        assert_eq!(report(5, &[]), (Some(1.05), None));
    }

    #[test]
    fn line_says_who_reads_for_whom() {
        let shared = GroupReport {
            rank: 5,
            size: 6,
            node_ranks: vec![4, 5],
            leader: 4,
            share: "node".to_owned(),
            amplification: Some(1.05),
            ..GroupReport::default()
        };
        assert_eq!(
            shared.line(24 << 20),
            "group    rank 5 of 6: rank 4 reads for ranks 4 and 5, 24.0 MiB received in shared memory, \
             amplification 1.05"
        );
        let leader = GroupReport {
            rank: 4,
            read_bytes: 3 << 30,
            ..shared.clone()
        };
        assert_eq!(
            leader.line(24 << 20),
            "group    rank 4 of 6, leader: read 3.0 GiB for 2 ranks, amplification 1.05"
        );
        let alone = GroupReport {
            share: "none".to_owned(),
            reason: Some("no other rank runs here".to_owned()),
            amplification: None,
            ..shared
        };
        assert_eq!(
            alone.line(0),
            "group    rank 5 of 6: nothing is shared (no other rank runs here)"
        );
    }
}
