//! What all lanes of a load share: what is to be read next, and the memory for it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::reads::{Reads, Waiting};
use crate::buffer::{Bell, FileView, Pool, RegionWriter, Slab};
use crate::engine::Job;
use crate::error::Result;
use crate::over::Over;
use crate::plan::Plan;
use crate::schedule::{DepthReport, InFlight, LaneCount, Next, Schedule};
use crate::sink::DeviceRegions;
use crate::verify::Check;

/// Where leases come from.
#[derive(Debug)]
pub enum Memory {
    /// Final memory of tensors.
    Regions(Pool),
    /// Slots of the feed's slab; where the bytes go is the sink's to know.
    Slots,
    /// The same, on the way to device memory that regions get when they begin.
    Device(Arc<DeviceRegions>),
    /// Final memory that is there already: the files themselves.
    Views {
        /// By source.
        views: Vec<Arc<FileView>>,
        /// For tensors that no view can align.
        pool: Pool,
    },
    /// One region for everything, filled in the order of the reads.
    Whole(Mutex<RegionWriter>),
}

/// What all lanes of a load share: the schedule and the memory.
#[derive(Debug)]
pub struct Feed {
    pub(super) plan: Arc<Plan>,
    /// By destination.
    memories: Vec<Memory>,
    state: Mutex<FeedState>,
    pub(super) bell: Arc<Bell>,
    /// Rings when a lane that has not begun is to begin, or never will.
    waiting: Bell,
    over: Arc<Over>,
    /// What is compared on the way to the sink.
    pub(super) check: Option<Arc<Check>>,
    started: Instant,
    /// By source: what people call it.
    names: OnceLock<Vec<String>>,
}

#[derive(Debug)]
struct FeedState {
    schedule: Schedule,
    /// The unread rest of each open region, by region.
    writers: Vec<Option<RegionWriter>>,
    /// Staging memory, until the load is over.
    slab: Option<Arc<Slab>>,
    /// By group; those beyond the end have the lanes that they began with.
    lanes: Vec<LaneCount>,
    /// What is in flight, and since when.
    reads: Reads,
}

/// What a lane gets when it asks for work.
#[derive(Debug)]
pub(super) enum Take {
    Job(Job),
    /// Nothing now; ask again when the bell has rung.
    Wait,
    /// Nothing any more.
    Done,
}

impl FeedState {
    /// Whether a slot would be needed, and none is free.
    fn lacks_slots(&self) -> bool {
        let slab = self.slab.as_ref();
        slab.is_some_and(|slab| !slab.has_free_slot())
    }

    /// Bytes that one of the lanes may have in flight. A lane that copies does so before it looks again: what it had taken beyond its
    /// share, no other could.
    fn share(&self, group: usize, lanes: &LaneCount) -> u64 {
        if self.schedule.is_exhausted(group) {
            return u64::MAX;
        }
        self.schedule.limit(group).bytes / lanes.wanted() as u64
    }
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
        let reads = Reads::new(schedule.groups());
        Self {
            plan,
            memories,
            state: Mutex::new(FeedState {
                schedule,
                writers,
                slab,
                lanes: Vec::new(),
                reads,
            }),
            bell,
            waiting: Bell::default(),
            over: Arc::default(),
            check: None,
            started: Instant::now(),
            names: OnceLock::new(),
        }
    }

    /// The same, with everything that is read compared on the way to the sink.
    #[must_use]
    pub(crate) fn checked(mut self, check: Option<Arc<Check>>) -> Self {
        self.check = check;
        self
    }

    /// Says how many lanes each group begins with and may get.
    pub(crate) fn set_lanes(&self, lanes: Vec<LaneCount>) {
        self.lock().lanes = lanes;
    }

    /// Says what each source is called, and of which groups reads are watched for stalls: of those whose engine does not do that
    /// itself.
    pub(crate) fn watch(&self, names: Vec<String>, watched: Vec<bool>) {
        let _ = self.names.set(names);
        self.lock().reads.watch(watched);
    }

    /// What is in flight and since when.
    pub fn waiting(&self) -> Waiting {
        let now = self.started.elapsed();
        let name = |source: usize| self.names.get()?.get(source).map(String::as_str);
        self.lock().reads.waiting(&self.plan, name, now)
    }

    /// Reads that took much longer than is usual, those included that still do.
    pub(crate) fn stalled(&self) -> u64 {
        let now = self.started.elapsed();
        let state = self.lock();
        state.reads.stalled(now)
    }

    /// How many lanes read.
    pub(crate) fn lanes(&self) -> usize {
        self.lock().lanes.iter().map(LaneCount::wanted).sum()
    }

    /// Waits until a lane should begin. False if it never will.
    pub(crate) fn wait_to_begin(&self, group: usize, lane: usize) -> bool {
        loop {
            let rung = self.waiting.count();
            {
                let state = self.lock();
                let Some(lanes) = state.lanes.get(group) else {
                    return true;
                };
                if lanes.wants(lane) {
                    return true;
                }
                if !lanes.may_want(lane) || state.schedule.is_exhausted(group) {
                    return false;
                }
            }
            self.waiting.wait_past(rung);
        }
    }

    /// A lane that was to begin could not.
    pub(crate) fn lane_failed(&self, group: usize) {
        if let Some(lanes) = self.lock().lanes.get_mut(group) {
            lanes.failed();
        }
        self.waiting.ring();
        self.bell.ring();
    }

    /// By group: how deep, and why not deeper.
    pub(crate) fn depths(&self) -> Vec<DepthReport> {
        let state = self.lock();
        (0..state.schedule.groups())
            .map(|group| state.schedule.explain(group))
            .collect()
    }

    /// Bytes that may be in flight now.
    pub(super) fn limit_bytes(&self, group: usize) -> u64 {
        self.lock().schedule.limit(group).bytes
    }

    /// A lane's thread was busy for `busy` of the last `watched`, and so many bytes have come over all lanes.
    pub(super) fn observe(&self, group: usize, busy: Duration, watched: Duration, bytes: u64) {
        let now = self.started.elapsed();
        let changed = self
            .lock()
            .lanes
            .get_mut(group)
            .is_some_and(|lanes| lanes.observe(now, busy, watched, bytes));
        if changed {
            self.waiting.ring();
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
        self.waiting.ring();
        self.over.raise();
        if let Some(check) = &self.check {
            check.close();
        }
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
                Memory::Regions(pool) | Memory::Views { pool, .. } => pool.close(),
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

    /// Gets memory for a region. Whether there was any.
    fn begin(&self, region: usize, writer: &mut Option<RegionWriter>) -> Result<bool> {
        let planned = &self.plan.regions[region];
        match &self.memories[planned.destination] {
            Memory::Regions(pool) => {
                *writer = pool.try_region(planned.bytes, planned.tensors)?;
                Ok(writer.is_some())
            }
            Memory::Views { views, pool } => {
                let first = &self.plan.extents[planned.extents.start];
                let tensor = self.plan.pieces[first.pieces.start].tensor;
                if self.plan.targets[tensor].realign {
                    *writer = pool.try_region(planned.bytes, planned.tensors)?;
                    return Ok(writer.is_some());
                }
                let offset = usize::try_from(first.offset).expect("mapped, so it fits");
                let (view, len) = (&views[planned.source], planned.bytes);
                *writer = Some(RegionWriter::over(view, offset, len, planned.tensors));
                Ok(true)
            }
            Memory::Device(regions) => regions.try_begin(region),
            // Windows are taken extent by extent.
            Memory::Slots | Memory::Whole(_) => Ok(true),
        }
    }

    /// The next job of a lane that has `held` bytes in flight.
    pub(super) fn take(&self, group: usize, lane: usize, held: u64) -> Result<Take> {
        let plan = &*self.plan;
        let mut state = self.lock();
        if let Some(lanes) = state.lanes.get(group) {
            if !lanes.wants(lane) {
                return Ok(Take::Done);
            }
            if lanes.wanted() > 1 && held > state.share(group, lanes) {
                return Ok(Take::Wait);
            }
        }
        // Whatever comes next might need a slot. Only this lock's owner takes one, so it is still there below.
        if state.lacks_slots() {
            if state.schedule.is_stopped() {
                return Ok(Take::Done);
            }
            state.schedule.starved(group);
            return Ok(Take::Wait);
        }
        let FeedState {
            schedule,
            writers,
            slab,
            ..
        } = &mut *state;
        let (turn, now) = (schedule.turn(), self.started.elapsed());
        let next = schedule.next(group, now, plan, |region| {
            self.begin(region, &mut writers[region])
        })?;
        if schedule.turn() != turn {
            self.bell.ring();
        }
        let extent_index = match next {
            Next::Extent(index) => index,
            Next::Deep | Next::Starved => return Ok(Take::Wait),
            Next::Done => {
                self.waiting.ring();
                return Ok(Take::Done);
            }
        };
        let extent = &plan.extents[extent_index];
        let lease = match &self.memories[plan.regions[extent.region].destination] {
            Memory::Regions(_) | Memory::Views { .. } => {
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
        state.reads.began(extent_index, group, now);
        Ok(Take::Job(Job {
            extent: extent_index,
            source: state.schedule.member(extent.source).index,
            offset: extent.offset,
            needed: extent.needed,
            lease,
        }))
    }

    pub(super) fn ended(&self, extent: usize) {
        let now = self.started.elapsed();
        let mut state = self.lock();
        state.schedule.ended(&self.plan.extents[extent], now);
        state.reads.ended(extent, now);
        drop(state);
        self.bell.ring();
    }
}
