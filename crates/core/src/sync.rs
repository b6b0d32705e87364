//! Locks and counters of the code that hands memory over, under one name: `crates/models` compiles that code with loom's in their
//! place, and tries every order of its threads' steps.

pub(crate) use std::sync::atomic::AtomicU32;
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
