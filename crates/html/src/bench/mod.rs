//! Benchmark as plain values: cells with their settings, summaries and samples. `page` shows them,
//! `crate::plot` draws them.

mod page;

use std::collections::BTreeSet;

pub use page::bench_page;

use crate::facts::Run;
use crate::page::text;
use crate::quantity::{format_count, short_bytes};
use crate::stats::Spread;
use crate::waterfall::Phase;

/// A benchmark, or the state of one that has not ended.
#[derive(Clone, Debug, Default)]
pub struct Bench {
    /// Checkpoint: `synthetic llama: 291 tensors, 4.0 GiB in 4 shards`.
    pub checkpoint: String,
    /// Host: `ext4 on vda, Linux 6.18, 2 × Some CPU, 23.5 GiB of memory`.
    pub host: String,
    /// Planned rounds.
    pub rounds: u64,
    /// True once every planned run has ended.
    pub is_complete: bool,
    /// Sentences about the results, the most important one first.
    pub verdicts: Vec<String>,
    /// Error that ended it, with its causes and advice.
    pub failure: Option<String>,
    /// Caveats.
    pub warnings: Vec<String>,
    /// Combinations that were measured.
    pub cells: Vec<Cell>,
    /// Starts of processes: their name, and the medians of their phases.
    pub starts: Vec<(String, Vec<Phase>)>,
    /// Columns and rows of the summary; columns whose titles begin with `#` have numbers.
    pub head: Vec<String>,
    /// Rows of the summary.
    pub rows: Vec<Vec<String>>,
    /// Circumstances.
    pub run: Run,
}

/// One combination of settings.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Treatment of the tensors: `stream`.
    pub mode: String,
    /// State of the page cache: `cold`, `not cold`.
    pub cache: String,
    /// Engine that was requested.
    pub engine_asked: String,
    /// Engine that was used.
    pub engine: String,
    /// Settings that were requested.
    pub asked: Settings,
    /// Settings that the load ended with.
    pub used: Settings,
    /// Size of the reads, if they stayed far below the requested size.
    pub unreached_extent: Option<u64>,
    /// Reads in words: `8 × 1.0 MiB`.
    pub reads: String,
    /// Summaries of its contenders.
    pub summaries: Vec<Summary>,
    /// Contenders that failed, and why.
    pub failures: Vec<(String, String)>,
    /// Runs in chronological order.
    pub samples: Vec<Sample>,
}

/// Settings that can be swept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Reads in flight.
    pub depth: Option<u64>,
    /// Bytes of one read.
    pub extent_bytes: Option<u64>,
    /// Threads that read.
    pub lanes: Option<u64>,
}

/// Reader of the checkpoint in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contender {
    /// The load.
    #[default]
    Tload,
    /// Raw reads of the same bytes.
    Ceiling,
    /// fio.
    Fio,
    /// Another loader.
    Peer,
}

/// Summary of one contender's runs.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The contender.
    pub contender: Contender,
    /// Its name.
    pub name: String,
    /// Number of runs.
    pub samples: u64,
    /// Bytes per second.
    pub bytes_per_second: Spread,
    /// Speed of the load divided by this contender's.
    pub tload_ratio: Option<f64>,
}

/// One run.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Number of the round.
    pub round: u64,
    /// Name of the contender.
    pub contender: String,
    /// State of the page cache right before it.
    pub found: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// User and system time.
    pub cpu_seconds: Option<f64>,
    /// Largest memory of the process.
    pub peak_rss_bytes: Option<u64>,
    /// Seconds until the first tensor.
    pub first_tensor_seconds: Option<f64>,
}

/// Setting that can be swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Depth,
    Extent,
    Lanes,
}

impl Setting {
    pub(crate) const ALL: [Self; 3] = [Self::Depth, Self::Extent, Self::Lanes];

    pub(crate) fn of(self, settings: &Settings) -> Option<u64> {
        match self {
            Self::Depth => settings.depth,
            Self::Extent => settings.extent_bytes,
            Self::Lanes => settings.lanes,
        }
    }

    pub(crate) fn axis(self) -> &'static str {
        match self {
            Self::Depth => "depth: reads in flight (logarithmic)",
            Self::Extent => "extent: bytes of one read (logarithmic)",
            Self::Lanes => "lanes: threads that read (logarithmic)",
        }
    }

    /// Returns the labels of a value on the axis and in a series.
    pub(crate) fn names(self, value: u64) -> (String, String) {
        match self {
            Self::Depth => (value.to_string(), format!("depth {value}")),
            Self::Extent => (short_bytes(value), short_bytes(value)),
            Self::Lanes => (value.to_string(), format_count(value, "lane")),
        }
    }
}

impl Bench {
    /// Returns the line below the title.
    pub(crate) fn subtitle(&self) -> String {
        if self.failure.is_some() && self.cells.is_empty() {
            return self.host.clone();
        }
        let rounds = format_count(self.rounds, "round");
        let state = if self.is_complete {
            ""
        } else {
            ", not complete"
        };
        format!("{}, {rounds}{state}", self.host)
    }

    /// Returns the requested values of a setting in ascending order.
    pub(crate) fn values(&self, setting: Setting) -> Vec<u64> {
        let values = self.cells.iter().filter_map(|cell| setting.of(&cell.asked));
        values.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the settings with several values, that with the most values first.
    pub(crate) fn all_swept(&self) -> Vec<Setting> {
        let several = |setting: &Setting| self.values(*setting).len() > 1;
        let mut swept: Vec<_> = Setting::ALL.into_iter().filter(several).collect();
        swept.sort_by_key(|setting| std::cmp::Reverse(self.values(*setting).len()));
        swept
    }

    /// Returns the setting with the most values, if any has several.
    pub(crate) fn swept(&self) -> Option<Setting> {
        self.all_swept().first().copied()
    }
}

impl Cell {
    pub(crate) fn summary(&self, contender: Contender) -> Option<&Summary> {
        self.summaries.iter().find(|it| it.contender == contender)
    }

    /// Returns mode, page cache and engine: the cells of a grid share them.
    fn grid(&self) -> String {
        text(&format!("{}, {}, {}", self.mode, self.cache, self.engine))
    }

    /// Returns the requested settings, or `defaults`.
    fn settings(&self) -> String {
        let settings = Setting::ALL.into_iter().filter_map(|setting| {
            let value = setting.of(&self.asked)?;
            Some(match setting {
                Setting::Extent => format!("extent {}", short_bytes(value)),
                Setting::Depth | Setting::Lanes => setting.names(value).1,
            })
        });
        let settings: Vec<_> = settings.collect();
        if settings.is_empty() {
            "defaults".to_owned()
        } else {
            settings.join(", ")
        }
    }
}
