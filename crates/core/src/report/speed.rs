//! Speed of the last few seconds, and the time left, for progress bars. The caller has the clock.

use std::collections::VecDeque;
use std::time::Duration;

use crate::options::format_rate;

/// Time over which the speed is measured: long enough for requests that end in bursts, short enough
/// to follow a link that becomes slower.
const SPAN: Duration = Duration::from_secs(5);

/// Time after the first bytes from which on a speed and an estimate mean something.
const SETTLED: Duration = Duration::from_millis(2500);

/// Time after the first bytes that does not count: connections are made, and their windows grow.
const WARM_UP: Duration = Duration::from_secs(1);

/// Least time between positions that are kept.
const STEP: Duration = Duration::from_millis(100);

/// Longest estimate that is shown: nearly nothing arrives, and no number is right for long.
const LEFT_MAX: Duration = Duration::from_secs(99 * 3600 + 3599);

/// Speed of a transfer over the last few seconds.
#[derive(Clone, Debug, Default)]
pub struct RecentSpeed {
    /// Times and positions, oldest first: those of the last [`SPAN`], or since [`WARM_UP`], and one
    /// before.
    seen: VecDeque<(Duration, u64)>,
    began: Duration,
}

impl RecentSpeed {
    /// Records the position in bytes at a time since any fixed moment. The first position above
    /// zero was not reached at this speed: an earlier copy may have read most of it.
    pub fn observe(&mut self, now: Duration, position: u64) {
        if self.seen.is_empty() {
            if position > 0 {
                self.began = now;
                self.seen.push_back((now, position));
            }
            return;
        }
        // Keep the oldest, and replace the newest while it is too near to the one before.
        let before = self.seen.iter().rev().nth(1);
        if before.is_some_and(|(at, _)| now < *at + STEP) {
            self.seen.pop_back();
        }
        self.seen.push_back((now, position));
        let since = (self.began + WARM_UP).max(now.saturating_sub(SPAN));
        while self.seen.len() > 2 && self.seen[1].0 <= since {
            self.seen.pop_front();
        }
    }

    /// Returns the bytes per second; `None` until that means something.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    fn per_second(&self) -> Option<f64> {
        let ((from, first), (to, last)) = (self.seen.front()?, self.seen.back()?);
        let is_settled = *to >= self.began + SETTLED;
        is_settled
            .then(|| last.saturating_sub(*first) as f64 / to.saturating_sub(*from).as_secs_f64())
    }

    /// Returns the speed as text, for example `0.15 GB/s`; `None` until it means something.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        self.per_second().map(format_rate)
    }

    /// Returns the time until the position is `total`; `None` while nothing tells it.
    #[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
    #[must_use]
    pub fn left(&self, total: u64) -> Option<Duration> {
        let missing = total.checked_sub(self.seen.back()?.1)?;
        let seconds = missing as f64 / self.per_second()?;
        let left = Duration::try_from_secs_f64(seconds).ok()?;
        (missing > 0 && left <= LEFT_MAX).then_some(left)
    }
}

/// Formats the time left: `eta 12s`, `eta 1m35s`, `eta 2h07m`.
#[must_use]
pub fn format_left(left: Duration) -> String {
    let seconds = (left + Duration::from_millis(500)).as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("eta {seconds}s"),
        (0, minutes, seconds) => format!("eta {minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("eta {hours}h{minutes:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;

    const MIB: u64 = 1 << 20;

    /// Capacity of the link, bytes per second.
    const LINK: u64 = 150_000_000;

    /// Plays a bar against a clock, and returns what it says at each tenth of a second: the time,
    /// the estimate and the time that is really left. `position` is in bytes by milliseconds.
    fn played(total: u64, position: impl Fn(u64) -> u64) -> Vec<(f64, Option<f64>, f64)> {
        let times: Vec<_> = (0..).map(|tick| tick * 100).take(1000).collect();
        let end = times.iter().find(|at| position(**at) >= total).copied();
        let end = end.expect("ends within 100 s");
        let mut speed = RecentSpeed::default();
        let seconds = |millis: u64| Duration::from_millis(millis).as_secs_f64();
        let frames = times.into_iter().take_while(|at| *at < end).map(|at| {
            speed.observe(Duration::from_millis(at), position(at).min(total));
            let left = speed.left(total).map(|left| left.as_secs_f64());
            (seconds(at), left, seconds(end - at))
        });
        frames.collect()
    }

    /// `slack` is the time of a burst: positions are not known better, near the end.
    fn require_truth(name: &str, slack: f64, frames: &[(f64, Option<f64>, f64)]) {
        for (at, left, truth) in frames {
            let Some(left) = left else {
                assert!(*at < 3.0, "{name}: no estimate at {at} s");
                continue;
            };
            let error = (left - truth).abs();
            assert!(
                *at < 3.0 || error <= 0.25 * truth + slack,
                "{name}: at {at} s {left:.1} s are said to be left, in truth {truth:.1} s"
            );
            assert!(*at >= 2.5, "{name}: an estimate at {at} s");
        }
    }

    /// Bytes delivered as whole tensors, as measured on a link of 150 MB/s: large tensors of all
    /// shards fill side by side.
    fn delivered(millis: u64) -> u64 {
        let measured = [
            (0, 0),
            (3_900, 16),
            (7_100, 26),
            (9_800, 157),
            (11_600, 1126),
            (22_000, 3072),
        ];
        let after = measured.iter().position(|(at, _)| *at >= millis);
        let Some(after) = after.filter(|after| *after > 0) else {
            return if millis == 0 { 0 } else { 3072 * MIB };
        };
        let ((from, first), (to, last)) = (measured[after - 1], measured[after]);
        (first + (last - first) * (millis - from) / (to - from)) * MIB
    }

    #[test]
    fn time_left_is_true_on_a_link_while_tensors_arrive_late() {
        let total = 3072 * MIB;
        let progress = |millis: u64| Progress {
            bytes_total: total,
            bytes_received: delivered(millis),
            // The first response takes a while.
            bytes_read: millis.saturating_sub(400) * LINK / 1000,
            ..Progress::default()
        };
        let frames = played(total, |at| progress(at).bytes_done());
        require_truth("bytes read", 0.2, &frames);
        assert!(frames.len() > 200, "{}", frames.len());
        // The test can tell: by delivered tensors alone, the estimate is wrong.
        let delivered = played(total, delivered);
        let early = delivered.iter().find(|frame| frame.0 >= 3.9).expect("one");
        assert!(early.1.is_none_or(|left| left > 4.0 * early.2), "{early:?}");
    }

    #[test]
    fn time_left_is_true_for_requests_that_end_in_bursts() {
        for burst in [4 * MIB, 16 * MIB, 64 * MIB] {
            let position = |millis: u64| millis * LINK / 1000 / burst * burst;
            let slack = 0.2 + Duration::from_millis(burst * 1000 / LINK).as_secs_f64();
            require_truth("bursts", slack, &played(3072 * MIB, position));
        }
    }

    /// As measured: 16 connections to a web server took two seconds to fill the link.
    #[test]
    fn time_left_is_true_although_connections_start_slowly() {
        let position = |millis: u64| match millis {
            0..=500 => millis * LINK / 3000,
            501..=1500 => LINK / 6 + (millis - 500) * LINK * 6 / 10_000,
            _ => LINK / 6 + LINK * 6 / 10 + (millis - 1500) * LINK / 1000,
        };
        require_truth("slow start", 0.2, &played(3072 * MIB, position));
    }

    #[test]
    fn bytes_of_an_earlier_copy_are_not_speed() {
        let total = 3072 * MIB;
        let frames = played(total, |at| total / 2 + at * LINK / 1000);
        require_truth("resumed", 0.2, &frames);
    }

    #[test]
    fn speed_follows_a_link_that_slows_down_within_seconds() {
        let total = 3072 * MIB;
        let position = |millis: u64| match millis {
            0..=8000 => millis * LINK / 1000,
            _ => 8 * LINK + (millis - 8000) * LINK / 3000,
        };
        for (at, left, truth) in played(total, position) {
            let is_wrong = left.is_none_or(|left| (left - truth).abs() > 0.1 * truth + 0.2);
            assert!(at < 13.1 || !is_wrong, "at {at} s: {left:?}, {truth}");
        }
    }

    #[test]
    fn a_stalled_transfer_has_no_time_left() {
        let mut speed = RecentSpeed::default();
        for second in 0..20 {
            speed.observe(Duration::from_secs(second), MIB);
        }
        assert_eq!(speed.left(2 * MIB), None);
        assert_eq!(speed.text().as_deref(), Some("0.0 MB/s"));
        assert!(speed.seen.len() < 10);
        assert_eq!(RecentSpeed::default().text(), None);
    }

    #[test]
    fn observations_close_together_are_few() {
        let mut speed = RecentSpeed::default();
        for millis in 0..20_000 {
            speed.observe(Duration::from_millis(millis), 1 + millis * 1000);
        }
        assert!(speed.seen.len() < 60, "{}", speed.seen.len());
        assert_eq!(speed.text().as_deref(), Some("1.0 MB/s"));
        assert_eq!(speed.left(1 + 19_999 * 1000), None);
    }

    #[test]
    fn time_left_is_short() {
        for (seconds, text) in [
            (0, "eta 0s"),
            (59, "eta 59s"),
            (95, "eta 1m35s"),
            (7620, "eta 2h07m"),
        ] {
            assert_eq!(format_left(Duration::from_secs(seconds)), text);
        }
    }
}
