//! Detection of stalls: how long operations usually take, and how many requests may be hedged.
//! Pure.
//!
//! Reads no clock: times are arguments. Used for reads of files, where stalls are only reported,
//! and for requests to object stores, a few of which may be sent a second time ("hedged", as Dean
//! and Barroso call it in "The Tail at Scale", CACM 2013).

use std::time::Duration;

/// Buckets per doubling of the latency: a limit exceeds the measured value by a fifth at most.
const STEPS: u32 = 4;

/// Number of buckets, from a millisecond to about an hour; shorter times count as the shortest.
const BUCKETS: usize = 22 * STEPS as usize;

/// Minimum number of observations for a limit.
const OBSERVED_MIN: u32 = 16;

/// Multiple of the 95th percentile beyond which an operation is stalled. Hedging at the 95th
/// percentile itself costs 5 % more requests for a shorter tail (Dean and Barroso); this factor
/// detects broken operations, not slow ones.
const STALL_FACTOR: u32 = 4;

/// Minimum time before an operation counts as stalled.
const FLOOR: Duration = Duration::from_millis(500);

/// Limit while there are too few observations.
const UNKNOWN: Duration = Duration::from_secs(5);

/// Hedging budget: one request in this many may be hedged.
const HEDGED_ONE_IN: u32 = 20;

/// Histogram of latencies, with the limit beyond which an operation is stalled.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    /// Number of observations by latency: each bucket is 2^(1/4) times as long as the one before.
    buckets: [u32; BUCKETS],
    observed: u32,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            buckets: [0; BUCKETS],
            observed: 0,
        }
    }
}

impl LatencyHistogram {
    /// Adds an observation.
    pub fn observe(&mut self, took: Duration) {
        let bucket = &mut self.buckets[bucket(took)];
        *bucket = bucket.saturating_add(1);
        self.observed = self.observed.saturating_add(1);
    }

    /// Returns the time beyond which an operation is stalled.
    pub fn limit(&self) -> Duration {
        if self.observed < OBSERVED_MIN {
            return UNKNOWN;
        }
        let beyond = self.observed / HEDGED_ONE_IN;
        let mut longer = 0;
        for (index, count) in self.buckets.iter().enumerate().rev() {
            longer += count;
            if longer > beyond {
                return FLOOR.max(upper(index) * STALL_FACTOR);
            }
        }
        UNKNOWN
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small number that is not negative"
)]
fn bucket(took: Duration) -> usize {
    let millis = (took.as_secs_f64() * 1e3).max(1.0);
    let index = (millis.log2() * f64::from(STEPS)) as usize;
    index.min(BUCKETS - 1)
}

/// Returns the upper bound of a bucket.
#[expect(clippy::cast_precision_loss, reason = "fewer than a hundred")]
fn upper(bucket: usize) -> Duration {
    let doublings = (bucket + 1) as f64 / f64::from(STEPS);
    Duration::from_secs_f64(doublings.exp2() / 1e3)
}

/// Number of requests sent, and number of those that were hedged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hedges {
    requests: u64,
    hedged: u64,
}

impl Hedges {
    /// Records that a request was sent.
    pub fn requested(&mut self) {
        self.requests += 1;
    }

    /// Returns whether a request may be hedged, and if so counts it. One is always allowed, or
    /// short loads would not benefit.
    pub fn take(&mut self) -> bool {
        let may = self.hedged < 1 + self.requests / u64::from(HEDGED_ONE_IN);
        self.hedged += u64::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(millis: impl IntoIterator<Item = u64>) -> LatencyHistogram {
        let mut latencies = LatencyHistogram::default();
        for millis in millis {
            latencies.observe(Duration::from_millis(millis));
        }
        latencies
    }

    #[test]
    fn limit_is_default_with_few_observations() {
        assert_eq!(latencies([]).limit(), UNKNOWN);
        assert_eq!(latencies([1; 15]).limit(), UNKNOWN);
        assert_eq!(latencies([1; 16]).limit(), FLOOR);
    }

    #[test]
    fn limit_is_four_times_p95() {
        let limit = latencies([1000; 100]).limit();
        let expected = Duration::from_secs(4)..Duration::from_secs(5);
        assert!(expected.contains(&limit), "{limit:?}");
        let five_of_a_hundred = latencies([1000; 95].into_iter().chain([60_000; 5]));
        assert_eq!(five_of_a_hundred.limit(), limit);
        let six_of_a_hundred = latencies([1000; 94].into_iter().chain([60_000; 6]));
        assert!(six_of_a_hundred.limit() > Duration::from_secs(200));
    }

    #[test]
    fn extreme_latencies_are_counted() {
        let mut latencies = latencies([0; 40]);
        assert_eq!(latencies.limit(), FLOOR);
        for _ in 0..40 {
            latencies.observe(Duration::MAX);
        }
        assert!(latencies.limit() > Duration::from_secs(3600));
    }

    #[test]
    fn hedges_are_limited_to_one_plus_one_in_twenty() {
        let mut hedges = Hedges::default();
        hedges.requested();
        assert!(hedges.take());
        assert!(!hedges.take());
        (0..1999).for_each(|_| hedges.requested());
        let taken = (0..1000).filter(|_| hedges.take()).count();
        assert_eq!(taken, 100);
    }
}
