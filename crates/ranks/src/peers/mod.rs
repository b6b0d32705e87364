//! The leaders of the other nodes, seen from the leader of one: what is claimed of them, and what
//! they claim.
//!
//! ```text
//!  lane ─ claim ─▶ outbox ─▶ serving thread ═ Claim ═▶ receiving thread ─ claims ─▶ serving thread
//!                                                                                         │ link
//!  lane ◀─ received ─ receiving thread ◀═══════ Bytes ══════════════════════════ shared region
//! ```
//!
//! For each peer there are two threads. The serving thread is a rank of this node's own hub: it
//! claims the regions that the peer wants, and so they are kept until they have been sent. Nothing
//! is sent that was not claimed, and nothing is claimed before there is memory for it, so that no
//! message waits for another one's memory.

mod frame;
mod peer;
mod receiving;
mod serving;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use frame::{FRAME_BYTES, Frame, Kind, PAYLOAD_MAX, encode_ranges};
use peer::{Peer, PeerState, Unfilled};
pub use serving::{Served, ServedRange};

use super::hub::Hub;
use super::link::{Joining, Link};
use super::messages::{Failure, RankPlan};
use super::serving::ServingGuard;
use super::transport::Transport;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Lease;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;

/// Time in which a peer must take a message, and without a message after which it has stopped: once
/// it has begun, it gives a sign of life every second or two.
const SILENCE: Duration = Duration::from_secs(10);

/// Time in which a failed leader tells the others, before the load began.
const FAREWELL: Duration = Duration::from_secs(5);

/// Bytes that a leader wants of another node, and the memory for them.
#[derive(Debug)]
pub struct Claim {
    /// Number of the extent, which identifies the claim.
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

/// End of a claim.
#[derive(Debug)]
pub struct Received {
    /// The claim.
    pub claim: Claim,
    /// How it ended.
    pub outcome: Outcome,
}

/// Outcome of a claim.
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
pub enum PeerEvent<'a> {
    /// A peer has failed or is lost, from which something is still needed.
    Failed(&'a Error),
    /// Every peer has read and verified what it reads for this node.
    Whole,
}

type Listener = Arc<dyn Fn(&PeerEvent<'_>) + Send + Sync>;

/// Connections to the other leaders.
pub struct Peers {
    shared: Arc<Shared>,
}

struct Shared {
    /// Rank of this leader.
    rank: usize,
    transport: Arc<dyn Transport>,
    peers: Vec<Peer>,
    /// Claims that have ended.
    received: Mutex<Vec<Received>>,
    /// Notified when a claim has ended.
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

impl Peers {
    /// Takes over the connections of the leader `rank` to the other `leaders`.
    pub fn new(transport: Arc<dyn Transport>, rank: usize, leaders: &[usize]) -> Self {
        let others = leaders.iter().enumerate().filter(|(_, it)| **it != rank);
        let peer = |(position, rank): (usize, &usize)| Peer {
            rank: *rank,
            position,
            state: Mutex::default(),
            wake: OnceLock::new(),
        };
        let shared = Shared {
            rank,
            transport,
            peers: others.map(peer).collect(),
            received: Mutex::default(),
            events: Arc::default(),
            listener: Mutex::default(),
            receiving: AtomicUsize::new(0),
            is_unverified: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Returns the ranks that lead the other nodes.
    pub fn ranks(&self) -> impl Iterator<Item = usize> {
        self.shared.peers.iter().map(|peer| peer.rank)
    }

    /// Sends the ranges that this node wants to every peer, and returns theirs.
    ///
    /// # Errors
    ///
    /// The failure of a peer; [`ErrorKind::Peer`] for one that is lost, or sends nothing by the
    /// `deadline`; [`ErrorKind::OutOfMemory`] for threads.
    pub fn exchange(
        &self,
        ranges: &[(usize, Range<u64>)],
        deadline: Instant,
    ) -> Result<Vec<Ranges>> {
        let message = serde_json::to_vec(ranges).map_err(|error| {
            Error::new(ErrorKind::InvalidRequest, "cannot describe the load").with_source(error)
        })?;
        let (shared, message) = (&*self.shared, &message);
        std::thread::scope(|scope| {
            let sending = shared.peers.iter().map(|peer| {
                let send = move || shared.send(peer, Frame::new(Kind::Wants), message, deadline);
                Builder::new().spawn_scoped(scope, send)
            });
            let sending = sending
                .collect::<io::Result<Vec<_>>>()
                .map_err(Error::cannot_start_thread)?;
            let receiving = shared.peers.iter().map(|peer| {
                let receive = move || shared.receive_wants(peer, deadline);
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
            // A failure that a peer has sent says more than the end of its connection.
            let sent: Result<()> = sent.collect();
            let received = received?;
            sent.map(|()| received)
        })
    }

    /// Tells leaders that this one has failed, without the threads that serve them.
    fn abort(&self, peers: &[&Peer], message: &[u8]) {
        let deadline = Instant::now() + FAREWELL;
        std::thread::scope(|scope| {
            for peer in peers {
                let tell = move || {
                    let failed = Frame::new(Kind::Failed);
                    // Sending fails if the peers have failed themselves.
                    let _ = self.shared.send(peer, failed, message, deadline);
                };
                if Builder::new().spawn_scoped(scope, tell).is_err() {
                    // No thread is left, so the connections are opened one after the other.
                    tell();
                }
            }
        });
    }

    /// Joins the hub of this node for each peer, under the ranks behind `size`, which it returns.
    ///
    /// # Errors
    ///
    /// The system refuses sockets.
    pub fn join(&self, hub: &Hub, size: usize) -> Result<Vec<(usize, Joining)>> {
        let join = |(index, _): (usize, &Peer)| {
            let rank = size + index;
            Ok((rank, hub.attach(rank, self.shared.rank)?))
        };
        self.shared.peers.iter().enumerate().map(join).collect()
    }

    /// Begins to serve the peers and to receive from them. `served` says, by peer, what it wants of
    /// this node, and `expected` how many bytes this node wants of it; `listener` hears of
    /// changes. The peers may take until the `deadline` to begin, too.
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
        let shared = &self.shared;
        shared.is_unverified.store(!is_verified, Ordering::SeqCst);
        let mut links = Vec::new();
        for (index, ((joining, plan), served)) in joined.into_iter().zip(&served).enumerate() {
            let link = Link::begin(joining, &plan, &served.users(plan.regions.len()), false)?;
            let peer = &shared.peers[index];
            let mut state = peer.state.lock();
            (state.missing, state.expected) = (expected[index], expected[index]);
            state.begins_by = Some(deadline);
            drop(state);
            let _ = peer.wake.set(Arc::clone(link.events()));
            links.push(link);
        }
        *shared.listener.lock() = Some(listener);
        // This guard is for the present thread, until it has started the others.
        shared.receiving.store(1, Ordering::SeqCst);
        let started = self.start(links, served);
        shared.receiver_ended();
        started
    }

    /// Starts the threads of each peer.
    fn start(&self, links: Vec<Link>, served: Vec<Served>) -> Result<()> {
        let shared = &self.shared;
        for (index, (link, served)) in links.into_iter().zip(served).enumerate() {
            let rank = shared.peers[index].rank;
            let (serving, receiving) = (Arc::clone(shared), Arc::clone(shared));
            let spawn = |name: String| Builder::new().name(name);
            // The guards outlive the connections, which the process must not end before.
            let guard = ServingGuard::new();
            // Nothing else sends to this peer from now on.
            shared.peers[index].state.lock().is_served = true;
            let started = spawn(format!("tload-to-{rank}")).spawn(move || {
                let (_guard, serving) = (guard, serving);
                serving::run(&serving, index, link, served);
                drop(serving);
            });
            if let Err(error) = started {
                shared.peers[index].state.lock().is_served = false;
                return Err(Error::cannot_start_thread(error));
            }
            let guard = ServingGuard::new();
            shared.receiving.fetch_add(1, Ordering::SeqCst);
            let started = spawn(format!("tload-from-{rank}")).spawn(move || {
                let (_guard, receiving) = (guard, receiving);
                receiving::run(&receiving, index);
                drop(receiving);
            });
            if let Err(error) = started {
                shared.receiver_ended();
                return Err(Error::cannot_start_thread(error));
            }
        }
        Ok(())
    }

    /// Returns the count that changes when a claim has ended.
    pub fn events(&self) -> &Arc<EventCount> {
        &self.shared.events
    }

    /// Claims bytes of the node that `owner` leads.
    pub fn claim(&self, owner: usize, claim: Claim) {
        let shared = &*self.shared;
        let peer = shared.peer(owner);
        let mut state = peer.state.lock();
        if let Some(outcome) = shared.outcome_without(&state) {
            drop(state);
            shared.end(claim, outcome);
            return;
        }
        let payload = encode_ranges(&claim.ranges);
        let extent = claim.extent as u64;
        let frame = Frame {
            source: u32::try_from(claim.source).expect("shards are few"),
            extent,
            ..Frame::new(Kind::Claim)
        };
        state.outbox.push_back((frame, payload));
        let missing = claim.ranges.iter().map(|it| it.end - it.start).sum();
        state.claims.insert(extent, Unfilled { claim, missing });
        drop(state);
        peer.notify();
    }

    /// Takes the claims that have ended.
    pub fn take_received(&self, received: &mut Vec<Received>) {
        received.append(&mut self.shared.received.lock());
    }

    /// Ends all claims: this load is over.
    pub fn cancel(&self) {
        self.shared.is_cancelled.store(true, Ordering::SeqCst);
        for peer in &self.shared.peers {
            self.shared.end_claims(peer, || Outcome::Cancelled);
        }
    }

    /// Tells the peers that everything that this node reads has been read and verified.
    pub fn whole(&self) {
        for peer in &self.shared.peers {
            peer.post(Kind::Whole, Vec::new());
        }
    }

    /// Returns whether every peer has read and verified what it reads for this node.
    pub fn are_whole(&self) -> bool {
        let is_whole = |peer: &Peer| {
            let state = peer.state.lock();
            state.is_whole || state.expected == 0
        };
        self.shared.peers.iter().all(is_whole)
    }

    /// Tells the peers that this node needs nothing more of them.
    pub fn done(&self) {
        for peer in &self.shared.peers {
            let mut state = peer.state.lock();
            if !std::mem::replace(&mut state.is_done, true) {
                let frame = Frame::new(Kind::Done);
                state.outbox.push_back((frame, Vec::new()));
            }
            drop(state);
            peer.notify();
        }
    }

    /// Records that no rank of this node needs anything more: what it still claims is not sent.
    pub fn leave(&self) {
        self.shared.has_left.store(true, Ordering::SeqCst);
        for peer in &self.shared.peers {
            self.shared.end_claims(peer, || Outcome::Unneeded);
        }
        self.done();
    }

    /// Tells the peers that this node has failed.
    pub fn failed(&self, error: &Error) {
        let message = self.shared.failure(error);
        let mut unserved = Vec::new();
        for peer in &self.shared.peers {
            let mut state = peer.state.lock();
            if state.is_served {
                // Set this before the serving thread sees that it may end.
                state.close(message.clone());
            } else {
                unserved.push(peer);
                state.is_closing = true;
            }
            drop(state);
            peer.notify();
        }
        self.abort(&unserved, &message);
    }
}

impl Shared {
    fn peer(&self, rank: usize) -> &Peer {
        let mut peers = self.peers.iter();
        peers
            .find(|peer| peer.rank == rank)
            .expect("an owner leads a node")
    }

    /// Sends a message.
    fn send(&self, peer: &Peer, frame: Frame, payload: &[u8], deadline: Instant) -> Result<()> {
        let frame = frame.with_payload(payload);
        self.transport
            .send(peer.position, &frame.encode(), deadline)?;
        if payload.is_empty() {
            return Ok(());
        }
        self.transport.send(peer.position, payload, deadline)
    }

    /// Describes a failure of this node for others.
    fn failure(&self, error: &Error) -> Vec<u8> {
        serde_json::to_vec(&Failure::new(self.rank, error)).unwrap_or_default()
    }

    fn receive_frame(&self, peer: &Peer, deadline: Instant) -> Result<Frame> {
        let mut bytes = [0; FRAME_BYTES];
        self.transport
            .receive(peer.position, &mut bytes, deadline)?;
        Frame::decode(&bytes).ok_or_else(|| peer.unintelligible())
    }

    /// Receives the payload of a message that is not for a claim.
    fn receive_payload(&self, peer: &Peer, frame: &Frame, deadline: Instant) -> Result<Vec<u8>> {
        if frame.len > PAYLOAD_MAX {
            return Err(peer.unintelligible());
        }
        let mut payload = vec![0; usize::try_from(frame.len).unwrap_or(0)];
        if !payload.is_empty() {
            self.transport
                .receive(peer.position, &mut payload, deadline)?;
        }
        if frame.checksum(&payload) != frame.crc {
            return Err(peer.damaged());
        }
        Ok(payload)
    }

    fn receive_wants(&self, peer: &Peer, deadline: Instant) -> Result<Ranges> {
        let frame = self.receive_frame(peer, deadline)?;
        let payload = self.receive_payload(peer, &frame, deadline)?;
        match frame.kind {
            Kind::Wants => serde_json::from_slice(&payload).map_err(|_| peer.unintelligible()),
            Kind::Failed => Err(peer.failure(&payload)),
            Kind::Claim
            | Kind::Bytes
            | Kind::Gone
            | Kind::Whole
            | Kind::Done
            | Kind::Bye
            | Kind::Alive => Err(peer.unintelligible()),
        }
    }

    /// Returns the outcome of claims that no longer wait for the peer, if that is so.
    fn outcome_without(&self, state: &PeerState) -> Option<Outcome> {
        if self.has_left.load(Ordering::SeqCst) {
            Some(Outcome::Unneeded)
        } else if self.is_cancelled.load(Ordering::SeqCst) {
            Some(Outcome::Cancelled)
        } else {
            let ended = state.ended.as_ref();
            ended.map(|error| Outcome::Failed(error.again()))
        }
    }

    fn end(&self, claim: Claim, outcome: Outcome) {
        self.received.lock().push(Received { claim, outcome });
        self.events.notify();
    }

    fn end_claims(&self, peer: &Peer, outcome: impl Fn() -> Outcome) {
        let claims = std::mem::take(&mut peer.state.lock().claims);
        for unfilled in claims.into_values() {
            self.end(unfilled.claim, outcome());
        }
    }

    fn tell(&self, event: &PeerEvent<'_>) {
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

    /// Records that a peer fills no more claims.
    fn ended(&self, peer: &Peer, error: &Error) {
        let is_needed = {
            let mut state = peer.state.lock();
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
            self.tell(&PeerEvent::Failed(error));
        }
        self.end_claims(peer, || Outcome::Failed(error.again()));
        peer.notify();
        self.events.notify();
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<_> = self.ranks().collect();
        f.debug_struct("Peers")
            .field("ranks", &ranks)
            .finish_non_exhaustive()
    }
}
