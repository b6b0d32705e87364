//! Hashes the extents of one source in file order, whatever their order of arrival. For SHA-256,
//! which does not combine.
//!
//! A lane that brings an extent before its turn leaves it here and goes on reading. The lane that
//! brings the extent whose turn it is hashes it and all that wait behind it, one after the other,
//! and passes them to its own sink. So no lane ever waits for another: there is no turn to sleep
//! for, and a lane that ends leaves its extents to the lanes that still read.
//!
//! This terminates because the extent whose turn it is has always been started: the schedule starts
//! the extents of a source in file order, and each has its memory by then. Extents that wait here
//! hold charged memory, so the budget, or the number of slots, bounds them, and the extent whose
//! turn it is needs none of the remaining memory.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;

use sha2::Sha256;

use crate::memory::Filled;
use crate::sync::lock::Mutex;

/// Extents of one source, and the progress of hashing them.
#[derive(Debug)]
pub(super) struct InOrder(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Extents whose turn has not come, by index in the plan.
    early: BTreeMap<usize, Filled>,
    /// Extents that have not been hashed.
    left: Range<usize>,
    /// `None` while a lane hashes, and after the end of the load.
    hasher: Option<Sha256>,
    is_over: bool,
}

/// Extent whose turn it is, and the hasher for it.
pub(super) struct Turn {
    pub(super) extent: usize,
    pub(super) filled: Filled,
    pub(super) hasher: Sha256,
}

impl State {
    fn turn(&mut self) -> Option<Turn> {
        let (extent, filled) = self.early.remove_entry(&self.left.start)?;
        let Some(hasher) = self.hasher.take() else {
            // The lane that is hashing will find this extent.
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
    /// Creates the state for these extents of the plan. `hasher` has consumed everything before
    /// them.
    pub(super) fn new(extents: Range<usize>, hasher: Sha256) -> Self {
        Self(Mutex::new(State {
            early: BTreeMap::new(),
            left: extents,
            hasher: Some(hasher),
            is_over: false,
        }))
    }

    /// Accepts an extent. Returns the extent to hash now, if there is one.
    pub(super) fn arrived(&self, extent: usize, filled: Filled) -> Option<Turn> {
        let mut state = self.0.lock();
        if state.is_over {
            drop(state);
            // The lock is released first, because this may unmap memory.
            drop(filled);
            return None;
        }
        state.early.insert(extent, filled);
        state.turn()
    }

    /// Takes the hasher back. Returns the next extent to hash, if it has arrived.
    pub(super) fn hashed(&self, hasher: Sha256) -> Option<Turn> {
        let mut state = self.0.lock();
        state.hasher = Some(hasher);
        state.turn()
    }

    /// Returns whether all extents have been hashed.
    pub(super) fn is_whole(&self) -> bool {
        let state = self.0.lock();
        state.left.is_empty() && state.hasher.is_some()
    }

    /// Frees the extents that wait, after the end of the load.
    pub(super) fn close(&self) {
        let early = {
            let mut state = self.0.lock();
            state.is_over = true;
            mem::take(&mut state.early)
        };
        drop(early);
    }
}
