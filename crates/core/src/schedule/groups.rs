//! Which sources share limits: all files of a load, all objects of a load.
//!
//! A group has lanes of its own, whose engines can read its sources and no others.

use super::Depth;

/// The sources of a load by group, and each group's limits.
#[derive(Clone, Debug)]
pub struct Groups {
    depths: Vec<Depth>,
    /// By source; a source beyond the end is in group 0 under its own number.
    members: Vec<Member>,
}

/// Where a source is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its group.
    pub group: usize,
    /// What the group's engines call it.
    pub index: usize,
}

impl Groups {
    /// All sources in one group.
    pub fn one(depth: Depth) -> Self {
        Self::new(vec![depth], Vec::new())
    }

    /// A group for each of `depths`; `members` says, source by source, which one it is in.
    pub fn new(depths: Vec<Depth>, members: Vec<Member>) -> Self {
        Self { depths, members }
    }

    /// The same with at most `jobs` jobs in flight, over all groups.
    #[must_use]
    pub fn at_most(mut self, jobs: usize) -> Self {
        let share = jobs / self.depths.len().max(1);
        for depth in &mut self.depths {
            *depth = depth.at_most(share);
        }
        self
    }

    pub(super) fn len(&self) -> usize {
        self.depths.len()
    }

    pub(super) fn limits(&self, group: usize) -> Depth {
        self.depths[group]
    }

    pub(super) fn member(&self, source: usize) -> Member {
        let alone = Member {
            group: 0,
            index: source,
        };
        self.members.get(source).copied().unwrap_or(alone)
    }
}
