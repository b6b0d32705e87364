//! The loop of a lane with few slots, and the bytes by which lanes are judged.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::feed::NextJob;
use super::{Feed, LaneWork, LeaseOrigin, run};
use crate::engine::{Done, Engine, Job, Transfer, Wait};
use crate::error::Result;
use crate::memory::{Filled, Pool, Slab};
use crate::options::Order;
use crate::plan::{Arrangement, Extent, Layout, Plan, Wanted, build};
use crate::report::Counters;
use crate::schedule::{Depth, Groups, LaneCount, Member, Schedule, WINDOW};
use crate::sink::Sink;

const READ: usize = 4096;

/// Plan of sources with so many reads each.
fn plan(sources: usize, reads: usize, arrangement: Arrangement) -> Arc<Plan> {
    let wanted: Vec<_> = (0..sources)
        .map(|source| Wanted {
            source,
            range: 0..(reads * READ) as u64,
            strides: None,
            alignment: 1,
            destination: 0,
        })
        .collect();
    let layout = Layout {
        extent_bytes: READ as u64,
        alignment: 1,
        gap_bytes: 0,
    };
    Arc::new(build(&wanted, &vec![layout; sources], &[arrangement]))
}

/// Engine that completes one read at a time: when waited for, and otherwise only if it is `eager`.
struct OneByOne {
    is_eager: bool,
    jobs: VecDeque<Job>,
    /// Number of jobs in flight whenever it was waited for.
    waits: Vec<usize>,
    submitted: Rc<Cell<usize>>,
}

impl Engine for OneByOne {
    fn depth(&self) -> usize {
        8
    }

    fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    fn submit(&mut self, job: Job) {
        self.submitted.set(self.submitted.get() + 1);
        self.jobs.push_back(job);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        if wait == Wait::ForOne {
            self.waits.push(self.jobs.len());
        } else if !self.is_eager {
            return;
        }
        done.extend(self.jobs.pop_front().map(|job| Done {
            extent: job.extent,
            result: Ok(job.lease.fill_from(&[1; READ])),
            window: None,
            transfer: Transfer::default(),
        }));
    }
}

/// Sink whose copies end when it is waited for, or when it has been polled often enough.
struct Copies {
    polls: u32,
    copying: VecDeque<(Filled, u32)>,
    submitted: Rc<Cell<usize>>,
    /// Number of reads that had begun by each copy.
    begun: Vec<usize>,
}

impl Sink for Copies {
    type Tensor = ();

    fn in_flight(&self) -> usize {
        self.copying.len()
    }

    fn submit(&mut self, _: &Extent, filled: Filled) -> Result<()> {
        self.begun.push(self.submitted.get());
        self.copying.push_back((filled, 0));
        Ok(())
    }

    fn reap(&mut self, wait: Wait, _: &mut Vec<()>) -> Result<()> {
        if wait == Wait::ForOne {
            self.copying.pop_front();
        }
        for (_, polls) in &mut self.copying {
            *polls += 1;
        }
        self.copying.retain(|(_, polls)| *polls < self.polls);
        Ok(())
    }
}

/// Sink that completes a tensor with each extent.
#[derive(Default)]
struct AtOnce {
    ready: Vec<()>,
}

impl Sink for AtOnce {
    type Tensor = ();

    fn in_flight(&self) -> usize {
        0
    }

    fn submit(&mut self, _: &Extent, _: Filled) -> Result<()> {
        self.ready.push(());
        Ok(())
    }

    fn reap(&mut self, _: Wait, ready: &mut Vec<()>) -> Result<()> {
        ready.append(&mut self.ready);
        Ok(())
    }
}

/// Engine that copies a job whenever it is reaped, or only when it is waited for.
fn one_by_one(is_eager: bool, submitted: &Rc<Cell<usize>>) -> OneByOne {
    OneByOne {
        is_eager,
        jobs: VecDeque::new(),
        waits: Vec::new(),
        submitted: Rc::clone(submitted),
    }
}

/// Runs a lane of eight reads through two slots. Returns how many reads were in flight whenever it
/// waited for one, and how many had begun by each copy.
fn through_two_slots(is_eager: bool, polls: u32) -> (Vec<usize>, Vec<usize>) {
    let plan = plan(1, 8, Arrangement::Scattered);
    let schedule = Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(8, u64::MAX)));
    let slab = Slab::new(READ, 2, Arc::default()).expect("little memory");
    let origins = vec![LeaseOrigin::Slots];
    let feed = Feed::new(plan, schedule, origins, Some(slab), Arc::default());
    let submitted = Rc::<Cell<usize>>::default();
    let mut engine = one_by_one(is_eager, &submitted);
    let mut sink = Copies {
        polls,
        copying: VecDeque::new(),
        submitted,
        begun: Vec::new(),
    };
    let lane = LaneWork {
        index: 0,
        deliver: &|_| (),
        failing: &|_| (),
        counters: &Counters::default(),
    };
    run(&feed, 0, &mut engine, &mut sink, &lane).expect("nothing fails");
    (engine.waits, sink.begun)
}

#[test]
fn lane_without_slots_waits_for_copies_before_reads() {
    let (waits, _) = through_two_slots(false, u32::MAX);
    assert_eq!(waits, [2, 2, 2, 2, 2, 2, 2, 1]);
}

#[test]
fn slot_of_finished_copy_is_read_into_before_the_next_copy() {
    let (_, begun) = through_two_slots(true, 2);
    assert_eq!(begun, [2, 3, 4, 5, 6, 7, 8, 8]);
}

#[test]
fn finished_tensors_are_handed_over_before_the_next_job_is_copied() {
    let plan = plan(1, 4, Arrangement::InPlace);
    let schedule = Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(8, u64::MAX)));
    let pool = Pool::new(1 << 20, Arc::default());
    let events = Arc::clone(pool.events());
    let origins = vec![LeaseOrigin::Regions(pool)];
    let feed = Feed::new(plan, schedule, origins, None, events);
    let mut engine = one_by_one(true, &Rc::default());
    let lane = LaneWork {
        index: 0,
        deliver: &|ready| ready.clear(),
        failing: &|_| (),
        counters: &Counters::default(),
    };
    run(&feed, 0, &mut engine, &mut AtOnce::default(), &lane).expect("nothing fails");
    // Each but the first is copied only when it is waited for.
    assert_eq!(engine.waits, [4, 3, 2, 1]);
}

#[test]
fn lanes_of_a_group_are_judged_by_its_own_bytes() {
    let plan = plan(2, 200, Arrangement::InPlace);
    let members = [0, 1].map(|group| Member { group, index: 0 });
    let groups = Groups::new(vec![Depth::fixed(8, u64::MAX); 2], members.into());
    let schedule = Schedule::new(&plan, Order::Ready, groups);
    let pool = Pool::new(1 << 30, Arc::default());
    let events = Arc::clone(pool.events());
    let feed = Feed::new(
        plan,
        schedule,
        vec![LeaseOrigin::Regions(pool)],
        None,
        events,
    );
    feed.set_lanes(vec![LaneCount::up_to(1, 2), LaneCount::fixed(1)]);
    let read = |group, reads| {
        for _ in 0..reads {
            match feed.take(group, 0, 0).expect("memory") {
                NextJob::Job(job) => feed.ended(job.extent),
                other @ (NextJob::Wait | NextJob::NoSlot | NextJob::Done) => {
                    panic!("no job: {other:?}")
                }
            }
        }
    };
    let mut now = Duration::ZERO;
    let mut lanes = Vec::new();
    // Once the first group has two lanes, only the second one becomes faster.
    for others in [1, 1, 30, 30, 30] {
        read(0, 10);
        read(1, others);
        now += WINDOW;
        for _ in 0..2 {
            feed.observe_at(now, 0, WINDOW, WINDOW);
        }
        lanes.push(feed.lanes() - 1);
    }
    assert_eq!(lanes, [1, 2, 2, 2, 1]);
}
