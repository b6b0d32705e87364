//! Thread that receives everything that one other leader sends.

use std::time::Instant;

use super::fetches::{ClusterEvent, Outcome};
use super::frame::{Frame, Kind, decode_ranges};
use super::inner::Inner;
use super::other_leader::Unfilled;
use crate::error::{Error, ErrorKind, Result};

/// Receives until the other leader says that it sends nothing more, or is lost.
pub(super) fn run(inner: &Inner, index: usize) {
    receive_all(inner, index);
    inner.receiver_ended();
}

fn receive_all(inner: &Inner, index: usize) {
    let other = &inner.others[index];
    loop {
        match step(inner, index) {
            Ok(true) => {}
            Ok(false) => {
                // Fetches that are still open will never be filled.
                let error = Error::new(
                    ErrorKind::Peer,
                    format!("rank {} has left the load", other.rank),
                );
                inner.ended(other, &error.with_ranks([other.rank]));
                return;
            }
            Err(error) => {
                inner.ended(other, &other.lost(error));
                return;
            }
        }
    }
}

/// Receives one message. Returns whether more will follow.
fn step(inner: &Inner, index: usize) -> Result<bool> {
    let other = &inner.others[index];
    let deadline = other.deadline();
    let frame = inner.receive_frame(other, deadline)?;
    if frame.kind == Kind::Bytes {
        receive_bytes(inner, index, &frame)?;
        other.state.lock().heard();
        return Ok(true);
    }
    let payload = inner.receive_payload(other, &frame, deadline)?;
    let mut state = other.state.lock();
    state.heard();
    match frame.kind {
        Kind::Fetch => {
            let ranges = decode_ranges(&payload).ok_or_else(|| other.unintelligible())?;
            let fetch = (frame.extent, frame.source as usize, ranges);
            state.wanted.push_back(fetch);
        }
        Kind::Gone => {
            let unfilled = state.fetches.remove(&frame.extent);
            // The rest comes from storage.
            let rest = unfilled.as_ref().map_or(0, |unfilled| unfilled.missing);
            state.missing = state.missing.saturating_sub(rest);
            drop(state);
            if let Some(unfilled) = unfilled {
                inner.end(unfilled.fetch, Outcome::Gone);
            }
        }
        Kind::Whole => {
            state.is_whole = true;
            drop(state);
            inner.tell(&ClusterEvent::Whole);
        }
        Kind::Failed => {
            drop(state);
            inner.ended(other, &other.failure(&payload));
        }
        Kind::Done => state.needs_nothing = true,
        Kind::Bye => {
            state.needs_nothing = true;
            return Ok(false);
        }
        Kind::Alive => {}
        Kind::Wants | Kind::Bytes => return Err(other.unintelligible()),
    }
    other.notify();
    Ok(true)
}

/// Receives bytes of a fetch, straight into its window.
fn receive_bytes(inner: &Inner, index: usize, frame: &Frame) -> Result<()> {
    let other = &inner.others[index];
    let deadline = other.deadline();
    let len = usize::try_from(frame.len).map_err(|_| other.unintelligible())?;
    // Take the fetch out of the table while it is written to, so that nothing else ends it
    // meanwhile.
    let found = other.state.lock().fetches.remove(&frame.extent);
    let Some(mut unfilled) = found else {
        // This node has already ended the fetch.
        inner.receive_payload(other, frame, deadline)?;
        return Ok(());
    };
    let filled = fill(inner, index, &mut unfilled, frame, len, deadline);
    if let Err(error) = filled {
        let lost = other.lost(error);
        inner.end(unfilled.fetch, Outcome::Failed(lost.again()));
        return Err(lost);
    }
    unfilled.missing -= frame.len;
    let mut state = other.state.lock();
    state.missing = state.missing.saturating_sub(frame.len);
    let outcome = if unfilled.missing == 0 {
        Some(Outcome::Filled)
    } else {
        inner.outcome_without(&state)
    };
    let Some(outcome) = outcome else {
        state.fetches.insert(frame.extent, unfilled);
        return Ok(());
    };
    drop(state);
    inner.end(unfilled.fetch, outcome);
    Ok(())
}

fn fill(
    inner: &Inner,
    index: usize,
    unfilled: &mut Unfilled,
    frame: &Frame,
    len: usize,
    deadline: Instant,
) -> Result<()> {
    let other = &inner.others[index];
    let Unfilled { fetch, missing } = unfilled;
    let wanted = frame.offset..frame.offset.saturating_add(frame.len);
    let is_wanted =
        |range: &std::ops::Range<u64>| range.start <= wanted.start && wanted.end <= range.end;
    if frame.len > *missing || !fetch.ranges.iter().any(is_wanted) {
        return Err(other.unintelligible());
    }
    let start = usize::try_from(frame.offset - fetch.offset).map_err(|_| other.unintelligible())?;
    let window = fetch.lease.bytes_mut(start..start + len);
    inner.transport.receive(other.position, window, deadline)?;
    if frame.checksum(window) != frame.crc {
        return Err(other.damaged());
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
    use crate::cluster::{Cluster, Served};
    use crate::link::Joining;
    use crate::messages::{RankPlan, Request};
    use crate::transport::Transport;

    /// Longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Transport from another leader that gives each sign of life when it is told to, and is lost
    /// at the end. Passes on all deadlines.
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
        let (own, _dispatcher) = Channel::pair().expect("sockets");
        let joining = Joining::join_own(own, 4, 9, &Request::default()).expect("open");
        let ((sent, is_sent), (received, is_received)) = (unbounded(), unbounded());
        let (sign, signs) = unbounded();
        let transport = Deadlines {
            sent,
            received,
            signs,
        };
        let others = Cluster::new(Arc::new(transport), 4, &[4, 6]);
        let begins_by = Instant::now() + Duration::from_secs(3600);
        let joined = vec![(joining, RankPlan::default())];
        let listener = Arc::new(|_: &ClusterEvent<'_>| ());
        let served = vec![Served::default()];
        let begun = others.begin(joined, served, &[0], false, listener, begins_by);
        begun.expect("threads");
        others.done();
        let next = |deadlines: &Receiver<Instant>| deadlines.recv_timeout(PATIENCE).expect("one");
        assert_eq!((next(&is_sent), next(&is_received)), (begins_by, begins_by));
        sign.send(()).expect("is awaited");
        assert!(next(&is_received) < begins_by);
        // The last message to a lost leader.
        drop(sign);
        while next(&is_sent) == begins_by {}
    }
}
