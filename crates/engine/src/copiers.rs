//! Threads that copy from memory for an engine whose lane has other work: it submits the next jobs
//! and queues copies to GPUs meanwhile.
//!
//! The engine hands over a copy that cannot wait for anything, and takes its result later. Without
//! threads, the lane copies.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::Done;
use super::work::Work;
use crate::error::{Error, ErrorKind};
use crate::sync::event_count::EventCount;
use crate::sync::threads::Builder;

/// Copy of one job, or of one strip of it: then the last of its copies returns the result.
pub type CopyTask = Box<dyn FnOnce() -> Option<Done> + Send>;

/// Pool of threads that copy.
pub struct Copiers {
    work: Arc<Work<(usize, CopyTask)>>,
    done: Receiver<Done>,
    done_queue: Sender<Done>,
    /// Notified when a copy has ended.
    events: Arc<EventCount>,
    /// Threads to start with the first copy: many loads make none.
    wanted: usize,
    threads: Vec<JoinHandle<()>>,
    copying: usize,
}

impl Copiers {
    /// Creates a pool of `threads` threads, which notify `events`. With fewer than two, the caller
    /// copies: another thread would only take its place.
    pub fn new(threads: usize, events: Arc<EventCount>) -> Self {
        let (done_queue, done) = unbounded();
        Self {
            work: Arc::default(),
            done,
            done_queue,
            events,
            wanted: if threads < 2 { 0 } else { threads },
            threads: Vec::new(),
            copying: 0,
        }
    }

    /// Number of threads that copy; 0 if the caller does.
    pub fn threads(&self) -> usize {
        self.wanted.max(self.threads.len())
    }

    /// Number of jobs whose results have not been taken.
    pub fn in_flight(&self) -> usize {
        self.copying
    }

    /// Makes the copies of one job, here or on threads.
    pub fn copy(
        &mut self,
        extent: usize,
        copies: impl IntoIterator<Item = CopyTask>,
        done: &mut Vec<Done>,
    ) {
        self.start();
        if self.threads.is_empty() {
            done.extend(copies.into_iter().filter_map(|copy| copy()));
            return;
        }
        self.copying += 1;
        for copy in copies {
            self.work.put((extent, copy));
        }
    }

    /// Takes the results of the copies that have ended.
    pub fn take(&mut self, done: &mut Vec<Done>) {
        let before = done.len();
        done.extend(self.done.try_iter());
        self.copying -= done.len() - before;
    }

    /// Starts the threads, if that has not been tried. Fewer copy more slowly.
    fn start(&mut self) {
        for index in 0..std::mem::take(&mut self.wanted) {
            let (work, done) = (Arc::clone(&self.work), self.done_queue.clone());
            let events = Arc::clone(&self.events);
            let started = Builder::new()
                .name(format!("tload-copy-{index}"))
                .spawn(move || serve(&work, &done, &events));
            match started {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    tracing::debug!(%error, index, "cannot start a thread that copies");
                    break;
                }
            }
        }
    }
}

/// Returns the error of a job of which a copy has panicked.
pub fn copy_panicked() -> Error {
    Error::new(ErrorKind::Io, "a copying thread panicked")
        .with_hint("this is a bug in tload; please report it")
}

fn serve(work: &Work<(usize, CopyTask)>, done: &Sender<Done>, events: &EventCount) {
    while let Some((extent, copy)) = work.take() {
        let one = catch_unwind(AssertUnwindSafe(copy))
            .unwrap_or_else(|_| Some(Done::failed(extent, copy_panicked())));
        let Some(one) = one else { continue };
        if done.send(one).is_err() {
            return;
        }
        events.notify();
    }
}

impl Drop for Copiers {
    fn drop(&mut self) {
        // Joined threads have made the queued copies, which own their memory until then.
        self.work.close();
        for thread in self.threads.drain(..) {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Copiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copiers")
            .field("threads", &self.threads.len())
            .field("copying", &self.copying)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread::current;

    use super::*;

    fn failing(extent: usize) -> Done {
        Done::failed(extent, Error::new(ErrorKind::Io, "copied"))
    }

    /// Copies of a job that has one.
    fn one(copy: impl FnOnce() -> Option<Done> + Send + 'static) -> [CopyTask; 1] {
        [Box::new(copy)]
    }

    /// Waits until all copies have ended, and returns their extents in order.
    fn all(copiers: &mut Copiers) -> Vec<usize> {
        let mut done = Vec::new();
        while copiers.in_flight() > 0 {
            let seen = copiers.events.count();
            let before = done.len();
            copiers.take(&mut done);
            if done.len() == before {
                copiers.events.wait_past(seen);
            }
        }
        let mut extents: Vec<_> = done.iter().map(|done| done.extent).collect();
        extents.sort_unstable();
        extents
    }

    #[test]
    fn several_threads_copy_at_a_time() {
        const THREADS: usize = 3;
        let mut copiers = Copiers::new(THREADS, Arc::default());
        let (barrier, mut done) = (Arc::new(Barrier::new(THREADS)), Vec::new());
        for extent in 0..2 * THREADS {
            let barrier = Arc::clone(&barrier);
            let copy = move || {
                barrier.wait();
                Some(failing(extent))
            };
            copiers.copy(extent, one(copy), &mut done);
        }
        assert!(done.is_empty(), "the caller copies nothing");
        assert_eq!(all(&mut copiers), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn caller_copies_without_threads() {
        for threads in [0, 1] {
            let mut copiers = Copiers::new(threads, Arc::default());
            let (caller, mut done) = (current().id(), Vec::new());
            let copy = move || {
                assert_eq!(current().id(), caller);
                Some(failing(7))
            };
            copiers.copy(7, one(copy), &mut done);
            assert_eq!((done.len(), copiers.in_flight()), (1, 0));
        }
    }

    #[test]
    fn job_of_several_copies_has_one_result() {
        let mut copiers = Copiers::new(2, Arc::default());
        let (barrier, mut done) = (Arc::new(Barrier::new(2)), Vec::new());
        let copy = |is_last: bool| -> CopyTask {
            let barrier = Arc::clone(&barrier);
            Box::new(move || {
                barrier.wait();
                is_last.then(|| failing(3))
            })
        };
        copiers.copy(3, [copy(false), copy(true)], &mut done);
        assert_eq!(copiers.in_flight(), 1);
        assert_eq!(all(&mut copiers), [3]);
    }

    #[test]
    fn panic_of_a_copy_fails_its_job_only() {
        let mut copiers = Copiers::new(2, Arc::default());
        let mut done = Vec::new();
        copiers.copy(0, one(|| panic!("of a test")), &mut done);
        copiers.copy(1, one(|| Some(failing(1))), &mut done);
        assert_eq!(all(&mut copiers), [0, 1]);
    }

    #[test]
    fn drop_waits_for_queued_copies() {
        let mut copiers = Copiers::new(2, Arc::default());
        let (held, mut done) = (Arc::new(()), Vec::new());
        for extent in 0..20 {
            let held = Arc::clone(&held);
            let copy = move || {
                drop(held);
                Some(failing(extent))
            };
            copiers.copy(extent, one(copy), &mut done);
        }
        drop(copiers);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
