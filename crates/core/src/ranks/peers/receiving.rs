//! Thread that receives everything that one peer sends.

use std::time::Instant;

use super::frame::{Frame, Kind, decode_ranges};
use super::{Outcome, PeerEvent, SILENCE, Shared, Unfilled};
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
                // After this, nothing that is still claimed arrives.
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
    let deadline = Instant::now() + SILENCE;
    let frame = shared.receive_frame(peer, deadline)?;
    if frame.kind == Kind::Bytes {
        receive_bytes(shared, index, &frame)?;
        peer.state.lock().was_heard = true;
        return Ok(true);
    }
    let payload = shared.receive_payload(peer, &frame, deadline)?;
    let mut state = peer.state.lock();
    state.was_heard = true;
    match frame.kind {
        Kind::Claim => {
            let ranges = decode_ranges(&payload).ok_or_else(|| peer.unintelligible())?;
            let claim = (frame.extent, frame.source as usize, ranges);
            state.wanted.push_back(claim);
        }
        Kind::Gone => {
            let unfilled = state.claims.remove(&frame.extent);
            // Storage has the rest.
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
    let deadline = Instant::now() + SILENCE;
    let len = usize::try_from(frame.len).map_err(|_| peer.unintelligible())?;
    // Out of the table while it is written to: nothing else ends it meanwhile.
    let found = peer.state.lock().claims.remove(&frame.extent);
    let Some(mut unfilled) = found else {
        // The claim was ended here.
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
