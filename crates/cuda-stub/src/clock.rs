//! Vector clocks: which work of each stream is known to come before.
//!
//! The calls that submit work fix the driver's order. All decisions are therefore made when work is
//! submitted, and do not depend on how fast the work runs. `stream.rs` advances the clocks;
//! `memory.rs` and `host.rs` compare them.

/// One item of work: number `count` of a stream, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) stream: u64,
    pub(crate) count: u64,
}

/// For each stream, the last of its work that comes before: pairs of a stream and a count, sorted.
/// There is one for each stream of the process, and each call that submits work joins several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Vec<(u64, u64)>);

impl Clock {
    pub(crate) fn join(&mut self, other: &Self) {
        let mut at = 0;
        for &(stream, count) in &other.0 {
            while self.0.get(at).is_some_and(|pair| pair.0 < stream) {
                at += 1;
            }
            self.raise(at, stream, count);
        }
    }

    pub(crate) fn advance(&mut self, point: Point) {
        let at = self.0.partition_point(|pair| pair.0 < point.stream);
        self.raise(at, point.stream, point.count);
    }

    /// Raises the count of a stream, whose pair is at this index or belongs there.
    fn raise(&mut self, at: usize, stream: u64, count: u64) {
        match self.0.get_mut(at) {
            Some(pair) if pair.0 == stream => pair.1 = count.max(pair.1),
            _ => self.0.insert(at, (stream, count)),
        }
    }

    pub(crate) fn has_seen(&self, point: Point) -> bool {
        let at = self.0.binary_search_by_key(&point.stream, |pair| pair.0);
        at.is_ok_and(|at| self.0[at].1 >= point.count)
    }

    /// Returns a point of `other` that this clock does not cover.
    pub(crate) fn misses(&self, other: &Self) -> Option<Point> {
        other.points().find(|point| !self.has_seen(*point))
    }

    pub(crate) fn points(&self) -> impl Iterator<Item = Point> + '_ {
        let pairs = self.0.iter();
        pairs.map(|&(stream, count)| Point { stream, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_joined_by_stream() {
        let clock = |pairs: &[(u64, u64)]| {
            let mut clock = Clock::default();
            for &(stream, count) in pairs {
                clock.advance(Point { stream, count });
            }
            clock
        };
        let mut joined = clock(&[(7, 1), (3, 4), (7, 2), (3, 2)]);
        assert_eq!(joined.0, [(3, 4), (7, 2)]);
        joined.join(&clock(&[(9, 1), (1, 5), (3, 6), (7, 1)]));
        assert_eq!(joined.0, [(1, 5), (3, 6), (7, 2), (9, 1)]);
        let point = |stream, count| Point { stream, count };
        assert!(joined.has_seen(point(3, 6)) && !joined.has_seen(point(3, 7)));
        assert!(!joined.has_seen(point(2, 1)));
        assert_eq!(joined.misses(&clock(&[(3, 6), (8, 1)])), Some(point(8, 1)));
        assert_eq!(joined.misses(&clock(&[(1, 5), (9, 1)])), None);
    }
}
