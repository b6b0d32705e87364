//! What was tried again beside the reads of a load, to be told to whoever waited for it.

use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;

/// Opening, headers, lists, the state of files. Clones count together, in the process that made the first:
/// in one that fork makes of it, a thread that is not there may hold the lock.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    counted: Arc<Mutex<(u64, Option<String>)>>,
    process: u32,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            counted: Arc::default(),
            process: process::id(),
        }
    }
}

impl Tally {
    pub(crate) fn tried_again(&self, why: &Error) {
        if let Some(mut tally) = self.lock() {
            *tally = (tally.0 + 1, Some(why.to_string()));
        }
    }

    /// How often, and why the last time.
    pub(crate) fn so_far(&self) -> (u64, Option<String>) {
        self.lock().map_or((0, None), |tally| tally.clone())
    }

    fn lock(&self) -> Option<MutexGuard<'_, (u64, Option<String>)>> {
        let lock = || self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        (self.process == process::id()).then(lock)
    }

    /// Tells it from others that are alive: clones have the same.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.counted).addr()
    }
}
