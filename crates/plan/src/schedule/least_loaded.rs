//! Selection of the least loaded source: sources by reads in flight, equally busy ones in rotation.
//!
//! Linked lists in one array: moving a source that begins or ends a read takes constant time and
//! allocates nothing.

/// Sources with more reads in flight than this count as equally busy.
const BUSIEST: usize = 63;

const NONE: usize = usize::MAX;

/// Sources that have something to read, by reads in flight.
#[derive(Debug)]
pub(super) struct LeastLoaded {
    /// Indexed by source.
    links: Vec<Link>,
    /// Indexed by reads in flight, up to [`BUSIEST`].
    lists: [List; BUSIEST + 1],
    /// Bit set of the lists that are not empty.
    occupied: u64,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: usize,
    next: usize,
    /// List that contains the source, or `NONE`.
    list: usize,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: usize,
    last: usize,
}

impl LeastLoaded {
    /// Creates empty lists for `sources` sources.
    pub(super) fn new(sources: usize) -> Self {
        let link = Link {
            previous: NONE,
            next: NONE,
            list: NONE,
        };
        let list = List {
            first: NONE,
            last: NONE,
        };
        Self {
            links: vec![link; sources],
            lists: [list; BUSIEST + 1],
            occupied: 0,
        }
    }

    /// Returns the source that has waited longest among the least busy.
    pub(super) fn first(&self) -> Option<usize> {
        let list = self.occupied.trailing_zeros() as usize;
        self.lists.get(list).map(|list| list.first)
    }

    pub(super) fn contains(&self, source: usize) -> bool {
        self.links[source].list != NONE
    }

    /// Moves `source`, which has `reads` reads in flight now, behind all sources that are as busy.
    /// Adds it if it is in no list.
    pub(super) fn put(&mut self, source: usize, reads: usize) {
        self.remove(source);
        let level = reads.min(BUSIEST);
        let tail = self.lists[level].last;
        self.links[source] = Link {
            previous: tail,
            next: NONE,
            list: level,
        };
        match tail {
            NONE => self.lists[level].first = source,
            tail => self.links[tail].next = source,
        }
        self.lists[level].last = source;
        self.occupied |= 1 << level;
    }

    /// Removes `source`, which has nothing to read now.
    pub(super) fn remove(&mut self, source: usize) {
        let Link {
            previous,
            next,
            list,
        } = self.links[source];
        if list == NONE {
            return;
        }
        match previous {
            NONE => self.lists[list].first = next,
            previous => self.links[previous].next = next,
        }
        match next {
            NONE => self.lists[list].last = previous,
            next => self.links[next].previous = previous,
        }
        if self.lists[list].first == NONE {
            self.occupied &= !(1 << list);
        }
        self.links[source].list = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn least_busy_source_is_first_and_equals_rotate() {
        let mut turns = LeastLoaded::new(4);
        assert_eq!(turns.first(), None);
        for (source, reads) in [(0, 2), (1, 1), (2, 1), (3, 500)] {
            turns.put(source, reads);
        }
        assert_eq!(turns.first(), Some(1));
        turns.put(1, 1);
        assert_eq!(turns.first(), Some(2));
        turns.remove(2);
        turns.remove(1);
        turns.put(3, 70);
        assert_eq!(turns.first(), Some(0));
        turns.remove(0);
        assert_eq!(turns.first(), Some(3));
        turns.remove(3);
        assert!(turns.first().is_none() && !turns.contains(3));
    }

    /// Compares with a sorted map over thousands of random moves.
    #[test]
    fn turns_match_sorted_map() {
        let mut random = 1_u64;
        let mut below = |bound: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(random >> 33).expect("31 bits") % bound
        };
        let mut turns = LeastLoaded::new(20);
        let mut model: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for clock in 0..20_000 {
            let source = below(20);
            if below(3) == 0 {
                turns.remove(source);
                model.remove(&source);
            } else {
                let reads = below(70);
                turns.put(source, reads);
                model.insert(source, (reads.min(BUSIEST), clock));
            }
            let first = model.iter().min_by_key(|(_, busy)| **busy);
            assert_eq!(turns.first(), first.map(|(source, _)| *source));
            assert_eq!(turns.contains(source), model.contains_key(&source));
        }
    }
}
