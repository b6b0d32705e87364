//! Locks without poison.
//!
//! A panic of a lane is caught where its thread begins and ends the load with an error, so other
//! threads need no second notice of it. Every update under a lock is complete before anything can
//! panic.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::primitives;
pub use super::primitives::MutexGuard;

/// Mutual exclusion, as [`std::sync::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T>(primitives::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates a lock for `value`.
    pub fn new(value: T) -> Self {
        Self(primitives::Mutex::new(value))
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Condition variable, as [`std::sync::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(primitives::Condvar);

impl Condvar {
    /// Waits for a notification; may return earlier without one.
    #[inline]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let woken = self.0.wait(guard);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `timeout` at most; may return earlier without a notification.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        let woken = self.0.wait_timeout(guard, timeout);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits while `blocked` holds, for `timeout` at most.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        blocked: impl Fn(&T) -> bool,
    ) -> MutexGuard<'a, T> {
        let started = Instant::now();
        while blocked(&guard)
            && let Some(left) = timeout.checked_sub(started.elapsed())
        {
            guard = self.wait_timeout(guard, left);
        }
        guard
    }

    /// Wakes one waiting thread.
    #[inline]
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    #[inline]
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
