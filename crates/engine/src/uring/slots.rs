//! Table of jobs in flight.
//!
//! * It gives every job a small index, which passes through the kernel as `user_data`.
//! * It owns the job's lease, and so keeps the memory, until the completion has been seen.
//! * It never grows: as many slots as the ring has entries.

use crate::Job;
use crate::fill::{Fill, Read};

/// Job and its progress.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) job: Job,
    pub(super) fill: Fill,
    /// Next read when the job's pause is over; until then the kernel has a timeout for this slot,
    /// and no read.
    pub(super) paused: Option<Read>,
}

/// Jobs, indexed by slot.
#[derive(Debug)]
pub(super) struct Slots {
    pending: Vec<Option<Pending>>,
    free: Vec<usize>,
}

impl Slots {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            pending: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the indices of all jobs.
    pub(super) fn taken(&self) -> Vec<usize> {
        let slots = self.pending.iter().enumerate();
        slots
            .filter_map(|(index, pending)| pending.as_ref().map(|_| index))
            .collect()
    }

    /// Takes all jobs out. Their indices are not used again.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Pending> {
        self.free.clear();
        std::mem::take(&mut self.pending).into_iter().flatten()
    }

    pub(super) fn insert(&mut self, pending: Pending) -> usize {
        let index = self
            .free
            .pop()
            .expect("the caller keeps in_flight below depth");
        self.pending[index] = Some(pending);
        index
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut Pending {
        self.pending[index]
            .as_mut()
            .expect("a slot is used while it has a job")
    }

    pub(super) fn take(&mut self, index: usize) -> Pending {
        let pending = self.pending[index]
            .take()
            .expect("a slot is used while it has a job");
        self.free.push(index);
        pending
    }
}
