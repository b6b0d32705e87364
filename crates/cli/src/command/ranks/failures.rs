//! Choice of the error to show when several ranks fail. Pure.

use std::process::ExitStatus;

use tload::{Error, ErrorKind};

use super::messages::Failed;

/// Reason why a rank did not finish its load.
#[derive(Debug)]
pub(super) enum Failure {
    /// The rank told its error.
    Told(Failed),
    /// Its process ended without an error.
    Ended {
        process: u32,
        status: Option<ExitStatus>,
    },
}

impl Failure {
    /// Returns a smaller number for a failure that is more likely to be the cause of the others:
    /// the death of a process, then an error of the rank itself, then one that it heard of.
    fn order(&self, rank: usize) -> u8 {
        match self {
            Self::Ended { status, .. } if signal(*status).is_some() => 0,
            Self::Told(failed) if failed.kind() != ErrorKind::Peer => {
                let is_own = failed.ranks.is_empty() || failed.ranks.contains(&rank);
                if is_own { 1 } else { 3 }
            }
            Self::Ended { .. } => 2,
            Self::Told(_) => 4,
        }
    }

    fn error(&self, rank: usize) -> Error {
        match self {
            Self::Told(failed) => failed.error(rank),
            Self::Ended { process, status } => ended(rank, *process, *status),
        }
    }
}

/// Returns the error that explains the others, with the number of those. `failures` are in the
/// order in which they became known, at most one for each rank of `size`.
pub(super) fn first(failures: &[(usize, Failure)], size: usize) -> Option<Error> {
    let order = |(rank, failure): &&(usize, Failure)| failure.order(*rank);
    let (rank, failure) = failures.iter().min_by_key(order)?;
    let error = failure.error(*rank);
    let mut others: Vec<usize> = failures.iter().map(|(rank, _)| *rank).collect();
    others.retain(|other| other != rank);
    others.sort_unstable();
    let stopped = size - 1 - others.len();
    let failed = match others[..] {
        [] => None,
        [rank] => Some(format!("rank {rank} failed too")),
        _ if stopped == 0 => Some(format!("the other {} ranks failed too", others.len())),
        _ => {
            let numbers: Vec<_> = others.iter().map(ToString::to_string).collect();
            Some(format!("ranks {} failed too", numbers.join(", ")))
        }
    };
    let stopped = match stopped {
        0 => None,
        1 => Some("1 rank was stopped".to_owned()),
        count => Some(format!("{count} ranks were stopped")),
    };
    let others: Vec<String> = failed.into_iter().chain(stopped).collect();
    if others.is_empty() {
        return Some(error);
    }
    let hint = error
        .hint_with(tload_config::flag)
        .map_or_else(String::new, |hint| format!("{hint}; "));
    Some(error.with_hint(format!("{hint}{}", others.join(", "))))
}

/// Returns the error for a process that ended before its load.
fn ended(rank: usize, process: u32, status: Option<ExitStatus>) -> Error {
    let process = format!("rank {rank}: process {process}");
    let message = match (signal(status), status.and_then(|status| status.code())) {
        (Some(signal), _) => {
            let name = signal_hook::low_level::signal_name(signal)
                .map_or_else(String::new, |name| format!(" ({name})"));
            format!("{process} was killed by signal {signal}{name}")
        }
        (None, Some(code)) => format!("{process} ended with status {code}"),
        (None, None) => format!("{process} ended"),
    };
    let error = Error::new(ErrorKind::Peer, message).with_ranks([rank]);
    if signal(status) == Some(signal_hook::consts::SIGKILL) {
        return error.with_hint("if no user killed it, memory may have run out: see dmesg");
    }
    error
}

fn signal(status: Option<ExitStatus>) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn told(kind: ErrorKind, message: &str, ranks: &[usize]) -> Failure {
        let error = Error::new(kind, message).with_ranks(ranks.iter().copied());
        Failure::Told(Failed::new(&error))
    }

    fn died(status: i32) -> Failure {
        let status = Some(ExitStatus::from_raw(status));
        Failure::Ended {
            process: 77,
            status,
        }
    }

    #[test]
    fn killed_rank_explains_lost_peers() {
        let failures = [
            (1, told(ErrorKind::Peer, "rank 0 is gone", &[0])),
            (0, died(9)),
        ];
        let error = first(&failures, 4).expect("failures");
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert_eq!(error.ranks(), [0]);
        assert_eq!(
            error.chain(),
            "rank 0: process 77 was killed by signal 9 (SIGKILL)\n  hint: if no user killed it, memory \
             may have run out: see dmesg; rank 1 failed too, 2 ranks were stopped"
        );
    }

    #[test]
    fn error_of_the_rank_itself_comes_before_those_that_heard_of_it() {
        let failures = [
            (
                2,
                told(ErrorKind::Corrupt, "rank 0: the digest differs", &[0]),
            ),
            (0, told(ErrorKind::Corrupt, "the digest differs", &[])),
            (1, told(ErrorKind::Peer, "rank 0 left", &[0])),
        ];
        let error = first(&failures, 3).expect("failures");
        assert_eq!(error.message(), "rank 0: the digest differs");
        assert_eq!(error.hint(), Some("the other 2 ranks failed too"));
        let alone = first(&failures[..1], 1).expect("a failure");
        assert_eq!(
            (alone.message(), alone.hint()),
            ("rank 0: the digest differs", None)
        );
    }

    #[test]
    fn exit_without_answer_is_reported() {
        let error = first(&[(3, died(101 << 8))], 4).expect("a failure");
        assert_eq!(error.message(), "rank 3: process 77 ended with status 101");
        assert_eq!(error.hint(), Some("3 ranks were stopped"));
        assert!(first(&[], 4).is_none());
    }
}
