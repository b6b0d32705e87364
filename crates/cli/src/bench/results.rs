//! Samples of a benchmark, their summaries, and the record of the machine and checkpoint. Exports
//! show these.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tload_against::{PEERS, Python};

use super::Spread;
use super::{Cell, Contender, Measurement, Plan};
use tload_doctor::host::record::HostRecord;
use tload_quantity::rate;

/// Schema of the JSON export. Increases when a key changes its meaning.
const SCHEMA: u32 = 1;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) schema: u32,
    #[serde(flatten)]
    pub(crate) run: RunRecord,
    pub(crate) fio: Option<String>,
    /// Other loaders that users asked for.
    pub(crate) against: Option<Python>,
    pub(crate) host: HostRecord,
    pub(crate) checkpoint: CheckpointRecord,
    pub(crate) rounds: u32,
    /// True once every planned run has ended.
    pub(crate) complete: bool,
    pub(crate) warnings: Vec<String>,
    pub(crate) cells: Vec<CellResults>,
}

/// Command that ran, and when.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunRecord {
    pub(crate) command: Vec<String>,
    pub(crate) started_unix_seconds: u64,
    pub(crate) tload: Build,
}

/// Build of this program.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Build {
    pub(crate) version: &'static str,
    pub(crate) debug: bool,
}

/// Checkpoint that was read.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CheckpointRecord {
    pub(crate) location: String,
    pub(crate) tensors: u64,
    pub(crate) tensor_bytes: u64,
    pub(crate) shards: u64,
    pub(crate) file_bytes: u64,
    /// Parameters of a synthetic checkpoint.
    pub(crate) synthetic: Option<SyntheticRecord>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct SyntheticRecord {
    pub(crate) preset: &'static str,
    pub(crate) seed: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct CellResults {
    #[serde(flatten)]
    pub(crate) cell: Cell,
    /// True if the summaries use only samples taken in the requested state of the page cache.
    pub(crate) cache_state_verified: bool,
    pub(crate) summaries: Vec<Summary>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) failures: Vec<Failure>,
}

/// Failure of another loader, which does not run again in its cell.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Failure {
    /// Number of the round, from 1.
    pub(crate) round: u32,
    pub(crate) contender: Contender,
    pub(crate) reason: String,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    /// Number of the round, from 1.
    pub(crate) round: u32,
    /// Position in the round, from 0.
    pub(crate) position: usize,
    pub(crate) contender: Contender,
    #[serde(flatten)]
    pub(crate) measurement: Measurement,
}

/// Summary of one contender's samples.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) contender: Contender,
    /// Samples in the summary; `left_out` are those taken in another state of the page cache.
    pub(crate) samples: usize,
    pub(crate) left_out: usize,
    pub(crate) bytes_per_second: Spread,
    /// Speed of the load divided by this contender's, within each round.
    pub(crate) tload_ratio: Option<Spread>,
    /// This contender's speed divided by that of the ceiling, within each round.
    pub(crate) ceiling_ratio: Option<Spread>,
    pub(crate) cpu_seconds_per_gib: Option<Spread>,
    pub(crate) peak_rss_bytes: Option<u64>,
    pub(crate) first_tensor_seconds: Option<Spread>,
}

impl RunRecord {
    /// Returns the record of a run that begins now.
    pub(crate) fn new(command: Vec<String>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            command,
            started_unix_seconds: now.unwrap_or_default().as_secs(),
            tload: Build {
                version: env!("CARGO_PKG_VERSION"),
                debug: cfg!(debug_assertions),
            },
        }
    }
}

impl Results {
    /// Returns results without samples.
    pub(crate) fn new(
        run: RunRecord,
        fio: Option<String>,
        host: HostRecord,
        checkpoint: CheckpointRecord,
        plan: &Plan,
    ) -> Self {
        let cells = plan.cells.iter().map(|cell| CellResults {
            cell: cell.clone(),
            cache_state_verified: true,
            summaries: Vec::new(),
            samples: Vec::new(),
            failures: Vec::new(),
        });
        Self {
            schema: SCHEMA,
            run,
            fio,
            against: None,
            host,
            checkpoint,
            rounds: plan.rounds,
            complete: false,
            warnings: Vec::new(),
            cells: cells.collect(),
        }
    }

    /// Adds a sample of the cell with this index.
    #[cfg(test)]
    pub(crate) fn add(&mut self, cell: usize, sample: Sample) {
        self.cells[cell].extend(Some(sample));
    }
}

impl CellResults {
    /// Adds a sample, if there is one.
    pub(crate) fn extend(&mut self, sample: Option<Sample>) {
        self.samples.extend(sample);
        self.sum_up();
    }

    pub(crate) fn has_failed(&self, contender: Contender) -> bool {
        self.failures.iter().any(|it| it.contender == contender)
    }

    /// Returns the summary of `contender`, once it has a sample.
    #[cfg(test)]
    pub(crate) fn summary(&self, contender: Contender) -> Option<&Summary> {
        self.summaries
            .iter()
            .find(|summary| summary.contender == contender)
    }

    /// Returns the samples of `contender` in chronological order.
    pub(crate) fn samples(&self, contender: Contender) -> impl DoubleEndedIterator<Item = &Sample> {
        self.samples
            .iter()
            .filter(move |sample| sample.contender == contender)
    }

    fn sum_up(&mut self) {
        let as_asked = |sample: &Sample| self.is_as_asked(sample);
        self.cache_state_verified = self.samples.iter().any(as_asked);
        let contenders = [Contender::Tload, Contender::Ceiling, Contender::Fio];
        self.summaries = contenders
            .into_iter()
            .chain(PEERS.iter().map(Contender::Peer))
            .filter_map(|it| self.summarise(it))
            .collect();
    }

    fn is_as_asked(&self, sample: &Sample) -> bool {
        sample.measurement.residency.found.is(self.cell.cache_state)
    }

    /// Returns the samples in the requested state. If there are none, returns all of them; the cell
    /// is then not labelled with that state.
    pub(super) fn counting(&self, contender: Contender) -> impl Iterator<Item = &Sample> {
        self.samples(contender)
            .filter(|sample| !self.cache_state_verified || self.is_as_asked(sample))
    }

    fn summarise(&self, contender: Contender) -> Option<Summary> {
        let spread = |value: fn(&Measurement) -> Option<f64>| {
            Spread::new(
                self.counting(contender)
                    .filter_map(|sample| value(&sample.measurement)),
            )
        };
        let samples = self.counting(contender).count();
        Some(Summary {
            contender,
            samples,
            left_out: self.samples(contender).count() - samples,
            bytes_per_second: spread(|it| Some(it.bytes_per_second))?,
            tload_ratio: self.ratio(Contender::Tload, contender),
            ceiling_ratio: self.ratio(contender, Contender::Ceiling),
            cpu_seconds_per_gib: spread(|it| it.cpu_seconds_per_gib),
            peak_rss_bytes: self
                .counting(contender)
                .filter_map(|sample| sample.measurement.peak_rss_bytes)
                .max(),
            first_tensor_seconds: spread(|it| it.first_tensor_seconds),
        })
    }

    /// Returns the ratios of the speeds of two contenders within rounds, so that a disk that is
    /// slower for a minute is slower for both.
    fn ratio(&self, of: Contender, to: Contender) -> Option<Spread> {
        if of == to {
            return None;
        }
        let rounds = self.counting(of);
        Spread::new(rounds.filter_map(|ours| {
            let theirs = self.counting(to).find(|it| it.round == ours.round)?;
            let (ours, theirs) = (&ours.measurement, &theirs.measurement);
            // Another loader opens the files within its time.
            let opening = ours.opening_seconds.filter(|_| to.is_peer()).unwrap_or(0.0);
            let speed = rate(ours.bytes, ours.seconds + opening);
            (theirs.bytes_per_second > 0.0).then_some(speed / theirs.bytes_per_second)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::page_cache::Found;
    use crate::bench::testing::{plan, results, sample};

    #[test]
    fn ratios_are_taken_within_rounds() {
        let mut results = results(&plan(1, 3));
        // The disk halves its speed in round 2: the ratios do not move.
        for (round, ours, other) in [(1, 90.0, 100.0), (2, 45.0, 50.0), (3, 90.0, 100.0)] {
            results.add(0, sample(round, Contender::Tload, ours));
            results.add(0, sample(round, Contender::Ceiling, other));
        }
        let ratio = results.cells[0]
            .summary(Contender::Ceiling)
            .unwrap()
            .tload_ratio
            .unwrap();
        assert!((ratio.min - 0.9).abs() < 1e-9 && (ratio.max - 0.9).abs() < 1e-9);
        assert!(results.cells[0].summary(Contender::Fio).is_none());
    }

    #[test]
    fn ratio_to_another_loader_counts_the_opening() {
        let peer = Contender::Peer(&PEERS[0]);
        let mut results = results(&plan(1, 1));
        let mut ours = sample(1, Contender::Tload, 1e9);
        ours.measurement.opening_seconds = Some(ours.measurement.seconds);
        for sample in [
            ours,
            sample(1, Contender::Ceiling, 2e9),
            sample(1, peer, 1e9),
        ] {
            results.add(0, sample);
        }
        let cell = &results.cells[0];
        let ratio = |contender| cell.summary(contender).unwrap().tload_ratio.unwrap().median;
        assert!((ratio(Contender::Ceiling) - 0.5).abs() < 1e-9);
        assert!((ratio(peer) - 0.5).abs() < 1e-9);
        let share = cell.summary(peer).unwrap().ceiling_ratio.unwrap().median;
        assert!((share - 0.5).abs() < 1e-9);
    }

    #[test]
    fn runs_not_found_cold_do_not_count_as_cold() {
        let mut results = results(&plan(1, 2));
        let mut warm = sample(1, Contender::Tload, 1000.0);
        warm.measurement.residency.found = Found::Mixed;
        results.add(0, warm);
        assert!(!results.cells[0].cache_state_verified);
        results.add(0, sample(2, Contender::Tload, 100.0));
        let cell = &results.cells[0];
        assert!(cell.cache_state_verified);
        let summary = cell.summary(Contender::Tload).unwrap();
        assert_eq!((summary.samples, summary.left_out), (1, 1));
        assert!((summary.bytes_per_second.median - 100.0).abs() < 1e-9);
    }
}
