//! Number of loads, number of threads, and duration of a run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::counting::Table;
use crate::loads;
use crate::places::{Land, Place, assert_gpus_are_clean, say, variable};

/// Number of concurrent streams.
const STREAMS: usize = 32;

/// Loads per stream in a run with the other tests.
const LOADS: u64 = 12;

/// Runs loads, one after another on each of [`STREAMS`] threads, until `enough` returns true; adds
/// their outcomes to `table`.
fn run(land: &Land, table: &Table, seed: u64, enough: impl Fn(u64) -> bool + Sync) {
    let begun = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| {
                loop {
                    let load = begun.fetch_add(1, Ordering::Relaxed);
                    if enough(load) {
                        return;
                    }
                    let turn = usize::try_from(load).expect("few loads");
                    let place = land.places[turn % land.places.len()];
                    let outcome = loads::run(land, place, seed.wrapping_add(load));
                    table.add(place, outcome);
                }
            });
        }
    });
    assert_gpus_are_clean();
}

/// Runs for `TLOAD_SOAK_MINUTES` minutes if that is set.
#[test]
fn concurrent_streams_do_not_interfere() {
    if let Some(minutes) = variable("TLOAD_SOAK_MINUTES") {
        return soak(minutes.parse().expect("a number"));
    }
    let (land, table) = (Land::new(1), Table::default());
    // On a busy machine faults may end all loads of a place: then more are run.
    let (least, most) = (LOADS * STREAMS as u64, 8 * LOADS * STREAMS as u64);
    let is_seen = |&place: &Place| {
        table.complete(place) > 0 && (!place.is_garbled() || table.failed(place) > 0)
    };
    let enough = |loads| loads >= most || loads >= least && land.places.iter().all(is_seen);
    run(&land, &table, 1, enough);
    for &place in &land.places {
        assert!(
            table.complete(place) > 0,
            "{place:?}: none was complete\n{table}"
        );
        assert!(
            !place.is_garbled() || table.failed(place) > 0,
            "{place:?}: no corruption was detected\n{table}"
        );
    }
}

/// Resources of this process.
#[derive(Clone, Copy, Debug, Default)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    resident_mib: u64,
}

impl Holdings {
    fn now() -> Self {
        let entries = |folder| std::fs::read_dir(folder).map_or(0, Iterator::count);
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            resident_mib: kib.unwrap_or_default() >> 10,
        }
    }

    /// Returns the resources of this process once they are not beyond those after the `first`
    /// round, apart from memory that allocators keep. Threads that have ended are listed until the
    /// kernel has removed them, which a busy machine delays.
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel reports no event for it"
    )]
    fn returned_to(first: Option<Self>) -> Self {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let now = Self::now();
            if first.is_none_or(|first| now.is_within(first)) {
                return now;
            }
            assert!(
                Instant::now() < deadline,
                "{now:?} after the last round, {first:?} after the first"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_within(self, first: Self) -> bool {
        self.descriptors <= first.descriptors
            && self.threads <= first.threads
            && self.resident_mib <= 2 * first.resident_mib + 64
    }
}

fn soak(minutes: u32) {
    let started = Instant::now();
    let (table, mut seed) = (Table::default(), 0);
    let mut first = None;
    // Each round has files of its own, so that content varies.
    let rounds = 4 * minutes.max(1);
    for round in 1..=rounds {
        let land = Land::new(u64::from(round));
        let until = Duration::from_secs(60) * minutes / rounds * round;
        run(&land, &table, seed, |_| started.elapsed() >= until);
        drop(land);
        seed += 1 << 32;
        let (seconds, held) = (started.elapsed().as_secs(), Holdings::returned_to(first));
        say(&format!("{seconds} s, round {round} of {rounds}: {held:?}"));
        first.get_or_insert(held);
    }
    say(&format!(
        "\n{STREAMS} streams at a time, {minutes} minutes:\n\n{table}"
    ));
}
