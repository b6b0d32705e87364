//! Steps of the search for the plateau, which a load begins with.

use std::time::Duration;

use super::super::LimitReason;
use super::evidence::Evidence;
use super::rest::Rest;
use super::{
    Controller, HOLD, LEAP, LONG_MEMORY, MEMORY, Phase, Point, SEARCH, SEARCH_GAIN, WORTH, ratio,
};

/// Share of a proportional gain that shows a step to be far from the bend, so that the next one may
/// be larger.
const NEARLY_ALL: f64 = 0.8;

/// Loss of a step of the search that shows a knee below it.
const KNEE_LOSS: f64 = 0.05;

/// As [`WORTH`], for a step after one that gained nearly all it could: the next one is likely to
/// pay off, and is repaid sooner.
const WORTH_CLIMBING: u64 = 2;

impl Controller {
    /// Tries much more than `base` at once, whatever is left to read: on a slow store, connections
    /// that gain nothing cost nothing either, and each sample takes long.
    ///
    /// The sample of `base` covers `took` from the start of the load. Its first read ended after
    /// `first_took`, a time in which a store that answers late sends hardly a byte. All reads that
    /// end in the next `first_took` began before the leap; their bytes are added to the sample.
    /// Its rate is then that of a period of the same length that begins when the first read ended.
    pub(super) fn leap(
        &mut self,
        base: Point,
        took: Duration,
        first_took: Duration,
        now: Duration,
    ) {
        let bytes = self.depth.limit_of(base.bytes * LEAP).bytes;
        let limit_reason = if bytes == self.depth.bytes() {
            LimitReason::Ceiling
        } else {
            LimitReason::Unfinished
        };
        self.accept(bytes, limit_reason, now);
        let until = now + first_took;
        self.phase = Phase::Leap { base, took, until };
        self.measure_at(bytes, SEARCH);
    }

    /// Begins the search again at `base`, whose sample was too rough to compare with.
    pub(super) fn return_to(&mut self, base: Point, now: Duration) {
        self.accept(base.bytes, LimitReason::Unfinished, now);
        self.phase = Phase::Base;
        self.measure_at(base.bytes, SEARCH);
    }

    /// Tries `times` as much as `base`, the best limit so far.
    pub(super) fn climb(&mut self, base: Point, times: u64, remaining: u64, now: Duration) {
        let bytes = self.scaled(base.bytes, times, 1);
        let worth = if times > 2 { WORTH_CLIMBING } else { WORTH };
        if bytes <= base.bytes && self.report.changes == 0 {
            // The load began at the maximum, so a lower limit may be faster.
            self.remeasure(base, LimitReason::Ceiling, now);
        } else if bytes <= base.bytes {
            self.settle(base, LimitReason::Ceiling, now);
        } else if remaining / worth < bytes {
            self.settle(base, LimitReason::Unfinished, now);
        } else {
            self.accept(base.bytes, LimitReason::Unfinished, now);
            self.phase = Phase::Climb { base };
            self.measure_at(bytes, SEARCH);
        }
    }

    pub(super) fn climbed(&mut self, base: Point, here: Point, remaining: u64, now: Duration) {
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
        } else if gain < 1.0 - KNEE_LOSS {
            // The limit is past a knee, and `base` may be past it as well.
            self.remeasure(base, LimitReason::by(gain), now);
        } else {
            self.settle(base, LimitReason::by(gain), now);
            // Start smaller steps with this estimate.
            self.above.add(gain - 1.0, MEMORY);
        }
    }

    /// Measures `base`, the best limit so far, once more before it tries half of it.
    pub(super) fn remeasure(&mut self, base: Point, why: LimitReason, now: Duration) {
        self.accept(base.bytes, why, now);
        self.phase = Phase::Knee { why };
        self.measure_at(base.bytes, SEARCH);
    }

    /// Tries half of `base`, the best limit so far. `why`: the reason why the limit is not higher.
    pub(super) fn descend(&mut self, base: Point, why: LimitReason, now: Duration) {
        let bytes = self.scaled(base.bytes, 1, 2);
        if bytes >= base.bytes {
            self.settle(base, why, now);
            return;
        }
        self.accept(base.bytes, why, now);
        self.phase = Phase::Descend { base, why };
        self.measure_at(bytes, SEARCH);
    }

    /// Ends the search: smaller steps from here on.
    pub(super) fn settle(&mut self, at: Point, limit_reason: LimitReason, now: Duration) {
        self.accept(at.bytes, limit_reason, now);
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
}
