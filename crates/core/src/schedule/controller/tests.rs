//! The controller on storage that a formula stands for.

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

/// One turn after another: all reads in flight end together, after as long as `rate` (of reads in flight, bytes per second) says.
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

/// The worked example of `depth.rs`.
#[test]
fn it_jumps_looks_between_and_comes_back() {
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
    assert_eq!(controller.report.settled, Settled::OnlyQueued);
    assert_eq!(controller.report.best_rate / 10_000_000, 300);
}

#[test]
fn what_never_was_full_never_climbs_whatever_arrives() {
    let mut controller = controller(16, 256);
    let (mut now, growing) = (Duration::ZERO, std::cell::Cell::new(1e8));
    turns(&mut controller, 500, &mut now, false, |_| {
        growing.set(growing.get() * 1.02);
        growing.get()
    });
    assert_eq!(controller.report.changes, 0);
    assert_eq!(controller.limit, limit(16));
    assert_eq!(controller.explain().settled, Settled::NeverDeep);
}

#[test]
fn memory_is_named_when_it_was_the_limit_and_depth_never() {
    let mut starving = controller(16, 256);
    let mut now = Duration::ZERO;
    starving.starved();
    turns(&mut starving, 100, &mut now, false, |_| 1e9);
    assert_eq!(starving.explain().settled, Settled::Memory);
    turns(&mut starving, 100, &mut now, true, |_| 1e9);
    assert_eq!(starving.explain().settled, Settled::OnlyQueued);
    // What depth had settled stays settled.
    starving.starved();
    assert_eq!(starving.explain().settled, Settled::OnlyQueued);
}

#[test]
fn it_stops_at_the_ceiling_and_says_so() {
    let mut controller = controller(16, 100);
    let mut now = Duration::ZERO;
    turns(&mut controller, 100, &mut now, true, |reads| {
        f64::from(reads) * 1e8
    });
    assert_eq!(controller.explain().limit, limit(100));
    assert_eq!(controller.explain().settled, Settled::Ceiling);
    assert!(controller.explain().changes <= 3);
}

#[test]
fn with_little_left_it_tries_nothing() {
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
    assert_eq!(controller.explain().settled, Settled::Unfinished);
}

#[test]
fn a_rate_that_falls_sends_it_down_and_one_that_rises_up() {
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
fn without_noise_it_stays_where_it_is() {
    let mut controller = controller(16, 256);
    let mut now = Duration::ZERO;
    let rate = |reads: u32| (f64::from(reads) * 0.5e9).min(4e9);
    turns(&mut controller, 300, &mut now, true, rate);
    let changes = controller.explain().changes;
    turns(&mut controller, 5000, &mut now, true, rate);
    assert_eq!(controller.explain().changes, changes);
}

/// Queues that empty at a change bring more for a moment: that is no reason to stay.
#[test]
fn a_step_up_that_brings_nothing_in_the_long_run_is_undone() {
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
