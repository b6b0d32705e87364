//! The leaders of the other nodes, seen from the leader of one: the bytes that it fetches from
//! them, and those that they fetch from it.
//!
//! ```text
//!  lane ─ fetch ─▶ outbox ─▶ serving thread ═ Fetch ═▶ receiving thread ─ wanted ─▶ serving thread
//!                                                                                         │ link
//!  lane ◀─ received ─ receiving thread ◀═══════ Bytes ══════════════════════════ shared region
//! ```
//!
//! For each other leader there are two threads. The serving thread is a rank of this node's own
//! dispatcher: it asks for the regions that the other leader wants, and so they are kept until they
//! have been sent. Nothing is sent that was not asked for, and nothing is asked for before there is
//! memory for it, so that no message waits for another one's memory.
//!
//! `fetches` are what the lanes ask for, `exchange` is what leaders say before the threads begin,
//! and `inner` what the threads share.

mod exchange;
mod fetches;
mod frame;
mod inner;
mod other_leader;
mod receiving;
mod serving;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

pub use fetches::{ClusterEvent, Fetch, Outcome, Received};
use frame::{Frame, Kind, encode_ranges};
use inner::{Inner, Listener};
use other_leader::{OtherLeader, Unfilled};
pub use serving::{Served, ServedRange};

use super::dispatcher::Dispatcher;
use super::link::{Joining, Link};
use super::messages::RankPlan;
use super::serving::ServingGuard;
use super::transport::Transport;
use crate::error::{Error, Result};
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;

/// Connections to the other leaders.
pub struct Cluster {
    inner: Arc<Inner>,
}

impl Cluster {
    /// Takes over the connections of the leader `rank` to the other `leaders`.
    pub fn new(transport: Arc<dyn Transport>, rank: usize, leaders: &[usize]) -> Self {
        let others = leaders.iter().enumerate().filter(|(_, it)| **it != rank);
        let other = |(position, rank): (usize, &usize)| OtherLeader {
            rank: *rank,
            position,
            state: Mutex::default(),
            wake: OnceLock::new(),
        };
        let inner = Inner {
            rank,
            transport,
            others: others.map(other).collect(),
            received: Mutex::default(),
            events: Arc::default(),
            listener: Mutex::default(),
            receiving: AtomicUsize::new(0),
            is_unverified: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns the ranks that lead the other nodes.
    pub fn ranks(&self) -> impl Iterator<Item = usize> {
        self.inner.others.iter().map(|other| other.rank)
    }

    /// Joins the dispatcher of this node for each other leader, under the ranks behind `size`,
    /// which it returns.
    ///
    /// # Errors
    ///
    /// The system refuses sockets.
    pub fn join(&self, dispatcher: &Dispatcher, size: usize) -> Result<Vec<(usize, Joining)>> {
        let join = |(index, _): (usize, &OtherLeader)| {
            let rank = size + index;
            Ok((rank, dispatcher.attach(rank, self.inner.rank)?))
        };
        self.inner.others.iter().enumerate().map(join).collect()
    }

    /// Begins to serve the other leaders and to receive from them. `served` says, by other leader,
    /// what it wants of this node, and `expected` how many bytes this node wants of it; `listener`
    /// hears of changes. The other leaders may take until the `deadline` to begin, too.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::error::ErrorKind::OutOfMemory) for threads or addresses.
    pub fn begin(
        &self,
        joined: Vec<(Joining, RankPlan)>,
        served: Vec<Served>,
        expected: &[u64],
        is_verified: bool,
        listener: Listener,
        deadline: Instant,
    ) -> Result<()> {
        let inner = &self.inner;
        inner.is_unverified.store(!is_verified, Ordering::SeqCst);
        let mut links = Vec::new();
        for (index, ((joining, plan), served)) in joined.into_iter().zip(&served).enumerate() {
            let link = Link::begin(joining, &plan, &served.users(plan.regions.len()), false)?;
            let other = &inner.others[index];
            let mut state = other.state.lock();
            (state.missing, state.expected) = (expected[index], expected[index]);
            state.begins_by = Some(deadline);
            drop(state);
            let _ = other.wake.set(Arc::clone(link.events()));
            links.push(link);
        }
        *inner.listener.lock() = Some(listener);
        // This guard is for the present thread, until it has started the others.
        inner.receiving.store(1, Ordering::SeqCst);
        let started = self.start(links, served);
        inner.receiver_ended();
        started
    }

    /// Starts the threads of each other leader.
    fn start(&self, links: Vec<Link>, served: Vec<Served>) -> Result<()> {
        let inner = &self.inner;
        for (index, (link, served)) in links.into_iter().zip(served).enumerate() {
            let rank = inner.others[index].rank;
            let (serving, receiving) = (Arc::clone(inner), Arc::clone(inner));
            let spawn = |name: String| Builder::new().name(name);
            // The guards outlive the connections, which the process must not end before.
            let guard = ServingGuard::new();
            // Nothing else sends to this leader from now on.
            inner.others[index].state.lock().is_served = true;
            let started = spawn(format!("tload-to-{rank}")).spawn(move || {
                let (_guard, serving) = (guard, serving);
                serving::run(&serving, index, link, served);
                drop(serving);
            });
            if let Err(error) = started {
                inner.others[index].state.lock().is_served = false;
                return Err(Error::cannot_start_thread(error));
            }
            let guard = ServingGuard::new();
            inner.receiving.fetch_add(1, Ordering::SeqCst);
            let started = spawn(format!("tload-from-{rank}")).spawn(move || {
                let (_guard, receiving) = (guard, receiving);
                receiving::run(&receiving, index);
                drop(receiving);
            });
            if let Err(error) = started {
                inner.receiver_ended();
                return Err(Error::cannot_start_thread(error));
            }
        }
        Ok(())
    }

    /// Returns the count that changes when a fetch has ended.
    pub fn events(&self) -> &Arc<EventCount> {
        &self.inner.events
    }

    /// Fetches bytes of the node that `owner` leads.
    pub fn fetch(&self, owner: usize, fetch: Fetch) {
        let inner = &*self.inner;
        let other = inner.other(owner);
        let mut state = other.state.lock();
        if let Some(outcome) = inner.outcome_without(&state) {
            drop(state);
            inner.end(fetch, outcome);
            return;
        }
        let payload = encode_ranges(&fetch.ranges);
        let extent = fetch.extent as u64;
        let frame = Frame {
            source: u32::try_from(fetch.source).expect("shards are few"),
            extent,
            ..Frame::new(Kind::Fetch)
        };
        state.outbox.push_back((frame, payload));
        let missing = fetch.ranges.iter().map(|it| it.end - it.start).sum();
        state.fetches.insert(extent, Unfilled { fetch, missing });
        drop(state);
        other.notify();
    }

    /// Takes the fetches that have ended.
    pub fn take_received(&self, received: &mut Vec<Received>) {
        received.append(&mut self.inner.received.lock());
    }

    /// Ends all fetches: this load is over.
    pub fn cancel(&self) {
        self.inner.is_cancelled.store(true, Ordering::SeqCst);
        for other in &self.inner.others {
            self.inner.end_fetches(other, || Outcome::Cancelled);
        }
    }

    /// Tells the other leaders that everything that this node reads has been read and verified.
    pub fn whole(&self) {
        for other in &self.inner.others {
            other.post(Kind::Whole, Vec::new());
        }
    }

    /// Returns whether every other leader has read and verified what it reads for this node.
    pub fn are_whole(&self) -> bool {
        let is_whole = |other: &OtherLeader| {
            let state = other.state.lock();
            state.is_whole || state.expected == 0
        };
        self.inner.others.iter().all(is_whole)
    }

    /// Tells the other leaders that this node needs nothing more of them.
    pub fn done(&self) {
        for other in &self.inner.others {
            let mut state = other.state.lock();
            if !std::mem::replace(&mut state.is_done, true) {
                let frame = Frame::new(Kind::Done);
                state.outbox.push_back((frame, Vec::new()));
            }
            drop(state);
            other.notify();
        }
    }

    /// Records that no rank of this node needs anything more: what it still fetches is not sent.
    pub fn leave(&self) {
        self.inner.has_left.store(true, Ordering::SeqCst);
        for other in &self.inner.others {
            self.inner.end_fetches(other, || Outcome::Unneeded);
        }
        self.done();
    }

    /// Tells the other leaders that this node has failed.
    pub fn failed(&self, error: &Error) {
        let message = self.inner.failure(error);
        let mut unserved = Vec::new();
        for other in &self.inner.others {
            let mut state = other.state.lock();
            if state.is_served {
                // Set this before the serving thread sees that it may end.
                state.close(message.clone());
            } else {
                unserved.push(other);
                state.is_closing = true;
            }
            drop(state);
            other.notify();
        }
        self.abort(&unserved, &message);
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<_> = self.ranks().collect();
        f.debug_struct("Cluster")
            .field("ranks", &ranks)
            .finish_non_exhaustive()
    }
}
