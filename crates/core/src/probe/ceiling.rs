//! Ceiling of a load: the same reads, with the same plan and engines, without tensors.
//!
//! `tload bench` compares loads with it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Sender, unbounded};

use crate::error::Result;
use crate::load::Loader;
use crate::load::budget::raw_bytes;
use crate::load::destinations::Destinations;
use crate::load::ending::add_depths;
use crate::load::lane::{self, LaneEvents, LaneSetup, OpenSink, Refused};
use crate::load::pipeline::{Feed, LeaseOrigin};
use crate::load::prepare::Prepared;
use crate::memory::cgroup::cgroup_memory;
use crate::memory::{Pool, Slab};
use crate::options::{CacheMode, LoadOptions, Order};
use crate::report::{Counters, EngineReport, Report};
use crate::schedule::Schedule;
use crate::sink::DiscardSink;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::tensor::TensorInfo;

/// Maximum address space for the windows of a ceiling, in bytes: an object engine may have
/// thousands of small jobs in flight, and each has a slot large enough for the largest job. Only
/// used slots are touched.
const SLAB_BYTES_MAX: usize = 2 << 30;

/// Kind of baseline to compare a load with: the same reads without tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ceiling {
    /// Reads into a few registered windows that are reused: the limit of storage and engine.
    Recycled,
    /// Reads every byte into its own fresh huge-page memory, kept to the end: the limit of a load
    /// that keeps every tensor.
    Fresh,
}

/// Memory to read into without creating tensors.
struct RawMemory {
    origin: LeaseOrigin,
    /// For lanes to register. Fresh memory is not registered: that would touch all of it, serially,
    /// before the first read.
    slab: Option<Arc<Slab>>,
    /// Number of jobs that it holds.
    jobs: usize,
}

impl Loader {
    /// Reads everything that [`Self::stream`] would read, with the same plan and the same engine,
    /// and discards it. The report's seconds begin with the first read, when engines are open and
    /// memory is registered.
    ///
    /// # Errors
    ///
    /// As [`Self::stream`] and its items.
    pub fn ceiling(&self, ceiling: Ceiling) -> Result<Report> {
        self.options.validate()?;
        let options = copying(self.options.clone());
        let selected = self.selected()?;
        let destinations = Destinations::host(&selected);
        let prepared = Prepared::new(
            self.checkpoint(),
            selected,
            destinations,
            &options,
            None,
            None,
        )?;
        // Lanes that wait for a slot are woken by its return.
        let events = Arc::default();
        let RawMemory { origin, slab, jobs } = RawMemory::new(&prepared, ceiling, &events)?;
        let groups = prepared.groups().at_most(jobs);
        let feed = Arc::new(Feed::new(
            Arc::clone(&prepared.plan),
            Schedule::new(&prepared.plan, Order::Ready, groups),
            vec![origin],
            slab.clone(),
            events,
        ));
        let counters = Arc::<Counters>::default();
        let lanes = prepared.lanes(&options, &feed, &counters, &slab.into());
        let mut report = self.report(&prepared);
        let (engine, ended) = run(lanes, ceiling)?;
        let since = counters.reading_since.get();
        report.seconds = since.map_or(0.0, |since| (ended - *since).as_secs_f64());
        report.engine = engine;
        add_depths(&mut report, &feed, &prepared.group_names());
        report.tensors = prepared.tensors.len() as u64;
        report.tensor_bytes = prepared.tensors.iter().map(TensorInfo::byte_len).sum();
        "complete".clone_into(&mut report.outcome);
        counters.fill(&mut report);
        Ok(report)
    }
}

/// Returns `options` without views: a mapped load reads nothing and so has no ceiling. The copy
/// that it saves is measured instead.
fn copying(mut options: LoadOptions) -> LoadOptions {
    if options.cache == CacheMode::Map {
        options.cache = CacheMode::Auto;
    }
    options
}

/// Runs `lanes` to their end. Returns their engine, and when the last of them ended.
fn run(lanes: Vec<LaneSetup>, ceiling: Ceiling) -> Result<(EngineReport, Instant)> {
    let count = lanes.len();
    let open_sink: Arc<OpenSink<DiscardSink>> = Arc::new(move || Ok(ceiling.sink()));
    let (ended, endings) = unbounded();
    let events = || discarding(&ended);
    let (threads, opened) = lane::start(lanes, &open_sink, events).map_err(Refused::joined)?;
    let endings: Vec<_> = endings.iter().take(count).collect();
    let at = Instant::now();
    for thread in threads {
        // Joining cannot fail: the lane catches its panics.
        let _ = thread.join();
    }
    endings.into_iter().collect::<Result<()>>()?;
    Ok((opened.report, at))
}

/// Returns the callbacks of a lane whose result is sent to `ended`.
fn discarding(ended: &Sender<Result<()>>) -> LaneEvents<()> {
    let ended = ended.clone();
    LaneEvents {
        deliver: Box::new(Vec::clear),
        failing: Box::new(|_| ()),
        // Sending cannot fail: the receiver waits for every lane.
        ended: Box::new(move |result| drop(ended.send(result))),
    }
}

impl Ceiling {
    fn sink(self) -> DiscardSink {
        match self {
            Self::Recycled => DiscardSink::recycling(),
            Self::Fresh => DiscardSink::keeping(),
        }
    }
}

impl RawMemory {
    fn new(prepared: &Prepared, ceiling: Ceiling, events: &Arc<EventCount>) -> Result<Self> {
        let plan = &prepared.plan;
        match ceiling {
            Ceiling::Recycled => {
                let window = plan.window_bytes_max().max(1);
                let group = cgroup_memory(Path::new("/"));
                let most = raw_bytes(group.as_ref(), SLAB_BYTES_MAX) / window;
                let jobs = prepared.raw_slots(most).min(most).max(1);
                let slab = Slab::new(plan.window_bytes_max(), jobs, Arc::clone(events))?;
                Ok(Self {
                    origin: LeaseOrigin::Slots,
                    slab: Some(slab),
                    jobs,
                })
            }
            Ceiling::Fresh => {
                let bytes = plan.extents.iter().map(|extent| extent.window).sum();
                let pool = Pool::new(u64::MAX, Arc::default());
                let whole = pool.try_region(bytes, 1)?.expect("the budget has no limit");
                Ok(Self {
                    origin: LeaseOrigin::Whole(Mutex::new(whole)),
                    slab: None,
                    jobs: usize::MAX,
                })
            }
        }
    }
}
