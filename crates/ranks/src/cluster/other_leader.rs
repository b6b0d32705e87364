//! State of one other leader: fetches sent to it, fetches received from it, and its errors.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::fetches::Fetch;
use super::frame::{Frame, Kind};
use crate::error::{Error, ErrorKind};
use crate::messages::Failure;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;

/// Time in which another leader must take a message, and without a message after which it has
/// stopped: once it has begun, it gives a sign of life every second or two.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// One of the other leaders.
pub(super) struct OtherLeader {
    /// Rank that leads the node.
    pub(super) rank: usize,
    /// Position among the leaders.
    pub(super) position: usize,
    pub(super) state: Mutex<OtherState>,
    /// Notified when the serving thread has something to do.
    pub(super) wake: OnceLock<Arc<EventCount>>,
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct OtherState {
    /// Messages without bytes of regions, to be sent.
    pub(super) outbox: VecDeque<(Frame, Vec<u8>)>,
    /// By extent: fetches of this node.
    pub(super) fetches: HashMap<u64, Unfilled>,
    /// Fetches of the other leader that have not been looked at: extent, source and ranges.
    pub(super) wanted: VecDeque<(u64, usize, Vec<Range<u64>>)>,
    /// Bytes that this node has not received from the other leader yet.
    pub(super) missing: u64,
    /// Bytes that it receives altogether.
    pub(super) expected: u64,
    /// The other leader has read and verified everything.
    pub(super) is_whole: bool,
    /// This node needs nothing more of the other leader, and has said so.
    pub(super) is_done: bool,
    /// The other leader needs nothing more.
    pub(super) needs_nothing: bool,
    /// Reason why the other leader fills no more fetches.
    pub(super) ended: Option<Error>,
    /// A thread sends to the other leader.
    pub(super) is_served: bool,
    /// The last message to the other leader is queued.
    pub(super) is_closing: bool,
    /// The other leader has been heard since the dispatcher was told so.
    pub(super) was_heard: bool,
    /// Time by which the load must begin, until the other leader is heard for the first time.
    pub(super) begins_by: Option<Instant>,
}

/// Fetch of which some bytes are missing.
pub(super) struct Unfilled {
    pub(super) fetch: Fetch,
    pub(super) missing: u64,
}

impl OtherState {
    /// Records a message of the other leader.
    pub(super) fn heard(&mut self) {
        self.was_heard = true;
        self.begins_by = None;
    }

    /// Queues the failure of this node, as the last message.
    pub(super) fn close(&mut self, failure: Vec<u8>) {
        let failed = (Frame::new(Kind::Failed), failure);
        self.outbox.push_back(failed);
        self.is_closing = true;
    }
}

impl OtherLeader {
    /// Returns the time by which the other leader must take or send the next message. It may still
    /// have to open its files and to fetch what they are verified with, without a thread that
    /// answers.
    pub(super) fn deadline(&self) -> Instant {
        let deadline = Instant::now() + SILENCE;
        let begins_by = self.state.lock().begins_by;
        begins_by.map_or(deadline, |begins_by| deadline.max(begins_by))
    }

    pub(super) fn notify(&self) {
        if let Some(wake) = self.wake.get() {
            wake.notify();
        }
    }

    pub(super) fn post(&self, kind: Kind, payload: Vec<u8>) {
        let message = (Frame::new(kind), payload);
        self.state.lock().outbox.push_back(message);
        self.notify();
    }

    /// Returns the error that another leader has sent.
    pub(super) fn failure(&self, payload: &[u8]) -> Error {
        let failure = serde_json::from_slice::<Failure>(payload);
        failure.map_or_else(|_| self.unintelligible(), |failure| failure.error())
    }

    pub(super) fn unintelligible(&self) -> Error {
        let text = format!(
            "rank {} sent something that this version does not understand",
            self.rank
        );
        Error::new(ErrorKind::Peer, text)
            .with_hint("start every rank with the same version of tload")
            .with_ranks([self.rank])
    }

    pub(super) fn damaged(&self) -> Error {
        let text = format!("bytes from rank {} do not match their checksum", self.rank);
        Error::new(ErrorKind::Corrupt, text)
            .with_hint(
                "they were changed on the way: check the network and the memory of both nodes",
            )
            .with_ranks([self.rank])
    }

    /// Returns the error for the loss of the other leader, of which `cause` tells.
    pub(super) fn lost(&self, cause: Error) -> Error {
        if cause.kind() != ErrorKind::Peer {
            return cause;
        }
        let text = format!(
            "rank {}, which reads for other nodes, is gone or has stopped",
            self.rank
        );
        Error::new(ErrorKind::Peer, text)
            .with_hint(
                "see why it ended; ‹on_peer_loss=read› makes this node read what is missing itself",
            )
            .with_ranks([self.rank])
            .with_source(cause)
    }
}
