//! Wakes lanes that wait for memory or for depth.
//!
//! A lane takes the count, looks for work, finds none, and sleeps until the count has
//! changed. Because the count is taken before the lane looks for work, an event between the look
//! and the sleep is never missed.

use std::time::Duration;

use super::lock::{Condvar, Mutex};

/// Event counter that threads can sleep on.
#[derive(Debug, Default)]
pub struct EventCount {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    count: u64,
    /// Threads in `wait_past`: without them, an event needs no system call (there is one event per
    /// extent).
    sleepers: usize,
}

impl EventCount {
    /// Returns the number of events so far: take it *before* looking for work.
    #[inline]
    pub fn count(&self) -> u64 {
        self.state.lock().count
    }

    /// Counts an event (memory came back, a job ended, the load stopped) and wakes the sleepers.
    #[inline]
    pub fn notify(&self) {
        let mut state = self.state.lock();
        state.count = state.count.wrapping_add(1);
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Sleeps until an event has happened since `count` was taken.
    pub fn wait_past(&self, count: u64) {
        let mut state = self.state.lock();
        state.sleepers += 1;
        while state.count == count {
            state = self.changed.wait(state);
        }
        state.sleepers -= 1;
    }

    /// Sleeps until an event has happened since `count` was taken, for `timeout` at most. Returns
    /// whether one has.
    pub fn wait_past_for(&self, count: u64, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        state.sleepers += 1;
        let is_same = |state: &State| state.count == count;
        state = self.changed.wait_timeout_while(state, timeout, is_same);
        state.sleepers -= 1;
        state.count != count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_before_wait_is_not_missed() {
        let events = EventCount::default();
        let seen = events.count();
        events.notify();
        events.wait_past(seen);
    }

    #[test]
    fn event_wakes_sleeper() {
        let events = EventCount::default();
        let seen = events.count();
        std::thread::scope(|scope| {
            scope.spawn(|| events.wait_past(seen));
            scope.spawn(|| assert!(events.wait_past_for(seen, Duration::MAX)));
            events.notify();
        });
        assert!(!events.wait_past_for(events.count(), Duration::from_millis(1)));
    }
}
