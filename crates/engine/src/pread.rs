//! Engine of threads that call `pread`: works everywhere, and is the fastest way to copy from
//! memory-backed files. The same threads map files that are not to be copied. They fill jobs one
//! by one, or all of them the same job, strip by strip.
//!
//! Chosen automatically when no ring can be set up, for files on tmpfs, and for files in the page
//! cache that are loaded to GPUs. Each thread takes a job, reads all of it, and sends it back. A
//! job that waits for a retry is in the queue and occupies no thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::{Error, ErrorKind, Result};
use crate::fill::{self, Fill, Read, Step, Window};
use crate::memory::{Lease, Strip};
use crate::storage::ReadFile;
use crate::strips::{self, Shared};
use crate::sync::cancel::CancelFlag;
use crate::sync::threads::Builder;
use crate::work::Work;
use crate::{Done, Engine, EngineSetup, Job, Wait, cancelled, priority};

/// Pool of reading threads.
#[derive(Debug)]
pub struct PreadEngine {
    work: Arc<Work<Task>>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
    files: Arc<[ReadFile]>,
    strip_bytes: Option<usize>,
    depth: usize,
    in_flight: usize,
}

/// Memory to fill, and the progress of it; `None` before the first read.
#[derive(Debug)]
enum Task {
    Job(Job, Option<Begun>),
    Strip(Strip<Shared>, Option<Begun>),
}

/// State of reads that have begun, and the next read.
type Begun = (Fill, Read);

/// Result of working on a task.
enum Outcome {
    Done(Done),
    /// To be continued after a pause.
    Later(Task, Duration),
    /// A strip has ended, and others of its job have not.
    Strip,
}

/// End of the reads into a window.
enum End {
    /// This many bytes are filled.
    Filled(usize),
    Failed(Error),
    Later(Duration),
}

impl PreadEngine {
    /// Starts `threads` threads.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when not even one thread can be started.
    pub fn open(setup: &EngineSetup, threads: usize) -> Result<Self> {
        let depth = setup.depth;
        // The channels have room for all jobs in flight, so sending neither waits nor allocates.
        let (done_queue, done) = bounded(depth.max(1));
        let mut engine = Self {
            work: Arc::default(),
            done,
            threads: Vec::new(),
            files: Arc::clone(&setup.files),
            strip_bytes: setup.strip_bytes,
            depth,
            in_flight: 0,
        };
        for index in 0..threads.max(1) {
            let (files, work) = (Arc::clone(&engine.files), Arc::clone(&engine.work));
            let (done, yields) = (done_queue.clone(), setup.yields);
            let started = Builder::new()
                .name(format!("tload-pread-{index}"))
                .spawn(move || {
                    if yields {
                        priority::lower();
                    }
                    serve(&files, &work, &done);
                });
            match started {
                Ok(thread) => engine.threads.push(thread),
                // Fewer threads read more slowly; without any, the load would hang.
                Err(_) if index > 0 => break,
                Err(error) => return Err(Error::cannot_start_thread(error)),
            }
        }
        Ok(engine)
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }
}

fn serve(files: &[ReadFile], work: &Work<Task>, done: &Sender<Done>) {
    while let Some(task) = work.take() {
        let outcome = match task {
            Task::Job(job, begun) => fill_job(&files[job.source], job, begun, work),
            Task::Strip(strip, begun) => {
                fill_strip(&files[strip.shared().source], strip, begun, work)
            }
        };
        match outcome {
            Outcome::Strip => {}
            Outcome::Later(task, pause) => work.put_off(task, pause),
            Outcome::Done(one) => {
                if done.send(one).is_err() {
                    return;
                }
            }
        }
    }
}

fn panicked() -> Error {
    Error::new(ErrorKind::Io, "a reading thread panicked")
        .with_hint("this is a bug in tload; please report it")
}

/// Fills the window of a job.
fn fill_job(file: &ReadFile, job: Job, begun: Option<Begun>, work: &Work<Task>) -> Outcome {
    let extent = job.extent;
    let reading = || read_job(file, job, begun, work);
    catch_unwind(AssertUnwindSafe(reading))
        .unwrap_or_else(|_| Outcome::Done(Done::failed(extent, panicked())))
}

fn read_job(file: &ReadFile, mut job: Job, begun: Option<Begun>, work: &Work<Task>) -> Outcome {
    let extent = job.extent;
    let (mut state, mut next) = begun.unwrap_or_else(|| Fill::new(&job, file));
    if job.lease.is_view() && !work.is_stopping() {
        return show(file, job, state, next);
    }
    let is_over = |_: &Lease| work.is_stopping();
    let (result, window) = match advance(file, &mut job.lease, &mut state, &mut next, is_over) {
        End::Later(pause) => return Outcome::Later(Task::Job(job, Some((state, next))), pause),
        // `Fill` counts from 0 what `pread` reported, without leaving a gap.
        End::Filled(len) => {
            let filled = job.lease.written(len);
            (Ok(filled.with_prefixes(state.take_prefixes())), None)
        }
        End::Failed(error) => (Err(error), Some(job.lease)),
    };
    Outcome::Done(Done {
        extent,
        result,
        window,
        transfer: state.transfer,
    })
}

/// Fills a strip of a job's window.
fn fill_strip(
    file: &ReadFile,
    mut strip: Strip<Shared>,
    mut begun: Option<Begun>,
    work: &Work<Task>,
) -> Outcome {
    let reading = || {
        let (state, next) = begun.get_or_insert_with(|| Fill::of_strip(&strip, file));
        let is_over = |strip: &_| work.is_stopping() || strips::is_over(strip);
        advance(file, &mut strip, state, next, is_over)
    };
    let end = catch_unwind(AssertUnwindSafe(reading));
    let result = match end.unwrap_or_else(|_| End::Failed(panicked())) {
        End::Later(pause) => return Outcome::Later(Task::Strip(strip, begun), pause),
        End::Filled(len) => Ok(len),
        End::Failed(error) => Err(error),
    };
    let state = begun.map(|(state, _)| state);
    strips::end(strip, result, state).map_or(Outcome::Strip, Outcome::Done)
}

/// Reads into a window until it is filled, fails, has to pause, or `is_over`.
fn advance<W: Window>(
    file: &ReadFile,
    window: &mut W,
    state: &mut Fill,
    next: &mut Read,
    is_over: impl Fn(&W) -> bool,
) -> End {
    while !is_over(window) {
        let copied = state.copy(file, window, next);
        let step = copied.unwrap_or_else(|| {
            let (start, end) = (next.window_offset, next.window_offset + next.len);
            let bytes = window.bytes_mut(start..end);
            let count = rustix::io::pread(file.descriptor(next.access), bytes, next.offset);
            let count = count.map_err(rustix::io::Errno::raw_os_error);
            state.after(file, window, count)
        });
        match step {
            Step::Read(read) => *next = read,
            Step::Later(read, pause) => {
                *next = read;
                return End::Later(pause);
            }
            Step::Filled(len) => return End::Filled(len),
            Step::Failed(error) => return End::Failed(error),
        }
    }
    End::Failed(cancelled())
}

/// Brings in and maps the file's pages of a view; nothing is read into its window.
fn show(file: &ReadFile, mut job: Job, mut state: Fill, next: Read) -> Outcome {
    let (extent, offset, needed) = (job.extent, job.offset, job.needed);
    if !file.is_copied() {
        file.read_ahead(offset, needed);
    }
    let result = match job.lease.populate(needed) {
        Ok(filled) => {
            state.transfer.mapped_bytes = needed as u64;
            Ok(filled)
        }
        Err((lease, error)) => {
            if let Some(pause) = state.not_shown(file, &error) {
                job.lease = lease;
                return Outcome::Later(Task::Job(job, Some((state, next))), pause);
            }
            Err(fill::not_shown(file, offset, needed, error))
        }
    };
    Outcome::Done(Done {
        extent,
        result,
        window: None,
        transfer: state.transfer,
    })
}

impl Engine for PreadEngine {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn submit(&mut self, job: Job) {
        self.in_flight += 1;
        let file = &self.files[job.source];
        let alignment = usize::try_from(file.alignment()).expect("alignments are small");
        let split = match self.strip_bytes {
            Some(bytes) => strips::split(job, bytes, alignment),
            None => Err(job),
        };
        match split {
            Ok(strips) => self
                .work
                .put_all(strips.map(|strip| Task::Strip(strip, None))),
            Err(job) => self.work.put(Task::Job(job, None)),
        }
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        if wait == Wait::ForOne && self.in_flight > 0 {
            done.push(
                self.done
                    .recv()
                    .expect("threads serve until the engine is dropped"),
            );
            self.in_flight -= 1;
        }
        while let Ok(one) = self.done.try_recv() {
            done.push(one);
            self.in_flight -= 1;
        }
    }

    /// Ends pauses and jobs that have not begun. A `pread` cannot be cancelled.
    fn stop_when(&mut self, cancel: &CancelFlag) {
        let work = Arc::clone(&self.work);
        cancel.on_cancel(move || work.stop());
    }
}

impl Drop for PreadEngine {
    fn drop(&mut self) {
        // Joined threads have completed the queued jobs, which own their memory until then.
        self.work.close();
        for thread in self.threads.drain(..) {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::fill::tests::{CRC, copied_file, job, lets_go};

    /// Number of reads that this thread has made; `None` if the system does not count them.
    fn reads() -> Option<u64> {
        let counts = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        let reads = counts.lines().find_map(|line| line.strip_prefix("syscr: "));
        reads?.parse().ok()
    }

    #[test]
    fn bytes_that_left_page_cache_are_read_in_one_call() {
        let (file, bytes, folder) = copied_file();
        let job = job(Some(CRC));
        let (Some(before), Some(after)) = (reads(), reads()) else {
            return;
        };
        if !lets_go(&file, folder.path()) {
            return;
        }
        let begun = reads().expect("counted before");
        let outcome = read_job(&file, job, None, &Work::default());
        // The counter is read from a file, which counts as reads too.
        let made = reads().expect("counted before") - begun - (after - before);
        let Outcome::Done(done) = outcome else {
            panic!("nothing has failed");
        };
        let filled = done.result.expect("read");
        assert!(filled.has_crcs() && filled.bytes() == bytes);
        // One that does not wait and one that does, or few more where the disk is faster than this
        // thread.
        assert!(made < 4, "{made} reads");
    }
}
