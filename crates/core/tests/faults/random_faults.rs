//! Random faults, several in one load: the load returns the right bytes or an error of a kind that
//! one of the faults explains, and leaks nothing.
//!
//! Everything follows from a seed, except the system's scheduling. `TLOAD_SEEDS=N` draws N times,
//! and `TLOAD_SEED=S` draws seed S alone.

use std::time::Duration;

use tload::{ErrorKind, LoadOptions, Order};
use tload_testbed::slowfs::{Fault as FileFault, Request, Rule as FileRule};
use tload_testbed::{Fault, Operation, Rule};
use tload_testing::fixtures::Rng;

use crate::bench::{alone, watched};
use crate::on_files::{self, Mounted, is_there, options_of};
use crate::on_objects::{self, options_at};
use crate::requirement::variable;
use crate::row::{ALL_ON_FILES, Ended, Via};
use crate::traces::Traces;

/// Draws of each test, unless `TLOAD_SEEDS` says otherwise.
const SEEDS: u64 = 24;

fn seeds() -> Vec<u64> {
    let number = |name| variable(name).map(|text| text.parse().expect("a number"));
    match number("TLOAD_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("TLOAD_SEEDS").unwrap_or(SEEDS)).collect(),
    }
}

/// Draws the options of a load.
fn options(rng: &mut Rng, via: Via) -> LoadOptions {
    let mut options = options_of(via);
    options.order = rng.pick(&[Order::Ready, Order::File]);
    options.lanes = Some(1 + rng.index(3));
    options.extent_bytes = Some(rng.pick(&[64 << 10, 200_000, 512 << 10, 4 << 20]));
    options.depth = rng.once_in(2).then(|| 1 + rng.index(9));
    options.memory_limit = rng.once_in(2).then_some(3 << 20);
    options.retries = rng
        .once_in(3)
        .then(|| u32::try_from(rng.index(4)).expect("small"));
    options
}

/// Sets a timeout, which ends requests that are never answered. Any stage may be the one it ends.
fn limit(rng: &mut Rng, options: &mut LoadOptions, rules: usize) {
    options.timeout = (rules > 0).then_some(Duration::from_millis(rng.pick(&[300, 600, 900])));
}

fn file_rule(rng: &mut Rng, mounted: Mounted) -> FileRule {
    let errno = FileFault::Errno(rng.pick(&[
        libc::EIO,
        libc::ESTALE,
        libc::ETIMEDOUT,
        libc::EAGAIN,
        libc::EINTR,
    ]));
    // Through the page cache, the kernel's handling of short answers is not always right; see
    // `tests/it/slow.rs`.
    let short = match mounted {
        Mounted::Uncached => FileFault::Short(rng.pick(&[0, 1, 4095, 4097, 77_777, 300_000])),
        Mounted::Cached => errno,
    };
    let late = FileFault::Late(Duration::from_millis(1 + rng.below(40)));
    let fault = rng.pick(&[errno, errno, short, short, late, FileFault::Hold]);
    let of_others = matches!(fault, FileFault::Errno(_) | FileFault::Hold) && rng.once_in(5);
    let mut rule = FileRule::always(fault)
        .after(rng.below(12))
        .every(1 + rng.below(6))
        .from_byte(rng.below(3 << 20));
    if of_others {
        rule = rule
            .from_byte(0)
            .on(rng.pick(&[Request::Open, Request::Stat]));
    }
    if rng.once_in(4) {
        rule
    } else {
        rule.times(1 + rng.below(4))
    }
}

/// Error kinds that file faults explain.
const OF_FILES: &[ErrorKind] = &[ErrorKind::Io, ErrorKind::Changed, ErrorKind::TimedOut];

#[test]
fn file_loads_survive_random_faults() {
    let _alone = alone();
    if let Some(bench) = on_files::Bench::start() {
        survive(&bench, &[Via::Uring, Via::TokioUring, Via::Pread, Via::Map]);
    }
}

#[test]
fn loads_of_sealed_files_survive_random_faults() {
    let _alone = alone();
    if let Some(bench) = on_files::Bench::sealed() {
        survive(&bench, ALL_ON_FILES);
    }
}

/// Loads the files of a bench in these ways.
fn survive(bench: &on_files::Bench, vias: &[Via]) {
    let vias: Vec<_> = vias.iter().copied().filter(|via| is_there(*via)).collect();
    let mut ends = Ends::default();
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let via = rng.pick(&vias);
        let mounted = if via == Via::Map {
            Mounted::Cached
        } else {
            rng.pick(&[Mounted::Uncached, Mounted::Cached])
        };
        let mut options = options(&mut rng, via);
        let rules = rng.index(5);
        let rules: Vec<_> = (0..rules).map(|_| file_rule(&mut rng, mounted)).collect();
        limit(&mut rng, &mut options, rules.len());
        let mount = bench.mount(mounted);
        let before = Traces::now();
        let begin = || rules.iter().for_each(|rule| mount.fault(rule));
        let ended = watched(
            || bench.load(mounted, options.clone(), begin),
            || (),
            || mount.clear_faults(),
        );
        // Releases held requests, so that the threads waiting for them end and free their memory.
        mount.clear_faults();
        let shown: Vec<_> = rules.iter().map(ToString::to_string).collect();
        let told = format!(
            "TLOAD_SEED={seed}: {}, {mounted:?}, {shown:?}, {options:?}",
            via.name()
        );
        ends.check(&told, ended, OF_FILES, before, rules.is_empty());
    }
    ends.assert_both();
}

fn object_rule(rng: &mut Rng) -> Rule {
    let bytes = rng.index(400_000);
    let fault = match rng.below(12) {
        0 => Fault::status(500, "InternalError"),
        1 => Fault::status(503, "SlowDown"),
        2 => Fault::CutBeforeHeaders,
        3 => Fault::ResetBeforeHeaders,
        4 => Fault::CutBody(bytes),
        5 => Fault::ResetBody(bytes),
        6 => Fault::StallBody(bytes),
        7 => Fault::StallHeaders,
        8 => Fault::ShortBody(bytes),
        9 => Fault::WrongLength(i64::try_from(bytes).expect("small")),
        10 => Fault::Delay(Duration::from_millis(rng.below(60))),
        _ => Fault::Garbage(b"SSH-2.0-tload\r\n".to_vec()),
    };
    let times = rng.index(5);
    let rule = if times == 0 {
        Rule::always(fault)
    } else {
        Rule::times(times, fault)
    };
    rule.on(Operation::Get)
        .from_byte(1 + rng.below(3 << 20))
        .after(rng.index(6))
        .every(1 + rng.index(4))
}

/// Error kinds that these object faults explain.
const OF_OBJECTS: &[ErrorKind] = &[ErrorKind::Remote, ErrorKind::TimedOut];

#[test]
fn object_loads_survive_random_faults() {
    let _alone = alone();
    on_objects::warm_up();
    let mut ends = Ends::default();
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let before = Traces::now();
        let is_sealed = rng.once_in(2);
        let bench = if is_sealed {
            on_objects::Bench::sealed()
        } else {
            on_objects::Bench::start()
        };
        let mut options = options(&mut rng, Via::Object);
        let rules = rng.index(5);
        let rules: Vec<_> = (0..rules).map(|_| object_rule(&mut rng)).collect();
        // Without faults, every load is to succeed, also on a busy machine.
        let read_timeout = if rules.is_empty() { "60" } else { "0.3" };
        let store = options_at(&bench.server.url(), read_timeout);
        limit(&mut rng, &mut options, rules.len());
        let begin = || {
            for rule in &rules {
                bench.server.fault(rule.clone());
            }
        };
        let ended = watched(
            || bench.load(&store, options.clone(), begin),
            || (),
            || bench.server.clear_faults(),
        );
        drop(bench);
        let shown: Vec<_> = rules.iter().map(ToString::to_string).collect();
        let told = format!("TLOAD_SEED={seed}: sealed {is_sealed}, {shown:?}, {options:?}");
        ends.check(&told, ended, OF_OBJECTS, before, rules.is_empty());
    }
    ends.assert_both();
}

/// Counts of complete and failed loads: a test in which all or none fail proves nothing.
#[derive(Default)]
struct Ends {
    whole: usize,
    failed: usize,
}

impl Ends {
    fn check(
        &mut self,
        told: &str,
        ended: Option<Ended>,
        kinds: &[ErrorKind],
        before: Traces,
        is_well: bool,
    ) {
        assert!(ended.is_some(), "{told}: hangs");
        let ended = ended.expect("asserted above");
        assert_eq!(ended.wrong_bytes, 0, "{told}: {ended}");
        match &ended.error {
            None => {
                assert!(ended.is_whole, "{told}: {ended}");
                self.whole += 1;
            }
            Some(error) => {
                assert!(!is_well, "{told}: {ended}");
                assert!(kinds.contains(&error.kind()), "{told}: {ended}");
                assert!(error.hint().is_some(), "{told}: {ended}");
                self.failed += 1;
            }
        }
        drop(ended);
        let left = before.left_since();
        assert!(
            left.is_none(),
            "{told}: leaves {}",
            left.unwrap_or_default()
        );
    }

    fn assert_both(&self) {
        let is_much = self.whole + self.failed >= 20;
        let is_both = self.whole > 0 && self.failed > 0;
        assert!(
            !is_much || is_both,
            "{} whole, {} failed",
            self.whole,
            self.failed
        );
    }
}
