//! Events of loads in memory, bounded.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tload::internal::watch::{Layer, WatchedLoad, Watcher};

use crate::layer::LoadLayer;
use crate::write;

/// Most events of each kind. An event takes 48 bytes in memory and some 200 in the file: together
/// at most 40 MB and 160 MB, for a load of 200,000 reads to a GPU.
pub(crate) const EVENTS_MAX: u64 = 200_000;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A lane waits for storage.
    StorageWait,
    /// A lane waits for copies to a GPU.
    CopyWait,
    /// A read or request, from its submission until its completion was seen.
    Read,
    /// Copies of the bytes of one read to a GPU, until their end was seen.
    Copy,
    /// Tensors, from the first read with bytes of them until they were complete.
    Tensors,
}

/// Kinds with limits of their own.
const KINDS: usize = 5;

/// One event. Times are nanoseconds since the recorder was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// Extent, destination, or first tensor.
    pub(crate) index: u32,
    /// Number of tensors.
    pub(crate) count: u32,
    pub(crate) bytes: u64,
}

/// Events of one lane.
#[derive(Debug)]
pub(crate) struct LaneEvents {
    /// Name of its thread.
    pub(crate) name: String,
    pub(crate) events: Vec<Event>,
}

/// Phase of a load, in nanoseconds since the recorder was created.
#[derive(Debug)]
pub(crate) struct PhaseEvent {
    pub(crate) name: String,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

/// One load of a trace.
#[derive(Debug)]
pub(crate) struct LoadEvents {
    pub(crate) name: String,
    pub(crate) load: WatchedLoad,
    pub(crate) lanes: Mutex<Vec<Arc<Mutex<LaneEvents>>>>,
    pub(crate) phases: Mutex<Vec<PhaseEvent>>,
}

/// Records loads from now on.
#[derive(Debug)]
pub struct Recorder {
    epoch: Instant,
    loads: Mutex<Vec<Arc<LoadEvents>>>,
    kept: [AtomicU64; KINDS],
    dropped: AtomicU64,
}

/// Watches the loads of one loader under a name.
#[derive(Debug)]
struct Named {
    recorder: Arc<Recorder>,
    name: String,
}

impl Watcher for Named {
    fn begin(&self, load: WatchedLoad) -> Arc<dyn Layer> {
        let events = Arc::new(LoadEvents {
            name: self.name.clone(),
            load,
            lanes: Mutex::default(),
            phases: Mutex::default(),
        });
        lock(&self.recorder.loads).push(Arc::clone(&events));
        Arc::new(LoadLayer::new(Arc::clone(&self.recorder), events))
    }
}

impl Recorder {
    /// Returns an empty recorder, whose clock starts now.
    #[must_use]
    pub fn start() -> Arc<Self> {
        Arc::new(Self {
            epoch: Instant::now(),
            loads: Mutex::default(),
            kept: Default::default(),
            dropped: AtomicU64::new(0),
        })
    }

    /// Returns a watcher of loads. `name` is that of their group of tracks.
    #[must_use]
    pub fn watcher(self: &Arc<Self>, name: impl Into<String>) -> Arc<dyn Watcher> {
        Arc::new(Named {
            recorder: Arc::clone(self),
            name: name.into(),
        })
    }

    /// Adds phases to the last load: names, and seconds since `opened`.
    pub fn add_phases<'p>(
        &self,
        opened: Instant,
        phases: impl IntoIterator<Item = (&'p str, f64, f64)>,
    ) {
        let Some(load) = lock(&self.loads).last().map(Arc::clone) else {
            return;
        };
        let opened = nanos(opened.saturating_duration_since(self.epoch).as_secs_f64());
        let mut known = lock(&load.phases);
        for (name, start, seconds) in phases.into_iter().take(1000) {
            let begin = opened + nanos(start);
            known.push(PhaseEvent {
                name: name.to_owned(),
                begin,
                end: begin + nanos(seconds),
            });
        }
    }

    /// Returns the number of events that were not kept.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Writes the trace.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let loads = lock(&self.loads).clone();
        write::write(out, &loads, self.dropped())
    }

    /// Returns the nanoseconds since the recorder was created.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Keeps an event, unless there are too many of its kind.
    pub(crate) fn keep(&self, lane: &Mutex<LaneEvents>, event: Event) {
        if self.kept[event.kind as usize].fetch_add(1, Ordering::Relaxed) < EVENTS_MAX {
            lock(lane).events.push(event);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Converts seconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time of a load in nanoseconds, not negative"
)]
fn nanos(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e9) as u64
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic of a lane ends its load; what it recorded is still true.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_beyond_the_limit_are_counted_and_told() {
        let recorder = Recorder::start();
        let lane = Mutex::new(LaneEvents {
            name: "lane 0".to_owned(),
            events: Vec::new(),
        });
        let event = |kind| Event {
            kind,
            begin: 1,
            end: 2,
            index: 0,
            count: 1,
            bytes: 4096,
        };
        for _ in 0..EVENTS_MAX + 7 {
            recorder.keep(&lane, event(Kind::Read));
        }
        // Each kind has a limit of its own.
        recorder.keep(&lane, event(Kind::Tensors));
        assert_eq!(lock(&lane).events.len() as u64, EVENTS_MAX + 1);
        assert!(size_of::<Event>() <= 48);
        assert_eq!(recorder.dropped(), 7);
        let mut written = Vec::new();
        recorder.write(&mut written).expect("memory is written to");
        let trace: serde_json::Value = serde_json::from_slice(&written).expect("JSON");
        assert_eq!(trace["otherData"]["dropped_events"], 7);
        let name = trace["traceEvents"][0]["args"]["name"]
            .as_str()
            .expect("a name");
        assert!(name.starts_with("7 events were not kept"), "{name}");
    }
}
