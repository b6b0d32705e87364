//! Part of a load that the leader of the node reads, and reads in its place: those of a rank for
//! which the leader does not keep a region, or that has lost the leader.

use std::sync::Arc;

use super::groups::{Group, SharedRegions, Sources};
use crate::checkpoint::Checkpoint;
use crate::engine::{self, Engine, EngineSetup, OpenStorage, StorageEngines};
use crate::error::Result;
use crate::options::Options;
use crate::ranks::link::{Joining, Link};
use crate::ranks::messages::{RankPlan, RegionOrigin};
#[cfg(feature = "object")]
use crate::storage::ObjectSource;
use crate::storage::ReadFile;
use crate::sync::cancel::CancelFlag;
#[cfg(feature = "object")]
use crate::sync::retry::Retries;

/// Number of reads in flight of each engine.
const DEPTH: usize = 16;

/// Shared part of a rank's load, before it begins.
pub(crate) struct Shares {
    pub(crate) plan: RankPlan,
    pub(crate) joining: Joining,
}

/// Part of a load that the leader of the node reads.
pub(crate) struct SharedSources {
    pub(crate) link: Arc<Link>,
    pub(crate) regions: Arc<SharedRegions>,
    /// All regions of the node's plan.
    pub(crate) origins: Vec<RegionOrigin>,
    /// First source that is a shared region.
    pub(crate) first_source: usize,
    pub(crate) checkpoint: Checkpoint,
}

impl SharedSources {
    /// Returns the region of the node that a source is, if it is one.
    pub(crate) fn region(&self, source: usize) -> Option<usize> {
        let index = source.checked_sub(self.first_source)?;
        self.regions.regions.get(index).copied()
    }
}

/// Returns the function that opens the files of `regions` and the engines that read them.
pub(crate) fn open_storage(
    checkpoint: &Checkpoint,
    regions: &[RegionOrigin],
    options: &Options,
    cancel: &Arc<CancelFlag>,
) -> Box<OpenStorage> {
    let (checkpoint, options) = (checkpoint.clone(), options.clone());
    let (regions, cancel) = (regions.to_vec(), Arc::clone(cancel));
    Box::new(move || open(&checkpoint, &regions, &options, &cancel))
}

fn open(
    checkpoint: &Checkpoint,
    regions: &[RegionOrigin],
    options: &Options,
    cancel: &Arc<CancelFlag>,
) -> Result<StorageEngines> {
    // Engines for files are told by the load.
    let _ = cancel;
    let mut source_of = vec![None; checkpoint.shards().len()];
    let mut shards = Vec::new();
    for region in regions {
        let source = *source_of[region.shard].get_or_insert_with(|| {
            let source = checkpoint.shards()[region.shard].source();
            shards.push((source.clone(), Vec::new()));
            shards.len() - 1
        });
        let end = region.offset + region.len as u64;
        shards[source].1.push(region.offset..end);
    }
    let sources = Sources::open(shards, options)?;
    let engines = sources.groups().iter().map(|group| match group {
        Group::Files(files) => engine_for_files(files, DEPTH, options),
        #[cfg(feature = "object")]
        Group::Objects(objects) => Ok(engine_for_objects(objects, DEPTH, options, cancel)),
        Group::Shared(_) => unreachable!("opened from files and objects"),
    });
    let engines = engines.collect::<Result<_>>()?;
    let place = |region: &RegionOrigin| {
        let source = source_of[region.shard].expect("opened above");
        let member = sources.members()[source];
        (member.group, member.index, region.offset)
    };
    Ok(StorageEngines {
        engines,
        places: regions.iter().map(place).collect(),
    })
}

/// Opens an engine for files, for reads of a rank's own in place of the leader's.
fn engine_for_files(
    files: &Arc<[ReadFile]>,
    depth: usize,
    options: &Options,
) -> Result<Box<dyn Engine>> {
    let (kind, _) = engine::choose(options.engine, files);
    let setup = EngineSetup {
        files: Arc::clone(files),
        depth,
        slab: None,
    };
    Ok(engine::open(kind, options.engine, &setup)?.engine)
}

/// Opens an engine for objects, for reads of a rank's own in place of the leader's.
#[cfg(feature = "object")]
fn engine_for_objects(
    objects: &Arc<[ObjectSource]>,
    depth: usize,
    options: &Options,
    cancel: &Arc<CancelFlag>,
) -> Box<dyn Engine> {
    let hints = objects[0].hints();
    let setup = engine::ObjectSetup {
        objects: Arc::clone(objects),
        connections: options.depth.unwrap_or(hints.depth),
        in_flight_bytes: None,
        request_bytes: options.extent_bytes.unwrap_or(hints.request_bytes),
        // Unknown: the leader may have read most of them.
        total_bytes: hints.in_flight_bytes,
        retries: options.retries.map(Retries::up_to),
        hedge: options.hedge.unwrap_or(true),
        depth,
        cancel: Arc::clone(cancel),
    };
    engine::open_objects(&Arc::new(setup)).engine
}
