//! Tools for threads and time, without knowledge of loads: threads where there is room for them,
//! event count, cancellation, timeouts, retries, stalls, parallel maps, state per process.
//!
//! The code that hands memory over takes its locks and counters from here: `crates/soundness`
//! replaces them by loom's, and checks every order of the threads' steps.

pub mod address_space;
pub mod cancel;
pub mod descriptors;
pub mod detached;
pub mod event_count;
pub mod latency;
pub mod lock;
pub mod parallel;
pub mod per_process;
pub mod retry;
pub mod retry_counter;
pub mod threads;
pub mod timeline;

pub use std::sync::Arc;
pub use std::sync::atomic::AtomicU32;

/// Locks that `lock` builds on.
pub mod primitives {
    pub use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
}
