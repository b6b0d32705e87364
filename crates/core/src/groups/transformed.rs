//! Sources that are stored in another form: groups of the stored ones, with an engine in front that
//! computes.

use std::fmt;
use std::sync::Arc;

use super::files::REREAD_DEPTH;
use super::limits::Limits;
use super::opening::{OpenedGroup, Opening};
use super::{
    GroupLanes, LaneContext, LimitsRequest, OpenEngine, RemoteReports, SourceGroup, StorageGroup,
    WantedShard, files, objects,
};
use crate::engine::{Engine, OpenedEngine, TransformEngine, TransformSetup, TransformSource};
use crate::error::{Error, Result};
use crate::memory::{Slab, Transform};
use crate::options::{CacheMode, LoadOptions};
use crate::schedule::LaneCount;
use crate::storage::{ReadHints, RefusedDirect, Source};
use crate::sync::cancel::CancelFlag;
use crate::sync::event_count::EventCount;
use crate::sync::retry_counter::RetryCounter;
use crate::sync::timeline::Timeline;
use tload_transform::stored;

/// Largest part of the memory limit that holds what is stored, on its way: one of so many.
const MEMORY_SHARE: u64 = 4;

/// Most memory that holds what is stored, bytes: as much as disks and stores have in flight. (An
/// estimate of 2026-11.)
const STAGED_BYTES_MAX: u64 = 64 << 20;

/// Stored bytes of a read: as long as the extents of disks and stores. (An estimate of 2026-11.)
const READ_BYTES: u64 = 4 << 20;

/// Most threads that compute: each opens some GB/s, more than a lane takes. (An estimate of
/// 2026-11.)
const THREADS_MAX: usize = 8;

/// Group of sources that are computed from those of another one.
struct TransformedGroup {
    stored: Arc<dyn StorageGroup>,
    sources: Arc<[TransformSource]>,
    /// Length of the longest read of what is stored, bytes.
    slot_bytes: usize,
}

/// Opens the shards that are stored in another form.
pub(super) fn open(opening: &Opening, is_alone: bool) -> Result<Vec<OpenedGroup>> {
    let mut numbers = Vec::new();
    let mut transforms: Vec<Arc<dyn Transform>> = Vec::new();
    let mut shards = Vec::new();
    for (number, shard) in opening.shards.iter().enumerate() {
        let Some((source, transform)) = shard.source.stored() else {
            continue;
        };
        refuse_views(&**source, &opening.options)?;
        let units = shard.ranges.iter().map(|range| transform.units(range));
        let units = units.filter(|units| !units.is_empty());
        shards.push(WantedShard {
            source: Arc::clone(source),
            ranges: units.map(|units| stored(&**transform, &units)).collect(),
        });
        numbers.push(number);
        transforms.push(Arc::clone(transform));
    }
    let inner = Opening {
        shards,
        options: opening.options.clone(),
        refused: RefusedDirect::default(),
        pending: opening.pending.clone(),
    };
    let mut groups = files::open(&inner, is_alone)?;
    groups.extend(objects::open(&inner, is_alone)?);
    let groups = groups.into_iter().map(|OpenedGroup { sources, group }| {
        let members = sources.iter().enumerate();
        let members = members.map(|(index, source)| TransformSource {
            transform: Arc::clone(&transforms[*source]),
            alignment: group.hints(index).alignment,
        });
        OpenedGroup {
            group: Arc::new(TransformedGroup::new(Arc::clone(&group), members.collect())),
            sources: sources.iter().map(|source| numbers[*source]).collect(),
        }
    });
    Ok(groups.collect())
}

fn refuse_views(source: &dyn Source, options: &LoadOptions) -> Result<()> {
    if options.cache != CacheMode::Map {
        return Ok(());
    }
    let message = "‹cache=map› maps files, and this one is encrypted";
    Err(Error::unsupported(message)
        .with_location(source.location())
        .with_hint("use ‹cache=auto›"))
}

impl TransformedGroup {
    fn new(stored: Arc<dyn StorageGroup>, sources: Arc<[TransformSource]>) -> Self {
        let slot_bytes = |source: &TransformSource| {
            let read = READ_BYTES.max(source.transform.unit_bytes_max());
            usize::try_from(read + 2 * source.alignment).expect("a unit fits in memory")
        };
        Self {
            slot_bytes: sources.iter().map(slot_bytes).max().unwrap_or(1),
            stored,
            sources,
        }
    }

    /// Returns the configuration of an engine for `depth` jobs, which stages at most so many bytes.
    fn setup(&self, depth: usize, staged_bytes: u64) -> Result<Arc<TransformSetup>> {
        let slots = staged_bytes / self.slot_bytes as u64;
        let events = Arc::<EventCount>::default();
        let slots = usize::try_from(slots).unwrap_or(usize::MAX).max(2);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let group = Arc::clone(&self.stored);
        Ok(Arc::new(TransformSetup {
            sources: Arc::clone(&self.sources),
            read_bytes: READ_BYTES,
            slab: Slab::new(self.slot_bytes, slots, Arc::clone(&events))?,
            events,
            depth,
            threads: threads.min(THREADS_MAX),
            blame: Box::new(move |error| group.blame(error)),
        }))
    }
}

impl SourceGroup for TransformedGroup {
    fn name(&self) -> String {
        self.stored.name()
    }

    fn count(&self) -> usize {
        self.stored.count()
    }

    fn location(&self, index: usize) -> String {
        self.stored.location(index)
    }

    fn hints(&self, index: usize) -> ReadHints {
        ReadHints {
            // Bytes are computed to any address.
            alignment: 1,
            ..self.stored.hints(index)
        }
    }

    fn limits(&self, request: &LimitsRequest<'_>) -> Limits {
        self.stored.limits(request)
    }

    fn lanes(&self, context: &LaneContext<'_>, needed_bytes: u64) -> GroupLanes {
        let most = context.options.memory_limit.map(|most| most / MEMORY_SHARE);
        let staged = most.map_or(STAGED_BYTES_MAX, |most| most.min(STAGED_BYTES_MAX));
        let setup = self.setup(context.depth(), staged);
        let lanes = self.stored.lanes(
            &LaneContext {
                // Threads behind the engine have what the others would be for.
                gpus: 0,
                copiers: None,
                scatters: false,
                slab: setup.as_ref().ok().map(|setup| &setup.slab),
                ..*context
            },
            needed_bytes,
        );
        GroupLanes {
            engine: Arc::new(TransformOpener {
                stored: lanes.engine,
                setup,
            }),
            // Jobs of one engine share the units in which they meet.
            count: LaneCount::fixed(1),
        }
    }

    fn reads_in_file_order(&self) -> bool {
        self.stored.reads_in_file_order()
    }

    fn is_watched(&self) -> bool {
        self.stored.is_watched()
    }

    fn verify_unchanged(&self) -> Result<()> {
        self.stored.verify_unchanged()
    }

    fn retry_counters(&self) -> Vec<&RetryCounter> {
        self.stored.retry_counters()
    }

    fn timelines(&self) -> Vec<&Timeline> {
        self.stored.timelines()
    }

    fn remote_reports(&self) -> Option<RemoteReports> {
        self.stored.remote_reports()
    }

    fn notes(&self) -> Vec<String> {
        self.stored.notes()
    }
}

impl StorageGroup for TransformedGroup {
    fn open_engine(
        &self,
        options: &LoadOptions,
        cancel: &Arc<CancelFlag>,
    ) -> Result<Box<dyn Engine>> {
        let storage = self.stored.open_engine(options, cancel)?;
        let setup = self.setup(REREAD_DEPTH, STAGED_BYTES_MAX / MEMORY_SHARE)?;
        Ok(Box::new(TransformEngine::new(storage, &setup)))
    }
}

impl fmt::Debug for TransformedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransformedGroup")
            .field("stored", &self.stored)
            .finish_non_exhaustive()
    }
}

/// Opens an engine that computes, in front of that for what is stored.
#[derive(Debug)]
struct TransformOpener {
    stored: Arc<dyn OpenEngine>,
    setup: Result<Arc<TransformSetup>>,
}

impl OpenEngine for TransformOpener {
    fn open(&self, _lanes: usize) -> Result<OpenedEngine> {
        let setup = self.setup.as_ref().map_err(Error::again)?;
        let mut opened = self.stored.open(1)?;
        opened
            .features
            .push(format!("decrypted by {} threads", setup.threads));
        opened.engine = Box::new(TransformEngine::new(opened.engine, setup));
        Ok(opened)
    }

    fn reason(&self) -> String {
        self.stored.reason()
    }
}
