//! Timeline of an opening and a load: when each phase began and how long it took.
//!
//! Phases overlap: connections are made while headers are read. Recording costs a lock, so it is
//! for phases that happen once, or once per connection, and never for reads.

use std::sync::Arc;
use std::time::Instant;

use super::per_process::process_id;
use crate::sync::lock::Mutex;

/// Maximum number of phases of one timeline. A load may open connections for hours.
const SPANS_MAX: usize = 256;

/// One phase that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Name of the phase.
    pub phase: &'static str,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
}

/// Phases that have ended, in the order of their ends. Clones share them, in the process that
/// created the first of them: in a forked child, the lock may be held by a thread that does not
/// exist there.
#[derive(Clone, Debug)]
pub struct Timeline {
    spans: Arc<Mutex<Vec<Span>>>,
    process: u32,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            spans: Arc::default(),
            process: process_id(),
        }
    }
}

impl Timeline {
    /// Records a phase that began at `start` and ends now. Returns its end.
    pub fn record(&self, phase: &'static str, start: Instant) -> Instant {
        let end = Instant::now();
        if self.process != process_id() {
            return end;
        }
        let mut spans = self.spans.lock();
        if spans.len() < SPANS_MAX {
            spans.push(Span { phase, start, end });
        }
        end
    }

    /// Runs `work` and records it as a phase.
    pub fn time<T>(&self, phase: &'static str, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.record(phase, start);
        result
    }

    /// Returns the phases so far.
    pub fn spans(&self) -> Vec<Span> {
        if self.process != process_id() {
            return Vec::new();
        }
        self.spans.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_their_phases_up_to_the_maximum() {
        let timeline = Timeline::default();
        let clone = timeline.clone();
        assert_eq!(clone.time("plan", || 7), 7);
        let spans = timeline.spans();
        assert_eq!(spans.len(), 1);
        assert!(spans[0].phase == "plan" && spans[0].start <= spans[0].end);
        for _ in 0..SPANS_MAX {
            clone.record("connect", Instant::now());
        }
        assert_eq!(timeline.spans().len(), SPANS_MAX);
        assert!(Timeline::default().spans().is_empty());
    }
}
