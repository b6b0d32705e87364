//! The leader's reads for the ranks of its node: a load whose tensors are shared regions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::load::Loader;
use crate::load::destinations::Destinations;
use crate::load::lane::{self, LaneEvents, OpenSink, Refused};
use crate::load::outputs::published_pool;
use crate::load::pipeline::{Feed, LeaseOrigin};
use crate::load::prepare::Prepared;
use crate::memory::Region;
use crate::options::{Options, Order};
use crate::plan::{RankWant, SharePlan};
use crate::ranks::hub::{Carried, Hub, encode_plan};
use crate::ranks::messages::{RankPlan, RankStatistics, RegionOrigin};
use crate::report::Counters;
use crate::schedule::Schedule;
use crate::sink::{PublishSink, Publisher};
use crate::sync::lock::Mutex;
use crate::verify::{self, Check};

/// Reads of the leader of a node, for all of its ranks.
pub(crate) struct Reader {
    rank: usize,
    options: Options,
    hub: Hub,
    prepared: Prepared,
    /// By region of the plan.
    origins: Vec<RegionOrigin>,
    feed: Arc<Feed>,
    counters: Arc<Counters>,
    check: Option<Arc<Check>>,
    /// Lanes that have not ended.
    lanes: AtomicUsize,
    failure: Mutex<Option<Error>>,
    /// By region: announced.
    begun: Mutex<Vec<bool>>,
}

impl Reader {
    /// Plans the reads of everything that several ranks want.
    pub(super) fn new(
        loader: &Loader,
        shared: &SharePlan,
        hub: Hub,
        rank: usize,
    ) -> Result<Arc<Self>> {
        let checkpoint: &Checkpoint = &loader.checkpoint;
        let tensors = shared.shared.iter().map(|range| {
            let info = &checkpoint.tensors()[range.tensor];
            info.ranged(range.range.clone())
        });
        let tensors: Vec<_> = tensors.collect();
        let mut options = loader.options.clone();
        // Half of the node's memory: the ranks divide the rest. All ranks take regions in file
        // order, so that each finds what it waits for among those that are kept.
        options.memory_limit = options.memory_limit.map(|limit| limit / 2);
        options.order = Order::File;
        let destinations = Destinations::host(&tensors);
        let prepared = Prepared::new(checkpoint, tensors, destinations, &options, None)?;
        let tensors = verify::Loaded::new(&prepared.plan, &prepared.tensors, loader.by_name);
        let given = loader.expectations.as_ref();
        let check = verify::check(checkpoint, tensors, given, &options.verify, options.timeout)?;
        let pool = published_pool(&prepared, &options)?;
        let events = Arc::clone(pool.events());
        let schedule = Schedule::new(&prepared.plan, options.order, prepared.groups());
        let origins = vec![LeaseOrigin::Published(pool)];
        let plan = Arc::clone(&prepared.plan);
        let feed = Feed::new(plan, schedule, origins, None, events).checked(check.clone());
        let origins: Vec<RegionOrigin> = prepared
            .plan
            .regions
            .iter()
            .map(|region| {
                let first = &prepared.plan.extents[region.extents.start];
                let piece = &prepared.plan.pieces[first.pieces.start];
                RegionOrigin {
                    shard: prepared.tensors[piece.tensor].shard(),
                    offset: first.offset,
                    len: region.bytes,
                }
            })
            .collect();
        if u32::try_from(origins.len()).is_err() {
            let message = format!("{} shared regions are too many", origins.len());
            return Err(
                Error::new(ErrorKind::InvalidRequest, message).with_hint("select fewer tensors")
            );
        }
        Ok(Arc::new(Self {
            rank,
            options,
            hub,
            begun: Mutex::new(vec![false; origins.len()]),
            origins,
            prepared,
            feed: Arc::new(feed),
            counters: Arc::default(),
            check,
            lanes: AtomicUsize::new(0),
            failure: Mutex::default(),
        }))
    }

    /// Returns the part of each rank in the plan, as it is sent.
    pub(super) fn plans(
        &self,
        wants: &[Vec<RankWant>],
        shared: &SharePlan,
    ) -> Result<Vec<Carried>> {
        let targets = &self.prepared.plan.targets;
        let place = |want: &RankWant, range: usize| {
            let (region, offset) = targets[range].place.expect("shared ranges have bytes");
            let behind = want.range.start - shared.shared[range].range.start;
            (region, offset as u64 + behind)
        };
        let plans = wants.iter().zip(&shared.by_rank).map(|(wants, ranges)| {
            let places = wants.iter().zip(ranges);
            let tensors = places.map(|(want, range)| range.map(|range| place(want, range)));
            encode_plan(&RankPlan {
                regions: self.origins.clone(),
                tensors: tensors.collect(),
                unique_bytes: shared.unique_bytes,
            })
        });
        plans.collect()
    }

    /// Returns the bytes of each region, and the positions of the ranks that need it.
    pub(super) fn regions(&self, shared: &SharePlan) -> Vec<(u64, Vec<usize>)> {
        let plan = &self.prepared.plan;
        let mut needed: Vec<(u64, Vec<usize>)> = plan
            .regions
            .iter()
            .map(|region| {
                let extents = plan.extents[region.extents.clone()].iter();
                (extents.map(|extent| extent.needed as u64).sum(), Vec::new())
            })
            .collect();
        for (range, target) in shared.shared.iter().zip(&plan.targets) {
            let Some((region, _)) = target.place else {
                continue;
            };
            let ranks = &mut needed[region].1;
            ranks.extend(&range.ranks);
            ranks.sort_unstable();
            ranks.dedup();
        }
        needed
    }

    /// Starts the lanes.
    pub(super) fn start(self: &Arc<Self>) -> Result<()> {
        let lanes = self
            .prepared
            .lanes(&self.options, &self.feed, &self.counters, None);
        if lanes.is_empty() {
            return Ok(());
        }
        self.lanes.store(lanes.len(), Ordering::SeqCst);
        let (plan, publisher) = (Arc::clone(&self.prepared.plan), Arc::clone(self));
        let open_sink: Arc<OpenSink<PublishSink>> = Arc::new(move || {
            let publisher: Arc<dyn Publisher> = Arc::clone(&publisher) as _;
            Ok(PublishSink::new(Arc::clone(&plan), publisher))
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
        // The lanes end by themselves: the hub serves the other ranks also when this one is done.
        started.map(drop).map_err(Refused::joined)
    }

    /// Starts no more reads.
    pub(super) fn stop(&self) {
        self.feed.stop();
    }

    /// Returns whether reads wait for memory.
    pub(super) fn is_starved(&self) -> bool {
        self.lanes.load(Ordering::SeqCst) > 0 && self.feed.in_flight().jobs == 0
    }

    /// Bytes read from storage so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.counters.read_bytes()
    }

    /// Statistics of the ranks that have finished.
    pub(super) fn statistics(&self) -> Vec<(usize, RankStatistics)> {
        self.hub.statistics()
    }

    /// Adds the verification of what was read to a report.
    pub(crate) fn complete(&self, report: &mut crate::Report) {
        if let Some(check) = &self.check {
            check.report(report);
        }
    }

    fn fail(&self, error: &Error) {
        let mut failure = self.failure.lock();
        if failure.is_none() && error.kind() != ErrorKind::Cancelled {
            *failure = Some(error.again());
            self.hub.failed(self.rank, error);
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
            return;
        }
        let check = || self.check.as_ref().map_or(Ok(()), |check| check.finish());
        if let Err(error) = sources.verify_unchanged().and_then(|()| check()) {
            self.fail(&error);
        }
    }
}

impl Publisher for Reader {
    fn filled(&self, region: usize, memory: &Arc<Region>, from: u64, to: u64) {
        let is_new = !std::mem::replace(&mut self.begun.lock()[region], true);
        if is_new {
            self.hub.begun(region, Arc::clone(memory));
        }
        self.hub.filled(region, from, to);
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}
