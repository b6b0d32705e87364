//! State of a leader's connections to the others, which their threads share, and the messages that
//! they send and receive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::exchange::Ranges;
use super::fetches::{ClusterEvent, Fetch, Outcome, Received};
use super::frame::{FRAME_BYTES, Frame, Kind, PAYLOAD_MAX};
use super::other_leader::{OtherLeader, OtherState};
use crate::error::{Error, Result};
use crate::messages::Failure;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::transport::Transport;

pub(super) type Listener = Arc<dyn Fn(&ClusterEvent<'_>) + Send + Sync>;

pub(super) struct Inner {
    /// Rank of this leader.
    pub(super) rank: usize,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) others: Vec<OtherLeader>,
    /// Fetches that have ended.
    pub(super) received: Mutex<Vec<Received>>,
    /// Notified when a fetch has ended.
    pub(super) events: Arc<EventCount>,
    /// Until nothing more is received.
    pub(super) listener: Mutex<Option<Listener>>,
    /// Threads that receive, and the one that starts them.
    pub(super) receiving: AtomicUsize,
    /// The bytes need not be verified.
    pub(super) is_unverified: AtomicBool,
    /// No rank of this node needs anything more.
    pub(super) has_left: AtomicBool,
    pub(super) is_cancelled: AtomicBool,
}

impl Inner {
    pub(super) fn other(&self, rank: usize) -> &OtherLeader {
        let mut others = self.others.iter();
        others
            .find(|other| other.rank == rank)
            .expect("an owner leads a node")
    }

    /// Sends a message.
    pub(super) fn send(
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
    pub(super) fn failure(&self, error: &Error) -> Vec<u8> {
        serde_json::to_vec(&Failure::new(self.rank, error)).unwrap_or_default()
    }

    pub(super) fn receive_frame(&self, other: &OtherLeader, deadline: Instant) -> Result<Frame> {
        let mut bytes = [0; FRAME_BYTES];
        self.transport
            .receive(other.position, &mut bytes, deadline)?;
        Frame::decode(&bytes).ok_or_else(|| other.unintelligible())
    }

    /// Receives the payload of a message that is not for a fetch.
    pub(super) fn receive_payload(
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

    pub(super) fn receive_wants(&self, other: &OtherLeader, deadline: Instant) -> Result<Ranges> {
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
    pub(super) fn outcome_without(&self, state: &OtherState) -> Option<Outcome> {
        if self.has_left.load(Ordering::SeqCst) {
            Some(Outcome::Unneeded)
        } else if self.is_cancelled.load(Ordering::SeqCst) {
            Some(Outcome::Cancelled)
        } else {
            let ended = state.ended.as_ref();
            ended.map(|error| Outcome::Failed(error.again()))
        }
    }

    pub(super) fn end(&self, fetch: Fetch, outcome: Outcome) {
        self.received.lock().push(Received { fetch, outcome });
        self.events.notify();
    }

    pub(super) fn end_fetches(&self, other: &OtherLeader, outcome: impl Fn() -> Outcome) {
        let fetches = std::mem::take(&mut other.state.lock().fetches);
        for unfilled in fetches.into_values() {
            self.end(unfilled.fetch, outcome());
        }
    }

    pub(super) fn tell(&self, event: &ClusterEvent<'_>) {
        // The lock is released first, because this may fail the load, which ends here.
        let listener = self.listener.lock().clone();
        if let Some(listener) = listener {
            listener(event);
        }
    }

    /// Records that a thread receives nothing more; after the last one, nothing is told.
    pub(super) fn receiver_ended(&self) {
        if self.receiving.fetch_sub(1, Ordering::SeqCst) == 1 {
            let listener = self.listener.lock().take();
            drop(listener);
        }
    }

    /// Records that another leader fills no more fetches.
    pub(super) fn ended(&self, other: &OtherLeader, error: &Error) {
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
