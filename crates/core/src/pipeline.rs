//! The loop of one lane: lease → engine → sink → lease.
//!
//! The only code that sees both seams. It decides nothing: the [`Feed`] says what to read next and into which memory, the
//! engine fills it, the sink completes tensors. After the first failure it starts nothing more, reaps everything in flight, and
//! returns that failure.
//!
//! ```text
//!   feed.take() ─▶ Job ─▶ engine.submit … engine.reap ─▶ Done ─▶ sink.submit … sink.reap ─▶ deliver
//!        ▲                                                 │
//!        └──────────────── feed.ended() ◀──────────────────┘
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::buffer::{Bell, Pool, RegionWriter, Slab};
use crate::engine::{Done, Engine, Job, Wait};
use crate::error::{ErrorKind, Result};
use crate::over::Over;
use crate::plan::{Extent, Plan};
use crate::report::{Counters, Stage};
use crate::schedule::{InFlight, Next, Schedule};
use crate::sink::{DeviceRegions, Sink};

/// Where leases come from.
#[derive(Debug)]
pub enum Memory {
    /// Final memory of tensors.
    Regions(Pool),
    /// Slots of the feed's slab; where the bytes go is the sink's to know.
    Slots,
    /// The same, on the way to device memory that regions get when they begin.
    Device(Arc<DeviceRegions>),
    /// One region for everything, filled in the order of the reads.
    Whole(Mutex<RegionWriter>),
}

/// What all lanes of a load share: the schedule and the memory.
#[derive(Debug)]
pub struct Feed {
    plan: Arc<Plan>,
    /// By destination.
    memories: Vec<Memory>,
    state: Mutex<FeedState>,
    bell: Arc<Bell>,
    over: Arc<Over>,
}

#[derive(Debug)]
struct FeedState {
    schedule: Schedule,
    /// The unread rest of each open region, by region.
    writers: Vec<Option<RegionWriter>>,
    /// Staging memory, until the load is over.
    slab: Option<Arc<Slab>>,
}

/// What a lane gets when it asks for work.
#[derive(Debug)]
enum Take {
    Job(Job),
    /// Nothing now; ask again when the bell has rung.
    Wait,
    /// Nothing any more.
    Done,
}

impl Feed {
    /// A feed of `plan` in the order of `schedule` into `memories`, one for each destination, by way of `slab` if any of them has
    /// its slots; `bell` is the one that they ring.
    pub fn new(
        plan: Arc<Plan>,
        schedule: Schedule,
        memories: Vec<Memory>,
        slab: Option<Arc<Slab>>,
        bell: Arc<Bell>,
    ) -> Self {
        let writers = plan.regions.iter().map(|_| None).collect();
        Self {
            plan,
            memories,
            state: Mutex::new(FeedState {
                schedule,
                writers,
                slab,
            }),
            bell,
            over: Arc::default(),
        }
    }

    /// Raised when nothing more is to be started: for engines that can let go of what they have in flight.
    pub fn over(&self) -> &Arc<Over> {
        &self.over
    }

    /// The memory that leases come from, by destination.
    pub fn memories(&self) -> &[Memory] {
        &self.memories
    }

    /// Lanes that wait for memory are to look again.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Starts nothing more. What is in flight ends by itself.
    pub fn stop(&self) {
        self.lock().schedule.stop();
        self.bell.ring();
        self.over.raise();
    }

    /// The load is over: starts nothing more and gives back what was kept for later reads. Windows in flight and tensors keep
    /// their memory.
    pub fn close(&self) {
        self.stop();
        let left = {
            let mut state = self.lock();
            (std::mem::take(&mut state.writers), state.slab.take())
        };
        // Without the lock: unmapping can take a while.
        drop(left);
        for memory in &self.memories {
            match memory {
                Memory::Regions(pool) => pool.close(),
                Memory::Device(regions) => regions.close(),
                Memory::Slots | Memory::Whole(_) => {}
            }
        }
    }

    /// What is in flight now, over all lanes.
    pub fn in_flight(&self) -> InFlight {
        self.lock().schedule.in_flight()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FeedState> {
        // A panic of another lane ends the load; the schedule itself is never left half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, group: usize) -> Result<Take> {
        let plan = &*self.plan;
        let mut state = self.lock();
        // Whatever comes next might need a slot. Only this lock's owner takes one, so it is still there below.
        if state
            .slab
            .as_ref()
            .is_some_and(|slab| !slab.has_free_slot())
        {
            return Ok(if state.schedule.is_stopped() {
                Take::Done
            } else {
                Take::Wait
            });
        }
        let FeedState {
            schedule,
            writers,
            slab,
        } = &mut *state;
        let turn = schedule.turn();
        let next = schedule.next(group, plan, |region| {
            let region_plan = &plan.regions[region];
            match &self.memories[region_plan.destination] {
                Memory::Regions(pool) => {
                    writers[region] = pool.try_region(region_plan.bytes, region_plan.tensors)?;
                    Ok(writers[region].is_some())
                }
                Memory::Device(regions) => regions.try_begin(region),
                // Windows are taken extent by extent.
                Memory::Slots | Memory::Whole(_) => Ok(true),
            }
        })?;
        if schedule.turn() != turn {
            self.bell.ring();
        }
        let extent_index = match next {
            Next::Extent(index) => index,
            Next::Deep | Next::Starved => return Ok(Take::Wait),
            Next::Done => return Ok(Take::Done),
        };
        let extent = &plan.extents[extent_index];
        let lease = match &self.memories[plan.regions[extent.region].destination] {
            Memory::Regions(_) => {
                let writer = writers[extent.region]
                    .as_mut()
                    .expect("admitted before its extents");
                let lease = writer.carve(extent.window);
                if extent_index + 1 == plan.regions[extent.region].extents.end {
                    writers[extent.region] = None;
                }
                lease
            }
            Memory::Slots | Memory::Device(_) => slab
                .as_ref()
                .and_then(|slab| slab.try_lease(extent.window))
                .expect("a slot was free, and nobody else takes any"),
            Memory::Whole(writer) => writer
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .carve(extent.window),
        };
        Ok(Take::Job(Job {
            extent: extent_index,
            source: schedule.member(extent.source).index,
            offset: extent.offset,
            needed: extent.needed,
            lease,
        }))
    }

    fn ended(&self, extent: &Extent) {
        self.lock().schedule.ended(extent);
        self.bell.ring();
    }
}

/// Runs one lane of `group` until nothing is left, or to the first failure.
///
/// `deliver` gets every finished tensor. `counters` is added to.
///
/// # Errors
///
/// The first failure of engine or sink, after all that was in flight has come back.
pub fn run<E: Engine, S: Sink>(
    feed: &Feed,
    group: usize,
    engine: &mut E,
    sink: &mut S,
    lane: &LaneWork<'_, S::Tensor>,
) -> Result<()> {
    let mut watch = Watch {
        counters: lane.counters,
        since: Instant::now(),
    };
    lane.counters.reading_since.get_or_init(Instant::now);
    let mut failure = None;
    let mut done: Vec<Done> = Vec::new();
    let mut ready = Vec::new();
    // The window of every extent that the engine has.
    let mut out = HashMap::with_capacity(engine.depth());
    loop {
        let rung = feed.bell.count();
        let mut exhausted = false;
        while failure.is_none() && engine.in_flight() < engine.depth() {
            match feed.take(group) {
                Ok(Take::Job(job)) => {
                    out.insert(job.extent, job.lease.start());
                    engine.submit(job);
                }
                Ok(Take::Wait) => break,
                Ok(Take::Done) => {
                    exhausted = true;
                    break;
                }
                Err(error) => failure = Some(error),
            }
        }
        watch.lap(Stage::Submit);

        if !ready.is_empty() {
            // The reads that were just queued begin before tensors are handed over: that wakes the caller, who may take this
            // lane's core.
            engine.reap(Wait::No, &mut done);
            (lane.deliver)(&mut ready);
            watch.lap(Stage::Deliver);
        }
        if !done.is_empty() {
            // Something to go on with already.
        } else if engine.in_flight() > 0 {
            engine.reap(Wait::ForOne, &mut done);
            watch.lap(Stage::StorageWait);
        } else if sink.in_flight() > 0 {
            failure = failure.or(sink.reap(Wait::ForOne, &mut ready).err());
            watch.lap(Stage::CopyWait);
        } else if exhausted || failure.is_some() {
            return failure.map_or(Ok(()), Err);
        } else {
            feed.bell.wait_past(rung);
            watch.lap(Stage::MemoryWait);
        }

        for done in done.drain(..) {
            let start = out.remove(&done.extent);
            if let Err(error) = complete(feed, sink, lane, done, start) {
                failure.get_or_insert(error);
            }
        }
        failure = failure.or(sink.reap(Wait::No, &mut ready).err());
        if failure.is_some() {
            feed.stop();
        }
        watch.lap(Stage::Deliver);
    }
}

/// Takes what the engine gives back for the window that began at `start` to the sink.
fn complete<S: Sink>(
    feed: &Feed,
    sink: &mut S,
    lane: &LaneWork<'_, S::Tensor>,
    done: Done,
    start: Option<usize>,
) -> Result<()> {
    if let Ok(filled) = &done.result {
        // What sinks rely on: a wrong pairing would make a tensor of another one's bytes.
        assert!(
            start == Some(filled.start()),
            "the engine mixed up extent {}",
            done.extent
        );
    }
    let extent = &feed.plan.extents[done.extent];
    lane.count(done.transfer);
    let result = done.result.and_then(|filled| sink.submit(extent, filled));
    feed.ended(extent);
    match result {
        // An engine that let go because the load is over: why it is, somebody else knows.
        Err(error) if error.kind() == ErrorKind::Cancelled && feed.over.is_raised() => Ok(()),
        result => result,
    }
}

/// What a lane reports to.
pub struct LaneWork<'a, T> {
    /// Takes every finished tensor out of the list.
    pub deliver: &'a dyn Fn(&mut Vec<T>),
    pub(crate) counters: &'a Counters,
}

impl<T> LaneWork<'_, T> {
    fn count(&self, transfer: crate::engine::Transfer) {
        Counters::add(&self.counters.extents, 1);
        Counters::add(&self.counters.direct_bytes, transfer.direct_bytes);
        Counters::add(&self.counters.buffered_bytes, transfer.buffered_bytes);
        Counters::add(&self.counters.remote_bytes, transfer.remote_bytes);
        Counters::add(&self.counters.requests, u64::from(transfer.requests));
        Counters::add(&self.counters.short_reads, u64::from(transfer.short_reads));
        Counters::add(&self.counters.retries, u64::from(transfer.retries));
    }
}

impl<T> std::fmt::Debug for LaneWork<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneWork").finish_non_exhaustive()
    }
}

/// Adds the time since the last lap to a stage.
struct Watch<'a> {
    counters: &'a Counters,
    since: Instant,
}

impl Watch<'_> {
    fn lap(&mut self, stage: Stage) {
        let now = Instant::now();
        self.counters.spent(stage, now - self.since);
        self.since = now;
    }
}
