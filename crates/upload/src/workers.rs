//! Sends many parts of many files at a time.
//!
//! A worker is a thread that opens a file, or reads and sends one part of it: as many parts as
//! workers are in memory. A file of one part is sent as a whole. The worker that has sent a file's
//! last part makes the parts an object, unless it has to appear last. The first failure ends the
//! copy.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::channel;

use bytes::Bytes;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{PutMode, PutPayload};
use tload_copy::{Entry, Ongoing, Opened, Origin, Sources, cancelled, cannot_start};
use tload_write::objects::{Client, piece_bytes};

use crate::error::{Error, ErrorKind, Result};
use crate::ledger::Begun;
use crate::prefix::Prefix;
use crate::recorder::Recorder;
use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;

/// File that is being copied.
#[derive(Debug)]
pub(crate) struct Active {
    name: String,
    path: Path,
    opened: Opened,
    begun: Begun,
    /// True if an earlier copy began the upload.
    is_resumed: bool,
}

#[derive(Debug)]
struct State {
    active: Arc<Active>,
    waiting: VecDeque<usize>,
    /// Parts that no worker has sent.
    left: usize,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    states: Vec<State>,
    opening: usize,
    failed: Option<Error>,
    /// Files that appear last, with all of their parts in the store.
    held: Vec<Arc<Active>>,
}

/// Work of one copy.
pub(crate) struct Work<'a> {
    pub(crate) prefix: &'a Arc<Prefix>,
    pub(crate) sources: &'a Sources,
    pub(crate) recorder: &'a Recorder,
    pub(crate) ongoing: &'a Arc<Ongoing>,
    /// Names of the files that appear last, in order.
    pub(crate) last: &'a [String],
}

enum Job {
    Open(Box<Entry>),
    Send(Arc<Active>, usize),
}

struct Workers<'a> {
    work: Work<'a>,
    queue: Mutex<Queue>,
}

impl Work<'_> {
    /// Copies all entries with `depth` workers, or returns the first failure.
    pub(crate) fn run(self, entries: Vec<Entry>, depth: usize) -> Result<()> {
        let workers = Workers {
            work: self,
            queue: Mutex::new(Queue {
                entries: entries.into(),
                ..Queue::default()
            }),
        };
        std::thread::scope(|scope| {
            // The channel closes when the last worker ends, by a return or by a panic.
            let (working, ended) = channel::<()>();
            let record = || {
                let ended = ended;
                if let Err(error) = workers.work.recorder.record_until(&ended) {
                    workers.fail(error);
                }
            };
            let recorder = Builder::new().name("tload-record".to_owned());
            if let Err(error) = recorder.spawn_scoped(scope, record) {
                workers.fail(cannot_start(error));
            }
            for _ in 0..depth {
                let worker = Builder::new().name("tload-copy".to_owned());
                let working = working.clone();
                let run = || {
                    let _working = working;
                    workers.work();
                };
                if let Err(error) = worker.spawn_scoped(scope, run) {
                    workers.fail(cannot_start(error));
                    break;
                }
            }
        });
        let mut queue = workers.queue.lock();
        let (failed, held) = (queue.failed.take(), std::mem::take(&mut queue.held));
        drop(queue);
        let ended = match failed {
            Some(error) => Err(error),
            None if workers.work.ongoing.stop.is_cancelled() => Err(cancelled()),
            None => workers.complete_last(held),
        };
        // A failure matters more than that its journal cannot be written.
        let kept = workers.work.recorder.record();
        if ended.is_err() && kept.is_ok() {
            workers.count_kept();
        }
        ended.and(kept)
    }
}

/// Guard for a file that a worker opens. Other workers wait for it, as it may have parts to send.
/// On drop it wakes them, and ends the copy if the worker panics.
struct Opening<'a, 'b>(&'a Workers<'b>);

impl Drop for Opening<'_, '_> {
    fn drop(&mut self) {
        self.0.queue.lock().opening -= 1;
        let stop = &self.0.work.ongoing.stop;
        if std::thread::panicking() {
            stop.cancel();
        }
        stop.changes().notify();
    }
}

impl Workers<'_> {
    fn work(&self) {
        while let Some(job) = self.next() {
            let (name, outcome) = match job {
                Job::Open(entry) => {
                    let name = entry.name.clone();
                    let _opening = Opening(self);
                    (name, self.open(*entry))
                }
                Job::Send(active, index) => (active.name.clone(), self.send(&active, index)),
            };
            if let Err(error) = outcome {
                let location = self.work.prefix.client.location().join(&name);
                self.fail(error.or_location(location));
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let stop = &self.work.ongoing.stop;
        loop {
            let seen = stop.changes().count();
            if stop.is_cancelled() {
                return None;
            }
            let mut queue = self.queue.lock();
            for state in &mut queue.states {
                if let Some(index) = state.waiting.pop_front() {
                    return Some(Job::Send(Arc::clone(&state.active), index));
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
            stop.changes().wait_past(seen);
        }
    }

    fn fail(&self, error: Error) {
        let mut queue = self.queue.lock();
        // A request that was cancelled is a consequence of another failure.
        let is_first = queue
            .failed
            .as_ref()
            .is_none_or(|it| it.kind() == ErrorKind::Cancelled);
        if is_first {
            queue.failed = Some(error);
        }
        drop(queue);
        self.work.ongoing.stop.cancel();
    }

    fn open(&self, mut entry: Entry) -> Result<()> {
        let Work {
            prefix,
            sources,
            recorder,
            ongoing,
            ..
        } = self.work;
        let opened = match entry.opened.take() {
            Some(opened) => opened,
            None => sources.open(&entry.location, ongoing)?,
        };
        let origin = opened.origin()?;
        if entry.listed.is_none() {
            Ongoing::add(&ongoing.bytes_total, origin.len);
        }
        let path = prefix.client.path_below(&entry.name)?;
        let known = recorder.begun(&entry.name);
        let resumed = match known {
            Some(begun) if begun.origin.is_same_state(&origin) => Some(begun),
            Some(begun) => {
                prefix.discard(&entry.name, begun.upload.as_deref(), false)?;
                None
            }
            None => None,
        };
        let is_resumed = resumed.is_some();
        let begun = match resumed {
            Some(begun) => begun,
            None => self.begin(&entry.name, &path, origin)?,
        };
        Ongoing::add(&ongoing.bytes_resumed, begun.bytes());
        let waiting: VecDeque<_> = match begun.upload {
            Some(_) => begun.missing().into(),
            None => VecDeque::new(),
        };
        let active = Arc::new(Active {
            name: entry.name,
            path,
            opened,
            begun,
            is_resumed,
        });
        if waiting.is_empty() {
            return self.settle(active);
        }
        let left = waiting.len();
        self.queue.lock().states.push(State {
            active,
            waiting,
            left,
        });
        Ok(())
    }

    /// Begins a file, in parts if it has several.
    fn begin(&self, name: &str, path: &Path, origin: Origin) -> Result<Begun> {
        let piece_bytes = piece_bytes(origin.len);
        let mut upload = None;
        if origin.len > piece_bytes as u64 {
            let path = path.clone();
            Ongoing::add(&self.work.ongoing.requests, 1);
            let begin = |client: Arc<Client>| async move { client.begin(&path).await };
            upload = Some(self.work.prefix.ask_about(name, begin)?);
        }
        let begun = Begun {
            origin,
            upload,
            piece_bytes,
            parts: BTreeMap::new(),
            is_done: false,
        };
        self.work.recorder.add(name, begun.clone());
        Ok(begun)
    }

    /// Reads and sends one part.
    fn send(&self, active: &Arc<Active>, index: usize) -> Result<()> {
        let (work, prefix) = (&self.work, self.work.prefix);
        let range = active.begun.range(index);
        let bytes = Bytes::from(active.opened.read(range.clone(), work.ongoing)?);
        let len = bytes.len() as u64;
        let (path, id) = (active.path.clone(), active.begun.upload.clone());
        let id = id.expect("a file of several parts has an upload");
        Ongoing::add(&work.ongoing.requests, 1);
        let sent = prefix.ask_about(&active.name, move |client| async move {
            let payload = PutPayload::from(bytes);
            client.send_piece(&path, &id, index, payload).await
        });
        let part = sent.map_err(|error| self.lost(active, error).with_range(range))?;
        work.recorder.note(&active.name, |begun| {
            drop(begun.parts.insert(index, part.content_id));
        });
        Ongoing::add(&work.ongoing.bytes_read, len);
        let mut queue = self.queue.lock();
        let mut states = queue.states.iter_mut();
        let state = states.find(|state| Arc::ptr_eq(&state.active, active));
        let state = state.expect("a file that is worked on is in the list");
        state.left -= 1;
        if state.left > 0 {
            return Ok(());
        }
        queue
            .states
            .retain(|state| !Arc::ptr_eq(&state.active, active));
        drop(queue);
        self.settle(Arc::clone(active))
    }

    /// Called when all parts of a file are in the store.
    fn settle(&self, active: Arc<Active>) -> Result<()> {
        if self.work.last.contains(&active.name) {
            self.queue.lock().held.push(active);
            return Ok(());
        }
        self.complete(&active)
    }

    /// Makes a file an object.
    fn complete(&self, active: &Active) -> Result<()> {
        let (work, prefix) = (&self.work, self.work.prefix);
        let len = active.begun.origin.len;
        let path = active.path.clone();
        Ongoing::add(&work.ongoing.requests, 1);
        let Some(id) = active.begun.upload.clone() else {
            let bytes = Bytes::from(active.opened.read(0..len, work.ongoing)?);
            active.opened.verify(work.ongoing)?;
            let put = prefix.ask_about(&active.name, move |client| async move {
                client.put(&path, &bytes, PutMode::Create).await
            })?;
            if put.is_none() {
                return Err(prefix.conflict(&active.name));
            }
            Ongoing::add(&work.ongoing.bytes_read, len);
            self.done(active);
            return Ok(());
        };
        active.opened.verify(work.ongoing)?;
        // The next copy has to know whose object it finds.
        work.recorder.record()?;
        let begun = work.recorder.begun(&active.name).expect("was begun");
        let parts = begun.parts.into_values();
        let parts = parts.map(|content_id| PartId { content_id }).collect();
        let completed = prefix.ask_about(&active.name, move |client| async move {
            client.complete(&path, &id, parts, len).await
        });
        completed.map_err(|error| self.lost(active, error))?;
        self.done(active);
        Ok(())
    }

    fn done(&self, active: &Active) {
        self.work.recorder.note(&active.name, |begun| {
            begun.is_done = true;
            begun.parts.clear();
        });
        Ongoing::add(&self.work.ongoing.copied_files, 1);
    }

    /// Completes the files that appear last, after all others.
    fn complete_last(&self, mut held: Vec<Arc<Active>>) -> Result<()> {
        let last = self.work.last;
        held.sort_by_key(|active| last.iter().position(|name| *name == active.name));
        // Another copy that goes on with this one's journal is noticed here at the latest.
        self.work.recorder.record()?;
        for active in held {
            let location = self.work.prefix.client.location().join(&active.name);
            self.complete(&active)
                .map_err(|error| error.or_location(location))?;
        }
        Ok(())
    }

    /// Returns the error for an upload that an earlier copy began and the store no longer has: the
    /// next copy begins it again.
    fn lost(&self, active: &Active, error: Error) -> Error {
        if error.kind() != ErrorKind::NotFound || !active.is_resumed {
            return error;
        }
        self.work.recorder.forget(&active.name);
        let upload = active.begun.upload.as_deref();
        let _ = self.work.prefix.discard(&active.name, upload, false);
        let message = "the store no longer has what an earlier copy has sent of this file";
        Error::new(ErrorKind::Changed, message)
            .with_hint("copy again: this file is sent from its first byte then")
    }

    fn count_kept(&self) {
        let ledger = self.work.recorder.ledger();
        let begun = ledger.files.values().filter(|begun| !begun.is_done);
        Ongoing::add(&self.work.ongoing.bytes_kept, begun.map(Begun::bytes).sum());
    }
}
