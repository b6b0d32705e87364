//! Locks and counters of the code that hands memory over, under one name: `crates/models` replaces
//! them by loom's, and checks every order of the threads' steps.

pub(crate) use std::sync::atomic::AtomicU32;
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
