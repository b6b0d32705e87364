//! Openings of a group: ranks that are about to open the same objects find the one of their node
//! that does so, and get its opening.

use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Group;
use super::agreement::{Hello, NodeChoice, require_begun};
use super::dispatcher::{Dispatcher, Start, encode};
use super::holdings::NODE_RANKS_MAX;
use super::link::Joining;
use super::messages::Request;
use super::node::{Role, choose, exchange, listen, prefix, ranks_of};
use crate::error::{Error, Result};

/// Role of a rank in an opening.
#[derive(Debug)]
pub enum OpeningRole {
    /// It opens for other ranks too.
    Leader(Opener),
    /// It gets the opening of another rank.
    Follower(Opened),
    /// It opens for itself.
    Alone,
}

/// Rank that opens for others. Dropping it tells them that it has not.
#[derive(Debug)]
pub struct Opener {
    /// Until it serves the opening.
    dispatcher: Option<Dispatcher>,
    rank: usize,
    /// Ranks that it opens for.
    others: Vec<usize>,
    deadline: Instant,
}

/// Opening of another rank.
#[derive(Debug)]
pub struct Opened(Joining);

/// Meets the other ranks of `group`, which begin a load, and finds the rank that opens for this
/// one. `load` stands for what is opened: ranks share the opening if theirs is the same.
///
/// Every rank that opens takes part. If one of the others has opened its checkpoint already, or
/// opens none in an object store, each opens for itself.
///
/// # Errors
///
/// [`ErrorKind::Peer`](crate::error::ErrorKind::Peer) for missing ranks, and for those that do not
/// begin the load. Call [`super::give_up`] then, as for any other error of an opening.
pub fn meet(group: &dyn Group, load: String, deadline: Instant) -> Result<OpeningRole> {
    let rank = group.rank();
    let prefix = prefix(group);
    let listener = listen(&prefix);
    let mut hello = Hello::opening(load);
    hello.socket = listener.as_ref().ok().map(|it| it.name().to_owned());
    let mut hellos: Vec<Hello> = exchange(group, &hello, deadline)?;
    // An opening compares the same facts as the load that follows it.
    require_begun(&hellos)?;
    if !hellos.iter().all(Hello::is_opening) {
        return Ok(OpeningRole::Alone);
    }
    for other in &mut hellos {
        other.socket.take_if(|_| other.load != hello.load);
    }
    let request = Request::default();
    let (leader, role) = choose(listener, &hellos[..rank], &prefix, rank, &request, deadline)?;
    let choice = NodeChoice {
        leader,
        reason: role.as_ref().err().cloned(),
    };
    let mut role = match role {
        Ok(Role::Leader(dispatcher, _own)) => OpeningRole::Leader(Opener {
            dispatcher: Some(dispatcher),
            rank,
            others: Vec::new(),
            deadline,
        }),
        Ok(Role::Follower(joining)) => OpeningRole::Follower(Opened(joining)),
        Ok(Role::Alone) | Err(_) => OpeningRole::Alone,
    };
    let choices = exchange(group, &choice, deadline)?;
    let mut ranks = ranks_of(&choices, leader);
    // Every rank of the node must decide alike, because a follower without a leader would fail.
    if !(2..=NODE_RANKS_MAX).contains(&ranks.len()) {
        return Ok(OpeningRole::Alone);
    }
    if let OpeningRole::Leader(opener) = &mut role {
        ranks.retain(|other| *other != rank);
        opener.others = ranks;
    }
    Ok(role)
}

impl Opener {
    /// Passes the opening on to the other ranks.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`](crate::error::ErrorKind::Peer) for ranks that are gone;
    /// [`ErrorKind::OutOfMemory`](crate::error::ErrorKind::OutOfMemory).
    pub fn pass_on(mut self, opening: &impl Serialize) -> Result<()> {
        self.wait_for_others()?;
        let opening = encode(opening)?;
        if let Some(dispatcher) = self.dispatcher.take() {
            dispatcher.serve(Start::of_one_answer(&self.others, &opening));
        }
        Ok(())
    }

    /// Passes the error of the opening on to the other ranks.
    pub fn failed(self, error: &Error) {
        // Sending fails if the rank is gone, which then needs no error.
        let _ = self.wait_for_others();
        if let Some(dispatcher) = &self.dispatcher {
            dispatcher.failed(self.rank, error);
        }
    }

    fn wait_for_others(&self) -> Result<()> {
        let dispatcher = self.dispatcher.iter();
        let mut requests =
            dispatcher.map(|dispatcher| dispatcher.requests(&self.others, self.deadline));
        requests.try_for_each(|requests| requests.map(drop))
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        if let Some(dispatcher) = &self.dispatcher {
            dispatcher.close();
        }
    }
}

impl Opened {
    /// Waits for the opening.
    ///
    /// # Errors
    ///
    /// The error of the rank that opens; [`ErrorKind::Peer`](crate::error::ErrorKind::Peer) if it
    /// is gone, or does not answer by the deadline.
    pub fn receive<T: DeserializeOwned>(mut self, deadline: Instant) -> Result<T> {
        self.0.answer(deadline)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::ranks_as_threads;

    /// One rank of a node opens for all, up to the most that can share; beyond that, each opens.
    #[test]
    fn ranks_of_one_node_agree_on_the_one_that_opens() {
        for ranks in [1, 2, NODE_RANKS_MAX, NODE_RANKS_MAX + 1] {
            let group = ranks_as_threads(ranks);
            let deadline = Instant::now() + Duration::from_secs(240);
            let roles: Vec<_> = std::thread::scope(|scope| {
                let meet = |group| scope.spawn(move || meet(group, String::new(), deadline));
                let threads: Vec<_> = group.iter().map(|group| meet(&**group)).collect();
                let roles = threads
                    .into_iter()
                    .map(|rank| rank.join().expect("no panic"));
                roles.map(|role| role.expect("all are there")).collect()
            });
            let shares = (2..=NODE_RANKS_MAX).contains(&ranks);
            for (rank, role) in roles.iter().enumerate() {
                match role {
                    OpeningRole::Leader(opener) => {
                        assert!(shares && rank == 0, "{rank} of {ranks} leads");
                        assert_eq!(opener.others.len(), ranks - 1);
                    }
                    OpeningRole::Follower(_) => assert!(shares && rank > 0, "{rank} of {ranks}"),
                    OpeningRole::Alone => assert!(!shares, "{rank} of {ranks} is alone"),
                }
            }
        }
    }
}
