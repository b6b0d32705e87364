//! Finds the ranks of one node, and the one that reads for them.
//!
//! Host names lie in containers. Whether two ranks share a node is proved by passing a descriptor
//! over a socket that is visible within one network namespace: the lowest rank to which that works
//! is the leader.

use std::error::Error as _;
use std::time::{Duration, Instant};

use super::agreement::{Difference, FileStates, Hello, NodeChoice, compare};
use super::channel::{Channel, Listener};
use super::dispatcher::Dispatcher;
use super::holdings::NODE_RANKS_MAX;
use super::link::Joining;
use super::messages::{Failure, Request};
use super::{Group, TIMEOUT_MAX};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::SharedMemory;

/// Default time that ranks have to begin a load together.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Place of a rank in its node.
#[derive(Debug)]
pub struct Node {
    /// Ranks of the node that share, this one included.
    pub ranks: Vec<usize>,
    /// By rank of the node: the CPUs that it may use, as [`Hello::cpus`] lists them.
    pub cpus: Vec<Option<String>>,
    /// Rank that reads for them.
    pub leader: usize,
    /// Role of this rank.
    pub role: Role,
    /// Leaders of all nodes that share with each other, ascending; none if they do not.
    pub leaders: Vec<usize>,
    /// Reason why this rank shares with no other, if it cannot.
    pub reason: Option<String>,
}

/// Scope of the sharing that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each rank reads for itself.
    Nothing,
    /// One rank of each node reads for all ranks of the node.
    Node,
    /// As `Node`, and the nodes send each other bytes.
    Cluster,
}

/// Role of a rank in a load.
#[derive(Debug)]
pub enum Role {
    /// It reads for others, and itself follows its own dispatcher.
    Leader(Dispatcher, Joining),
    /// Another rank of the node reads for it.
    Follower(Joining),
    /// No other rank of the node shares with it.
    Alone,
}

/// Limits of the time that ranks have to begin a load together, from its options.
#[derive(Clone, Copy, Debug, Default)]
pub struct JoinLimits {
    join_timeout: Option<Duration>,
    timeout: Option<Duration>,
}

impl JoinLimits {
    /// Creates the limits of a load with these values of the options `join_timeout` and `timeout`.
    pub fn new(join_timeout: Option<Duration>, timeout: Option<Duration>) -> Self {
        Self {
            join_timeout,
            timeout,
        }
    }

    /// Returns the time that ranks have.
    pub fn timeout(self) -> Duration {
        join_timeout_or_default(self.join_timeout)
    }

    /// Returns the time by which all ranks must have begun a load that this one began at `started`.
    pub fn deadline(self, started: Instant) -> Instant {
        let join = self.timeout();
        let timeout = self.timeout.map_or(join, |all| all.min(join));
        started + timeout.min(TIMEOUT_MAX)
    }
}

/// Returns the time that ranks have to begin together, given that of an option.
pub fn join_timeout_or_default(timeout: Option<Duration>) -> Duration {
    timeout.unwrap_or(JOIN_TIMEOUT).min(TIMEOUT_MAX)
}

/// Tells the other ranks of `group` that this one does not begin the load that they are about to
/// begin, because of `error`: they fail with it at once, with [`ErrorKind::Peer`], and do not wait
/// until their `join_timeout`. The group can be used for another load.
///
/// `Loader::stream` does so itself. Call this for an error before, such as that of `Loader::open`,
/// or drop the group. Waits for the others, within the limits: those of `LoadOptions`, for example.
pub fn give_up(group: &dyn Group, error: &Error, limits: impl Into<JoinLimits>) {
    let hello = Hello::given_up(Failure::new(group.rank(), error));
    let deadline = limits.into().deadline(Instant::now());
    // Return the error itself, not an error of announcing it. Ranks that sent the message of an
    // opening also announce that they do not begin.
    while exchange(group, &hello, deadline)
        .is_ok_and(|hellos: Vec<Hello>| hellos.iter().any(Hello::is_opening))
    {}
}

/// Agrees with all ranks of `group` on a load, and joins those of this node, if there is something
/// to share.
///
/// # Errors
///
/// [`ErrorKind::Peer`] for missing ranks and for differences between the ranks; the errors of the
/// group.
pub fn join(
    group: &dyn Group,
    mut hello: Hello,
    request: &Request,
    scope: Scope,
    deadline: Instant,
) -> Result<Node> {
    let rank = group.rank();
    let shares = scope != Scope::Nothing;
    let prefix = prefix(group);
    let listener = if shares {
        listen(&prefix)
    } else {
        Err(String::new())
    };
    hello.socket = listener.as_ref().ok().map(|it| it.name().to_owned());
    let mut hellos: Vec<Hello> = exchange(group, &hello, deadline)?;
    // Some ranks have opened their checkpoints before, and some open them now.
    while hellos.iter().any(Hello::is_opening) {
        hellos = exchange(group, &hello, deadline)?;
    }
    compare(&hellos)?;
    if let Some(difference) = Difference::of_contents(&hellos) {
        return Err(difference.error(&states(group, &difference, &hello, deadline)?));
    }
    let cpus_of = |rank: usize| hellos[rank].cpus.clone();
    let alone = |reason: Option<String>| Node {
        ranks: vec![rank],
        cpus: vec![cpus_of(rank)],
        leader: rank,
        role: Role::Alone,
        leaders: Vec::new(),
        reason,
    };
    if !shares {
        return Ok(alone(None));
    }
    let (leader, role) = choose(listener, &hellos[..rank], &prefix, rank, request, deadline)?;
    let (role, reason) = role.map_or_else(|reason| (None, Some(reason)), |role| (Some(role), None));
    let choice = NodeChoice {
        leader,
        reason: reason.clone(),
    };
    let close = |role: &Option<Role>| {
        if let Some(Role::Leader(dispatcher, _)) = role {
            dispatcher.close();
        }
    };
    let choices = exchange(group, &choice, deadline).inspect_err(|_| close(&role))?;
    let ranks = ranks_of(&choices, leader);
    let leaders = if scope == Scope::Cluster {
        leaders(&choices)
    } else {
        Vec::new()
    };
    let agreed = compare_nodes(group, &hello, &hellos, &choices, &leaders, deadline);
    agreed.inspect_err(|_| close(&role))?;
    let shares = ranks.len() > 1 || leaders.contains(&rank);
    if !shares || ranks.len() > NODE_RANKS_MAX {
        close(&role);
        let many = (ranks.len() > NODE_RANKS_MAX)
            .then(|| format!("more than {NODE_RANKS_MAX} ranks on one node"));
        return Ok(alone(reason.or(many)));
    }
    Ok(match role {
        Some(role) => Node {
            cpus: ranks.iter().copied().map(cpus_of).collect(),
            ranks,
            leader,
            role,
            leaders,
            reason: None,
        },
        None => alone(reason),
    })
}

/// Compares the files of the ranks of each node.
///
/// # Errors
///
/// [`ErrorKind::Peer`] if the files of this rank's node differ, or of a node that it shares with:
/// no rank waits for failed ones.
fn compare_nodes(
    group: &dyn Group,
    hello: &Hello,
    hellos: &[Hello],
    choices: &[NodeChoice],
    leaders: &[usize],
    deadline: Instant,
) -> Result<()> {
    let leader = choices[group.rank()].leader;
    let of_node = |leader: usize| {
        let ranks = ranks_of(choices, leader);
        let node = (ranks.len() <= NODE_RANKS_MAX).then_some(&*ranks)?;
        Some((leader, Difference::of_node(hellos, node)?))
    };
    let differences: Vec<_> = (0..choices.len()).filter_map(of_node).collect();
    let Some((_, first)) = differences.first() else {
        return Ok(());
    };
    // Every rank takes part, so that all of them have exchanged as many messages.
    let states = states(group, first, hello, deadline)?;
    let counts = |of: usize| of == leader || leaders.contains(&leader);
    let mut differences = differences.iter();
    let own = differences.find(|(leader, _)| counts(*leader));
    own.map_or(Ok(()), |(_, difference)| Err(difference.error(&states)))
}

/// Exchanges the states of the files that explain a difference, which every rank has found.
fn states(
    group: &dyn Group,
    difference: &Difference,
    hello: &Hello,
    deadline: Instant,
) -> Result<Vec<FileStates>> {
    let own = difference.states(group.rank(), hello);
    exchange(group, &own.to_vec(), deadline)
}

/// Listens for the other ranks of this node, or returns the reason why it cannot share with them.
pub(super) fn listen(prefix: &str) -> Result<Listener, String> {
    // Test with a sealed memory, like that of regions: the kernel may be too old for seals, or a
    // filter may refuse them.
    SharedMemory::new(1).map_err(|error| {
        let cause = error
            .source()
            .map_or_else(|| error.message().to_owned(), ToString::to_string);
        format!("cannot share memory: {cause}")
    })?;
    Listener::new(prefix).map_err(|error| format!("cannot share: {error}"))
}

/// Follows the leader of this node, or becomes it. Returns the leader, and the role or the reason
/// why there is none.
pub(super) fn choose(
    listener: Result<Listener, String>,
    lower: &[Hello],
    prefix: &str,
    rank: usize,
    request: &Request,
    deadline: Instant,
) -> Result<(usize, Result<Role, String>)> {
    let listener = match listener {
        Ok(listener) => listener,
        Err(reason) => return Ok((rank, Err(reason))),
    };
    let refused = |error: Error| match error.source() {
        Some(cause) => format!("{}: {cause}", error.message()),
        None => error.message().to_owned(),
    };
    Ok(match follow(lower, prefix, rank, request, deadline) {
        Ok(Some((leader, joining))) => (leader, Ok(Role::Follower(joining))),
        Ok(None) => (rank, lead(listener, rank, request).map_err(refused)),
        Err(error) if Instant::now() >= deadline => return Err(error),
        Err(error) => (rank, Err(refused(error))),
    })
}

/// Returns the ranks of the node that `leader` leads.
pub(super) fn ranks_of(choices: &[NodeChoice], leader: usize) -> Vec<usize> {
    let is_beside =
        |(_, choice): &(usize, &NodeChoice)| choice.leader == leader && choice.reason.is_none();
    let beside = choices.iter().enumerate().filter(is_beside);
    beside.map(|(rank, _)| rank).collect()
}

/// Returns the leaders of the nodes that can share with each other; none if there is one only, or
/// if a node would serve too many.
fn leaders(choices: &[NodeChoice]) -> Vec<usize> {
    let leads = |rank: &usize| choices[*rank].leader == *rank && choices[*rank].reason.is_none();
    let leaders = (0..choices.len()).filter(leads);
    let is_small = |leader: &usize| ranks_of(choices, *leader).len() <= NODE_RANKS_MAX;
    let leaders: Vec<usize> = leaders.filter(is_small).collect();
    let ranks = leaders
        .iter()
        .map(|leader| ranks_of(choices, *leader).len());
    let most = ranks.max().unwrap_or(0) + leaders.len().saturating_sub(1);
    if leaders.len() > 1 && most <= NODE_RANKS_MAX {
        leaders
    } else {
        Vec::new()
    }
}

/// Returns the beginning of the names that ranks of this node listen under.
pub(super) fn prefix(group: &dyn Group) -> String {
    if let Some(node) = group.simulated_node() {
        return format!("tload-{node}-");
    }
    let _ = group;
    "tload-".to_owned()
}

/// Joins the first of the lower ranks that leads this node, if there is one.
fn follow(
    lower: &[Hello],
    prefix: &str,
    rank: usize,
    request: &Request,
    deadline: Instant,
) -> Result<Option<(usize, Joining)>> {
    for (leader, hello) in lower.iter().enumerate() {
        if let Some(name) = (hello.socket.as_ref()).filter(|name| name.starts_with(prefix))
            && let Some(joining) = Joining::join(name, leader, rank, request, deadline)?
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
    let dispatcher = Dispatcher::start(listener, other)?;
    let joining =
        Joining::join_own(own, rank, rank, request).inspect_err(|_| dispatcher.close())?;
    Ok(Role::Leader(dispatcher, joining))
}

/// Exchanges a value with all ranks.
pub(super) fn exchange<T: serde::Serialize + serde::de::DeserializeOwned>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ranks_as_threads;

    #[test]
    fn ranks_of_a_node_know_the_cpus_of_each_other() {
        let cpus = [Some("0-3"), None, Some("4-7,9")].map(|it| it.map(str::to_owned));
        let groups = ranks_as_threads(cpus.len());
        let deadline = Instant::now() + Duration::from_secs(240);
        let join_as = |group: &dyn Group| {
            let mut hello = Hello::new(Vec::new(), Vec::new());
            hello.cpus.clone_from(&cpus[group.rank()]);
            join(group, hello, &Request::default(), Scope::Node, deadline)
        };
        std::thread::scope(|scope| {
            let ranks = groups.iter().map(|group| scope.spawn(|| join_as(&**group)));
            for rank in ranks.collect::<Vec<_>>() {
                let node = rank.join().expect("no panic").expect("all are there");
                assert_eq!((node.ranks, node.cpus), (vec![0, 1, 2], cpus.to_vec()));
                if let Role::Leader(dispatcher, _own) = &node.role {
                    dispatcher.close();
                }
            }
        });
    }

    #[test]
    fn longest_timeout_has_a_deadline() {
        let limits = JoinLimits::new(Some(Duration::MAX), None);
        let started = Instant::now();
        assert_eq!(limits.deadline(started), started + TIMEOUT_MAX);
    }
}
