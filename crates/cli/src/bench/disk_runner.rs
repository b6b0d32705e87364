//! Runner for real measurements: prepares the page cache and memory, runs one contender, and reads
//! its usage.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tload::internal::probe::prefault;
use tload::internal::{Ceiling, format_bytes};
use tload::{Checkpoint, Device, Loader, OpenOptions, Report, Result, release_staging};
use tload_against::Peer;
use tload_trace::Recorder;

use super::fio::{Fio, Job};
use super::page_cache::{PageCache, Residency};
use super::peers::Peers;
use super::usage::{Meter, Usage};
use super::warnings::Warning;
use super::{Cell, Configuration, Contender, Measurement, Mode, Runner};
use crate::interrupt::Interrupt;
use tload_doctor::host::{System, memory};
use tload_quantity::{gibibytes, rate};

/// Memory that a streaming run may use: more than the core's default budget.
const STREAM_BYTES: u64 = 1 << 30;
/// Memory that stays free if faulting in takes as much as possible.
const SPARE_BYTES: u64 = 64 << 20;
/// Extent and depth of fio until a load of the same cell has run.
const FIO_EXTENT_BYTES: u64 = 1 << 20;
const FIO_DEPTH: usize = 8;
/// Step to which sizes of reads are rounded for display and for fio. Alignments of direct I/O are
/// smaller.
const EXTENT_STEP: u64 = 64 << 10;

/// Runs contenders on one checkpoint.
#[derive(Debug)]
pub(crate) struct DiskRunner<'a> {
    /// Opened once, for the ceiling, which only measures reads. A load opens its own.
    checkpoint: &'a Checkpoint,
    opening: &'a OpenOptions,
    /// Shards on file systems.
    files: Vec<PathBuf>,
    page_cache: PageCache,
    fio: Option<Fio>,
    peers: Option<Peers<'a>>,
    interrupt: &'a Interrupt,
    /// Cell, extent and depth of the last load of each cell; fio uses the same.
    reads: Vec<(Cell, u64, usize)>,
    warnings: Vec<Warning>,
    recorder: Option<Arc<Recorder>>,
}

impl<'a> DiskRunner<'a> {
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        opening: &'a OpenOptions,
        fio: Option<Fio>,
        interrupt: &'a Interrupt,
    ) -> Self {
        let paths = checkpoint
            .shards()
            .iter()
            .filter_map(|shard| shard.location().as_path());
        let files: Vec<PathBuf> = paths.map(Into::into).collect();
        Self {
            checkpoint,
            opening,
            page_cache: PageCache::new(files.clone()),
            files,
            fio,
            peers: None,
            interrupt,
            reads: Vec::new(),
            warnings: Vec::new(),
            recorder: None,
        }
    }

    /// Runs other loaders too, if there are any.
    pub(crate) fn against(mut self, peers: Option<Peers<'a>>) -> Self {
        self.peers = peers;
        self
    }

    /// Records the loads, if there is a recorder.
    pub(crate) fn recorded_by(mut self, recorder: Option<Arc<Recorder>>) -> Self {
        self.recorder = recorder;
        self
    }

    fn watched(&self, loader: Loader, cell: &Cell) -> Loader {
        let Some(recorder) = &self.recorder else {
            return loader;
        };
        let Configuration { options, .. } = &cell.configuration;
        let mut name = format!("{:?}, {}", cell.mode, cell.cache_state.name()).to_lowercase();
        let _ = options.depth.map(|depth| write!(name, ", depth {depth}"));
        let _ =
            (options.extent_bytes).map(|bytes| write!(name, ", extent {}", format_bytes(bytes)));
        loader.watched_by(recorder.watcher(name))
    }

    /// Returns the warnings collected during the runs.
    pub(crate) fn into_warnings(self) -> Vec<Warning> {
        self.warnings
    }

    /// Prepares memory and the page cache. The cache is prepared again at the end, because faulting
    /// in memory may evict files from it.
    fn prepare(
        &self,
        cell: &Cell,
        contender: Contender,
        page_cache: &PageCache,
    ) -> Result<Residency> {
        let total = self.checkpoint.total_bytes();
        let budget = cell
            .configuration
            .options
            .memory_limit
            .unwrap_or(STREAM_BYTES)
            .min(total);
        page_cache.prepare(cell.cache_state, self.interrupt)?;
        // A virtual machine returns freed memory to its host; faulting it in again costs more than
        // any disk and has nothing to do with loading. Therefore the memory that a run may use is
        // faulted in and freed before every contender.
        let touched = if keeps_in_host_memory(cell) || contender.is_peer() {
            total + budget
        } else {
            budget
        };
        // In a small control group, the OOM killer would end the process.
        let room = memory::available(&System::real());
        let touched = touched.min(room.map_or(touched, |room| room.saturating_sub(SPARE_BYTES)));
        prefault(usize::try_from(touched).unwrap_or(usize::MAX));
        page_cache.prepare(cell.cache_state, self.interrupt)?;
        self.interrupt.check()?;
        Ok(page_cache.residency())
    }

    fn load(
        &mut self,
        cell: &Cell,
        before: Option<Loader>,
        residency: Residency,
    ) -> Result<Measurement> {
        let meter = Meter::start();
        let opened = Instant::now();
        let loader = if let Some(loader) = before {
            loader
        } else {
            let opened = Checkpoint::open_with(self.checkpoint.location(), self.opening)?;
            cell.configuration.loader(opened)
        };
        let loader = self.watched(loader, cell);
        let mut stream = loader.stream()?;
        self.interrupt.watch(stream.canceller());
        let mut first_tensor_seconds = None;
        let mut kept = Vec::new();
        for tensor in &mut stream {
            let tensor = tensor?;
            first_tensor_seconds.get_or_insert_with(|| opened.elapsed().as_secs_f64());
            if cell.mode == Mode::Keep {
                kept.push(tensor);
            }
        }
        let whole = opened.elapsed().as_secs_f64();
        let usage = meter.stop();
        let report = stream.report();
        drop(kept);
        self.interrupt.check()?;
        self.remember(cell, &report);
        Ok(Measurement {
            first_tensor_seconds,
            opening_seconds: Some((whole - report.seconds).max(0.0)),
            ..measurement(report, residency, usage)
        })
    }

    /// Returns a loader that has streamed everything once.
    fn load_before(&self, cell: &Cell) -> Result<Loader> {
        let loader = cell.configuration.loader(self.checkpoint.clone());
        let mut stream = loader.stream()?;
        self.interrupt.watch(stream.canceller());
        stream.try_for_each(|tensor| tensor.map(drop))?;
        Ok(loader)
    }

    fn ceiling(&self, cell: &Cell, residency: Residency) -> Result<Measurement> {
        let loader = cell.configuration.loader(self.checkpoint.clone());
        let kind = match cell.mode {
            Mode::Keep if keeps_in_host_memory(cell) => Ceiling::Fresh,
            Mode::Stream | Mode::Reload | Mode::Keep => Ceiling::Recycled,
        };
        let meter = Meter::start();
        let report = loader.ceiling(kind)?;
        Ok(measurement(report, residency, meter.stop()))
    }

    /// Runs fio. If it fails, the benchmark continues without it.
    fn fio(&mut self, cell: &Cell, residency: Residency) -> Result<Option<Measurement>> {
        let Some(fio) = &self.fio else {
            return Ok(None);
        };
        let read = self.reads.iter().find(|(known, ..)| known == cell);
        let (extent_bytes, depth) = read
            .map_or((FIO_EXTENT_BYTES, FIO_DEPTH), |(_, extent, depth)| {
                (*extent, *depth)
            });
        let files = self.files.clone();
        let job = Job {
            files,
            extent_bytes,
            depth,
            cache_state: cell.cache_state,
        };
        match fio.run(&job, self.interrupt) {
            Ok(outcome) => Ok(Some(Measurement {
                residency,
                bytes: outcome.bytes,
                seconds: outcome.seconds,
                bytes_per_second: rate(outcome.bytes, outcome.seconds),
                cpu_seconds: Some(outcome.cpu_seconds),
                cpu_seconds_per_gib: Some(outcome.cpu_seconds / gibibytes(outcome.bytes)),
                peak_rss_bytes: None,
                first_tensor_seconds: None,
                opening_seconds: None,
                engine: job.command(),
                report: None,
            })),
            Err(error) => {
                self.interrupt.check()?;
                self.warnings.push(Warning::FioFailed {
                    reason: error.to_string(),
                });
                self.fio = None;
                Ok(None)
            }
        }
    }

    fn peer(&mut self, cell: &Cell, peer: &'static Peer) -> Result<Option<Measurement>> {
        let Some(peers) = &mut self.peers else {
            return Ok(None);
        };
        let files = peers.files(peer)?;
        let prepare =
            |page_cache: &PageCache| self.prepare(cell, Contender::Peer(peer), page_cache);
        let peers = self.peers.as_ref();
        let ran = peers.map(|peers| peers.run(peer, cell, &files, prepare));
        ran.transpose()
    }

    fn remember(&mut self, cell: &Cell, report: &Report) {
        let (extent_bytes, depth) = reads(report);
        self.reads.retain(|(known, ..)| known != cell);
        self.reads.push((cell.clone(), extent_bytes, depth));
    }
}

impl Runner for DiskRunner<'_> {
    fn run(&mut self, cell: &Cell, contender: Contender) -> Result<Option<Measurement>> {
        if contender == Contender::Fio && self.fio.is_none() {
            return Ok(None);
        }
        // Staging memory of the last load to a GPU would make this one a reload.
        release_staging();
        // Before the page cache is prepared, so that this load leaves nothing in it.
        let before = match (contender, cell.mode) {
            (Contender::Tload, Mode::Reload) => Some(self.load_before(cell)?),
            _ => None,
        };
        let prepare = || self.prepare(cell, contender, &self.page_cache);
        match contender {
            Contender::Tload => {
                let residency = prepare()?;
                self.load(cell, before, residency).map(Some)
            }
            Contender::Ceiling => self.ceiling(cell, prepare()?).map(Some),
            Contender::Fio => {
                let residency = prepare()?;
                self.fio(cell, residency)
            }
            Contender::Peer(peer) => self.peer(cell, peer),
        }
    }
}

/// Returns whether the run ends with every tensor in new host memory.
pub(super) fn keeps_in_host_memory(cell: &Cell) -> bool {
    cell.mode == Mode::Keep && cell.configuration.device == Device::Cpu
}

/// Returns the size and number of the reads that a load had in flight. Its windows exceed the
/// requested bytes by up to two alignments; the bytes in flight may allow fewer reads than the
/// depth.
pub(super) fn reads(report: &Report) -> (u64, usize) {
    let extent_bytes = report.extent_bytes / EXTENT_STEP * EXTENT_STEP;
    let extent_bytes = if extent_bytes == 0 {
        report.extent_bytes
    } else {
        extent_bytes
    };
    let fitting = report.in_flight_bytes / extent_bytes.max(1);
    (
        extent_bytes,
        report
            .depth
            .min(usize::try_from(fitting).unwrap_or(usize::MAX))
            .max(1),
    )
}

/// Converts the report of a load or a ceiling. The clock of both runs from the first read to the
/// last byte and counts the bytes of the tensors: reading beyond their edges is a cost of both.
fn measurement(report: Report, residency: Residency, usage: Usage) -> Measurement {
    let bytes = report.tensor_bytes;
    Measurement {
        residency,
        bytes,
        seconds: report.seconds,
        bytes_per_second: rate(bytes, report.seconds),
        cpu_seconds: Some(usage.cpu_seconds),
        cpu_seconds_per_gib: (bytes > 0).then(|| usage.cpu_seconds / gibibytes(bytes)),
        peak_rss_bytes: usage.peak_rss_bytes,
        first_tensor_seconds: None,
        opening_seconds: None,
        engine: report.engine.name.clone(),
        report: Some(report),
    }
}
