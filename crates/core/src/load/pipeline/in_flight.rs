//! Reads in flight of a load, with their start times, to diagnose stalls. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::error::counted;
use crate::options::format_bytes;
use crate::plan::Plan;
use crate::sync::latency::LatencyHistogram;

/// Number of reads that are named; the others are counted.
const NAMED: usize = 3;

/// Extents in flight, and how long reads usually take.
#[derive(Debug)]
pub(in crate::load) struct InFlightReads {
    /// By extent: its group, and when the read began.
    began: BTreeMap<usize, (usize, Duration)>,
    /// By group.
    latencies: Vec<LatencyHistogram>,
    /// By group; all groups are watched if this is empty.
    watched: Vec<bool>,
    stalled: u64,
}

/// Reads that have not returned, and their memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The number of reads.
    pub reads: usize,
    /// Bytes of their memory.
    pub bytes: u64,
    /// The time for which the oldest read has waited.
    pub longest: Duration,
    /// The sources and bytes of the oldest reads.
    pub named: Vec<(String, Range<u64>)>,
    /// The number of lanes that wait for copies to GPU memory.
    pub copying: usize,
    /// The number of lanes that wait for memory.
    pub without_memory: usize,
}

impl InFlightReads {
    pub(in crate::load) fn new(groups: usize) -> Self {
        Self {
            began: BTreeMap::new(),
            latencies: vec![LatencyHistogram::default(); groups],
            watched: Vec::new(),
            stalled: 0,
        }
    }

    pub(in crate::load) fn watch(&mut self, watched: Vec<bool>) {
        self.watched = watched;
    }

    pub(in crate::load) fn began(&mut self, extent: usize, group: usize, now: Duration) {
        self.began.insert(extent, (group, now));
    }

    pub(in crate::load) fn ended(&mut self, extent: usize, now: Duration) {
        let Some((group, since)) = self.began.remove(&extent) else {
            return;
        };
        self.stalled += u64::from(self.is_stalled(group, since, now));
        self.latencies[group].observe(now.saturating_sub(since));
    }

    fn is_stalled(&self, group: usize, since: Duration, now: Duration) -> bool {
        let watched = self.watched.get(group).copied().unwrap_or(true);
        watched && now.saturating_sub(since) > self.latencies[group].limit()
    }

    /// Returns the number of reads that took much longer than usual, including those still in
    /// flight.
    pub(in crate::load) fn stalled(&self, now: Duration) -> u64 {
        let waiting = self.began.values();
        let stalled = waiting.filter(|(group, since)| self.is_stalled(*group, *since, now));
        self.stalled + stalled.count() as u64
    }

    pub(in crate::load) fn waiting<'a>(
        &self,
        plan: &Plan,
        name: impl Fn(usize) -> Option<&'a str>,
        now: Duration,
    ) -> Waiting {
        let mut oldest: Vec<_> = self.began.iter().collect();
        oldest.sort_by_key(|(_, (_, since))| *since);
        let longest = oldest
            .first()
            .map(|(_, (_, since))| now.saturating_sub(*since));
        let extents = oldest.iter().map(|(extent, _)| &plan.extents[**extent]);
        let named = extents.clone().take(NAMED).map(|extent| {
            let name = name(extent.source).unwrap_or("a source");
            let range = extent.offset..extent.offset + extent.needed as u64;
            (name.to_owned(), range)
        });
        Waiting {
            reads: oldest.len(),
            bytes: extents.clone().map(|extent| extent.window as u64).sum(),
            longest: longest.unwrap_or_default(),
            named: named.collect(),
            ..Waiting::default()
        }
    }
}

/// `3 reads wait, the longest for 12.3 s: a.safetensors [0..4096], …`
impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.reads == 0 {
            return f.write_str(match (self.copying, self.without_memory) {
                (0, 0) => "nothing is being read",
                (0, _) => "nothing is read until received tensors have left memory for others",
                _ => "copies to GPU memory have not ended",
            });
        }
        let reads = counted(self.reads as u64, "read");
        let (verb, seconds) = (if self.reads == 1 { "waits" } else { "wait" }, self.longest);
        write!(
            f,
            "{reads} {verb}, the longest for {:.1} s: ",
            seconds.as_secs_f64()
        )?;
        self.fmt_named(f)
    }
}

impl Waiting {
    /// Returns a note on the memory still held after a load: `8 MiB are still held for 2 reads of
    /// …; they are freed when storage responds`.
    pub fn held(&self) -> String {
        struct Named<'a>(&'a Waiting);
        impl fmt::Display for Named<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt_named(f)
            }
        }
        format!(
            "{} are still held for {} that cannot be cancelled, of {}; they are freed when storage responds",
            format_bytes(self.bytes),
            counted(self.reads as u64, "read"),
            Named(self)
        )
    }

    fn fmt_named(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, range)) in self.named.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{name} [{}..{}]", range.start, range.end)?;
        }
        if self.reads > self.named.len() {
            write!(f, ", and {} more", self.reads - self.named.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Arrangement, Layout, Wanted, build};

    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

    /// Plan of five sources with one read each.
    fn plan() -> Plan {
        let wanted = [0, 1, 2, 3, 4].map(|source| Wanted {
            source,
            range: 0..4096,
            strides: None,
            alignment: 1,
            destination: 0,
        });
        let layout = Layout {
            extent_bytes: 4096,
            alignment: 4096,
            gap_bytes: 0,
        };
        build(&wanted, &[layout; 5], &[Arrangement::InPlace])
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn waiting_names_oldest_reads_and_counts_all() {
        let mut reads = InFlightReads::new(1);
        for (extent, since) in [(4, 9), (3, 2), (1, 4), (0, 3), (2, 1)] {
            reads.began(extent, 0, seconds(since));
        }
        reads.ended(2, seconds(10));
        let waiting = reads.waiting(&plan(), |source| Some(NAMES[source]), seconds(12));
        assert_eq!((waiting.reads, waiting.bytes), (4, 4 * 4096));
        assert_eq!(
            waiting.to_string(),
            "4 reads wait, the longest for 10.0 s: d [0..4096], a [0..4096], b [0..4096], and 1 more"
        );
        assert!(
            waiting
                .held()
                .starts_with("16.0 KiB are still held for 4 reads")
        );
        let none = InFlightReads::new(1).waiting(&plan(), |_| None, seconds(12));
        assert_eq!(none.to_string(), "nothing is being read");
    }

    #[test]
    fn read_much_slower_than_its_group_is_stalled() {
        let mut reads = InFlightReads::new(2);
        for extent in 0..100 {
            reads.began(extent, 0, seconds(0));
            reads.ended(extent, Duration::from_millis(100));
        }
        reads.began(100, 0, seconds(1));
        // No read of this group has completed yet.
        reads.began(101, 1, seconds(1));
        assert_eq!(reads.stalled(Duration::from_millis(1400)), 0);
        assert_eq!(reads.stalled(seconds(2)), 1);
        assert_eq!(reads.stalled(seconds(7)), 2);
        reads.ended(100, seconds(2));
        assert_eq!(reads.stalled(seconds(3)), 1, "counted once");
        reads.watch(vec![true, false]);
        assert_eq!(reads.stalled(seconds(7)), 1, "its engine watches");
    }
}
