//! State that belongs to one process: a forked child begins with its own.
//!
//! A thread of the parent may hold a lock at the moment of a fork. That thread does not exist in
//! the child, which would wait forever for the lock; and the memory, threads and devices that the
//! state describes belong to the parent anyway. So a child never takes a lock of its parent.

#![expect(
    unsafe_code,
    reason = "reads entries that are published once and never freed; notices forks"
)]

use std::fmt;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lock for a `static`, with a fresh value in each process.
pub struct PerProcess<T: 'static> {
    /// Null until it is first locked.
    entry: AtomicPtr<Entry<T>>,
}

struct Entry<T> {
    process: u32,
    state: Mutex<T>,
}

impl<T: Default + Send> PerProcess<T> {
    /// Creates a lock; the value of a process is created when it is first locked.
    pub const fn new() -> Self {
        Self {
            entry: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Locks the value of this process. Updates must be complete before anything can panic.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        let entry = self.entry();
        entry.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&'static self) -> &'static Entry<T> {
        let here = process_id();
        let mut seen = self.entry.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or published below: leaked, and only ever shared.
            if let Some(entry) = unsafe { seen.as_ref() }
                && entry.process == here
            {
                return entry;
            }
            // The parent's entry stays unchanged: its values must not be dropped by this process.
            let fresh = Box::into_raw(Box::new(Entry {
                process: here,
                state: Mutex::default(),
            }));
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            match self.entry.compare_exchange(seen, fresh, success, failure) {
                Ok(_) => seen = fresh,
                Err(published) => {
                    // SAFETY: made above, and never shared.
                    drop(unsafe { Box::from_raw(fresh) });
                    seen = published;
                }
            }
        }
    }
}

impl<T: Default + Send> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

/// ID of this process, once it is known; 0 in a child that was just forked.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Forks of this process, once they are counted.
static FORKS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn fork_begins() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn child_begins() {
    PROCESS.store(0, Ordering::Relaxed);
}

/// Calls the handlers at every fork from now on. Returns false if the C library cannot.
fn watch_forks() -> bool {
    // A lock is avoided, because a child that is forked meanwhile could never take it. Handlers may
    // be called twice.
    static ARE_WATCHED: AtomicBool = AtomicBool::new(false);
    if !ARE_WATCHED.load(Ordering::Acquire) {
        let (before, in_child) = (Some(fork_begins as _), Some(child_begins as _));
        // SAFETY: the handlers only change atomics, which is allowed before and after a fork.
        let is_watched = unsafe { libc::pthread_atfork(before, None, in_child) == 0 };
        ARE_WATCHED.store(is_watched, Ordering::Release);
        return is_watched;
    }
    true
}

/// Returns the ID of this process without a system call, to compare it with that of the process
/// that made a value. (The system call took 0.6 µs in a virtual machine, 2026-11; loads compare
/// several times for each tensor.)
///
/// A child that is forked by the bare system call, which does not go through the C library, sees
/// the ID of its parent.
#[inline]
pub fn process_id() -> u32 {
    match PROCESS.load(Ordering::Relaxed) {
        0 => look_up_process(),
        known => known,
    }
}

#[cold]
fn look_up_process() -> u32 {
    let id = process::id();
    // Miri has neither forks nor fork handlers.
    if !cfg!(miri) && watch_forks() {
        PROCESS.store(id, Ordering::Relaxed);
    }
    id
}

/// Returns a number that each fork of this process increases after the first call of this function.
/// If the C library cannot tell, each call returns another number.
///
/// A fork by the bare system call, which does not go through the C library, is not seen.
pub fn forks() -> usize {
    if !watch_forks() {
        fork_begins();
    }
    FORKS.load(Ordering::SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_of_a_process_share_one_value() {
        static SHARED: PerProcess<u32> = PerProcess::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| *SHARED.lock() += 1);
            }
        });
        assert_eq!(*SHARED.lock(), 8);
    }

    /// Processes are told apart only by their number here; `tests/test_fork.py` forks.
    #[test]
    fn value_of_other_process_is_neither_locked_nor_dropped() {
        static FORKED: PerProcess<Vec<u32>> = PerProcess::new();
        let parents = Box::leak(Box::new(Entry {
            process: process::id() + 1,
            state: Mutex::new(vec![1]),
        }));
        let held = parents.state.lock().expect("no thread panics with it");
        FORKED
            .entry
            .store(ptr::from_ref(parents).cast_mut(), Ordering::Release);
        assert!(FORKED.lock().is_empty());
        FORKED.lock().push(2);
        assert_eq!((&*FORKED.lock(), &*held), (&vec![2], &vec![1]));
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn fork_is_noticed_in_parent_and_child() {
        let (before, parent) = (forks(), process_id());
        assert_eq!(parent, process::id());
        // SAFETY: the child only uses atomics, asks for its ID, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_counted = FORKS.load(Ordering::SeqCst) > before;
            let is_known = process_id() != parent && process_id() == process::id();
            let code = i32::from(!is_counted) + 2 * i32::from(!is_known);
            // SAFETY: ends the child without running what the parent has registered.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0, "forks");
        let mut status = 0;
        // SAFETY: a child of this process and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has noticed it, too");
        assert!(forks() > before);
        assert_eq!(process_id(), parent);
    }
}
