//! Objects of one store, read by requests. The checkpoint's threads run these, so one lane is
//! enough.

use std::sync::Arc;

use super::cached::{self, CachedGroup};
use super::files::{REREAD_DEPTH, share_device};
use super::limits::Limits;
use super::opening::{OPENED_AT_A_TIME, OpenedGroup, Opening, grouped};
use super::{
    GroupLanes, LaneContext, LimitsRequest, OpenEngine, RemoteReports, SourceGroup, StorageGroup,
};
use crate::engine::{self, Engine, ObjectSetup, OpenedEngine};
use crate::error::{Error, Result};
use crate::options::{CacheMode, LoadOptions};
use crate::schedule::{Depth, InFlight, LaneCount};
use crate::storage::{ObjectSource, ReadFile, ReadHints, Source, unversioned_note};
use crate::sync::cancel::CancelFlag;
use crate::sync::parallel::parallel_map;
use crate::sync::retry::Retries;
use crate::sync::retry_counter::RetryCounter;
use crate::sync::timeline::Timeline;

/// Maximum number of jobs that an object engine takes at a time. Neighbours share a request, so
/// there are more jobs than requests.
const JOBS_MAX: usize = 4096;

/// Objects of one store.
#[derive(Debug)]
pub(super) struct ObjectGroup {
    objects: Arc<[ObjectSource]>,
    notes: Vec<String>,
}

/// Object that is opened for a load.
struct OpenedObject {
    /// The cache's file of it, if that has most of the wanted bytes.
    file: Option<ReadFile>,
    object: ObjectSource,
}

/// Opens the shards that are objects.
pub(super) fn open(opening: &Opening, is_alone: bool) -> Result<Vec<OpenedGroup>> {
    let opened = opening.open_each(
        |source| source.as_object(),
        |object, wanted| {
            refuse_views(object, &opening.options)?;
            let file = || cached::open(object, wanted, opening);
            Ok(OpenedObject {
                // Other ranks may arrange the tiles of the cache's file.
                file: is_alone.then(file).flatten(),
                object: object.for_load(),
            })
        },
    )?;
    // One note covers the objects of all groups, and the first group reports it.
    let mut note = unversioned_note(opened.iter().map(|(_, opened)| &opened.object));
    let groups = grouped(opened, OpenedObject::is_beside).into_iter();
    let group = |(sources, opened): (Vec<usize>, Vec<OpenedObject>)| {
        let (mut files, mut objects) = (Vec::new(), Vec::new());
        for OpenedObject { file, object } in opened {
            files.extend(file);
            objects.push(object);
        }
        let objects = ObjectGroup {
            objects: objects.into(),
            notes: note.take().into_iter().collect(),
        };
        let group: Arc<dyn StorageGroup> = if files.is_empty() {
            Arc::new(objects)
        } else {
            Arc::new(CachedGroup::new(files, objects))
        };
        OpenedGroup { sources, group }
    };
    Ok(groups.map(group).collect())
}

fn refuse_views(object: &ObjectSource, options: &LoadOptions) -> Result<()> {
    if options.cache != CacheMode::Map {
        return Ok(());
    }
    let message = "‹cache=map› maps files, and this is an object in a store";
    Err(Error::unsupported(message)
        .with_location(object.location())
        .with_hint("use ‹cache=auto›, or copy the checkpoint to a disk first"))
}

impl OpenedObject {
    /// Returns whether both share limits.
    fn is_beside(&self, other: &Self) -> bool {
        match (&self.file, &other.file) {
            (Some(one), Some(other)) => share_device(one, other),
            (None, None) => self.object.shares_store(&other.object),
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl ObjectGroup {
    /// Returns the configuration of an engine for objects that another engine reads, except for
    /// some bytes.
    pub(super) fn occasional_requests(
        &self,
        depth: usize,
        options: &LoadOptions,
        cancel: &Arc<CancelFlag>,
    ) -> Arc<ObjectSetup> {
        let hints = self.objects[0].hints();
        Arc::new(ObjectSetup {
            objects: Arc::clone(&self.objects),
            connections: options.depth.unwrap_or(hints.depth),
            in_flight_bytes: None,
            request_bytes: options.extent_bytes.unwrap_or(hints.request_bytes),
            // The total is unknown, because most bytes come from the leader.
            total_bytes: hints.in_flight_bytes,
            retries: options.retries.map(Retries::up_to),
            hedge: options.hedge.unwrap_or(true),
            depth,
            arrived: Arc::default(),
            cancel: Arc::clone(cancel),
        })
    }
}

impl SourceGroup for ObjectGroup {
    fn name(&self) -> String {
        let first = self.objects.first();
        let url = first.and_then(|object| object.location().remote());
        url.map_or_else(String::new, |url| url.scheme.clone())
    }

    fn count(&self) -> usize {
        self.objects.len()
    }

    fn location(&self, index: usize) -> String {
        self.objects[index].location().to_string()
    }

    fn hints(&self, index: usize) -> ReadHints {
        self.objects[index].hints()
    }

    fn limits(&self, request: &LimitsRequest<'_>) -> Limits {
        let hints = ReadHints::greatest(self.objects.iter().map(ObjectSource::hints));
        limits(request.options, &hints, request.window)
    }

    fn lanes(&self, context: &LaneContext<'_>, needed_bytes: u64) -> GroupLanes {
        let LaneContext {
            options, limits, ..
        } = context;
        let setup = ObjectSetup {
            objects: Arc::clone(&self.objects),
            connections: limits.reads,
            in_flight_bytes: (!limits.depth.is_fixed()).then_some(limits.depth.start().bytes),
            request_bytes: limits.request_bytes,
            total_bytes: needed_bytes,
            retries: options.retries.map(Retries::up_to),
            hedge: options.hedge.unwrap_or(true),
            depth: context.depth(),
            arrived: Arc::clone(context.arrived),
            cancel: Arc::clone(context.cancel),
        };
        GroupLanes {
            engine: Arc::new(RequestEngine(Arc::new(setup))),
            count: LaneCount::fixed(1),
        }
    }

    fn verify_unchanged(&self) -> Result<()> {
        let verify = |object: &ObjectSource| object.verify_unchanged();
        let verified = parallel_map(&self.objects, OPENED_AT_A_TIME, verify);
        verified.into_iter().collect()
    }

    fn retry_counters(&self) -> Vec<&RetryCounter> {
        let remotes = self.objects.iter().map(ObjectSource::remote);
        remotes.map(|remote| remote.retry_counter()).collect()
    }

    fn timelines(&self) -> Vec<&Timeline> {
        let remotes = self.objects.iter().map(ObjectSource::remote);
        remotes.map(|remote| remote.timeline()).collect()
    }

    fn remote_reports(&self) -> Option<RemoteReports> {
        let remote = self.objects.first()?.remote();
        Some(RemoteReports {
            cache: remote.cache_report(),
            mirrors: remote.mirror_reports(),
        })
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn blame(&self, mismatch: Error) -> Error {
        let Some(range) = mismatch.range() else {
            return mismatch;
        };
        let objects = self.objects.iter();
        let wrong: Vec<_> = objects
            .filter(|it| mismatch.is_about(it.location()))
            .collect();
        let distrust = |error, object: &ObjectSource| object.distrust(&range, error);
        wrong.into_iter().fold(mismatch, distrust)
    }
}

impl StorageGroup for ObjectGroup {
    fn open_engine(
        &self,
        options: &LoadOptions,
        cancel: &Arc<CancelFlag>,
    ) -> Result<Box<dyn Engine>> {
        let setup = self.occasional_requests(REREAD_DEPTH, options, cancel);
        Ok(engine::open_objects(&setup).engine)
    }
}

/// Engine for requests.
#[derive(Debug)]
struct RequestEngine(Arc<ObjectSetup>);

impl OpenEngine for RequestEngine {
    fn open(&self, _lanes: usize) -> Result<OpenedEngine> {
        Ok(engine::open_objects(&self.0))
    }

    fn reason(&self) -> String {
        "for object stores".to_owned()
    }
}

/// Returns the limits of a group of objects. `window` is the length of its longest extent, in
/// bytes.
fn limits(options: &LoadOptions, hints: &ReadHints, window: usize) -> Limits {
    let reads = options.depth.unwrap_or(hints.depth);
    let request_bytes = options.extent_bytes.unwrap_or(hints.request_bytes);
    // The hints' bytes per request, scaled to the requested size; at least one extent for each
    // request.
    let each = hints.in_flight_bytes * request_bytes / (hints.depth as u64 * hints.request_bytes);
    let bytes_of = |reads: u64| (each * reads).max(window as u64 * (reads + 1));
    let start = InFlight {
        jobs: JOBS_MAX,
        bytes: bytes_of(reads as u64),
    };
    let depth = match (options.depth, options.in_flight_bytes) {
        (None, None) => {
            let most = hints.in_flight_bytes_max * reads as u64 / hints.in_flight_bytes;
            let most = InFlight {
                bytes: bytes_of(most),
                ..start
            };
            // Start with a quarter of the requests, which costs nothing if a single request
            // saturates the network.
            Depth::adaptive(start, start.bytes / 4, most)
        }
        (_, bytes) => Depth::fixed(JOBS_MAX, bytes.unwrap_or(start.bytes)),
    };
    Limits {
        depth: depth.with_stride(request_bytes),
        reads,
        request_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_scale_with_request_size() {
        let hints = ReadHints {
            extent_bytes: 4 << 20,
            request_bytes: 4 << 20,
            alignment: 4096,
            gap_bytes: 0,
            depth: 8,
            in_flight_bytes: 32 << 20,
            in_flight_bytes_max: 128 << 20,
        };
        let limits = |extent_bytes| {
            let mut options = LoadOptions::new();
            options.extent_bytes = extent_bytes;
            limits(&options, &hints, 1 << 20)
        };
        let (default, half) = (limits(None), limits(Some(2 << 20)));
        assert_eq!(default.depth.start().bytes, 32 << 20);
        assert_eq!(half.depth.start().bytes, 16 << 20);
        assert_eq!((half.reads, half.request_bytes), (8, 2 << 20));
    }
}
