//! The thread of one lane: opens its engine there, runs the pipeline, and says how it ended.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

#[cfg(feature = "object")]
use crate::engine::ObjectSetup;
use crate::engine::{self, Engine, EngineKind, EngineSetup, Refusal};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::{self, Feed, LaneWork};
use crate::report::{Counters, EngineReport};
use crate::request::EngineChoice;
use crate::sink::Sink;

/// What a lane of a load is made of.
#[derive(Clone, Debug)]
pub(crate) struct LaneSetup {
    pub(crate) feed: Arc<Feed>,
    /// Whose sources it reads.
    pub(crate) group: usize,
    /// Its number among the group's lanes.
    pub(crate) index: usize,
    /// Whether the load begins with it; others begin when the feed wants them.
    pub(crate) begins_now: bool,
    pub(crate) engine: LaneEngine,
    pub(crate) counters: Arc<Counters>,
}

/// Which engine a lane opens.
#[derive(Clone, Debug)]
pub(crate) enum LaneEngine {
    Files {
        setup: Arc<EngineSetup>,
        kind: EngineKind,
        choice: EngineChoice,
        /// Why this kind.
        reason: String,
    },
    #[cfg(feature = "object")]
    Objects {
        setup: Arc<ObjectSetup>,
        /// Of an engine for files.
        choice: EngineChoice,
    },
}

/// The engine that a lane has opened; of several, what is worth saying of all.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    group: usize,
    pub(crate) report: EngineReport,
    pub(crate) refusal: Option<Refusal>,
}

/// Makes a lane's sink, on the thread that uses it.
pub(crate) type OpenSink<S> = dyn Fn() -> Result<S> + Send + Sync;

/// Takes finished tensors.
type Deliver<T> = Box<dyn Fn(&mut Vec<T>) + Send>;

/// The same, and those who hear of a failure.
type Listeners<'a, T> = (&'a dyn Fn(&mut Vec<T>), &'a dyn Fn(&Error));

/// What a lane tells to whom.
pub(crate) struct LaneEvents<T> {
    /// Every finished tensor, to be taken out of the list.
    pub(crate) deliver: Deliver<T>,
    /// Its first failure, while what it has in flight has not come back yet.
    pub(crate) failing: Box<dyn Fn(&Error) + Send>,
    /// The last word: after the engine is gone and all memory is given back.
    pub(crate) ended: Box<dyn FnOnce(Result<()>) + Send>,
}

/// Why lanes could not begin, and what is left of those that did.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// They have been told to end, and may be reading from storage that does not answer.
    pub(crate) threads: Vec<JoinHandle<()>>,
    /// Lanes that have not been started: `ended` is not called for them.
    pub(crate) missing: usize,
}

impl Refused {
    /// The error, when those that had begun have ended.
    pub(crate) fn joined(self) -> Error {
        for thread in self.threads {
            // Panics have been caught inside.
            let _ = thread.join();
        }
        self.error
    }
}

/// Starts all lanes and waits until each that begins now has opened its engine and its sink.
///
/// # Errors
///
/// The first lane's refusal. Waits for none of the others: `ended` is still called for each that had started, when storage lets it.
pub(crate) fn start<S>(
    lanes: Vec<LaneSetup>,
    sink: &Arc<OpenSink<S>>,
    events: impl Fn() -> LaneEvents<S::Tensor>,
) -> std::result::Result<(Vec<JoinHandle<()>>, Opened), Refused>
where
    S: Sink + 'static,
    S::Tensor: 'static,
{
    let (opened, openings) = bounded(lanes.len());
    let feeds: Vec<_> = lanes.iter().map(|lane| Arc::clone(&lane.feed)).collect();
    // The others wait until they are wanted, and need not begin at all: where threads are scarce, they must not take what those
    // that do need.
    let numbered = lanes.into_iter().enumerate();
    let (now, later): (Vec<_>, Vec<_>) = numbered.partition(|(_, lane)| lane.begins_now);
    let (mut threads, mut missing) = (Vec::new(), now.len());
    let mut failure = None;
    for (index, lane) in now {
        let opened = Some(opened.clone());
        match spawn(index, lane, Arc::clone(sink), events(), opened) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    drop(opened);
    let begun = threads.len();
    missing -= begun;
    let later = if failure.is_none() {
        later
    } else {
        missing += later.len();
        Vec::new()
    };
    for (index, lane) in later {
        match spawn(index, lane, Arc::clone(sink), events(), None) {
            Ok(thread) => threads.push(thread),
            // Nobody waits for it.
            Err(_) => (events().ended)(Ok(())),
        }
    }
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

fn openings_of(
    openings: &Receiver<Result<Opened>>,
    lanes: usize,
    failure: &mut Option<Error>,
) -> Option<Opened> {
    let mut by_group = BTreeMap::<usize, Opened>::new();
    for opening in openings.iter().take(lanes) {
        match opening {
            Ok(opened) => match by_group.get(&opened.group) {
                // One lane's fallback is worth more than the others' success.
                Some(_) if opened.refusal.is_none() => {}
                _ => drop(by_group.insert(opened.group, opened)),
            },
            Err(error) => *failure = failure.take().or(Some(error)),
        }
    }
    by_group.into_values().reduce(Opened::and)
}

impl Opened {
    /// Of two groups, each with its engine.
    fn and(self, other: Self) -> Self {
        let mut report = self.report;
        let is_new = |all: &str, one: &str, between: &str| !all.split(between).any(|it| it == one);
        if is_new(&report.name, &other.report.name, " + ") {
            report.name = format!("{} + {}", report.name, other.report.name);
        }
        if is_new(&report.reason, &other.report.reason, "; ") {
            report.reason = format!("{}; {}", report.reason, other.report.reason);
        }
        for feature in other.report.features {
            if !report.features.contains(&feature) {
                report.features.push(feature);
            }
        }
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
    opened: Option<Sender<Result<Opened>>>,
) -> Result<JoinHandle<()>>
where
    S: Sink + 'static,
    S::Tensor: 'static,
{
    std::thread::Builder::new()
        .name(format!("tload-lane-{index}"))
        .spawn(move || {
            let LaneEvents {
                deliver,
                failing,
                ended,
            } = events;
            let result = caught(|| run(&setup, &*sink, (&*deliver, &*failing), opened));
            let told = caught(|| {
                if let Err(error) = &result {
                    setup.feed.stop();
                    // If it had nothing in flight, or panicked, the stream has not heard of it; others may wait in vain.
                    failing(error);
                }
                Ok(())
            });
            // Memory first, then the news, which must come whatever happens before.
            let freed = caught(|| {
                drop((sink, deliver, failing, setup));
                Ok(())
            });
            ended(result.and(told).and(freed));
        })
        .map_err(|error| {
            Error::new(ErrorKind::OutOfMemory, "cannot start a thread")
                .with_hint("raise the limit of processes (ulimit -u)")
                .with_source(error)
        })
}

fn run<S: Sink>(
    setup: &LaneSetup,
    sink: &OpenSink<S>,
    (deliver, failing): Listeners<'_, S::Tensor>,
    opened: Option<Sender<Result<Opened>>>,
) -> Result<()> {
    if opened.is_none() && !setup.feed.wait_to_begin(setup.group, setup.index) {
        return Ok(());
    }
    let both = setup.engine.open(setup.group).and_then(|(engine, report)| {
        let sink = sink()?;
        Ok((engine, report, sink))
    });
    // The sink goes first: what it holds may be memory that the engine has registered.
    let (mut engine, report, mut sink) = match (both, &opened) {
        (Ok(both), _) => both,
        (Err(error), Some(opened)) => {
            // Whoever started the lanes returns it.
            return opened
                .send(Err(error))
                .map_err(|unsent| unsent.0.err().unwrap_or_else(unheard));
        }
        (Err(error), None) => {
            // The lanes that are there can do without this one.
            tracing::debug!(%error, "a further lane could not begin");
            setup.feed.lane_failed(setup.group);
            return Ok(());
        }
    };
    if let Some(opened) = opened {
        // Whoever started the lanes may have given up on another one's refusal.
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

impl LaneEngine {
    /// Opens the engine on the calling thread, which must be the one that uses it.
    fn open(&self, group: usize) -> Result<(Box<dyn Engine>, Opened)> {
        let (opened, requested, reason) = match self {
            Self::Files {
                setup,
                kind,
                choice,
                reason,
            } => (
                engine::open(*kind, *choice, setup)?,
                choice.name(),
                reason.clone(),
            ),
            #[cfg(feature = "object")]
            Self::Objects { setup, choice } => (
                engine::open_objects(setup),
                choice.name(),
                "for object stores".to_owned(),
            ),
        };
        let reason = match &opened.refusal {
            Some(refusal) => format!("a ring could not be set up: {}", refusal.reason),
            None => reason,
        };
        let report = EngineReport {
            name: opened.name.to_owned(),
            requested: requested.to_owned(),
            reason,
            features: opened.features,
        };
        let refusal = opened.refusal;
        Ok((
            opened.engine,
            Opened {
                group,
                report,
                refusal,
            },
        ))
    }
}

/// A lane that could not say that it cannot begin.
fn unheard() -> Error {
    Error::new(ErrorKind::Io, "a lane could not begin")
}

/// Runs `work`; a panic in it becomes an error, because a load must end whatever happens.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(bug(&*panic)))
}

/// A panic of ours, as an error.
fn bug(panic: &(dyn Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    Error::new(ErrorKind::Io, format!("a lane panicked: {text}"))
        .with_hint("this is a bug in tload; please report it")
}
