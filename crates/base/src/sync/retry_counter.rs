//! Counter of retries outside of a load's reads, for its report.

use std::sync::Arc;

use super::per_process::process_id;
use crate::error::Error;
use crate::sync::lock::{Mutex, MutexGuard};

/// Number of retries of opens, headers, lists and file status, with the last reason. Clones share a
/// count, in the process that created the first of them: in a forked child, the lock may be held by
/// a thread that does not exist there.
#[derive(Clone, Debug)]
pub struct RetryCounter {
    counted: Arc<Mutex<(u64, Option<String>)>>,
    process: u32,
}

impl Default for RetryCounter {
    fn default() -> Self {
        Self {
            counted: Arc::default(),
            process: process_id(),
        }
    }
}

impl RetryCounter {
    /// Counts a retry.
    pub fn count(&self, why: &Error) {
        if let Some(mut retry_counter) = self.lock() {
            *retry_counter = (retry_counter.0 + 1, Some(why.to_string()));
        }
    }

    /// Returns the number of retries and the reason of the last one.
    pub fn so_far(&self) -> (u64, Option<String>) {
        self.lock()
            .map_or((0, None), |retry_counter| retry_counter.clone())
    }

    fn lock(&self) -> Option<MutexGuard<'_, (u64, Option<String>)>> {
        let lock = || self.counted.lock();
        (self.process == process_id()).then(lock)
    }

    /// Returns an identifier that is unique among live counters; clones share it.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.counted).addr()
    }
}
