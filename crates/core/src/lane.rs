//! The thread of one lane: opens its engine there, runs the pipeline, and says how it ended.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::engine::{self, EngineKind, EngineSetup, Refusal};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::{self, Feed, LaneWork};
use crate::report::{Counters, EngineReport};
use crate::request::EngineChoice;
use crate::sink::Sink;

/// What every lane of a load is made of.
#[derive(Clone, Debug)]
pub(crate) struct LaneSetup {
    pub(crate) feed: Arc<Feed>,
    pub(crate) engine: Arc<EngineSetup>,
    pub(crate) kind: EngineKind,
    pub(crate) choice: EngineChoice,
    pub(crate) reason: String,
    pub(crate) counters: Arc<Counters>,
}

/// The engine that a lane has opened.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) report: EngineReport,
    pub(crate) refusal: Option<Refusal>,
}

/// Takes finished tensors.
type Deliver<T> = Box<dyn Fn(&mut Vec<T>) + Send>;

/// What a lane tells to whom.
pub(crate) struct LaneEvents<T> {
    /// Every finished tensor, to be taken out of the list.
    pub(crate) deliver: Deliver<T>,
    /// The last word: after the engine is gone and all memory is given back.
    pub(crate) ended: Box<dyn FnOnce(Result<()>) + Send>,
}

/// Starts `lanes` lanes and waits until each has opened its engine.
///
/// # Errors
///
/// The first lane's refusal, after all lanes have ended. `ended` is then still called for each that had started.
pub(crate) fn start<S>(
    lanes: usize,
    setup: &LaneSetup,
    sink: impl Fn() -> S,
    events: impl Fn() -> LaneEvents<S::Tensor>,
) -> Result<(Vec<JoinHandle<()>>, Opened)>
where
    S: Sink + Send + 'static,
    S::Tensor: 'static,
{
    let (opened, openings) = bounded(lanes);
    let mut threads = Vec::new();
    let mut failure = None;
    for index in 0..lanes {
        match spawn(index, setup.clone(), sink(), events(), opened.clone()) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    drop(opened);
    let first = openings_of(&openings, threads.len(), &mut failure);
    match (failure, first) {
        (None, Some(first)) => Ok((threads, first)),
        (failure, _) => {
            setup.feed.stop();
            for thread in threads {
                // Panics have been caught inside.
                let _ = thread.join();
            }
            Err(failure.unwrap_or_else(|| Error::new(ErrorKind::Io, "no lane could be started")))
        }
    }
}

fn openings_of(
    openings: &Receiver<Result<Opened>>,
    lanes: usize,
    failure: &mut Option<Error>,
) -> Option<Opened> {
    let mut first: Option<Opened> = None;
    for opening in openings.iter().take(lanes) {
        match opening {
            // One lane's fallback is worth more than the others' success.
            Ok(opened) if first.is_none() || opened.refusal.is_some() => first = Some(opened),
            Ok(_) => {}
            Err(error) => *failure = failure.take().or(Some(error)),
        }
    }
    first
}

fn spawn<S>(
    index: usize,
    setup: LaneSetup,
    mut sink: S,
    events: LaneEvents<S::Tensor>,
    opened: Sender<Result<Opened>>,
) -> Result<JoinHandle<()>>
where
    S: Sink + Send + 'static,
    S::Tensor: 'static,
{
    std::thread::Builder::new()
        .name(format!("tload-lane-{index}"))
        .spawn(move || {
            let LaneEvents { deliver, ended } = events;
            let run = || run(&setup, &mut sink, &*deliver, opened);
            let result =
                catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(bug(&*panic)));
            if result.is_err() {
                setup.feed.stop();
            }
            // Memory first, then the news.
            drop((sink, deliver, setup));
            ended(result);
        })
        .map_err(|error| {
            Error::new(ErrorKind::OutOfMemory, "cannot start a thread")
                .with_hint("raise the limit of processes (ulimit -u)")
                .with_source(error)
        })
}

fn run<S: Sink>(
    setup: &LaneSetup,
    sink: &mut S,
    deliver: &dyn Fn(&mut Vec<S::Tensor>),
    opened: Sender<Result<Opened>>,
) -> Result<()> {
    let mut engine = match engine::open(setup.kind, setup.choice, &setup.engine) {
        Ok(engine) => engine,
        Err(error) => {
            // Whoever started the lanes returns it.
            let _ = opened.send(Err(error));
            return Ok(());
        }
    };
    let reason = match &engine.refusal {
        Some(refusal) => format!("a ring could not be set up: {}", refusal.reason),
        None => setup.reason.clone(),
    };
    let report = EngineReport {
        name: engine.name.to_owned(),
        requested: setup.choice.name().to_owned(),
        reason,
        features: engine.features,
    };
    // Whoever started the lanes may have given up on another one's refusal.
    let _ = opened.send(Ok(Opened {
        report,
        refusal: engine.refusal,
    }));
    drop(opened);
    let work = LaneWork {
        deliver,
        counters: &setup.counters,
    };
    pipeline::run(&setup.feed, &mut engine.engine, sink, &work)
}

/// A panic of ours, as an error: a load must end, whatever happens.
fn bug(panic: &(dyn Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    Error::new(ErrorKind::Io, format!("a lane panicked: {text}"))
        .with_hint("this is a bug in tload; please report it")
}
