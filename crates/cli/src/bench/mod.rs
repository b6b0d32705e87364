//! Parts of a benchmark.
//!
//! A [`Plan`] has cells (a configuration, a mode and a state of the page cache) and rounds. In each
//! round, `schedule` lets a [`Runner`] run the [`Contender`]s of each cell. The samples go into
//! `results`, which summarises them. `disk_runner` is the runner for real measurements and uses
//! `page_cache`, `usage` and `fio`; tests use a mock. `place` and `target` open or create the
//! checkpoint, `peers` runs other loaders, `gpu` holds the GPU that tensors go to, `warnings` lists
//! caveats for the reader, `sweep` compares the defaults with the best, and `verdict` closes with
//! sentences.

pub(crate) mod disk_runner;
mod fio;
mod gpu;
pub(crate) mod page_cache;
pub(crate) mod peers;
mod place;
pub(crate) mod results;
pub(crate) mod schedule;
pub(crate) mod sweep;
pub(crate) mod table;
pub(crate) mod target;
pub(crate) mod usage;
pub(crate) mod verdict;
pub(crate) mod warnings;
pub(crate) mod waterfall;

use std::fmt;

use serde::{Serialize, Serializer};
use tload::{Checkpoint, Device, LoadOptions, Loader, Report, Result};
use tload_against::Peer;

pub(crate) use fio::Fio;
pub(crate) use gpu::Gpu;
pub(crate) use page_cache::Residency;
pub(crate) use tload_html::Spread;

/// Treatment of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Each tensor is dropped on arrival.
    Stream,
    /// Like `Stream`, by a loader that has run before and kept its memory.
    Reload,
    /// All tensors are held until the end.
    Keep,
}

/// Requested state of the page cache for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CacheState {
    Cold,
    Warm,
    /// No state: the files are in an object store.
    Remote,
}

impl CacheState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Remote => "remote",
        }
    }
}

/// Device and options of a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Configuration {
    #[serde(serialize_with = "as_text")]
    pub(crate) device: Device,
    #[serde(flatten)]
    pub(crate) options: LoadOptions,
}

impl Configuration {
    /// Returns a loader of everything in `checkpoint`.
    pub(crate) fn loader(&self, checkpoint: Checkpoint) -> Loader {
        Loader::new(checkpoint)
            .device(self.device)
            .options(self.options.clone())
    }
}

/// One combination to measure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Cell {
    pub(crate) mode: Mode,
    pub(crate) cache_state: CacheState,
    pub(crate) configuration: Configuration,
}

/// Reader of the checkpoint in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contender {
    /// The load, as a caller sees it.
    Tload,
    /// Raw reads of the same extents by the same engine, without building tensors.
    Ceiling,
    /// `fio` on the same files, with reads of the same size and number.
    Fio,
    /// Another loader, in a process of its own.
    #[serde(untagged)]
    Peer(&'static Peer),
}

impl Contender {
    pub(crate) fn is_peer(self) -> bool {
        matches!(self, Self::Peer(_))
    }
}

/// All runs of a benchmark.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) cells: Vec<Cell>,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) rounds: u32,
}

impl Plan {
    /// Plans every configuration in every mode and state of the page cache.
    pub(crate) fn new(
        configurations: &[Configuration],
        modes: &[Mode],
        cache_states: &[CacheState],
        rounds: u32,
        fio: Option<&Fio>,
        peers: impl Iterator<Item = &'static Peer>,
    ) -> Self {
        let mut cells = Vec::new();
        for &mode in modes {
            for &cache_state in cache_states {
                for configuration in configurations {
                    let configuration = configuration.clone();
                    cells.push(Cell {
                        mode,
                        cache_state,
                        configuration,
                    });
                }
            }
        }
        let mut contenders = vec![Contender::Tload, Contender::Ceiling];
        contenders.extend(fio.map(|_| Contender::Fio));
        contenders.extend(peers.map(Contender::Peer));
        Self {
            cells,
            contenders,
            rounds,
        }
    }

    pub(crate) fn run_count(&self) -> u64 {
        self.cells.len() as u64 * self.contenders.len() as u64 * u64::from(self.rounds)
    }
}

/// Runs one contender once.
pub(crate) trait Runner {
    /// Returns `None` if this contender cannot run here; the runner records the reason.
    fn run(&mut self, cell: &Cell, contender: Contender) -> Result<Option<Measurement>>;
}

/// Result of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    /// State of the page cache right before the run.
    pub(crate) residency: Residency,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) bytes_per_second: f64,
    /// User and system time.
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) cpu_seconds_per_gib: Option<f64>,
    pub(crate) peak_rss_bytes: Option<u64>,
    /// Time from before the checkpoint was opened.
    pub(crate) first_tensor_seconds: Option<f64>,
    /// Time from before the checkpoint was opened until `seconds` began, for a load.
    pub(crate) opening_seconds: Option<f64>,
    /// The engine actually used; name and version of another loader.
    pub(crate) engine: String,
    /// Report of the core, for a load and its ceiling.
    pub(crate) report: Option<Report>,
}

/// Serialises what a value displays.
pub(crate) fn as_text<S: Serializer>(
    value: &impl fmt::Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
pub(crate) mod testing;
