//! State of a load before its first read: opened sources, plan and lanes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::destinations::Destinations;
use super::groups::{Group, RemoteSources, SharedRegions, Sources};
use super::lane::{LaneEngine, LaneSetup};
use super::pipeline::Feed;
#[cfg(feature = "object")]
use super::shares::occasional_requests;
use super::shares::{Others, RemoteShares, SharedSources, reread};
use super::wanted::{in_file_order, layouts, own_shards, places, refuse_too_many_reads, wanted};
use crate::checkpoint::Checkpoint;
use crate::engine::{self, EngineKind, EngineSetup, SharedSetup};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{FileView, Slab};
use crate::options::{CacheMode, EngineChoice, Options};
use crate::plan::{self, Plan, Wanted};
use crate::report::Counters;
use crate::schedule::{Depth, Groups, LaneCount, Limits};
#[cfg(feature = "object")]
use crate::storage::ObjectSource;
use crate::storage::{ReadFile, ReadHints};
#[cfg(feature = "object")]
use crate::sync::retry::Retries;
use crate::tensor::TensorInfo;
use crate::verify::Verify;

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
    pub(crate) shared: Option<SharedSources>,
    /// The part that other nodes read.
    remote: Option<RemoteShares>,
    /// Number of equal parts of the caller's memory limit, of which this load has one.
    pub(crate) limit_divisor: u64,
    /// By group.
    limits: Vec<Limits>,
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
        others: Option<Others>,
    ) -> Result<Self> {
        let tensors: Arc<[TensorInfo]> = tensors.into();
        if options.cache == CacheMode::Map {
            refuse_views(checkpoint, &tensors, &destinations, options)?;
        }
        let (shares, remote) = Others::split(others);
        let places = places(&tensors, shares.as_ref());
        let (remote_sources, of_others) = match &remote {
            Some(remote) => remote.sources(&tensors),
            None => (Vec::new(), vec![None; tensors.len()]),
        };
        let is_own = |index: usize| places[index].is_none() && of_others[index].is_none();
        let (own, source_of) = own_shards(checkpoint, &tensors, is_own);
        let first_source = own.len();
        let mut sources = Sources::open(own, options, shares.is_none() && remote.is_none())?;
        let regions: BTreeSet<usize> = places.iter().flatten().map(|place| place.0).collect();
        let regions: Vec<usize> = regions.into_iter().collect();
        if let Some(shares) = &shares {
            let origin = |region: &usize| (*region, shares.plan.regions[*region].shard);
            let origins: Vec<_> = regions.iter().map(origin).collect();
            let staged = destinations.staged();
            sources.add_shared(SharedRegions::new(&origins, checkpoint.shards(), staged));
        }
        if remote.is_some() {
            sources.add_remote(RemoteSources::new(remote_sources, checkpoint.shards()));
        }
        let position = |index: usize, tensor: &TensorInfo| {
            let range = tensor.file_range();
            if let Some(source) = of_others[index] {
                return (first_source + source, range);
            }
            match places[index] {
                None => (source_of[tensor.shard()].unwrap_or(0), range),
                Some((region, offset)) => {
                    let source = regions.binary_search(&region).expect("one of them");
                    let len = range.end - range.start;
                    (first_source + source, offset..offset + len)
                }
            }
        };
        let mut wanted = wanted(&tensors, &destinations, options.align, position);
        if remote.is_some() {
            // All nodes take what they share in the same order.
            sources.arrange(&in_file_order(&mut wanted, &tensors));
        } else {
            // Shared regions come after the files.
            wanted.sort_by_key(|(_, wanted)| (wanted.source, wanted.range.start));
        }
        let (numbers, wanted): (Vec<usize>, Vec<Wanted>) = wanted.into_iter().unzip();
        let all = remote.as_ref().map(|_| usize::MAX);
        let shared_from = shares.as_ref().map(|_| first_source).or(all);
        let layouts = layouts(&sources, shared_from, options, destinations.staged());
        refuse_too_many_reads(&wanted, &layouts)?;
        let mut plan = plan::build(&wanted, &layouts, &destinations.arrangements());
        plan.renumber(&numbers);
        let plan = Arc::new(plan);
        let from = (sources.shared(), first_source);
        let begin = |it| SharedSources::begin(it, from, &plan, &destinations, options, checkpoint);
        let received = shares.map(begin).transpose()?;
        let limits = (0..sources.groups().len())
            .map(|group| limits(group, &sources, &plan, options, &destinations))
            .collect();
        Ok(Self {
            views: sources.views().filter(|views| !views.is_empty()),
            sources: Arc::new(sources),
            tensors,
            plan,
            shared: received,
            remote,
            destinations,
            limit_divisor: 1,
            limits,
        })
    }

    /// Returns whether devices write what is read into memory, not the CPU, and nothing is received
    /// from other nodes.
    pub(crate) fn reads_devices(&self) -> bool {
        if self.remote.is_some() {
            // If extents from other nodes held slots, none might be left for the extents that those
            // nodes wait for.
            return false;
        }
        let mut groups = self.sources.groups().iter();
        groups.any(|group| (group.files().iter()).any(|it| it.reads_direct() && !it.is_copied()))
    }

    /// Returns the groups of sources that share limits.
    pub(crate) fn groups(&self) -> Groups {
        let depths = self.limits.iter().map(|limits| limits.depth).collect();
        // The leader reads in file order and keeps what it has read, so ranks take regions in file
        // order too. A rank that waited for later regions first could wait forever.
        let mut groups = self.sources.groups().iter();
        let shared = groups.position(|group| matches!(group, Group::Shared(_)));
        Groups::new(depths, self.sources.members().to_vec()).in_file_order(shared)
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
        let room = |(group, limits): (&Group, &Limits)| match group.files() {
            [] => limits.depth.bytes(),
            files if files.iter().any(ReadFile::is_far) => limits.depth.bytes(),
            _ => limits.depth.start().bytes,
        };
        let rooms = self.sources.groups().iter().zip(&self.limits).map(room);
        rooms.fold(0, u64::saturating_add)
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
                Group::Files(files) => {
                    let copiers = copiers(files, options, &self.destinations);
                    let checks = options.verify != Verify::Off;
                    files_engine(files, depth, options, (copiers, checks), slab)
                }
                #[cfg(feature = "object")]
                Group::Cached(files, objects) => {
                    // Lanes verify cached bytes, so no copying threads are used.
                    let (engine, count) = files_engine(files, depth, options, (None, true), slab);
                    let setup = occasional_requests(objects, depth, options, feed.cancel());
                    (engine.with_store(setup), count)
                }
                #[cfg(feature = "object")]
                Group::Objects(objects) => (
                    self.objects_engine(group, objects, depth, options, feed),
                    LaneCount::fixed(1),
                ),
                Group::Remote(remote) => (
                    self.remote_engine(remote, depth, options, feed),
                    // One lane is enough, because another thread receives the bytes.
                    LaneCount::fixed(1),
                ),
                Group::Shared(shared) => (
                    self.shared_engine(shared, depth, options, feed),
                    // One lane copies the bytes that tensors cannot show in place.
                    LaneCount::fixed(1),
                ),
            };
            lanes.extend((0..count.most()).map(|index| LaneSetup {
                feed: Arc::clone(feed),
                group,
                index,
                begins_now: count.wants(index),
                engine: engine.clone().among(count.when_begins(index)),
                counters: Arc::clone(counters),
            }));
            counts.push(count);
        }
        feed.set_lanes(counts);
        // Engines of objects watch their own reads: a job may also wait for a connection, and a job
        // of a cached object may read a file or the store.
        let groups = self.sources.groups().iter();
        let watched = groups
            .map(|group| matches!(group, Group::Files(_)))
            .collect();
        feed.watch(self.sources.names(), watched);
        lanes
    }

    fn remote_engine(
        &self,
        remote: &RemoteSources,
        depth: usize,
        options: &Options,
        feed: &Feed,
    ) -> LaneEngine {
        let part = self.remote.as_ref().expect("there are remote sources");
        LaneEngine::Remote {
            setup: Arc::new(part.setup(&remote.sources, &self.plan, depth, options, feed.cancel())),
            choice: options.engine,
        }
    }

    fn shared_engine(
        &self,
        shared: &SharedRegions,
        depth: usize,
        options: &Options,
        feed: &Feed,
    ) -> LaneEngine {
        let part = self.shared.as_ref().expect("there are shared regions");
        LaneEngine::Shared {
            setup: Arc::new(SharedSetup {
                plan: Arc::clone(&self.plan),
                link: Arc::clone(&part.link),
                regions: shared.regions.clone(),
                depth,
                reread: reread(
                    &part.checkpoint,
                    &part.origins,
                    &part.reread_bytes,
                    options,
                    feed.cancel(),
                ),
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

/// Returns the number of threads that copy a group of files for GPUs, if that is the best way to
/// read them. If bytes of the page cache are verified, it is not: lanes do that, so there should be
/// several.
fn copiers(files: &[ReadFile], options: &Options, destinations: &Destinations) -> Option<usize> {
    let in_memory = |file: &ReadFile| file.source().file_system().in_memory;
    let by_threads = matches!(options.engine, EngineChoice::Auto | EngineChoice::Pread);
    let by_one_lane = options.verify == Verify::Off || files.iter().all(in_memory);
    (by_threads && by_one_lane)
        .then(|| engine::copiers(files, destinations.gpus()))
        .flatten()
}

/// Returns the engine for the files of a group, and how many lanes it has. `checks`: lanes compare
/// what is read.
fn files_engine(
    files: &Arc<[ReadFile]>,
    depth: usize,
    options: &Options,
    (copiers, checks): (Option<usize>, bool),
    slab: Option<&Arc<Slab>>,
) -> (LaneEngine, LaneCount) {
    let (kind, reason) = engine::choose(options.engine, files, copiers);
    let setup = EngineSetup {
        files: Arc::clone(files),
        depth,
        copiers,
        lanes: 1,
        slab: slab.cloned(),
    };
    let engine = LaneEngine::Files {
        setup: Arc::new(setup),
        kind,
        choice: options.engine,
        reason,
        #[cfg(feature = "object")]
        store: None,
    };
    let fixed = options.lanes.map(LaneCount::fixed);
    // More lanes would not help if threads copy for a GPU: there are already as many as pay.
    let checks = checks && copiers.is_none();
    (
        engine,
        fixed.unwrap_or_else(|| lanes_for(kind, files, checks)),
    )
}

/// Returns the number of lanes of an engine for files. A ring copies pages of the page cache on the
/// submitting thread, so cached files begin with a lane for each core; other files with one lane,
/// which waits for storage most of the time. Engines with their own threads need only one, unless
/// lanes compare what is read: that may take longer than the copies of these threads.
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

/// Rejects loads whose tensors cannot be views of files.
fn refuse_views(
    checkpoint: &Checkpoint,
    tensors: &[TensorInfo],
    destinations: &Destinations,
    options: &Options,
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

/// Returns the in-flight limits of a group: those of the caller, or else by the hints of its
/// sources, and the number of threads that copy.
fn limits(
    group: usize,
    sources: &Sources,
    plan: &Plan,
    options: &Options,
    destinations: &Destinations,
) -> Limits {
    let (members, groups) = (sources.members(), sources.groups());
    let is_shared = |group: &Group| matches!(group, Group::Shared(_) | Group::Remote(_));
    let is_deep = destinations.fills_own_memory() && !groups.iter().any(is_shared);
    let files = groups[group].files();
    let is_local = !files.is_empty() && !files.iter().any(ReadFile::is_far);
    let hints_of = |source| {
        let hints = sources.hints(source);
        if is_local && !is_deep {
            hints.shallow()
        } else {
            hints
        }
    };
    let hints = ReadHints::greatest(
        (0..members.len())
            .filter(|source| members[*source].group == group)
            .map(hints_of),
    );
    let windows = plan
        .extents
        .iter()
        .filter(|extent| members[extent.source].group == group)
        .map(|extent| extent.window);
    let longest = windows.max().unwrap_or(0);
    match &groups[group] {
        Group::Files(files) => {
            let hints = match copiers(files, options, destinations) {
                Some(copiers) => hints.copied_by(copiers, longest),
                None => hints,
            };
            Limits::for_files(options, &hints, longest)
        }
        #[cfg(feature = "object")]
        Group::Cached(..) => Limits::for_files(options, &hints, longest),
        #[cfg(feature = "object")]
        Group::Objects(_) => Limits::for_objects(options, &hints, longest),
        Group::Shared(_) | Group::Remote(_) => {
            Limits::for_files(&Options::default(), &hints, longest)
        }
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
