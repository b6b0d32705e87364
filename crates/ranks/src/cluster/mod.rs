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

mod frame;
mod other_leader;
mod receiving;
mod serving;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use frame::{FRAME_BYTES, Frame, Kind, PAYLOAD_MAX, encode_ranges};
use other_leader::{OtherLeader, OtherState, Unfilled};
pub use serving::{Served, ServedRange};

use super::dispatcher::Dispatcher;
use super::link::{Joining, Link};
use super::messages::{Failure, RankPlan};
use super::serving::ServingGuard;
use super::transport::Transport;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Lease;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;

/// Time in which another leader must take a message, and without a message after which it has
/// stopped: once it has begun, it gives a sign of life every second or two.
const SILENCE: Duration = Duration::from_secs(10);

/// Time in which a failed leader tells the others, before the load began.
const FAREWELL: Duration = Duration::from_secs(5);

/// Bytes that a leader wants of another node, and the memory for them.
#[derive(Debug)]
pub struct Fetch {
    /// Number of the extent, which identifies the fetch.
    pub extent: usize,
    /// Index of the source in the engine.
    pub number: usize,
    /// Index of the source in the checkpoint.
    pub source: usize,
    /// Offset in the source at which the window begins.
    pub offset: u64,
    /// Number of bytes that must arrive, from there.
    pub needed: usize,
    /// Window for the bytes.
    pub lease: Lease,
    /// Wanted ranges of the source, inside the window.
    pub ranges: Vec<Range<u64>>,
}

/// End of a fetch.
#[derive(Debug)]
pub struct Received {
    /// The fetch.
    pub fetch: Fetch,
    /// Outcome of the fetch.
    pub outcome: Outcome,
}

/// Outcome of a fetch.
#[derive(Debug)]
pub enum Outcome {
    /// The window holds the bytes.
    Filled,
    /// The owner went on without this node.
    Gone,
    /// The owner has failed or is lost.
    Failed(Error),
    /// No rank of this node needs it any more.
    Unneeded,
    /// This load is over.
    Cancelled,
}

/// Change that the leader's reads are told of.
#[derive(Debug)]
pub enum ClusterEvent<'a> {
    /// Another leader has failed or is lost, from which something is still needed.
    Failed(&'a Error),
    /// Every other leader has read and verified what it reads for this node.
    Whole,
}

type Listener = Arc<dyn Fn(&ClusterEvent<'_>) + Send + Sync>;

/// Connections to the other leaders.
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    /// Rank of this leader.
    rank: usize,
    transport: Arc<dyn Transport>,
    others: Vec<OtherLeader>,
    /// Fetches that have ended.
    received: Mutex<Vec<Received>>,
    /// Notified when a fetch has ended.
    events: Arc<EventCount>,
    /// Until nothing more is received.
    listener: Mutex<Option<Listener>>,
    /// Threads that receive, and the one that starts them.
    receiving: AtomicUsize,
    /// The bytes need not be verified.
    is_unverified: AtomicBool,
    /// No rank of this node needs anything more.
    has_left: AtomicBool,
    is_cancelled: AtomicBool,
}

/// Ranges of sources, by the number of the source.
type Ranges = Vec<(usize, Range<u64>)>;

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

    /// Sends the ranges that this node wants to every other leader, and returns theirs.
    ///
    /// # Errors
    ///
    /// The failure of another leader; [`ErrorKind::Peer`] for one that is lost, or sends nothing by
    /// the `deadline`; [`ErrorKind::OutOfMemory`] for threads.
    pub fn exchange(
        &self,
        ranges: &[(usize, Range<u64>)],
        deadline: Instant,
    ) -> Result<Vec<Ranges>> {
        let message = serde_json::to_vec(ranges).map_err(|error| {
            Error::new(ErrorKind::InvalidRequest, "cannot describe the load").with_source(error)
        })?;
        let (inner, message) = (&*self.inner, &message);
        std::thread::scope(|scope| {
            let sending = inner.others.iter().map(|other| {
                let send = move || inner.send(other, Frame::new(Kind::Wants), message, deadline);
                Builder::new().spawn_scoped(scope, send)
            });
            let sending = sending
                .collect::<io::Result<Vec<_>>>()
                .map_err(Error::cannot_start_thread)?;
            let receiving = inner.others.iter().map(|other| {
                let receive = move || inner.receive_wants(other, deadline);
                Builder::new().spawn_scoped(scope, receive)
            });
            let receiving = receiving
                .collect::<io::Result<Vec<_>>>()
                .map_err(Error::cannot_start_thread)?;
            let bug = || Error::new(ErrorKind::Io, "a thread of the exchange panicked");
            let received: Result<Vec<_>> = receiving
                .into_iter()
                .map(|it| it.join().map_err(|_| bug())?)
                .collect();
            let sent = sending.into_iter().map(|it| it.join().map_err(|_| bug())?);
            // A failure that another leader has sent says more than the end of its connection.
            let sent: Result<()> = sent.collect();
            let received = received?;
            sent.map(|()| received)
        })
    }

    /// Tells leaders that this one has failed, without the threads that serve them.
    fn abort(&self, others: &[&OtherLeader], message: &[u8]) {
        let deadline = Instant::now() + FAREWELL;
        std::thread::scope(|scope| {
            for other in others {
                let tell = move || {
                    let failed = Frame::new(Kind::Failed);
                    // Sending fails if the other leaders have failed themselves.
                    let _ = self.inner.send(other, failed, message, deadline);
                };
                if Builder::new().spawn_scoped(scope, tell).is_err() {
                    // No thread is left, so the connections are opened one after the other.
                    tell();
                }
            }
        });
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
    /// [`ErrorKind::OutOfMemory`] for threads or addresses.
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

impl Inner {
    fn other(&self, rank: usize) -> &OtherLeader {
        let mut others = self.others.iter();
        others
            .find(|other| other.rank == rank)
            .expect("an owner leads a node")
    }

    /// Sends a message.
    fn send(
        &self,
        other: &OtherLeader,
        frame: Frame,
        payload: &[u8],
        deadline: Instant,
    ) -> Result<()> {
        let frame = frame.with_payload(payload);
        self.transport
            .send(other.position, &frame.encode(), deadline)?;
        if payload.is_empty() {
            return Ok(());
        }
        self.transport.send(other.position, payload, deadline)
    }

    /// Describes a failure of this node for others.
    fn failure(&self, error: &Error) -> Vec<u8> {
        serde_json::to_vec(&Failure::new(self.rank, error)).unwrap_or_default()
    }

    fn receive_frame(&self, other: &OtherLeader, deadline: Instant) -> Result<Frame> {
        let mut bytes = [0; FRAME_BYTES];
        self.transport
            .receive(other.position, &mut bytes, deadline)?;
        Frame::decode(&bytes).ok_or_else(|| other.unintelligible())
    }

    /// Receives the payload of a message that is not for a fetch.
    fn receive_payload(
        &self,
        other: &OtherLeader,
        frame: &Frame,
        deadline: Instant,
    ) -> Result<Vec<u8>> {
        if frame.len > PAYLOAD_MAX {
            return Err(other.unintelligible());
        }
        let mut payload = vec![0; usize::try_from(frame.len).unwrap_or(0)];
        if !payload.is_empty() {
            self.transport
                .receive(other.position, &mut payload, deadline)?;
        }
        if frame.checksum(&payload) != frame.crc {
            return Err(other.damaged());
        }
        Ok(payload)
    }

    fn receive_wants(&self, other: &OtherLeader, deadline: Instant) -> Result<Ranges> {
        let frame = self.receive_frame(other, deadline)?;
        let payload = self.receive_payload(other, &frame, deadline)?;
        match frame.kind {
            Kind::Wants => serde_json::from_slice(&payload).map_err(|_| other.unintelligible()),
            Kind::Failed => Err(other.failure(&payload)),
            Kind::Fetch
            | Kind::Bytes
            | Kind::Gone
            | Kind::Whole
            | Kind::Done
            | Kind::Bye
            | Kind::Alive => Err(other.unintelligible()),
        }
    }

    /// Returns the outcome of fetches that no longer wait for the other leader, if that is so.
    fn outcome_without(&self, state: &OtherState) -> Option<Outcome> {
        if self.has_left.load(Ordering::SeqCst) {
            Some(Outcome::Unneeded)
        } else if self.is_cancelled.load(Ordering::SeqCst) {
            Some(Outcome::Cancelled)
        } else {
            let ended = state.ended.as_ref();
            ended.map(|error| Outcome::Failed(error.again()))
        }
    }

    fn end(&self, fetch: Fetch, outcome: Outcome) {
        self.received.lock().push(Received { fetch, outcome });
        self.events.notify();
    }

    fn end_fetches(&self, other: &OtherLeader, outcome: impl Fn() -> Outcome) {
        let fetches = std::mem::take(&mut other.state.lock().fetches);
        for unfilled in fetches.into_values() {
            self.end(unfilled.fetch, outcome());
        }
    }

    fn tell(&self, event: &ClusterEvent<'_>) {
        // The lock is released first, because this may fail the load, which ends here.
        let listener = self.listener.lock().clone();
        if let Some(listener) = listener {
            listener(event);
        }
    }

    /// Records that a thread receives nothing more; after the last one, nothing is told.
    fn receiver_ended(&self) {
        if self.receiving.fetch_sub(1, Ordering::SeqCst) == 1 {
            let listener = self.listener.lock().take();
            drop(listener);
        }
    }

    /// Records that another leader fills no more fetches.
    fn ended(&self, other: &OtherLeader, error: &Error) {
        let is_needed = {
            let mut state = other.state.lock();
            state.needs_nothing = true;
            if state.ended.is_some() {
                return;
            }
            state.ended = Some(error.again());
            let is_unverified = self.is_unverified.load(Ordering::SeqCst);
            let is_whole = state.is_whole || is_unverified || state.expected == 0;
            !state.is_done && (state.missing > 0 || !is_whole)
        };
        if is_needed {
            self.tell(&ClusterEvent::Failed(error));
        }
        self.end_fetches(other, || Outcome::Failed(error.again()));
        other.notify();
        self.events.notify();
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
