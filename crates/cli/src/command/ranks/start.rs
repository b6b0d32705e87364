//! Starts the ranks, waits for all of them and collects their messages. No rank outlives the
//! command.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tload::{Error, ErrorKind, Result};
use tload_base::sync::threads::Builder;

use super::RANK;
use super::failures::{Failure, first};
use super::messages::{Answer, Finished, Job, Loaded, REPORT, Seat};
use crate::interrupt::{Interrupt, Temporary};
use crate::output::error::file as file_error;
use crate::output::progress::Progress;
use tload_doctor::host::System;

/// Interval between looks at signals.
const STEP: Duration = Duration::from_millis(50);

/// Time after the first failure in which other ranks tell theirs: that of a lost leader takes up to
/// a second.
const FAILURE_GRACE: Duration = Duration::from_secs(1);

/// Time for processes to end, after which they are killed, and after that abandoned. Longer than
/// they wait for the disk of the cache.
const END_GRACE: Duration = Duration::from_secs(15);

/// Longest path of the temporary directory: that of a socket has 107 bytes at most.
const DIRECTORY_BYTES_MAX: usize = 64;

/// Load of one rank that has finished.
#[derive(Clone, Debug)]
pub(super) struct RankLoad {
    pub(super) loaded: Loaded,
    pub(super) finished: Finished,
    /// Proportional set size, while all ranks held what they keep.
    pub(super) pss_bytes: Option<u64>,
}

/// Runs a load of `size` ranks, and returns the results by rank. `arguments` are those that this
/// command was called with.
pub(super) fn run(
    job: &Job,
    size: usize,
    arguments: &[OsString],
    interrupt: &Interrupt,
) -> Result<Vec<RankLoad>> {
    let directory = directory(interrupt)?;
    let socket = directory.path().join("group");
    let progress = Progress::for_bytes(0, "loading");
    let mut ranks = Ranks::start(job, size, &socket, arguments)?;
    ranks.collect(interrupt, Some(&progress), |rank| rank.loaded.is_some())?;
    for rank in &mut ranks.all {
        rank.ask();
    }
    ranks.collect(interrupt, None, |rank| rank.finished.is_some())?;
    let system = System::real();
    for rank in &mut ranks.all {
        let file = format!("proc/{}/smaps_rollup", rank.process.id());
        rank.pss_bytes = system.field_bytes(&file, "Pss").ok();
    }
    let result = |rank: &mut Rank| {
        let (loaded, finished) = (rank.loaded.take()?, rank.finished.take()?);
        let pss_bytes = rank.pss_bytes;
        Some(RankLoad {
            loaded,
            finished,
            pss_bytes,
        })
    };
    let results: Option<Vec<RankLoad>> = ranks.all.iter_mut().map(result).collect();
    ranks.end(interrupt);
    Ok(results.expect("all have finished"))
}

/// Creates the directory of the socket, which only this user can enter.
fn directory(interrupt: &Interrupt) -> Result<Temporary<'_>> {
    let usual = std::env::temp_dir();
    let is_short = usual.as_os_str().len() <= DIRECTORY_BYTES_MAX;
    let parent = if is_short { &usual } else { Path::new("/tmp") };
    let directory = tempfile::Builder::new()
        .prefix("tload-ranks-")
        .tempdir_in(parent)
        .map_err(|error| file_error("cannot create a directory in", parent, error))?;
    Ok(interrupt.temporary(directory.keep()))
}

/// Processes of one load.
struct Ranks {
    all: Vec<Rank>,
    events: Receiver<(usize, Event)>,
    failures: Vec<(usize, Failure)>,
}

/// Process of one rank.
struct Rank {
    process: Child,
    input: Option<ChildStdin>,
    /// Bytes that have arrived so far, and those of all its tensors.
    progress: (u64, u64),
    loaded: Option<Loaded>,
    finished: Option<Finished>,
    pss_bytes: Option<u64>,
    has_ended: bool,
}

/// News of a rank.
enum Event {
    Answer(Box<Answer>),
    /// Its output is closed.
    Ended,
}

impl Ranks {
    fn start(job: &Job, size: usize, socket: &Path, arguments: &[OsString]) -> Result<Self> {
        let (send, events) = channel();
        let mut ranks = Self {
            all: Vec::with_capacity(size),
            events,
            failures: Vec::new(),
        };
        for rank in 0..size {
            let seat = Seat {
                rank,
                size,
                socket: OsStr::to_owned(socket.as_os_str()),
            };
            let started = start(job, &seat, arguments, &send)?;
            ranks.all.push(started);
        }
        Ok(ranks)
    }

    /// Waits until `is_done` holds for all ranks.
    ///
    /// # Errors
    ///
    /// That of a signal; the error that explains the failures of the ranks.
    fn collect(
        &mut self,
        interrupt: &Interrupt,
        progress: Option<&Progress>,
        is_done: impl Fn(&Rank) -> bool,
    ) -> Result<()> {
        let mut give_up = None;
        while !self.all.iter().all(&is_done) {
            let are_over = self.all.iter().all(|rank| rank.has_ended || is_done(rank));
            if give_up.is_some_and(|at| Instant::now() >= at) || are_over {
                break;
            }
            match self.events.recv_timeout(STEP) {
                Ok((rank, event)) => self.take(rank, event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            interrupt.check()?;
            if !self.failures.is_empty() {
                give_up.get_or_insert_with(|| Instant::now() + FAILURE_GRACE);
            }
            if let Some(bar) = progress {
                bar.set_total(self.all.iter().map(|rank| rank.progress.1).sum());
                bar.set(self.all.iter().map(|rank| rank.progress.0).sum());
            }
        }
        first(&self.failures, self.all.len()).map_or(Ok(()), Err)
    }

    fn take(&mut self, number: usize, event: Event) {
        let rank = &mut self.all[number];
        let failure = match event {
            Event::Ended => {
                rank.has_ended = true;
                let status = rank.process.wait().ok();
                if rank.finished.is_some() {
                    return;
                }
                let process = rank.process.id();
                Failure::Ended { process, status }
            }
            Event::Answer(answer) => match *answer {
                Answer::Progress { done, total } => {
                    rank.progress = (done, total);
                    return;
                }
                Answer::Loaded(loaded) => {
                    rank.progress.0 = rank.progress.1;
                    rank.loaded = Some(loaded);
                    return;
                }
                Answer::Finished(finished) => {
                    rank.finished = Some(finished);
                    return;
                }
                Answer::Failed(failed) => Failure::Told(failed),
            },
        };
        if self.failures.iter().all(|(known, _)| *known != number) {
            self.failures.push((number, failure));
        }
    }

    /// Lets the ranks drop their tensors and exit. A signal ends the wait, and the ranks.
    fn end(mut self, interrupt: &Interrupt) {
        for rank in &mut self.all {
            rank.input = None;
        }
        self.wait(|| interrupt.check().is_err());
    }

    /// Waits until the processes have ended, for [`END_GRACE`] at most.
    fn wait(&mut self, is_interrupted: impl Fn() -> bool) {
        let deadline = Instant::now() + END_GRACE;
        while self.all.iter().any(|rank| !rank.has_ended) {
            if is_interrupted() || Instant::now() >= deadline {
                return;
            }
            match self.events.recv_timeout(STEP) {
                Ok((rank, event)) => self.take(rank, event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.all {
            if !rank.has_ended {
                drop(rank.process.kill());
            }
        }
        self.wait(|| false);
    }
}

impl Rank {
    /// Asks for the report. If the process has just died, that is noticed elsewhere.
    fn ask(&mut self) {
        if let Some(input) = &mut self.input {
            drop(writeln!(input, "{REPORT}"));
        }
    }
}

/// Starts one rank and gives it its job.
fn start(
    job: &Job,
    seat: &Seat,
    arguments: &[OsString],
    events: &Sender<(usize, Event)>,
) -> Result<Rank> {
    let rank = seat.rank;
    let failed = |error| Error::from_io(format!("cannot start rank {rank}"), error);
    let mut process = tload_prefetch::again(arguments)
        .arg(RANK)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Ctrl-C reaches the command alone, which then ends the ranks.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let (input, output) = (process.stdin.take(), process.stdout.take());
    let mut started = Rank {
        process,
        input,
        progress: (0, 0),
        loaded: None,
        finished: None,
        pss_bytes: None,
        has_ended: false,
    };
    let begun = send_job(&mut started, job, seat).and_then(|()| read(output, rank, events.clone()));
    begun.inspect_err(|_| {
        drop(started.process.kill());
        drop(started.process.wait());
    })?;
    Ok(started)
}

fn send_job(rank: &mut Rank, job: &Job, seat: &Seat) -> Result<()> {
    let mut line = serde_json::to_vec(&(job, seat)).map_err(|error| {
        Error::new(ErrorKind::InvalidRequest, "cannot describe the load").with_source(error)
    })?;
    line.push(b'\n');
    // If the process has died already, its status says more than this error.
    rank.input.as_mut().map(|input| input.write_all(&line));
    Ok(())
}

/// Reads a rank's messages on a separate thread.
fn read(output: Option<ChildStdout>, rank: usize, events: Sender<(usize, Event)>) -> Result<()> {
    let task = move || {
        let lines = output.map(|output| BufReader::new(output).lines());
        for line in lines.into_iter().flatten().map_while(std::io::Result::ok) {
            let Ok(answer) = serde_json::from_str(&line) else {
                break;
            };
            if events
                .send((rank, Event::Answer(Box::new(answer))))
                .is_err()
            {
                return;
            }
        }
        // If nothing receives it, the load is over.
        drop(events.send((rank, Event::Ended)));
    };
    let thread = Builder::new().name("tload-rank".to_owned()).spawn(task);
    thread.map(drop).map_err(Error::cannot_start_thread)
}
