//! Joining the leader of a node: a rank asks, waits for the answer, then for its part of the plan.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::{cannot_receive, cannot_send, is_any, lost};
use crate::agreement;
use crate::channel::{Channel, Peer, RESEND};
use crate::error::Result;
use crate::messages::{Failure, RankPlan, Request};
use crate::payload;
use crate::wait::wait_for;
use crate::wire::Record;

/// Connection to the leader before there is a plan.
pub struct Joining {
    pub(super) channel: Channel,
    pub(super) leader: usize,
    /// Records that came with an earlier one.
    pub(super) received: VecDeque<(Record, Option<OwnedFd>)>,
}

impl Joining {
    /// Connects to the leader that listens under `name`, and joins it as `rank`. Returns `None` if
    /// no leader of this node and user listens there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`](crate::error::ErrorKind::Peer) if the leader does not answer by the
    /// deadline; [`ErrorKind::OutOfMemory`](crate::error::ErrorKind::OutOfMemory) without
    /// descriptors.
    pub(crate) fn join(
        name: &str,
        leader: usize,
        rank: usize,
        request: &Request,
        deadline: Instant,
    ) -> Result<Option<Self>> {
        match Channel::connect(name) {
            Ok(channel) => Self::new(channel, leader).ask(rank, request, deadline),
            // No process of this node has the name, or a process of another user does.
            Err(error) if is_any(&error, &[Errno::CONNREFUSED, Errno::PERM]) => Ok(None),
            Err(error) => Err(cannot_send(error)),
        }
    }

    /// Asks the leader to join it; `None` if it refuses or is gone.
    fn ask(self, rank: usize, request: &Request, deadline: Instant) -> Result<Option<Self>> {
        match self.send(rank, request) {
            Ok(()) => self.accepted(deadline),
            // The leader has closed its socket without accepting this rank.
            Err(error) if is_any(&error, &[Errno::PIPE, Errno::CONNRESET]) => Ok(None),
            Err(error) => Err(cannot_send(error)),
        }
    }

    /// Waits for the leader's answer; `None` if it refuses.
    fn accepted(mut self, deadline: Instant) -> Result<Option<Self>> {
        match self.wait(deadline)? {
            Some((Record::Joined, _)) => Ok(Some(self)),
            // The rank follows another leader, which is not on this node, or belongs to another
            // user.
            _ => Ok(None),
        }
    }

    /// Joins the dispatcher of this process, whose rank is `leader`.
    pub(crate) fn join_own(
        channel: Channel,
        leader: usize,
        rank: usize,
        request: &Request,
    ) -> Result<Self> {
        let joining = Self::new(channel, leader);
        joining.send(rank, request).map_err(cannot_send)?;
        Ok(joining)
    }

    fn new(channel: Channel, leader: usize) -> Self {
        Self {
            channel,
            leader,
            received: VecDeque::new(),
        }
    }

    fn send(&self, rank: usize, request: &Request) -> io::Result<()> {
        let request = payload::write(request)?;
        let rank = u32::try_from(rank).expect("ranks are few");
        self.channel.post(Record::Join { rank }, Some(request));
        self.channel.flush()?;
        Ok(())
    }

    /// Waits for the rank's part of the plan.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`](crate::error::ErrorKind::Peer) if there is none by the deadline or the
    /// leader is gone; the error of the leader, if it failed.
    pub fn plan(&mut self, deadline: Instant) -> Result<RankPlan> {
        self.answer(deadline)
    }

    /// Waits for the leader's answer to the rank: its part of the plan, or what it joined for.
    ///
    /// # Errors
    ///
    /// Those of [`Self::plan`].
    pub(crate) fn answer<T: DeserializeOwned>(&mut self, deadline: Instant) -> Result<T> {
        loop {
            match self.wait(deadline)? {
                Some((Record::Joined, _)) => {}
                Some((Record::Plan, Some(plan))) => {
                    return payload::read(plan).map_err(cannot_receive);
                }
                Some((Record::Failed, Some(failure))) => {
                    let failure: Failure = payload::read(failure).map_err(cannot_receive)?;
                    return Err(failure.error());
                }
                _ => return Err(lost(self.leader, "is gone")),
            }
        }
    }

    /// Waits for one message; `None` if the leader is gone.
    fn wait(&mut self, deadline: Instant) -> Result<Option<(Record, Option<OwnedFd>)>> {
        loop {
            if let Some(record) = self.received.pop_front() {
                return Ok(Some(record));
            }
            // If the leader is gone, receiving shows it.
            let is_sent = self.channel.flush().unwrap_or(true);
            let now = Instant::now();
            let until = if is_sent {
                deadline
            } else {
                deadline.min(now + RESEND)
            };
            let incoming: Vec<_> = self.channel.incoming().collect();
            let ready = wait_for(&incoming, Some(until)).map_err(cannot_receive)?;
            if !ready.contains(&true) {
                if until < deadline {
                    continue;
                }
                return Err(if is_sent {
                    agreement::missing(&[self.leader], "answer")
                } else {
                    cannot_send(Errno::NOBUFS.into())
                });
            }
            let mut records = Vec::new();
            let peer = self.channel.receive(&mut records).map_err(cannot_receive)?;
            self.received.extend(records);
            if self.received.is_empty() && peer == Peer::Gone {
                return Ok(None);
            }
        }
    }
}

impl fmt::Debug for Joining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joining")
            .field("leader", &self.leader)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::channel::Listener;

    #[test]
    fn leader_that_closes_its_socket_does_not_lead() {
        let listener = Listener::new("tload-").expect("a socket");
        let channel = Channel::connect(listener.name()).expect("listens");
        drop(listener);
        let deadline = Instant::now() + Duration::from_secs(60);
        let joined = Joining::new(channel, 0).ask(1, &Request::default(), deadline);
        assert!(joined.expect("no error").is_none());
    }

    /// The system may have no memory for it, or too many descriptors under way.
    #[test]
    fn request_that_the_system_does_not_take_is_sent_again() {
        let (channel, leader) = Channel::pair().expect("a pair");
        while channel.flush().expect("is open") {
            channel.post(Record::Alive, None);
        }
        let joining = Joining::join_own(channel, 0, 1, &Request::default());
        let mut joining = joining.expect("is queued");
        let deadline = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let joined = scope.spawn(move || joining.wait(deadline));
            let mut records = Vec::new();
            while !matches!(records.last(), Some((Record::Join { rank: 1 }, Some(_)))) {
                let incoming: Vec<_> = leader.incoming().collect();
                let ready = wait_for(&incoming, Some(deadline)).expect("waits");
                assert!(ready.contains(&true), "the request does not arrive");
                leader.receive(&mut records).expect("receives");
            }
            leader.post(Record::Joined, None);
            assert!(leader.flush().expect("is open"));
            let joined = joined.join().expect("no panic").expect("is answered");
            assert!(matches!(joined, Some((Record::Joined, None))));
        });
    }
}
