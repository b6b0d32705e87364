//! Wrappers around the engines and sinks of a load. They look at a clock and at the indices of
//! jobs, and change nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tload::extend::{CancelFlag, Done, Engine, Extent, Filled, Job, Sink, Wait};
use tload::internal::watch::{Layer, TensorSink};
use tload::{Result, Tensor};

use crate::record::{Event, Kind, LaneEvents, LoadEvents, Recorder, lock};

/// Shortest wait that is recorded: shorter ones are no wait.
const WAIT_MIN_NANOS: u64 = 1000;

/// Layer of one load.
#[derive(Debug)]
pub(crate) struct LoadLayer {
    shared: Arc<Shared>,
}

/// State that the wrappers of a load share.
#[derive(Debug)]
struct Shared {
    recorder: Arc<Recorder>,
    load: Arc<LoadEvents>,
    /// When the first read of each tensor was submitted.
    tensors_begun: Box<[AtomicU64]>,
}

impl LoadLayer {
    pub(crate) fn new(recorder: Arc<Recorder>, load: Arc<LoadEvents>) -> Self {
        let tensors = load.load.tensors.iter();
        let tensors_begun = tensors.map(|_| AtomicU64::new(u64::MAX)).collect();
        Self {
            shared: Arc::new(Shared {
                recorder,
                load,
                tensors_begun,
            }),
        }
    }
}

impl Shared {
    /// Returns the events of the calling thread's lane.
    fn lane(&self) -> Arc<Mutex<LaneEvents>> {
        let thread = thread::current();
        let name = thread
            .name()
            .unwrap_or("lane")
            .replace("tload-", "")
            .replace('-', " ");
        let mut lanes = lock(&self.load.lanes);
        if let Some(lane) = lanes.iter().find(|lane| lock(lane).name == name) {
            return Arc::clone(lane);
        }
        let lane = Arc::new(Mutex::new(LaneEvents {
            name,
            events: Vec::new(),
        }));
        lanes.push(Arc::clone(&lane));
        lane
    }

    fn keep_wait(&self, lane: &Mutex<LaneEvents>, kind: Kind, begin: u64) {
        let end = self.recorder.now();
        if end - begin >= WAIT_MIN_NANOS {
            let event = Event {
                kind,
                begin,
                end,
                index: 0,
                count: 0,
                bytes: 0,
            };
            self.recorder.keep(lane, event);
        }
    }
}

impl Layer for LoadLayer {
    fn engine(&self, engine: Box<dyn Engine>) -> Box<dyn Engine> {
        Box::new(WatchedEngine {
            inner: engine,
            lane: self.shared.lane(),
            shared: Arc::clone(&self.shared),
            reads: HashMap::new(),
        })
    }

    fn sink(&self, destination: usize, sink: Box<TensorSink>) -> Box<TensorSink> {
        Box::new(WatchedSink {
            inner: sink,
            destination,
            lane: self.shared.lane(),
            shared: Arc::clone(&self.shared),
            copying: VecDeque::new(),
        })
    }
}

/// Read in flight: when it began, and when its completion was seen.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    begin: u64,
    end: u64,
}

/// Engine that records reads, and waits for them.
struct WatchedEngine {
    inner: Box<dyn Engine>,
    lane: Arc<Mutex<LaneEvents>>,
    shared: Arc<Shared>,
    /// By extent.
    reads: HashMap<usize, InFlight>,
}

impl Engine for WatchedEngine {
    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn submit(&mut self, job: Job) {
        let begin = self.shared.recorder.now();
        let plan = &self.shared.load.load.plan;
        if let Some(extent) = plan.extents.get(job.extent) {
            for piece in &plan.pieces[extent.pieces.clone()] {
                self.shared.tensors_begun[piece.tensor].fetch_min(begin, Ordering::Relaxed);
            }
        }
        self.reads
            .insert(job.extent, InFlight { begin, end: begin });
        self.inner.submit(job);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let (begin, before) = (self.shared.recorder.now(), done.len());
        self.inner.reap(wait, done);
        if wait == Wait::ForOne {
            self.shared.keep_wait(&self.lane, Kind::StorageWait, begin);
        }
        let end = self.shared.recorder.now();
        for done in &done[before..] {
            if let Some(read) = self.reads.get_mut(&done.extent) {
                read.end = end;
            }
        }
    }

    fn confirm(&mut self, done: Done) -> Option<Done> {
        let extent = done.extent;
        let confirmed = self.inner.confirm(done);
        // An engine that does not confirm reads the job again: the read goes on.
        if let Some(done) = &confirmed
            && let Some(InFlight { begin, end }) = self.reads.remove(&extent)
        {
            let event = Event {
                kind: Kind::Read,
                begin,
                end,
                index: u32::try_from(extent).unwrap_or(u32::MAX),
                count: 1,
                bytes: done.transfer.read_bytes(),
            };
            self.shared.recorder.keep(&self.lane, event);
        }
        confirmed
    }

    fn allow(&mut self, bytes: u64) {
        self.inner.allow(bytes);
    }

    fn stop_when(&mut self, cancel: &CancelFlag) {
        self.inner.stop_when(cancel);
    }
}

/// Sink that records copies, waits for them, and finished tensors.
struct WatchedSink {
    inner: Box<TensorSink>,
    destination: usize,
    lane: Arc<Mutex<LaneEvents>>,
    shared: Arc<Shared>,
    /// Copies in the order in which they end: when they began, and their bytes.
    copying: VecDeque<(u64, u64)>,
}

impl Sink for WatchedSink {
    type Tensor = (usize, Tensor);

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn submit(&mut self, extent: &Extent, filled: Filled) -> Result<()> {
        let (begin, before) = (self.shared.recorder.now(), self.inner.in_flight());
        let submitted = self.inner.submit(extent, filled);
        if self.inner.in_flight() > before {
            let plan = &self.shared.load.load.plan;
            let pieces = plan.pieces[extent.pieces.clone()].iter();
            let bytes = pieces.map(|piece| piece.len as u64).sum();
            self.copying.push_back((begin, bytes));
        }
        submitted
    }

    fn reap(&mut self, wait: Wait, ready: &mut Vec<Self::Tensor>) -> Result<()> {
        let (begin, before) = (self.shared.recorder.now(), ready.len());
        let reaped = self.inner.reap(wait, ready);
        let recorder = &self.shared.recorder;
        if wait == Wait::ForOne {
            self.shared.keep_wait(&self.lane, Kind::CopyWait, begin);
        }
        let end = recorder.now();
        while self.copying.len() > self.inner.in_flight()
            && let Some((begin, bytes)) = self.copying.pop_front()
        {
            let event = Event {
                kind: Kind::Copy,
                begin,
                end,
                index: u32::try_from(self.destination).unwrap_or(u32::MAX),
                count: 1,
                bytes,
            };
            recorder.keep(&self.lane, event);
        }
        let mut last: Option<Event> = None;
        for (index, tensor) in &ready[before..] {
            let first_read = self.shared.tensors_begun[*index].load(Ordering::Relaxed);
            let begin = first_read.min(end);
            match &mut last {
                // Small tensors of one read are one event.
                Some(event) if event.begin == begin => {
                    event.count += 1;
                    event.bytes += tensor.byte_len();
                }
                _ => {
                    let event = Event {
                        kind: Kind::Tensors,
                        begin,
                        end,
                        index: u32::try_from(*index).unwrap_or(u32::MAX),
                        count: 1,
                        bytes: tensor.byte_len(),
                    };
                    if let Some(event) = last.replace(event) {
                        recorder.keep(&self.lane, event);
                    }
                }
            }
        }
        if let Some(event) = last {
            recorder.keep(&self.lane, event);
        }
        reaped
    }
}
