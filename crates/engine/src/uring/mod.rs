//! Engine over `io_uring`: one ring, used by the thread that made it.
//!
//! `submit` queues; `reap` submits everything queued to the kernel and waits in the same system
//! call. Jobs are in [`Slots`] from submission to completion; that table keeps their memory.
//!
//! The kernel copies from the page cache while reads are submitted, all of them before the first
//! completes. Jobs whose CRCs are wanted, of files that the page cache holds, are therefore not
//! queued: each `reap` copies a few of them, in small steps, and only what is not in the page cache
//! goes through the ring.

#![expect(
    unsafe_code,
    reason = "says which bytes of a lease the kernel has filled"
)]

mod probe;
mod ring;
mod slots;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use probe::probe_ring;
use ring::{Completion, Ring, Submission};
use slots::{Pending, Slots};

use crate::error::Error;
use crate::fill::{Fill, Read, Step};
use crate::setup::{EngineSetup, Refusal};
use crate::storage::ReadFile;
use crate::sync::cancel::CancelFlag;
use crate::{Done, Engine, Job, Wait, cancelled, give_up};

/// Number of bytes that one `reap` copies: a large extent, or several small ones whose tensors are
/// handed over together. (5,939 tensors, 2 GiB: one extent of 0.7 MiB at a time meant 3,600 context
/// switches in place of 1,400; 2026-11, `benches/results/2core-intel-2026-11-27`.)
const TURN_BYTES: usize = 4 << 20;

/// Engine that reads through a ring.
#[derive(Debug)]
pub(super) struct UringEngine {
    ring: Ring,
    slots: Slots,
    /// Slots of jobs that are copied in steps, and their next reads.
    copies: VecDeque<(usize, Read)>,
    files: Arc<[ReadFile]>,
    depth: usize,
    /// The load is over: no further reads are queued.
    stopping: bool,
}

/// Sets up a ring on the calling thread. Also returns the names of the features in use.
pub fn open(setup: &EngineSetup) -> Result<(Box<dyn Engine>, Vec<String>), Refusal> {
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
        copies: VecDeque::new(),
        files: Arc::clone(&setup.files),
        depth: setup.depth,
        stopping: false,
    };
    Ok((Box::new(engine), features))
}

impl UringEngine {
    /// Queues a read, unless it is one of the steps that [`Self::copy`] makes.
    fn begin(&mut self, slot: usize, read: Read) {
        let pending = self.slots.get_mut(slot);
        if pending.fill.has_steps() {
            // Finish a job that has begun to be copied before the next one.
            if read.window_offset > 0 {
                self.copies.push_front((slot, read));
            } else {
                self.copies.push_back((slot, read));
            }
        } else {
            self.queue(slot, read);
        }
    }

    /// Copies jobs from the page cache: one, and others up to [`TURN_BYTES`]. If bytes are not
    /// there, queues their read, which begins before the next job is copied. Returns whether a job
    /// has ended.
    fn copy(&mut self, done: &mut Vec<Done>) -> bool {
        let before = done.len();
        let mut bytes = 0;
        while !self.ring.has_queued()
            && let Some(&(slot, mut read)) = self.copies.front()
        {
            let Pending { job, fill, .. } = self.slots.get_mut(slot);
            if read.window_offset == 0 {
                bytes += job.needed;
                if bytes > TURN_BYTES && done.len() > before {
                    break;
                }
            }
            self.copies.pop_front();
            if self.stopping {
                self.fail(slot, cancelled(), done);
                continue;
            }
            let file = &self.files[job.source];
            if let Some(step) = fill.copy(file, &mut job.lease, &mut read) {
                self.proceed(slot, step, done);
            } else {
                // If copying stops for any reason, the ring reads the rest, or reports the error.
                let rest = fill.read_rest(file);
                self.queue(slot, rest);
            }
        }
        done.len() > before
    }

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

    /// Processes one completion; queues the next read of the same job, or moves the job into
    /// `done`.
    fn complete(&mut self, slot: usize, result: Result<usize, i32>, done: &mut Vec<Done>) {
        let pending = self.slots.get_mut(slot);
        let step = if let Some(read) = pending.paused.take() {
            // This is the completion of a timeout.
            Step::Read(read)
        } else {
            let file = &self.files[pending.job.source];
            pending.fill.after(file, &mut pending.job.lease, result)
        };
        self.proceed(slot, step, done);
    }

    fn proceed(&mut self, slot: usize, step: Step, done: &mut Vec<Done>) {
        match step {
            Step::Filled(len) => {
                let Pending { job, mut fill, .. } = self.slots.take(slot);
                // SAFETY: the kernel posted the completion of this slot's only read, or returned
                // from it, so it writes there no more; `Fill` counted from 0 what it reported
                // without leaving a gap.
                let filled = unsafe { job.lease.assume_filled(len) };
                let filled = filled.with_prefixes(fill.take_prefixes());
                done.push(Done {
                    extent: job.extent,
                    result: Ok(filled),
                    window: None,
                    transfer: fill.transfer,
                });
            }
            // This includes cancelled reads, whatever number the kernel returns for them.
            _ if self.stopping => self.fail(slot, cancelled(), done),
            Step::Read(read) => self.begin(slot, read),
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
            window: Some(job.lease),
            transfer: fill.transfer,
        });
    }

    /// Asks the kernel to cancel everything, because the load is over. Reads that it does not
    /// cancel stay in their slots until they complete.
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
        self.begin(slot, read);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        // Some jobs are copied in each call, whatever else has completed: none waits for long, and
        // the caller passes them on before the next.
        let mut may_copy = true;
        while !self.slots.is_empty() {
            let waiting = wait == Wait::ForOne && done.len() == before;
            self.ring
                .enter(usize::from(waiting && self.copies.is_empty()));
            while let Some(completion) = self.ring.next_completion() {
                match completion {
                    Completion::Of(slot, result) => self.complete(slot, result, done),
                    Completion::Woken => self.stop(),
                }
            }
            may_copy = may_copy && !self.copy(done);
            // A short read continues: that is no completion for the caller, and its new read must
            // be submitted to the kernel.
            if (wait == Wait::No || done.len() > before) && !self.ring.has_queued() {
                return;
            }
        }
    }

    fn stop_when(&mut self, cancel: &CancelFlag) {
        if let Some(waker) = self.ring.waker() {
            cancel.on_cancel(move || {
                // Writing fails only if the eventfd is full, which means that it has been written
                // to.
                let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
            });
        }
    }
}

impl UringEngine {
    /// Waits, however long that takes, until the kernel has completed everything.
    fn drain(&mut self) {
        let mut done = Vec::new();
        while !self.slots.is_empty() {
            self.reap(Wait::ForOne, &mut done);
            done.clear();
        }
    }
}

impl Drop for UringEngine {
    fn drop(&mut self) {
        // The kernel does not know jobs that wait to be copied.
        for (slot, _) in self.copies.drain(..) {
            drop(self.slots.take(slot));
        }
        // The ring itself may have failed, and draining it then panics.
        let is_drained =
            !std::thread::panicking() && catch_unwind(AssertUnwindSafe(|| self.drain())).is_ok();
        if is_drained {
            self.ring.unregister_slab();
        } else {
            // The kernel may still write to the memory of reads that have not completed.
            give_up(self.slots.take_all().map(|pending| pending.job.lease));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::fill::tests::{CRC, lets_go};
    use crate::given_up_bytes;
    use crate::memory::Slab;
    use crate::storage::{FileSource, RefusedDirect};
    use tload_base::options::{CacheMode, Location};

    const SLOT: usize = 64 << 10;

    /// Engine of so many jobs over one file, its slab, and the folder of the file. `None` without
    /// rings, which tests over all engines report, loudly.
    fn engine(depth: usize) -> Option<(UringEngine, Arc<Slab>, tempfile::TempDir)> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m");
        std::fs::write(&path, vec![1; SLOT]).expect("ours");
        let source = FileSource::open(&Location::from_path(&path)).expect("opens");
        let refused = RefusedDirect::default();
        let file = ReadFile::open(source, CacheMode::Buffered, &refused).expect("opens");
        let engine = UringEngine {
            ring: Ring::open(depth).ok()?,
            slots: Slots::new(depth),
            copies: VecDeque::new(),
            files: [file].into(),
            depth,
            stopping: false,
        };
        let slab = Slab::new(SLOT, depth, Arc::default()).expect("little memory");
        Some((engine, slab, folder))
    }

    fn job(extent: usize, slab: &Arc<Slab>) -> Job {
        Job {
            extent,
            source: 0,
            offset: 0,
            needed: SLOT,
            lease: slab.try_lease(SLOT).expect("free"),
        }
    }

    fn submit_to_copy(engine: &mut UringEngine, slab: &Arc<Slab>, jobs: usize) {
        for extent in 0..jobs {
            let mut job = job(extent, slab);
            job.lease.want_crc(Some(CRC));
            engine.submit(job);
        }
        assert_eq!(engine.copies.len(), jobs);
    }

    /// Engine with two jobs that wait to be copied from the page cache.
    fn engine_that_copies() -> Option<(UringEngine, Arc<Slab>, tempfile::TempDir)> {
        let (mut engine, slab, folder) = engine(2)?;
        submit_to_copy(&mut engine, &slab, 2);
        Some((engine, slab, folder))
    }

    #[test]
    fn reap_copies_some_jobs_whatever_the_ring_completes() {
        const TURN: usize = TURN_BYTES / SLOT;
        let Some((mut engine, slab, _folder)) = engine(TURN + 3) else {
            return;
        };
        if engine.files[0].copy_cached(&mut [0], 0) != Ok(1) {
            // The ring reads all of it.
            return;
        }
        submit_to_copy(&mut engine, &slab, TURN + 2);
        engine.submit(job(TURN + 2, &slab));
        let mut done = Vec::new();
        engine.reap(Wait::ForOne, &mut done);
        assert_eq!(engine.copies.len(), 2, "{done:?}");
        engine.reap(Wait::No, &mut done);
        assert_eq!(engine.copies.len(), 0, "{done:?}");
    }

    #[test]
    fn read_of_absent_bytes_begins_before_the_next_copy() {
        let Some((mut engine, _slab, folder)) = engine_that_copies() else {
            return;
        };
        if !lets_go(&engine.files[0], folder.path()) {
            return;
        }
        let mut done = Vec::new();
        if engine.copy(&mut done) {
            // The disk was faster than this thread.
            return;
        }
        assert!(engine.copies.len() == 1 && engine.ring.has_queued());
        while engine.in_flight() > 0 {
            engine.reap(Wait::ForOne, &mut done);
        }
        for Done { result, .. } in done {
            let filled = result.expect("read");
            assert!(filled.bytes() == vec![1; SLOT]);
        }
    }

    #[test]
    fn jobs_that_wait_to_be_copied_are_cancelled_unread() {
        let Some((mut engine, _slab, _folder)) = engine_that_copies() else {
            return;
        };
        engine.stop();
        let mut done = Vec::new();
        while engine.in_flight() > 0 {
            engine.reap(Wait::ForOne, &mut done);
        }
        for Done {
            result, transfer, ..
        } in done
        {
            let error = result.expect_err("is cancelled");
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            assert_eq!(transfer.buffered_bytes, 0);
        }
    }

    #[test]
    fn windows_that_wait_to_be_copied_return_from_failed_engine() {
        let Some((engine, slab, _folder)) = engine_that_copies() else {
            return;
        };
        engine.ring.fail();
        drop(engine);
        let both = [(); 2].map(|()| slab.try_lease(SLOT));
        assert!(both.iter().all(Option::is_some));
    }

    #[test]
    fn engine_drop_with_failed_ring_leaks_memory_in_flight() {
        let Some((mut engine, slab, _folder)) = engine(2) else {
            return;
        };
        // One read has completed, and one is in flight, when the ring fails.
        engine.submit(job(0, &slab));
        let mut done = Vec::new();
        engine.reap(Wait::ForOne, &mut done);
        drop(done);
        engine.submit(job(1, &slab));
        let before = given_up_bytes();
        engine.ring.fail();
        drop(engine);
        assert_eq!(given_up_bytes() - before, SLOT as u64);
        let left = slab.try_lease(SLOT).expect("the slot that came back");
        assert!(slab.try_lease(SLOT).is_none(), "the other is the kernel's");
        drop(left);
        assert_eq!(
            Arc::strong_count(&slab),
            2,
            "mapped for as long as it may be written to"
        );
    }

    /// Kernels before 5.13 would wait for the poll, which nothing else ends.
    #[test]
    fn poll_of_cancellation_ends_before_slab_is_unregistered() {
        let Some((mut engine, slab, _folder)) = engine(2) else {
            return;
        };
        engine.ring.register_slab(Arc::clone(&slab));
        engine.stop_when(&CancelFlag::default());
        engine.submit(job(0, &slab));
        let mut done = Vec::new();
        engine.reap(Wait::ForOne, &mut done);
        assert!(done[0].result.is_ok() && engine.ring.is_polling());
        engine.ring.unregister_slab();
        let is_registered = engine
            .ring
            .features()
            .iter()
            .any(|it| it == "registered_buffers");
        assert!(!is_registered || !engine.ring.is_polling());
    }
}
