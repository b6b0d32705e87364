//! Process that loads as one rank. It talks with the command over standard input and output.

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use tload::ranks::finish_serving;
use tload::{
    Error, ErrorKind, Group, LoadOptions, Loader, LocalGroup, Report, Result, Share, Tensor,
    TensorStream,
};
use tload_base::sync::threads::Builder;

use super::super::open::open_with;
use super::messages::{Answer, Failed, Finished, Job, Loaded, REPORT, Seat};
use super::sharding;
use crate::bench::usage::Meter;
use crate::exit;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::answer::Answer as JsonAnswer;

/// Interval between messages on the progress.
const REDRAW: Duration = Duration::from_millis(100);

/// Smallest page.
const PAGE_BYTES: usize = 4096;

/// Time that ranks have to join unless the user set one.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Loads what the command asks for, and returns the exit status.
pub(crate) fn run() -> u8 {
    let lines = Lines::start();
    let Some((job, seat)) = lines
        .next()
        .and_then(|line| serde_json::from_str::<(Job, Seat)>(&line).ok())
    else {
        return exit::USAGE;
    };
    match load(&job, &seat, &lines) {
        Ok(()) => exit::SUCCESS,
        Err(error) => {
            // If the command is gone, there is nothing left to tell.
            drop(tell(&Answer::Failed(Failed::new(&error))));
            exit::status(&error)
        }
    }
}

fn load(job: &Job, seat: &Seat, lines: &Lines) -> Result<()> {
    let mut tuning = LoadOptions::default();
    tuning.trial = options::trial()?;
    for (name, text) in &job.options {
        tuning.set(name, text)?;
    }
    let (rank, size) = (seat.rank, seat.size);
    let join_timeout = tuning.join_timeout.unwrap_or(JOIN_TIMEOUT);
    let group: Arc<dyn Group> = Arc::new(LocalGroup::join(
        Path::new(&seat.socket),
        rank,
        size,
        join_timeout,
    )?);
    let meter = Meter::start();
    let started = seconds();
    // Signals end this process as they do by default.
    let interrupt = Interrupt::unattached(JsonAnswer::default());
    let (location, opening) = (&job.location, &job.opening);
    let checkpoint = open_with(location, opening, tuning.timeout, &interrupt, |it| {
        let shares = tuning.share != Share::None;
        it.group = shares.then(|| Arc::clone(&group));
        it.join_timeout = Some(join_timeout);
    })?;
    let loader = Loader::new(checkpoint)
        .select(options::selection(&job.select)?)
        .device(options::device(&job.device)?)
        .device_map(options::device_map(&job.device_map)?)
        .options(tuning);
    let selected = loader.selected()?;
    let of_rank = sharding::of_rank(job.shard, &selected, rank, size)?;
    let loader = match of_rank.names {
        Some(names) => loader.within(names)?,
        None => loader,
    };
    let loader = loader.slices(of_rank.slices).group(group);
    let mut stream = loader.stream()?;
    let kept = receive(&mut stream, job.keep)?;
    tell(&Answer::Loaded(Loaded {
        started,
        ended: seconds(),
        selected_bytes: selected.iter().map(tload::TensorInfo::byte_len).sum(),
    }))?;
    lines.outlive();
    if lines.next().as_deref() == Some(REPORT) {
        let finished = finished(&stream.report(), &meter);
        touch(&kept);
        tell(&Answer::Finished(finished))?;
        // Until the command closes the pipe.
        lines.next();
    }
    drop((kept, stream));
    tload::cache::finish_caching(crate::CACHING_GRACE);
    finish_serving(join_timeout);
    Ok(())
}

/// Receives every tensor, and returns them if they are to be kept.
fn receive(stream: &mut TensorStream, keeps: bool) -> Result<Vec<Tensor>> {
    let mut kept = Vec::new();
    let mut told = Instant::now();
    loop {
        match stream.wait(REDRAW) {
            Poll::Pending => {}
            Poll::Ready(None) => break,
            Poll::Ready(Some(tensor)) => {
                let tensor = tensor?;
                if keeps {
                    kept.push(tensor);
                }
            }
        }
        if told.elapsed() >= REDRAW {
            told = Instant::now();
            let now = stream.progress();
            tell(&Answer::Progress {
                done: now.bytes_done(),
                total: now.bytes_total,
            })?;
        }
    }
    Ok(kept)
}

/// Reads every page of tensors in host memory, as their user would: pages of shared memory count as
/// those of the processes that have touched them.
fn touch(tensors: &[Tensor]) {
    for tensor in tensors.iter().filter(|it| it.device_bytes().is_none()) {
        let pages = tensor.bytes().iter().step_by(PAGE_BYTES);
        std::hint::black_box(pages.fold(0, |all, byte| all ^ byte));
    }
}

fn finished(report: &Report, meter: &Meter) -> Finished {
    let group = report.group.as_ref();
    Finished {
        read_bytes: group.map_or(report.read_bytes, |group| group.read_bytes),
        received_bytes: report.received_bytes,
        tensor_bytes: report.tensor_bytes,
        cpu_seconds: meter.stop().cpu_seconds,
        share: group.map_or_else(|| "none".to_owned(), |group| group.share.clone()),
        reason: group.and_then(|group| group.reason.clone()),
        notes: report.notes.clone(),
        report: serde_json::to_value(report).unwrap_or_default(),
    }
}

/// Lines from the command.
struct Lines {
    received: Receiver<String>,
    /// Set once this process may outlive the pipe.
    is_done: Arc<AtomicBool>,
}

impl Lines {
    /// Reads on a thread of its own, so that the death of the command is noticed at once.
    fn start() -> Self {
        let (send, received) = channel();
        let is_done = Arc::<AtomicBool>::default();
        let done = Arc::clone(&is_done);
        let read = move || {
            for line in io::stdin().lock().lines().map_while(io::Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
            if !done.load(Ordering::SeqCst) {
                // Nothing here needs to be put in order, and threads may wait for storage.
                signal_hook::low_level::exit(exit::USAGE.into());
            }
        };
        // Without this thread there is no job, and the process ends.
        drop(Builder::new().name("tload-lines".to_owned()).spawn(read));
        Self { received, is_done }
    }

    /// Returns the next line, once it is there; `None` when the pipe has been closed.
    fn next(&self) -> Option<String> {
        self.received.recv().ok()
    }

    /// Lets the process go on when the pipe closes.
    fn outlive(&self) {
        self.is_done.store(true, Ordering::SeqCst);
    }
}

/// Writes one line to the command.
fn tell(answer: &impl Serialize) -> Result<()> {
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Cancelled, "the command has ended").with_source(error)
    };
    let mut line = serde_json::to_vec(answer).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)
        .and_then(|()| out.flush())
        .map_err(failed)
}

/// Returns the seconds of a clock that is the same in all processes.
#[expect(clippy::cast_precision_loss, reason = "the uptime of a machine")]
fn seconds() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
