//! Tests of the controller on storage that is modelled by a formula.

use super::*;

const MIB: u64 = 1 << 20;
const READ: usize = 4 << 20;

fn limit(mib: u64) -> InFlight {
    InFlight {
        jobs: usize::try_from(mib).expect("small"),
        bytes: mib * MIB,
    }
}

fn controller(start: u64, most: u64) -> Controller {
    Controller::new(Depth::adaptive(limit(start), 4 * MIB, limit(most)))
}

/// Runs `count` turns: all reads in flight end together, after a time given by `rate` (from reads
/// in flight to bytes per second).
fn turns(
    controller: &mut Controller,
    count: usize,
    now: &mut Duration,
    full: bool,
    rate: impl Fn(u32) -> f64,
) {
    for _ in 0..count {
        let mut reads = 0;
        while controller.admits(READ) && (full || reads < 2) {
            controller.began(READ, *now);
            reads += 1;
        }
        if full {
            controller.full();
        }
        let bytes = f64::from(reads) * 4.0 * 1_048_576.0;
        *now += Duration::from_secs_f64(bytes / rate(reads));
        for _ in 0..reads {
            controller.ended(READ, 1 << 40, *now);
        }
    }
}

/// Follows the worked example of `depth.rs`.
#[test]
fn search_jump_beyond_plateau_returns_via_middle() {
    let mut controller = controller(8, 256);
    let mut now = Duration::ZERO;
    let mut seen = Vec::new();
    for _ in 0..60 {
        turns(&mut controller, 1, &mut now, true, |reads| {
            (f64::from(reads) * 0.8e9).min(3.0e9)
        });
        if seen.last() != Some(&(controller.limit.bytes / MIB)) {
            seen.push(controller.limit.bytes / MIB);
        }
    }
    assert_eq!(seen[..5], [8, 16, 64, 32, 16], "{seen:?}");
    assert_eq!(controller.report.limit.bytes, 16 * MIB);
    assert_eq!(controller.report.limit_reason, LimitReason::OnlyQueued);
    assert_eq!(controller.report.best_rate / 10_000_000, 300);
}

/// Returns rates by reads in flight, from 2 on and doubling, in GB/s: nothing is measured between
/// them.
fn curve(rates: &'static [f64]) -> impl Fn(u32) -> f64 + Copy {
    move |reads| rates[reads.ilog2() as usize - 1] * 1e9
}

/// Returns the limits of the first samples, in MiB, and the controller that tried them.
fn tried(start: u64, rates: &'static [f64], limits: usize) -> (Vec<u64>, Controller) {
    let mut controller = controller(start, 256);
    let mut now = Duration::ZERO;
    let mut seen = vec![controller.limit.bytes / MIB];
    while seen.len() < limits {
        turns(&mut controller, 1, &mut now, true, curve(rates));
        if seen.last() != Some(&(controller.limit.bytes / MIB)) {
            seen.push(controller.limit.bytes / MIB);
        }
        assert!(now < Duration::from_secs(1), "{seen:?}");
    }
    (seen, controller)
}

/// Returns the limit at which a search ends, in MiB, the reason, and the gain seen above it, in
/// percent.
fn searched(start: u64, rates: &'static [f64]) -> (u64, LimitReason, f64) {
    let (mut controller, mut now) = (controller(start, 256), Duration::ZERO);
    while !matches!(controller.phase, Phase::Hold { .. }) {
        turns(&mut controller, 1, &mut now, true, curve(rates));
    }
    let percent = controller.above.mean * 100.0;
    let mib = controller.report.limit.bytes / MIB;
    (mib, controller.report.limit_reason, percent.round())
}

#[test]
fn search_jump_better_than_middle_continues() {
    let (seen, controller) = tried(8, &[1.6, 3.2, 3.6, 6.0, 6.1], 5);
    assert_eq!(seen, [8, 16, 64, 32, 128]);
    assert_eq!(controller.report.limit.bytes, 64 * MIB);
    // The middle is no better than the limit before it, and the jump no better than the middle.
    let (seen, _) = tried(8, &[1.6, 3.2, 3.3, 3.4, 9.0], 5);
    assert_eq!(seen, [8, 16, 64, 32, 16]);
}

#[test]
fn search_middle_best_settles_there() {
    let (limit, limit_reason, _) = searched(8, &[1.6, 3.2, 5.0, 5.2]);
    assert_eq!((limit, limit_reason), (32, LimitReason::LittleGain));
    assert_eq!(
        searched(8, &[1.6, 3.2, 5.0, 5.0]),
        (32, LimitReason::OnlyQueued, 0.0)
    );
}

#[test]
fn search_result_above_seeds_evidence() {
    // In the middle of a jump, and one step up.
    let middle = searched(8, &[1.6, 3.2, 3.4, 3.4]);
    assert_eq!(middle, (16, LimitReason::LittleGain, 6.0));
    let middle = searched(8, &[1.6, 3.2, 3.2, 3.2]);
    assert_eq!(middle, (16, LimitReason::OnlyQueued, 0.0));
    assert_eq!(
        searched(32, &[2.0, 3.0, 4.0, 4.2]),
        (32, LimitReason::LittleGain, 5.0)
    );
    assert_eq!(
        searched(32, &[2.0, 3.0, 4.0, 3.8]),
        (32, LimitReason::Slower, -5.0)
    );
}

#[test]
fn search_past_knee_descends_and_reports_slower() {
    let (seen, controller) = tried(32, &[2.0, 4.5, 4.0, 3.0], 5);
    assert_eq!(seen, [32, 64, 32, 16, 8]);
    assert_eq!(controller.report.limit_reason, LimitReason::Slower);
    // Less is as good: no reason to go below the start value.
    let (seen, controller) = tried(32, &[2.0, 4.0, 4.0, 3.0], 5);
    assert_eq!(seen, [32, 64, 32, 16, 32]);
    assert_eq!(controller.report.limit_reason, LimitReason::Slower);
    // Less is worse immediately.
    let (seen, controller) = tried(32, &[1.0, 2.0, 4.0, 3.0], 5);
    assert_eq!(seen, [32, 64, 32, 16, 32]);
    assert_eq!(controller.report.limit_reason, LimitReason::Slower);
}

#[test]
fn search_started_at_ceiling_reports_ceiling() {
    let (mut controller, mut now) = (controller(256, 256), Duration::ZERO);
    while !matches!(controller.phase, Phase::Hold { .. }) {
        turns(&mut controller, 1, &mut now, true, |reads| {
            f64::from(reads) * 1e8
        });
    }
    assert_eq!(controller.report.limit.bytes, 256 * MIB);
    assert_eq!(controller.report.limit_reason, LimitReason::Ceiling);
}

#[test]
fn attempt_without_saturation_is_undone() {
    let (mut controller, mut now) = (controller(16, 256), Duration::ZERO);
    let rate = |reads: u32| f64::from(reads) * 0.5e9;
    while !matches!(controller.phase, Phase::Climb { .. }) {
        turns(&mut controller, 1, &mut now, true, rate);
    }
    assert_eq!(controller.limit, limit(32));
    turns(&mut controller, 20, &mut now, false, rate);
    assert_eq!(controller.limit, limit(16));
    assert!(matches!(controller.phase, Phase::Base));
    // The attempt is repeated when depth is the limit again.
    while !matches!(controller.phase, Phase::Probe { .. }) {
        turns(&mut controller, 1, &mut now, true, |reads| {
            rate(reads.min(8))
        });
    }
    let held = controller.report.limit;
    assert_ne!(controller.limit, held);
    turns(&mut controller, 40, &mut now, false, rate);
    assert_eq!(controller.limit, held);
}

/// Returns a controller that began at `start` MiB and holds at 32 MiB.
fn holding(start: u64, most: u64) -> Controller {
    held(controller(start, most))
}

/// Lets a controller hold at 32 MiB, with reads of 4 MiB.
fn held(mut controller: Controller) -> Controller {
    for _ in 0..8 {
        controller.began(READ, Duration::ZERO);
    }
    controller.full();
    let here = Point {
        bytes: 32 * MIB,
        rate: 1e9,
    };
    controller.settle(here, LimitReason::OnlyQueued, Duration::ZERO);
    controller
}

/// Returns how many probes with a gain of `gain` it takes to move the limit of a load that began at
/// `start` MiB, if at most five do, and the reason reported then.
fn probes_to_move(up: bool, gain: f64, start: u64, most: u64) -> Option<(u32, LimitReason)> {
    let mut controller = holding(start, most);
    let bytes = if up { 48 } else { 20 } * MIB;
    let probe = Point { bytes, rate: 1e9 };
    (1..=5).find_map(|count| {
        controller.weigh(up, probe, gain, Duration::from_millis(20), Duration::ZERO);
        let moved = controller.report.limit.bytes == bytes;
        moved.then_some((count, controller.report.limit_reason))
    })
}

#[test]
fn single_probe_needs_larger_gain_than_several() {
    assert_eq!(
        probes_to_move(true, 0.06, 16, 256),
        Some((1, LimitReason::Unfinished))
    );
    assert_eq!(
        probes_to_move(true, 0.06, 16, 48),
        Some((1, LimitReason::Ceiling))
    );
    assert_eq!(
        probes_to_move(true, 0.04, 16, 256),
        Some((3, LimitReason::Unfinished))
    );
    assert_eq!(probes_to_move(true, 0.02, 16, 256), None);
    assert_eq!(
        probes_to_move(false, 0.04, 16, 256),
        Some((1, LimitReason::Slower))
    );
    assert_eq!(
        probes_to_move(false, 0.01, 16, 256),
        Some((4, LimitReason::OnlyQueued))
    );
    assert_eq!(probes_to_move(false, 0.0, 16, 256), None);
}

#[test]
fn probe_below_start_needs_knee() {
    assert_eq!(probes_to_move(false, 0.06, 32, 256), None);
    assert_eq!(
        probes_to_move(false, 0.08, 32, 256),
        Some((4, LimitReason::Slower))
    );
    assert_eq!(
        probes_to_move(false, 0.11, 32, 256),
        Some((1, LimitReason::Slower))
    );
}

/// Start values have room for alignment beyond whole reads.
#[test]
fn return_to_start_value_needs_no_knee() {
    let start = InFlight {
        jobs: 33,
        bytes: 33 * MIB,
    };
    let mut controller = held(Controller::new(Depth::adaptive(start, 4 * MIB, limit(256))));
    let here = Point {
        bytes: 48 * MIB,
        rate: 1e9,
    };
    controller.settle(here, LimitReason::OnlyQueued, Duration::ZERO);
    let tried = Point {
        bytes: 32 * MIB,
        rate: 1e9,
    };
    controller.weigh(
        false,
        tried,
        0.04,
        Duration::from_millis(20),
        Duration::ZERO,
    );
    assert_eq!(controller.report.limit.bytes, 32 * MIB);
}

#[test]
fn probe_below_with_large_gain_starts_descent() {
    for (gain, goes_on) in [(0.2, true), (0.08, false)] {
        let mut controller = holding(16, 256);
        let probe = Point {
            bytes: 20 * MIB,
            rate: 1e9,
        };
        controller.weigh(
            false,
            probe,
            gain,
            Duration::from_millis(20),
            Duration::ZERO,
        );
        assert_eq!(controller.report.limit.bytes, 20 * MIB);
        assert_eq!(controller.report.limit_reason, LimitReason::Slower);
        assert_eq!(matches!(controller.phase, Phase::Descend { .. }), goes_on);
    }
}

#[test]
fn scaled_limit_is_whole_reads_and_differs_by_one() {
    let controller = holding(16, 256);
    for (mib, by, over, scaled) in [
        (32, 3, 2, 48),
        (32, 2, 3, 20),
        (16, 2, 3, 12),
        (12, 1, 2, 8),
        (8, 3, 2, 12),
        // Two reads are the minimum; the ceiling is the maximum.
        (8, 2, 3, 8),
        (224, 3, 2, 256),
        // Rounded to the nearest read.
        (30, 1, 1, 32),
        (29, 1, 1, 28),
    ] {
        let found = controller.scaled(mib * MIB, by, over);
        assert_eq!(found, scaled * MIB, "{mib} MiB times {by} over {over}");
    }
}

/// Returns the directions of the first eight probes.
fn probes(start: u64, most: u64, rate: impl Fn(u32) -> f64) -> String {
    let (mut controller, mut now) = (controller(start, most), Duration::ZERO);
    let (mut ways, mut probing) = (String::new(), false);
    while ways.len() < 8 {
        turns(&mut controller, 1, &mut now, true, &rate);
        let probe = if let Phase::Probe { up, .. } = controller.phase {
            Some(up)
        } else {
            None
        };
        if let Some(up) = probe.filter(|_| !probing) {
            ways.push(if up { '+' } else { '-' });
        }
        probing = probe.is_some();
        assert!(now < Duration::from_secs(60), "{ways}");
    }
    ways
}

#[test]
fn probes_favour_up_and_alternate_near_knee() {
    let bend = |reads: u32| (f64::from(reads) * 0.5e9).min(4e9);
    assert_eq!(probes(16, 256, bend), "+++-+++-");
    let knee = |reads: u32| match reads {
        0..=4 => 1.8e9,
        5..=7 => 1.9e9,
        8 => 2e9,
        _ => 1.6e9,
    };
    assert_eq!(probes(32, 256, knee), "+-+-+-+-");
    // Only one direction is possible.
    assert_eq!(probes(32, 32, bend), "--------");
    assert_eq!(probes(8, 256, |_| 1e9), "++++++++");
}

#[test]
fn controller_never_saturated_keeps_limit() {
    let mut controller = controller(16, 256);
    let (mut now, growing) = (Duration::ZERO, std::cell::Cell::new(1e8));
    turns(&mut controller, 500, &mut now, false, |_| {
        growing.set(growing.get() * 1.02);
        growing.get()
    });
    assert_eq!(controller.report.changes, 0);
    assert_eq!(controller.limit, limit(16));
    assert_eq!(controller.explain().limit_reason, LimitReason::NeverDeep);
}

#[test]
fn starved_controller_reports_memory() {
    let mut starving = controller(16, 256);
    let mut now = Duration::ZERO;
    starving.starved();
    turns(&mut starving, 100, &mut now, false, |_| 1e9);
    assert_eq!(starving.explain().limit_reason, LimitReason::Memory);
    turns(&mut starving, 100, &mut now, true, |_| 1e9);
    assert_eq!(starving.explain().limit_reason, LimitReason::OnlyQueued);
    // A reason that depth has settled stays.
    starving.starved();
    assert_eq!(starving.explain().limit_reason, LimitReason::OnlyQueued);
}

#[test]
fn controller_at_ceiling_stops_and_reports_ceiling() {
    let mut controller = controller(16, 100);
    let mut now = Duration::ZERO;
    turns(&mut controller, 100, &mut now, true, |reads| {
        f64::from(reads) * 1e8
    });
    assert_eq!(controller.explain().limit, limit(100));
    assert_eq!(controller.explain().limit_reason, LimitReason::Ceiling);
    assert!(controller.explain().changes <= 3);
}

#[test]
fn controller_with_little_left_starts_no_search() {
    let mut controller = controller(16, 256);
    let mut now = Duration::ZERO;
    for _ in 0..20 {
        while controller.admits(READ) {
            controller.began(READ, now);
        }
        controller.full();
        now += Duration::from_millis(5);
        while controller.in_flight.jobs > 0 {
            controller.ended(READ, 60 * MIB, now);
        }
        assert_eq!(controller.limit, limit(16));
    }
    assert_eq!(controller.explain().limit_reason, LimitReason::Unfinished);
}

#[test]
fn rate_change_moves_limit_in_same_direction() {
    let mut controller = controller(16, 256);
    let mut now = Duration::ZERO;
    let up_to = |most: f64| move |reads: u32| (f64::from(reads) * 0.5e9).min(most);
    turns(&mut controller, 200, &mut now, true, up_to(4e9));
    assert_eq!(controller.report.limit.bytes, 32 * MIB);
    turns(&mut controller, 400, &mut now, true, |reads| {
        2e9 / f64::from(reads)
    });
    assert_eq!(controller.report.limit.bytes, 8 * MIB);
    turns(&mut controller, 400, &mut now, true, up_to(16e9));
    let mib = controller.report.limit.bytes / MIB;
    assert!((128..=192).contains(&mib), "{mib}");
}

#[test]
fn controller_without_noise_keeps_limit() {
    let mut controller = controller(16, 256);
    let mut now = Duration::ZERO;
    let rate = |reads: u32| (f64::from(reads) * 0.5e9).min(4e9);
    turns(&mut controller, 300, &mut now, true, rate);
    let changes = controller.explain().changes;
    turns(&mut controller, 5000, &mut now, true, rate);
    assert_eq!(controller.explain().changes, changes);
}

/// Queues that drain at a change raise the rate for a moment: that is no reason to stay.
#[test]
fn step_up_without_lasting_gain_is_undone() {
    let mut controller = controller(16, 256);
    let mut now = Duration::ZERO;
    let (mut before, mut raised) = (u64::MAX, Duration::ZERO);
    let (mut deep, mut samples) = (0, 0);
    for _ in 0..4000 {
        let bytes = controller.limit.bytes;
        if bytes > before {
            raised = now;
        }
        before = bytes;
        let fresh =
            raised > Duration::ZERO && now.saturating_sub(raised) < Duration::from_millis(60);
        let rate = if fresh { 2.3e9 } else { 2e9 };
        turns(&mut controller, 1, &mut now, true, |_| rate);
        deep += usize::from(controller.report.limit.bytes > 48 * MIB);
        samples += 1;
    }
    assert!(deep * 4 < samples, "{deep} of {samples}");
}

/// Returns the depth of a load of requests that begins with 128 MiB.
fn requests(most: u64) -> Depth {
    Depth::adaptive(limit(128), 4 * MIB, limit(most)).with_stride(32 * MIB)
}

/// Ends a read and begins the next one.
fn replace(controller: &mut Controller, now: Duration) {
    controller.ended(READ, 1 << 40, now);
    controller.began(READ, now);
    controller.full();
}

/// Returns a controller of a slow store: 8 of 32 reads have ended after 0.6 s, at 56 MB/s, the
/// first one after `first` milliseconds.
fn leaping(depth: Depth, first: u64, now: &mut Duration) -> Controller {
    let mut controller = Controller::new(depth);
    while controller.admits(READ) {
        controller.began(READ, *now);
    }
    controller.full();
    *now += Duration::from_millis(first);
    replace(&mut controller, *now);
    *now += Duration::from_millis(600 - first);
    for _ in 1..8 {
        replace(&mut controller, *now);
    }
    controller
}

#[test]
fn slow_start_of_requests_leaps_to_four_times_as_many() {
    let mut now = Duration::ZERO;
    let mut controller = leaping(requests(512), 300, &mut now);
    assert_eq!(controller.limit, limit(512));
    assert_eq!(controller.explain().limit, limit(512));
    turns(&mut controller, 8, &mut now, true, |_| 200e6);
    assert_eq!(controller.explain().limit, limit(512));
    assert_eq!(controller.explain().limit_reason, LimitReason::Ceiling);
    // Files are no requests, and twice as many cannot gain a factor of two.
    for depth in [requests(512).with_stride(0), requests(256), requests(128)] {
        let controller = leaping(depth, 300, &mut Duration::default());
        assert_eq!(controller.limit, limit(128));
        assert_eq!(controller.explain().changes, 0);
    }
}

#[test]
fn leap_without_gain_starts_search_at_base() {
    let mut now = Duration::ZERO;
    let mut controller = leaping(requests(512), 300, &mut now);
    turns(&mut controller, 3, &mut now, true, |_| 80e6);
    assert_eq!(controller.limit, limit(128));
    assert!(matches!(controller.phase, Phase::Base));
    turns(&mut controller, 8, &mut now, true, |_| 80e6);
    assert_eq!(controller.explain().limit, limit(128));
}

/// The store's first bytes come after half a second, and then at 200 MB/s.
#[test]
fn leap_without_gain_but_for_late_first_bytes_is_undone() {
    let mut now = Duration::ZERO;
    let mut controller = leaping(requests(512), 500, &mut now);
    assert_eq!(controller.limit, limit(512));
    // Those that were in flight.
    for _ in 0..24 {
        now += Duration::from_millis(20);
        replace(&mut controller, now);
    }
    turns(&mut controller, 3, &mut now, true, |_| 200e6);
    assert_eq!(controller.limit, limit(128));
}

#[test]
fn leap_with_memory_as_limit_reports_memory() {
    let mut now = Duration::ZERO;
    let mut controller = leaping(requests(512), 300, &mut now);
    // A quarter of the limit has memory.
    for _ in 0..3 {
        let reads = controller.in_flight.jobs;
        now += Duration::from_millis(600);
        for _ in 0..reads {
            controller.ended(READ, 1 << 40, now);
            controller.began(READ, now);
            controller.starved();
        }
    }
    assert_eq!(controller.explain().limit, limit(512));
    assert_eq!(controller.explain().limit_reason, LimitReason::Memory);
}

/// Requests that have begun may still wait for a connection.
#[test]
fn limit_stays_once_all_reads_have_begun() {
    let mut now = Duration::ZERO;
    let mut controller = leaping(requests(512), 300, &mut now);
    while controller.in_flight.jobs > 0 {
        now += Duration::from_millis(100);
        controller.ended(READ, 0, now);
    }
    assert_eq!(controller.limit, limit(512));
}
