//! Senders of an object's bytes in one load: they are named if the bytes turn out to be wrong.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::mirrors::ORIGIN;
use super::{ObjectSource, Source};
use crate::error::Error;
use crate::sync::lock::Mutex;

/// Places that have sent bytes of an object to one load.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    /// Requests to the origin and its mirrors; none if there are no mirrors.
    requests: Mutex<Vec<Sent>>,
    /// Some bytes came from the cache.
    has_cache: AtomicBool,
}

/// Response of the origin or of a mirror.
#[derive(Debug)]
struct Sent {
    lane: usize,
    start: u64,
    /// Bytes that have come so far.
    came: Arc<AtomicU64>,
}

impl Senders {
    /// Adds a request for bytes from `start` on, and returns the counter of the bytes that come.
    /// Each byte must be counted before it is passed on.
    pub(super) fn add(&self, lane: usize, start: u64) -> Arc<AtomicU64> {
        let came = Arc::<AtomicU64>::default();
        self.requests.lock().push(Sent {
            lane,
            start,
            came: Arc::clone(&came),
        });
        came
    }

    /// Records that bytes came from the cache.
    fn add_cache(&self) {
        self.has_cache.store(true, Ordering::Relaxed);
    }

    /// Returns the lanes that have sent bytes of a range.
    fn of(&self, range: &Range<u64>) -> BTreeSet<usize> {
        let requests = self.requests.lock();
        let sent = requests.iter().filter(|sent| {
            let end = sent.start + sent.came.load(Ordering::Relaxed);
            sent.start.max(range.start) < end.min(range.end)
        });
        sent.map(|sent| sent.lane).collect()
    }
}

impl ObjectSource {
    /// Records that the load has read bytes of the cache.
    pub fn add_cached_bytes(&self) {
        self.senders().add_cache();
    }

    /// Takes note that a range of the object's bytes in this load is wrong, as `mismatch` says: the
    /// cache forgets the object, and this process does not use the mirrors any more that sent bytes
    /// of the range. Returns the error with their names.
    pub fn distrust(&self, range: &Range<u64>, mismatch: Error) -> Error {
        self.clear_cached();
        let senders = self.senders();
        let has_cache = senders.has_cache.load(Ordering::Relaxed);
        let lanes = senders.of(range);
        let mirrors = self
            .remote()
            .mirrors()
            .map_or_else(Vec::new, |it| it.distrust(&lanes, &mismatch));
        let mut hints = Vec::new();
        if !mirrors.is_empty() {
            let names = mirrors.join(", ");
            hints.push(format!("this process does not read from {names} any more"));
        }
        if has_cache {
            hints.push("the cache has forgotten the object".to_owned());
        }
        if hints.is_empty() {
            return mismatch;
        }
        // The digest itself may be wrong: then loading again does not help.
        let advice = mismatch
            .marked_hint()
            .map_or_else(String::new, |it| format!("; if that fails too, {it}"));
        let mismatch = mismatch.with_hint(format!("load again: {}{advice}", hints.join(", and ")));
        let others: Vec<_> = [
            (has_cache, "the cache"),
            (lanes.contains(&ORIGIN), "the origin"),
        ]
        .iter()
        .filter(|(has_sent, _)| *has_sent)
        .map(|(_, name)| (*name).to_owned())
        .collect();
        match (&mirrors[..], &others[..]) {
            ([], _) => mismatch,
            ([mirror], []) => mismatch.with_context(format!("{mirror} sent wrong bytes")),
            _ => {
                let all = [mirrors, others].concat().join(", ");
                mismatch.with_context(format!("one of {all} sent wrong bytes"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_of_a_range_are_those_whose_bytes_came() {
        let senders = Senders::default();
        for (lane, start, len) in [(ORIGIN, 0, 10), (1, 10, 0), (2, 10, 5), (1, 15, 5)] {
            let came = senders.add(lane, start);
            came.store(len, Ordering::Relaxed);
        }
        for (range, wanted) in [
            (0..10, &[ORIGIN][..]),
            (9..11, &[ORIGIN, 2]),
            (10..15, &[2]),
            (0..100, &[ORIGIN, 1, 2]),
            (14..16, &[1, 2]),
            (20..30, &[]),
            (12..12, &[]),
        ] {
            let found: Vec<_> = senders.of(&range).into_iter().collect();
            assert_eq!(found, wanted, "{range:?}");
        }
    }
}
