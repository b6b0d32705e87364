//! Groups of sources that share limits: the files of one file system, the objects of one store.
//!
//! A group has its own lanes, whose engines can read only its sources. It may be divided by the
//! places of what it reads: each part has lanes of its own, and all parts read the same sources.

use super::Depth;
use crate::RegionPlan;

/// Sources of a load by group, and the limits of each group.
#[derive(Clone, Debug)]
pub struct Groups {
    depths: Vec<Depth>,
    /// Indexed by source; a source beyond the end is in group 0 under its own number.
    members: Vec<Member>,
    /// Group that is read in file order whatever the order of the load.
    sequential: Option<usize>,
    division: Division,
}

/// Division of groups by the places of their destinations.
#[derive(Clone, Debug, Default)]
pub struct Division {
    /// By destination: its place.
    pub places: Vec<usize>,
    /// By group of sources: the group that reads for each place; empty if it is not divided.
    pub parts: Vec<Vec<usize>>,
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
            division: Division::default(),
        }
    }

    /// Reads one group in file order, whatever the order of the load.
    #[must_use]
    pub fn in_file_order(mut self, group: Option<usize>) -> Self {
        self.sequential = group;
        self
    }

    /// Divides groups: their parts are among the groups.
    #[must_use]
    pub fn divided(mut self, division: Division) -> Self {
        self.division = division;
        self
    }

    /// Returns the group that reads a region.
    pub fn group_of(&self, region: &RegionPlan) -> usize {
        let group = self.member(region.source).group;
        let Division { places, parts } = &self.division;
        let place = places.get(region.destination).copied().unwrap_or(0);
        let parts = parts.get(group).map_or(&[][..], Vec::as_slice);
        parts.get(place).copied().unwrap_or(group)
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
