//! Thread that sends all messages to one other leader: fetches and state changes of this node, and
//! the bytes that the other leader has asked for, out of shared regions.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::frame::{Frame, Kind};
use super::inner::Inner;
use super::other_leader::OtherLeader;
use crate::error::{Error, ErrorKind, Result};
use crate::link::{Availability, Link};
use crate::messages::RankStatistics;

/// Longest time without a message to the other leader while this process runs.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// Bytes of a region that another leader wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedRange {
    /// Index of the source in the checkpoint.
    pub source: usize,
    /// Range in the source.
    pub range: Range<u64>,
    /// Region that holds it.
    pub region: usize,
    /// Offset of the range in the region.
    pub offset: u64,
}

/// Everything that another leader wants of this node, by source and offset.
#[derive(Clone, Debug, Default)]
pub struct Served(pub Vec<ServedRange>);

/// Bytes of one region for one fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    extent: u64,
    region: usize,
    /// Range in the region.
    range: Range<usize>,
    /// Offset in the source.
    offset: u64,
}

impl Served {
    /// Returns the number of uses of each of `regions` regions: one of those that the other leader
    /// wants.
    pub(super) fn users(&self, regions: usize) -> Vec<usize> {
        let mut users = vec![0; regions];
        for served in &self.0 {
            users[served.region] = 1;
        }
        users
    }

    /// Returns the bytes to send by region.
    fn missing(&self, regions: usize) -> Vec<u64> {
        let mut missing = vec![0; regions];
        for served in &self.0 {
            missing[served.region] += served.range.end - served.range.start;
        }
        missing
    }

    /// Divides a range that was asked for among regions; `None` if some of it was not agreed.
    fn pieces(&self, extent: u64, source: usize, wanted: &Range<u64>) -> Option<Vec<Piece>> {
        let is_before =
            |served: &ServedRange| (served.source, served.range.end) <= (source, wanted.start);
        let mut at = wanted.start;
        let mut pieces = Vec::new();
        for served in &self.0[self.0.partition_point(is_before)..] {
            if served.source != source || at < served.range.start || at == wanted.end {
                break;
            }
            let end = served.range.end.min(wanted.end);
            let start = usize::try_from(served.offset + (at - served.range.start)).ok()?;
            let len = usize::try_from(end - at).ok()?;
            pieces.push(Piece {
                extent,
                region: served.region,
                range: start..start + len,
                offset: at,
            });
            at = end;
        }
        (at == wanted.end).then_some(pieces)
    }
}

/// State of the thread.
struct Serving<'s> {
    inner: &'s Inner,
    other: &'s OtherLeader,
    link: Link,
    served: Served,
    /// By region: bytes that the other leader has not received.
    missing: Vec<u64>,
    /// Claimed bytes that are not filled yet.
    waiting: VecDeque<Piece>,
    sent: Instant,
    /// The dispatcher keeps nothing for the other leader any more.
    has_finished: bool,
}

/// Serves until neither node needs anything more of the other, or the other leader is lost.
pub(super) fn run(inner: &Inner, index: usize, link: Link, served: Served) {
    let regions = link.regions();
    let other = &inner.others[index];
    let mut serving = Serving {
        inner,
        other,
        missing: served.missing(regions),
        link,
        served,
        waiting: VecDeque::new(),
        sent: Instant::now(),
        has_finished: false,
    };
    if let Err(error) = serving.run() {
        inner.ended(other, &other.lost(error));
    }
    serving.finish();
}

impl Serving<'_> {
    fn run(&mut self) -> Result<()> {
        loop {
            // The leader's thread gives a sign of life every second, so no wait takes longer.
            let seen = self.link.events().count();
            let messages = self.other.state.lock().outbox.drain(..).collect::<Vec<_>>();
            let mut has_sent = !messages.is_empty();
            for (frame, payload) in messages {
                self.send(frame, &payload)?;
            }
            if self.is_over() {
                return self.send(Frame::new(Kind::Bye), &[]);
            }
            if self.other.state.lock().needs_nothing {
                // The other leader may have left before it sent all fetches. Nothing must be kept
                // for those.
                self.finish();
            }
            self.take_claims()?;
            has_sent |= self.send_filled()?;
            self.give_sign_of_life();
            if self.sent.elapsed() >= SIGN_OF_LIFE {
                self.send(Frame::new(Kind::Alive), &[])?;
            }
            if !has_sent {
                self.link.events().wait_past(seen);
            }
        }
    }

    /// Tells the dispatcher that the other leader runs, if it has been heard.
    fn give_sign_of_life(&self) {
        if std::mem::take(&mut self.other.state.lock().was_heard) {
            self.link.give_sign_of_life();
        }
    }

    /// Tells the dispatcher that the other leader needs nothing more.
    fn finish(&mut self) {
        if !std::mem::replace(&mut self.has_finished, true) {
            self.waiting.clear();
            self.link.finish(&RankStatistics::default());
        }
    }

    /// Returns whether nothing is left to be sent.
    fn is_over(&self) -> bool {
        let state = self.other.state.lock();
        let has_ended = state.is_done || state.ended.is_some();
        let is_over = state.is_closing || (state.needs_nothing && has_ended);
        state.outbox.is_empty() && is_over
    }

    fn send(&mut self, frame: Frame, payload: &[u8]) -> Result<()> {
        self.sent = Instant::now();
        let deadline = self.other.deadline();
        self.inner.send(self.other, frame, payload, deadline)
    }

    fn take_claims(&mut self) -> Result<()> {
        let fetches = std::mem::take(&mut self.other.state.lock().wanted);
        for (extent, source, ranges) in fetches {
            for range in &ranges {
                let pieces = self
                    .served
                    .pieces(extent, source, range)
                    .ok_or_else(|| self.other.unintelligible())?;
                for piece in &pieces {
                    self.link.ask(piece.region);
                }
                self.waiting.extend(pieces);
            }
        }
        Ok(())
    }

    /// Sends the bytes asked for that are filled, and queues the failure if some never will be.
    /// Returns whether there was any.
    fn send_filled(&mut self) -> Result<bool> {
        let mut has_sent = false;
        for piece in std::mem::take(&mut self.waiting) {
            match self.link.availability(piece.region, &piece.range) {
                Availability::Filled => {
                    self.send_bytes(&piece)?;
                    // Send what is there, because the rest may take long.
                    self.give_sign_of_life();
                    has_sent = true;
                }
                Availability::Pending => self.waiting.push_back(piece),
                Availability::Gone => {
                    let extent = piece.extent;
                    let gone = Frame {
                        extent,
                        ..Frame::new(Kind::Gone)
                    };
                    self.send(gone, &[])?;
                }
                Availability::Failed(error) => {
                    let mut state = self.other.state.lock();
                    // Reads of this node may have reported the failure already.
                    if !state.is_closing && !state.needs_nothing {
                        state.close(self.inner.failure(&error));
                        has_sent = true;
                    }
                }
            }
        }
        Ok(has_sent)
    }

    fn send_bytes(&mut self, piece: &Piece) -> Result<()> {
        let view = self
            .link
            .view(piece.region)
            .ok_or_else(|| Error::new(ErrorKind::Io, "a shared region was released too early"))?;
        let bytes = self.link.filled(piece.region, &view, piece.range.clone());
        let frame = Frame {
            extent: piece.extent,
            offset: piece.offset,
            ..Frame::new(Kind::Bytes)
        };
        let sent = Instant::now();
        let deadline = self.other.deadline();
        self.inner.send(self.other, frame, bytes, deadline)?;
        self.sent = sent;
        let missing = &mut self.missing[piece.region];
        *missing = missing.saturating_sub(bytes.len() as u64);
        if *missing == 0 {
            view.user_done();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_channel::{Sender, unbounded};

    use super::*;
    use crate::channel::Channel;
    use crate::cluster::Cluster;
    use crate::cluster::frame::FRAME_BYTES;
    use crate::link::Joining;
    use crate::messages::{Failure, RankPlan, RegionOrigin, Request};
    use crate::transport::Transport;

    /// Longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Transport that passes on everything that is sent.
    #[derive(Debug)]
    struct Sent(Sender<Vec<u8>>);

    impl Transport for Sent {
        fn send(&self, _to: usize, bytes: &[u8], _deadline: Instant) -> Result<()> {
            self.0.send(bytes.to_vec()).expect("the test waits");
            Ok(())
        }

        fn receive(&self, _from: usize, _bytes: &mut [u8], _deadline: Instant) -> Result<()> {
            unreachable!("this thread only sends")
        }
    }

    #[test]
    fn loss_of_hub_is_told_to_peer() {
        let (own, dispatcher) = Channel::pair().expect("sockets");
        let joining = Joining::join_own(own, 4, 9, &Request::default()).expect("open");
        let region = RegionOrigin {
            shard: 0,
            offset: 0,
            strides: None,
            len: 100,
            filled_bytes: 100,
        };
        let plan = RankPlan {
            regions: vec![region],
            ..RankPlan::default()
        };
        let link = Link::begin(joining, &plan, &[1], false).expect("a thread");
        let (sender, sent) = unbounded();
        let others = Cluster::new(Arc::new(Sent(sender)), 4, &[4, 6]);
        let fetch = (7, 0, vec![0..10, 20..30]);
        others.inner.others[0].state.lock().wanted.push_back(fetch);
        let served = Served(vec![ServedRange {
            source: 0,
            range: 0..100,
            region: 0,
            offset: 0,
        }]);
        std::thread::spawn(move || run(&others.inner, 0, link, served));
        drop(dispatcher);
        let receive = || sent.recv_timeout(PATIENCE).expect("the thread sends");
        let frame = || {
            let bytes: [u8; FRAME_BYTES] = receive().try_into().expect("a frame");
            Frame::decode(&bytes).expect("a frame")
        };
        let mut kind = Kind::Alive;
        while kind == Kind::Alive {
            kind = frame().kind;
        }
        assert_eq!(kind, Kind::Failed);
        let failure: Failure = serde_json::from_slice(&receive()).expect("a failure");
        assert_eq!(failure.error().ranks(), [4]);
        assert_eq!(frame().kind, Kind::Bye);
    }

    fn served() -> Served {
        let served = |source, range, region, offset| ServedRange {
            source,
            range,
            region,
            offset,
        };
        Served(vec![
            served(0, 100..200, 0, 36),
            served(0, 200..300, 2, 0),
            served(1, 50..60, 3, 7),
        ])
    }

    #[test]
    fn claims_are_divided_among_regions() {
        let pieces = served().pieces(9, 0, &(150..250)).expect("agreed");
        let wanted = |region, range, offset| Piece {
            extent: 9,
            region,
            range,
            offset,
        };
        assert_eq!(pieces, [wanted(0, 86..136, 150), wanted(2, 0..50, 200)]);
        let pieces = served().pieces(9, 1, &(50..60)).expect("agreed");
        assert_eq!(pieces, [wanted(3, 7..17, 50)]);
    }

    #[test]
    fn bytes_that_were_not_agreed_are_refused() {
        for (source, range) in [(0, 99..101), (0, 299..301), (1, 40..50), (2, 0..1)] {
            assert_eq!(served().pieces(9, source, &range), None, "{range:?}");
        }
    }

    #[test]
    fn regions_are_used_once_however_many_ranges_they_hold() {
        assert_eq!(served().users(4), [1, 0, 1, 1]);
        assert_eq!(served().missing(4), [100, 0, 100, 10]);
    }
}
