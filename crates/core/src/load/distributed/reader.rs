//! The leader's reads for the ranks of its node: a load whose tensors are shared regions.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::across::Across;
use crate::checkpoint::OpenedCheckpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::groups::{NodeShares, RemoteReports};
use crate::load::Loader;
use crate::load::check::{self, LateCheck};
use crate::load::destinations::Destinations;
use crate::load::lane::{self, LaneEvents, OpenSink, Refused};
use crate::load::outputs::published;
use crate::load::pipeline::{Feed, LeaseOrigin};
use crate::load::prepare::Prepared;
use crate::load::source_table::Others;
use crate::memory::{PublishedPool, Region, Slab};
use crate::options::{LoadOptions, OnPeerLoss, Order};
use crate::plan::{RankWant, SharePlan, SharedRange};
use crate::report::{Counters, EngineReport};
use crate::schedule::Schedule;
use crate::sink::{PublishSink, PublishedBands, Publisher};
use crate::sync::lock::Mutex;
use crate::tensor::TensorInfo;
use crate::verify::Verify;
use tload_ranks::Joining;
use tload_ranks::{Carried, Dispatcher, encode};
use tload_ranks::{Cluster, ClusterEvent};
use tload_ranks::{RankPlace, RankPlan, RankStatistics, RegionOrigin};

/// Reads of the leader of a node, for all of its ranks.
pub(crate) struct Reader {
    rank: usize,
    options: LoadOptions,
    dispatcher: Dispatcher,
    prepared: Prepared,
    /// By published region.
    origins: Vec<RegionOrigin>,
    /// Regions of the plan that are published in bands.
    bands: Arc<PublishedBands>,
    pool: PublishedPool,
    /// Memory that the reads take place in, if that is not the pool's; for the lanes.
    slab: Mutex<Option<Arc<Slab>>>,
    feed: Arc<Feed>,
    counters: Arc<Counters>,
    /// Engine of the lanes, once it is open.
    engine: OnceLock<EngineReport>,
    check: Arc<LateCheck>,
    /// Lanes that have not ended.
    lanes: AtomicUsize,
    failure: Mutex<Option<Error>>,
    /// Leaders of the nodes that share with this one.
    cluster: Option<Arc<Cluster>>,
    /// Everything that this node reads has been read and verified.
    is_read: AtomicBool,
    /// Bytes read in place of other nodes.
    reread_bytes: Arc<AtomicU64>,
    /// By region: announced.
    begun: Mutex<Vec<bool>>,
}

impl Reader {
    /// Plans the reads of everything that several ranks want, which `rank` leads.
    pub(super) fn new(
        loader: &Loader,
        shared: &SharePlan,
        dispatcher: Dispatcher,
        rank: usize,
        across: Option<&Across>,
    ) -> Result<Arc<Self>> {
        let checkpoint: &OpenedCheckpoint = &loader.checkpoint;
        let tensors = tensors_of(&shared.shared, checkpoint);
        // Shared memory takes half of the node's limit; the ranks divide the rest. All ranks take
        // regions in file order, so that each finds the next one among those that are kept.
        let mut options = loader.options.with_divided_memory(2);
        options.order = Order::File;
        // Ranks align tensors when they deliver them. Aligned here, each tensor would need a
        // separate region, which every rank maps.
        options.align = None;
        let destinations = Destinations::host(&tensors).published();
        let owners = across.map(|across| across.owners(shared));
        let elsewhere: HashSet<usize> = tensors
            .iter()
            .zip(owners.iter().flatten())
            .filter(|(_, owner)| owner.is_some())
            .map(|(tensor, _)| tensor.shard())
            .collect();
        let cluster = across.map(|across| Arc::clone(&across.cluster));
        let reread_bytes = Arc::<AtomicU64>::default();
        let received = owners.filter(|owners| owners.iter().any(Option::is_some));
        let others = received.zip(cluster.as_ref()).map(|(owners, cluster)| {
            Others::Nodes(NodeShares {
                cluster: Arc::clone(cluster),
                owners,
                reread_bytes: Arc::clone(&reread_bytes),
                checkpoint: checkpoint.clone(),
            })
        });
        let mut prepared =
            Prepared::new(checkpoint, tensors, destinations, &options, others, None)?;
        let bands = PublishedBands::new(Arc::make_mut(&mut prepared.plan), &shared.shared);
        let bands = Arc::new(bands);
        prepared.scatters = bands.are_any();
        // The divisor is that of the ranks, so that a limit that suffices here suffices for them.
        prepared.limit_divisor = 2 * shared.by_rank.len() as u64;
        // Tensors of other nodes are compared by their owners.
        let tensors = check::Loaded::new(
            &prepared.plan,
            &prepared.tensors,
            Arc::clone(&prepared.sources) as _,
            loader.by_name,
        )
        .without(elsewhere);
        let given = loader.expectations.as_ref();
        let check = check::check(checkpoint, tensors, given, &options.verify, options.timeout)?;
        let check = LateCheck::ready(check);
        // The lane for other nodes waits for these events, and fetches more once there is memory.
        let events = (cluster.as_ref()).map_or_else(Arc::default, |it| Arc::clone(it.events()));
        let of_bands = Arc::clone(&bands);
        let (memory, slab) = published(&prepared, of_bands, &options, Arc::clone(&events))?;
        let pool = memory.pool.clone();
        let schedule = Schedule::new(&prepared.plan, options.order, prepared.groups());
        let origins = vec![LeaseOrigin::Published(memory)];
        let plan = Arc::clone(&prepared.plan);
        let feed = Feed::new(plan, schedule, origins, slab.clone(), events);
        let origins = origins_of(&prepared, &bands)?;
        Ok(Arc::new(Self {
            rank,
            options,
            dispatcher,
            begun: Mutex::new(vec![false; origins.len()]),
            origins,
            prepared,
            bands,
            pool,
            slab: Mutex::new(slab),
            feed: Arc::new(feed.checked(Arc::clone(&check))),
            counters: Arc::default(),
            engine: OnceLock::new(),
            check,
            lanes: AtomicUsize::new(0),
            failure: Mutex::default(),
            cluster,
            is_read: AtomicBool::new(false),
            reread_bytes,
        }))
    }

    /// Returns the part of each rank in the plan, as it is sent.
    pub(super) fn plans(
        &self,
        wants: &[Vec<RankWant>],
        shared: &SharePlan,
        reason: Option<&str>,
    ) -> Result<Vec<Carried>> {
        let targets = &self.prepared.plan.targets;
        let place = |want: &RankWant, range: usize| {
            let (region, offset) = targets[range].place.expect("shared ranges have bytes");
            let first = self.bands.first(region);
            if let Some((band, offset, strides)) = shared.shared[range].place(want) {
                let region = first + band;
                return RankPlace {
                    region,
                    offset,
                    strides,
                };
            }
            let behind = want.range.start - shared.shared[range].range.start;
            RankPlace {
                region: first,
                offset: offset as u64 + behind,
                strides: want.strides.clone(),
            }
        };
        let planned_bytes = self.planned_bytes(wants, shared);
        // Wants of other nodes have no names.
        let nodes = self
            .cluster
            .iter()
            .flat_map(|cluster| cluster.ranks())
            .map(|_| (&[][..], &[][..]));
        let ranks = wants
            .iter()
            .zip(&shared.by_rank)
            .map(|(wants, ranges)| (&wants[..], &ranges[..]));
        let plans = ranks.chain(nodes).map(|(wants, ranges)| {
            let places = wants.iter().zip(ranges);
            let tensors = places.map(|(want, range)| range.map(|range| place(want, range)));
            encode(&RankPlan {
                regions: self.origins.clone(),
                tensors: tensors.collect(),
                unique_bytes: shared.unique_bytes,
                planned_bytes,
                is_cluster: self.cluster.is_some(),
                reason: reason.map(str::to_owned),
            })
        });
        plans.collect()
    }

    /// Returns the bytes that the ranks of the node are to read: what is shared, here, and each of
    /// them the rest of what it wants.
    fn planned_bytes(&self, wants: &[Vec<RankWant>], shared: &SharePlan) -> u64 {
        let sources = &self.prepared.sources;
        let is_read_here = |source: usize| !sources.group_of(source).is_received();
        let extents = self
            .prepared
            .plan
            .extents
            .iter()
            .filter(|extent| is_read_here(extent.source));
        let together: u64 = extents.map(|extent| extent.needed as u64).sum();
        let ranks = wants.iter().zip(&shared.by_rank);
        let alone: u64 = ranks
            .flat_map(|(wants, ranges)| wants.iter().zip(ranges))
            .filter(|(_, range)| range.is_none())
            .map(|(want, _)| want.range.end - want.range.start)
            .sum();
        together + alone
    }

    /// Returns the bytes of each published region, and the positions of the ranks that need it.
    /// Behind `own` ranks come the nodes that they are sent to.
    pub(super) fn regions(
        &self,
        shared: &SharePlan,
        across: Option<&Across>,
        own: usize,
    ) -> Vec<(u64, Vec<usize>)> {
        let plan = &self.prepared.plan;
        let origins = self.origins.iter();
        let mut needed: Vec<(u64, Vec<usize>)> = origins
            .map(|origin| (origin.filled_bytes as u64, Vec::new()))
            .collect();
        for (range, target) in shared.shared.iter().zip(&plan.targets) {
            let Some((region, _)) = target.place else {
                continue;
            };
            let first = self.bands.first(region);
            for (band, needed) in range.bands.iter().zip(&mut needed[first..]) {
                needed.1.clone_from(&band.takers);
            }
            if !range.bands.is_empty() {
                continue;
            }
            let ranks = &mut needed[first].1;
            ranks.extend(&range.ranks);
            ranks.extend(across.iter().flat_map(|it| it.needed_by(range.common, own)));
            ranks.sort_unstable();
            ranks.dedup();
        }
        needed
    }

    /// Begins to serve other nodes, which have `joined` the dispatcher.
    pub(super) fn serve(
        self: &Arc<Self>,
        joined: Vec<Joining>,
        shared: &SharePlan,
        across: &Across,
        deadline: Instant,
    ) -> Result<()> {
        let with_plan = |mut joining: Joining| {
            let plan = joining.plan(deadline)?;
            Ok((joining, plan))
        };
        let joined = joined.into_iter().map(with_plan).collect::<Result<_>>()?;
        // Ranks may wait for other nodes after this one's reads have ended.
        let reader = Arc::clone(self);
        let listener = Arc::new(move |event: &ClusterEvent<'_>| match event {
            ClusterEvent::Failed(error) => reader.node_failed(error),
            ClusterEvent::Whole => reader.announce_whole(),
        });
        across.cluster.begin(
            joined,
            across.served(shared, &self.prepared.plan.targets),
            &across.expected(),
            self.options.verify != Verify::Off,
            listener,
            deadline,
        )
    }

    fn node_failed(&self, error: &Error) {
        let is_read_here = error.kind() == ErrorKind::Peer
            && self.options.on_peer_loss == OnPeerLoss::Read
            && self.options.verify == Verify::Off;
        if !is_read_here {
            self.fail(error);
            self.feed.stop();
        }
    }

    /// Announces that everything has been read and verified, here and on the nodes that read for
    /// this one.
    fn announce_whole(&self) {
        let is_read = self.is_read.load(Ordering::SeqCst);
        let is_verified = self.options.verify != Verify::Off;
        let cluster = self.cluster.as_ref();
        if is_read && cluster.is_none_or(|cluster| !is_verified || cluster.are_whole()) {
            self.dispatcher.whole();
            if let Some(cluster) = cluster {
                cluster.done();
            }
        }
    }

    /// Announces that everything that this node reads has been read and verified.
    fn read(&self) {
        self.is_read.store(true, Ordering::SeqCst);
        if let Some(cluster) = &self.cluster {
            cluster.whole();
        }
        self.announce_whole();
    }

    /// Receives nothing more: no rank of this node needs it.
    pub(super) fn leave(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.leave();
        }
    }

    /// Bytes received from other nodes so far, and those read in their place.
    pub(super) fn across_bytes(&self) -> (u64, u64) {
        let reread = self.reread_bytes.load(Ordering::Relaxed);
        (self.counters.received_bytes(), reread)
    }

    /// Starts the lanes.
    pub(super) fn start(self: &Arc<Self>) -> Result<()> {
        let slab = self.slab.lock().take();
        let prepared = &self.prepared;
        let lanes = prepared.lanes(&self.options, &self.feed, &self.counters, &slab.into());
        if lanes.is_empty() {
            self.read();
            return Ok(());
        }
        self.lanes.store(lanes.len(), Ordering::SeqCst);
        let reader = Arc::clone(self);
        let open_sink: Arc<OpenSink<PublishSink>> = Arc::new(move || {
            let (plan, bands) = (&reader.prepared.plan, &reader.bands);
            let publisher: Arc<dyn Publisher> = Arc::clone(&reader) as _;
            Ok(PublishSink::new(
                Arc::clone(plan),
                Arc::clone(bands),
                publisher,
            ))
        });
        let events = || {
            let (failing, ended) = (Arc::clone(self), Arc::clone(self));
            LaneEvents {
                deliver: Box::new(Vec::clear),
                failing: Box::new(move |error| failing.fail(error)),
                ended: Box::new(move |result| ended.lane_ended(&result)),
            }
        };
        let started = lane::start(lanes, &open_sink, events);
        // The threads are not joined: the leader serves other ranks after its own load has ended.
        let (_, opened) = started.map_err(|refused| self.refused(refused))?;
        let _ = self.engine.set(opened.report);
        Ok(())
    }

    /// Ends a load of which a lane did not start. Waits for none of the others, which may be
    /// blocked in storage.
    fn refused(&self, refused: Refused) -> Error {
        for _ in 0..refused.missing {
            self.lane_ended(&Err(refused.error.again()));
        }
        refused.error
    }

    /// Starts no more reads.
    pub(super) fn stop(&self) {
        self.feed.stop();
    }

    /// Returns whether reads wait for memory.
    pub(super) fn is_starved(&self) -> bool {
        self.lanes.load(Ordering::SeqCst) > 0 && self.feed.in_flight().jobs == 0
    }

    /// Uses more of the budget. Returns false if all of it is in use.
    pub(super) fn widen(&self) -> bool {
        self.pool.widen()
    }

    /// Statistics of the ranks that have finished.
    pub(super) fn statistics(&self) -> Vec<(usize, RankStatistics)> {
        self.dispatcher.statistics()
    }

    /// Adds what was read to the report of this rank, and its verification.
    pub(super) fn complete(&self, report: &mut crate::Report) {
        self.counters.add_to(report);
        report.stalls += self.feed.stalled();
        if let Some(engine) = self.engine.get() {
            let own = std::mem::replace(&mut report.engine, engine.clone());
            report.engine.add(own);
        }
        let sources = &self.prepared.sources;
        let RemoteReports { cache, mirrors } = sources.remote_reports();
        report.cache = report.cache.take().or(cache);
        if report.mirrors.is_empty() {
            report.mirrors = mirrors;
        }
        report.notes.extend(sources.notes());
        self.check.report(report);
    }

    fn fail(&self, error: &Error) {
        let mut failure = self.failure.lock();
        if failure.is_none() && error.kind() != ErrorKind::Cancelled {
            *failure = Some(error.again());
            self.dispatcher.failed(self.rank, error);
            if let Some(cluster) = &self.cluster {
                cluster.failed(error);
            }
        }
    }

    fn lane_ended(&self, result: &Result<()>) {
        if let Err(error) = result {
            self.fail(error);
        }
        if self.lanes.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let is_whole = result.is_ok() && !self.feed.cancel().is_cancelled();
        self.feed.close();
        let sources = &self.prepared.sources;
        sources.files().for_each(crate::storage::ReadFile::finish);
        if !is_whole {
            if let Some(cluster) = &self.cluster {
                cluster.done();
            }
            return;
        }
        match sources
            .verify_unchanged()
            .and_then(|()| self.check.finish())
        {
            Ok(()) => self.read(),
            Err(error) => self.fail(&error),
        }
    }
}

/// Returns the bytes of files that the published regions of a plan hold.
fn origins_of(prepared: &Prepared, bands: &PublishedBands) -> Result<Vec<RegionOrigin>> {
    let plan = &prepared.plan;
    let mut origins = Vec::with_capacity(plan.regions.len());
    for (index, region) in plan.regions.iter().enumerate() {
        let extents = &plan.extents[region.extents.clone()];
        let piece = &plan.pieces[extents[0].pieces.start];
        let whole = RegionOrigin {
            shard: prepared.tensors[piece.tensor].shard(),
            offset: extents[0].offset,
            strides: None,
            len: region.bytes,
            filled_bytes: extents.iter().map(|extent| extent.needed).sum(),
        };
        let bands = bands.of(index);
        origins.extend(bands.iter().map(|band| {
            let bytes = usize::try_from(band.bytes()).expect("inside of a region");
            RegionOrigin {
                offset: band.range.start,
                strides: Some(band.strides.clone()),
                len: bytes,
                filled_bytes: bytes,
                ..whole
            }
        }));
        if bands.is_empty() {
            origins.push(whole);
        }
    }
    if u32::try_from(origins.len()).is_err() {
        let message = format!("{} shared regions are too many", origins.len());
        let error = Error::new(ErrorKind::InvalidRequest, message);
        return Err(error.with_hint("select fewer tensors"));
    }
    Ok(origins)
}

impl Publisher for Reader {
    fn filled(&self, region: usize, memory: &Arc<Region>, from: u64, to: u64) {
        let is_new = !std::mem::replace(&mut self.begun.lock()[region], true);
        if is_new {
            self.dispatcher.begun(region, Arc::clone(memory));
        }
        self.dispatcher.filled(region, from, to);
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

/// Returns the ranges of tensors that several ranks want, as tensors.
fn tensors_of(shared: &[SharedRange], checkpoint: &OpenedCheckpoint) -> Vec<TensorInfo> {
    let infos = checkpoint.tensors();
    let ranged = |it: &SharedRange| infos[it.tensor].ranged(it.range.clone());
    shared.iter().map(ranged).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::format::Dtype;
    use crate::options::Location;
    use crate::plan::{self, ShareRules};
    use crate::ranks::Group;
    use tload_ranks::Hello;
    use tload_ranks::Request;
    use tload_ranks::{Node, Role, Scope};
    use tload_testing::fixtures::FileBuilder;
    use tload_testing::{nodes_as_threads, ranks_as_threads};

    /// Longer than two threads take to meet.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Lets two ranks join, and returns the dispatcher of the first, which leads its node.
    fn dispatcher(group: &[Arc<dyn Group>]) -> Dispatcher {
        let join = |group: &Arc<dyn Group>| -> Node {
            let (hello, request) = (Hello::new(Vec::new(), Vec::new()), Request::default());
            let deadline = Instant::now() + PATIENCE;
            let joined = tload_ranks::join(&**group, hello, &request, Scope::Cluster, deadline);
            joined.expect("one process")
        };
        let (leader, other) = thread::scope(|scope| {
            let other = scope.spawn(|| join(&group[1]));
            (join(&group[0]), other.join().expect("no panic"))
        });
        if let Role::Leader(dispatcher, _) = other.role {
            dispatcher.close();
        }
        match leader.role {
            Role::Leader(dispatcher, _) => dispatcher,
            Role::Follower(_) | Role::Alone => unreachable!("threads of one process share"),
        }
    }

    /// Plans the reads of one tensor that two ranks want.
    fn reader(dispatcher: &Dispatcher, across: Option<&Across>) -> Arc<Reader> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = FileBuilder::new().tensor("w", Dtype::U8, &[4], b"good");
        std::fs::write(folder.path().join("model.safetensors"), file.build()).expect("room");
        let loader = Loader::open(Location::from_path(folder.path())).expect("opens");
        let want = RankWant {
            tensor: 0,
            source: 0,
            range: loader.checkpoint().tensors()[0].file_range(),
            strides: None,
            whole: true,
        };
        let rules = ShareRules {
            all: true,
            alignment: 4096,
            gap_bytes: 0,
        };
        let shared = plan::share(&[vec![want.clone()], vec![want]], &rules);
        Reader::new(&loader, &shared, dispatcher.clone(), 0, across).expect("opens")
    }

    /// One lane has begun a read that never completes; another lane could not be started.
    #[test]
    fn rejected_reads_do_not_wait_for_hung_lane() {
        let dispatcher = dispatcher(&ranks_as_threads(2));
        let reader = reader(&dispatcher, None);
        reader.lanes.store(2, Ordering::SeqCst);
        let (never, hung) = channel::<()>();
        let lane = thread::spawn(move || {
            let _ = hung.recv();
        });
        let told = reader.refused(Refused {
            error: Error::new(ErrorKind::OutOfMemory, "no more threads"),
            threads: vec![lane],
            missing: 1,
        });
        assert_eq!(told.message(), "no more threads");
        assert_eq!(reader.lanes.load(Ordering::SeqCst), 1);
        drop(never);
        dispatcher.close();
    }

    #[test]
    fn memory_that_comes_back_wakes_lane_of_other_nodes() {
        let (group, _network) = nodes_as_threads(2, 1);
        let dispatcher = dispatcher(&group);
        let across = Across::connect(&*group[0], &[0, 1], Instant::now() + PATIENCE);
        let across = across.expect("connects").expect("has a network");
        let reader = reader(&dispatcher, Some(&across));
        let region = reader.pool.try_region(4, 1).expect("memory").expect("fits");
        let seen = across.cluster.events().count();
        drop(region);
        assert_ne!(across.cluster.events().count(), seen);
        dispatcher.close();
    }
}
