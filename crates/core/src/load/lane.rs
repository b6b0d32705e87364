//! Thread of one lane: opens its engine on the thread, runs the pipeline, and reports how it ended.
//!
//! The first error of a load wins. A lane that fails signals it, drains its reads for half a second
//! at most, and then reports the error. A panic is an error too.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::near_gpu::NearGpu;
use super::pipeline::{self, Feed, LaneWork};
use crate::engine::{Engine, Refusal};
use crate::error::{Error, ErrorKind, Result};
use crate::groups::OpenEngine;
use crate::options::EngineChoice;
use crate::report::{Counters, EngineReport};
use crate::sink::Sink;
use crate::sync::naps;
use crate::sync::threads::Builder;

/// Everything that a lane of a load needs to start.
#[derive(Clone, Debug)]
pub(crate) struct LaneSetup {
    pub(crate) feed: Arc<Feed>,
    /// The group whose sources it reads.
    pub(crate) group: usize,
    /// Its number among the group's lanes.
    pub(crate) index: usize,
    /// True if it begins with the load; others begin when the feed needs them.
    pub(crate) begins_now: bool,
    pub(crate) engine: Arc<dyn OpenEngine>,
    /// The requested engine, which applies to files.
    pub(crate) requested: EngineChoice,
    /// Number of the group's lanes from the beginning of this one on.
    pub(crate) lanes: usize,
    /// Copies to GPUs end while the lane naps: naps are short.
    pub(crate) naps_shortly: bool,
    pub(crate) counters: Arc<Counters>,
    /// CPUs for the lane and the threads of its engine.
    pub(crate) near_gpu: Option<Arc<NearGpu>>,
}

/// Engine that a lane has opened. The engines of several lanes are merged into one.
#[derive(Clone, Debug)]
pub(crate) struct LaneEngine {
    group: usize,
    pub(crate) report: EngineReport,
    pub(crate) refusal: Option<Refusal>,
}

/// Opens a lane's sink, on the thread that uses it.
pub(crate) type OpenSink<S> = dyn Fn() -> Result<S> + Send + Sync;

/// Callback that takes finished tensors.
type Deliver<T> = Box<dyn Fn(&mut Vec<T>) + Send>;

/// Callbacks of a lane.
pub(crate) struct LaneEvents<T> {
    /// Takes every finished tensor out of the list.
    pub(crate) deliver: Deliver<T>,
    /// Receives the lane's first failure, while its reads in flight have not returned yet.
    pub(crate) failing: Box<dyn Fn(&Error) + Send>,
    /// Receives the final result, after the engine is dropped and all memory is returned.
    pub(crate) ended: Box<dyn FnOnce(Result<()>) + Send>,
}

/// Failure to start lanes, with the threads of those that did start.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// They have been told to stop, and may be blocked in reads that storage does not complete.
    pub(crate) threads: Vec<JoinHandle<()>>,
    /// Number of lanes that have not been started: `ended` is not called for them.
    pub(crate) missing: usize,
}

impl Refused {
    /// Returns the failure of a load before any of its lanes was started.
    pub(crate) fn before_threads(error: Error, lanes: usize) -> Self {
        Self {
            error,
            threads: Vec::new(),
            missing: lanes,
        }
    }

    /// Joins the lanes that had begun, then returns the error.
    pub(crate) fn joined(self) -> Error {
        for thread in self.threads {
            // Joining cannot fail: the lane catches its panics.
            let _ = thread.join();
        }
        self.error
    }
}

/// Starts all lanes and waits until each that begins now has opened its engine and its sink, or
/// ended because it cannot and is not the first of its group.
///
/// # Errors
///
/// The refusal of a group's first lane. Waits for none of the others: `ended` is still called for
/// each lane that had started, once storage lets it.
pub(crate) fn start<S>(
    lanes: Vec<LaneSetup>,
    sink: &Arc<OpenSink<S>>,
    events: impl Fn() -> LaneEvents<S::Tensor>,
) -> std::result::Result<(Vec<JoinHandle<()>>, LaneEngine), Refused>
where
    S: Sink + 'static,
    S::Tensor: 'static,
{
    let (opened, openings) = bounded(lanes.len());
    let feeds: Vec<_> = lanes.iter().map(|lane| Arc::clone(&lane.feed)).collect();
    let spawned = spawn_all(
        lanes,
        |index, lane| {
            let opened = lane.begins_now.then(|| opened.clone());
            spawn(index, lane, Arc::clone(sink), events(), opened)
        },
        || (events().ended)(Ok(())),
    );
    drop(opened);
    let Spawned {
        threads,
        begun,
        missing,
        mut failure,
    } = spawned;
    let first = openings_of(&openings, begun, &mut failure);
    match (failure, first) {
        (None, Some(first)) => Ok((threads, first)),
        (failure, _) => {
            for feed in &feeds {
                feed.stop();
            }
            let none = || Error::new(ErrorKind::Io, "no lane could be started");
            Err(Refused {
                error: failure.unwrap_or_else(none),
                threads,
                missing,
            })
        }
    }
}

/// Threads of lanes.
#[derive(Default)]
struct Spawned {
    threads: Vec<JoinHandle<()>>,
    /// Number of them that begin now.
    begun: usize,
    /// Number of lanes that have not been started, and have not ended either.
    missing: usize,
    failure: Option<Error>,
}

/// Starts the threads of lanes with `spawn`, until one fails that its group cannot do without.
/// `ended` is called for each of the others that fail.
fn spawn_all(
    lanes: Vec<LaneSetup>,
    mut spawn: impl FnMut(usize, LaneSetup) -> Result<JoinHandle<()>>,
    ended: impl Fn(),
) -> Spawned {
    let mut spawned = Spawned::default();
    let mut lanes: Vec<_> = lanes.into_iter().enumerate().collect();
    // If threads are scarce, the first lane of each group gets one, and idle lanes, which may never
    // begin, come last.
    lanes.sort_by_key(|(_, lane)| (!lane.begins_now, lane.index));
    for (index, lane) in lanes {
        if spawned.failure.is_some() {
            spawned.missing += 1;
            continue;
        }
        let (feed, group, number) = (Arc::clone(&lane.feed), lane.group, lane.index);
        let begins_now = lane.begins_now;
        match spawn(index, lane) {
            Ok(thread) => {
                spawned.threads.push(thread);
                spawned.begun += usize::from(begins_now);
            }
            Err(error) if number == 0 => {
                spawned.failure = Some(error);
                spawned.missing += 1;
            }
            Err(error) => {
                // The load goes on with the other lanes; no thread waits for this one.
                tracing::warn!(%error, "a thread for reads could not be started");
                feed.lane_failed(group, number);
                ended();
            }
        }
    }
    spawned
}

/// Merges the engines of up to `lanes` lanes. Those that the load can do without send nothing if
/// they cannot begin.
fn openings_of(
    openings: &Receiver<Result<LaneEngine>>,
    lanes: usize,
    failure: &mut Option<Error>,
) -> Option<LaneEngine> {
    let mut by_group = BTreeMap::<usize, LaneEngine>::new();
    for opening in openings.iter().take(lanes) {
        match opening {
            Ok(opened) => match by_group.get(&opened.group) {
                // One lane's fallback is more informative than the success of the others.
                Some(_) if opened.refusal.is_none() => {}
                _ => drop(by_group.insert(opened.group, opened)),
            },
            Err(error) => *failure = failure.take().or(Some(error)),
        }
    }
    by_group.into_values().reduce(LaneEngine::and)
}

impl LaneEngine {
    /// Merges the engines of two groups.
    fn and(self, other: Self) -> Self {
        let mut report = self.report;
        report.add(other.report);
        Self {
            group: self.group,
            report,
            refusal: self.refusal.or(other.refusal),
        }
    }
}

fn spawn<S>(
    index: usize,
    setup: LaneSetup,
    sink: Arc<OpenSink<S>>,
    events: LaneEvents<S::Tensor>,
    opened: Option<Sender<Result<LaneEngine>>>,
) -> Result<JoinHandle<()>>
where
    S: Sink + 'static,
    S::Tensor: 'static,
{
    Builder::new()
        .name(format!("tload-lane-{index}"))
        .spawn(move || {
            let LaneEvents {
                deliver,
                failing,
                ended,
            } = events;
            if setup.naps_shortly {
                naps::shorten();
            }
            let result = caught(|| run(&setup, &*sink, &*deliver, &*failing, opened));
            let told = caught(|| {
                if let Err(error) = &result {
                    setup.feed.stop();
                    // If the lane had nothing in flight, or panicked, the stream does not know of
                    // the failure yet, and other lanes would wait in vain.
                    failing(error);
                }
                Ok(())
            });
            // Free the memory before `ended` is called, which must happen even if freeing panics.
            let freed = caught(|| {
                drop((sink, deliver, failing, setup));
                Ok(())
            });
            ended(result.and(told).and(freed));
        })
        .map_err(Error::cannot_start_thread)
}

fn run<S: Sink>(
    setup: &LaneSetup,
    sink: &OpenSink<S>,
    deliver: &dyn Fn(&mut Vec<S::Tensor>),
    failing: &dyn Fn(&Error),
    opened: Option<Sender<Result<LaneEngine>>>,
) -> Result<()> {
    if opened.is_none() && !setup.feed.wait_to_begin(setup.group, setup.index) {
        return Ok(());
    }
    // The engine's threads are started by this one, so they run on the same CPUs.
    if let Some(near_gpu) = &setup.near_gpu {
        near_gpu.bind();
    }
    let engine = setup.open();
    // A lane whose engine gets no threads is left out; a GPU that fails concerns all lanes.
    let is_needed = setup.index == 0 || engine.is_ok();
    let both = engine.and_then(|(engine, report)| {
        let sink = sink()?;
        Ok((engine, report, sink))
    });
    // The sink is dropped first: it may hold memory that the engine has registered.
    let (mut engine, report, mut sink) = match (both, &opened) {
        (Ok(both), _) => both,
        (Err(error), Some(opened)) if is_needed => {
            // The thread that started the lanes returns the error.
            return opened
                .send(Err(error))
                .map_err(|unsent| unsent.0.err().unwrap_or_else(unheard));
        }
        (Err(error), _) => {
            // The load can proceed without this lane.
            tracing::debug!(%error, "cannot start another lane");
            setup.feed.lane_failed(setup.group, setup.index);
            return Ok(());
        }
    };
    if let Some(opened) = opened {
        // The thread that started the lanes may have given up because another lane was refused.
        let _ = opened.send(Ok(report));
    }
    let work = LaneWork {
        index: setup.index,
        deliver,
        failing,
        counters: &setup.counters,
    };
    pipeline::run(&setup.feed, setup.group, &mut engine, &mut sink, &work)
}

impl LaneSetup {
    /// Opens the engine on the calling thread, which must be the one that uses it.
    fn open(&self) -> Result<(Box<dyn Engine>, LaneEngine)> {
        let opened = self.engine.open(self.lanes)?;
        let reason = match &opened.refusal {
            Some(refusal) => format!("a ring could not be set up: {}", refusal.reason),
            None => self.engine.reason(),
        };
        let report = EngineReport {
            name: opened.name.to_owned(),
            requested: self.requested.name().to_owned(),
            reason,
            features: opened.features,
        };
        let refusal = opened.refusal;
        Ok((
            opened.engine,
            LaneEngine {
                group: self.group,
                report,
                refusal,
            },
        ))
    }
}

/// Error of a lane that could not report why it cannot begin.
fn unheard() -> Error {
    Error::new(ErrorKind::Io, "cannot start a lane")
}

/// Runs `work` and turns a panic into an error, because a load must end whatever happens.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(bug(&*panic)))
}

/// Error for a panic, which is a bug of this crate.
fn bug(panic: &(dyn Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    Error::new(ErrorKind::Io, format!("a lane panicked: {text}"))
        .with_hint("this is a bug in tload; please report it")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crossbeam_channel::unbounded;

    use super::*;
    use crate::engine::{self, EngineKind, EngineSetup};
    use crate::options::Order;
    use crate::plan::{Arrangement, build};
    use crate::schedule::{Depth, Groups, LaneCount, Schedule};
    use crate::sink::DiscardSink;

    /// Opens an engine without files, or fails.
    #[derive(Debug)]
    struct Opens(bool);

    impl OpenEngine for Opens {
        fn open(&self, _lanes: usize) -> Result<engine::OpenedEngine> {
            if !self.0 {
                return Err(Error::unsupported("no engine"));
            }
            let setup = EngineSetup::new([].into(), 1);
            engine::open(EngineKind::Pread, false, &setup)
        }

        fn reason(&self) -> String {
            String::new()
        }
    }

    /// Lanes of two groups, of which the second has a lane that begins later.
    fn lanes() -> Vec<LaneSetup> {
        let plan = Arc::new(build(&[], &[], &[Arrangement::InPlace]));
        let groups = Groups::new(vec![Depth::fixed(1, 1); 2], Vec::new());
        let schedule = Schedule::new(&plan, Order::Ready, groups);
        let feed = Arc::new(Feed::new(plan, schedule, Vec::new(), None, Arc::default()));
        feed.set_lanes(vec![LaneCount::fixed(3), LaneCount::up_to(1, 2)]);
        let lane = |(group, index, begins_now)| LaneSetup {
            feed: Arc::clone(&feed),
            group,
            index,
            begins_now,
            engine: Arc::new(Opens(true)),
            requested: EngineChoice::Auto,
            lanes: 1,
            naps_shortly: false,
            counters: Arc::default(),
            near_gpu: None,
        };
        let lanes = [
            (0, 0, true),
            (0, 1, true),
            (0, 2, true),
            (1, 0, true),
            (1, 1, false),
        ];
        lanes.map(lane).into()
    }

    /// Starts the lanes where only `threads` threads can be created. Returns five counts (lanes;
    /// lanes that begin now, are missing, have ended; lanes that the feed wants), and whether the
    /// load fails.
    fn started(threads: usize) -> ([usize; 5], bool) {
        let (lanes, ended) = (lanes(), Cell::new(0));
        let feed = Arc::clone(&lanes[0].feed);
        let mut left = threads;
        let spawn = |_, _| {
            let error = || Error::new(ErrorKind::OutOfMemory, "no thread");
            left = left.checked_sub(1).ok_or_else(error)?;
            Ok(std::thread::spawn(|| ()))
        };
        let spawned = spawn_all(lanes, spawn, || ended.set(ended.get() + 1));
        let count = [
            spawned.threads.len(),
            spawned.begun,
            spawned.missing,
            ended.get(),
            feed.lanes(),
        ];
        (count, spawned.failure.is_some())
    }

    #[test]
    fn load_fails_only_without_the_first_lane_of_a_group() {
        assert_eq!(started(5), ([5, 4, 0, 0, 4], false));
        assert_eq!(started(4), ([4, 4, 0, 1, 4], false));
        assert_eq!(started(3), ([3, 3, 0, 2, 3], false));
        assert_eq!(started(2), ([2, 2, 0, 3, 2], false));
        assert_eq!(started(1), ([1, 1, 4, 0, 4], true));
        assert_eq!(started(0), ([0, 0, 5, 0, 4], true));
    }

    #[test]
    fn load_fails_only_if_the_first_lane_of_a_group_has_no_engine() {
        // By the number of the lane that has none; all of them begin with the load.
        for (failing, fails) in [(0, true), (1, false), (2, false), (3, true)] {
            let mut lanes = lanes();
            let feed = Arc::clone(&lanes[0].feed);
            lanes[failing].engine = Arc::new(Opens(false));
            let sink: Arc<OpenSink<DiscardSink>> = Arc::new(|| Ok(DiscardSink::recycling()));
            let (sender, ended) = unbounded();
            let started = start(lanes, &sink, || {
                let sender = sender.clone();
                LaneEvents {
                    deliver: Box::new(|_| ()),
                    failing: Box::new(|_| ()),
                    ended: Box::new(move |result| sender.send(result).expect("the test waits")),
                }
            });
            assert_eq!(started.is_err(), fails, "lane {failing}");
            let threads = started.map_or_else(|refused| refused.threads, |started| started.0);
            for thread in threads {
                thread.join().expect("panics are caught");
            }
            let results: Vec<_> = ended.try_iter().collect();
            assert!(results.len() == 5 && results.iter().all(Result::is_ok));
            let lanes_left = if failing % 3 == 0 { 4 } else { 1 + failing };
            assert_eq!(feed.lanes(), lanes_left, "lane {failing}");
        }
    }
}
