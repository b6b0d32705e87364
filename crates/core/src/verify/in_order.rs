//! Extents of one source, hashed in the order of the file, whatever the order in which they come. For SHA-256, which does not combine.
//!
//! Whoever brings an extent before its turn leaves it here and goes on reading. Whoever brings the one whose turn it is hashes it and
//! all that wait behind it, one after the other, and takes them to its own sink. So nobody ever waits for anybody: there is no turn to
//! sleep for, and a lane that ends leaves what it brought to those that still read.
//!
//! It comes to an end because the one whose turn it is has always been begun: the schedule begins the extents of a source in the order
//! of the file, and each has its memory by then. What waits here holds memory that is charged, so the budget, or the number of slots,
//! bounds it, and the one whose turn it is needs none of what is left.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::Sha256;

use crate::buffer::Filled;

/// Extents of one source, and how far they have been hashed.
#[derive(Debug)]
pub(super) struct InOrder(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Those whose turn has not come, by index in the plan.
    early: BTreeMap<usize, Filled>,
    /// Those that have not been hashed.
    left: Range<usize>,
    /// None while somebody hashes, and when the load is over.
    hasher: Option<Sha256>,
    is_over: bool,
}

/// An extent whose turn it is, and what it is to be hashed with.
pub(super) struct Turn {
    pub(super) extent: usize,
    pub(super) filled: Filled,
    pub(super) hasher: Sha256,
}

impl State {
    fn turn(&mut self) -> Option<Turn> {
        let (extent, filled) = self.early.remove_entry(&self.left.start)?;
        let Some(hasher) = self.hasher.take() else {
            // Whoever hashes now will find it.
            self.early.insert(extent, filled);
            return None;
        };
        self.left.start += 1;
        Some(Turn {
            extent,
            filled,
            hasher,
        })
    }
}

impl InOrder {
    /// Of these extents of the plan. `hasher` has seen what comes before them.
    pub(super) fn new(extents: Range<usize>, hasher: Sha256) -> Self {
        Self(Mutex::new(State {
            early: BTreeMap::new(),
            left: extents,
            hasher: Some(hasher),
            is_over: false,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing fails under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An extent has come. What is to be hashed now, if anything.
    pub(super) fn arrived(&self, extent: usize, filled: Filled) -> Option<Turn> {
        let mut state = self.lock();
        if state.is_over {
            drop(state);
            // Without the lock: that may unmap memory.
            drop(filled);
            return None;
        }
        state.early.insert(extent, filled);
        state.turn()
    }

    /// An extent has been hashed. What is to be hashed next, if it is there.
    pub(super) fn hashed(&self, hasher: Sha256) -> Option<Turn> {
        let mut state = self.lock();
        state.hasher = Some(hasher);
        state.turn()
    }

    /// Whether all have been hashed.
    pub(super) fn is_whole(&self) -> bool {
        let state = self.lock();
        state.left.is_empty() && state.hasher.is_some()
    }

    /// The load is over: gives back what waits.
    pub(super) fn close(&self) {
        let early = {
            let mut state = self.lock();
            state.is_over = true;
            mem::take(&mut state.early)
        };
        drop(early);
    }
}
