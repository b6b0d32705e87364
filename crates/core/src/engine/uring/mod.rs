//! The `io_uring` engine: one ring, used by the thread that made it.
//!
//! `submit` queues, `reap` tells the kernel about everything queued and waits in the same system call. Jobs sit in [`Slots`]
//! from submission to completion; that table is what keeps their memory.

#![expect(
    unsafe_code,
    reason = "says which bytes of a lease the kernel has filled"
)]

mod probe;
mod ring;
mod slots;

use std::mem::ManuallyDrop;
use std::sync::Arc;

pub use probe::{RingProbe, probe_ring};
use ring::{Completion, Ring, Submission};
use slots::{Pending, Slots};

use super::choose::{EngineSetup, Refusal};
use super::fill::{Fill, Read, Step};
use super::{Done, Engine, Job, Wait, cancelled};
use crate::error::Error;
use crate::over::Over;
use crate::source::ReadFile;

/// Reads through a ring.
#[derive(Debug)]
pub(super) struct UringEngine {
    ring: Ring,
    slots: Slots,
    files: Arc<[ReadFile]>,
    depth: usize,
    /// The load is over: nothing is read on.
    stopping: bool,
}

/// Sets up a ring on the calling thread. Also returns the names of what it uses.
pub(super) fn open(setup: &EngineSetup) -> Result<(Box<dyn Engine>, Vec<String>), Refusal> {
    let mut ring = Ring::open(setup.depth)?;
    ring.register_files(&setup.files);
    if let Some(slab) = &setup.slab {
        ring.register_slab(Arc::clone(slab));
    }
    let mut features = ring.features();
    if setup.files.iter().any(ReadFile::must_be_punted) {
        ring.want_threads(setup.depth);
        features.push("kernel_threads".to_owned());
    }
    let engine = UringEngine {
        ring,
        slots: Slots::new(setup.depth),
        files: Arc::clone(&setup.files),
        depth: setup.depth,
        stopping: false,
    };
    Ok((Box::new(engine), features))
}

impl UringEngine {
    fn queue(&mut self, slot: usize, read: Read) {
        let pending = self.slots.get_mut(slot);
        let source = pending.job.source;
        self.ring.queue_read(
            &mut pending.job.lease,
            Submission {
                slot,
                source,
                descriptor: self.files[source].descriptor(read.access),
                read,
                punted: self.files[source].must_be_punted(),
                registered: self.files[source].openings() == 0,
            },
        );
    }

    /// Takes one completion; queues what comes next of the same job, or moves the job into `done`.
    fn complete(&mut self, slot: usize, result: Result<usize, i32>, done: &mut Vec<Done>) {
        let pending = self.slots.get_mut(slot);
        let step = if let Some(read) = pending.paused.take() {
            // What ended was a timeout.
            Step::Read(read)
        } else {
            let file = &self.files[pending.job.source];
            pending.fill.after(file, result)
        };
        match step {
            Step::Filled(len) => {
                let Pending { job, fill, .. } = self.slots.take(slot);
                // SAFETY: the kernel posted the completion of this slot's only read, so it writes there no more; `Fill`
                // counted from 0 what it reported without leaving a gap.
                let filled = unsafe { job.lease.assume_filled(len) };
                done.push(Done {
                    extent: job.extent,
                    result: Ok(filled),
                    transfer: fill.transfer,
                });
            }
            // Also what was taken back, whatever number the kernel gives for that.
            _ if self.stopping => self.fail(slot, cancelled(), done),
            Step::Read(read) => self.queue(slot, read),
            Step::Later(read, pause) => {
                self.slots.get_mut(slot).paused = Some(read);
                self.ring.queue_pause(slot, pause);
            }
            Step::Failed(error) => self.fail(slot, error, done),
        }
    }

    fn fail(&mut self, slot: usize, error: Error, done: &mut Vec<Done>) {
        let Pending { job, fill, .. } = self.slots.take(slot);
        done.push(Done {
            extent: job.extent,
            result: Err(error),
            transfer: fill.transfer,
        });
    }

    /// The load is over: asks for everything back. What the kernel does not give back stays in its slot until it does.
    fn stop(&mut self) {
        self.stopping = true;
        for slot in self.slots.taken() {
            self.ring.queue_cancel(slot);
        }
    }
}

impl Engine for UringEngine {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.slots.len()
    }

    fn submit(&mut self, job: Job) {
        let (fill, read) = Fill::new(&job, &self.files[job.source]);
        let slot = self.slots.insert(Pending {
            job,
            fill,
            paused: None,
        });
        self.queue(slot, read);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        while !self.slots.is_empty() {
            let waiting = wait == Wait::ForOne && done.len() == before;
            self.ring.enter(usize::from(waiting));
            while let Some(completion) = self.ring.next_completion() {
                match completion {
                    Completion::Of(slot, result) => self.complete(slot, result, done),
                    Completion::Woken => self.stop(),
                }
            }
            // A short read continues: that is no completion for the caller, and its new read must reach the kernel.
            if (wait == Wait::No || done.len() > before) && !self.ring.has_queued() {
                return;
            }
        }
    }

    fn stop_when(&mut self, over: &Over) {
        if let Some(waker) = self.ring.waker() {
            over.listen(move || {
                // Full only if it has been written to already.
                let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
            });
        }
    }
}

impl Drop for UringEngine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The ring itself may be what failed. What the kernel has is leaked, never freed under it.
            let _ = ManuallyDrop::new(std::mem::replace(&mut self.slots, Slots::new(0)));
            return;
        }
        let mut done = Vec::new();
        while !self.slots.is_empty() {
            // Never frees memory under the kernel: waits, however long that takes.
            self.reap(Wait::ForOne, &mut done);
            done.clear();
        }
    }
}
