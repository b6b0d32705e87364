//! Which rank still needs which shared region: the state of a node's leader. Pure.
//!
//! ```text
//!  begun ─▶ filled, range by range ─▶ complete ─▶ lent, once no rank needs it ─▶ reusable
//!    each rank:  asks ─▶ receives the memory, and what is filled ─▶ releases ─▶ unmaps
//!                   └─ or falls behind: the region is gone for it, and it reads for itself
//! ```
//!
//! Memory is reused only when every rank that was given it says that it no longer shows it. A rank
//! that has left may show it for ever, so that memory is dropped.

use std::collections::VecDeque;

use super::wire::Record;

/// Most ranks of one node: bits of a [`RankSet`].
pub(crate) const NODE_RANKS_MAX: usize = 128;

/// Most regions that only their viewers need and that may still be reused, unless there are many
/// descriptors: each has one. Ranks that drop their tensors soon need few, and with ranks that keep
/// them none comes back.
const LENT_MAX: usize = 8;

/// Memory of a region.
pub trait SharedBytes: Clone {
    /// Takes note that no rank needs it to be kept, but some still show it.
    fn lend(&self);
    /// Takes note that no rank shows it.
    fn allow_reuse(&self);
}

/// Set of ranks of one node, by their position in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RankSet(u128);

impl RankSet {
    fn contains(self, rank: usize) -> bool {
        self.0 >> rank & 1 == 1
    }

    fn insert(&mut self, rank: usize) {
        self.0 |= 1 << rank;
    }

    fn remove(&mut self, rank: usize) -> bool {
        let had = self.contains(rank);
        self.0 &= !(1 << rank);
        had
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        (0..NODE_RANKS_MAX).filter(move |rank| self.contains(*rank))
    }
}

/// State of one region.
#[derive(Debug)]
struct Held<M> {
    memory: Option<M>,
    /// Bytes that must be filled.
    bytes: u64,
    /// Filled ranges, in the order of their arrival.
    filled: Vec<(u64, u64)>,
    filled_bytes: u64,
    /// Ranks that still need it.
    needed_by: RankSet,
    asked_by: RankSet,
    /// Ranks that have been given the memory and have not unmapped it.
    shown_by: RankSet,
    /// A rank has left that may show it for ever.
    is_shown_elsewhere: bool,
}

/// A record for a rank, with the memory of its region if it announces that.
pub(crate) type Outgoing<M> = (usize, Record, Option<M>);

/// Regions of one load and the ranks that need them. `M` is the memory of a region.
#[derive(Debug)]
pub struct Holdings<M> {
    regions: Vec<Held<M>>,
    /// Regions with memory that no rank needs, the oldest first.
    lent: VecDeque<usize>,
    lent_max: usize,
    outgoing: Vec<Outgoing<M>>,
}

impl<M: SharedBytes> Holdings<M> {
    /// Creates the state of regions, each with its bytes and the ranks that need it.
    pub fn new(regions: impl IntoIterator<Item = (u64, Vec<usize>)>) -> Self {
        let held = |(bytes, ranks): (u64, Vec<usize>)| {
            let mut needed_by = RankSet::default();
            for rank in ranks {
                needed_by.insert(rank);
            }
            Held {
                memory: None,
                bytes,
                filled: Vec::new(),
                filled_bytes: 0,
                needed_by,
                asked_by: RankSet::default(),
                shown_by: RankSet::default(),
                is_shown_elsewhere: false,
            }
        };
        let regions: Vec<_> = regions.into_iter().map(held).collect();
        Self {
            regions,
            lent: VecDeque::new(),
            lent_max: LENT_MAX,
            outgoing: Vec::new(),
        }
    }

    /// Sets the most regions that only their viewers need and that may still be reused, at least 8:
    /// of a tensor of which each rank takes columns, there is a region for each rank.
    #[must_use]
    pub fn lending(self, lent_max: usize) -> Self {
        Self {
            lent_max: lent_max.max(LENT_MAX),
            ..self
        }
    }

    /// Takes the records to send.
    pub fn take_outgoing(&mut self) -> Vec<(usize, Record, Option<M>)> {
        std::mem::take(&mut self.outgoing)
    }

    /// Records that the memory of a region exists.
    pub fn begun(&mut self, region: usize, memory: M) {
        let held = &mut self.regions[region];
        if held.needed_by.is_empty() {
            memory.allow_reuse();
            return;
        }
        for rank in held.asked_by.iter() {
            held.shown_by.insert(rank);
            announce(&mut self.outgoing, rank, region, &memory, &held.filled);
        }
        held.memory = Some(memory);
    }

    /// Records that a range of a region has been filled.
    pub fn filled(&mut self, region: usize, from: u64, to: u64) {
        let held = &mut self.regions[region];
        held.filled_bytes += to - from;
        match held.filled.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => held.filled.push((from, to)),
        }
        // Several threads fill a region: one of them may be faster than the one that announces its
        // memory.
        if held.memory.is_some() {
            for rank in held.asked_by.iter() {
                self.outgoing.push((rank, filled(region, from, to), None));
            }
        }
    }

    /// Records that a rank wants a region.
    pub fn ask(&mut self, rank: usize, region: usize) {
        let Some(held) = self.regions.get_mut(region) else {
            return;
        };
        if !held.needed_by.contains(rank) {
            let gone = Record::Gone {
                region: number(region),
            };
            self.outgoing.push((rank, gone, None));
            return;
        }
        if held.asked_by.contains(rank) {
            return;
        }
        held.asked_by.insert(rank);
        if let Some(memory) = &held.memory {
            held.shown_by.insert(rank);
            announce(&mut self.outgoing, rank, region, memory, &held.filled);
        }
    }

    /// Records that a rank no longer needs a region.
    pub fn release(&mut self, rank: usize, region: usize) {
        let Some(held) = self.regions.get_mut(region) else {
            return;
        };
        held.asked_by.remove(rank);
        if held.needed_by.remove(rank) {
            self.settle(region);
        }
    }

    /// Records that a rank no longer shows a region.
    pub fn unmapped(&mut self, rank: usize, region: usize) {
        if let Some(held) = self.regions.get_mut(region)
            && held.shown_by.remove(rank)
        {
            self.settle(region);
        }
    }

    /// Records that a rank has left.
    pub fn leave(&mut self, rank: usize) {
        for region in 0..self.regions.len() {
            let held = &mut self.regions[region];
            held.asked_by.remove(rank);
            held.is_shown_elsewhere |= held.shown_by.remove(rank);
            held.needed_by.remove(rank);
            self.settle(region);
        }
    }

    /// Lends or drops the memory of a region that no rank needs.
    fn settle(&mut self, region: usize) {
        let held = &mut self.regions[region];
        if !held.needed_by.is_empty() {
            return;
        }
        let Some(memory) = &held.memory else { return };
        if !held.shown_by.is_empty() && !held.is_shown_elsewhere {
            if self.lent.contains(&region) {
                return;
            }
            memory.lend();
            self.lent.push_back(region);
            if self.lent.len() > self.lent_max
                && let Some(oldest) = self.lent.pop_front()
            {
                self.regions[oldest].memory = None;
            }
            return;
        }
        if !held.is_shown_elsewhere {
            memory.allow_reuse();
        }
        held.memory = None;
        self.lent.retain(|lent| *lent != region);
    }

    /// Returns the ranks that keep a complete region from being dropped.
    pub fn holders(&self) -> impl Iterator<Item = usize> {
        let complete = self.regions.iter().filter(|held| held.is_complete());
        let all = complete.fold(0, |all, held| all | held.needed_by.0);
        RankSet(all).iter()
    }

    /// No longer keeps complete regions for a rank that has fallen behind. What it has asked for,
    /// it has; for the rest it will be told that it is gone.
    pub fn drop_for(&mut self, rank: usize) {
        for region in 0..self.regions.len() {
            if self.regions[region].is_complete() {
                self.release(rank, region);
            }
        }
    }
}

impl<M> Held<M> {
    fn is_complete(&self) -> bool {
        self.memory.is_some() && self.filled_bytes >= self.bytes
    }
}

/// Tells a rank of a region's memory and of everything in it that has been filled.
fn announce<M: Clone>(
    outgoing: &mut Vec<Outgoing<M>>,
    rank: usize,
    region: usize,
    memory: &M,
    ranges: &[(u64, u64)],
) {
    outgoing.push((rank, here(region), Some(memory.clone())));
    let ranges = ranges.iter();
    outgoing.extend(ranges.map(|&(from, to)| (rank, filled(region, from, to), None)));
}

fn number(region: usize) -> u32 {
    u32::try_from(region).expect("regions are counted before")
}

fn here(region: usize) -> Record {
    Record::Here {
        region: number(region),
    }
}

fn filled(region: usize, from: u64, to: u64) -> Record {
    Record::Filled {
        region: number(region),
        from,
        to,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// Memory that knows what has been said of it.
    #[derive(Debug, Default)]
    struct Noted {
        is_lent: Cell<bool>,
        is_reusable: Cell<bool>,
    }

    impl SharedBytes for Rc<Noted> {
        fn lend(&self) {
            assert!(!self.is_lent.replace(true), "lent once");
        }

        fn allow_reuse(&self) {
            assert!(!self.is_reusable.replace(true), "reused once");
        }
    }

    fn two_regions() -> Holdings<Rc<Noted>> {
        Holdings::new([(100, vec![0, 1]), (50, vec![1])])
    }

    fn told(holdings: &mut Holdings<Rc<Noted>>) -> Vec<(usize, Record)> {
        let outgoing = holdings.take_outgoing().into_iter();
        outgoing.map(|(rank, record, _)| (rank, record)).collect()
    }

    #[test]
    fn ask_before_or_after_begin_gets_memory_and_ranges() {
        let mut holdings = two_regions();
        holdings.ask(0, 0);
        assert_eq!(told(&mut holdings), []);
        holdings.begun(0, Rc::default());
        assert_eq!(told(&mut holdings), [(0, here(0))]);
        holdings.filled(0, 0, 60);
        holdings.filled(0, 60, 80);
        assert_eq!(
            told(&mut holdings),
            [(0, filled(0, 0, 60)), (0, filled(0, 60, 80))]
        );
        holdings.ask(1, 0);
        assert_eq!(told(&mut holdings), [(1, here(0)), (1, filled(0, 0, 80))]);
    }

    #[test]
    fn memory_is_dropped_when_last_rank_releases() {
        let mut holdings = two_regions();
        let memory = Rc::<Noted>::default();
        holdings.begun(0, Rc::clone(&memory));
        holdings.release(0, 0);
        holdings.release(0, 0);
        assert_eq!(Rc::strong_count(&memory), 2);
        holdings.release(1, 0);
        assert_eq!(Rc::strong_count(&memory), 1);
    }

    #[test]
    fn memory_is_reusable_when_last_viewer_has_unmapped_it() {
        let mut holdings = two_regions();
        let memory = Rc::<Noted>::default();
        holdings.begun(0, Rc::clone(&memory));
        holdings.ask(0, 0);
        holdings.ask(1, 0);
        drop(holdings.take_outgoing());
        holdings.release(0, 0);
        holdings.unmapped(0, 0);
        assert!(!memory.is_lent.get(), "rank 1 needs it");
        holdings.release(1, 0);
        assert!(memory.is_lent.get() && !memory.is_reusable.get());
        holdings.unmapped(1, 0);
        assert!(memory.is_reusable.get());
        assert_eq!(Rc::strong_count(&memory), 1);
    }

    #[test]
    fn memory_that_lost_rank_may_show_is_not_reusable() {
        let mut holdings = two_regions();
        let memory = Rc::<Noted>::default();
        holdings.begun(0, Rc::clone(&memory));
        holdings.ask(0, 0);
        holdings.ask(1, 0);
        drop(holdings.take_outgoing());
        holdings.leave(0);
        holdings.release(1, 0);
        assert_eq!(Rc::strong_count(&memory), 1);
        holdings.unmapped(1, 0);
        assert!(!memory.is_reusable.get());
    }

    #[test]
    fn oldest_lent_memory_is_dropped() {
        let regions = LENT_MAX + 2;
        let mut holdings = Holdings::new(vec![(1, vec![0]); regions]).lending(0);
        let memory: Vec<Rc<Noted>> = (0..regions).map(|_| Rc::default()).collect();
        for (region, memory) in memory.iter().enumerate() {
            holdings.begun(region, Rc::clone(memory));
            holdings.ask(0, region);
            holdings.release(0, region);
        }
        // Queued announcements keep their memory.
        drop(holdings.take_outgoing());
        let kept: Vec<_> = memory.iter().map(|it| Rc::strong_count(it) - 1).collect();
        assert_eq!(kept[..2], [0, 0]);
        assert!(kept[2..].iter().all(|owners| *owners == 1));
        holdings.unmapped(0, 0);
        assert!(!memory[0].is_reusable.get());
    }

    #[test]
    fn laggard_loses_complete_regions_only() {
        let mut holdings = two_regions();
        holdings.begun(0, Rc::default());
        holdings.begun(1, Rc::default());
        holdings.filled(0, 0, 100);
        holdings.filled(1, 0, 20);
        assert_eq!(holdings.holders().collect::<Vec<_>>(), [0, 1]);
        holdings.drop_for(1);
        assert_eq!(holdings.holders().collect::<Vec<_>>(), [0]);
        holdings.ask(1, 0);
        holdings.ask(1, 1);
        assert_eq!(
            told(&mut holdings),
            [
                (1, Record::Gone { region: 0 }),
                (1, here(1)),
                (1, filled(1, 0, 20))
            ]
        );
    }

    #[test]
    fn region_that_no_rank_needs_is_not_kept() {
        let mut holdings = two_regions();
        holdings.leave(0);
        holdings.leave(1);
        let memory = Rc::<Noted>::default();
        holdings.begun(0, Rc::clone(&memory));
        assert_eq!(Rc::strong_count(&memory), 1);
        // Numbers from another process may be anything.
        holdings.ask(0, 99);
        holdings.release(0, 99);
    }

    /// Ranges that were filled before another thread announced the memory are not lost.
    #[test]
    fn ranges_filled_before_begin_are_announced_behind_it() {
        let mut holdings = two_regions();
        holdings.ask(0, 0);
        holdings.filled(0, 60, 80);
        assert_eq!(told(&mut holdings), []);
        holdings.begun(0, Rc::default());
        assert_eq!(told(&mut holdings), [(0, here(0)), (0, filled(0, 60, 80))]);
    }

    const RANKS: usize = 3;
    const STEPS: u64 = 4;

    /// Event of a region: it is begun, or one of its quarters filled; a rank asks for it, releases
    /// it, unmaps it, leaves, or falls behind.
    #[derive(Clone, Copy, Debug)]
    enum Happening {
        Begun,
        Filled(u64),
        Ask(usize),
        Release(usize),
        Unmapped(usize),
        Leave(usize),
        Behind(usize),
    }

    /// The model: knowledge of a rank about a region.
    #[expect(clippy::struct_excessive_bools, reason = "independent facts")]
    #[derive(Clone, Debug, Default)]
    struct Known {
        needs: bool,
        asked: bool,
        here: u32,
        gone: u32,
        /// It was given the memory and has not said that it shows it no more.
        shows: bool,
        left: bool,
        quarters: Vec<u64>,
    }

    fn happenings() -> impl proptest::strategy::Strategy<Value = Vec<(usize, Happening)>> {
        use proptest::prelude::*;
        let rank = 0..RANKS;
        let one = prop_oneof![
            3 => Just(Happening::Begun),
            6 => (0..STEPS).prop_map(Happening::Filled),
            4 => rank.clone().prop_map(Happening::Ask),
            3 => rank.clone().prop_map(Happening::Release),
            3 => rank.clone().prop_map(Happening::Unmapped),
            1 => rank.clone().prop_map(Happening::Leave),
            1 => rank.prop_map(Happening::Behind),
        ];
        proptest::collection::vec((0..2_usize, one), 0..60)
    }

    proptest::proptest! {
        /// Each rank learns of each byte of a region that it has asked for exactly once, and the
        /// memory is kept exactly as long as a rank needs it.
        #[test]
        fn every_asking_rank_learns_of_every_byte_once(
            needs in proptest::collection::vec(proptest::collection::vec(proptest::bool::ANY, RANKS), 2),
            happenings in happenings(),
        ) {
            let of = |needs: &Vec<bool>| (0..RANKS).filter(|rank| needs[*rank]).collect();
            let mut holdings = Holdings::new(needs.iter().map(|needs| (STEPS, of(needs))));
            let mut known = vec![vec![Known::default(); RANKS]; 2];
            for (region, needs) in needs.iter().enumerate() {
                for rank in 0..RANKS {
                    known[region][rank].needs = needs[rank];
                }
            }
            let memory: Vec<Rc<Noted>> = (0..2).map(|_| Rc::default()).collect();
            let mut begun = [false; 2];
            let mut quarters = [const { Vec::new() }; 2];
            for (region, happening) in happenings {
                let complete = |region: usize, quarters: &[Vec<u64>; 2], known: &[Vec<Known>]| {
                    let kept = known[region].iter().any(|known| known.needs);
                    begun[region] && kept && quarters[region].len() as u64 == STEPS
                };
                match happening {
                    Happening::Begun if !begun[region] => {
                        holdings.begun(region, Rc::clone(&memory[region]));
                        begun[region] = true;
                    }
                    Happening::Filled(quarter) if !quarters[region].contains(&quarter) => {
                        holdings.filled(region, quarter, quarter + 1);
                        quarters[region].push(quarter);
                    }
                    Happening::Ask(rank) if !known[region][rank].asked => {
                        holdings.ask(rank, region);
                        known[region][rank].asked = true;
                    }
                    Happening::Release(rank) => {
                        holdings.release(rank, region);
                        known[region][rank].needs = false;
                    }
                    Happening::Unmapped(rank) if !known[region][rank].left => {
                        holdings.unmapped(rank, region);
                        known[region][rank].shows = false;
                    }
                    Happening::Leave(rank) => {
                        holdings.leave(rank);
                        for known in &mut known {
                            known[rank].needs = false;
                            known[rank].left = true;
                        }
                    }
                    Happening::Behind(rank) => {
                        for region in 0..2 {
                            if complete(region, &quarters, &known) {
                                known[region][rank].needs = false;
                            }
                        }
                        holdings.drop_for(rank);
                    }
                    Happening::Begun
                    | Happening::Filled(_)
                    | Happening::Ask(_)
                    | Happening::Unmapped(_) => {}
                }
                for (rank, record, carried) in holdings.take_outgoing() {
                    if let Record::Here { region } = record {
                        proptest::prop_assert!(carried.is_some());
                        known[region as usize][rank].here += 1;
                        known[region as usize][rank].shows = true;
                    } else if let Record::Filled { region, from, to } = record {
                        let known = &mut known[region as usize][rank];
                        proptest::prop_assert_eq!(known.here, 1, "memory comes first");
                        known.quarters.extend(from..to);
                    } else if let Record::Gone { region } = record {
                        known[region as usize][rank].gone += 1;
                    } else {
                        proptest::prop_assert!(false, "{:?}", record);
                    }
                }
                for region in 0..2 {
                    let is_needed = known[region].iter().any(|known| known.needs);
                    let shown = known[region].iter().filter(|known| known.shows);
                    let is_lent = shown.clone().count() > 0 && !shown.clone().any(|it| it.left);
                    let owners = 1 + usize::from(begun[region] && (is_needed || is_lent));
                    proptest::prop_assert_eq!(Rc::strong_count(&memory[region]), owners);
                    let is_free = begun[region] && !is_needed && shown.count() == 0;
                    proptest::prop_assert_eq!(memory[region].is_reusable.get(), is_free);
                    for known in &known[region] {
                        let mut found = known.quarters.clone();
                        found.sort_unstable();
                        found.dedup();
                        proptest::prop_assert_eq!(found.len(), known.quarters.len(), "once");
                        proptest::prop_assert!(known.here + known.gone <= 1);
                        if known.asked && known.needs && begun[region] {
                            let mut filled = quarters[region].clone();
                            filled.sort_unstable();
                            proptest::prop_assert_eq!(known.here, 1);
                            proptest::prop_assert_eq!(found, filled);
                        }
                    }
                }
            }
        }
    }
}
