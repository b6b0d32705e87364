//! Objects that the cache has most bytes of: an engine for files reads the cache's files of them,
//! and requests fetch the rest.

use std::ops::Range;
use std::sync::Arc;

use super::files::{FileEngine, FileGroup, REREAD_DEPTH};
use super::limits::Limits;
use super::objects::ObjectGroup;
use super::opening::Opening;
use super::{
    GroupLanes, LaneContext, LimitsRequest, OpenEngine, RemoteReports, SourceGroup, StorageGroup,
};
use crate::engine::{self, Engine, ObjectSetup, OpenedEngine};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::storage::{ObjectSource, ReadFile, ReadHints, TILE_BYTES};
use crate::sync::cancel::CancelFlag;
use crate::sync::retry::Retries;
use crate::sync::retry_counter::RetryCounter;
use crate::sync::timeline::Timeline;

/// Objects, and the cache's files of them, on one file system.
#[derive(Debug)]
pub(super) struct CachedGroup {
    /// By object.
    files: FileGroup,
    objects: ObjectGroup,
}

/// Opens the cache's file of an object, if it has most of the wanted bytes. If the file cannot be
/// opened, the bytes come from the store.
pub(super) fn open(
    object: &ObjectSource,
    wanted: &[Range<u64>],
    Opening {
        options, refused, ..
    }: &Opening,
) -> Option<ReadFile> {
    let file = object.cached_file(wanted)?;
    ReadFile::open_with(file, options.cache, refused, Retries::NONE, wanted).ok()
}

impl CachedGroup {
    /// Creates a group of `objects`, whose files in the cache are `files`.
    pub(super) fn new(files: Vec<ReadFile>, objects: ObjectGroup) -> Self {
        Self {
            files: FileGroup::new(files),
            objects,
        }
    }
}

impl SourceGroup for CachedGroup {
    fn name(&self) -> String {
        format!("cache on {}", self.files.name())
    }

    fn count(&self) -> usize {
        self.objects.count()
    }

    fn location(&self, index: usize) -> String {
        self.objects.location(index)
    }

    fn hints(&self, index: usize) -> ReadHints {
        let file = &self.files.files()[index];
        ReadHints {
            alignment: file.alignment().max(TILE_BYTES),
            ..file.hints()
        }
    }

    fn limits(&self, request: &LimitsRequest<'_>) -> Limits {
        let hints = (0..self.count()).map(|index| self.hints(index));
        self.files.limits_by(hints, None, request)
    }

    fn lanes(&self, context: &LaneContext<'_>, _needed_bytes: u64) -> GroupLanes {
        // Lanes verify cached bytes, so no copying threads are used.
        let (mut files, count) = self.files.lanes_by(None, true, context);
        // The caller requires an engine for files only: objects need no ring.
        files.is_required = false;
        let (depth, options) = (context.depth(), context.options);
        let store = (self.objects).occasional_requests(depth, options, context.cancel);
        GroupLanes {
            engine: Arc::new(CachedEngine { files, store }),
            count,
        }
    }

    fn files(&self) -> &[ReadFile] {
        self.files.files()
    }

    /// Checks the objects only. Other processes may write to files of the cache, and each tile of
    /// them has been verified.
    fn verify_unchanged(&self) -> Result<()> {
        self.objects.verify_unchanged()
    }

    fn retry_counters(&self) -> Vec<&RetryCounter> {
        self.objects.retry_counters()
    }

    fn timelines(&self) -> Vec<&Timeline> {
        self.objects.timelines()
    }

    fn remote_reports(&self) -> Option<RemoteReports> {
        self.objects.remote_reports()
    }

    fn notes(&self) -> Vec<String> {
        self.objects.notes()
    }

    fn blame(&self, mismatch: Error) -> Error {
        self.objects.blame(mismatch)
    }
}

impl StorageGroup for CachedGroup {
    fn open_engine(
        &self,
        options: &LoadOptions,
        cancel: &Arc<CancelFlag>,
    ) -> Result<Box<dyn Engine>> {
        let files = self.files.open_single(options, false)?;
        let store = self
            .objects
            .occasional_requests(REREAD_DEPTH, options, cancel);
        Ok(engine::open_cached(files, &store).engine)
    }
}

/// Engine for files of the cache, in front of one for requests.
#[derive(Debug)]
struct CachedEngine {
    files: FileEngine,
    store: Arc<ObjectSetup>,
}

impl OpenEngine for CachedEngine {
    fn open(&self, lanes: usize) -> Result<OpenedEngine> {
        let files = self.files.open(lanes)?;
        Ok(engine::open_cached(files, &self.store))
    }

    fn reason(&self) -> String {
        self.files.reason()
    }
}
