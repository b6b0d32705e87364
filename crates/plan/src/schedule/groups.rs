//! Groups of sources that share limits: the files of one file system, the objects of one store.
//!
//! A group has its own lanes, whose engines can read only its sources.

use super::Depth;

/// Sources of a load by group, and the limits of each group.
#[derive(Clone, Debug)]
pub struct Groups {
    depths: Vec<Depth>,
    /// Indexed by source; a source beyond the end is in group 0 under its own number.
    members: Vec<Member>,
    /// Group that is read in file order whatever the order of the load.
    sequential: Option<usize>,
}

/// Group of a source, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Group of the source.
    pub group: usize,
    /// Index of the source in the group's engines.
    pub index: usize,
}

impl Groups {
    /// Puts all sources in one group.
    pub fn one(depth: Depth) -> Self {
        Self::new(vec![depth], Vec::new())
    }

    /// Creates a group for each of `depths`; `members` assigns each source to one of them.
    pub fn new(depths: Vec<Depth>, members: Vec<Member>) -> Self {
        Self {
            depths,
            members,
            sequential: None,
        }
    }

    /// Reads one group in file order, whatever the order of the load.
    #[must_use]
    pub fn in_file_order(mut self, group: Option<usize>) -> Self {
        self.sequential = group;
        self
    }

    /// Lowers the limits to `jobs` jobs in flight, over all groups.
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

    /// Returns whether the sources of a group are read one after another.
    pub(super) fn is_sequential(&self, group: usize) -> bool {
        self.sequential == Some(group)
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
