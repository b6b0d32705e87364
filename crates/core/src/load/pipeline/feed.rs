//! State shared by all lanes of a load: what to read next, and which memory is open for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::in_flight::{InFlightReads, Waiting};
use super::lease_origin::LeaseOrigin;
use super::not_begun::{DeviceWait, NotBegun};
use super::slabs::Slabs;
use crate::engine::Job;
use crate::error::Result;
use crate::load::check::LateCheck;
use crate::memory::{RegionWriter, Slab};
use crate::plan::Plan;
use crate::schedule::{DepthReport, InFlight, LaneCount, Next, Schedule};
use crate::sync::cancel::CancelFlag;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;

/// Schedule and memory of a load, shared by all its lanes.
#[derive(Debug)]
pub struct Feed {
    pub(in crate::load) plan: Arc<Plan>,
    /// By destination.
    origins: Vec<LeaseOrigin>,
    state: Mutex<FeedState>,
    pub(in crate::load) events: Arc<EventCount>,
    /// Rings when a lane that has not begun should begin, or never will.
    waiting: EventCount,
    cancel: Arc<CancelFlag>,
    /// Verification between engine and sink.
    pub(in crate::load) check: Arc<LateCheck>,
    started: Instant,
    /// By source: its name in messages.
    names: OnceLock<Vec<String>>,
    /// Lanes that wait for copies.
    copying: AtomicUsize,
    /// Lanes that wait for memory.
    without_memory: AtomicUsize,
}

/// Wait of a lane for something else than a read.
#[derive(Clone, Copy, Debug)]
pub(super) enum LaneWait {
    Copy,
    Memory,
}

#[derive(Debug)]
struct FeedState {
    schedule: Schedule,
    /// By region: the unread rest of each open region.
    writers: Vec<Option<RegionWriter>>,
    /// Staging memory, until the load ends.
    slabs: Slabs,
    /// By group; groups beyond the end of the list keep the lanes that they began with.
    lanes: Vec<LaneCount>,
    /// By group: bytes that have been read.
    read_bytes: Vec<u64>,
    /// Reads in flight and their start times.
    reads: InFlightReads,
}

/// Result of a lane's request for work.
#[derive(Debug)]
pub(in crate::load) enum NextJob {
    Job(Job),
    /// Nothing at the moment; ask again when the event count has changed.
    Wait,
    /// Nothing until a slot comes back.
    NoSlot,
    /// Nothing left to read.
    Done,
}

impl FeedState {
    /// Returns the bytes that each lane may have in flight. Copies are bound to their lane, so one
    /// lane must not hold more than its share.
    fn share(&self, group: usize, lanes: &LaneCount) -> u64 {
        if self.schedule.is_exhausted(group) {
            return u64::MAX;
        }
        self.schedule.limit(group).bytes / lanes.wanted() as u64
    }
}

impl Feed {
    /// Creates a feed of `plan` in the order of `schedule` into `origins`, one for each
    /// destination. `slab` is needed if any of them uses its slots; `events` is the event count
    /// that they notify.
    pub fn new(
        plan: Arc<Plan>,
        schedule: Schedule,
        origins: Vec<LeaseOrigin>,
        slab: Option<Arc<Slab>>,
        events: Arc<EventCount>,
    ) -> Self {
        let writers = plan.regions.iter().map(|_| None).collect();
        let groups = schedule.groups();
        Self {
            plan,
            origins,
            state: Mutex::new(FeedState {
                schedule,
                writers,
                slabs: slab.into(),
                lanes: Vec::new(),
                read_bytes: vec![0; groups],
                reads: InFlightReads::new(groups),
            }),
            events,
            waiting: EventCount::default(),
            cancel: Arc::default(),
            check: LateCheck::ready(None),
            started: Instant::now(),
            names: OnceLock::new(),
            copying: AtomicUsize::new(0),
            without_memory: AtomicUsize::new(0),
        }
    }

    /// Reads into the slots of these slabs in place of one.
    #[must_use]
    pub(crate) fn with_slabs(self, slabs: Slabs) -> Self {
        self.state.lock().slabs = slabs;
        self
    }

    /// Adds verification of everything that is read, on the way to the sink.
    #[must_use]
    pub fn checked(mut self, check: Arc<LateCheck>) -> Self {
        self.check = check;
        self
    }

    /// Sets how many lanes each group begins with and may get.
    pub(crate) fn set_lanes(&self, lanes: Vec<LaneCount>) {
        self.state.lock().lanes = lanes;
    }

    /// Sets the name of each source, and the groups whose reads are watched for stalls: those whose
    /// engine does not watch them itself.
    pub(crate) fn watch(&self, names: Vec<String>, watched: Vec<bool>) {
        let _ = self.names.set(names);
        self.state.lock().reads.watch(watched);
    }

    /// Returns the reads in flight and how long they have waited, and other waits of lanes.
    pub fn waiting(&self) -> Waiting {
        let now = self.started.elapsed();
        let name = |source: usize| self.names.get()?.get(source).map(String::as_str);
        let reads = self.state.lock().reads.waiting(&self.plan, name, now);
        Waiting {
            copying: self.copying.load(Ordering::Relaxed),
            without_memory: self.without_memory.load(Ordering::Relaxed),
            ..reads
        }
    }

    /// Runs `wait`, in which a lane waits for something else than a read.
    pub(super) fn during<T>(&self, what: LaneWait, wait: impl FnOnce() -> T) -> T {
        let waiting = match what {
            LaneWait::Copy => &self.copying,
            LaneWait::Memory => &self.without_memory,
        };
        waiting.fetch_add(1, Ordering::Relaxed);
        let done = wait();
        waiting.fetch_sub(1, Ordering::Relaxed);
        done
    }

    /// Returns the number of reads that took much longer than usual, including those still in
    /// flight.
    pub(crate) fn stalled(&self) -> u64 {
        let now = self.started.elapsed();
        let state = self.state.lock();
        state.reads.stalled(now)
    }

    /// Returns the number of lanes that read.
    pub(crate) fn lanes(&self) -> usize {
        self.state.lock().lanes.iter().map(LaneCount::wanted).sum()
    }

    /// Waits until a lane should begin. Returns false if it never will.
    pub(crate) fn wait_to_begin(&self, group: usize, lane: usize) -> bool {
        loop {
            let rung = self.waiting.count();
            {
                let state = self.state.lock();
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

    /// Records that a lane could not begin.
    pub(crate) fn lane_failed(&self, group: usize, lane: usize) {
        if let Some(lanes) = self.state.lock().lanes.get_mut(group) {
            lanes.failed(lane);
        }
        self.waiting.notify();
        self.events.notify();
    }

    /// Returns the depth of each group, with the reason why it is not greater.
    pub(crate) fn depths(&self) -> Vec<DepthReport> {
        let state = self.state.lock();
        (0..state.schedule.groups())
            .map(|group| state.schedule.explain(group))
            .collect()
    }

    /// Returns the bytes that may be in flight now.
    pub(in crate::load) fn limit_bytes(&self, group: usize) -> u64 {
        self.state.lock().schedule.limit(group).bytes
    }

    /// Records that the engine of a lane takes no more reads.
    pub(in crate::load) fn engine_is_full(&self, group: usize) {
        self.state.lock().schedule.shared(group);
    }

    /// Records that a lane's thread was busy for `busy` of the last `watched`.
    pub(in crate::load) fn observe(&self, group: usize, busy: Duration, watched: Duration) {
        self.observe_at(self.started.elapsed(), group, busy, watched);
    }

    /// As [`Self::observe`], `now` after the load's start.
    pub(super) fn observe_at(
        &self,
        now: Duration,
        group: usize,
        busy: Duration,
        watched: Duration,
    ) {
        let changed = {
            let FeedState {
                lanes, read_bytes, ..
            } = &mut *self.state.lock();
            let lanes = lanes.get_mut(group);
            lanes.is_some_and(|lanes| lanes.observe(now, busy, watched, read_bytes[group]))
        };
        if changed {
            self.waiting.notify();
        }
    }

    /// Cancellation flag, set when no more reads are to start: for engines that can cancel reads
    /// in flight.
    pub fn cancel(&self) -> &Arc<CancelFlag> {
        &self.cancel
    }

    /// Returns the memory that leases come from, by destination.
    pub fn origins(&self) -> &[LeaseOrigin] {
        &self.origins
    }

    /// Wakes lanes that wait for memory.
    pub fn ring(&self) {
        self.events.notify();
    }

    /// Starts no more reads. Reads in flight complete by themselves.
    pub fn stop(&self) {
        self.state.lock().schedule.stop();
        self.events.notify();
        self.waiting.notify();
        self.cancel.cancel();
        self.check.close();
    }

    /// Ends the load: starts no more reads and frees the memory kept for later ones. Windows in
    /// flight and tensors keep their memory.
    pub fn close(&self) {
        self.stop();
        let left = {
            let mut state = self.state.lock();
            (
                std::mem::take(&mut state.writers),
                std::mem::take(&mut state.slabs),
            )
        };
        // The lock is released first, because unmapping can take a while.
        drop(left);
        for memory in &self.origins {
            memory.close();
        }
    }

    /// Returns what is in flight now, over all lanes.
    pub fn in_flight(&self) -> InFlight {
        self.state.lock().schedule.in_flight()
    }

    /// Returns the next job of a lane that has `held` bytes in flight.
    pub(in crate::load) fn take(&self, group: usize, lane: usize, held: u64) -> Result<NextJob> {
        let mut waited = None;
        loop {
            match self.try_take(group, lane, held, waited) {
                Ok(next) => return Ok(next),
                Err(NotBegun::Failed(error)) => return Err(error),
                // The lock is released first, because unmapping can take a while.
                Err(NotBegun::Evicts(evicted)) => drop(evicted),
                // The lock is released first, because the GPU may be busy for long.
                Err(NotBegun::NoRoom(device)) => {
                    let is_over = || self.cancel.is_cancelled();
                    waited = Some(DeviceWait {
                        destination: device.destination,
                        wait: device.regions.wait_for_freed(&is_over)?,
                    });
                }
            }
        }
    }

    fn try_take(
        &self,
        group: usize,
        lane: usize,
        held: u64,
        waited: Option<DeviceWait>,
    ) -> Result<NextJob, NotBegun> {
        let plan = &*self.plan;
        let mut state = self.state.lock();
        if let Some(lanes) = state.lanes.get(group) {
            if !lanes.wants(lane) {
                return Ok(NextJob::Done);
            }
            if lanes.wanted() > 1 && held > state.share(group, lanes) {
                state.schedule.shared(group);
                return Ok(NextJob::Wait);
            }
        }
        // The next job might need a slot. Only the owner of this lock takes slots, so a free one is
        // still free below.
        if state.slabs.lacks_slots(group) {
            if state.schedule.is_stopped() {
                return Ok(NextJob::Done);
            }
            state.schedule.starved(group);
            return Ok(NextJob::NoSlot);
        }
        let FeedState {
            schedule,
            writers,
            slabs,
            ..
        } = &mut *state;
        let (turn, now) = (schedule.turn(), self.started.elapsed());
        let next = schedule.next(group, now, plan, |region| {
            let origin = &self.origins[plan.regions[region].destination];
            origin.begin(plan, region, &mut writers[region], waited)
        })?;
        if schedule.turn() != turn {
            self.events.notify();
        }
        let extent_index = match next {
            Next::Extent(index) => index,
            Next::Deep | Next::Starved => return Ok(NextJob::Wait),
            Next::Done => {
                self.waiting.notify();
                return Ok(NextJob::Done);
            }
        };
        let extent = &plan.extents[extent_index];
        let destination = plan.regions[extent.region].destination;
        let writer = &mut writers[extent.region];
        let slab = slabs.for_destination(destination);
        let mut lease = self.origins[destination].lease(plan, extent_index, writer, slab);
        self.check.announce(&mut lease, extent);
        state.reads.began(extent_index, group, now);
        Ok(NextJob::Job(Job {
            extent: extent_index,
            source: state.schedule.index_of(extent.source),
            offset: extent.offset,
            needed: extent.needed,
            lease,
        }))
    }

    /// Records that the engine has returned an extent.
    pub(in crate::load) fn ended(&self, extent: usize) {
        let now = self.started.elapsed();
        let mut state = self.state.lock();
        let planned = &self.plan.extents[extent];
        let group = state.schedule.group_of(planned);
        state.read_bytes[group] += planned.needed as u64;
        state.schedule.ended(planned, now);
        state.reads.ended(extent, now);
        drop(state);
        self.events.notify();
    }

    /// Records that the engine reads an extent again that it had returned.
    pub(in crate::load) fn again(&self, group: usize, extent: usize) {
        let now = self.started.elapsed();
        let mut state = self.state.lock();
        state.schedule.again(&self.plan.extents[extent], now);
        state.reads.began(extent, group, now);
    }
}
