//! Threads that call `pread`: works everywhere, and is the fastest way to copy from memory-backed files. The same threads map files
//! that are not to be copied at all.
//!
//! Chosen by itself when no ring can be set up. Each thread takes a job, reads it whole, and sends it back.

#![expect(unsafe_code, reason = "says which bytes of a lease a read has filled")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::fill::{self, Fill, Step};
use super::{Done, Engine, Job, Transfer, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::source::ReadFile;

/// A pool of reading threads.
#[derive(Debug)]
pub(super) struct PreadEngine {
    /// None only while being dropped.
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
    depth: usize,
    in_flight: usize,
}

impl PreadEngine {
    /// Starts `threads` threads over `files`; takes up to `depth` jobs at a time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the system starts not even one thread.
    pub(super) fn open(files: &Arc<[ReadFile]>, threads: usize, depth: usize) -> Result<Self> {
        // Room for all that may be in flight: sending neither waits nor allocates.
        let (jobs, job_queue) = bounded::<Job>(depth.max(1));
        let (done_queue, done) = bounded(depth.max(1));
        let mut engine = Self {
            jobs: Some(jobs),
            done,
            threads: Vec::new(),
            depth,
            in_flight: 0,
        };
        for index in 0..threads.max(1) {
            let (files, jobs, done) = (Arc::clone(files), job_queue.clone(), done_queue.clone());
            let started = std::thread::Builder::new()
                .name(format!("tload-pread-{index}"))
                .spawn(move || serve(&files, &jobs, &done));
            match started {
                Ok(thread) => engine.threads.push(thread),
                // Fewer threads read slower; none would hang.
                Err(_) if index > 0 => break,
                Err(error) => {
                    return Err(Error::new(ErrorKind::OutOfMemory, "cannot start a thread")
                        .with_hint("raise the limit of processes (ulimit -u)")
                        .with_source(error));
                }
            }
        }
        Ok(engine)
    }

    /// Threads that serve.
    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }
}

fn serve(files: &[ReadFile], jobs: &Receiver<Job>, done: &Sender<Done>) {
    for job in jobs {
        let extent = job.extent;
        let reading = || read(&files[job.source], job);
        let one = catch_unwind(AssertUnwindSafe(reading)).unwrap_or_else(|_| Done {
            extent,
            result: Err(Error::new(ErrorKind::Io, "a reading thread panicked")
                .with_hint("this is a bug in tload; please report it")),
            transfer: Transfer::default(),
        });
        if done.send(one).is_err() {
            return;
        }
    }
}

/// Reads one job whole.
fn read(file: &ReadFile, mut job: Job) -> Done {
    if job.lease.is_view() {
        return show(file, job);
    }
    let (mut state, mut next) = Fill::new(&job, file);
    let result = loop {
        let window = &mut job.lease.as_uninit()[next.window_offset..][..next.len];
        let count = rustix::io::pread(file.descriptor(next.access), window, next.offset)
            .map(|(filled, _)| filled.len())
            .map_err(rustix::io::Errno::raw_os_error);
        match state.after(file, count) {
            Step::Read(read) => next = read,
            // SAFETY: `Fill` counts from 0 what `pread` reported without leaving a gap, and the call has returned.
            Step::Filled(len) => break Ok(unsafe { job.lease.assume_filled(len) }),
            Step::Failed(error) => break Err(error),
        }
    };
    Done {
        extent: job.extent,
        result,
        transfer: state.transfer,
    }
}

/// Nothing is read into the window of a view: the file's pages are brought in and mapped.
fn show(file: &ReadFile, job: Job) -> Done {
    let (extent, offset, needed) = (job.extent, job.offset, job.needed);
    if !file.is_copied() {
        file.read_ahead(offset, needed);
    }
    let result = job
        .lease
        .populate(needed)
        .map_err(|error| fill::not_shown(file, offset, needed, error));
    let mapped_bytes = result.as_ref().map_or(0, |_| needed as u64);
    Done {
        extent,
        result,
        transfer: Transfer {
            mapped_bytes,
            ..Transfer::default()
        },
    }
}

impl Engine for PreadEngine {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn submit(&mut self, job: Job) {
        let jobs = self.jobs.as_ref().expect("taken only in drop");
        jobs.send(job)
            .expect("threads serve until the sender is dropped");
        self.in_flight += 1;
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        if wait == Wait::ForOne && self.in_flight > 0 {
            done.push(
                self.done
                    .recv()
                    .expect("threads serve until the sender is dropped"),
            );
            self.in_flight -= 1;
        }
        while let Ok(one) = self.done.try_recv() {
            done.push(one);
            self.in_flight -= 1;
        }
    }
}

impl Drop for PreadEngine {
    fn drop(&mut self) {
        // Without a sender the threads end after the jobs they have, which own their memory until then.
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A panic there has been reported by the panic hook; its job's memory is gone with it.
            let _ = thread.join();
        }
    }
}
