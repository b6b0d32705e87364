//! Decisions of rank 0: who is in the group, when an exchange is complete, why it fails. Pure.
//!
//! The first exchange is the join itself: each rank sends an empty message right after its hello.

use std::time::Instant;

use super::verdict::Verdict;
use super::wire::{Hello, VERSION};

/// State of a group, as rank 0 knows it.
#[derive(Debug)]
pub(super) struct Gather {
    members: Vec<Member>,
    /// Set until the first exchange is complete.
    is_joining: bool,
    /// Reason for which the group has failed: every later exchange gets it too.
    verdict: Option<Verdict>,
}

#[derive(Debug)]
enum Member {
    Absent,
    Idle,
    /// Waits for the end of an exchange.
    Waiting {
        message: Vec<u8>,
        deadline: Instant,
    },
    Gone,
}

/// Answer to waiting ranks, which no longer wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Messages of all ranks, for all of them.
    All(Vec<Vec<u8>>),
    /// Failure, for these ranks.
    Failed { to: Vec<usize>, verdict: Verdict },
}

impl Gather {
    /// Creates a group of `size` ranks, in which only rank 0 is present.
    pub(super) fn new(size: usize) -> Self {
        let members = (0..size).map(|rank| match rank {
            0 => Member::Idle,
            _ => Member::Absent,
        });
        Self {
            members: members.collect(),
            is_joining: true,
            verdict: None,
        }
    }

    /// Lets a process in. While ranks join, one that does not fit fails the group, so that all
    /// ranks learn why; a complete group only turns it away.
    pub(super) fn admit(&mut self, hello: &Hello) -> Result<(), Verdict> {
        let size = self.members.len();
        let rank = hello.rank;
        let reason = if hello.version != VERSION {
            Verdict::Version {
                rank,
                found: hello.version,
                expected: VERSION,
            }
        } else if hello.size != size {
            Verdict::Size {
                rank,
                found: hello.size,
                expected: size,
            }
        } else {
            match self.members.get_mut(rank) {
                Some(member @ Member::Absent) => {
                    *member = Member::Idle;
                    return Ok(());
                }
                Some(Member::Gone) => Verdict::Gone { ranks: vec![rank] },
                _ => Verdict::Duplicate { rank },
            }
        };
        if self.is_joining {
            self.fail(reason.clone());
        }
        Err(reason)
    }

    /// Takes the message of an admitted rank. Returns whether the rank was allowed to send one.
    pub(super) fn take(&mut self, rank: usize, message: Vec<u8>, deadline: Instant) -> bool {
        match self.members.get_mut(rank) {
            Some(member @ Member::Idle) => {
                *member = Member::Waiting { message, deadline };
                true
            }
            _ => false,
        }
    }

    /// Records that an admitted rank is gone.
    pub(super) fn leave(&mut self, rank: usize) {
        if let Some(member) = self.members.get_mut(rank) {
            *member = Member::Gone;
        }
    }

    /// Fails the group, unless it has failed before.
    pub(super) fn fail(&mut self, verdict: Verdict) {
        self.verdict.get_or_insert(verdict);
    }

    /// Returns whether ranks may still join.
    pub(super) fn is_joining(&self) -> bool {
        self.is_joining && self.verdict.is_none()
    }

    /// Returns the earliest deadline of a waiting rank.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadlines = self.members.iter().filter_map(|member| match member {
            Member::Waiting { deadline, .. } => Some(*deadline),
            Member::Absent | Member::Idle | Member::Gone => None,
        });
        deadlines.min()
    }

    /// Returns the answer to the waiting ranks, if there is one at the time `now`. The earliest
    /// deadline counts for all: an exchange that has failed on one rank cannot succeed on others.
    pub(super) fn answer(&mut self, now: Instant) -> Option<Answer> {
        let deadline = self.deadline()?;
        let gone = self.ranks(|member| matches!(member, Member::Gone));
        let late = self.ranks(|member| !matches!(member, Member::Waiting { .. }));
        let size = self.members.len();
        let verdict = match &self.verdict {
            Some(verdict) => verdict.clone(),
            None if late.is_empty() => {
                self.is_joining = false;
                let messages = self.members.iter_mut().filter_map(Member::release);
                return Some(Answer::All(messages.collect()));
            }
            None if !gone.is_empty() => Verdict::Gone { ranks: gone },
            None if now < deadline => return None,
            None if self.is_joining => Verdict::NotJoined { ranks: late, size },
            None => Verdict::NotSent { ranks: late, size },
        };
        self.fail(verdict.clone());
        let to = self.ranks(|member| matches!(member, Member::Waiting { .. }));
        for member in &mut self.members {
            member.release();
        }
        Some(Answer::Failed { to, verdict })
    }

    fn ranks(&self, is_wanted: impl Fn(&Member) -> bool) -> Vec<usize> {
        let members = self.members.iter().enumerate();
        let wanted = members.filter(|(_, member)| is_wanted(member));
        wanted.map(|(rank, _)| rank).collect()
    }
}

impl Member {
    /// Returns the message of a waiting rank, which no longer waits.
    fn release(&mut self) -> Option<Vec<u8>> {
        let Self::Waiting { message, .. } = self else {
            return None;
        };
        let message = std::mem::take(message);
        *self = Self::Idle;
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn hello(rank: usize, size: usize) -> Hello {
        Hello {
            version: VERSION,
            rank,
            size,
        }
    }

    fn later(now: Instant, seconds: u64) -> Instant {
        now + Duration::from_secs(seconds)
    }

    /// Returns a complete group of three and the time at which it was complete.
    fn joined() -> (Gather, Instant) {
        let now = Instant::now();
        let mut gather = Gather::new(3);
        for rank in 1..3 {
            gather.admit(&hello(rank, 3)).expect("free");
        }
        for rank in 0..3 {
            assert_eq!(gather.answer(now), None);
            assert!(gather.take(rank, vec![], later(now, 1)));
        }
        assert_eq!(gather.answer(now), Some(Answer::All(vec![vec![]; 3])));
        assert!(!gather.is_joining());
        (gather, now)
    }

    #[test]
    fn exchanges_end_with_messages_by_rank() {
        let (mut gather, now) = joined();
        for round in 0..3 {
            for rank in [2, 0, 1] {
                assert_eq!(gather.answer(now), None);
                let message = vec![round, u8::try_from(rank).expect("small")];
                assert!(gather.take(rank, message, later(now, 1)));
            }
            let all = (0..3).map(|rank| vec![round, rank]).collect();
            assert_eq!(gather.answer(now), Some(Answer::All(all)));
            assert_eq!(gather.answer(now), None);
        }
    }

    #[test]
    fn earliest_deadline_fails_all_with_missing_ranks() {
        let now = Instant::now();
        let mut gather = Gather::new(4);
        gather.admit(&hello(2, 4)).expect("free");
        assert!(gather.take(0, vec![], later(now, 9)));
        assert!(gather.take(2, vec![], later(now, 5)));
        assert_eq!(gather.deadline(), Some(later(now, 5)));
        assert_eq!(gather.answer(later(now, 4)), None);
        let verdict = Verdict::NotJoined {
            ranks: vec![1, 3],
            size: 4,
        };
        let failed = |to| {
            let verdict = verdict.clone();
            Some(Answer::Failed { to, verdict })
        };
        assert_eq!(gather.answer(later(now, 5)), failed(vec![0, 2]));
        assert_eq!(gather.deadline(), None);
        // A latecomer learns why at once.
        gather.admit(&hello(1, 4)).expect("free");
        assert!(gather.take(1, vec![], later(now, 99)));
        assert_eq!(gather.answer(now), failed(vec![1]));
    }

    #[test]
    fn late_rank_of_exchange_is_named_and_fails_too() {
        let (mut gather, now) = joined();
        gather.take(0, vec![], later(now, 1));
        gather.take(1, vec![], later(now, 1));
        let verdict = Verdict::NotSent {
            ranks: vec![2],
            size: 3,
        };
        let failed = |to| {
            let verdict = verdict.clone();
            Some(Answer::Failed { to, verdict })
        };
        assert_eq!(gather.answer(later(now, 1)), failed(vec![0, 1]));
        gather.take(2, vec![], later(now, 99));
        assert_eq!(gather.answer(now), failed(vec![2]));
    }

    #[test]
    fn gone_rank_fails_next_exchange_at_once() {
        let (mut gather, now) = joined();
        gather.leave(1);
        assert_eq!(gather.answer(now), None, "no rank waits");
        gather.take(2, vec![], later(now, 99));
        let verdict = Verdict::Gone { ranks: vec![1] };
        let failed = Answer::Failed {
            to: vec![2],
            verdict,
        };
        assert_eq!(gather.answer(now), Some(failed));
    }

    #[test]
    fn misfit_fails_group_that_is_joining_and_no_other() {
        let (mut complete, now) = joined();
        for (hello, verdict) in [
            (hello(0, 3), Verdict::Duplicate { rank: 0 }),
            (
                hello(1, 2),
                Verdict::Size {
                    rank: 1,
                    found: 2,
                    expected: 3,
                },
            ),
            (
                Hello {
                    version: VERSION + 1,
                    ..hello(1, 3)
                },
                Verdict::Version {
                    rank: 1,
                    found: VERSION + 1,
                    expected: VERSION,
                },
            ),
        ] {
            let mut joining = Gather::new(3);
            joining.take(0, vec![], later(now, 9));
            assert_eq!(joining.admit(&hello), Err(verdict.clone()));
            let to = vec![0];
            let expected = verdict.clone();
            let failed = Answer::Failed { to, verdict };
            assert_eq!(joining.answer(now), Some(failed));
            assert_eq!(complete.admit(&hello), Err(expected));
        }
        for rank in 0..3 {
            assert!(complete.take(rank, vec![], later(now, 9)));
        }
        assert_eq!(complete.answer(now), Some(Answer::All(vec![vec![]; 3])));
    }

    #[test]
    fn second_message_before_answer_is_refused() {
        let (mut gather, now) = joined();
        assert!(gather.take(1, vec![], later(now, 9)));
        assert!(!gather.take(1, vec![], later(now, 9)));
        assert!(!gather.take(7, vec![], later(now, 9)));
    }
}
