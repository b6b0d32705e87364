//! Number of lanes that read a group. Pure.
//!
//! One lane waits for storage most of the time; a second one would only wait too. But copies from
//! the page cache, the first touch of fresh memory and some file systems keep a lane's thread busy
//! in the kernel. When lanes are saturated, twice as many are tried. They stay only if throughput
//! rises: threads are not free, and a thread that looks busy may be waiting for a contended lock or
//! for memory bandwidth.
//!
//! Worked example (windows of 20 ms): one lane is busy for 19 and 20 ms of two windows, in which
//! 400 MB arrive. A second lane begins. In the next two windows 750 MB arrive, 1.9 times as many:
//! it stays. With four lanes 760 MB arrive: two of them end, and no further ones are tried. Eight
//! lanes that all help begin within 240 ms.

use std::time::Duration;

/// Length of the window over which lanes are observed: at 10 GB/s some 50 extents.
pub const WINDOW: Duration = Duration::from_millis(20);

/// Consecutive windows that must agree.
const WINDOWS: u32 = 2;

/// Share of busy time from which on a lane counts as saturated, percent.
const BUSY_PERCENT: u32 = 85;

/// Throughput gain that further lanes need to stay, percent.
const GAIN_PERCENT: u64 = 10;

/// Number of lanes of one group.
#[derive(Clone, Debug)]
pub struct LaneCount {
    /// Number of lanes that read: those with a lower index.
    wanted: usize,
    most: usize,
    /// True once further lanes brought no gain or could not begin.
    is_settled: bool,
    window: Window,
    /// Consecutive saturated windows.
    busy_windows: u32,
    trial: Option<Trial>,
    /// Bytes per second of the windows that count.
    rate: u64,
}

/// Comparison with the throughput of fewer lanes.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Number of lanes before, and their bytes per second.
    before: (usize, u64),
    windows: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since: Duration,
    /// Bytes that had arrived when the window began.
    bytes: u64,
    busy: Duration,
    watched: Duration,
}

impl LaneCount {
    /// Returns a constant number of lanes.
    pub fn fixed(lanes: usize) -> Self {
        Self::up_to(lanes, lanes)
    }

    /// Starts with `first` lanes and doubles them, up to `most`, while that increases throughput.
    pub fn up_to(first: usize, most: usize) -> Self {
        Self {
            wanted: first,
            most,
            is_settled: false,
            window: Window::default(),
            busy_windows: 0,
            trial: None,
            rate: 0,
        }
    }

    /// Returns the number of lanes that should be reading now.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns the maximum number of lanes.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Returns whether a lane should begin, or continue.
    pub fn wants(&self, lane: usize) -> bool {
        lane < self.wanted
    }

    /// Returns whether a lane that is not wanted now may be wanted later.
    pub fn may_want(&self, lane: usize) -> bool {
        !self.is_settled && lane < self.most
    }

    /// Returns the number of lanes that read once a lane has begun: they double.
    pub fn when_begins(&self, lane: usize) -> usize {
        let doubled = (lane + 1).next_power_of_two();
        doubled.max(self.wanted).min(self.most)
    }

    /// Records that a wanted lane could not begin: neither it nor those behind it are wanted.
    pub fn failed(&mut self, lane: usize) {
        self.trial = None;
        self.wanted = self.wanted.min(lane).max(1);
        self.is_settled = true;
    }

    /// Records that one lane's thread was busy for `busy` of the last `watched`, and that `bytes`
    /// have arrived over all lanes by `now`. Returns whether the number of lanes changed.
    pub fn observe(
        &mut self,
        now: Duration,
        busy: Duration,
        watched: Duration,
        bytes: u64,
    ) -> bool {
        if self.is_settled || (self.wanted == self.most && self.trial.is_none()) {
            return false;
        }
        self.window.busy += busy;
        self.window.watched += watched;
        let lanes = u32::try_from(self.wanted).unwrap_or(u32::MAX);
        let elapsed = now.saturating_sub(self.window.since);
        if elapsed < WINDOW || self.window.watched < WINDOW * lanes / 2 {
            return false;
        }
        let window = self.window;
        self.window = Window {
            since: now,
            bytes,
            ..Window::default()
        };
        let came = u128::from(bytes.saturating_sub(window.bytes));
        let rate = came * 1_000_000_000 / elapsed.as_nanos().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        let is_busy = window.busy * 100 >= window.watched * BUSY_PERCENT;
        self.conclude(rate, is_busy)
    }

    fn conclude(&mut self, rate: u64, is_busy: bool) -> bool {
        if let Some(trial) = &mut self.trial {
            trial.windows += 1;
            // The first window includes the start of the lanes.
            if trial.windows == 1 {
                self.rate = 0;
                return false;
            }
            self.rate = self.rate.max(rate);
            if trial.windows <= WINDOWS {
                return false;
            }
            let (lanes, before) = trial.before;
            self.trial = None;
            self.busy_windows = 0;
            if self.rate < before / 100 * (100 + GAIN_PERCENT) {
                self.wanted = lanes;
                self.is_settled = true;
                return true;
            }
            return false;
        }
        if !is_busy {
            self.busy_windows = 0;
            return false;
        }
        self.busy_windows += 1;
        self.rate = if self.busy_windows == 1 {
            rate
        } else {
            self.rate.max(rate)
        };
        if self.busy_windows < WINDOWS {
            return false;
        }
        self.trial = Some(Trial {
            before: (self.wanted, self.rate),
            windows: 0,
        });
        self.wanted = (2 * self.wanted).min(self.most);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    #[test]
    fn lanes_double() {
        let company = |lanes: &LaneCount| [0, 1, 2, 3, 4, 7].map(|lane| lanes.when_begins(lane));
        assert_eq!(company(&LaneCount::up_to(1, 8)), [1, 2, 4, 4, 8, 8]);
        assert_eq!(company(&LaneCount::up_to(1, 6)), [1, 2, 4, 4, 6, 6]);
        assert_eq!(company(&LaneCount::fixed(3)), [3; 6]);
    }

    /// Runs `lanes` for `windows` windows. Each lane is busy for `busy` percent of the time; `rate`
    /// returns the throughput for a number of lanes, in MB/s.
    fn run(lanes: &mut LaneCount, windows: u32, busy: u32, rate: impl Fn(usize) -> u64) {
        let (mut bytes, mut now) = (lanes.window.bytes, lanes.window.since);
        for _ in 0..windows {
            now += WINDOW;
            bytes += rate(lanes.wanted()) * MB / 50;
            for _ in 0..lanes.wanted() {
                lanes.observe(now, WINDOW * busy / 100, WINDOW, bytes);
            }
        }
    }

    #[test]
    fn idle_lane_adds_no_lane() {
        let mut lanes = LaneCount::up_to(1, 8);
        run(&mut lanes, 100, 60, |_| 3000);
        assert_eq!(lanes.wanted(), 1);
    }

    #[test]
    fn saturated_lanes_grow_while_throughput_rises() {
        let mut lanes = LaneCount::up_to(1, 8);
        run(&mut lanes, 100, 97, |lanes| 9000 * lanes.min(3) as u64);
        assert_eq!(lanes.wanted(), 4, "four more brought no gain and ended");
        assert!(!lanes.wants(4) && !lanes.may_want(5));
        let mut lanes = LaneCount::up_to(1, 7);
        run(&mut lanes, 12, 97, |lanes| 9000 * lanes as u64);
        assert_eq!(lanes.wanted(), 7, "after 240 ms");
    }

    #[test]
    fn wants_and_may_want_depend_on_lane_index() {
        let lanes = LaneCount::up_to(3, 8);
        assert_eq!((lanes.wanted(), lanes.most()), (3, 8));
        assert_eq!([0, 2, 3].map(|lane| lanes.wants(lane)), [true, true, false]);
        assert_eq!(
            [3, 7, 8].map(|lane| lanes.may_want(lane)),
            [true, true, false]
        );
    }

    #[test]
    fn failed_lane_start_ends_growth() {
        let mut lanes = LaneCount::up_to(1, 8);
        run(&mut lanes, 2, 100, |_| 1000);
        assert_eq!(lanes.wanted(), 2);
        lanes.failed(1);
        assert!(lanes.wanted() == 1 && !lanes.may_want(1));
        run(&mut lanes, 100, 100, |lanes| 1000 * lanes as u64);
        assert_eq!(lanes.wanted(), 1);
        lanes.failed(0);
        assert_eq!(lanes.wanted(), 1, "one always reads");
        let mut lanes = LaneCount::up_to(4, 8);
        run(&mut lanes, 2, 100, |_| 1000);
        for lane in [7, 6] {
            lanes.failed(lane);
        }
        assert_eq!(lanes.wanted(), 6, "two of four others began");
    }

    /// Reports one lane as fully busy since the previous time, at each of the times; returns
    /// whether each report changed the number of lanes.
    fn changes(lanes: &mut LaneCount, times: [u64; 4]) -> [bool; 4] {
        let mut last = 0;
        times.map(|now| {
            let since = Duration::from_millis(now - std::mem::replace(&mut last, now));
            lanes.observe(Duration::from_millis(now), since, since, now * MB)
        })
    }

    #[test]
    fn window_needs_duration_and_half_of_lanes() {
        let last = [false, false, false, true];
        assert_eq!(changes(&mut LaneCount::up_to(1, 8), [10, 20, 30, 40]), last);
        assert_eq!(changes(&mut LaneCount::up_to(1, 8), [19, 38, 57, 76]), last);
        assert_eq!(changes(&mut LaneCount::up_to(4, 8), [20, 40, 60, 80]), last);
        assert_eq!(
            changes(&mut LaneCount::up_to(5, 8), [25, 50, 75, 100]),
            last
        );
    }

    /// Returns the final number of lanes when a second one increases throughput by `percent`.
    fn lanes_with_gain(percent: u64) -> usize {
        let mut lanes = LaneCount::up_to(1, 2);
        run(&mut lanes, 20, 85, |lanes| {
            if lanes == 1 {
                1000
            } else {
                1000 + 10 * percent
            }
        });
        lanes.wanted()
    }

    #[test]
    fn lane_with_ten_percent_gain_stays() {
        assert_eq!([0, 9, 10, 50].map(lanes_with_gain), [1, 1, 2, 2]);
        let mut lanes = LaneCount::up_to(1, 2);
        run(&mut lanes, 20, 84, |lanes| 1000 * lanes as u64);
        assert_eq!(lanes.wanted(), 1, "not busy enough to try");
    }

    #[test]
    fn trial_ignores_first_window() {
        let trial = |second: [u64; 3]| {
            let mut lanes = LaneCount::up_to(1, 2);
            run(&mut lanes, 2, 100, |_| 1000);
            assert_eq!(lanes.wanted(), 2);
            for rate in second {
                run(&mut lanes, 1, 100, |_| rate);
            }
            lanes.wanted()
        };
        // The better one of the windows counts.
        assert_eq!(trial([9000, 1000, 1000]), 1);
        assert_eq!(trial([0, 2000, 1000]), 2);
        assert_eq!(trial([0, 1000, 2000]), 2);
    }

    #[test]
    fn trial_compares_rates_not_bytes() {
        let mut lanes = LaneCount::up_to(1, 2);
        assert!(changes(&mut lanes, [10, 20, 30, 40])[3]);
        // Twice as many bytes in windows that are twice as long.
        let changed = [80, 120, 160].map(|now| {
            let time = Duration::from_millis(now);
            lanes.observe(time, 2 * WINDOW, 2 * WINDOW, now * MB)
        });
        assert_eq!((changed, lanes.wanted()), ([false, false, true], 1));
    }

    #[test]
    fn lane_count_respects_maximum_and_fixed_count() {
        let mut lanes = LaneCount::up_to(1, 2);
        run(&mut lanes, 100, 100, |lanes| 1000 * lanes as u64);
        assert_eq!(lanes.wanted(), 2);
        let mut lanes = LaneCount::fixed(1);
        run(&mut lanes, 100, 100, |lanes| 1000 * lanes as u64);
        assert_eq!(lanes.wanted(), 1);
    }

    #[test]
    fn single_busy_window_adds_no_lane() {
        let mut lanes = LaneCount::up_to(1, 2);
        for _ in 0..20 {
            run(&mut lanes, 1, 100, |_| 1000);
            run(&mut lanes, 1, 50, |_| 1000);
        }
        assert_eq!(lanes.wanted(), 1);
    }
}
