//! Throughput of one limit: bytes per second over whole turns, and whether the limit was what
//! restricted the load.

use std::time::Duration;

use super::InFlight;

/// Share of a sample's time in which the load must have been at the limit for the sample to count.
const FULL_SHARE_MIN: f64 = 0.8;

/// Time after which a sample need not span a whole turn: half of one suffices, and reads of the old
/// limit need not have ended. Turns take this long only where the rate is far below the bytes in
/// flight, as in stores that throttle connections: 320 MiB in flight at 12.5 MB/s for each of 16
/// connections are 1.7 s a turn, and three turns passed before a load had more connections. The
/// first such sample of a load is discarded, since many throttles let a burst pass first, unless
/// it is slow: see [`Sample::slow`].
const PATIENCE: Duration = Duration::from_millis(500);

/// Minimum requirements for a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Number of reads: their latencies differ.
    pub(super) reads: u32,
    /// Duration. Hosts complete reads in batches, and throughput between windows of 20 ms varies by
    /// 10 to 15 % on a virtual disk.
    pub(super) time: Duration,
}

/// Throughput measured over whole turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Bytes per second.
    pub(super) rate: f64,
    /// True if the limit restricted the load. If not, the rate says nothing about the limit.
    pub(super) counts: bool,
    pub(super) took: Duration,
    /// Time until the first read ended, for the first sample of a load if not even half of a turn
    /// passed in [`PATIENCE`]. Its rate is rough: bursts raise it, and reads of which a part has
    /// arrived lower it, each by up to a half.
    pub(super) slow: Option<Duration>,
}

/// Measures one sample after another.
#[derive(Debug)]
pub(super) struct Meter {
    needs: Needs,
    /// Expected rate, bytes per second; 0 if unknown.
    expected: f64,
    last: Option<Duration>,
    since: Duration,
    /// Reads in flight at the limit, if no read has begun or ended since the limit was reached.
    full: Option<InFlight>,
    /// Reads in flight when the limit was last reached, at any time.
    turn: InFlight,
    full_for: Duration,
    /// Bytes still in flight from reads that began under another limit.
    skip: u64,
    bytes: u64,
    reads: u32,
    /// Byte count at which the next whole turn ends.
    turn_ends: u64,
    /// Number of whole turns so far.
    turns: u32,
    /// True if samples have no burst of the load's start in them.
    is_steady: bool,
    /// True if the first sample may be a slow one.
    may_be_slow: bool,
    /// Time until the first read of the load ended.
    first_took: Option<Duration>,
}

impl Meter {
    /// Creates a meter. `may_be_slow`: see [`Sample::slow`].
    pub(super) fn new(needs: Needs, may_be_slow: bool) -> Self {
        Self {
            needs,
            may_be_slow,
            first_took: None,
            expected: 0.0,
            last: None,
            since: Duration::ZERO,
            full: None,
            turn: InFlight::default(),
            full_for: Duration::ZERO,
            skip: 0,
            bytes: 0,
            reads: 0,
            turn_ends: 0,
            turns: 0,
            is_steady: false,
        }
    }

    /// Returns what is in flight when the limit is reached.
    pub(super) fn turn(&self) -> InFlight {
        self.turn
    }

    /// Starts a sample once reads of `skip` bytes have ended. Below half of the `expected` rate it
    /// need not span a whole turn: a turn of a deep queue in front of slow storage takes seconds.
    pub(super) fn restart(&mut self, needs: Needs, skip: u64, expected: f64) {
        self.needs = needs;
        self.expected = expected;
        self.skip = skip;
        self.is_steady = true;
        self.clear();
    }

    fn clear(&mut self) {
        self.since = self.last.unwrap_or_default();
        self.full_for = Duration::ZERO;
        self.bytes = 0;
        self.reads = 0;
        self.turn_ends = 0;
        self.turns = 0;
    }

    /// Records the start of a read. The first one starts the clock.
    pub(super) fn began(&mut self, now: Duration) {
        self.full = None;
        if self.last.is_none() {
            self.last = Some(now);
            self.since = now;
        }
    }

    /// Records that the limit is reached.
    pub(super) fn full(&mut self, in_flight: InFlight) {
        self.full = Some(in_flight);
        self.turn = in_flight;
    }

    /// Records the end of a read. Returns a sample if this read completes one.
    pub(super) fn ended(&mut self, window: usize, now: Duration) -> Option<Sample> {
        let last = self.last.unwrap_or(now);
        // Lanes take timestamps one after another but may report them in any order.
        let now = now.max(last);
        if self.full.take().is_some() {
            self.full_for += now.saturating_sub(last);
        }
        self.last = Some(now);
        let took = now.saturating_sub(self.since);
        let first_took = *self.first_took.get_or_insert(took);
        if self.skip > 0 {
            self.skip = self.skip.saturating_sub(window as u64);
            if took >= PATIENCE {
                self.skip = 0;
            }
            if self.skip == 0 {
                self.clear();
            }
            return None;
        }
        self.bytes += window as u64;
        self.reads += 1;
        let slow = self.expected * took.as_secs_f64() > 2.0 * float(self.turn.bytes);
        let has_half = self.bytes >= self.turn.bytes / 2;
        let long = took >= PATIENCE && has_half && self.turn_ends > 0;
        let is_slow = took >= PATIENCE && !has_half && !self.is_steady && self.may_be_slow;
        if self.bytes < self.turn_ends && !slow && !long && !is_slow {
            return None;
        }
        if self.turn_ends > 0 {
            self.turns += 1;
        }
        self.turn_ends += self.turn.bytes.max(1);
        let enough = self.turns > 0 && self.reads >= self.needs.reads && took >= self.needs.time;
        if !enough || took.is_zero() {
            return None;
        }
        if long && !self.is_steady {
            self.is_steady = true;
            self.clear();
            return None;
        }
        let sample = Sample {
            rate: float(self.bytes) / took.as_secs_f64(),
            counts: self.full_for.as_secs_f64() >= FULL_SHARE_MIN * took.as_secs_f64(),
            took,
            slow: is_slow.then_some(first_took),
        };
        self.clear();
        Some(sample)
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a sample has far fewer than 2^52 bytes, and an error of one byte is harmless"
)]
pub(super) fn float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: usize = 4 << 20;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Returns a meter that needs `reads` reads and 10 ms, with four reads in flight from 100 ms on
    /// and the limit reached.
    fn meter(reads: u32) -> Meter {
        let needs = Needs {
            reads,
            time: ms(10),
        };
        let mut meter = Meter::new(needs, false);
        meter.began(ms(100));
        meter.full(InFlight {
            jobs: 4,
            bytes: 4 * READ as u64,
        });
        meter
    }

    /// Ends a read at each of the times; returns the sample that each one completes, if any.
    fn samples(meter: &mut Meter, times: &[u64]) -> Vec<Option<Sample>> {
        let ended = times.iter().map(|now| meter.ended(READ, ms(*now)));
        ended.collect()
    }

    fn sample(reads: usize, took: u64, counts: bool) -> Sample {
        Sample {
            rate: float((reads * READ) as u64) / ms(took).as_secs_f64(),
            counts,
            took: ms(took),
            slow: None,
        }
    }

    #[test]
    fn sample_spans_whole_turn_from_first_read() {
        for reads in [1, 4] {
            let found = samples(&mut meter(reads), &[110; 4]);
            assert_eq!(found, [None, None, None, Some(sample(4, 10, true))]);
        }
        // Not enough reads, then not enough time: another turn follows.
        let found = samples(&mut meter(5), &[110; 8]);
        assert_eq!((found[3], found[7]), (None, Some(sample(8, 10, true))));
        let found = samples(&mut meter(1), &[109, 109, 109, 109, 118, 118, 118, 118]);
        assert_eq!((found[3], found[7]), (None, Some(sample(8, 18, false))));
    }

    #[test]
    fn sample_full_for_four_fifths_counts() {
        for (full_at, counts) in [(108, true), (107, false)] {
            let mut meter = meter(1);
            let found = samples(&mut meter, &[full_at, full_at, 110, 110]);
            assert_eq!(found[3], Some(sample(4, 10, counts)));
        }
    }

    #[test]
    fn sample_skips_reads_of_previous_limit() {
        let mut meter = meter(1);
        meter.restart(meter.needs, 2 * READ as u64, 0.0);
        let found = samples(&mut meter, &[110, 120, 130, 130, 130, 130]);
        assert_eq!(found[..5], [None; 5]);
        assert_eq!(found[5], Some(sample(4, 10, false)));
    }

    #[test]
    fn sample_at_half_expected_rate_ends_early() {
        let mut meter = meter(2);
        // At this rate two turns take 20.97 ms.
        meter.restart(meter.needs, 0, 1.6e9);
        let found = samples(&mut meter, &[112, 120, 122]);
        assert_eq!(found, [None, None, Some(sample(3, 22, false))]);
    }

    #[test]
    fn slow_turn_is_sampled_half_once_burst_has_passed() {
        let found = samples(&mut meter(1), &[400, 800, 1200, 1600]);
        assert_eq!(found[..3], [None; 3]);
        assert_eq!(found[3], Some(sample(2, 800, false)));
        // Reads of the old limit take longer than anyone waits for them.
        let mut meter = meter(1);
        meter.restart(meter.needs, 40 * READ as u64, 0.0);
        let found = samples(&mut meter, &[400, 800, 1200, 1600]);
        assert_eq!(found[..3], [None; 3]);
        assert_eq!(found[3], Some(sample(2, 800, false)));
    }
}
