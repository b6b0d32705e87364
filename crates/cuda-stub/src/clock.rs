//! Vector clocks: which work of each stream is known to come before.
//!
//! The calls that submit work fix the driver's order. All decisions are therefore made when work is
//! submitted, and do not depend on how fast the work runs. `stream.rs` advances the clocks;
//! `memory.rs` and `host.rs` compare them.

use std::collections::HashMap;

/// One item of work: number `count` of a stream, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) stream: u64,
    pub(crate) count: u64,
}

/// For each stream, the last of its work that comes before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(HashMap<u64, u64>);

impl Clock {
    pub(crate) fn join(&mut self, other: &Self) {
        for (&stream, &count) in &other.0 {
            self.advance(Point { stream, count });
        }
    }

    pub(crate) fn advance(&mut self, point: Point) {
        let count = self.0.entry(point.stream).or_default();
        *count = point.count.max(*count);
    }

    pub(crate) fn has_seen(&self, point: Point) -> bool {
        self.0
            .get(&point.stream)
            .is_some_and(|count| *count >= point.count)
    }

    /// Returns a point of `other` that this clock does not cover.
    pub(crate) fn misses(&self, other: &Self) -> Option<Point> {
        other.points().find(|point| !self.has_seen(*point))
    }

    pub(crate) fn points(&self) -> impl Iterator<Item = Point> + '_ {
        self.0
            .iter()
            .map(|(&stream, &count)| Point { stream, count })
    }
}
