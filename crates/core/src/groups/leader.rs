//! Regions of a load that the leader of the node reads, and reads in its place.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::param::page_size;

use super::limits::Limits;
use super::opening::OPENED_AT_A_TIME;
use super::reread::reread;
use super::{GroupLanes, LaneContext, LimitsRequest, OpenEngine, SourceGroup};
use crate::checkpoint::{OpenedCheckpoint, Shard};
use crate::engine::{self, OpenedEngine, RegisteredSource, SharedSetup};
use crate::error::Result;
use crate::load::destinations::{Destination, Destinations};
use crate::options::LoadOptions;
use crate::plan::{Plan, RegionPlan};
use crate::schedule::LaneCount;
use crate::storage::{ReadHints, Source};
use crate::sync::parallel::parallel_map;
use tload_ranks::{Joining, Link};
use tload_ranks::{RankPlan, RegionListener, RegionOrigin};
use tload_registered::RegisteredRegions;

/// Hints on shared memory that tensors show: windows are whole pages, so that a rank can replace
/// single pages.
pub(super) const SHOWN_HINTS: ReadHints = ReadHints {
    extent_bytes: 4 << 20,
    request_bytes: 4 << 20,
    alignment: 4096,
    gap_bytes: 16 << 10,
    depth: 64,
    in_flight_bytes: 128 << 20,
    in_flight_bytes_max: 128 << 20,
};

/// Hints on shared memory that is copied: slots wait for the leader, and each rank has its own, so
/// they are few and small.
const COPIED_HINTS: ReadHints = ReadHints {
    extent_bytes: 1 << 20,
    request_bytes: 1 << 20,
    depth: 16,
    in_flight_bytes: 16 << 20,
    in_flight_bytes_max: 16 << 20,
    ..SHOWN_HINTS
};

/// Bytes of a read that one thread copies.
const STRIP_BYTES: usize = 1 << 20;

/// Shared part of a rank's load, before it begins.
pub(crate) struct Shares {
    pub(crate) plan: RankPlan,
    pub(crate) joining: Joining,
    /// Number of threads that copy for the rank, beside those of the other ranks.
    pub(crate) copiers: usize,
    /// Bytes that the rank reads in place of the leader.
    pub(crate) reread_bytes: Arc<AtomicU64>,
}

/// Regions that a rank takes from the leader, before the leader begins.
#[derive(Debug)]
pub(crate) struct Regions {
    /// By source of the group.
    numbers: Vec<usize>,
    /// By source of the group: its name in messages.
    names: Vec<String>,
    /// Shards that the regions are of.
    shards: Vec<Arc<dyn Source>>,
    pub(crate) hints: ReadHints,
}

/// Regions that the leader of the node reads.
#[derive(Debug)]
pub(crate) struct LeaderGroup {
    pub(crate) link: Arc<Link>,
    regions: Regions,
    copiers: usize,
    /// Registered memory of the regions, or the reason why there is none although it was requested.
    registered: Result<Option<RegisteredSource>, String>,
    reread_bytes: Arc<AtomicU64>,
    /// All regions of the node's plan.
    origins: Vec<RegionOrigin>,
    /// First source that is a shared region.
    first_source: usize,
    checkpoint: OpenedCheckpoint,
}

impl Regions {
    /// Describes regions of the node's plan, by number. With `staged`, bytes pass through staging
    /// memory.
    pub(crate) fn new(
        numbers: Vec<usize>,
        plan: &RankPlan,
        shards: &[Shard],
        staged: bool,
    ) -> Self {
        let shard_of = |region: &usize| plan.regions[*region].shard;
        let name = |region: &usize| {
            let location = shards[shard_of(region)].location();
            format!("{location} (read by another rank)")
        };
        let mut used: Vec<usize> = numbers.iter().map(shard_of).collect();
        used.dedup();
        let used = used.into_iter();
        Self {
            names: numbers.iter().map(name).collect(),
            shards: used
                .map(|shard| Arc::clone(shards[shard].source()))
                .collect(),
            hints: ReadHints {
                alignment: page_size() as u64,
                ..if staged { COPIED_HINTS } else { SHOWN_HINTS }
            },
            numbers,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the source of the group that a region of the node is.
    pub(crate) fn source_of(&self, region: usize) -> usize {
        self.numbers.binary_search(&region).expect("one of them")
    }
}

impl LeaderGroup {
    /// Begins to receive what the leader reads: `regions` are the sources of `plan` from
    /// `first_source` on.
    ///
    /// # Errors
    ///
    /// Those of [`Link::begin`].
    pub(crate) fn begin(
        shares: Shares,
        regions: Regions,
        first_source: usize,
        plan: &Plan,
        destinations: &Destinations,
        options: &LoadOptions,
        checkpoint: &OpenedCheckpoint,
    ) -> Result<Self> {
        let mut users = vec![0; shares.plan.regions.len()];
        for region in &plan.regions {
            if let Some(index) = region.source.checked_sub(first_source) {
                users[regions.numbers[index]] += uses(plan, destinations, region);
            }
        }
        let is_host = |destination: &Destination| matches!(destination, Destination::Host);
        let is_writable =
            options.private.unwrap_or(true) && destinations.list().iter().any(is_host);
        let registered = if options.trial.register {
            let mut wanted = vec![false; shares.plan.regions.len()];
            for region in &plan.regions {
                if let Some(index) = region.source.checked_sub(first_source) {
                    wanted[regions.numbers[index]] |= is_read_by_gpu(plan, destinations, region);
                }
            }
            register(destinations, wanted)
        } else {
            Ok(None)
        };
        let listener = registered.as_ref().ok().and_then(Option::as_ref);
        let listener = listener.map(|it| Arc::clone(&it.regions) as Arc<dyn RegionListener>);
        let plans = &shares.plan;
        let link = Link::begin_with(shares.joining, plans, &users, is_writable, listener)?;
        Ok(Self {
            link: Arc::new(link),
            regions,
            copiers: shares.copiers,
            registered,
            reread_bytes: shares.reread_bytes,
            origins: shares.plan.regions,
            first_source,
            checkpoint: checkpoint.clone(),
        })
    }

    /// Returns whether the rank takes anything from the leader.
    pub(crate) fn has_regions(&self) -> bool {
        !self.regions.numbers.is_empty()
    }

    /// Sets the maximum of the registered bytes that are kept for regions to come.
    pub(crate) fn keep_registered(&self, idle_bytes_max: u64) {
        if let Ok(Some(registered)) = &self.registered {
            let bytes = usize::try_from(idle_bytes_max).unwrap_or(usize::MAX);
            registered.regions.keep(bytes);
        }
    }

    /// Returns the region of the node that a source of the load is, if it is one.
    pub(crate) fn region(&self, source: usize) -> Option<usize> {
        let index = source.checked_sub(self.first_source)?;
        self.regions.numbers.get(index).copied()
    }
}

impl SourceGroup for LeaderGroup {
    fn name(&self) -> String {
        "shared memory".to_owned()
    }

    fn count(&self) -> usize {
        self.regions.len()
    }

    fn location(&self, index: usize) -> String {
        self.regions.names[index].clone()
    }

    fn hints(&self, _index: usize) -> ReadHints {
        self.regions.hints
    }

    fn limits(&self, request: &LimitsRequest<'_>) -> Limits {
        // A rank may share nothing with the others of its node.
        let hints = match self.regions.len() {
            0 => ReadHints::greatest([]),
            _ => self.regions.hints,
        };
        Limits::for_files(&LoadOptions::default(), &hints, request.window)
    }

    fn lanes(&self, context: &LaneContext<'_>, _needed_bytes: u64) -> GroupLanes {
        let setup = SharedSetup {
            plan: Arc::clone(context.plan),
            link: Arc::clone(&self.link),
            regions: self.regions.numbers.clone(),
            depth: context.depth(),
            copiers: context.copiers.unwrap_or(self.copiers),
            strip_bytes: STRIP_BYTES,
            registered: self.registered.clone().unwrap_or_default(),
            reread: reread(
                &self.checkpoint,
                &self.origins,
                &self.reread_bytes,
                context.options,
                context.cancel,
            ),
        };
        GroupLanes {
            engine: Arc::new(LeaderEngine(Arc::new(setup))),
            // One lane is enough, because other threads copy what tensors cannot show in place.
            count: LaneCount::fixed(1),
        }
    }

    fn is_received(&self) -> bool {
        true
    }

    fn reads_in_file_order(&self) -> bool {
        // The leader reads in file order and keeps what it has read, so ranks take regions in file
        // order too. A rank that waited for later regions first could wait forever.
        true
    }

    fn notes(&self) -> Vec<String> {
        let refusal = match &self.registered {
            Ok(registered) => registered.as_ref().and_then(|it| it.regions.refusal()),
            Err(reason) => Some(reason.clone()),
        };
        let note = |reason| format!("the GPU does not read the leader's memory directly: {reason}");
        refusal.map(note).into_iter().collect()
    }

    /// Checks the files that the regions are of.
    fn verify_unchanged(&self) -> Result<()> {
        let shards = &self.regions.shards;
        let verified = parallel_map(shards, OPENED_AT_A_TIME, |shard| shard.verify_unchanged());
        verified.into_iter().collect()
    }
}

/// Engine that waits for the leader.
#[derive(Debug)]
struct LeaderEngine(Arc<SharedSetup>);

impl OpenEngine for LeaderEngine {
    fn open(&self, _lanes: usize) -> Result<OpenedEngine> {
        Ok(engine::open_shared(&self.0))
    }

    fn reason(&self) -> String {
        let leader = self.0.link.leader();
        format!("rank {leader} reads for the ranks of this node")
    }
}

/// Prepares the registration of the `wanted` regions, if a GPU reads any.
///
/// # Errors
///
/// Returns the reason if a GPU cannot read such memory.
fn register(
    destinations: &Destinations,
    wanted: Vec<bool>,
) -> Result<Option<RegisteredSource>, String> {
    let (Some(context), true) = (destinations.gpu(), wanted.contains(&true)) else {
        return Ok(None);
    };
    // Registrations are kept in the part of the budget that host tensors do not take.
    if !destinations.list().iter().all(Destination::is_gpu) {
        return Err("some tensors go to host memory".to_owned());
    }
    let mut contexts = destinations.contexts();
    if let Some(other) = contexts.find(|it| !it.registers_read_only()) {
        return Err(RegisteredRegions::unsupported(other));
    }
    Ok(Some(RegisteredSource {
        regions: Arc::new(RegisteredRegions::new(context, wanted)),
        gpus: (destinations.list().iter())
            .map(Destination::is_gpu)
            .collect(),
    }))
}

/// Returns whether a GPU can read a region from shared memory as it is.
fn is_read_by_gpu(plan: &Plan, destinations: &Destinations, region: &RegionPlan) -> bool {
    let first = &plan.extents[region.extents.start];
    destinations.list()[region.destination].is_gpu() && plan.slice_in(first).is_none()
}

/// Returns the number of uses that a region makes of the shared memory that it comes from: one if
/// it shows it, else one for each read that copies from it.
fn uses(plan: &Plan, destinations: &Destinations, region: &RegionPlan) -> usize {
    if is_shown(plan, destinations, region) {
        1
    } else {
        region.extents.len()
    }
}

/// Returns whether a region over shared memory shows it; the bytes of others are copied.
pub(crate) fn is_shown(plan: &Plan, destinations: &Destinations, region: &RegionPlan) -> bool {
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
