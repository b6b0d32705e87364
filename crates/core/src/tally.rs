//! What was tried again beside the reads of a load, to be told to whoever waited for it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;

/// Opening, headers, lists, the state of files. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<Mutex<(u64, Option<String>)>>);

impl Tally {
    pub(crate) fn tried_again(&self, why: &Error) {
        let mut tally = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *tally = (tally.0 + 1, Some(why.to_string()));
    }

    /// How often, and why the last time.
    pub(crate) fn so_far(&self) -> (u64, Option<String>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Tells it from others that are alive: clones have the same.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}
