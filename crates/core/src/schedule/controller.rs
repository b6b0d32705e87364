//! Moves the limit of one group to where more in flight brings no more. What it does and why: `depth.rs`.

use std::time::Duration;

use super::meter::{Meter, Needs, Sample};
use super::{Depth, DepthReport, InFlight, Settled};

/// What the search wants of a sample: its steps are large, so it can be short.
const SEARCH: Needs = Needs {
    reads: 8,
    time: Duration::from_millis(10),
};

/// What is wanted of a sample afterwards, when smaller differences count.
const HOLD: Needs = Needs {
    reads: 24,
    time: Duration::from_millis(20),
};

/// The search goes on while a step brings so much. Below, noise of 20 ms windows decides (10 to 15 % on a virtual disk).
const SEARCH_GAIN: f64 = 1.10;

/// A step that brought so much of what it added in flight is far from the bend: the next may be a larger one.
const NEARLY_ALL: f64 = 0.8;

/// What a probe above must bring, and what one below may cost. The distance between the two keeps them from undoing each other.
const UP_GAIN: f64 = 0.025;
const DOWN_COST: f64 = 0.01;

/// What a single probe below must bring beyond that; several, so much less.
const DOUBT: f64 = 0.04;

/// A probe below that brings so much shows a bend that lies far below.
const FAR_BELOW: f64 = 0.10;

/// Weight that older evidence keeps when new evidence comes: what probes brought, and what is usual.
const MEMORY: f64 = 0.6;
const LONG_MEMORY: f64 = 0.9;

/// What is usual has drifted when it is so much below what it was, with so much evidence.
const DRIFT: f64 = 0.05;
const USUAL: f64 = 4.0;

/// Samples between two probes: at first, and at most; further probes are rarer until that takes this long.
const REST_MIN: u32 = 3;
const REST_MAX: u32 = 16;
const REST_MIN_SETTLED: u32 = 8;
const REST_TIME: Duration = Duration::from_millis(500);

/// A step up has proved itself after so many samples, and their weight.
const PROVING: u32 = 8;
const PROVEN: f64 = 5.0;

/// Two samples in a row beyond these, against what was usual, are a change of the storage.
const FELL: f64 = 0.75;
const ROSE: f64 = 1.3;

/// A probe needs so many times its bytes in flight to be left to read: it takes two to four of them itself.
const WORTH: u64 = 4;

/// The limit of one group.
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
    /// Rate that is usual at the limit.
    usual: Evidence,
    /// The most that it was.
    peak: f64,
    /// The limit before the last step up, and what was usual there, until the step has proved itself.
    before_step: Option<Point>,
    report: DepthReport,
}

/// A limit and what it brought.
#[derive(Clone, Copy, Debug)]
struct Point {
    bytes: u64,
    rate: f64,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Measures what a search is to start from.
    Base,
    /// Tries more than `base`.
    Climb { base: Point },
    /// A jump from `low` to `high` brought less than it could: tries between.
    Middle { low: Point, high: Point },
    /// Tries less than `base`, beyond which more was not worth it, or not tried: `why`.
    Descend { base: Point, why: Settled },
    /// Measures at the limit; the last sample there, if it was just before.
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

/// When the next probe is due, and which.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// Samples until then.
    left: u32,
    /// Samples between two.
    length: u32,
    probes: u32,
}

/// A mean that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    mean: f64,
    weight: f64,
}

impl Evidence {
    fn add(&mut self, value: f64, memory: f64) {
        self.weight = self.weight * memory + 1.0;
        self.mean += (value - self.mean) / self.weight;
    }
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            left: REST_MIN,
            length: REST_MIN,
            probes: 0,
        }
    }
}

impl Rest {
    /// A probe led to nothing; samples take `took` each.
    fn lengthen(&mut self, took: Duration) {
        let in_time = REST_TIME.as_nanos() / took.as_nanos().max(1);
        let in_time = u32::try_from(in_time).unwrap_or(u32::MAX);
        let most = in_time.clamp(REST_MIN_SETTLED, REST_MAX);
        if self.probes.is_multiple_of(2) {
            self.length = (self.length * 2).min(most);
        }
        self.left = self.length;
    }
}

impl Controller {
    pub(super) fn new(depth: Depth) -> Self {
        let limit = depth.limit_of(depth.start().bytes);
        let settled = if depth.is_fixed() {
            Settled::Fixed
        } else {
            Settled::NeverDeep
        };
        Self {
            depth,
            in_flight: InFlight::default(),
            limit,
            meter: Meter::new(SEARCH),
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
                settled,
            },
        }
    }

    /// What may be in flight at this moment, probes included.
    pub(super) fn limit(&self) -> InFlight {
        self.limit
    }

    pub(super) fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    pub(super) fn explain(&self) -> DepthReport {
        self.report
    }

    /// Whether a read of `window` bytes may start now.
    pub(super) fn admits(&self, window: usize) -> bool {
        self.depth.admits(self.limit, self.in_flight, window)
    }

    pub(super) fn began(&mut self, window: usize, now: Duration) {
        self.in_flight.begin(window);
        self.meter.began(now);
    }

    /// A read would have started if the limit allowed it.
    pub(super) fn full(&mut self) {
        self.meter.full(self.in_flight);
    }

    /// A read would have started if there had been memory for it.
    pub(super) fn starved(&mut self) {
        if self.report.settled == Settled::NeverDeep {
            self.report.settled = Settled::Memory;
        }
    }

    /// A read has ended; `remaining` bytes have not begun.
    pub(super) fn ended(&mut self, window: usize, remaining: u64, now: Duration) {
        self.in_flight.end(window);
        if self.depth.is_fixed() {
            return;
        }
        let Some(sample) = self.meter.ended(window, now) else {
            return;
        };
        if sample.counts {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "rates are positive and far below 2^64"
            )]
            let rate = sample.rate as u64;
            self.report.best_rate = self.report.best_rate.max(rate);
            self.step(sample, remaining, now);
        } else {
            self.void();
        }
    }

    /// The limit did not hold the load back: what was tried goes back, and is tried again when it does.
    fn void(&mut self) {
        match self.phase {
            Phase::Base => {}
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
    }

    fn step(&mut self, sample: Sample, remaining: u64, now: Duration) {
        let here = Point {
            bytes: self.limit.bytes,
            rate: sample.rate,
        };
        match self.phase {
            Phase::Base => self.climb(here, 2, remaining, now),
            Phase::Climb { base } => self.climbed(base, here, remaining, now),
            Phase::Middle { low, high } => {
                if high.rate >= here.rate * SEARCH_GAIN && high.rate >= low.rate * SEARCH_GAIN {
                    self.climb(high, 2, remaining, now);
                } else if here.rate >= low.rate * SEARCH_GAIN {
                    self.settle(here, Settled::by(high.rate / here.rate), now);
                } else {
                    self.settle(low, Settled::by(here.rate / low.rate), now);
                    self.above.add(here.rate / low.rate - 1.0, MEMORY);
                }
            }
            Phase::Descend { base, .. } if here.rate >= base.rate => {
                self.descend(here, Settled::by(base.rate / here.rate), now);
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

    /// `base` is the best so far: tries `times` as much.
    fn climb(&mut self, base: Point, times: u64, remaining: u64, now: Duration) {
        let bytes = self.scaled(base.bytes, times, 1);
        if bytes <= base.bytes && self.report.changes == 0 {
            // It began there: nobody knows whether less would do.
            self.descend(base, Settled::Ceiling, now);
        } else if bytes <= base.bytes {
            self.settle(base, Settled::Ceiling, now);
        } else if remaining / WORTH < bytes {
            self.settle(base, Settled::Unfinished, now);
        } else {
            self.accept(base.bytes, Settled::Unfinished, now);
            self.phase = Phase::Climb { base };
            self.measure_at(bytes, SEARCH);
        }
    }

    fn climbed(&mut self, base: Point, here: Point, remaining: u64, now: Duration) {
        let (gain, times) = (here.rate / base.rate, ratio(here.bytes, base.bytes));
        let nearly_all = gain >= NEARLY_ALL * times;
        let between = (u128::from(base.bytes) * u128::from(here.bytes)).isqrt();
        let between = self.scaled(u64::try_from(between).unwrap_or(here.bytes), 1, 1);
        if times > 2.5 && !nearly_all && base.bytes < between && between < here.bytes {
            self.phase = Phase::Middle {
                low: base,
                high: here,
            };
            self.measure_at(between, SEARCH);
        } else if gain >= SEARCH_GAIN {
            self.climb(here, if nearly_all { 4 } else { 2 }, remaining, now);
        } else if gain < 1.0 - FAR_BELOW {
            // Past a knee, and perhaps past it already before.
            self.descend(base, Settled::by(gain), now);
        } else {
            self.settle(base, Settled::by(gain), now);
            // A first hint of what a smaller step would bring.
            self.above.add(gain - 1.0, MEMORY);
        }
    }

    /// `base` is the best so far: tries half. `why` it is not more.
    fn descend(&mut self, base: Point, why: Settled, now: Duration) {
        let bytes = self.scaled(base.bytes, 1, 2);
        if bytes >= base.bytes {
            self.settle(base, why, now);
            return;
        }
        self.accept(base.bytes, why, now);
        self.phase = Phase::Descend { base, why };
        self.measure_at(bytes, SEARCH);
    }

    /// The search is over: from here on, smaller steps.
    fn settle(&mut self, at: Point, settled: Settled, now: Duration) {
        self.accept(at.bytes, settled, now);
        self.above = Evidence::default();
        self.below = Evidence::default();
        self.usual = Evidence::default();
        self.usual.add(at.rate, LONG_MEMORY);
        self.peak = 0.0;
        self.before_step = None;
        self.rest = Rest::default();
        self.phase = Phase::Hold { last: None };
        self.measure_at(at.bytes, HOLD);
    }

    /// A sample at the limit.
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
                self.descend(base, Settled::Unfinished, now);
            } else {
                self.climb(base, 2, remaining, now);
            }
            return;
        }
        // One that is off might be the first of two.
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
        // More is what matters first; less only saves memory, or gets away from a knee.
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

    /// Slower than it was, little by little: time to look around again.
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

    /// The last step up brings nothing in the long run, whatever a probe showed: queues that empty at each change bring more for
    /// a moment. Then it is undone, and the next one is far away.
    fn step_failed(&mut self, now: Duration) -> bool {
        let Some(before) = self.before_step.filter(|_| self.usual.weight > PROVEN) else {
            return false;
        };
        self.before_step = None;
        if self.usual.mean >= before.rate * (1.0 + UP_GAIN / 2.0) {
            return false;
        }
        self.settle(before, Settled::OnlyQueued, now);
        self.rest.length = REST_MAX;
        self.rest.left = REST_MAX;
        true
    }

    /// What a probe showed.
    fn weigh(&mut self, up: bool, tried: Point, gain: f64, took: Duration, now: Duration) {
        self.rest.probes += 1;
        if up {
            self.above.add(gain, MEMORY);
            let Evidence { mean, weight } = self.above;
            if mean * weight / (weight + 1.0) > UP_GAIN {
                let ceiling = self.scaled(tried.bytes, 3, 2) <= tried.bytes;
                let settled = if ceiling {
                    Settled::Ceiling
                } else {
                    Settled::Unfinished
                };
                let before = Point {
                    bytes: self.report.limit.bytes,
                    rate: self.usual.mean,
                };
                self.settle(tried, settled, now);
                self.before_step = Some(before);
                self.rest.left = PROVING;
                return;
            }
            self.report.settled = Settled::by(1.0 + mean);
        } else {
            self.below.add(gain, MEMORY);
            let Evidence { mean, weight } = self.below;
            if mean > FAR_BELOW {
                self.descend(tried, Settled::by(1.0 - mean), now);
                return;
            }
            if mean - DOUBT / weight > -DOWN_COST {
                self.settle(tried, Settled::by(1.0 - mean), now);
                return;
            }
        }
        self.rest.lengthen(took);
    }

    /// `bytes` is the limit, until something better is found.
    fn accept(&mut self, bytes: u64, settled: Settled, now: Duration) {
        let limit = self.depth.limit_of(bytes);
        if limit != self.report.limit {
            self.report.limit = limit;
            self.report.changed_at = now;
            self.report.changes += 1;
        }
        self.report.settled = settled;
    }

    /// Begins a sample at another limit, once what is in flight under the present one has ended.
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

    /// `bytes` times `by` over `over`, in whole reads: at least one more or less, if the bounds allow it.
    fn scaled(&self, bytes: u64, by: u64, over: u64) -> u64 {
        let read = self.meter.turn().read_bytes();
        let reads = (bytes + read / 2) / read;
        let wanted = match by.cmp(&over) {
            std::cmp::Ordering::Equal => reads,
            std::cmp::Ordering::Greater => ((reads * by + over / 2) / over).max(reads + 1),
            std::cmp::Ordering::Less => ((reads * by + over / 2) / over).min(reads.max(1) - 1),
        };
        // Two at least: see `Depth::limit_of`.
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
