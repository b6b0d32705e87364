//! The runner that measures: prepares the page cache and memory, runs one contender, and reads the meters.

use std::path::PathBuf;
use std::time::Instant;

use tload::probe::prefault;
use tload::{Ceiling, Checkpoint, Device, Loader, OpenOptions, Report, Result, release_staging};

use super::fio::{Fio, Job};
use super::page_cache::{PageCache, Residency};
use super::usage::{Meter, Usage};
use super::warnings::Warning;
use super::{Cell, Contender, Measurement, Mode, Runner};
use crate::host::{System, memory};
use crate::interrupt::Interrupt;
use crate::output::quantity::{gibibytes, rate};

/// Memory that a streaming run may take: more than the core's default budget.
const STREAM_BYTES: u64 = 1 << 30;
/// What is left of the memory that there is when as much as possible is touched beforehand.
const SPARE_BYTES: u64 = 64 << 20;
/// What fio reads with until a load of the same cell has shown what the core chooses.
const FIO_EXTENT_BYTES: u64 = 1 << 20;
const FIO_DEPTH: usize = 8;
/// Sizes of reads are shown, and given to fio, as multiples of this; alignments of direct I/O are smaller.
const EXTENT_STEP: u64 = 64 << 10;

/// Runs contenders on one checkpoint.
#[derive(Debug)]
pub(crate) struct DiskRunner<'a> {
    /// Opened once, for the ceiling, which is about reads only. A load opens its own.
    checkpoint: &'a Checkpoint,
    opening: &'a OpenOptions,
    /// Those on file systems.
    files: Vec<PathBuf>,
    page_cache: PageCache,
    fio: Option<Fio>,
    interrupt: &'a Interrupt,
    /// How each cell was last read, for fio to do the same.
    reads: Vec<(Cell, u64, usize)>,
    warnings: Vec<Warning>,
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
            page_cache: PageCache::of(files.clone()),
            files,
            fio,
            interrupt,
            reads: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// What happened beside the measurements.
    pub(crate) fn into_warnings(self) -> Vec<Warning> {
        self.warnings
    }

    /// Memory first: faulting it in must not push the files out of a page cache that was just filled.
    fn prepare(&self, cell: &Cell) -> Result<Residency> {
        let total = self.checkpoint.total_bytes();
        let budget = cell
            .configuration
            .memory_limit
            .unwrap_or(STREAM_BYTES)
            .min(total);
        self.page_cache.prepare(cell.cache_state, self.interrupt)?;
        // A virtual machine hands freed memory back to its host; touching it again costs more than any disk and has nothing to
        // do with loading. So every contender alike is preceded by faulting in, and freeing, as much as it may take.
        let touched = match cell.mode {
            Mode::Keep if keeps_in_host_memory(cell) => total + budget,
            Mode::Stream | Mode::Reload | Mode::Keep => budget,
        };
        // In a small control group the kernel would kill for it.
        let room = memory::available(&System::real());
        let touched = touched.min(room.map_or(touched, |room| room.saturating_sub(SPARE_BYTES)));
        prefault(usize::try_from(touched).unwrap_or(usize::MAX));
        self.page_cache.prepare(cell.cache_state, self.interrupt)?;
        self.interrupt.check()?;
        Ok(self.page_cache.residency())
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
        let usage = meter.stop();
        let report = stream.report();
        drop(kept);
        self.interrupt.check()?;
        self.remember(cell, &report);
        Ok(Measurement {
            first_tensor_seconds,
            ..measurement(report, residency, usage)
        })
    }

    /// A loader that has streamed everything once.
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

    /// fio is a guest: when it cannot run here, the others go on without it.
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
        // What the last load to a GPU left would make this one a reload.
        release_staging();
        // Before the page cache is prepared: this load must leave nothing there.
        let before = match (contender, cell.mode) {
            (Contender::Tload, Mode::Reload) => Some(self.load_before(cell)?),
            _ => None,
        };
        let residency = self.prepare(cell)?;
        match contender {
            Contender::Tload => self.load(cell, before, residency).map(Some),
            Contender::Ceiling => self.ceiling(cell, residency).map(Some),
            Contender::Fio => self.fio(cell, residency),
        }
    }
}

/// Whether the run ends with every tensor in fresh memory of the host.
pub(super) fn keeps_in_host_memory(cell: &Cell) -> bool {
    cell.mode == Mode::Keep && cell.configuration.device == Device::Cpu
}

/// The size and number of the reads that a load had in flight. Its windows are longer than what it wants by up to two
/// alignments; the bytes in flight may allow fewer of them than the depth does.
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

/// Both a load's and a ceiling's clock runs from the first read to the last byte, and counts the bytes of the tensors: the
/// over-read at the edges is a cost of both.
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
        engine: report.engine.name.clone(),
        report: Some(report),
    }
}
