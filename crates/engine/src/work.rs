//! Work queue of threads: first come, first served, except for tasks that are delayed.
//!
//! ```text
//!  put ─▶ ready ─▶ take ─▶ a thread ─┐
//!           ▲                        │
//!           └── its time ◀── put_off ┘
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use crate::sync::lock::{Condvar, Mutex};

/// Queue with delayed tasks.
pub(crate) struct Work<T> {
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
            news: Condvar::default(),
        }
    }
}

impl<T> Work<T> {
    /// Queues a task for the next idle thread.
    pub(crate) fn put(&self, task: T) {
        self.state.lock().ready.push_back(task);
        self.news.notify_one();
    }

    /// Queues a task that is not taken before `pause` has passed, unless the queue is stopped.
    pub(crate) fn put_off(&self, task: T, pause: Duration) {
        let due = Instant::now() + pause;
        self.state.lock().put_off.push((due, task));
        // A waiting thread must learn the new due time.
        self.news.notify_one();
    }

    /// Returns the next task, waiting for one; `None` when the queue is closed and empty.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.state.lock();
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
                None => self.news.wait(state),
                Some(at) => self.news.wait_timeout(state, at - now),
            };
        }
    }

    /// Ends all delays: threads get every queued task and are expected to drop it.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.news.notify_all();
    }

    /// Returns whether the queue has been stopped.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    /// Closes the queue: no further task will be added.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.news.notify_all();
    }
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
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
    fn delayed_task_runs_after_its_delay_without_blocking_others() {
        let work = Work::default();
        work.put_off("later", LONG);
        work.put_off("soon", Duration::ZERO);
        work.put("first");
        work.put("second");
        let taken: Vec<_> = (0..3).map(|_| work.take()).collect();
        assert_eq!(taken, [Some("soon"), Some("first"), Some("second")]);
    }

    #[test]
    fn waiting_thread_wakes_for_delayed_task() {
        let work = Work::default();
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| work.take());
            work.put_off((), Duration::from_millis(1));
            assert_eq!(taker.join().expect("no panic"), Some(()));
        });
    }

    #[test]
    fn stop_ends_delays_and_close_ends_take() {
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
