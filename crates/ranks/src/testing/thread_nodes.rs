//! Bytes between simulated nodes, whose ranks are threads of one process; and what happens to them
//! on the way.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::Transport;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock::{Condvar, Mutex};

/// One direction between two leaders in one load: load, sender, receiver.
type Way = (usize, usize, usize);

/// Network between simulated nodes. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Network(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Loads that each leader has connected for.
    loads: HashMap<usize, usize>,
    /// Messages on their way.
    ways: HashMap<Way, VecDeque<Vec<u8>>>,
    /// Leaders, by load, that have closed their connections.
    closed: HashSet<(usize, usize)>,
    cut: HashSet<usize>,
    stalled: HashSet<usize>,
    is_damaging: bool,
    sent: HashMap<usize, u64>,
}

impl Network {
    /// Ends all connections of the node that this rank leads, as if its process had been killed.
    pub fn cut(&self, leader: usize) {
        self.0.state.lock().cut.insert(leader);
        self.0.changed.notify_all();
    }

    /// Delivers nothing more from and to the node that this rank leads.
    pub fn stall(&self, leader: usize) {
        self.0.state.lock().stalled.insert(leader);
    }

    /// Changes a bit of every long message from now on.
    pub fn damage(&self) {
        self.0.state.lock().is_damaging = true;
    }

    /// Returns the bytes that the node which this rank leads has sent.
    pub fn sent(&self, leader: usize) -> u64 {
        let state = self.0.state.lock();
        state.sent.get(&leader).copied().unwrap_or(0)
    }

    /// Connects the leader `rank` with the others.
    pub(super) fn connect(&self, rank: usize, leaders: &[usize]) -> Arc<dyn Transport> {
        let mut state = self.0.state.lock();
        let load = state.loads.entry(rank).or_default();
        *load += 1;
        Arc::new(Connection {
            network: self.clone(),
            load: *load,
            rank,
            leaders: leaders.to_vec(),
        })
    }
}

/// Connections of one leader in one load.
#[derive(Debug)]
struct Connection {
    network: Network,
    load: usize,
    rank: usize,
    leaders: Vec<usize>,
}

impl Connection {
    /// Calls `look` until it returns something, or until the deadline.
    fn wait<T>(
        &self,
        other: usize,
        deadline: Instant,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T> {
        let lost = |how: &str| {
            Err(Error::new(ErrorKind::Peer, format!("the connection {how}")).with_ranks([other]))
        };
        let inner = &*self.network.0;
        let mut state = inner.state.lock();
        loop {
            let is_among = |set: &HashSet<usize>| set.contains(&other) || set.contains(&self.rank);
            if is_among(&state.cut) {
                return lost("was cut");
            }
            if !is_among(&state.stalled)
                && let Some(found) = look(&mut state)
            {
                inner.changed.notify_all();
                return Ok(found);
            }
            if state.closed.contains(&(self.load, other)) {
                return lost("was closed");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return lost("timed out");
            }
            state = inner.changed.wait_timeout(state, left);
        }
    }
}

impl Transport for Connection {
    fn send(&self, to: usize, bytes: &[u8], deadline: Instant) -> Result<()> {
        let to = self.leaders[to];
        let way = (self.load, self.rank, to);
        let mut message = Some(bytes.to_vec());
        self.wait(to, deadline, |state| {
            let mut message = message.take()?;
            *state.sent.entry(self.rank).or_default() += message.len() as u64;
            if state.is_damaging && message.len() > 1000 {
                message[500] ^= 1;
            }
            state.ways.entry(way).or_default().push_back(message);
            Some(())
        })?;
        // Until it has been taken.
        self.wait(to, deadline, |state| {
            let is_empty = state.ways.get(&way).is_none_or(VecDeque::is_empty);
            is_empty.then_some(())
        })
    }

    fn receive(&self, from: usize, bytes: &mut [u8], deadline: Instant) -> Result<()> {
        let from = self.leaders[from];
        let way = (self.load, from, self.rank);
        let message = self.wait(from, deadline, |state| {
            state.ways.get_mut(&way)?.pop_front()
        })?;
        assert_eq!(message.len(), bytes.len(), "pieces as they were sent");
        bytes.copy_from_slice(&message);
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.network.0.state.lock();
        state.closed.insert((self.load, self.rank));
        self.network.0.changed.notify_all();
    }
}
