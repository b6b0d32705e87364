//! State of a load before its first read: opened sources, plan and lanes.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustix::param::page_size;

use super::destinations::{Destination, Destinations};
use super::groups::{Group, SharedRegions, Sources};
use super::lane::{LaneEngine, LaneSetup};
use super::pipeline::Feed;
use super::shares::{Shares, open_storage};
use crate::checkpoint::Checkpoint;
use crate::engine::{self, EngineKind, EngineSetup, SharedSetup};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{FileView, Slab};
use crate::options::CacheMode;
use crate::options::{EngineChoice, Options, format_bytes};
use crate::plan::{self, Layout, Plan, RegionPlan, Wanted};
use crate::ranks::link::Link;
use crate::ranks::messages::RegionOrigin;
use crate::report::Counters;
use crate::schedule::{Groups, LaneCount, Limits};
#[cfg(feature = "object")]
use crate::storage::ObjectSource;
use crate::storage::{ReadFile, ReadHints};
#[cfg(feature = "object")]
use crate::sync::retry::Retries;
use crate::tensor::TensorInfo;

/// Maximum number of reads of one load: the plan takes about 100 bytes for each, and 16 TiB in
/// default extents need this many (2026-11).
const EXTENTS_MAX: u64 = 1 << 22;

/// Maximum number of lanes chosen automatically: beyond it, memory is the limit (an estimate of
/// 2026-11: not measured on machines with more than 2 cores).
const LANES_MAX: usize = 8;

/// Staging memory has room for this multiple of the bytes in flight at the start.
const STAGED_STARTS: u64 = 4;

/// Minimum number of slots for raw reads of files: reads of small tensors are short and many.
const RAW_SLOTS: usize = 64;

/// Everything known about a load before its first read.
pub(crate) struct Prepared {
    pub(crate) sources: Arc<Sources>,
    pub(crate) tensors: Arc<[TensorInfo]>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) destinations: Destinations,
    /// By source: the files as memory, if tensors are to be views of them.
    pub(crate) views: Option<Vec<Arc<FileView>>>,
    /// The part that the leader of the node reads.
    pub(crate) shared: Option<SharedPart>,
    /// By group.
    limits: Vec<Limits>,
}

/// Part of a load that the leader of the node reads.
pub(crate) struct SharedPart {
    pub(crate) link: Arc<Link>,
    pub(crate) regions: Arc<SharedRegions>,
    /// All regions of the node's plan.
    origins: Vec<RegionOrigin>,
    /// First source that is a shared region.
    first_source: usize,
    checkpoint: Checkpoint,
}

impl SharedPart {
    /// Returns the region of the node that a source is, if it is one.
    pub(crate) fn region(&self, source: usize) -> Option<usize> {
        let index = source.checked_sub(self.first_source)?;
        self.regions.regions.get(index).copied()
    }
}

impl Prepared {
    /// Opens the sources of `tensors` and plans their reads.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for a plan with too many reads; [`ErrorKind::Unsupported`] for
    /// views outside host memory; any error of opening a file for direct I/O.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        tensors: Vec<TensorInfo>,
        destinations: Destinations,
        options: &Options,
        shares: Option<Shares>,
    ) -> Result<Self> {
        let tensors: Arc<[TensorInfo]> = tensors.into();
        let mut places = shares.as_ref().map(|shares| shares.plan.tensors.iter());
        let places: Vec<Option<(usize, u64)>> =
            tensors.iter().map(|_| *places.as_mut()?.next()?).collect();
        if options.cache == CacheMode::Map {
            refuse_views(checkpoint, &tensors, &destinations, options)?;
        }
        // Only shards with selected tensors; `source_of` numbers them.
        let mut source_of = vec![None; checkpoint.shards().len()];
        let mut shards = Vec::new();
        let own = tensors
            .iter()
            .zip(&places)
            .filter(|(_, place)| place.is_none());
        for (tensor, _) in own.filter(|(tensor, _)| tensor.byte_len() > 0) {
            let source = *source_of[tensor.shard()].get_or_insert_with(|| {
                let source = checkpoint.shards()[tensor.shard()].source();
                shards.push((source.clone(), Vec::new()));
                shards.len() - 1
            });
            shards[source].1.push(tensor.file_range());
        }
        let first_source = shards.len();
        let mut sources = Sources::open(shards, options)?;
        let regions: BTreeSet<usize> = places.iter().flatten().map(|place| place.0).collect();
        if let Some(shares) = &shares {
            let origin = |region: &usize| (*region, shares.plan.regions[*region].shard);
            let regions: Vec<_> = regions.iter().map(origin).collect();
            sources.add_shared(SharedRegions::new(&regions, checkpoint.shards()));
        }
        let regions: Vec<usize> = regions.into_iter().collect();
        let wanted = |(index, tensor): (usize, &TensorInfo)| {
            let range = tensor.file_range();
            let (source, range) = match places[index] {
                None => (source_of[tensor.shard()].unwrap_or(0), range),
                Some((region, offset)) => {
                    let source = regions.binary_search(&region).expect("one of them");
                    let len = range.end - range.start;
                    (first_source + source, offset..offset + len)
                }
            };
            Wanted {
                source,
                range,
                strides: tensor.strides().cloned(),
                alignment: tensor.dtype().alignment(),
                destination: destinations.index_for(index),
            }
        };
        let mut wanted: Vec<(usize, Wanted)> =
            tensors.iter().enumerate().map(wanted).enumerate().collect();
        // Shared regions come behind the files.
        wanted.sort_by_key(|(_, wanted)| (wanted.source, wanted.range.start));
        let (numbers, wanted): (Vec<usize>, Vec<Wanted>) = wanted.into_iter().unzip();
        let layouts: Vec<Layout> = (0..sources.members().len())
            .map(|source| {
                let mut hints = sources.hints(source);
                if shares.is_some() && source < first_source {
                    // Other ranks may read what lies between.
                    hints.gap_bytes = 0;
                }
                layout(&hints, options, destinations.staged())
            })
            .collect();
        refuse_too_many_reads(&wanted, &layouts)?;
        let mut plan = plan::build(&wanted, &layouts, &destinations.arrangements());
        plan.renumber(&numbers);
        let plan = Arc::new(plan);
        let shared = shares
            .map(|shares| {
                let users = users(
                    &plan,
                    &destinations,
                    options,
                    &shares,
                    first_source,
                    &regions,
                );
                let link = Link::begin(shares.joining, &shares.plan, &users)?;
                let regions = sources.shared().expect("added above");
                Ok::<_, Error>(SharedPart {
                    link: Arc::new(link),
                    regions,
                    origins: shares.plan.regions,
                    first_source,
                    checkpoint: checkpoint.clone(),
                })
            })
            .transpose()?;
        let limits = (0..sources.groups().len())
            .map(|group| limits(group, &sources, &plan, options))
            .collect();
        Ok(Self {
            views: sources.views().filter(|views| !views.is_empty()),
            sources: Arc::new(sources),
            tensors,
            plan,
            destinations,
            shared,
            limits,
        })
    }

    /// Returns whether a region of the plan shows shared memory; the bytes of others are copied.
    pub(crate) fn is_received(&self, region: &RegionPlan, options: &Options) -> bool {
        is_received(&self.plan, &self.destinations, options, region)
    }

    /// Returns whether any tensor is at an offset that no view can align.
    pub(crate) fn realigns(&self) -> bool {
        self.plan.targets.iter().any(|target| target.realign)
    }

    /// Returns the groups of sources that share limits.
    pub(crate) fn groups(&self) -> Groups {
        let depths = self.limits.iter().map(|limits| limits.depth).collect();
        Groups::new(depths, self.sources.members().to_vec())
    }

    /// Returns the initial number of reads of the largest size in flight.
    pub(crate) fn reads_in_flight(&self) -> usize {
        self.limits.iter().map(|limits| limits.reads).sum()
    }

    /// Returns the initial bytes in flight.
    pub(crate) fn start_bytes(&self) -> u64 {
        let limits = self.limits.iter();
        limits.map(|limits| limits.depth.start().bytes).sum()
    }

    /// Returns the bytes in flight that a budget should have room for. For disks this is the
    /// initial value, since more rarely helps; for stores and network file systems it is the
    /// maximum.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        let room = |(group, limits): (&Group, &Limits)| match group {
            Group::Files(files) if !files.iter().any(ReadFile::is_far) => {
                limits.depth.start().bytes
            }
            Group::Files(_) => limits.depth.bytes(),
            #[cfg(feature = "object")]
            Group::Objects(_) => limits.depth.bytes(),
            Group::Shared(_) => limits.depth.bytes(),
        };
        self.sources
            .groups()
            .iter()
            .zip(&self.limits)
            .map(room)
            .sum()
    }

    /// Returns the bytes in flight that staging memory should have room for: more than the initial
    /// value, but less than the maximum, because pinning memory takes time.
    pub(crate) fn staged_bytes(&self) -> u64 {
        let limits = self.limits.iter().map(|limits| limits.depth);
        let room = limits.map(|depth| depth.bytes().min(depth.start().bytes * STAGED_STARTS));
        room.sum()
    }

    /// Returns the number of slots for raw reads of the longest window, up to `most` where an
    /// engine can use that many.
    pub(crate) fn raw_slots(&self, most: usize) -> usize {
        let window = self.plan.window_bytes_max().max(1);
        let slots = |limits: &Limits| {
            if limits.depth.is_fixed() {
                limits.depth.jobs().min(limits.reads.max(most))
            } else {
                limits.depth.reads_of(window).max(RAW_SLOTS)
            }
        };
        let all: usize = self.limits.iter().map(slots).sum();
        all.min(self.plan.extents.len()).max(1)
    }

    /// Returns the bytes that the extents of a group need.
    #[cfg(feature = "object")]
    fn bytes_of(&self, group: usize) -> u64 {
        let members = self.sources.members();
        let extents = self.plan.extents.iter();
        extents
            .filter(|extent| members[extent.source].group == group)
            .map(|extent| extent.needed as u64)
            .sum()
    }

    /// Returns the length of the longest read or request, in bytes.
    pub(crate) fn read_bytes_max(&self) -> u64 {
        let windows = self.plan.window_bytes_max() as u64;
        #[cfg(feature = "object")]
        let windows = self
            .limits
            .iter()
            .map(|limits| limits.request_bytes)
            .fold(windows, u64::max);
        windows
    }

    /// Creates the lanes of a load, including those that may be needed later: the requested number
    /// for the files of a file system, and one for the objects of a store, whose requests have
    /// their own threads. There are none if there is nothing to read.
    pub(crate) fn lanes(
        &self,
        options: &Options,
        feed: &Arc<Feed>,
        counters: &Arc<Counters>,
        slab: Option<&Arc<Slab>>,
    ) -> Vec<LaneSetup> {
        let (mut lanes, mut counts) = (Vec::new(), Vec::new());
        for (group, (sources, limits)) in self.sources.groups().iter().zip(&self.limits).enumerate()
        {
            let extents = self.plan.extents.len();
            let depth = limits.depth.jobs().min(extents).max(1);
            let (engine, count) = match sources {
                Group::Files(files) => files_engine(files, depth, options, slab),
                #[cfg(feature = "object")]
                Group::Objects(objects) => (
                    self.objects_engine(group, objects, depth, options, feed),
                    LaneCount::fixed(1),
                ),
                Group::Shared(shared) => (
                    self.shared_engine(shared, depth, options, feed),
                    // Bytes that tensors do not show are copied.
                    LaneCount::fixed(1),
                ),
            };
            lanes.extend((0..count.most()).map(|index| LaneSetup {
                feed: Arc::clone(feed),
                group,
                index,
                begins_now: count.wants(index),
                engine: engine.clone(),
                counters: Arc::clone(counters),
            }));
            counts.push(count);
        }
        feed.set_lanes(counts);
        // An object engine watches its requests itself: its jobs also wait for connections.
        let groups = self.sources.groups().iter();
        let watched = groups.map(|group| !group.files().is_empty()).collect();
        feed.watch(self.sources.names(), watched);
        lanes
    }

    fn shared_engine(
        &self,
        shared: &SharedRegions,
        depth: usize,
        options: &Options,
        feed: &Feed,
    ) -> LaneEngine {
        let part = self.shared.as_ref().expect("there are shared regions");
        let cancel = feed.cancel();
        LaneEngine::Shared {
            setup: Arc::new(SharedSetup {
                link: Arc::clone(&part.link),
                regions: shared.regions.clone(),
                depth,
                on_peer_loss: options.on_peer_loss,
                open_storage: open_storage(&part.checkpoint, &part.origins, options, cancel),
                cancel: Arc::clone(cancel),
            }),
            leader: part.link.leader(),
            choice: options.engine,
        }
    }

    #[cfg(feature = "object")]
    fn objects_engine(
        &self,
        group: usize,
        objects: &Arc<[ObjectSource]>,
        depth: usize,
        options: &Options,
        feed: &Feed,
    ) -> LaneEngine {
        let limits = &self.limits[group];
        let setup = engine::ObjectSetup {
            objects: Arc::clone(objects),
            connections: limits.reads,
            in_flight_bytes: (!limits.depth.is_fixed()).then_some(limits.depth.start().bytes),
            request_bytes: limits.request_bytes,
            total_bytes: self.bytes_of(group),
            retries: options.retries.map(Retries::up_to),
            hedge: options.hedge.unwrap_or(true),
            depth,
            cancel: Arc::clone(feed.cancel()),
        };
        LaneEngine::Objects {
            setup: Arc::new(setup),
            choice: options.engine,
        }
    }
}

/// Returns the uses of each region of the node's plan by this rank: one for each region of `plan`
/// that shows it, and one for each read that copies from it.
fn users(
    plan: &Plan,
    destinations: &Destinations,
    options: &Options,
    shares: &Shares,
    first_source: usize,
    regions: &[usize],
) -> Vec<usize> {
    let mut users = vec![0; shares.plan.regions.len()];
    for region in &plan.regions {
        if let Some(index) = region.source.checked_sub(first_source) {
            users[regions[index]] += if is_received(plan, destinations, options, region) {
                1
            } else {
                region.extents.len()
            };
        }
    }
    users
}

/// Returns whether a region over shared memory shows it.
fn is_received(
    plan: &Plan,
    destinations: &Destinations,
    options: &Options,
    region: &RegionPlan,
) -> bool {
    let first = &plan.extents[region.extents.start];
    let target = &plan.targets[plan.pieces[first.pieces.start].tensor];
    let destination = &destinations.list()[region.destination];
    matches!(destination, Destination::Host) && !options.private && !target.realign && !target.join
}

/// Returns the engine for the files of a group, and how many lanes it has.
fn files_engine(
    files: &Arc<[ReadFile]>,
    depth: usize,
    options: &Options,
    slab: Option<&Arc<Slab>>,
) -> (LaneEngine, LaneCount) {
    let (kind, reason) = engine::choose(options.engine, files);
    let setup = EngineSetup {
        files: Arc::clone(files),
        depth,
        slab: slab.cloned(),
    };
    let engine = LaneEngine::Files {
        setup: Arc::new(setup),
        kind,
        choice: options.engine,
        reason,
    };
    let fixed = options.lanes.map(LaneCount::fixed);
    (engine, fixed.unwrap_or_else(|| lanes_for(kind, files)))
}

/// Returns the number of lanes of an engine for files. A ring copies pages of the page cache on the
/// submitting thread, so cached files begin with a lane for each core; other files with one lane,
/// which waits for storage most of the time. Engines with their own threads need only one.
fn lanes_for(kind: EngineKind, files: &[ReadFile]) -> LaneCount {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = cores.min(LANES_MAX);
    match kind {
        EngineKind::Uring | EngineKind::TokioUring if engine::are_copied(files) => {
            LaneCount::fixed(most)
        }
        EngineKind::Uring | EngineKind::TokioUring => LaneCount::up_to(1, most),
        EngineKind::Pread | EngineKind::Map => LaneCount::fixed(1),
    }
}

/// Rejects loads whose tensors cannot be views of files.
fn refuse_views(
    checkpoint: &Checkpoint,
    tensors: &[TensorInfo],
    destinations: &Destinations,
    options: &Options,
) -> Result<()> {
    if destinations.staged() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "‹cache=map› maps files into host memory, but tensors on a GPU or in the caller's memory are copies",
        )
        .with_location(checkpoint.location())
        .with_hint("use ‹cache=auto›"));
    }
    if options.engine != EngineChoice::Auto {
        let engine = options.engine;
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            format!("‹engine={engine}› has no effect: ‹cache=map› reads nothing"),
        )
        .with_hint("omit one of the two options"));
    }
    if let Some(tensor) = tensors.iter().find(|tensor| tensor.strides().is_some()) {
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            "‹cache=map› maps files as they are, but this slice is not contiguous in its file",
        )
        .with_location(checkpoint.location())
        .with_tensor(tensor.name())
        .with_hint(
            "load the whole tensor and slice it in memory without a copy, or use ‹cache=auto›",
        ));
    }
    Ok(())
}

/// Rejects plans with too many reads. A sparse file may claim a tensor of petabytes: planning its
/// reads would take more memory than any budget.
fn refuse_too_many_reads(wanted: &[Wanted], layouts: &[Layout]) -> Result<()> {
    let slices = wanted.iter().filter_map(|wanted| {
        let strides = wanted.strides.as_ref()?;
        let Layout {
            gap_bytes,
            alignment,
            ..
        } = layouts[wanted.source];
        Some(strides.spans_of(gap_bytes.max(2 * alignment)))
    });
    let spans = slices.fold(0, u64::saturating_add);
    if spans > EXTENTS_MAX {
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            format!("the slices have {spans} separate ranges, more than the maximum of {EXTENTS_MAX} reads"),
        )
        .with_hint("select fewer tensors, or load them whole and slice them in memory"));
    }
    let lengths = wanted
        .iter()
        .map(|wanted| wanted.range.end - wanted.range.start);
    let bytes = lengths.fold(0, u64::saturating_add);
    let smallest = layouts
        .iter()
        .map(|layout| layout.extent_bytes)
        .min()
        .unwrap_or(1);
    if bytes / smallest > EXTENTS_MAX {
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            format!(
                "{} in reads of {} would take more than {EXTENTS_MAX} reads",
                format_bytes(bytes),
                format_bytes(smallest)
            ),
        )
        .with_hint("raise ‹extent_bytes›, or select fewer tensors"));
    }
    Ok(())
}

/// Returns the in-flight limits of a group: those of the caller, or else by the hints of its
/// sources.
fn limits(group: usize, sources: &Sources, plan: &Plan, options: &Options) -> Limits {
    let members = sources.members();
    let hints = ReadHints::greatest(
        (0..members.len())
            .filter(|source| members[*source].group == group)
            .map(|source| sources.hints(source)),
    );
    let windows = plan
        .extents
        .iter()
        .filter(|extent| members[extent.source].group == group)
        .map(|extent| extent.window);
    let longest = windows.max().unwrap_or(0);
    match &sources.groups()[group] {
        Group::Files(_) => Limits::for_files(options, &hints, longest),
        #[cfg(feature = "object")]
        Group::Objects(_) => Limits::for_objects(options, &hints, longest),
        Group::Shared(_) => Limits::for_files(&Options::default(), &hints, longest),
    }
}

fn layout(hints: &ReadHints, options: &Options, staged: bool) -> Layout {
    let extent_bytes = match options.extent_bytes {
        // No tensor is too large for staging memory: it passes through in smaller reads, at least
        // two at a time.
        None if staged && options.memory_limit.is_some() => {
            let room = options.memory_limit.unwrap_or(u64::MAX) / 2;
            let edges = 2 * hints.alignment;
            let most = room.saturating_sub(edges) / hints.alignment * hints.alignment;
            // Slots are whole pages, including edges, however short the reads.
            let page = (page_size() as u64).saturating_sub(2 * hints.alignment.max(64));
            let least = page.max(hints.alignment);
            hints.extent_bytes.min(most.max(least))
        }
        // The option sets the length of requests, which span several extents.
        Some(bytes) if hints.request_bytes > hints.extent_bytes => bytes.min(hints.extent_bytes),
        Some(bytes) => bytes,
        None => hints.extent_bytes,
    };
    Layout {
        extent_bytes: extent_bytes.next_multiple_of(hints.alignment),
        alignment: hints.alignment,
        gap_bytes: hints.gap_bytes,
    }
}
