//! Copies many ranges of many files concurrently.
//!
//! A worker is a thread that opens a file, or copies one range of an open one. Ranges of open files
//! go first, so that few files are open. The worker that copies a file's last range gives it its
//! name. One more thread records the progress of incomplete files every few seconds, so that no
//! worker waits for the disk, and a killed process loses no more. The first failure ends the copy;
//! the progress of incomplete files is then recorded too.
//!
//! ```text
//! entries ─ open ─▶ active: waiting ranges ─ fetch ─▶ done ─ every INTERVAL ─▶ journal
//!                                                     └─ all done ─▶ finish (sync, rename)
//! ```

use std::collections::VecDeque;
use std::mem::replace;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use super::cancel::cannot_start;
use super::fetch::{Fetching, Opened, Sources};
use super::journal::{Gaps, Origin, Ranges};
use super::list::Entry;
use super::recording::{Recorded, STEP};
use super::target::{Partial, TargetDir, cannot_write};
use crate::CopyOptions;
use crate::cancel::cancelled;
use crate::control::Ongoing;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;

/// File that is being copied.
#[derive(Debug)]
struct Active {
    opened: Opened,
    origin: Origin,
    partial: Partial,
}

/// Progress of a file.
#[derive(Debug)]
struct State {
    active: Arc<Active>,
    /// Ranges that no worker has begun.
    waiting: Gaps,
    /// Number of threads that work on the file.
    running: usize,
    /// Ranges that are complete, or were given up.
    done: Ranges,
    /// Ranges that are being copied.
    fetching: Vec<Arc<Fetching>>,
    recorded: Recorded,
}

impl State {
    /// Returns all ranges that have been written to the file.
    fn written(&self) -> Ranges {
        let mut written = self.done.clone();
        for fetching in &self.fetching {
            written.add(fetching.written());
        }
        written
    }
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    states: Vec<State>,
    /// Number of files that workers are opening, which may yield ranges.
    opening: usize,
    failed: Option<Error>,
}

struct Work<'a> {
    queue: Mutex<Queue>,
    root: &'a TargetDir,
    sources: &'a Sources,
    options: &'a CopyOptions,
    ongoing: &'a Arc<Ongoing>,
}

enum Job {
    Open(Box<Entry>),
    Bring(Arc<Active>, Arc<Fetching>),
}

/// Copies all entries, or returns the first failure.
pub(super) fn run(
    entries: Vec<Entry>,
    root: &TargetDir,
    sources: &Sources,
    options: &CopyOptions,
    ongoing: &Arc<Ongoing>,
) -> Result<()> {
    let work = Work {
        queue: Mutex::new(Queue {
            entries: entries.into(),
            ..Queue::default()
        }),
        root,
        sources,
        options,
        ongoing,
    };
    std::thread::scope(|scope| {
        // The channel closes when the last worker ends, by a return or by a panic.
        let (working, ended) = channel::<()>();
        let recorder = Builder::new().name("tload-record".to_owned());
        let record = || {
            let ended = ended;
            work.record_until(&ended);
        };
        if let Err(error) = recorder.spawn_scoped(scope, record) {
            work.fail(cannot_start(error));
        }
        for _ in 0..options.depth {
            let worker = Builder::new().name("tload-copy".to_owned());
            let working = working.clone();
            let run = || {
                let _working = working;
                work.work();
            };
            if let Err(error) = worker.spawn_scoped(scope, run) {
                work.fail(cannot_start(error));
                break;
            }
        }
    });
    let kept = work.keep();
    if ongoing.cancelled.load(Ordering::SeqCst) {
        return Err(cancelled());
    }
    work.queue.lock().failed.take().map_or(kept, Err)
}

impl Work<'_> {
    fn work(&self) {
        while let Some(job) = self.next() {
            let outcome = match job {
                Job::Open(entry) => {
                    let _opening = Opening(self);
                    self.open(*entry)
                }
                Job::Bring(active, fetching) => self.bring(&active, &fetching),
            };
            if let Err(error) = outcome {
                self.fail(error);
            }
        }
    }

    /// Returns the next job; `None` if nothing is left for this worker.
    fn next(&self) -> Option<Job> {
        let changes = self.ongoing.stop.changes();
        loop {
            let seen = changes.count();
            if self.ongoing.stop.is_cancelled() {
                return None;
            }
            let mut queue = self.queue.lock();
            for state in &mut queue.states {
                if let Some(range) = state.waiting.cut(self.options.range_bytes) {
                    state.running += 1;
                    let fetching = Arc::new(Fetching::new(range));
                    state.fetching.push(Arc::clone(&fetching));
                    return Some(Job::Bring(Arc::clone(&state.active), fetching));
                }
            }
            if let Some(entry) = queue.entries.pop_front() {
                queue.opening += 1;
                return Some(Job::Open(Box::new(entry)));
            }
            if queue.opening == 0 {
                return None;
            }
            drop(queue);
            changes.wait_past(seen);
        }
    }

    fn fail(&self, error: Error) {
        let mut queue = self.queue.lock();
        queue.failed = Some(cause(queue.failed.take(), error));
        drop(queue);
        self.ongoing.stop.cancel();
    }

    fn open(&self, mut entry: Entry) -> Result<()> {
        let opened = match entry.opened.take() {
            Some(opened) => opened,
            None => self.sources.open(&entry.location, self.ongoing)?,
        };
        let origin = opened.origin()?;
        let force = self.options.force;
        let total = &self.ongoing.bytes_total;
        // The listing may not have had enough details to decide.
        let is_there = !force && {
            let held = self.root.held(&entry.name)?;
            held.is_some_and(|held| held.is_same_state(&origin))
        };
        let listed = entry.listed.map(|listed| listed.len);
        match listed {
            None if !is_there => Ongoing::add(total, origin.len),
            Some(listed) if is_there => drop(total.fetch_sub(listed, Ordering::Relaxed)),
            None | Some(_) => {}
        }
        if is_there {
            self.ongoing.skip(origin.len);
            return Ok(());
        }
        if listed.is_none_or(|listed| listed < origin.len) {
            let begun = self.root.begun_bytes(&entry.name)?;
            self.root.require_space(origin.len.saturating_sub(begun))?;
        }
        let (partial, mut done) = self.root.begin(&entry.name, &origin, force)?;
        let (resumed, first) = (done.bytes(), opened.first());
        Ongoing::add(&self.ongoing.bytes_resumed, resumed);
        Ongoing::add(&self.ongoing.bytes_recorded, resumed);
        if !first.is_empty() {
            // An earlier copy may already have written these bytes, which are the same.
            partial
                .file()
                .write_all_at(first, 0)
                .map_err(|error| cannot_write(partial.path(), origin.len - resumed, error))?;
            done.add(0..first.len() as u64);
        }
        Ongoing::add(&self.ongoing.bytes_read, done.bytes() - resumed);
        let waiting = done.missing(origin.len);
        let active = Arc::new(Active {
            opened,
            origin,
            partial,
        });
        self.queue.lock().states.push(State {
            active: Arc::clone(&active),
            waiting,
            running: 1,
            done,
            fetching: Vec::new(),
            recorded: Recorded::resumed(resumed, Instant::now()),
        });
        self.ongoing.stop.changes().notify();
        self.settle(&active)
    }

    fn bring(&self, active: &Arc<Active>, fetching: &Arc<Fetching>) -> Result<()> {
        let (file, path) = (active.partial.file(), active.partial.path());
        let outcome = active.opened.bring(fetching, file, path, self.ongoing);
        {
            let mut queue = self.queue.lock();
            let state = queue.state_of(active);
            state.done.add(fetching.written());
            state.fetching.retain(|one| !Arc::ptr_eq(one, fetching));
        }
        outcome?;
        self.settle(active)
    }

    /// Records progress whenever it is due, until all workers have ended.
    fn record_until(&self, ended: &Receiver<()>) {
        while ended.recv_timeout(STEP) == Err(RecvTimeoutError::Timeout) {
            for active in self.active() {
                if self.ongoing.stop.is_cancelled() {
                    break;
                }
                if let Err(error) = self.record(&active) {
                    self.fail(error);
                }
            }
        }
    }

    /// Returns the files that are being copied.
    fn active(&self) -> Vec<Arc<Active>> {
        let queue = self.queue.lock();
        let active = queue.states.iter().map(|state| Arc::clone(&state.active));
        active.collect()
    }

    /// Records the progress of a file if that is due. What is recorded was written before the
    /// journal syncs the file.
    fn record(&self, active: &Arc<Active>) -> Result<()> {
        let written = {
            let mut queue = self.queue.lock();
            let mut states = queue.states.iter_mut();
            let Some(state) = states.find(|state| Arc::ptr_eq(&state.active, active)) else {
                return Ok(());
            };
            let written = state.written();
            let is_whole = state.done.is_whole(active.origin.len);
            if is_whole || !state.recorded.is_due(written.bytes(), Instant::now()) {
                return Ok(());
            }
            // The last thread that works on a file completes it: no journal is written after that.
            state.running += 1;
            written
        };
        active.partial.record(&active.origin, &written)?;
        let recorded = Recorded::new(written.bytes(), Instant::now());
        let before = replace(&mut self.queue.lock().state_of(active).recorded, recorded);
        let more = recorded.bytes().saturating_sub(before.bytes());
        Ongoing::add(&self.ongoing.bytes_recorded, more);
        self.settle(active)
    }

    /// Called after a thread's last step on a file: completes the file if nothing of it is missing
    /// and no other thread works on it.
    fn settle(&self, active: &Arc<Active>) -> Result<()> {
        let mut queue = self.queue.lock();
        let state = queue.state_of(active);
        state.running -= 1;
        if state.running > 0 || !state.done.is_whole(active.origin.len) {
            return Ok(());
        }
        let recorded = state.recorded.bytes();
        let total = &self.ongoing.bytes_recorded;
        total.fetch_sub(recorded, Ordering::Relaxed);
        queue
            .states
            .retain(|state| !Arc::ptr_eq(&state.active, active));
        drop(queue);
        active.opened.verify(self.ongoing)?;
        active.partial.finish(&active.origin)?;
        Ongoing::add(&self.ongoing.copied_files, 1);
        Ok(())
    }

    /// Records the progress of incomplete files.
    fn keep(&self) -> Result<()> {
        let queue = self.queue.lock();
        let mut outcome = Ok(());
        for state in &queue.states {
            let (active, written) = (&state.active, state.written());
            let bytes = written.bytes();
            let kept = if bytes == 0 {
                active.partial.discard()
            } else {
                active.partial.record(&active.origin, &written)
            };
            if kept.is_ok() {
                Ongoing::add(&self.ongoing.bytes_kept, bytes);
            }
            outcome = outcome.and(kept);
        }
        outcome
    }
}

/// Guard for a file that a worker is opening. Other workers wait for it, as it may yield ranges. On
/// drop it wakes them, and cancels the copy if the worker panics.
struct Opening<'a>(&'a Work<'a>);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().opening -= 1;
        if std::thread::panicking() {
            self.0.ongoing.stop.cancel();
        }
        self.0.ongoing.stop.changes().notify();
    }
}

/// Selects the failure that explains why the copy ended: the first one, as later failures are
/// mostly its consequences. A cancelled request is always a consequence.
fn cause(first: Option<Error>, next: Error) -> Error {
    match first {
        Some(first) if first.kind() != ErrorKind::Cancelled => first,
        _ => next,
    }
}

impl Queue {
    fn state_of(&mut self, active: &Arc<Active>) -> &mut State {
        self.states
            .iter_mut()
            .find(|state| Arc::ptr_eq(&state.active, active))
            .expect("a file that is worked on is in the list")
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::CopyControl;
    use crate::options::{Location, StoreOptions};
    use crate::storage::StoreClient;

    #[test]
    fn cancellation_is_not_reported_as_cause() {
        let error = |kind| Error::new(kind, format!("{kind:?}"));
        let (stopped, full, changed) = (
            ErrorKind::Cancelled,
            ErrorKind::OutOfMemory,
            ErrorKind::Changed,
        );
        for (failures, wanted) in [
            (&[stopped][..], stopped),
            (&[stopped, stopped, full, changed], full),
            (&[full, stopped], full),
            (&[changed, full, stopped], changed),
        ] {
            let failed = failures
                .iter()
                .fold(None, |first, next| Some(cause(first, error(*next))));
            assert_eq!(failed.map(|error| error.kind()), Some(wanted));
        }
    }

    /// Calls `test` with work in an empty directory, of which one file is being opened.
    fn with_work(test: impl FnOnce(&Work<'_>)) {
        let folder = tempfile::tempdir().expect("a folder");
        let root = TargetDir::open(folder.path()).expect("opens");
        let (ongoing, options) = (Arc::<Ongoing>::default(), CopyOptions::default());
        test(&Work {
            queue: Mutex::new(Queue {
                opening: 1,
                ..Queue::default()
            }),
            root: &root,
            sources: &Sources::new(&StoreOptions::default(), &StoreClient::default()),
            options: &options,
            ongoing: &ongoing,
        });
    }

    #[test]
    fn file_of_unlisted_length_needs_space() {
        let source = tempfile::NamedTempFile::new().expect("a file");
        source.as_file().set_len(8 << 40).expect("a sparse file");
        let location = Location::from_path(source.path());
        with_work(|work| {
            let error = work.open(Entry {
                name: "a.bin".to_owned(),
                location,
                listed: None,
                opened: None,
            });
            let error = error.expect_err("8 TiB");
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        });
    }

    /// Workers that wait for a file that is being opened stop waiting at `end`.
    #[track_caller]
    fn workers_are_woken_by(end: impl FnOnce(&Work<'_>) + Send) {
        with_work(|work| {
            std::thread::scope(|scope| {
                let waiting = [0, 1].map(|_| scope.spawn(|| work.next().is_none()));
                scope.spawn(|| end(work));
                assert!(waiting.map(|worker| worker.join().expect("ends")) == [true; 2]);
            });
        });
    }

    #[test]
    fn waiting_workers_are_woken_by_a_cancel() {
        workers_are_woken_by(|work| {
            let control = CopyControl {
                ongoing: Arc::clone(work.ongoing),
                source: Location::from_path("source"),
                target: "target".into(),
            };
            control.cancel();
        });
    }

    #[test]
    fn waiting_workers_are_woken_by_a_panic_while_opening() {
        workers_are_woken_by(|work| {
            let panic = catch_unwind(AssertUnwindSafe(|| {
                let _opening = Opening(work);
                std::panic::resume_unwind(Box::new("a bug"));
            }));
            assert!(panic.is_err());
            assert!(work.ongoing.stop.is_cancelled());
        });
    }
}
