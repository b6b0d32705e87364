//! Messages between ranks that are longer than a record.

use std::error::Error as _;
use std::io;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, cut};
use crate::format::{Slice, Strides, TensorInfo};

/// Most bytes of each text of a failure: all of them fit into one message of a group, also if JSON
/// escapes the names in them.
const TEXT_BYTES_MAX: usize = 3 << 10;

/// Request of a rank to the leader of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Requested tensors, each as its index in the checkpoint and the slice of it, if it is one.
    pub tensors: Vec<(usize, Option<Slice>)>,
}

/// Part of one rank in the plan of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlan {
    /// Shared regions, in the order in which they are read.
    pub regions: Vec<RegionOrigin>,
    /// By requested tensor: its place; none if the rank reads it itself.
    pub tensors: Vec<Option<RankPlace>>,
    /// Distinct bytes that the ranks of the node want.
    pub unique_bytes: u64,
    /// Bytes that the ranks of the node are to read.
    pub planned_bytes: u64,
    /// Nodes share with each other too.
    pub is_cluster: bool,
    /// Reason why less is shared than requested, if so.
    pub reason: Option<String>,
}

impl RankPlan {
    /// Returns whether any of the requested tensors arrives with gaps: of a shared region, or as in
    /// its file.
    pub fn have_gaps(&self, tensors: &[TensorInfo]) -> bool {
        let is_gapped = |(index, tensor): (usize, &TensorInfo)| match self.tensors.get(index) {
            Some(Some(place)) => place.strides.is_some(),
            Some(None) | None => tensor.strides().is_some(),
        };
        tensors.iter().enumerate().any(is_gapped)
    }
}

/// Place of a requested tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlace {
    /// Index of its region.
    pub region: usize,
    /// Offset of its first byte there.
    pub offset: u64,
    /// Its bytes behind that, if they are not next to each other.
    pub strides: Option<Strides>,
}

/// Bytes of a file that a shared region holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionOrigin {
    /// Index of the shard.
    pub shard: usize,
    /// Offset in the shard.
    pub offset: u64,
    /// Bytes behind that which it holds, one behind the other; all if none.
    pub strides: Option<Strides>,
    /// Length in bytes, whole reads.
    pub len: usize,
    /// Bytes of it that are filled in the end.
    pub filled_bytes: usize,
}

/// Statistics of a rank that has finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankStatistics {
    /// Bytes that it read from storage for itself.
    pub read_bytes: u64,
    /// Seconds that its load took.
    pub seconds: f64,
}

/// Error of one rank, for the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Ranks that the error is about.
    ranks: Vec<usize>,
    /// Rank that tells of it.
    rank: usize,
    /// It happened there.
    is_own: bool,
    kind: String,
    message: String,
    location: Option<String>,
    tensor: Option<String>,
    hint: Option<String>,
    cause: Option<String>,
    errno: Option<i32>,
}

impl Failure {
    /// Describes an error that `rank` ran into, or has heard of from others. Long texts are
    /// truncated.
    pub fn new(rank: usize, error: &Error) -> Self {
        let is_own = error.ranks().is_empty();
        let short = |text: &str| cut(text, TEXT_BYTES_MAX).into_owned();
        Self {
            ranks: if is_own {
                vec![rank]
            } else {
                error.ranks().to_vec()
            },
            rank,
            is_own,
            kind: error.kind().name().to_owned(),
            message: short(error.message()),
            location: error.location().map(short),
            tensor: error.tensor().map(short),
            hint: error.marked_hint().as_deref().map(short),
            cause: error.source().map(|cause| short(&cause.to_string())),
            errno: error.errno(),
        }
    }

    /// Returns the error for another rank.
    pub fn error(&self) -> Error {
        let known = ErrorKind::ALL.into_iter();
        let kind = known.into_iter().find(|kind| kind.name() == self.kind);
        let kind = match kind {
            // The other rank's caller ended its load; this one's did not.
            None | Some(ErrorKind::Cancelled) => ErrorKind::Peer,
            Some(kind) => kind,
        };
        let message = if self.is_own {
            format!("rank {}: {}", self.rank, self.message)
        } else {
            self.message.clone()
        };
        let mut error = Error::new(kind, message);
        if let Some(location) = &self.location {
            error = error.with_location(location);
        }
        if let Some(tensor) = &self.tensor {
            error = error.with_tensor(tensor);
        }
        self.advised(error)
    }

    /// Returns the error for ranks that cannot load because this one does not begin the load.
    pub fn not_begun(&self) -> Error {
        let place = self
            .location
            .as_ref()
            .map(|location| format!("{location}: "));
        let message = format!(
            "rank {} did not begin the load: {}{}",
            self.rank,
            place.unwrap_or_default(),
            self.message
        );
        self.advised(Error::new(ErrorKind::Peer, message))
    }

    fn advised(&self, mut error: Error) -> Error {
        if let Some(hint) = &self.hint {
            error = error.with_hint(hint);
        }
        error = match (self.errno, &self.cause) {
            (Some(errno), _) => error.with_source(io::Error::from_raw_os_error(errno)),
            (None, Some(cause)) => error.with_source(cause.as_str()),
            (None, None) => error,
        };
        error.with_ranks(self.ranks.iter().copied())
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
            .with_source("the disk is gone")
            .with_hint("load it again, or use ‹verify=off›");
        let failure = Failure::new(3, &error);
        let text = serde_json::to_string(&failure).expect("serializes");
        let again: Failure = serde_json::from_str(&text).expect("parses");
        let error = again.error();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.ranks(), [3]);
        assert_eq!(
            error.chain(),
            "m/a.safetensors: tensor \"w\": rank 3: the digest differs\n  caused by: the disk is gone\n  hint: load it again, or use verify=off"
        );
    }

    #[test]
    fn failure_keeps_the_error_number() {
        let cause = io::Error::from_raw_os_error(libc::EMFILE);
        let failure = Failure::new(3, &Error::from_io("cannot open", cause));
        for error in [failure.error(), failure.not_begun()] {
            assert_eq!(error.errno(), Some(libc::EMFILE));
            assert!(error.chain().contains("Too many open files"), "{error}");
        }
    }

    #[test]
    fn failure_that_was_heard_of_keeps_its_ranks() {
        let error = Error::new(ErrorKind::Io, "rank 1: cannot read").with_ranks([1]);
        let error = Failure::new(3, &error).error();
        assert_eq!(
            (error.message(), error.ranks()),
            ("rank 1: cannot read", &[1][..])
        );
    }

    #[test]
    fn cancellation_of_another_rank_is_its_loss() {
        let error = Error::new(ErrorKind::Cancelled, "the load was cancelled");
        assert_eq!(Failure::new(0, &error).error().kind(), ErrorKind::Peer);
    }
}
