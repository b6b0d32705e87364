//! Staging memory of a load: one slab, or one for each place of its GPUs.

use std::sync::Arc;

use crate::memory::Slab;

/// Slabs of a load; none if nothing is staged.
#[derive(Clone, Debug, Default)]
pub struct Slabs {
    list: Vec<Arc<Slab>>,
    /// By destination: its slab; the first one where there is none.
    of_destination: Vec<usize>,
    /// By group of lanes: its slab, or `None` if it needs all of them; the first one beyond the
    /// end.
    of_group: Vec<Option<usize>>,
}

impl From<Option<Arc<Slab>>> for Slabs {
    /// All destinations share one slab.
    fn from(slab: Option<Arc<Slab>>) -> Self {
        Self {
            list: slab.into_iter().collect(),
            ..Self::default()
        }
    }
}

impl Slabs {
    /// Creates the slabs of several places, given the place of each destination and of each group
    /// of lanes.
    pub(crate) fn by_place(
        list: Vec<Arc<Slab>>,
        of_destination: Vec<usize>,
        of_group: Vec<Option<usize>>,
    ) -> Self {
        Self {
            list,
            of_destination,
            of_group,
        }
    }

    /// Returns the slab for the bytes of a destination.
    pub(super) fn for_destination(&self, destination: usize) -> Option<&Arc<Slab>> {
        let place = self.of_destination.get(destination).copied().unwrap_or(0);
        self.list.get(place)
    }

    /// Returns the slab that all leases of a group of lanes come from, if there is one.
    pub(crate) fn for_group(&self, group: usize) -> Option<&Arc<Slab>> {
        let place = self.of_group.get(group).copied().unwrap_or(Some(0));
        self.list.get(place?)
    }

    /// Returns whether slots are used and the next lease of a group may find none free.
    pub(super) fn lacks_slots(&self, group: usize) -> bool {
        let is_full = |slab: &Arc<Slab>| !slab.has_free_slot();
        match self.for_group(group) {
            Some(slab) => is_full(slab),
            None => self.list.iter().any(is_full),
        }
    }

    /// Returns all slabs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Slab>> {
        self.list.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_wait_for_the_slots_that_they_need() {
        let slab = || Slab::new(4096, 1, Arc::default()).expect("memory");
        let none = Slabs::default();
        assert!(!none.lacks_slots(0) && none.for_destination(0).is_none());
        let one = Slabs::from(Some(slab()));
        let lease = one.for_destination(7).expect("one").try_lease(1);
        assert!(lease.is_some() && one.lacks_slots(0) && one.lacks_slots(7));
        // Groups 0 and 1 have a place each, group 2 feeds both.
        let of_group = vec![Some(0), Some(1), None];
        let two = Slabs::by_place(vec![slab(), slab()], vec![1, 0], of_group);
        let lease = two.for_destination(0).expect("the second").try_lease(1);
        assert!(lease.is_some());
        assert_eq!(
            [0, 1, 2].map(|group| two.lacks_slots(group)),
            [false, true, true]
        );
        assert!(two.for_group(2).is_none());
        assert!(Arc::ptr_eq(
            two.for_group(1).expect("its own"),
            &two.list[1]
        ));
    }
}
