//! Table of the outcomes of all loads.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::places::Place;

/// End of one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Complete,
    Cancelled,
    Dropped,
    /// Failed with an error.
    Failed,
}

/// Outcome of one load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    /// Tensors that were received and compared.
    pub(crate) tensors: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    loads: u64,
    complete: u64,
    cancelled: u64,
    dropped: u64,
    failed: u64,
    tensors: u64,
    bytes: u64,
}

/// Counts of loads by place. Wrong bytes are not counted: they fail the test.
#[derive(Debug, Default)]
pub(crate) struct Table(Mutex<BTreeMap<String, Row>>);

impl Table {
    pub(crate) fn add(&self, place: Place, outcome: Outcome) {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = rows.entry(place.name()).or_default();
        row.loads += 1;
        let ended = match outcome.ended {
            Ended::Complete => &mut row.complete,
            Ended::Cancelled => &mut row.cancelled,
            Ended::Dropped => &mut row.dropped,
            Ended::Failed => &mut row.failed,
        };
        *ended += 1;
        row.tensors += outcome.tensors;
        row.bytes += outcome.bytes;
    }

    /// Returns the number of complete loads of `place`.
    pub(crate) fn complete(&self, place: Place) -> u64 {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.get(&place.name()).map_or(0, |row| row.complete)
    }

    /// Returns the number of failed loads of `place`.
    pub(crate) fn failed(&self, place: Place) -> u64 {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.get(&place.name()).map_or(0, |row| row.failed)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| from | loads | complete | cancelled | dropped | failed, with an error | tensors compared | GiB compared |"
        )?;
        writeln!(f, "|:--|--:|--:|--:|--:|--:|--:|--:|")?;
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = Row::default();
        for (name, row) in &*rows {
            write_row(f, name, row)?;
            sum.loads += row.loads;
            sum.complete += row.complete;
            sum.cancelled += row.cancelled;
            sum.dropped += row.dropped;
            sum.failed += row.failed;
            sum.tensors += row.tensors;
            sum.bytes += row.bytes;
        }
        write_row(f, "all", &sum)
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, name: &str, row: &Row) -> fmt::Result {
    // Hundredths of a GiB.
    let hundredths = row.bytes / ((1 << 30) / 100);
    writeln!(
        f,
        "| {name} | {} | {} | {} | {} | {} | {} | {}.{:02} |",
        row.loads,
        row.complete,
        row.cancelled,
        row.dropped,
        row.failed,
        row.tensors,
        hundredths / 100,
        hundredths % 100,
    )
}
