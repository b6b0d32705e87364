//! The reader's first thread: decides when the other one stops.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::{stdin, stdout};
use tload::cache::finish_caching;
use tload::internal::format_bytes;
use tload::{Error, ErrorKind, Location, OpenOptions, Report, Result};
use tload_base::sync::threads::Builder;

use crate::meeting;
use crate::memory::Memory;
use crate::priority;
use crate::read::{Progress, read};

/// Time between looks at memory.
const LOOK: Duration = Duration::from_millis(250);

/// Most time for reads to stop, and for the disk of the cache to take what has arrived: 64 MiB.
const GRACE: Duration = Duration::from_secs(2);

/// Why the reads have stopped before their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// A load has begun.
    Load,
    /// Memory has become short.
    Short,
    /// The pages take as much memory as they may.
    Full,
}

impl Stop {
    fn text(self) -> &'static str {
        match self {
            Self::Load => ", until the load began",
            Self::Short => ", until memory was short",
            Self::Full => ", which is half of the available memory",
        }
    }
}

/// Reads the checkpoint at `location` ahead, as the process that [`launch`](crate::launch) has
/// started: its standard input is the process of the command, its standard output the socket of
/// `meeting.rs`. Returns what was read, in words; `None` if the command has ended.
///
/// # Errors
///
/// Those of opening and loading; memory is short.
pub fn read_ahead(location: &Location, options: OpenOptions) -> Result<Option<String>> {
    let started = Instant::now();
    let memory = Memory::look(Path::new("/")).ok_or_else(|| {
        Error::new(ErrorKind::OutOfMemory, "memory is short").with_location(location)
    })?;
    // Where bytes go is known by the location: a store's go to the disk of the cache.
    let fills_memory = location.as_path().is_some();
    let progress = Arc::<Progress>::default();
    let reading = start(location, options, &progress)?;
    let mut stop = None;
    let mut deadline = None;
    while !reading.is_finished() {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break;
        }
        let [has_ended, has_begun] = events();
        if has_ended {
            return Ok(None);
        }
        let pages = if fills_memory {
            progress.bytes.load(Ordering::Relaxed)
        } else {
            0
        };
        let reason = if has_begun {
            Some(Stop::Load)
        } else if memory.is_short(pages) {
            Some(Stop::Short)
        } else if pages >= memory.pages_max {
            Some(Stop::Full)
        } else {
            None
        };
        if let (None, Some(_)) = (stop, reason) {
            stop = reason;
            progress.stop.store(true, Ordering::Relaxed);
            deadline = Some(Instant::now() + GRACE);
        }
    }
    let report = reading.is_finished().then(|| reading.join());
    finish_caching(GRACE);
    if events()[0] {
        return Ok(None);
    }
    let report = match report {
        Some(Ok(report)) => Some(report?),
        // The storage does not answer.
        None => None,
        Some(Err(_)) => {
            return Err(Error::new(ErrorKind::Io, "the reader panicked").with_location(location));
        }
    };
    let seconds = started.elapsed().as_secs_f64();
    let bytes = progress.bytes.load(Ordering::Relaxed);
    let what = told(location, bytes, report.as_ref());
    let why = stop.map_or("", Stop::text);
    Ok(Some(format!("{what} in {seconds:.1} s{why}")))
}

/// Starts the thread that reads. Threads that it starts have its priority too.
fn start(
    location: &Location,
    options: OpenOptions,
    progress: &Arc<Progress>,
) -> Result<JoinHandle<Result<Report>>> {
    let (location, progress) = (location.clone(), Arc::clone(progress));
    let reading = Builder::new().spawn(move || {
        priority::lower();
        read(&location, options, &progress)
    });
    reading.map_err(Error::cannot_start_thread)
}

/// Waits for an event, for a while. Returns whether the command has ended, and whether a load has
/// begun.
fn events() -> [bool; 2] {
    let (command, socket) = (stdin(), stdout());
    let mut watched = [
        PollFd::new(&command, PollFlags::IN),
        PollFd::new(&socket, PollFlags::IN),
    ];
    let timeout = Timespec::try_from(LOOK).ok();
    if poll(&mut watched, timeout.as_ref()).is_err() {
        return [false; 2];
    }
    let [has_ended, has_come] = watched.map(|each| !each.revents().is_empty());
    [has_ended, has_come && meeting::has_begun(stdout())]
}

/// Says what was read, and where to.
fn told(location: &Location, bytes: u64, report: Option<&Report>) -> String {
    if location.as_path().is_some() {
        let bytes = format_bytes(bytes);
        return format!("read {bytes} of {location} ahead into the page cache");
    }
    let cached = report.map_or(0, |report| report.cached_bytes);
    let arrived = format_bytes(bytes.saturating_sub(cached));
    let had = if cached == 0 {
        String::new()
    } else {
        format!(", which had {}", format_bytes(cached))
    };
    format!("read {arrived} of {location} ahead into the cache{had}")
}
