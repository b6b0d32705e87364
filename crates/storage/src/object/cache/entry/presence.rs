//! Tiles of an entry that have been written.

use std::ops::Range;

use super::{Entry, FEW_TILES, SEARCHED_TILES, TILE_BYTES, tiles};

impl Entry {
    /// Returns whether most of the tiles of some ranges have been written: all but a sixteenth, or
    /// but a few and no more than half of them.
    pub fn has_most_of(&self, ranges: &[Range<u64>]) -> bool {
        let mut wanted: Vec<_> = ranges.iter().map(tiles).collect();
        wanted.sort_unstable_by_key(|run| run.start);
        // Adjacent runs share tiles, so they are merged and looked up together.
        wanted.dedup_by(|next, run| {
            let is_beside = next.start <= run.end;
            if is_beside {
                run.end = run.end.max(next.end);
            }
            is_beside
        });
        let all: u64 = wanted.iter().map(|run| run.end - run.start).sum();
        let missing: u64 = wanted.iter().map(|run| self.missing(run)).sum();
        missing <= (all / 16).max(FEW_TILES.min(all / 2))
    }

    /// Returns whether a range consists of whole tiles that have been written.
    pub fn holds(&self, offset: u64, len: usize) -> bool {
        let end = offset + len as u64;
        let is_whole = offset.is_multiple_of(TILE_BYTES)
            && (end == self.len || end.is_multiple_of(TILE_BYTES));
        is_whole && self.missing(&tiles(&(offset..end))) == 0
    }

    /// Returns whether all tiles of a range have been written.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        self.missing(&tiles(range)) == 0
    }

    /// Returns how many tiles have not been written.
    fn missing(&self, all: &Range<u64>) -> u64 {
        if self.is_distrusted() || self.is_cleared() {
            return all.end - all.start;
        }
        let absent = |start: u64| {
            let run = start..(start + SEARCHED_TILES as u64).min(all.end);
            let stamps = self.stamps_of(&run);
            stamps.iter().filter(|stamp| stamp.is_none()).count() as u64
        };
        let starts = (all.start..all.end).step_by(SEARCHED_TILES);
        starts.map(absent).sum()
    }
}
