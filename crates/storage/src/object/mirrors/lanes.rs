//! Choice between the origin and its mirrors: by the speed that was measured, or by the owner of a
//! part. Pure.
//!
//! The speed of a lane is that of one of its requests. It falls when a lane is saturated, so giving
//! the next request to the fastest lane spreads requests in proportion to what the lanes can carry.

use std::time::{Duration, Instant};

/// Factor by which another lane must be faster for a request to move there.
const OUTPACED: f64 = 4.0;

/// Time in which the speed of an unused lane counts twice: conditions change.
const FORGETTING: Duration = Duration::from_secs(10);

/// Pause after a failure of a mirror; twice as long after each further one in a row.
const PAUSE: Duration = Duration::from_secs(5);

/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Failures in a row after which a mirror is not used any more. Peers are tried again and again:
/// machines of a fleet come and go.
const FAILURES_MAX: u32 = 3;

/// Number of the origin's lane; mirrors follow.
pub(in super::super) const ORIGIN: usize = 0;

/// The origin and its mirrors.
#[derive(Debug)]
pub(super) struct Lanes {
    all: Vec<Lane>,
    are_peers: bool,
}

/// Statistics of the origin or a mirror.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    running: u32,
    /// Bytes per second of one request, and when it was measured.
    speed: Option<(f64, Instant)>,
    /// Failures in a row.
    failures: u32,
    paused_until: Option<Instant>,
    /// True for a peer whose name does not lead to its address any more.
    pub(super) is_absent: bool,
    pub(super) bytes: u64,
    /// Last failure.
    failure: Option<String>,
    /// Error about a file that it does not have, which is no failure.
    lacks: Option<String>,
    pub(super) is_dropped: bool,
}

/// Failure of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// It may work again later.
    Passing,
    /// It must not be used again: it has other bytes, or refuses requests.
    Final,
}

impl Lanes {
    pub(super) fn new(mirrors: usize, are_peers: bool) -> Self {
        Self {
            all: vec![Lane::default(); 1 + mirrors],
            are_peers,
        }
    }

    /// Returns the numbers of the mirrors.
    pub(super) fn mirrors(&self) -> std::ops::Range<usize> {
        ORIGIN + 1..self.all.len()
    }

    /// Adds a mirror.
    pub(super) fn add(&mut self) {
        self.all.push(Lane::default());
    }

    /// Records whether the name of a peer leads to its address.
    pub(super) fn set_absent(&mut self, lane: usize, is_absent: bool) {
        self.all[lane].is_absent = is_absent;
    }

    pub(super) fn lane(&self, lane: usize) -> &Lane {
        &self.all[lane]
    }

    /// Returns whether requests may be sent on a lane. The origin's always may.
    pub(super) fn is_usable(&self, lane: usize, now: Instant) -> bool {
        let found = &self.all[lane];
        let is_paused = found.paused_until.is_some_and(|until| now < until);
        !found.is_dropped && !found.is_absent && !is_paused
    }

    /// Returns the fastest lane of those that `may` names and that are usable; the origin if there
    /// is none.
    pub(super) fn fastest(&self, may: impl Fn(usize) -> bool, now: Instant) -> usize {
        let usable = (0..self.all.len()).filter(|&lane| may(lane) && self.is_usable(lane, now));
        // Lanes without a measurement get equal shares.
        let unknown = usable
            .clone()
            .filter(|&lane| self.all[lane].expected(now).is_none())
            .min_by_key(|&lane| self.all[lane].running);
        let known = usable
            .filter_map(|lane| Some((lane, self.all[lane].expected(now)?)))
            .max_by(|(_, one), (_, other)| one.total_cmp(other));
        // Measure an unknown lane with one request at a time.
        let unknown = unknown.filter(|&lane| known.is_none() || self.all[lane].running == 0);
        unknown.or(known.map(|(lane, _)| lane)).unwrap_or(ORIGIN)
    }

    /// Records that a request began.
    pub(super) fn begin(&mut self, lane: usize) {
        self.all[lane].running += 1;
    }

    /// Records that a request ended, which received `bytes`.
    pub(super) fn end(&mut self, lane: usize, bytes: u64) {
        let lane = &mut self.all[lane];
        lane.running -= 1;
        lane.bytes += bytes;
    }

    /// Records the speed of a request, bytes per second.
    pub(super) fn observe(&mut self, lane: usize, speed: f64, now: Instant) {
        let lane = &mut self.all[lane];
        let before = lane.speed.map_or(speed, |(before, _)| before);
        lane.speed = Some((f64::midpoint(before, speed), now));
    }

    /// Returns whether a request of this speed should move to one of the lanes that `may` names.
    pub(super) fn is_outpaced(
        &self,
        lane: usize,
        speed: f64,
        may: impl Fn(usize) -> bool,
        now: Instant,
    ) -> bool {
        let others = (0..self.all.len()).filter(|&other| other != lane && may(other));
        others
            .filter(|&other| self.is_usable(other, now))
            .any(|other| match self.all[other].expected(now) {
                Some(expected) => expected > OUTPACED * speed,
                None => speed == 0.0,
            })
    }

    /// Records that a request to a mirror succeeded.
    pub(super) fn succeed(&mut self, lane: usize) {
        self.all[lane].failures = 0;
    }

    /// Records that a mirror does not have a file.
    pub(super) fn lacks(&mut self, lane: usize, why: String) {
        self.all[lane].lacks = Some(why);
    }

    /// Records a failure of a mirror. Requests that were running when the first one failed and fail
    /// too count as one.
    pub(super) fn fail(&mut self, lane: usize, why: &str, severity: Severity, now: Instant) {
        let lane = &mut self.all[lane];
        lane.failure = Some(why.to_owned());
        let is_paused = lane.paused_until.is_some_and(|until| now < until);
        match severity {
            Severity::Final => lane.is_dropped = true,
            Severity::Passing if is_paused => {}
            Severity::Passing => {
                let pause = PAUSE * 2_u32.saturating_pow(lane.failures.min(8));
                lane.paused_until = Some(now + pause.min(PAUSE_MAX));
                lane.failures += 1;
                lane.is_dropped |= !self.are_peers && lane.failures >= FAILURES_MAX;
            }
        }
    }
}

impl Lane {
    /// Returns the last failure. A mirror that has sent nothing and lacks files may be the wrong
    /// location.
    pub(super) fn failure(&self) -> Option<String> {
        let lacks = self.lacks.as_ref().filter(|_| self.bytes == 0);
        self.failure.as_ref().or(lacks).cloned()
    }

    /// Returns the speed that one more request would have; `None` if that is unknown.
    fn expected(&self, now: Instant) -> Option<f64> {
        let (speed, measured) = self.speed?;
        let running = f64::from(self.running);
        if self.running > 0 {
            return Some(speed * running / (running + 1.0));
        }
        let unused = now.saturating_duration_since(measured);
        if speed == 0.0 && unused >= FORGETTING {
            // Speed 0 does not recover by decay, so the lane is measured again.
            return None;
        }
        Some(speed * (unused.as_secs_f64() / FORGETTING.as_secs_f64()).exp2())
    }
}

/// Returns the owner of a part of a file among `peers`, by rendezvous hashing (Thaler and
/// Ravishankar, IEEE/ACM Transactions on Networking 1998): every process chooses alike, and when a
/// peer leaves, only its parts get other owners. `None` without peers.
pub(super) fn owner<'p>(
    peers: impl Iterator<Item = (usize, &'p str)>,
    file: &str,
    part: u64,
) -> Option<usize> {
    let weight = |peer: &str| {
        let mut hash = blake3::Hasher::new();
        for part in [peer.as_bytes(), file.as_bytes(), &part.to_le_bytes()] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        *hash.finalize().as_bytes()
    };
    let weighed = peers.map(|(lane, peer)| (weight(peer), lane));
    weighed.max().map(|(_, lane)| lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends requests one after another, `connections` at a time, over lanes whose total speeds are
    /// `capacities`; returns the share of bytes of each.
    fn shares(capacities: &[f64], connections: usize) -> Vec<f64> {
        let mut lanes = Lanes::new(capacities.len() - 1, false);
        let mut now = Instant::now();
        let mut running: Vec<usize> = Vec::new();
        let mut bytes = vec![0.0; capacities.len()];
        for _ in 0..20_000 {
            while running.len() < connections {
                let lane = lanes.fastest(|_| true, now);
                lanes.begin(lane);
                running.push(lane);
            }
            let step = Duration::from_millis(10);
            now += step;
            for (lane, capacity) in capacities.iter().enumerate() {
                let count = running.iter().filter(|it| **it == lane).count();
                if count > 0 {
                    bytes[lane] += capacity * step.as_secs_f64();
                    let each = capacity / f64::from(u32::try_from(count).expect("few"));
                    lanes.observe(lane, each, now);
                }
            }
            let ended = running.remove(0);
            lanes.end(ended, 0);
        }
        let total: f64 = bytes.iter().sum();
        bytes.iter().map(|it| it / total).collect()
    }

    #[test]
    fn requests_follow_measured_speeds() {
        for (capacities, wanted) in [
            (&[1e9, 1e9][..], &[0.5, 0.5][..]),
            (&[1e9, 3e9], &[0.25, 0.75]),
            (&[2e9, 1e9, 1e9], &[0.5, 0.25, 0.25]),
        ] {
            let found = shares(capacities, 16);
            for (found, wanted) in found.iter().zip(wanted) {
                assert!((found - wanted).abs() < 0.05, "{capacities:?}: {found}");
            }
        }
    }

    #[test]
    fn slow_lane_is_left_and_tried_again_later() {
        let (mut lanes, now) = (Lanes::new(1, false), Instant::now());
        lanes.observe(ORIGIN, 100e6, now);
        lanes.begin(ORIGIN);
        lanes.begin(1);
        lanes.observe(1, 1e6, now);
        assert!(lanes.is_outpaced(1, 1e6, |_| true, now));
        assert!(!lanes.is_outpaced(1, 1e6, |lane| lane == 1, now));
        assert!(!lanes.is_outpaced(1, 20e6, |_| true, now));
        assert!(!lanes.is_outpaced(ORIGIN, 100e6, |_| true, now));
        lanes.end(1, 5);
        let mut silent = Lanes::new(1, false);
        silent.observe(ORIGIN, 100e6, now);
        silent.observe(1, 0.0, now);
        assert_eq!(silent.fastest(|_| true, now), ORIGIN);
        assert_eq!(silent.fastest(|_| true, now + FORGETTING), 1, "forgotten");
        assert_eq!(lanes.fastest(|_| true, now), ORIGIN);
        assert_eq!(
            lanes.fastest(|_| true, now + Duration::from_secs(100)),
            1,
            "forgotten"
        );
        assert_eq!(lanes.lane(1).bytes, 5);
    }

    #[test]
    fn mirror_that_lacks_a_file_says_so_while_it_has_sent_nothing() {
        let mut lanes = Lanes::new(1, false);
        lanes.lacks(1, "404".to_owned());
        assert_eq!(lanes.lane(1).failure().as_deref(), Some("404"));
        assert!(lanes.is_usable(1, Instant::now()));
        lanes.begin(1);
        lanes.end(1, 5);
        assert_eq!(lanes.lane(1).failure(), None);
    }

    #[test]
    fn failing_mirror_pauses_and_is_dropped_in_the_end() {
        let (mut lanes, mut now) = (Lanes::new(1, false), Instant::now());
        for failures in 1..=FAILURES_MAX {
            assert!(lanes.is_usable(1, now), "{failures}");
            for _ in 0..16 {
                // These requests ran at the same time.
                lanes.fail(1, "reset", Severity::Passing, now);
            }
            assert!(!lanes.is_usable(1, now));
            assert_eq!(lanes.fastest(|_| true, now), ORIGIN);
            now += PAUSE * failures;
        }
        assert!(lanes.lane(1).is_dropped && !lanes.is_usable(1, now));
        let mut lanes = Lanes::new(1, false);
        lanes.fail(1, "other bytes", Severity::Final, now);
        assert!(!lanes.is_usable(1, now + Duration::from_secs(1000)));
        assert_eq!(lanes.lane(1).failure().as_deref(), Some("other bytes"));
    }

    #[test]
    fn failing_peer_is_tried_again_and_again() {
        let (mut lanes, mut now) = (Lanes::new(1, true), Instant::now());
        for failures in 0..20 {
            assert!(lanes.is_usable(1, now), "{failures}");
            lanes.fail(1, "refused", Severity::Passing, now);
            assert!(!lanes.is_usable(1, now + PAUSE / 2));
            now += PAUSE_MAX;
        }
        lanes.succeed(1);
        lanes.fail(1, "refused", Severity::Passing, now);
        assert!(
            lanes.is_usable(1, now + PAUSE),
            "no longer than the first time"
        );
        lanes.set_absent(1, true);
        assert!(!lanes.is_usable(1, now + PAUSE));
        lanes.set_absent(1, false);
        assert!(lanes.is_usable(1, now + PAUSE));
        lanes.add();
        assert!(lanes.is_usable(2, now));
    }

    #[test]
    fn unmeasured_lanes_share_evenly() {
        let (mut lanes, now) = (Lanes::new(2, false), Instant::now());
        let mut counts = [0; 3];
        for _ in 0..9 {
            let lane = lanes.fastest(|_| true, now);
            lanes.begin(lane);
            counts[lane] += 1;
        }
        assert_eq!(counts, [3, 3, 3]);
        assert!(lanes.is_outpaced(1, 0.0, |_| true, now), "nothing came");
        assert!(!lanes.is_outpaced(1, 1.0, |_| true, now));
    }

    #[test]
    fn owners_are_even_and_stay_when_a_peer_leaves() {
        let peers = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"];
        let of = |peers: &[&str], part| {
            let numbered = peers.iter().copied().enumerate();
            peers[owner(numbered, "a.safetensors", part).expect("some")].to_owned()
        };
        let mut counts = std::collections::BTreeMap::new();
        for part in 0..4000 {
            let all = of(&peers, part);
            let fewer = of(&peers[..3], part);
            assert!(all == fewer || all == peers[3], "{part}");
            *counts.entry(all).or_insert(0) += 1;
        }
        assert!(counts.values().all(|count| (800..1200).contains(count)));
        assert_eq!(owner(std::iter::empty(), "a", 0), None);
    }
}
