//! Warnings about the validity of the results, with remedies.

use std::fmt;

use tload::CacheMode;
use tload::internal::format_bytes;

use super::Spread;
use super::results::{CellResults, Results, Sample};
use super::table::{short_bytes, unreached_extent};
use super::{CacheState, Contender};
use tload_quantity::{float, format_seconds, format_share};

/// Spread of one contender's samples, relative to the median, above which the device dominates
/// them.
const NOISE: f64 = 0.15;
/// Ratio of the first run to the median of the others above which the first run is an outlier.
const SLOW_START: f64 = 1.25;
/// Duration below which a run is mostly start-up, end and scheduler noise.
const SHORTEST_SECONDS: f64 = 0.05;
/// Ratio to the ceiling above which a load was not measured well: the ceiling reads the same bytes
/// and does less work.
pub(super) const ABOVE_CEILING: f64 = 1.05;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Warning {
    DebugBuild,
    InMemory {
        file_system: String,
    },
    Network {
        file_system: String,
    },
    Smaller {
        asked: u64,
        made: u64,
    },
    FioMissing,
    FioFailed {
        reason: String,
    },
    PeerMissing {
        name: &'static str,
        /// Program to install them with.
        python: String,
        /// Packages that it needs and that are not installed.
        packages: Vec<&'static str>,
    },
    WrongCacheState {
        wanted: CacheState,
        resident_bytes: u64,
        total_bytes: u64,
        all: bool,
    },
    Unverified {
        wanted: CacheState,
    },
    Fallback {
        requested: String,
        used: String,
        reason: String,
    },
    NotPinned {
        refused_bytes: u64,
        reason: String,
    },
    ExtentUnreached {
        asked: u64,
        used: u64,
    },
    FirstRunSlow {
        times: f64,
    },
    Noisy {
        contender: Contender,
        width: f64,
    },
    TooShort {
        seconds: f64,
    },
    AboveCeiling {
        ratio: f64,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DebugBuild => f.write_str(
                "this is a debug build, which is many times slower: measure a release build: cargo run --release -- bench",
            ),
            Self::InMemory { file_system } => write!(
                f,
                "{file_system} keeps files in memory: this measures memory, not a disk. Put the checkpoint on a \
                 disk with --dir",
            ),
            Self::Network { file_system } => write!(
                f,
                "{file_system} is a network file system: the cache of its server cannot be dropped from here. \
                 A cold run may be cold on this machine only",
            ),
            Self::Smaller { asked, made } => write!(
                f,
                "there is space for {} of the requested {}. Name a directory with more space with --dir",
                format_bytes(*made),
                format_bytes(*asked),
            ),
            Self::FioMissing => f.write_str(
                "fio is not installed, so there is no independent ceiling: apt-get install fio",
            ),
            Self::FioFailed { reason } => write!(f, "{reason}. The benchmark continued without it"),
            Self::PeerMissing { name, python, packages } => {
                let (packages, install) = (packages.join(" and "), packages.join(" "));
                write!(f, "{name} needs {packages}, which this Python lacks: {python} -m pip install {install}")
            }
            Self::WrongCacheState { wanted, resident_bytes, total_bytes, all } => {
                wrong_cache_state(f, *wanted, *resident_bytes, *total_bytes, *all)
            }
            Self::Unverified { wanted } => write!(
                f,
                "this system does not report the contents of its page cache: no run is labelled {}",
                wanted.name()
            ),
            Self::Fallback { requested, used, reason } => write!(
                f,
                "engine {used} was used, not {}: {reason}. tload doctor shows the cause",
                if requested == "auto" { "uring" } else { requested },
            ),
            Self::NotPinned { refused_bytes, reason } => write!(
                f,
                "{} of staging memory could not be pinned, so the driver makes an extra copy: {reason}. tload doctor \
                 shows the cause",
                format_bytes(*refused_bytes),
            ),
            Self::ExtentUnreached { asked, used } => extent_unreached(f, *asked, *used),
            Self::FirstRunSlow { times } => write!(
                f,
                "the first run took {times:.1} times as long as the others: a cache outside the operating system, or a disk \
                 that had to spin up. The median is not affected; more --rounds help",
            ),
            Self::Noisy { contender, width } => write!(
                f,
                "runs of {} differ by {} of their median: the device is shared or throttled. Trust the ratios, which \
                 are computed within rounds, more than the speeds; more --rounds help",
                who(*contender),
                format_share(*width),
            ),
            Self::TooShort { seconds } => too_short(f, *seconds),
            Self::AboveCeiling { ratio } => write!(
                f,
                "the load is {} faster than its ceiling, which does less work: the runs are too short, or the device changed \
                 speed between runs. Use a larger checkpoint and more --rounds",
                format_share(ratio - 1.0),
            ),
        }
    }
}

fn too_short(f: &mut fmt::Formatter<'_>, seconds: f64) -> fmt::Result {
    write!(
        f,
        "too short to measure: a run takes {}, and speeds and ratios are unreliable below {}. Use \
         a larger checkpoint (--size, or another LOCATION)",
        format_seconds(seconds),
        format_seconds(SHORTEST_SECONDS),
    )
}

fn extent_unreached(f: &mut fmt::Formatter<'_>, asked: u64, used: u64) -> fmt::Result {
    write!(
        f,
        "no read was as long as --extent {}; the longest were {}: each tensor, or run of small \
         ones, is read in equal parts. Use a checkpoint with larger tensors",
        short_bytes(asked),
        format_bytes(used),
    )
}

fn wrong_cache_state(
    f: &mut fmt::Formatter<'_>,
    wanted: CacheState,
    resident_bytes: u64,
    total_bytes: u64,
    all: bool,
) -> fmt::Result {
    let share = float(resident_bytes) / float(total_bytes.max(1));
    let (wanted, share) = (wanted.name(), format_share(share));
    write!(
        f,
        "page cache not {wanted} at the start of a run: {share} of the files were in memory; ",
    )?;
    if all {
        write!(
            f,
            "these runs are not labelled {wanted}. Close programs that use the files, or try a local disk",
        )
    } else {
        f.write_str("the run is excluded. Close programs that use the files")
    }
}

fn who(contender: Contender) -> &'static str {
    match contender {
        Contender::Tload => "tload",
        Contender::Ceiling => "the ceiling",
        Contender::Fio => "fio",
        Contender::Peer(peer) => peer.name,
    }
}

/// Returns the warnings that the samples show, each kind once, from the first cell that shows it.
pub(crate) fn find(results: &Results) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for cell in &results.cells {
        warnings.extend(page_cache(cell));
        warnings.extend(fallback(cell));
        warnings.extend(not_pinned(cell));
        warnings.extend(
            unreached_extent(cell).map(|(asked, used)| Warning::ExtentUnreached { asked, used }),
        );
        warnings.extend(slow_start(cell));
        warnings.extend(noise(cell));
        warnings.extend(too_small(cell));
    }
    let mut kinds = Vec::new();
    warnings.retain(|warning| {
        let kind = std::mem::discriminant(warning);
        let is_new = !kinds.contains(&kind);
        kinds.push(kind);
        is_new
    });
    warnings
}

fn page_cache(cell: &CellResults) -> Option<Warning> {
    let wanted = cell.cell.cache_state;
    let is_wrong = |sample: &&Sample| !sample.measurement.residency.found.is(wanted);
    let residency = cell.samples.iter().find(is_wrong)?.measurement.residency;
    if residency.method.is_none() {
        return Some(Warning::Unverified { wanted });
    }
    Some(Warning::WrongCacheState {
        wanted,
        resident_bytes: residency.resident_bytes,
        total_bytes: residency.total_bytes,
        all: !cell.cache_state_verified,
    })
}

/// Warns about a fallback. If `auto` chooses threads for cached files, that is not one.
fn fallback(cell: &CellResults) -> Option<Warning> {
    let engine = cell
        .samples(Contender::Tload)
        .find_map(|sample| sample.measurement.report.as_ref())?
        .engine
        .clone();
    let fell = engine.name == "pread" && engine.requested != "pread";
    (fell && cell.cell.cache_state == CacheState::Cold).then_some(Warning::Fallback {
        requested: engine.requested,
        used: engine.name,
        reason: engine.reason,
    })
}

fn not_pinned(cell: &CellResults) -> Option<Warning> {
    let reports = cell.samples(Contender::Tload).filter_map(|sample| {
        let report = sample.measurement.report.as_ref()?;
        report.staging.as_ref()
    });
    let mut refused = reports.filter_map(|staging| {
        Some(Warning::NotPinned {
            refused_bytes: staging.bytes - staging.pinned_bytes,
            reason: staging.refusal.clone()?,
        })
    });
    refused.next()
}

fn slow_start(cell: &CellResults) -> Option<Warning> {
    let mut seconds = cell
        .samples(Contender::Tload)
        .map(|sample| sample.measurement.seconds);
    let first = seconds.next()?;
    let others = Spread::new(seconds)?;
    let times = first / others.median;
    (times > SLOW_START).then_some(Warning::FirstRunSlow { times })
}

fn noise(cell: &CellResults) -> Option<Warning> {
    let widest = cell.summaries.iter().max_by(|left, right| {
        left.bytes_per_second
            .width()
            .total_cmp(&right.bytes_per_second.width())
    })?;
    let width = widest.bytes_per_second.width();
    (width > NOISE).then_some(Warning::Noisy {
        contender: widest.contender,
        width,
    })
}

/// Warns about a cell whose runs are too short, or whose load beats the ceiling. The ratio of a
/// short run means nothing, and mapping files may well be faster than the ceiling, which copies
/// them.
fn too_small(cell: &CellResults) -> Option<Warning> {
    let runs = cell.samples(Contender::Tload);
    let seconds = Spread::new(runs.map(|sample| sample.measurement.seconds))?.median;
    if seconds < SHORTEST_SECONDS {
        return Some(Warning::TooShort { seconds });
    }
    if cell.cell.configuration.options.cache == CacheMode::Map {
        return None;
    }
    let ceiling = cell
        .summaries
        .iter()
        .find(|summary| summary.contender == Contender::Ceiling)?;
    let ratio = ceiling.tload_ratio?.median;
    (ratio > ABOVE_CEILING).then_some(Warning::AboveCeiling { ratio })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::page_cache::Found;
    use crate::bench::testing::{plan, results, sample};

    #[test]
    fn quiet_results_give_no_warning() {
        let mut results = results(&plan(1, 3));
        for round in 1..=3 {
            results.add(0, sample(round, Contender::Tload, 1e9 + f64::from(round)));
        }
        assert_eq!(find(&results), []);
    }

    #[test]
    fn extent_that_no_read_reached_warns() {
        let mut results = results(&plan(1, 1));
        results.cells[0].cell.configuration.options.extent_bytes = Some(4 << 20);
        let mut sample = sample(1, Contender::Tload, 1e9);
        let mut report = tload::Report::default();
        report.extent_bytes = 2 << 20;
        report.in_flight_bytes = 16 << 20;
        report.depth = 8;
        sample.measurement.report = Some(report.clone());
        results.add(0, sample.clone());
        let texts: Vec<String> = find(&results).iter().map(ToString::to_string).collect();
        let wanted = "no read was as long as --extent 4 MiB; the longest were 2.0 MiB";
        assert!(
            texts.len() == 1 && texts[0].starts_with(wanted),
            "{texts:#?}"
        );
        let shown = crate::bench::table::reads(&results.cells[0]);
        assert_eq!(shown, "8 × 2.0 MiB (asked: 4 MiB)");

        // Windows may exceed the requested bytes by their alignment.
        report.extent_bytes = (4 << 20) + 4096;
        sample.measurement.report = Some(report);
        results.add(0, sample);
        assert_eq!(find(&results), []);
    }

    #[test]
    fn short_runs_and_loads_above_ceiling_warn() {
        let texts = |ours: f64, ceiling: f64| -> Vec<String> {
            let mut results = results(&plan(1, 1));
            results.add(0, sample(1, Contender::Tload, ours));
            results.add(0, sample(1, Contender::Ceiling, ceiling));
            find(&results).iter().map(ToString::to_string).collect()
        };
        let above = texts(1.08e9, 1e9);
        assert_eq!(above.len(), 1, "{above:#?}");
        assert!(
            above[0].starts_with("the load is 8 % faster"),
            "{}",
            above[0]
        );
        assert_eq!(texts(1.04e9, 1e9), Vec::<String>::new());
        let mut mapped = plan(1, 1);
        mapped.cells[0].configuration.options.cache = CacheMode::Map;
        let mut results = results(&mapped);
        results.add(0, sample(1, Contender::Tload, 2e9));
        results.add(0, sample(1, Contender::Ceiling, 1e9));
        assert_eq!(find(&results), [], "a ceiling copies");
        // 4 GiB at this speed take 43 ms.
        let short = texts(1e11, 5e10);
        assert_eq!(short.len(), 1, "{short:#?}");
        assert!(
            short[0].starts_with("too short to measure: a run takes 42.9 ms"),
            "{}",
            short[0]
        );
    }

    #[test]
    fn each_kind_of_warning_is_given_once() {
        let mut results = results(&plan(2, 3));
        for cell in 0..2 {
            for (round, rate) in [(1, 1e9), (2, 2e9), (3, 2e9)] {
                let mut sample = sample(round, Contender::Tload, rate);
                sample.measurement.residency.found = Found::Mixed;
                sample.measurement.residency.resident_bytes = 1 << 30;
                results.add(cell, sample);
            }
        }
        let texts: Vec<String> = find(&results).iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 3, "{texts:#?}");
        assert!(
            texts[0].contains("25 % of the files were in memory; these runs"),
            "{}",
            texts[0]
        );
        assert!(texts[1].contains("2.0 times as long"), "{}", texts[1]);
        assert!(
            texts[2].contains("runs of tload differ by 50 %"),
            "{}",
            texts[2]
        );
    }
}
