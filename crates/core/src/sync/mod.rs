//! Tools for threads and time, without knowledge of loads: threads where there is room for them,
//! event count, cancellation, timeouts, retries, stalls, parallel maps, state per process.
//!
//! The code that hands memory over takes its locks and counters from here: `crates/soundness`
//! replaces them by loom's, and checks every order of the threads' steps.

pub(crate) mod address_space;
pub(crate) mod cancel;
pub(crate) mod descriptors;
pub(crate) mod detached;
pub(crate) mod event_count;
pub(crate) mod latency;
pub(crate) mod lock;
pub(crate) mod parallel;
pub(crate) mod per_process;
pub(crate) mod retry;
pub(crate) mod retry_counter;
pub(crate) mod threads;
pub(crate) mod timeline;

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::AtomicU32;

/// Locks that `lock` builds on.
pub(crate) mod primitives {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
}
