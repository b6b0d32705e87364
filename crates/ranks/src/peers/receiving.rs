//! Thread that receives everything that one peer sends.

use std::time::Instant;

use super::frame::{Frame, Kind, decode_ranges};
use super::{Outcome, PeerEvent, Shared, Unfilled};
use crate::error::{Error, ErrorKind, Result};

/// Receives until the peer says that it sends nothing more, or is lost.
pub(super) fn run(shared: &Shared, index: usize) {
    receive_all(shared, index);
    shared.receiver_ended();
}

fn receive_all(shared: &Shared, index: usize) {
    let peer = &shared.peers[index];
    loop {
        match step(shared, index) {
            Ok(true) => {}
            Ok(false) => {
                // Claims that are still open will never be filled.
                let error = Error::new(
                    ErrorKind::Peer,
                    format!("rank {} has left the load", peer.rank),
                );
                shared.ended(peer, &error.with_ranks([peer.rank]));
                return;
            }
            Err(error) => {
                shared.ended(peer, &peer.lost(error));
                return;
            }
        }
    }
}

/// Receives one message. Returns whether more will follow.
fn step(shared: &Shared, index: usize) -> Result<bool> {
    let peer = &shared.peers[index];
    let deadline = peer.deadline();
    let frame = shared.receive_frame(peer, deadline)?;
    if frame.kind == Kind::Bytes {
        receive_bytes(shared, index, &frame)?;
        peer.state.lock().heard();
        return Ok(true);
    }
    let payload = shared.receive_payload(peer, &frame, deadline)?;
    let mut state = peer.state.lock();
    state.heard();
    match frame.kind {
        Kind::Claim => {
            let ranges = decode_ranges(&payload).ok_or_else(|| peer.unintelligible())?;
            let claim = (frame.extent, frame.source as usize, ranges);
            state.wanted.push_back(claim);
        }
        Kind::Gone => {
            let unfilled = state.claims.remove(&frame.extent);
            // The rest comes from storage.
            let rest = unfilled.as_ref().map_or(0, |unfilled| unfilled.missing);
            state.missing = state.missing.saturating_sub(rest);
            drop(state);
            if let Some(unfilled) = unfilled {
                shared.end(unfilled.claim, Outcome::Gone);
            }
        }
        Kind::Whole => {
            state.is_whole = true;
            drop(state);
            shared.tell(&PeerEvent::Whole);
        }
        Kind::Failed => {
            drop(state);
            shared.ended(peer, &peer.failure(&payload));
        }
        Kind::Done => state.needs_nothing = true,
        Kind::Bye => {
            state.needs_nothing = true;
            return Ok(false);
        }
        Kind::Alive => {}
        Kind::Wants | Kind::Bytes => return Err(peer.unintelligible()),
    }
    peer.notify();
    Ok(true)
}

/// Receives bytes of a claim, straight into its window.
fn receive_bytes(shared: &Shared, index: usize, frame: &Frame) -> Result<()> {
    let peer = &shared.peers[index];
    let deadline = peer.deadline();
    let len = usize::try_from(frame.len).map_err(|_| peer.unintelligible())?;
    // Take the claim out of the table while it is written to, so that nothing else ends it
    // meanwhile.
    let found = peer.state.lock().claims.remove(&frame.extent);
    let Some(mut unfilled) = found else {
        // This node has already ended the claim.
        shared.receive_payload(peer, frame, deadline)?;
        return Ok(());
    };
    let filled = fill(shared, index, &mut unfilled, frame, len, deadline);
    if let Err(error) = filled {
        let lost = peer.lost(error);
        shared.end(unfilled.claim, Outcome::Failed(lost.again()));
        return Err(lost);
    }
    unfilled.missing -= frame.len;
    let mut state = peer.state.lock();
    state.missing = state.missing.saturating_sub(frame.len);
    let outcome = if unfilled.missing == 0 {
        Some(Outcome::Filled)
    } else {
        shared.outcome_without(&state)
    };
    let Some(outcome) = outcome else {
        state.claims.insert(frame.extent, unfilled);
        return Ok(());
    };
    drop(state);
    shared.end(unfilled.claim, outcome);
    Ok(())
}

fn fill(
    shared: &Shared,
    index: usize,
    unfilled: &mut Unfilled,
    frame: &Frame,
    len: usize,
    deadline: Instant,
) -> Result<()> {
    let peer = &shared.peers[index];
    let Unfilled { claim, missing } = unfilled;
    let wanted = frame.offset..frame.offset.saturating_add(frame.len);
    let is_claimed =
        |range: &std::ops::Range<u64>| range.start <= wanted.start && wanted.end <= range.end;
    if frame.len > *missing || !claim.ranges.iter().any(is_claimed) {
        return Err(peer.unintelligible());
    }
    let start = usize::try_from(frame.offset - claim.offset).map_err(|_| peer.unintelligible())?;
    let window = claim.lease.bytes_mut(start..start + len);
    shared.transport.receive(peer.position, window, deadline)?;
    if frame.checksum(window) != frame.crc {
        return Err(peer.damaged());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crossbeam_channel::{Receiver, Sender, unbounded};

    use super::*;
    use crate::channel::Channel;
    use crate::link::Joining;
    use crate::messages::{RankPlan, Request};
    use crate::peers::{Peers, Served};
    use crate::transport::Transport;

    /// Longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Transport from a peer that gives each sign of life when it is told to, and is lost at the
    /// end. Passes on all deadlines.
    #[derive(Debug)]
    struct Deadlines {
        sent: Sender<Instant>,
        received: Sender<Instant>,
        signs: Receiver<()>,
    }

    impl Transport for Deadlines {
        fn send(&self, _to: usize, _bytes: &[u8], deadline: Instant) -> Result<()> {
            let _ = self.sent.send(deadline);
            Ok(())
        }

        fn receive(&self, _from: usize, bytes: &mut [u8], deadline: Instant) -> Result<()> {
            let _ = self.received.send(deadline);
            let lost = |_| Error::new(ErrorKind::Peer, "the connection was closed");
            self.signs.recv().map_err(lost)?;
            bytes.copy_from_slice(&Frame::new(Kind::Alive).with_payload(&[]).encode());
            Ok(())
        }
    }

    #[test]
    fn silence_counts_once_peer_has_begun() {
        let (own, _hub) = Channel::pair().expect("sockets");
        let joining = Joining::join_own((own, 4), 9, &Request::default()).expect("open");
        let ((sent, is_sent), (received, is_received)) = (unbounded(), unbounded());
        let (sign, signs) = unbounded();
        let transport = Deadlines {
            sent,
            received,
            signs,
        };
        let peers = Peers::new(Arc::new(transport), 4, &[4, 6]);
        let begins_by = Instant::now() + Duration::from_secs(3600);
        let joined = vec![(joining, RankPlan::default())];
        let listener = Arc::new(|_: &PeerEvent<'_>| ());
        let served = vec![Served::default()];
        let begun = peers.begin(joined, served, &[0], false, listener, begins_by);
        begun.expect("threads");
        peers.done();
        let next = |deadlines: &Receiver<Instant>| deadlines.recv_timeout(PATIENCE).expect("one");
        assert_eq!((next(&is_sent), next(&is_received)), (begins_by, begins_by));
        sign.send(()).expect("is awaited");
        assert!(next(&is_received) < begins_by);
        // The last message to a lost peer.
        drop(sign);
        while next(&is_sent) == begins_by {}
    }
}
