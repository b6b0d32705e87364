//! Events of the core for Python's `logging`.
//!
//! No thread of the core waits for the interpreter: an event is queued as text. Threads that call
//! the core forward the queue while they are attached, between their waits. One of these waits is
//! at the exit of Python, and one on a thread that lives while the cache is written after a load.
//! `python/tload/_report/log.py` logs the events.

use std::fmt::{self, Write as _};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tload::internal::{printable, process_id};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Maximum number of events in the queue, which are some hundred bytes each: a program may not call
/// the core for hours.
const EVENTS_MAX: usize = 1000;

/// `logging.WARNING`.
const WARNING: u8 = 30;

/// An event: level and logger of Python, text, source file and line, seconds since 1970.
type Queued = (u8, String, String, &'static str, u32, f64);

#[derive(Debug)]
struct Queue {
    events: Vec<Queued>,
    /// Number of warnings and errors that found the queue full.
    lost: u64,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    events: Vec::new(),
    lost: 0,
});

/// Process that the contents of the queue belong to.
static OWNER: AtomicU32 = AtomicU32::new(0);

static HAS_EVENTS: AtomicBool = AtomicBool::new(false);

/// Starts to queue events, unless the process has done so. Not done when the module is imported:
/// the command has a log of its own.
pub(crate) fn listen() {
    // No lock: a process that is forked meanwhile must not block on it.
    static IS_LISTENING: AtomicBool = AtomicBool::new(false);
    if IS_LISTENING.swap(true, Ordering::Relaxed) {
        return;
    }
    // From now on the queue belongs to this process.
    drop(lock());
    // Events of other crates may contain secrets. Python logs the notes of a report itself.
    let ours = Targets::new()
        .with_target("tload", LevelFilter::DEBUG)
        .with_target("tload::notes", LevelFilter::OFF);
    let subscriber = tracing_subscriber::registry().with(ours).with(Listener);
    // Fails if the command has run in this process.
    drop(tracing::subscriber::set_global_default(subscriber));
}

/// Passes all queued events to `logging`, on the calling thread.
pub(crate) fn forward(py: Python<'_>) -> PyResult<()> {
    static LOG: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if !HAS_EVENTS.load(Ordering::Acquire) {
        return Ok(());
    }
    let Some(mut queue) = lock() else {
        return Ok(());
    };
    HAS_EVENTS.store(false, Ordering::Release);
    let (mut events, lost) = (mem::take(&mut queue.events), mem::take(&mut queue.lost));
    // Logging runs code of the program, perhaps on other threads too.
    drop(queue);
    if lost > 0 {
        let text = format!("{lost} more warnings and errors: too many at a time to log");
        events.push((WARNING, "tload".to_owned(), text, file!(), line!(), now()));
    }
    let log = LOG.get_or_try_init(py, || {
        let module = py.import("tload._report.log")?;
        Ok::<_, PyErr>(module.getattr("log_events")?.unbind())
    })?;
    log.bind(py).call1((events,)).map(drop)
}

/// Locks the queue. No thread holds the lock while it waits for anything, the interpreter included.
fn lock() -> Option<MutexGuard<'static, Queue>> {
    let process = process_id();
    if OWNER.load(Ordering::Acquire) == process {
        return Some(QUEUE.lock().unwrap_or_else(PoisonError::into_inner));
    }
    // In a fork, the thread that held the lock may not exist, and the events are the parent's.
    let mut queue = QUEUE.try_lock().ok()?;
    if OWNER.swap(process, Ordering::AcqRel) != process {
        queue.events.clear();
        queue.lost = 0;
    }
    Some(queue)
}

/// Receives the events of all threads.
struct Listener;

/// Returns the logger of events with this target. Those of all crates are below `tload`.
fn logger_of(target: &str) -> String {
    let target = target.replace("::", ".");
    match target.strip_prefix("tload_") {
        Some(rest) => format!("tload.{rest}"),
        None => target,
    }
}

impl<S: Subscriber> Layer<S> for Listener {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let level = match *metadata.level() {
            Level::ERROR => 40,
            Level::WARN => WARNING,
            Level::INFO => 20,
            Level::DEBUG | Level::TRACE => 10,
        };
        let mut text = Text::default();
        event.record(&mut text);
        let queued = (
            level,
            logger_of(metadata.target()),
            printable(&(text.message + &text.fields)),
            metadata.file().unwrap_or_default(),
            metadata.line().unwrap_or_default(),
            now(),
        );
        let Some(mut queue) = lock() else {
            return;
        };
        // Warnings find room among events that a program may not even log.
        let most = if level >= WARNING {
            EVENTS_MAX
        } else {
            EVENTS_MAX / 2
        };
        if queue.events.len() < most {
            queue.events.push(queued);
        } else {
            queue.lost += u64::from(level >= WARNING);
        }
        HAS_EVENTS.store(true, Ordering::Release);
    }
}

/// Text of an event: its message, then its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}
