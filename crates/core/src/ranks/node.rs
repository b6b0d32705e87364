//! Finds the ranks of one node, and the one that reads for them.
//!
//! Host names lie in containers. Whether two ranks share a node is proved by passing a descriptor
//! over a socket that is visible within one network namespace: the lowest rank to which that works
//! is the leader.

use std::time::Instant;

use super::Group;
use super::agreement::{Hello, NodeChoice, compare, compare_node};
use super::channel::{Channel, Listener};
use super::holdings::NODE_RANKS_MAX;
use super::hub::Hub;
use super::link::Joining;
use super::messages::Request;
use super::payload;
use crate::error::{Error, ErrorKind, Result};

/// Place of a rank in its node.
pub(crate) struct Node {
    /// Ranks of the node that share, this one included.
    pub(crate) ranks: Vec<usize>,
    pub(crate) leader: usize,
    pub(crate) role: Role,
    /// Reason why this rank shares with no other, if it cannot.
    pub(crate) reason: Option<String>,
}

/// Role of a rank in a load.
pub(crate) enum Role {
    /// It reads for others, and itself follows its own hub.
    Leader(Hub, Joining),
    Follower(Joining),
    /// No other rank of the node shares with it.
    Alone,
}

/// Agrees with all ranks of `group` on a load, and joins those of this node. Without `shares`, only
/// agrees.
///
/// # Errors
///
/// [`ErrorKind::Peer`] for missing ranks and for differences between the ranks; the errors of the
/// group.
pub(crate) fn join(
    group: &dyn Group,
    mut hello: Hello,
    request: &Request,
    shares: bool,
    deadline: Instant,
) -> Result<Node> {
    let rank = group.rank();
    let listener = if shares {
        let memory = payload::write(&()).map_err(|error| format!("cannot share memory: {error}"));
        let listen = || Listener::new().map_err(|error| format!("cannot share: {error}"));
        memory.and_then(|_| listen())
    } else {
        Err("not requested".to_owned())
    };
    hello.socket = listener.as_ref().ok().map(|it| it.name().to_owned());
    let hellos: Vec<Hello> = exchange(group, &hello, deadline)?;
    compare(&hellos)?;
    let alone = |reason: Option<String>| Node {
        ranks: vec![rank],
        leader: rank,
        role: Role::Alone,
        reason,
    };
    if !shares {
        return Ok(alone(None));
    }
    let mut role = None;
    let mut leader = rank;
    let mut reason = None;
    match listener {
        Ok(listener) => match follow(&hellos[..rank], rank, request, deadline) {
            Ok(Some((number, joining))) => {
                leader = number;
                role = Some(Role::Follower(joining));
            }
            Ok(None) => match lead(listener, rank, request) {
                Ok(led) => role = Some(led),
                Err(error) => reason = Some(error.message().to_owned()),
            },
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(error) => reason = Some(error.message().to_owned()),
        },
        Err(error) => reason = Some(error),
    }
    let choice = NodeChoice {
        leader,
        reason: reason.clone(),
    };
    let close = |role: &Option<Role>| {
        if let Some(Role::Leader(hub, _)) = role {
            hub.close();
        }
    };
    let choices = exchange(group, &choice, deadline).inspect_err(|_| close(&role))?;
    let is_beside =
        |(_, other): &(usize, &NodeChoice)| other.leader == leader && other.reason.is_none();
    let ranks: Vec<usize> = (choices.iter().enumerate())
        .filter(is_beside)
        .map(|(rank, _)| rank)
        .collect();
    if ranks.len() < 2 || ranks.len() > NODE_RANKS_MAX {
        close(&role);
        let many = (ranks.len() > NODE_RANKS_MAX)
            .then(|| format!("more than {NODE_RANKS_MAX} ranks on one node"));
        return Ok(alone(reason.or(many)));
    }
    compare_node(&hellos, &ranks).inspect_err(|_| close(&role))?;
    Ok(match role {
        Some(role) => Node {
            ranks,
            leader,
            role,
            reason: None,
        },
        None => alone(reason),
    })
}

/// Joins the first of the lower ranks that leads this node, if there is one.
fn follow(
    lower: &[Hello],
    rank: usize,
    request: &Request,
    deadline: Instant,
) -> Result<Option<(usize, Joining)>> {
    for (leader, hello) in lower.iter().enumerate() {
        if let Some(name) = &hello.socket
            && let Some(joining) = Joining::join((name, leader), rank, request, deadline)?
        {
            return Ok(Some((leader, joining)));
        }
    }
    Ok(None)
}

/// Begins to lead this node.
fn lead(listener: Listener, rank: usize, request: &Request) -> Result<Role> {
    let (own, other) =
        Channel::pair().map_err(|error| Error::from_io("cannot start sharing", error))?;
    let hub = Hub::start(listener, other)?;
    let joining = Joining::join_own(own, rank, request).inspect_err(|_| hub.close())?;
    Ok(Role::Leader(hub, joining))
}

/// Exchanges a value with all ranks.
fn exchange<T: serde::Serialize + serde::de::DeserializeOwned>(
    group: &dyn Group,
    value: &T,
    deadline: Instant,
) -> Result<Vec<T>> {
    let message = serde_json::to_vec(value).map_err(|error| {
        Error::new(ErrorKind::InvalidRequest, "cannot describe the load").with_source(error)
    })?;
    let messages = group.exchange(&message, deadline)?;
    if messages.len() != group.size() {
        let message = format!(
            "the group returned {} messages for {} ranks",
            messages.len(),
            group.size()
        );
        return Err(Error::new(ErrorKind::InvalidRequest, message));
    }
    let read = |(rank, message): (usize, &Vec<u8>)| {
        serde_json::from_slice(message).map_err(|error| {
            let text = format!("rank {rank} sent something that this version does not understand");
            Error::new(ErrorKind::Peer, text)
                .with_hint("start every rank with the same version of tload")
                .with_ranks([rank])
                .with_source(error)
        })
    };
    messages.iter().enumerate().map(read).collect()
}
