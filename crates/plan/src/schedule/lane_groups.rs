//! Groups of lanes of a load: one for each group of its sources, or one for each place of its GPUs
//! too, where lanes keep to the NUMA nodes of their GPUs. Pure.

use super::{Depth, Division, Groups, Member};
use crate::Plan;

/// Group of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneGroup {
    /// Group of the sources that its engines read.
    pub sources: usize,
    /// Place of all GPUs that it feeds; `None` if it feeds those of several.
    pub place: Option<usize>,
}

/// Groups of lanes of a load. The first ones are those of the groups of sources, in their order.
#[derive(Clone, Debug)]
pub struct LaneGroups {
    list: Vec<LaneGroup>,
    division: Division,
}

impl LaneGroups {
    /// Divides the groups of sources that `are_divisible` by the place of each destination of
    /// `plan`, so that a group of lanes feeds GPUs of one place. Groups that have nothing for a
    /// place get no lanes there. `members` has the group of each source.
    ///
    /// # Panics
    ///
    /// If `members` lacks a source of `plan`.
    #[must_use]
    pub fn new(
        plan: &Plan,
        members: &[Member],
        are_divisible: &[bool],
        places: Vec<usize>,
    ) -> Self {
        let count = places.iter().max().map_or(1, |most| most + 1);
        let mut used = vec![vec![false; count]; are_divisible.len()];
        for region in &plan.regions {
            let place = places.get(region.destination).copied().unwrap_or(0);
            used[members[region.source].group][place] = true;
        }
        let mut list = Vec::new();
        let mut parts = vec![Vec::new(); are_divisible.len()];
        for (sources, used) in used.iter().enumerate() {
            let mut used = (0..count).filter(|place| used[*place]);
            let first = used.next().unwrap_or(0);
            let is_one = used.next().is_none();
            let place = (is_one || are_divisible[sources]).then_some(first);
            list.push(LaneGroup { sources, place });
        }
        for (sources, used) in used.iter().enumerate() {
            let LaneGroup { place: first, .. } = list[sources];
            let Some(first) = first.filter(|_| are_divisible[sources]) else {
                continue;
            };
            parts[sources] = vec![sources; count];
            for place in (first + 1..count).filter(|place| used[*place]) {
                parts[sources][place] = list.len();
                let place = Some(place);
                list.push(LaneGroup { sources, place });
            }
        }
        Self {
            list,
            division: Division { places, parts },
        }
    }

    /// Returns all groups of lanes.
    #[must_use]
    pub fn list(&self) -> &[LaneGroup] {
        &self.list
    }

    /// Returns the groups as the schedule needs them; `members` has the group of each source.
    #[must_use]
    pub fn scheduled(&self, depths: Vec<Depth>, members: &[Member]) -> Groups {
        Groups::new(depths, members.to_vec()).divided(self.division.clone())
    }

    /// Returns the place of each destination.
    #[must_use]
    pub fn places(&self) -> &[usize] {
        &self.division.places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arrangement, Layout, Wanted, build};

    /// Plan of tensors, each with its source and its destination.
    fn plan(tensors: &[(usize, usize)]) -> Plan {
        let wanted: Vec<_> = (tensors.iter().zip(0_u64..))
            .map(|((source, destination), index)| Wanted {
                source: *source,
                range: index * 4096..(index + 1) * 4096,
                strides: None,
                alignment: 1,
                destination: *destination,
            })
            .collect();
        let layout = Layout {
            extent_bytes: 4096,
            alignment: 1,
            gap_bytes: 0,
        };
        let arrangements = [const { Arrangement::InPlace }; 3];
        build(&wanted, &[layout; 3], &arrangements)
    }

    #[test]
    fn lanes_feed_gpus_of_one_place_where_sources_allow_it() {
        // Three groups of one source each; the last one cannot be divided.
        let members = [0, 1, 2].map(|group| Member { group, index: 0 });
        let all = [(0, 0), (0, 1), (0, 2), (1, 1), (2, 0), (2, 2)];
        let groups = |places: &[usize]| {
            LaneGroups::new(&plan(&all), &members, &[true, true, false], places.to_vec())
        };
        let group = |(sources, place)| LaneGroup { sources, place };
        let found = groups(&[0, 1, 1]);
        let expected = [(0, Some(0)), (1, Some(1)), (2, None), (0, Some(1))];
        assert_eq!(found.list(), expected.map(group));
        let scheduled = found.scheduled(Vec::new(), &members);
        let regions = plan(&all).regions;
        let of: Vec<_> = regions.iter().map(|it| scheduled.group_of(it)).collect();
        assert_eq!(of, [0, 3, 3, 1, 2, 2]);
        // One place, or none.
        for places in [&[0, 0, 0][..], &[]] {
            let expected = [0, 1, 2].map(|sources| group((sources, Some(0))));
            assert_eq!(groups(places).list(), expected);
        }
    }

    #[test]
    fn groups_without_regions_have_lanes_of_the_first_place() {
        let members = [Member { group: 0, index: 0 }];
        let groups = LaneGroups::new(&plan(&[]), &members, &[true, false], vec![0, 1]);
        let places = groups.list().iter().map(|group| group.place);
        assert_eq!(places.collect::<Vec<_>>(), [Some(0), Some(0)]);
    }
}
