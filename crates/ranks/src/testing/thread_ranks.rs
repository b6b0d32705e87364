//! Ranks that are threads of one process: they share nothing but the group.

use std::sync::Arc;
use std::time::Instant;

use super::thread_nodes::Network;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock::{Condvar, Mutex};
use crate::{Group, Transport};

/// Ranks of one process.
#[derive(Debug)]
struct Threads {
    size: usize,
    rounds: Mutex<Vec<Vec<Option<Vec<u8>>>>>,
    arrived: Condvar,
}

/// One of them.
#[derive(Debug)]
struct ThreadRank {
    threads: Arc<Threads>,
    rank: usize,
    round: Mutex<usize>,
    /// Its node, and the network between that and others.
    node: Option<(usize, Network)>,
}

impl Group for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.threads.size
    }

    fn exchange(&self, message: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let round = {
            let mut round = self.round.lock();
            *round += 1;
            *round - 1
        };
        let mut rounds = self.threads.rounds.lock();
        if rounds.len() <= round {
            rounds.push(vec![None; self.threads.size]);
        }
        rounds[round][self.rank] = Some(message.to_vec());
        self.threads.arrived.notify_all();
        loop {
            let all: Option<Vec<Vec<u8>>> = rounds[round].iter().cloned().collect();
            if let Some(all) = all {
                return Ok(all);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing = (0..self.threads.size).filter(|rank| rounds[round][*rank].is_none());
                return Err(Error::new(ErrorKind::Peer, "missing").with_ranks(missing));
            }
            rounds = self.threads.arrived.wait_timeout(rounds, left);
        }
    }

    fn transport(
        &self,
        leaders: &[usize],
        _deadline: Instant,
    ) -> Result<Option<Arc<dyn Transport>>> {
        let network = self.node.as_ref().map(|(_, network)| network);
        Ok(network.map(|network| network.connect(self.rank, leaders)))
    }

    fn simulated_node(&self) -> Option<usize> {
        self.node.as_ref().map(|(node, _)| *node)
    }
}

/// Creates a group of `size` ranks that are threads of this process.
pub fn ranks_as_threads(size: usize) -> Vec<Arc<dyn Group>> {
    threads(size, |_| None)
}

/// Creates a group of `nodes` simulated nodes with `ranks` threads of this process each, in order,
/// and the network between them.
pub fn nodes_as_threads(nodes: usize, ranks: usize) -> (Vec<Arc<dyn Group>>, Network) {
    let network = Network::default();
    let node = |rank: usize| Some((rank / ranks, network.clone()));
    (threads(nodes * ranks, node), network)
}

fn threads(size: usize, node: impl Fn(usize) -> Option<(usize, Network)>) -> Vec<Arc<dyn Group>> {
    let threads = Arc::new(Threads {
        size,
        rounds: Mutex::default(),
        arrived: Condvar::default(),
    });
    let rank = |rank| -> Arc<dyn Group> {
        Arc::new(ThreadRank {
            threads: Arc::clone(&threads),
            rank,
            round: Mutex::default(),
            node: node(rank),
        })
    };
    (0..size).map(rank).collect()
}
