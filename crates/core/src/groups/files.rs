//! Files of one file system, read by an engine for files.

use std::ops::Range;
use std::sync::Arc;

use super::limits::Limits;
use super::opening::{OpenedGroup, Opening, grouped};
use super::{GroupLanes, LaneContext, LimitsRequest, OpenEngine, SourceGroup, StorageGroup};
use crate::engine::{self, Engine, EngineKind, EngineSetup, OpenedEngine};
use crate::error::Result;
use crate::options::{CacheMode, EngineChoice, LoadOptions};
use crate::schedule::LaneCount;
use crate::storage::{FileSource, FileSystem, ReadFile, ReadHints, Source};
use crate::sync::cancel::CancelFlag;
use crate::sync::retry::Retries;
use crate::sync::retry_counter::RetryCounter;
use crate::verify::Verify;

/// Maximum number of lanes chosen automatically: beyond it, memory is the limit (an estimate of
/// 2026-11: not measured on machines with more than 2 cores).
const LANES_MAX: usize = 8;

/// Number of reads in flight of an engine that reads in place of another rank.
pub(super) const REREAD_DEPTH: usize = 16;

/// Files of one file system.
#[derive(Debug)]
pub(super) struct FileGroup {
    files: Arc<[ReadFile]>,
}

/// Opens the shards that are files.
pub(super) fn open(opening: &Opening, _is_alone: bool) -> Result<Vec<OpenedGroup>> {
    let opened = opening.open_each(
        |source| source.as_file(),
        |file, wanted| open_file(file, wanted, opening),
    )?;
    let groups = grouped(opened, share_device).into_iter();
    let group = |(sources, files)| OpenedGroup {
        sources,
        group: Arc::new(FileGroup::new(files)),
    };
    Ok(groups.map(group).collect())
}

fn open_file(
    file: &FileSource,
    wanted: &[Range<u64>],
    Opening {
        options, refused, ..
    }: &Opening,
) -> Result<ReadFile> {
    let retries = options
        .retries
        .map_or_else(|| file.retries(), Retries::up_to);
    let mut file = ReadFile::open_with(file.clone(), options.cache, refused, retries, wanted)?;
    if options.cache == CacheMode::Map {
        file.map(options.writable)?;
    }
    Ok(file)
}

/// Returns whether both files share limits.
pub(super) fn share_device(one: &ReadFile, other: &ReadFile) -> bool {
    one.source().identity().device == other.source().identity().device
}

impl FileGroup {
    pub(super) fn new(files: Vec<ReadFile>) -> Self {
        Self {
            files: files.into(),
        }
    }

    /// Returns the limits of reads with `hints`, by threads that copy if there are `copiers`.
    pub(super) fn limits_by(
        &self,
        hints: impl Iterator<Item = ReadHints>,
        copiers: Option<usize>,
        request: &LimitsRequest<'_>,
    ) -> Limits {
        let is_shallow = !request.is_deep && !self.files.iter().any(ReadFile::is_far);
        let shallow = |hints: ReadHints| if is_shallow { hints.shallow() } else { hints };
        let hints = ReadHints::greatest(hints.map(shallow));
        let hints = match copiers {
            Some(copiers) => hints.copied_by(copiers, request.window, request.options.trial.ring),
            None => hints,
        };
        Limits::for_files(request.options, &hints, request.window)
    }

    /// Returns the engine for the files, and how many lanes it has. `checks`: lanes compare or
    /// scatter what is read.
    pub(super) fn lanes_by(
        &self,
        copiers: Option<usize>,
        checks: bool,
        context: &LaneContext<'_>,
    ) -> (FileEngine, LaneCount) {
        let options = context.options;
        let (kind, reason) = engine::choose(options.engine, &self.files, copiers);
        let engine = FileEngine {
            setup: EngineSetup {
                copiers,
                strip_bytes: copiers.and(options.trial.chunk.and_then(|it| it.try_into().ok())),
                yields: copiers.is_some() && options.trial.nice,
                slab: context.slab.cloned(),
                ..EngineSetup::new(Arc::clone(&self.files), context.depth())
            },
            kind,
            is_required: options.engine != EngineChoice::Auto,
            reason,
        };
        let fixed = options.lanes.map(LaneCount::fixed);
        // More lanes would not help if threads copy for a GPU: there are already as many as pay.
        let checks = checks && copiers.is_none();
        let count = fixed.unwrap_or_else(|| lanes_for(kind, &self.files, checks));
        (engine, count)
    }

    /// Returns the number of threads that copy the files for GPUs, if that is the best way to read
    /// them. If bytes of the page cache are verified, it is not: lanes do that, so there should be
    /// several. Their number is `fixed`, if it is set.
    fn copiers(&self, options: &LoadOptions, gpus: usize, fixed: Option<usize>) -> Option<usize> {
        let in_memory = |file: &ReadFile| file.source().file_system().in_memory;
        let by_threads = matches!(options.engine, EngineChoice::Auto | EngineChoice::Pread);
        let by_one_lane = options.verify == Verify::Off || self.files.iter().all(in_memory);
        (by_threads && by_one_lane)
            .then(|| engine::copiers(&self.files, gpus, options.trial.nice))
            .flatten()
            .map(|copiers| fixed.unwrap_or(copiers))
    }

    /// Opens an engine for single reads, which must be the requested one if it `is_required`.
    pub(super) fn open_single(
        &self,
        options: &LoadOptions,
        is_required: bool,
    ) -> Result<OpenedEngine> {
        let (kind, _) = engine::choose(options.engine, &self.files, None);
        let setup = EngineSetup::new(Arc::clone(&self.files), REREAD_DEPTH);
        engine::open(kind, is_required, &setup)
    }
}

impl SourceGroup for FileGroup {
    fn name(&self) -> String {
        self.files.first().map_or_else(String::new, |file| {
            let FileSystem { name, device, .. } = file.source().file_system();
            format!("{name} ({}:{})", device.0, device.1)
        })
    }

    fn count(&self) -> usize {
        self.files.len()
    }

    fn location(&self, index: usize) -> String {
        self.files[index].source().location().to_string()
    }

    fn hints(&self, index: usize) -> ReadHints {
        self.files[index].hints()
    }

    fn limits(&self, request: &LimitsRequest<'_>) -> Limits {
        let copiers = self.copiers(request.options, request.gpus, request.copiers);
        self.limits_by(self.files.iter().map(ReadFile::hints), copiers, request)
    }

    fn lanes(&self, context: &LaneContext<'_>, _needed_bytes: u64) -> GroupLanes {
        let copiers = self.copiers(context.options, context.gpus, context.copiers);
        let checks = context.options.verify != Verify::Off || context.scatters;
        let (engine, count) = self.lanes_by(copiers, checks, context);
        GroupLanes {
            engine: Arc::new(engine),
            count,
        }
    }

    fn files(&self) -> &[ReadFile] {
        &self.files
    }

    fn is_divisible(&self) -> bool {
        true
    }

    fn is_watched(&self) -> bool {
        true
    }

    fn verify_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(ReadFile::verify_unchanged)
    }

    fn retry_counters(&self) -> Vec<&RetryCounter> {
        let files = self.files.iter();
        files.map(|file| file.source().retry_counter()).collect()
    }
}

impl StorageGroup for FileGroup {
    fn open_engine(
        &self,
        options: &LoadOptions,
        _cancel: &Arc<CancelFlag>,
    ) -> Result<Box<dyn Engine>> {
        // The load tells engines for files itself when it is cancelled.
        let is_required = options.engine != EngineChoice::Auto;
        Ok(self.open_single(options, is_required)?.engine)
    }
}

/// Engine for files.
#[derive(Debug)]
pub(super) struct FileEngine {
    setup: EngineSetup,
    kind: EngineKind,
    /// A refused ring is an error.
    pub(super) is_required: bool,
    /// Reason for this kind.
    reason: String,
}

impl OpenEngine for FileEngine {
    fn open(&self, lanes: usize) -> Result<OpenedEngine> {
        let setup = EngineSetup {
            lanes,
            ..self.setup.clone()
        };
        engine::open(self.kind, self.is_required, &setup)
    }

    fn reason(&self) -> String {
        self.reason.clone()
    }
}

/// Returns the number of lanes of an engine for files. A ring copies pages of the page cache on the
/// submitting thread, so cached files begin with a lane for each core; other files with one lane,
/// which waits for storage most of the time. Engines with their own threads need only one, unless
/// lanes compare or scatter what is read: that may take longer than the copies of these threads.
fn lanes_for(kind: EngineKind, files: &[ReadFile], checks: bool) -> LaneCount {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = cores.min(LANES_MAX);
    match kind {
        EngineKind::Uring | EngineKind::TokioUring if engine::are_copied(files) => {
            LaneCount::fixed(most)
        }
        EngineKind::Uring | EngineKind::TokioUring => LaneCount::up_to(1, most),
        EngineKind::Pread | EngineKind::Map if checks => LaneCount::up_to(1, most),
        EngineKind::Pread | EngineKind::Map => LaneCount::fixed(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_check_bytes_become_several() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most = cores.min(LANES_MAX);
        for kind in [EngineKind::Pread, EngineKind::Map] {
            let lanes = [false, true].map(|checks| lanes_for(kind, &[], checks));
            assert_eq!(lanes.each_ref().map(LaneCount::wanted), [1, 1]);
            assert_eq!(lanes.each_ref().map(LaneCount::most), [1, most]);
        }
    }
}
