//! Requests a range from the origin or a mirror, and goes on elsewhere if that one fails or is much
//! slower than the others.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::super::{Events, Hedging, ObjectSource, Provenance, Receive, Source};
use super::Mirrors;
use super::lanes::ORIGIN;
use super::replica::is_without_file;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::retry::Retries;

/// Time between two looks at the speed of a request.
const STEP: Duration = Duration::from_millis(500);

/// Time that a request may need for its rest, however slow it is: moving costs time too.
const SOON: Duration = Duration::from_secs(1);

/// Time without a byte after which a peer is left. It may itself wait for the origin, so that its
/// speed says little.
const PEER_PATIENCE: Duration = Duration::from_secs(10);

impl ObjectSource {
    /// Requests `range`, which must not be empty, from wherever it is, and passes every byte of it
    /// to `to` once and in order.
    pub(in super::super) async fn read_anywhere(
        &self,
        range: Range<u64>,
        retries: Retries,
        hedging: Option<&Hedging>,
        to: &mut impl Receive,
    ) -> Result<()> {
        // Headers and other small reads are not hedged, and go to the origin.
        let mirrors = self.remote().mirrors().filter(|_| hedging.is_some());
        let Some(mirrors) = mirrors else {
            return self.read_remote(range, retries, hedging, to).await;
        };
        mirrors.refresh();
        mirrors.drop_distrusted();
        self.begin_replicas(mirrors);
        if mirrors.names.is_some() {
            self.await_replicas().await;
        }
        let (mut at, mut left) = (range.start, None);
        let mut has_origin_failed = false;
        while at < range.end {
            // Another load may have found meanwhile that a mirror sends wrong bytes.
            mirrors.drop_distrusted();
            let may = |lane: usize| {
                let is_there = |index: usize| self.0.replicas.get(index).is_some();
                left != Some(lane) && (lane == ORIGIN || is_there(lane - 1))
            };
            let (lane, end) = mirrors.choose(self.location(), at, may);
            let replica = lane.checked_sub(1).map(|at| self.0.replicas.get(at));
            if matches!(replica, Some(None)) {
                // Another read has given up this mirror since it was chosen.
                continue;
            }
            let (replica, rest) = (replica.flatten(), at..range.end.min(end));
            let turn = Turn::begin(mirrors, lane, self.senders().add(lane, at));
            let mut counted = Counted { to, turn: &turn };
            let reading = self.read_lane(replica, rest.clone(), retries, hedging, &mut counted);
            let len = rest.end - rest.start;
            let outcome = tokio::select! {
                biased;
                read = reading => Some(read),
                () = self.outpaced(&turn, len) => None,
            };
            at += turn.came();
            match outcome {
                Some(Ok(())) => {
                    left = None;
                    mirrors.lanes.lock().succeed(lane);
                }
                Some(Err(error)) if lane == ORIGIN => {
                    if has_origin_failed || !may_go_on(mirrors, &error, may) {
                        return Err(error);
                    }
                    to.events().failed(&error);
                    (left, has_origin_failed) = (Some(ORIGIN), true);
                }
                Some(Err(error)) => {
                    to.events().failed(&error);
                    if is_without_file(&error) {
                        self.0.replicas.give_up(lane - 1);
                    } else {
                        mirrors.fail(lane, &error);
                    }
                    left = Some(lane);
                }
                None => {
                    if lane != ORIGIN {
                        mirrors.fail(lane, &too_slow(turn.came()));
                    }
                    left = Some(lane);
                }
            }
        }
        Ok(())
    }

    /// Requests a range from the file of a mirror, or from the origin.
    async fn read_lane(
        &self,
        replica: Option<Self>,
        range: Range<u64>,
        retries: Retries,
        hedging: Option<&Hedging>,
        to: &mut impl Receive,
    ) -> Result<()> {
        match replica {
            // Other places have the bytes too, so this request is neither hedged nor retried for
            // long.
            Some(replica) => {
                let retries = replica.retries();
                replica.read_remote(range, retries, None, to).await
            }
            None => self.read_remote(range, retries, hedging, to).await,
        }
    }

    /// Waits until each peer has been opened or has failed, for a short time.
    async fn await_replicas(&self) {
        while self.0.replicas.are_pending() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Measures a request, and returns when it should go on elsewhere.
    async fn outpaced(&self, turn: &Turn<'_>, len: u64) {
        if turn.mirrors.names.is_some() && turn.lane == ORIGIN {
            // No peer has these bytes, so the request to the origin ends only by its own limits.
            return std::future::pending().await;
        }
        let may = |lane: usize| lane == ORIGIN || self.0.replicas.get(lane - 1).is_some();
        let (mut seen, mut moved) = (0, Instant::now());
        let mut steps = 0_u32;
        loop {
            tokio::time::sleep(STEP).await;
            let came = turn.came();
            if turn.mirrors.names.is_some() {
                if came > seen {
                    (seen, moved) = (came, Instant::now());
                } else if moved.elapsed() > PEER_PATIENCE {
                    return;
                }
                continue;
            }
            let speed = per_second(came - seen, STEP);
            (seen, steps) = (came, steps + 1);
            let now = std::time::Instant::now();
            let mut lanes = turn.mirrors.lanes.lock();
            lanes.observe(turn.lane, speed, now);
            let ends_soon = per_second(len - came, SOON) <= speed;
            if steps > 1 && !ends_soon && lanes.is_outpaced(turn.lane, speed, may, now) {
                return;
            }
        }
    }
}

/// One request, counted from its beginning until it is dropped.
struct Turn<'m> {
    mirrors: &'m Arc<Mirrors>,
    lane: usize,
    begun: Instant,
    came: Arc<AtomicU64>,
}

impl<'m> Turn<'m> {
    fn begin(mirrors: &'m Arc<Mirrors>, lane: usize, came: Arc<AtomicU64>) -> Self {
        mirrors.lanes.lock().begin(lane);
        Self {
            mirrors,
            lane,
            begun: Instant::now(),
            came,
        }
    }

    fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let (came, took) = (self.came(), self.begun.elapsed());
        let mut lanes = self.mirrors.lanes.lock();
        lanes.end(self.lane, came);
        if came > 0 {
            let now = std::time::Instant::now();
            lanes.observe(self.lane, per_second(came, took), now);
        }
    }
}

/// Receiver that counts, and tells bytes of mirrors from those of the origin.
struct Counted<'a, R> {
    to: &'a mut R,
    turn: &'a Turn<'a>,
}

impl<R: Receive> Receive for Counted<'_, R> {
    fn bytes(&mut self, bytes: &[u8], _from: Provenance) {
        let from = match self.turn.lane {
            ORIGIN => Provenance::Origin,
            _ => Provenance::Mirror,
        };
        // First: another lane may find them wrong at once.
        let came = &self.turn.came;
        came.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.to.bytes(bytes, from);
    }

    fn events(&mut self) -> &mut dyn Events {
        self.to.events()
    }
}

/// Returns whether a mirror may have the bytes that the origin failed to send.
fn may_go_on(mirrors: &Mirrors, error: &Error, may: impl Fn(usize) -> bool) -> bool {
    // An answer of the origin is final. Mirrors help only if the origin cannot be reached.
    let is_answer = !matches!(error.kind(), ErrorKind::Remote | ErrorKind::TimedOut);
    let usable = mirrors.usable();
    let mut others = usable.iter().zip(1..);
    !is_answer && others.any(|(is_usable, lane)| *is_usable && may(lane))
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn per_second(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-6)
}

fn too_slow(came: u64) -> Error {
    let message = format!(
        "left after {came} bytes of a range: another place was several times faster at that moment"
    );
    Error::new(ErrorKind::TimedOut, message)
}
