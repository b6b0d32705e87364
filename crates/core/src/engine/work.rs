//! What threads take their work from: first come, first served, but for what is put off for a while.
//!
//! ```text
//!  put ─▶ ready ─▶ take ─▶ a thread ─┐
//!           ▲                        │
//!           └── its time ◀── put_off ┘
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A queue with pauses.
pub(super) struct Work<T> {
    state: Mutex<State<T>>,
    news: Condvar,
}

struct State<T> {
    ready: VecDeque<T>,
    put_off: Vec<(Instant, T)>,
    stopping: bool,
    closed: bool,
}

impl<T> Default for Work<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                put_off: Vec::new(),
                stopping: false,
                closed: false,
            }),
            news: Condvar::new(),
        }
    }
}

impl<T> Work<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No update can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be done when a thread has time.
    pub(super) fn put(&self, task: T) {
        self.lock().ready.push_back(task);
        self.news.notify_one();
    }

    /// The same, but not before so long has passed, unless everything stops.
    pub(super) fn put_off(&self, task: T, pause: Duration) {
        let due = Instant::now() + pause;
        self.lock().put_off.push((due, task));
        // Whoever waits must know until when.
        self.news.notify_one();
    }

    /// The next task, when there is one; none when there never will be.
    pub(super) fn take(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let stopping = state.stopping;
            let due = |(at, _): &(Instant, T)| stopping || *at <= now;
            if let Some(index) = state.put_off.iter().position(due) {
                return Some(state.put_off.swap_remove(index).1);
            }
            if let Some(task) = state.ready.pop_front() {
                return Some(task);
            }
            if state.closed && state.put_off.is_empty() {
                return None;
            }
            let next = state.put_off.iter().map(|(at, _)| *at).min();
            state = match next {
                None => self
                    .news
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    self.news
                        .wait_timeout(state, at - now)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    /// Nothing is put off any more: threads get everything that is there, and are to let go of it.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.news.notify_all();
    }

    /// Whether it has been stopped.
    pub(super) fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

    /// Nothing more will be put.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.news.notify_all();
    }
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Work")
            .field("ready", &state.ready.len())
            .field("put_off", &state.put_off.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn what_is_put_off_comes_after_its_pause_and_holds_up_nothing_else() {
        let work = Work::default();
        work.put_off("later", LONG);
        work.put_off("soon", Duration::ZERO);
        work.put("first");
        work.put("second");
        let taken: Vec<_> = (0..3).map(|_| work.take()).collect();
        assert_eq!(taken, [Some("soon"), Some("first"), Some("second")]);
    }

    #[test]
    fn a_thread_that_waits_hears_of_what_is_put_off() {
        let work = Work::default();
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| work.take());
            work.put_off((), Duration::from_millis(1));
            assert_eq!(taker.join().expect("no panic"), Some(()));
        });
    }

    #[test]
    fn stopping_ends_pauses_and_closing_ends_threads() {
        let work = Work::default();
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| (work.take(), work.take()));
            work.put_off(1, LONG);
            work.stop();
            work.close();
            assert_eq!(taker.join().expect("no panic"), (Some(1), None));
        });
        assert!(work.is_stopping());
    }
}
