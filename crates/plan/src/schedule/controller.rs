//! Depth controller of one group: moves its limit to the throughput plateau. `depth.rs` describes
//! the algorithm and the reasons for it.

use std::time::Duration;

use super::meter::{Meter, Needs, Sample, float};
use super::{Depth, DepthReport, InFlight, LimitReason};
use evidence::Evidence;
use rest::{REST_MAX, Rest};

mod evidence;
mod rest;
mod search;

/// Requirements for a sample during the search: its steps are large, so the sample can be short.
const SEARCH: Needs = Needs {
    reads: 8,
    time: Duration::from_millis(10),
};

/// Requirements for a sample after the search, when smaller differences count.
const HOLD: Needs = Needs {
    reads: 24,
    time: Duration::from_millis(20),
};

/// Minimum throughput ratio of a step for the search to continue. Below it, noise of 20 ms windows
/// decides (10 to 15 % on a virtual disk).
const SEARCH_GAIN: f64 = 1.10;

/// Factor of the step after a slow first sample, and the gain that it must show: in between, since
/// either sample may be wrong by half.
const LEAP: u64 = 4;
const LEAP_GAIN: f64 = 2.0;

/// Gain that a probe above must show, and loss that a probe below may show. The distance between
/// the two keeps them from undoing each other.
const UP_GAIN: f64 = 0.025;
const DOWN_COST: f64 = 0.01;

/// Margin that a single probe below must show in addition; for several probes, it is divided by
/// their weight.
const DOUBT: f64 = 0.04;

/// Gain of a probe below that shows the bend to be far below.
const FAR_BELOW: f64 = 0.10;

/// Gain that a limit below the start value must show, to a search and to probes: memory for the
/// start value is no cost, and noise that was taken for a bend made loads slower
/// (`benches/results/2core-amd-2026-11-26/cold.md`).
const SEARCH_KNEE: f64 = 0.10;
const PROBE_KNEE: f64 = 0.06;

/// Weight that older evidence keeps when new evidence arrives: for results of probes, and for the
/// usual rate.
const MEMORY: f64 = 0.6;
const LONG_MEMORY: f64 = 0.9;

/// Relative decrease of the usual rate that counts as drift, and the weight of evidence that it
/// takes.
const DRIFT: f64 = 0.05;
const USUAL: f64 = 4.0;

/// Number of samples, and their weight, after which a step up has proved itself.
const PROVING: u32 = 8;
const PROVEN: f64 = 5.0;

/// Ratios to the usual rate: two samples in a row beyond them are a change of the storage.
const FELL: f64 = 0.75;
const ROSE: f64 = 1.3;

/// Multiple of its bytes in flight that must be left to read for a probe to start: it takes two to
/// four of them itself.
const WORTH: u64 = 4;

/// Controller of the limit of one group.
#[derive(Debug)]
pub(super) struct Controller {
    depth: Depth,
    in_flight: InFlight,
    limit: InFlight,
    meter: Meter,
    phase: Phase,
    above: Evidence,
    below: Evidence,
    rest: Rest,
    /// Usual rate at the limit.
    usual: Evidence,
    /// Highest usual rate so far.
    peak: f64,
    /// Limit before the last step up and its usual rate, until the step has proved itself.
    before_step: Option<Point>,
    report: DepthReport,
}

/// Limit and its throughput.
#[derive(Clone, Copy, Debug)]
struct Point {
    bytes: u64,
    rate: f64,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Measures the starting point of a search.
    Base,
    /// Tries a much higher limit than `base`, whose sample was slow and `took` so long. Reads that
    /// end before `until` began under the old limit.
    Leap {
        base: Point,
        took: Duration,
        until: Duration,
    },
    /// Tries a higher limit than `base`.
    Climb { base: Point },
    /// A jump from `low` to `high` gained less than it could: tries the middle.
    Middle { low: Point, high: Point },
    /// Measures the starting point of a descent once more: a load's first sample has a burst in it.
    Knee { why: LimitReason },
    /// Tries a lower limit than `base`. `why`: the reason why more than `base` was rejected or not
    /// tried.
    Descend { base: Point, why: LimitReason },
    /// Measures at the limit. `last` is the previous sample there, if it directly precedes.
    Hold { last: Option<f64> },
    /// Measures at another limit.
    Probe { up: bool, bytes: u64, before: f64 },
    /// Measures at the limit again.
    After {
        up: bool,
        bytes: u64,
        before: f64,
        probe: f64,
    },
}

impl Controller {
    pub(super) fn new(depth: Depth) -> Self {
        let limit = depth.limit_of(depth.start().bytes);
        // Only connections to stores are throttled one by one.
        let may_leap = depth.stride() > 0 && ratio(depth.bytes(), depth.start().bytes) > LEAP_GAIN;
        let limit_reason = if depth.is_fixed() {
            LimitReason::Fixed
        } else {
            LimitReason::NeverDeep
        };
        Self {
            depth,
            in_flight: InFlight::default(),
            limit,
            meter: Meter::new(SEARCH, may_leap),
            phase: Phase::Base,
            above: Evidence::default(),
            below: Evidence::default(),
            rest: Rest::default(),
            usual: Evidence::default(),
            peak: 0.0,
            before_step: None,
            report: DepthReport {
                limit,
                changed_at: Duration::ZERO,
                changes: 0,
                best_rate: 0,
                limit_reason,
            },
        }
    }

    /// Returns the limit in force at the moment, probes included.
    pub(super) fn limit(&self) -> InFlight {
        self.limit
    }

    pub(super) fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    pub(super) fn explain(&self) -> DepthReport {
        self.report
    }

    /// Returns whether a read of `window` bytes may start now.
    pub(super) fn admits(&self, window: usize) -> bool {
        self.depth.admits(self.limit, self.in_flight, window)
    }

    pub(super) fn began(&mut self, window: usize, now: Duration) {
        self.in_flight.begin(window);
        self.meter.began(now);
    }

    /// Records that a read would have started if the limit allowed it.
    pub(super) fn full(&mut self) {
        self.meter.full(self.in_flight);
    }

    /// Records that a read would have started if there had been memory for it.
    pub(super) fn starved(&mut self) {
        let is_leap = matches!(self.phase, Phase::Leap { .. });
        if is_leap || self.report.limit_reason == LimitReason::NeverDeep {
            self.report.limit_reason = LimitReason::Memory;
        }
    }

    /// Records the end of a read; `remaining` bytes have not begun.
    pub(super) fn ended(&mut self, window: usize, remaining: u64, now: Duration) {
        self.in_flight.end(window);
        // The limit stays as it is once all reads have begun, because engines choose the number of
        // connections by it.
        if self.depth.is_fixed() || remaining == 0 {
            return;
        }
        if let Phase::Leap { base, took, until } = &mut self.phase
            && now < *until
        {
            base.rate += float(window as u64) / took.as_secs_f64();
        }
        let Some(sample) = self.meter.ended(window, now) else {
            return;
        };
        if !sample.counts && self.void() {
            return;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rates are positive and far below 2^64"
        )]
        let rate = sample.rate as u64;
        self.report.best_rate = self.report.best_rate.max(rate);
        self.step(sample, remaining, now);
    }

    /// Discards a sample in which the limit did not restrict the load, and returns whether it did:
    /// an attempt is undone, and repeated when the limit restricts the load again.
    fn void(&mut self) -> bool {
        match self.phase {
            // Memory may restrict the load now, but a measured gain still counts.
            Phase::Leap { .. } => return false,
            Phase::Base | Phase::Knee { .. } => {}
            Phase::Climb { base: point }
            | Phase::Descend { base: point, .. }
            | Phase::Middle { low: point, .. } => {
                self.phase = Phase::Base;
                self.measure_at(point.bytes, SEARCH);
            }
            Phase::Hold { .. } | Phase::Probe { .. } | Phase::After { .. } => {
                self.phase = Phase::Hold { last: None };
                self.measure_at(self.report.limit.bytes, HOLD);
            }
        }
        true
    }

    fn step(&mut self, sample: Sample, remaining: u64, now: Duration) {
        let here = Point {
            bytes: self.limit.bytes,
            rate: sample.rate,
        };
        match self.phase {
            Phase::Base => match sample.slow {
                Some(first_took) => self.leap(here, sample.took, first_took, now),
                None => self.climb(here, 2, remaining, now),
            },
            Phase::Leap { base, .. } if here.rate < base.rate * LEAP_GAIN => {
                self.return_to(base, now);
            }
            Phase::Leap { .. } if sample.counts => self.climb(here, 4, remaining, now),
            Phase::Leap { .. } => self.settle(here, self.report.limit_reason, now),
            Phase::Climb { base } => self.climbed(base, here, remaining, now),
            Phase::Middle { low, high } => {
                if high.rate >= here.rate * SEARCH_GAIN && high.rate >= low.rate * SEARCH_GAIN {
                    self.climb(high, 2, remaining, now);
                } else if here.rate >= low.rate * SEARCH_GAIN {
                    self.settle(here, LimitReason::by(high.rate / here.rate), now);
                } else {
                    self.settle(low, LimitReason::by(here.rate / low.rate), now);
                    self.above.add(here.rate / low.rate - 1.0, MEMORY);
                }
            }
            Phase::Knee { why } => self.descend(here, why, now),
            Phase::Descend { base, .. }
                if here.rate >= base.rate * (1.0 + self.gain_below(here, 0.0, SEARCH_KNEE)) =>
            {
                self.descend(here, LimitReason::by(base.rate / here.rate), now);
            }
            Phase::Descend { base, why } => self.settle(base, why, now),
            Phase::Hold { last } => self.held(last, sample, remaining, now),
            Phase::Probe { up, bytes, before } => {
                self.phase = Phase::After {
                    up,
                    bytes,
                    before,
                    probe: sample.rate,
                };
                self.measure_at(self.report.limit.bytes, HOLD);
            }
            Phase::After {
                up,
                bytes,
                before,
                probe,
            } => {
                let gain = 2.0 * probe / (before + sample.rate) - 1.0;
                self.phase = Phase::Hold {
                    last: Some(sample.rate),
                };
                self.weigh(up, Point { bytes, rate: probe }, gain, sample.took, now);
            }
        }
    }

    /// Processes a sample at the limit.
    fn held(&mut self, last: Option<f64>, sample: Sample, remaining: u64, now: Duration) {
        let rate = sample.rate;
        let off = |rate: f64| rate < self.usual.mean * FELL || rate > self.usual.mean * ROSE;
        if let Some(last) = last
            && off(rate)
            && off(last)
        {
            let base = Point {
                bytes: self.limit.bytes,
                rate: f64::midpoint(rate, last),
            };
            if rate < self.usual.mean {
                self.descend(base, LimitReason::Unfinished, now);
            } else {
                self.climb(base, 2, remaining, now);
            }
            return;
        }
        // A single deviating sample is not added to the mean: a second one would be a drift.
        if !off(rate) {
            self.usual.add(rate, LONG_MEMORY);
            self.notice_drift();
        }
        self.phase = Phase::Hold { last: Some(rate) };
        self.rest.left = self.rest.left.saturating_sub(1);
        if self.step_failed(now) || self.rest.left > 0 {
            return;
        }
        let before = last.map_or(rate, |last| f64::midpoint(last, rate));
        // Higher limits matter more; a lower one only saves memory, or leaves a knee.
        let limit = self.limit.bytes;
        let (more, less) = (self.scaled(limit, 3, 2), self.scaled(limit, 2, 3));
        let near_knee = self.above.mean < -FAR_BELOW && self.below.mean > -FAR_BELOW;
        let every = if near_knee { 2 } else { 4 };
        let up_first = self.rest.probes % every != every - 1;
        let (can_up, can_down) = (more > limit, less < limit);
        if (!can_up && !can_down) || remaining / WORTH < more {
            self.rest.left = self.rest.length;
            return;
        }
        let up = can_up && (up_first || !can_down);
        let bytes = if up { more } else { less };
        self.phase = Phase::Probe { up, bytes, before };
        self.measure_at(bytes, HOLD);
    }

    /// Restarts frequent probes when the usual rate has decreased gradually.
    fn notice_drift(&mut self) {
        let Evidence { mean, weight } = self.usual;
        if weight < USUAL {
            return;
        }
        if mean < self.peak * (1.0 - DRIFT) {
            self.rest = Rest::default();
            self.peak = mean;
        }
        self.peak = self.peak.max(mean);
    }

    /// Undoes the last step up if it has no lasting gain, whatever its probe showed: queues that
    /// drain at each change raise the rate for a moment. The next probe is then far away.
    fn step_failed(&mut self, now: Duration) -> bool {
        let Some(before) = self.before_step.filter(|_| self.usual.weight > PROVEN) else {
            return false;
        };
        self.before_step = None;
        if self.usual.mean >= before.rate * (1.0 + UP_GAIN / 2.0) {
            return false;
        }
        self.settle(before, LimitReason::OnlyQueued, now);
        self.rest.length = REST_MAX;
        self.rest.left = REST_MAX;
        true
    }

    /// Processes the result of a probe.
    fn weigh(&mut self, up: bool, tried: Point, gain: f64, took: Duration, now: Duration) {
        self.rest.probes += 1;
        if up {
            self.above.add(gain, MEMORY);
            let Evidence { mean, weight } = self.above;
            if mean * weight / (weight + 1.0) > UP_GAIN {
                let ceiling = self.scaled(tried.bytes, 3, 2) <= tried.bytes;
                let limit_reason = if ceiling {
                    LimitReason::Ceiling
                } else {
                    LimitReason::Unfinished
                };
                let before = Point {
                    bytes: self.report.limit.bytes,
                    rate: self.usual.mean,
                };
                self.settle(tried, limit_reason, now);
                self.before_step = Some(before);
                self.rest.left = PROVING;
                return;
            }
            self.report.limit_reason = LimitReason::by(1.0 + mean);
        } else {
            self.below.add(gain, MEMORY);
            let Evidence { mean, weight } = self.below;
            if mean - DOUBT / weight > self.gain_below(tried, -DOWN_COST, PROBE_KNEE) {
                let why = LimitReason::by(1.0 - mean);
                if mean > FAR_BELOW {
                    self.descend(tried, why, now);
                } else {
                    self.settle(tried, why, now);
                }
                return;
            }
        }
        self.rest.lengthen(took);
    }

    /// Returns the gain that a lower limit must show: `usual`, or `knee` below the start value.
    fn gain_below(&self, lower: Point, usual: f64, knee: f64) -> f64 {
        // Compare in whole reads, because the start value has extra room for alignment.
        let read = self.meter.turn().read_bytes();
        if lower.bytes + read / 2 < self.depth.start().bytes {
            knee
        } else {
            usual
        }
    }

    /// Makes `bytes` the limit until a better one is found.
    fn accept(&mut self, bytes: u64, limit_reason: LimitReason, now: Duration) {
        let limit = self.depth.limit_of(bytes);
        if limit != self.report.limit {
            self.report.limit = limit;
            self.report.changed_at = now;
            self.report.changes += 1;
        }
        self.report.limit_reason = limit_reason;
    }

    /// Begins a sample at another limit, once the reads in flight under the present one have ended.
    fn measure_at(&mut self, bytes: u64, needs: Needs) {
        let limit = self.depth.limit_of(bytes);
        let skip = if limit == self.limit {
            0
        } else {
            self.in_flight.bytes
        };
        self.limit = limit;
        self.meter.restart(needs, skip, self.usual.mean);
    }

    /// Returns `bytes` times `by` over `over`, in whole reads: at least one read more or less, if
    /// the range allows it.
    fn scaled(&self, bytes: u64, by: u64, over: u64) -> u64 {
        let read = self.meter.turn().read_bytes();
        let reads = (bytes + read / 2) / read;
        let wanted = match by.cmp(&over) {
            std::cmp::Ordering::Equal => reads,
            std::cmp::Ordering::Greater => ((reads * by + over / 2) / over).max(reads + 1),
            std::cmp::Ordering::Less => ((reads * by + over / 2) / over).min(reads.max(1) - 1),
        };
        // The minimum is two reads: see `Depth::limit_of`.
        let scaled = self.depth.limit_of(wanted.max(2) * read).bytes;
        match by.cmp(&over) {
            std::cmp::Ordering::Less => scaled.min(bytes),
            std::cmp::Ordering::Greater => scaled.max(bytes),
            std::cmp::Ordering::Equal => scaled,
        }
    }
}

fn ratio(a: u64, b: u64) -> f64 {
    Duration::from_nanos(a).as_secs_f64() / Duration::from_nanos(b.max(1)).as_secs_f64()
}

#[cfg(test)]
mod tests;
