//! Tools for threads and time, without knowledge of loads: threads where there is room for them,
//! event count, cancellation, timeouts, retries, stalls, parallel maps, state per process.
//!
//! The code that hands memory over takes its locks and counters from here. A build with
//! `--cfg loom` replaces them with loom's, for tests that try every order of the threads' steps.

pub mod address_space;
pub mod cancel;
pub mod descriptors;
pub mod detached;
pub mod event_count;
pub mod latency;
pub mod lock;
pub mod naps;
pub mod parallel;
pub mod per_process;
pub mod retry;
pub mod retry_counter;
pub mod threads;
pub mod timeline;

#[cfg(loom)]
use loom::sync as primitive_sync;
#[cfg(not(loom))]
use std::sync as primitive_sync;

pub use primitive_sync::Arc;
pub use primitive_sync::atomic::AtomicU32;

/// Locks that `lock` builds on.
pub mod primitives {
    pub use super::primitive_sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
}
