//! How many loads, on how many threads, for how long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::counting::Table;
use crate::loads;
use crate::places::{Land, assert_gpus_are_clean, say, variable};

/// Streams in one process at a time.
const STREAMS: usize = 32;

/// Loads of each stream's thread, in a run with every other test.
const LOADS: u64 = 6;

/// Loads, one after another on each of [`STREAMS`] threads, until there are `enough`. What comes of them goes into `table`.
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
                    let turn = usize::try_from(load).expect("not so many");
                    let place = land.places[turn % land.places.len()];
                    let outcome = loads::run(land, place, seed.wrapping_add(load));
                    table.add(place, outcome);
                }
            });
        }
    });
    assert_gpus_are_clean();
}

/// For as many minutes as `TLOAD_SOAK_MINUTES` says, if it does.
#[test]
fn streams_of_all_kinds_do_not_disturb_one_another() {
    if let Some(minutes) = variable("TLOAD_SOAK_MINUTES") {
        return soak(minutes.parse().expect("a number"));
    }
    let (land, table) = (Land::new(1), Table::default());
    run(&land, &table, 1, |loads| loads >= LOADS * STREAMS as u64);
    for &place in &land.places {
        assert!(
            table.complete(place) > 0,
            "{place:?}: none was complete\n{table}"
        );
    }
}

/// Descriptors and threads of this process, and its resident memory, MiB.
fn holdings() -> String {
    let entries = |folder| std::fs::read_dir(folder).map_or(0, Iterator::count);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    format!(
        "{} descriptors, {} threads,{}",
        entries("/proc/self/fd"),
        entries("/proc/self/task"),
        resident.unwrap_or_default()
    )
}

fn soak(minutes: u32) {
    let started = Instant::now();
    let (table, mut seed) = (Table::default(), 0);
    // Files of its own for each round, so that what was there before does not stay the same.
    let rounds = 4 * minutes.max(1);
    for round in 1..=rounds {
        let land = Land::new(u64::from(round));
        let until = Duration::from_secs(60) * minutes / rounds * round;
        run(&land, &table, seed, |_| started.elapsed() >= until);
        drop(land);
        seed += 1 << 32;
        let seconds = started.elapsed().as_secs();
        say(&format!(
            "{seconds} s, round {round} of {rounds}: {}",
            holdings()
        ));
    }
    say(&format!(
        "\n{STREAMS} streams at a time, {minutes} minutes:\n\n{table}"
    ));
}
