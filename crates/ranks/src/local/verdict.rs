//! Reasons for which a local group fails, and their errors. Pure: every rank that gets a verdict
//! makes the same error of it.

use serde::{Deserialize, Serialize};

use crate::error::{Comparison, Error, ErrorKind, listed_ranks};

/// Reason for which a group has failed, or for which rank 0 turns a process away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
    /// Ranks that did not join by the earliest deadline.
    NotJoined { ranks: Vec<usize>, size: usize },
    /// Ranks that did not send a message by the earliest deadline.
    NotSent { ranks: Vec<usize>, size: usize },
    /// Ranks whose connection ended.
    Gone { ranks: Vec<usize> },
    /// Rank that two processes claim.
    Duplicate { rank: usize },
    /// Rank that expects a group of another size than rank 0.
    Size {
        rank: usize,
        found: usize,
        expected: usize,
    },
    /// Rank that speaks another version of the protocol than rank 0.
    Version {
        rank: usize,
        found: u32,
        expected: u32,
    },
    /// Failure of rank 0 to accept connections.
    NotAccepting { cause: String },
}

impl Verdict {
    pub(super) fn error(&self) -> Error {
        let peer = |ranks: &[usize], message: String| {
            Error::new(ErrorKind::Peer, message).with_ranks(ranks.iter().copied())
        };
        let compared = |rank: usize, noun: &str, found: String, expected: String| {
            let message = format!("rank {rank} has {noun} {found}, rank 0 has {expected}");
            let by = "rank 0".to_owned();
            peer(&[rank], message).with_comparison(Comparison {
                expected,
                found,
                by,
            })
        };
        match self {
            Self::NotJoined { ranks, size } => {
                let message = format!(
                    "{} of {size} did not join the group by the deadline",
                    listed_ranks(ranks)
                );
                peer(ranks, message).with_hint(
                    "check that these ranks have started, on this node and with the same path; or \
                     allow more time",
                )
            }
            Self::NotSent { ranks, size } => {
                let message = format!(
                    "{} of {size} did not take part in an exchange by the deadline",
                    listed_ranks(ranks)
                );
                peer(ranks, message).with_hint(
                    "check whether these ranks are stopped or busy with something else: all ranks \
                     must start the same loads in the same order",
                )
            }
            Self::Gone { ranks } => {
                let verb = if ranks.len() == 1 { "has" } else { "have" };
                let message = format!("{} {verb} left the group", listed_ranks(ranks));
                peer(ranks, message)
                    .with_hint("look for the first error there, then start all ranks again")
            }
            Self::Duplicate { rank } => {
                let message = format!("two processes joined the group as rank {rank}");
                peer(&[*rank], message).with_hint(
                    "give each process of a group its own rank, and each group its own path",
                )
            }
            Self::Size {
                rank,
                found,
                expected,
            } => compared(*rank, "group size", found.to_string(), expected.to_string())
                .with_hint("pass the same size on all ranks, and give each group its own path"),
            Self::Version {
                rank,
                found,
                expected,
            } => compared(
                *rank,
                "version",
                format!("{found} of the group protocol"),
                expected.to_string(),
            )
            .with_hint("install the same version of tload for all ranks"),
            Self::NotAccepting { cause } => {
                let message = format!("rank 0 cannot accept connections: {cause}");
                peer(&[0], message).with_hint("raise the limit of open files (ulimit -n) of rank 0")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_ranks_and_advise() {
        let size = Verdict::Size {
            rank: 1,
            found: 4,
            expected: 3,
        };
        for (verdict, ranks, text) in [
            (
                Verdict::NotJoined {
                    ranks: vec![2, 5, 6],
                    size: 8,
                },
                vec![2, 5, 6],
                "ranks 2, 5 and 6 of 8 did not join the group by the deadline",
            ),
            (
                Verdict::NotSent {
                    ranks: vec![2],
                    size: 8,
                },
                vec![2],
                "rank 2 of 8 did not take part in an exchange by the deadline",
            ),
            (
                Verdict::Gone { ranks: vec![1, 2] },
                vec![1, 2],
                "ranks 1 and 2 have left the group",
            ),
            (
                Verdict::Gone { ranks: vec![0] },
                vec![0],
                "rank 0 has left the group",
            ),
            (
                Verdict::Duplicate { rank: 1 },
                vec![1],
                "two processes joined the group as rank 1",
            ),
            (
                size.clone(),
                vec![1],
                "rank 1 has group size 4, rank 0 has 3",
            ),
            (
                Verdict::Version {
                    rank: 1,
                    found: 2,
                    expected: 1,
                },
                vec![1],
                "rank 1 has version 2 of the group protocol, rank 0 has 1",
            ),
            (
                Verdict::NotAccepting {
                    cause: "too many".to_owned(),
                },
                vec![0],
                "rank 0 cannot accept connections: too many",
            ),
        ] {
            let error = verdict.error();
            assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
            assert_eq!(error.ranks(), ranks, "{error}");
            assert_eq!(error.message(), text);
            assert!(error.hint().is_some(), "{error}");
        }
        let comparison = size.error().comparison().cloned().expect("has values");
        assert_eq!((&*comparison.expected, &*comparison.found), ("3", "4"));
    }
}
