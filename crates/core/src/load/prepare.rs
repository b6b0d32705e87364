//! State of a load before its first read: opened sources, plan and lanes.

use std::sync::Arc;

use tload_memory::convert::Conversions;

use super::budget::{MEMORY_LIMIT, RANK_MEMORY_LIMIT};
use super::conversions::conversions;
use super::destinations::Destinations;
use super::lane::LaneSetup;
use super::near_gpu::{GpuPlaces, NearGpu};
use super::pipeline::{Feed, Slabs};
use super::source_table::{Others, SourceTable};
use super::staging::StagingPlaces;
use super::wanted::{refuse_too_many_reads, wanted};
use crate::checkpoint::OpenedCheckpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::groups::Limits;
use crate::groups::{GroupLanes, LaneContext, LeaderGroup, LimitsRequest, SourceGroup, Sources};
use crate::memory::FileView;
use crate::options::{CacheMode, EngineChoice, LoadOptions, Order};
use crate::plan::{self, Plan, RegionNeed, Wanted};
use crate::report::Counters;
use crate::schedule::{Depth, Groups, LaneGroup, LaneGroups};
use crate::storage::ReadFile;
use crate::tensor::TensorInfo;
use crate::verify::Verify;

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
    pub(crate) conversions: Conversions,
    /// By source: the files as memory, if tensors are to be views of them.
    pub(crate) views: Option<Vec<Arc<FileView>>>,
    /// The part that the leader of the node reads.
    pub(crate) leader: Option<Arc<LeaderGroup>>,
    /// Other nodes read a part.
    has_nodes: bool,
    /// Number of equal parts of the caller's memory limit, of which this load has one.
    pub(crate) limit_divisor: u64,
    /// CPUs for the threads of the load, if they are chosen.
    pub(crate) gpu_places: Option<Arc<GpuPlaces>>,
    lane_groups: LaneGroups,
    /// Default budget of a GPU, in bytes, unless a tensor is large.
    pub(crate) device_budget: u64,
    /// Lanes scatter what they read.
    pub(crate) scatters: bool,
    /// By group of lanes.
    limits: Vec<Limits>,
}

impl Prepared {
    /// Opens the sources of `tensors` and plans their reads. `copiers` is the number of threads
    /// that copy for a rank of a group.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for a plan with too many reads; [`ErrorKind::Unsupported`] for
    /// views outside host memory; any error of opening a file for direct I/O.
    pub(crate) fn new(
        checkpoint: &OpenedCheckpoint,
        tensors: Vec<TensorInfo>,
        mut destinations: Destinations,
        options: &LoadOptions,
        others: Option<Others>,
        copiers: Option<usize>,
    ) -> Result<Self> {
        let tensors: Arc<[TensorInfo]> = tensors.into();
        if options.cache == CacheMode::Map {
            refuse_views(checkpoint, &tensors, &destinations, options)?;
        }
        let conversions = conversions(checkpoint, &tensors, &destinations, options)?;
        if let Some(Others::Leader(shares)) = &others {
            destinations.gather(shares.plan.have_gaps(&tensors));
        }
        let staged = destinations.staged();
        let mut table = SourceTable::open(checkpoint, &tensors, others, options, staged)?;
        let place = |tensor| table.place(tensor);
        let mut wanted = wanted(&tensors, &destinations, options.align, place);
        table.sort(&mut wanted, &tensors);
        let (numbers, wanted): (Vec<usize>, Vec<Wanted>) = wanted.into_iter().unzip();
        let layouts = table.layouts(options, staged);
        refuse_too_many_reads(&wanted, &layouts)?;
        let need = RegionNeed {
            region_bytes: options.region_bytes.or(options.trial.regions),
            alignment: (options.trial.align).and_then(|bytes| usize::try_from(bytes).ok()),
            limit: options.device_memory_limit,
            budget: if table.is_received() {
                RANK_MEMORY_LIMIT
            } else {
                MEMORY_LIMIT
            },
            is_received: table.is_received(),
            sources: match options.order {
                Order::Ready => table.read_at_once(),
                Order::File => 1,
            },
            keeps_all: destinations.keeps_all(),
        };
        let arrangements = destinations.arrangements(|free| need.packing(free));
        let rewritten = |index: usize| {
            let tensor = numbers[index];
            conversions.bytes(tensor, wanted[index].bytes(), tensors[tensor].dtype())
        };
        let mut plan = plan::build_rewriting(&wanted, &layouts, &arrangements, &rewritten);
        plan.renumber(&numbers);
        let has_nodes = table.has_nodes();
        // Bytes are verified in the order of their files, which several sets of lanes with slots of
        // their own could make each other wait for.
        let is_divisible = options.verify == Verify::Off;
        let gpu_places = (options.trial.numa)
            .then(|| GpuPlaces::new(&destinations, copiers, is_divisible))
            .flatten();
        let (sources, leader) = table.begin(checkpoint, &plan, &destinations, options)?;
        let lane_groups = lane_groups(&sources, &plan, gpu_places.as_ref());
        let places = gpu_places.as_ref();
        Ok(Self {
            views: sources.views().filter(|views| !views.is_empty()),
            limits: limits(
                &sources,
                &plan,
                options,
                &destinations,
                &lane_groups,
                places,
            ),
            gpu_places: gpu_places.map(Arc::new),
            lane_groups,
            sources: Arc::new(sources),
            tensors,
            plan: Arc::new(plan),
            leader,
            has_nodes,
            destinations,
            conversions,
            limit_divisor: 1,
            device_budget: need.default_budget(),
            scatters: false,
        })
    }

    /// Returns whether devices write what is read into memory, not the CPU, and nothing is received
    /// from other nodes.
    pub(crate) fn reads_devices(&self) -> bool {
        if self.has_nodes {
            // If extents from other nodes held slots, none might be left for the extents that those
            // nodes wait for.
            return false;
        }
        let mut groups = self.sources.groups().iter();
        groups.any(|group| (group.files().iter()).any(|it| it.reads_direct() && !it.is_copied()))
    }

    /// Returns whether all bytes are copied from the page cache of this system.
    pub(crate) fn copies_page_cache(&self) -> bool {
        let is_copied = |it: &ReadFile| it.is_copied() && !it.is_far();
        let mut groups = self.sources.groups().iter();
        groups.all(|group| !group.files().is_empty() && group.files().iter().all(is_copied))
    }

    /// Returns the groups that share limits.
    pub(crate) fn groups(&self) -> Groups {
        let depths = self.limits.iter().map(|limits| limits.depth).collect();
        let mut groups = self.sources.groups().iter();
        let in_order = groups.position(|group| group.reads_in_file_order());
        let groups = self.lane_groups.scheduled(depths, self.sources.members());
        groups.in_file_order(in_order)
    }

    /// Returns the groups of lanes, each with its sources and limits.
    fn lane_groups(&self) -> impl Iterator<Item = (LaneGroup, &Arc<dyn SourceGroup>, &Limits)> {
        let groups = self.lane_groups.list().iter().zip(&self.limits);
        groups.map(|(group, limits)| (*group, &self.sources.groups()[group.sources], limits))
    }

    /// Returns the name of each group of lanes in reports.
    pub(crate) fn group_names(&self) -> Vec<String> {
        let groups = self.sources.groups();
        let is_divided = self.lane_groups.list().len() > groups.len();
        let name = |(group, sources, _): (LaneGroup, &Arc<dyn SourceGroup>, &Limits)| {
            let near = self.near(group).filter(|_| is_divided);
            near.map_or_else(
                || sources.name(),
                |near| format!("{} for {}", sources.name(), near.gpu()),
            )
        };
        self.lane_groups().map(name).collect()
    }

    /// Returns the places that staging memory is divided by.
    pub(crate) fn places(&self) -> StagingPlaces<'_> {
        StagingPlaces {
            destinations: &self.destinations,
            lane_groups: &self.lane_groups,
            gpu_places: self.gpu_places.as_deref(),
        }
    }

    /// Returns the CPUs for the threads of a group of lanes, if they are chosen.
    fn near(&self, group: LaneGroup) -> Option<&Arc<NearGpu>> {
        near(self.gpu_places.as_deref(), group)
    }

    /// Returns the initial number of reads of the largest size in flight.
    pub(crate) fn reads_in_flight(&self) -> usize {
        self.limits.iter().map(|limits| limits.reads).sum()
    }

    /// Returns the initial bytes in flight.
    pub(crate) fn start_bytes(&self) -> u64 {
        let starts = self.limits.iter().map(|limits| limits.depth.start().bytes);
        starts.fold(0, u64::saturating_add)
    }

    /// Returns the bytes in flight that a budget should have room for. For disks this is the
    /// initial value, since more rarely helps; for stores and network file systems it is the
    /// maximum.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        let room = |(_, group, limits): (_, &Arc<dyn SourceGroup>, &Limits)| match group.files() {
            [] => limits.depth.bytes(),
            files if files.iter().any(ReadFile::is_far) => limits.depth.bytes(),
            _ => limits.depth.start().bytes,
        };
        self.lane_groups().map(room).fold(0, u64::saturating_add)
    }

    /// Returns the bytes in flight that staging memory should have room for: more than the initial
    /// value, but less than the maximum, because pinning memory takes time.
    pub(crate) fn staged_bytes(&self) -> u64 {
        let limits = self.limits.iter().map(|limits| limits.depth);
        let few = |depth: Depth| depth.start().bytes.saturating_mul(STAGED_STARTS);
        let rooms = limits.map(|depth| depth.bytes().min(few(depth)));
        rooms.fold(0, u64::saturating_add)
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

    /// Returns the bytes that the extents of each group of lanes need.
    fn needed_bytes(&self) -> Vec<u64> {
        let groups = self.groups();
        let mut bytes = vec![0; self.limits.len()];
        for extent in &self.plan.extents {
            bytes[groups.group_of(&self.plan.regions[extent.region])] += extent.needed as u64;
        }
        bytes
    }

    /// Returns the length of the longest read or request, in bytes.
    pub(crate) fn read_bytes_max(&self) -> u64 {
        let windows = self.plan.window_bytes_max() as u64;
        let requests = self.limits.iter().map(|limits| limits.request_bytes);
        requests.fold(windows, u64::max)
    }

    /// Creates the lanes of a load, including those that may be needed later: the requested number
    /// for the files of a file system, and one for the objects of a store, whose requests have
    /// their own threads. There are none if there is nothing to read.
    pub(crate) fn lanes(
        &self,
        options: &LoadOptions,
        feed: &Arc<Feed>,
        counters: &Arc<Counters>,
        slabs: &Slabs,
    ) -> Vec<LaneSetup> {
        let (mut lanes, mut counts) = (Vec::new(), Vec::new());
        let groups = self.lane_groups().zip(self.needed_bytes()).enumerate();
        for (group, ((lane_group, sources, limits), needed_bytes)) in groups {
            let near_gpu = self.near(lane_group);
            let context = LaneContext {
                options,
                plan: &self.plan,
                limits,
                gpus: self.destinations.gpus(),
                copiers: near_gpu.map(|near_gpu| near_gpu.copiers()),
                scatters: self.scatters,
                slab: slabs.for_group(group),
                arrived: counters.arrived(),
                cancel: feed.cancel(),
            };
            let GroupLanes { engine, count } = sources.lanes(&context, needed_bytes);
            lanes.extend((0..count.most()).map(|index| LaneSetup {
                feed: Arc::clone(feed),
                group,
                index,
                begins_now: count.wants(index),
                engine: Arc::clone(&engine),
                requested: options.engine,
                lanes: count.when_begins(index),
                naps_shortly: options.trial.nice,
                counters: Arc::clone(counters),
                near_gpu: near_gpu.cloned(),
            }));
            counts.push(count);
        }
        feed.set_lanes(counts);
        let groups = self.lane_groups();
        let watched = groups.map(|(_, group, _)| group.is_watched()).collect();
        feed.watch(self.sources.names(), watched);
        lanes
    }
}

/// Rejects loads whose tensors cannot be views of files.
fn refuse_views(
    checkpoint: &OpenedCheckpoint,
    tensors: &[TensorInfo],
    destinations: &Destinations,
    options: &LoadOptions,
) -> Result<()> {
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
    Ok(())
}

/// Returns the groups of lanes of a load, divided by the places of its GPUs if these are known.
fn lane_groups(sources: &Sources, plan: &Plan, places: Option<&GpuPlaces>) -> LaneGroups {
    let groups = sources.groups().iter();
    let are_divisible: Vec<bool> = groups.map(|group| group.is_divisible()).collect();
    let places = places.map_or(&[][..], GpuPlaces::of_destination);
    LaneGroups::new(plan, sources.members(), &are_divisible, places.to_vec())
}

/// Returns the CPUs for the threads of a group of lanes, if they are chosen.
fn near(places: Option<&GpuPlaces>, group: LaneGroup) -> Option<&Arc<NearGpu>> {
    places?.get(group.place?)
}

/// Returns the in-flight limits of each group of lanes: those of the caller, or else by the hints
/// of its sources, and the number of threads that copy.
fn limits(
    sources: &Sources,
    plan: &Plan,
    options: &LoadOptions,
    destinations: &Destinations,
    lane_groups: &LaneGroups,
    places: Option<&GpuPlaces>,
) -> Vec<Limits> {
    let is_received = (sources.groups().iter()).any(|group| group.is_received());
    let groups = lane_groups.scheduled(Vec::new(), sources.members());
    let mut windows = vec![0; lane_groups.list().len()];
    for extent in &plan.extents {
        let window = &mut windows[groups.group_of(&plan.regions[extent.region])];
        *window = extent.window.max(*window);
    }
    let limits = |(group, window): (&LaneGroup, usize)| {
        sources.groups()[group.sources].limits(&LimitsRequest {
            options,
            window,
            gpus: destinations.gpus(),
            copiers: near(places, *group).map(|near| near.copiers()),
            is_deep: destinations.fills_own_memory() && !is_received,
        })
    };
    lane_groups.list().iter().zip(windows).map(limits).collect()
}
