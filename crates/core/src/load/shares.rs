//! The part of a rank's load that its leader reads, and the rank's own reads when the leader is
//! lost or has dropped a region.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::destinations::{Destination, Destinations};
use super::groups::{Group, SharedRegions, Sources};
use crate::checkpoint::Checkpoint;
use crate::engine::{
    self, Engine, EngineSetup, RemoteSetup, RemoteSource, RereadSetup, StorageEngines,
};
use crate::error::Result;
use crate::options::Options;
use crate::plan::{Plan, RegionPlan};
use crate::ranks::link::{Joining, Link};
use crate::ranks::messages::{RankPlan, RegionOrigin};
use crate::ranks::peers::Peers;
#[cfg(feature = "object")]
use crate::storage::ObjectSource;
use crate::storage::ReadFile;
use crate::sync::cancel::CancelFlag;
#[cfg(feature = "object")]
use crate::sync::retry::Retries;
use crate::tensor::TensorInfo;
use crate::verify::Verify;

/// Number of reads in flight of each engine.
const DEPTH: usize = 16;

/// Shared part of a rank's load, before it begins.
pub(crate) struct Shares {
    pub(crate) plan: RankPlan,
    pub(crate) joining: Joining,
    /// Bytes that the rank reads in place of the leader.
    pub(crate) reread_bytes: Arc<AtomicU64>,
}

/// Part of a load that others read, before it begins.
pub(crate) enum Others {
    /// The leader of the node.
    Leader(Shares),
    /// Leaders of other nodes, for this one.
    Nodes(RemoteShares),
}

impl Others {
    /// Returns what the leader of the node reads, and what other nodes do.
    pub(super) fn split(others: Option<Self>) -> (Option<Shares>, Option<RemoteShares>) {
        match others {
            None => (None, None),
            Some(Self::Leader(shares)) => (Some(shares), None),
            Some(Self::Nodes(remote)) => (None, Some(remote)),
        }
    }
}

/// Part of a leader's reads that other nodes make.
pub(crate) struct RemoteShares {
    pub(crate) peers: Arc<Peers>,
    /// By tensor: the rank that leads the node which reads it; `None` if this node reads it.
    pub(crate) owners: Vec<Option<usize>>,
    /// Bytes that are read in place of other nodes.
    pub(crate) reread_bytes: Arc<AtomicU64>,
    pub(crate) checkpoint: Checkpoint,
}

impl RemoteShares {
    /// Returns the sources that stand for bytes of other nodes, and the source of each tensor.
    pub(crate) fn sources(
        &self,
        tensors: &[TensorInfo],
    ) -> (Vec<RemoteSource>, Vec<Option<usize>>) {
        let mut sources: Vec<RemoteSource> = Vec::new();
        let mut numbers = HashMap::new();
        let source = |(tensor, owner): (&TensorInfo, &Option<usize>)| {
            let owner = (*owner)?;
            let shard = tensor.shard();
            let number = *numbers.entry((owner, shard)).or_insert_with(|| {
                sources.push(RemoteSource {
                    owner,
                    shard,
                    end: 0,
                });
                sources.len() - 1
            });
            let source = &mut sources[number];
            source.end = source.end.max(tensor.file_range().end);
            Some(number)
        };
        let by_tensor = tensors.iter().zip(&self.owners).map(source).collect();
        (sources, by_tensor)
    }

    /// Returns the configuration of the engine that receives `sources`.
    pub(crate) fn setup(
        &self,
        sources: &[RemoteSource],
        plan: &Arc<Plan>,
        depth: usize,
        options: &Options,
        cancel: &Arc<CancelFlag>,
    ) -> RemoteSetup {
        let origin = |source: &RemoteSource| RegionOrigin {
            shard: source.shard,
            offset: 0,
            len: usize::try_from(source.end).unwrap_or(usize::MAX),
            filled_bytes: 0,
        };
        let origins: Vec<_> = sources.iter().map(origin).collect();
        RemoteSetup {
            plan: Arc::clone(plan),
            peers: Arc::clone(&self.peers),
            sources: sources.to_vec(),
            depth,
            reread: reread(
                &self.checkpoint,
                &origins,
                &self.reread_bytes,
                options,
                cancel,
            ),
        }
    }
}

/// Part of a load that the leader of the node reads.
pub(crate) struct SharedSources {
    pub(crate) link: Arc<Link>,
    pub(crate) regions: Arc<SharedRegions>,
    pub(super) reread_bytes: Arc<AtomicU64>,
    /// All regions of the node's plan.
    pub(crate) origins: Vec<RegionOrigin>,
    /// First source that is a shared region.
    pub(crate) first_source: usize,
    pub(crate) checkpoint: Checkpoint,
}

impl SharedSources {
    /// Begins to receive what the leader reads: `regions` are the sources of `plan` from
    /// `first_source` on.
    ///
    /// # Errors
    ///
    /// Those of [`Link::begin`].
    pub(super) fn begin(
        shares: Shares,
        (regions, first_source): (Option<Arc<SharedRegions>>, usize),
        plan: &Plan,
        destinations: &Destinations,
        options: &Options,
        checkpoint: &Checkpoint,
    ) -> Result<Self> {
        let regions = regions.expect("sources that the leader reads are added first");
        let mut users = vec![0; shares.plan.regions.len()];
        for region in &plan.regions {
            if let Some(index) = region.source.checked_sub(first_source) {
                users[regions.regions[index]] += uses(plan, destinations, region);
            }
        }
        let is_host = |destination: &Destination| matches!(destination, Destination::Host);
        let is_writable =
            options.private.unwrap_or(true) && destinations.list().iter().any(is_host);
        let link = Link::begin(shares.joining, &shares.plan, &users, is_writable)?;
        Ok(Self {
            link: Arc::new(link),
            regions,
            reread_bytes: shares.reread_bytes,
            origins: shares.plan.regions,
            first_source,
            checkpoint: checkpoint.clone(),
        })
    }

    /// Returns the region of the node that a source is, if it is one.
    pub(crate) fn region(&self, source: usize) -> Option<usize> {
        let index = source.checked_sub(self.first_source)?;
        self.regions.regions.get(index).copied()
    }
}

/// Returns the number of uses that a region makes of the shared memory that it comes from: one if
/// it shows it, else one for each read that copies from it.
fn uses(plan: &Plan, destinations: &Destinations, region: &RegionPlan) -> usize {
    if is_received(plan, destinations, region) {
        1
    } else {
        region.extents.len()
    }
}

/// Returns whether a region over shared memory shows it; the bytes of others are copied.
pub(super) fn is_received(plan: &Plan, destinations: &Destinations, region: &RegionPlan) -> bool {
    let first = &plan.extents[region.extents.start];
    let target = &plan.targets[plan.pieces[first.pieces.start].tensor];
    let destination = &destinations.list()[region.destination];
    matches!(destination, Destination::Host)
        && !target.realign
        && plan.slice_in(first).is_none()
        && !shares_pages(plan, region)
}

/// Returns whether a region shows pages that another one of the same source shows too: neither can
/// replace its pages without the other one's bytes.
fn shares_pages(plan: &Plan, region: &RegionPlan) -> bool {
    let span = |region: &RegionPlan| {
        let extents = &plan.extents[region.extents.clone()];
        let end = extents.last().map(|last| last.offset + last.window as u64);
        (region.source, extents[0].offset, end.unwrap_or(0))
    };
    let of = |index: usize| plan.regions.get(index).map(span);
    let extents = region.extents.start;
    let index = (plan.regions).partition_point(|other| other.extents.start < extents);
    let (source, start, end) = span(region);
    let before = index.checked_sub(1).and_then(of);
    let behind = of(index + 1);
    before.is_some_and(|(other, _, its_end)| other == source && its_end > start)
        || behind.is_some_and(|(other, its_start, _)| other == source && its_start < end)
}

/// Returns the configuration of reads of `regions` in place of the ranks that read them, counted in
/// `bytes`.
pub(crate) fn reread(
    checkpoint: &Checkpoint,
    regions: &[RegionOrigin],
    bytes: &Arc<AtomicU64>,
    options: &Options,
    cancel: &Arc<CancelFlag>,
) -> RereadSetup {
    let (checkpoint, regions) = (checkpoint.clone(), regions.to_vec());
    let (its_options, its_cancel) = (options.clone(), Arc::clone(cancel));
    RereadSetup {
        on_peer_loss: options.on_peer_loss,
        is_verified: options.verify != Verify::Off,
        bytes: Arc::clone(bytes),
        open: Box::new(move || open(&checkpoint, &regions, &its_options, &its_cancel)),
        cancel: Arc::clone(cancel),
    }
}

fn open(
    checkpoint: &Checkpoint,
    regions: &[RegionOrigin],
    options: &Options,
    cancel: &Arc<CancelFlag>,
) -> Result<StorageEngines> {
    // The load cancels engines for files itself.
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
    let sources = Sources::open(shards, options, false)?;
    let engines = sources.groups().iter().map(|group| match group {
        Group::Files(files) => engine_for_files(files, DEPTH, options),
        #[cfg(feature = "object")]
        Group::Objects(objects) => {
            let setup = occasional_requests(objects, DEPTH, options, cancel);
            Ok(engine::open_objects(&Arc::new(setup)).engine)
        }
        #[cfg(feature = "object")]
        Group::Cached(..) => unreachable!("opened as objects"),
        Group::Shared(_) | Group::Remote(_) => unreachable!("opened from files and objects"),
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
    let (kind, _) = engine::choose(options.engine, files, None);
    let setup = EngineSetup {
        files: Arc::clone(files),
        depth,
        copiers: None,
        lanes: 1,
        slab: None,
    };
    Ok(engine::open(kind, options.engine, &setup)?.engine)
}

/// Returns the configuration of an engine for objects that another engine reads, except for some
/// bytes.
#[cfg(feature = "object")]
pub(super) fn occasional_requests(
    objects: &Arc<[ObjectSource]>,
    depth: usize,
    options: &Options,
    cancel: &Arc<CancelFlag>,
) -> engine::ObjectSetup {
    let hints = objects[0].hints();
    engine::ObjectSetup {
        objects: Arc::clone(objects),
        connections: options.depth.unwrap_or(hints.depth),
        in_flight_bytes: None,
        request_bytes: options.extent_bytes.unwrap_or(hints.request_bytes),
        // The total is unknown, because most bytes come from the leader.
        total_bytes: hints.in_flight_bytes,
        retries: options.retries.map(Retries::up_to),
        hedge: options.hedge.unwrap_or(true),
        depth,
        cancel: Arc::clone(cancel),
    }
}
