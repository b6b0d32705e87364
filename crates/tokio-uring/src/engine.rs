//! Engine over the crate `tokio-uring`: its runtime on the lane's thread, one local task for each
//! job.
//!
//! Used only on request ([0005](../../../docs/design/0005-tokio-uring-engine.md)). `submit`
//! stores the job; `reap` runs the runtime, which starts a task for it, until enough tasks have
//! ended. Nothing leaves the thread: the crate's files and buffers are `Rc`s.

#![expect(
    unsafe_code,
    reason = "says which bytes of a lease the kernel has filled"
)]

use std::io;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::files::Files;
use crate::memory::{RegisteredSlots, read_once};
use crate::turns::Turns;
use rustix::fs::MemfdFlags;
use tload_base::sync::cancel::CancelFlag;
use tload_engine::{Done, Engine, EngineSetup, Fill, Job, Refusal, Step, Wait, cancelled};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_uring::Runtime;
use tokio_uring::fs::File;

/// Interval after which queued reads are submitted to the kernel again: the crate drops the error
/// when that fails, and nothing else would cause a new attempt.
const HAND_OVER_AGAIN: Duration = Duration::from_millis(100);

/// Time limit for the first read, of an empty file in memory, after which the ring counts as
/// broken.
const FIRST_READ_PATIENCE: Duration = Duration::from_secs(10);

/// Engine that reads through a runtime of `tokio-uring`.
struct TokioUringEngine {
    /// Jobs that have not started.
    submitted: Vec<Job>,
    /// One task for each job. Declared before `runtime`, which the tasks need until they end.
    tasks: JoinSet<Done>,
    inner: Rc<Inner>,
    depth: usize,
    runtime: Runtime,
}

/// State shared by the tasks.
struct Inner {
    files: Files,
    slots: Option<RegisteredSlots>,
    turns: Turns,
    /// Set to true when the load is over.
    stop: Arc<watch::Sender<bool>>,
}

impl Inner {
    fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits for `pause`, or until the load is over.
    async fn pause(&self, pause: Duration) {
        let mut stopped = self.stop.subscribe();
        let _ = timeout(pause, stopped.wait_for(|stopped| *stopped)).await;
    }
}

/// Sets up a ring and its runtime on the calling thread. Also returns the names of the features in
/// use.
pub fn open(setup: &EngineSetup) -> Result<(Box<dyn Engine>, Vec<String>), Refusal> {
    let (runtime, mut features) = runtime(setup.depth)?;
    let opening = async {
        try_reading().await?;
        io::Result::Ok(Inner {
            files: Files::new(Arc::clone(&setup.files)),
            slots: setup.slab.as_ref().and_then(RegisteredSlots::register),
            turns: Turns::new()?,
            stop: Arc::new(watch::Sender::new(false)),
        })
    };
    let inner = runtime.block_on(opening)?;
    if inner.slots.is_some() {
        features.push("registered_buffers".to_owned());
    }
    let engine = TokioUringEngine {
        submitted: Vec::new(),
        tasks: JoinSet::new(),
        inner: Rc::new(inner),
        depth: setup.depth,
        runtime,
    };
    Ok((Box::new(engine), features))
}

/// Creates a runtime whose ring takes `depth` reads at a time.
fn runtime(depth: usize) -> io::Result<(Runtime, Vec<String>)> {
    let entries = u32::try_from(depth.max(1)).unwrap_or(u32::MAX);
    let mut plain = tokio_uring::uring_builder();
    plain.dontfork();
    // Not DEFER_TASKRUN: the runtime waits in epoll, and would then wait for ever.
    let mut best = plain.clone();
    best.setup_single_issuer().setup_coop_taskrun();
    let flags = ["single_issuer", "coop_taskrun"];
    // A ring is tried on its own first, for two reasons: a runtime that gets no ring leaks its
    // descriptors, and one that may not enter its ring hangs silently.
    let (ring, chosen, features) = match best.build(entries) {
        Ok(ring) => (ring, best, flags.map(str::to_owned).to_vec()),
        Err(_) => (plain.build(entries)?, plain, Vec::new()),
    };
    ring.submit()?;
    drop(ring);
    let mut builder = tokio_uring::builder();
    builder.entries(entries).uring_builder(&chosen);
    Ok((Runtime::new(&builder)?, features))
}

/// Tests a read: kernels before 5.6 and some sandboxes have rings without reads.
async fn try_reading() -> io::Result<()> {
    let empty = rustix::fs::memfd_create("tload-first-read", MemfdFlags::CLOEXEC)?;
    let file = File::from_std(empty.into());
    let read = file.read_at(Vec::with_capacity(1), 0);
    let (result, _) = timeout(FIRST_READ_PATIENCE, read).await?;
    result.map(drop)
}

/// Reads all of one job.
async fn read(inner: Rc<Inner>, job: Job) -> Done {
    let file = inner.files.get(job.source);
    let (mut state, mut next) = Fill::new(&job, file);
    let Job {
        extent,
        source,
        mut lease,
        ..
    } = job;
    let (result, window) = loop {
        if inner.is_stopping() {
            break (Err(cancelled()), Some(lease));
        }
        let step = if let Some(step) = state.copy(file, &mut lease, &mut next) {
            step
        } else {
            let opened = match inner.files.open(source, next.access) {
                Ok(opened) => opened,
                Err(error) => break (Err(error), Some(lease)),
            };
            inner.turns.queued();
            let (count, back) = read_once(inner.slots.as_ref(), lease, &opened, next).await;
            lease = back;
            let count = count.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO));
            state.after(file, &mut lease, count)
        };
        match step {
            Step::Read(read) => next = read,
            Step::Later(read, pause) => {
                inner.pause(pause).await;
                next = read;
            }
            Step::Filled(len) => {
                // SAFETY: the kernel has posted the completion of this job's only read, so it
                // writes there no more; `Fill` counted from 0 what it reported without leaving a
                // gap.
                let filled = unsafe { lease.assume_filled(len) };
                break (Ok(filled.with_prefixes(state.take_prefixes())), None);
            }
            Step::Failed(error) => break (Err(error), Some(lease)),
        }
    };
    Done {
        extent,
        result,
        window,
        transfer: state.transfer,
    }
}

impl Engine for TokioUringEngine {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.tasks.len()
    }

    fn submit(&mut self, job: Job) {
        self.submitted.push(job);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        if self.in_flight() == 0 {
            return;
        }
        let Self {
            submitted,
            tasks,
            inner,
            runtime,
            ..
        } = self;
        runtime.block_on(async {
            for job in submitted.drain(..) {
                tasks.spawn_local(read(Rc::clone(inner), job));
                inner.turns.queued();
            }
            drive(tasks, &inner.turns, wait, done).await;
        });
    }

    /// Ends pauses. The crate has no way to cancel a read.
    fn stop_when(&mut self, cancel: &CancelFlag) {
        let stop = Arc::clone(&self.inner.stop);
        cancel.on_cancel(move || {
            stop.send_replace(true);
        });
    }
}

/// Runs tasks until enough of them have ended and the kernel has received every read.
async fn drive(tasks: &mut JoinSet<Done>, turns: &Turns, wait: Wait, done: &mut Vec<Done>) {
    let before = done.len();
    let mut looked = wait == Wait::ForOne;
    loop {
        while let Some(ended) = tasks.try_join_next() {
            done.push(ended.unwrap_or_else(|error| rethrow(error)));
        }
        if tasks.is_empty() {
            return;
        }
        if wait == Wait::ForOne && done.len() == before {
            if let Ok(Some(ended)) = timeout(HAND_OVER_AGAIN, tasks.join_next()).await {
                done.push(ended.unwrap_or_else(|error| rethrow(error)));
            }
        } else if !looked || turns.has_queued() {
            turns.turn().await;
            // The turn has seen events; this runs the tasks that wait for them.
            tokio::task::yield_now().await;
            looked = true;
        } else {
            return;
        }
    }
}

/// Propagates a panic of a task: a bug that the lane reports, as in any other engine. Tasks are
/// never cancelled.
fn rethrow(error: JoinError) -> ! {
    resume_unwind(error.into_panic())
}

impl Drop for TokioUringEngine {
    fn drop(&mut self) {
        self.submitted.clear();
        if std::thread::panicking() {
            // The runtime itself may have failed. It cancels what is in flight and waits for it as
            // it is dropped; the memory of that is leaked (`memory.rs`).
            return;
        }
        let mut done = Vec::new();
        while !self.tasks.is_empty() {
            // Never frees memory that the kernel uses: waits, however long that takes.
            self.reap(Wait::ForOne, &mut done);
            done.clear();
        }
        if let Some(slots) = &self.inner.slots {
            self.runtime.block_on(async { slots.unregister() });
        }
    }
}
