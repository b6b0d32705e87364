//! Wakes lanes that wait for memory or for depth.
//!
//! A lane notes the bell's count, finds that it can do nothing, and sleeps until the count has moved. Because the count is
//! taken before the look, a ring between look and sleep is never missed.

use std::sync::PoisonError;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// A counter of events with sleepers.
#[derive(Debug, Default)]
pub struct Bell {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rung: u64,
    /// Waking nobody would still be a system call, once per extent.
    sleepers: usize,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the bell has rung: take it *before* looking for work.
    pub fn count(&self) -> u64 {
        self.lock().rung
    }

    /// Something changed: memory was given back, a job ended, the load stopped.
    pub fn ring(&self) {
        let mut state = self.lock();
        state.rung = state.rung.wrapping_add(1);
        if state.sleepers > 0 {
            self.moved.notify_all();
        }
    }

    /// Sleeps until the bell has rung since `count` was taken.
    pub fn wait_past(&self, count: u64) {
        let mut state = self.lock();
        state.sleepers += 1;
        while state.rung == count {
            state = self
                .moved
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.sleepers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_not_missed() {
        let bell = Bell::default();
        let seen = bell.count();
        bell.ring();
        bell.wait_past(seen);
    }

    #[test]
    fn wakes_a_sleeper() {
        let bell = Bell::default();
        let seen = bell.count();
        std::thread::scope(|scope| {
            scope.spawn(|| bell.wait_past(seen));
            bell.ring();
        });
    }
}
