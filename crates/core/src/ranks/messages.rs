//! Messages between ranks that are longer than a record.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::plan::Slice;

/// Request of a rank to the leader of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Requested tensors, each as its index in the checkpoint and the slice of it, if it is one.
    pub(crate) tensors: Vec<(usize, Option<Slice>)>,
}

/// Part of one rank in the plan of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankPlan {
    /// Shared regions, in the order in which they are read.
    pub(crate) regions: Vec<RegionOrigin>,
    /// By requested tensor: its region and its offset there; none if the rank reads it itself.
    pub(crate) tensors: Vec<Option<(usize, u64)>>,
    /// Distinct bytes that the ranks of the node want.
    pub(crate) unique_bytes: u64,
}

/// Bytes of a file that a shared region holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RegionOrigin {
    /// Index of the shard.
    pub(crate) shard: usize,
    /// Offset in the shard.
    pub(crate) offset: u64,
    /// Length in bytes, whole reads.
    pub(crate) len: usize,
}

/// Statistics of a rank that has finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankStatistics {
    /// Bytes that it read from storage for itself.
    pub(crate) read_bytes: u64,
    /// Seconds that its load took.
    pub(crate) seconds: f64,
}

/// Error of the leader, for the other ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    rank: usize,
    kind: String,
    message: String,
    location: Option<String>,
    tensor: Option<String>,
    hint: Option<String>,
}

impl Failure {
    /// Describes an error that `rank` ran into.
    pub(crate) fn new(rank: usize, error: &Error) -> Self {
        Self {
            rank,
            kind: error.kind().name().to_owned(),
            message: error.message().to_owned(),
            location: error.location().map(str::to_owned),
            tensor: error.tensor().map(str::to_owned),
            hint: error.marked_hint(),
        }
    }

    /// Returns the error for another rank.
    pub(crate) fn error(&self) -> Error {
        let known = ErrorKind::ALL.into_iter();
        let kind = known.into_iter().find(|kind| kind.name() == self.kind);
        let kind = match kind {
            // The other rank's caller ended its load; this one's did not.
            None | Some(ErrorKind::Cancelled) => ErrorKind::Peer,
            Some(kind) => kind,
        };
        let mut error = Error::new(kind, format!("rank {}: {}", self.rank, self.message));
        if let Some(location) = &self.location {
            error = error.with_location(location);
        }
        if let Some(tensor) = &self.tensor {
            error = error.with_tensor(tensor);
        }
        if let Some(hint) = &self.hint {
            error = error.with_hint(hint);
        }
        error.with_ranks([self.rank])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_keeps_kind_place_and_rank() {
        let error = Error::new(ErrorKind::Corrupt, "the digest differs")
            .with_location("m/a.safetensors")
            .with_tensor("w")
            .with_hint("load it again, or use ‹verify=off›");
        let failure = Failure::new(3, &error);
        let text = serde_json::to_string(&failure).expect("serializes");
        let again: Failure = serde_json::from_str(&text).expect("parses");
        let error = again.error();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.ranks(), [3]);
        assert_eq!(
            error.chain(),
            "m/a.safetensors: tensor \"w\": rank 3: the digest differs\n  hint: load it again, or use verify=off"
        );
    }

    #[test]
    fn cancellation_of_another_rank_is_its_loss() {
        let error = Error::new(ErrorKind::Cancelled, "the load was cancelled");
        assert_eq!(Failure::new(0, &error).error().kind(), ErrorKind::Peer);
    }
}
