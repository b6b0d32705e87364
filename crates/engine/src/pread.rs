//! Engine of threads that call `pread`: works everywhere, and is the fastest way to copy from
//! memory-backed files. The same threads map files that are not to be copied.
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
use crate::fill::{self, Fill, Read, Step};
use crate::storage::ReadFile;
use crate::sync::cancel::CancelFlag;
use crate::sync::threads::Builder;
use crate::work::Work;
use crate::{Done, Engine, Job, Wait, cancelled};

/// Pool of reading threads.
#[derive(Debug)]
pub struct PreadEngine {
    work: Arc<Work<Task>>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
    depth: usize,
    in_flight: usize,
}

/// Job and its progress.
#[derive(Debug)]
struct Task {
    job: Job,
    /// `None` before the first read.
    begun: Option<(Fill, Read)>,
}

/// Result of working on a task.
enum Outcome {
    Done(Done),
    /// To be continued after a pause.
    Later(Task, Duration),
}

impl PreadEngine {
    /// Starts `threads` threads over `files`; takes up to `depth` jobs at a time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when not even one thread can be started.
    pub fn open(files: &Arc<[ReadFile]>, threads: usize, depth: usize) -> Result<Self> {
        // The channels have room for all jobs in flight, so sending neither waits nor allocates.
        let (done_queue, done) = bounded(depth.max(1));
        let mut engine = Self {
            work: Arc::default(),
            done,
            threads: Vec::new(),
            depth,
            in_flight: 0,
        };
        for index in 0..threads.max(1) {
            let (files, work) = (Arc::clone(files), Arc::clone(&engine.work));
            let done = done_queue.clone();
            let started = Builder::new()
                .name(format!("tload-pread-{index}"))
                .spawn(move || serve(&files, &work, &done));
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
        let extent = task.job.extent;
        let reading = || advance(&files[task.job.source], task, work);
        let outcome = catch_unwind(AssertUnwindSafe(reading)).unwrap_or_else(|_| {
            let error = Error::new(ErrorKind::Io, "a reading thread panicked")
                .with_hint("this is a bug in tload; please report it");
            Outcome::Done(Done::failed(extent, error))
        });
        match outcome {
            Outcome::Later(task, pause) => work.put_off(task, pause),
            Outcome::Done(one) => {
                if done.send(one).is_err() {
                    return;
                }
            }
        }
    }
}

/// Reads a job until it completes, fails or has to pause.
fn advance(file: &ReadFile, task: Task, work: &Work<Task>) -> Outcome {
    let Task { mut job, begun } = task;
    let extent = job.extent;
    let is_view = job.lease.is_view();
    let (mut state, mut next) = begun.unwrap_or_else(|| Fill::new(&job, file));
    let error = loop {
        if work.is_stopping() {
            break cancelled();
        }
        if is_view {
            return show(file, job, state, next);
        }
        let copied = state.copy(file, &mut job.lease, &mut next);
        let step = copied.unwrap_or_else(|| {
            let (start, end) = (next.window_offset, next.window_offset + next.len);
            let window = job.lease.bytes_mut(start..end);
            let count = rustix::io::pread(file.descriptor(next.access), window, next.offset);
            let count = count.map_err(rustix::io::Errno::raw_os_error);
            state.after(file, &mut job.lease, count)
        });
        match step {
            Step::Read(read) => next = read,
            Step::Later(read, pause) => {
                let begun = Some((state, read));
                return Outcome::Later(Task { job, begun }, pause);
            }
            Step::Filled(len) => {
                // `Fill` counts from 0 what `pread` reported, without leaving a gap.
                let filled = job.lease.written(len);
                let filled = filled.with_prefixes(state.take_prefixes());
                return Outcome::Done(Done {
                    extent,
                    result: Ok(filled),
                    window: None,
                    transfer: state.transfer,
                });
            }
            Step::Failed(error) => break error,
        }
    };
    Outcome::Done(Done {
        extent,
        result: Err(error),
        window: Some(job.lease),
        transfer: state.transfer,
    })
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
                let begun = Some((state, next));
                return Outcome::Later(Task { job, begun }, pause);
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
        self.work.put(Task { job, begun: None });
        self.in_flight += 1;
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
        let task = Task {
            job: job(Some(CRC)),
            begun: None,
        };
        let (Some(before), Some(after)) = (reads(), reads()) else {
            return;
        };
        if !lets_go(&file, folder.path()) {
            return;
        }
        let begun = reads().expect("counted before");
        let outcome = advance(&file, task, &Work::default());
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
