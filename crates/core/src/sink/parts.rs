//! Regions of a leader that are published in parts: one region for each band of columns, filled in
//! one pass over each window.
//!
//! ```text
//!  slot     0 0 1 1 1 2 2  0 0 1 1 1 2 2 …      read once
//!  regions  [0 0 0 0 …]  [1 1 1 1 1 1 …]  [2 2 2 2 …]
//! ```
//!
//! The feed begins all regions of a tensor together, so that its windows can always be emptied, and
//! carves a window of each for every read. The publish sink fills them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::format::Shown;
use crate::memory::{Filled, Lease, Mapping, Region, RegionWriter};
use crate::plan::{Extent, Part, Plan, SharedRange};
use crate::sync::lock::Mutex;

/// Bytes of a window that are scattered to all parts before those behind them: little enough to be
/// in the core's cache, and enough rows for each part. (2026-11.)
const BLOCK_BYTES: usize = 128 << 10;

/// Parts of the regions of a plan, and the memory of those that have begun.
#[derive(Debug, Default)]
pub struct PublishedParts {
    /// By region of the plan; none if it is published whole.
    parts: Vec<Vec<Part>>,
    /// By region of the plan: the number of its first published region.
    first: Vec<usize>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By region: the rest of the memory of each of its parts.
    writers: HashMap<usize, Vec<RegionWriter>>,
    /// By region and offset of an extent.
    windows: HashMap<(usize, u64), Vec<PartWindow>>,
}

/// Place of the bytes that one extent has of one part.
#[derive(Debug)]
struct PartWindow {
    part: usize,
    /// Number of its first byte among those of the part.
    first: u64,
    lease: Lease,
}

impl PublishedParts {
    /// Notes the parts of the shared ranges of which `plan` reads one tensor each, and the memory
    /// that they take.
    ///
    /// # Panics
    ///
    /// If a range that has parts shares its region with another one.
    pub fn new(plan: &mut Plan, shared: &[SharedRange]) -> Self {
        let mut parts = vec![Vec::new(); plan.regions.len()];
        let in_parts = |range: &&SharedRange| !range.parts.is_empty();
        for (range, target) in (shared.iter().zip(&plan.targets)).filter(|it| in_parts(&it.0)) {
            let (index, _) = target.place.expect("shared ranges have bytes");
            let region = &mut plan.regions[index];
            assert_eq!(region.tensors, 1, "parts are of one tensor");
            region.bytes = lens(&range.parts).map(Mapping::charge).sum();
            parts[index].clone_from(&range.parts);
        }
        let mut next = 0;
        let first = parts.iter().map(|parts| {
            let first = next;
            next += parts.len().max(1);
            first
        });
        Self {
            first: first.collect(),
            parts,
            state: Mutex::default(),
        }
    }

    /// Returns whether any region has parts.
    pub fn are_any(&self) -> bool {
        self.parts.iter().any(|parts| !parts.is_empty())
    }

    /// Returns the parts of a region of the plan; none if it is published whole.
    pub fn of(&self, region: usize) -> &[Part] {
        self.parts.get(region).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of the first region that a region of the plan is published as.
    pub fn first(&self, region: usize) -> usize {
        self.first.get(region).copied().unwrap_or(region)
    }

    /// Returns the length of each part of a region, if it has parts.
    pub(crate) fn lens(&self, region: usize) -> Option<Vec<usize>> {
        let parts = self.of(region);
        (!parts.is_empty()).then(|| lens(parts).collect())
    }

    /// Takes the memory of a region, by part.
    pub(crate) fn begun(&self, region: usize, writers: Vec<RegionWriter>) {
        self.state.lock().writers.insert(region, writers);
    }

    /// Prepares the windows of an extent of a region that has begun. Extents of a region come in
    /// the order of their offsets.
    pub(crate) fn carve(&self, extent: &Extent, is_last: bool) {
        let state = &mut *self.state.lock();
        let writers = (state.writers.get_mut(&extent.region)).expect("begun before its extents");
        let all = 0..extent.needed;
        let parts = self.of(extent.region).iter().zip(writers).enumerate();
        let windows = parts.filter_map(|(index, (part, writer))| {
            let shown = shown(part, extent, &all)?;
            Some(PartWindow {
                part: index,
                first: shown.first,
                lease: writer.carve(to_len(shown.len)),
            })
        });
        let windows = windows.collect();
        if is_last {
            state.writers.remove(&extent.region);
        }
        let extent = (extent.region, extent.offset);
        state.windows.insert(extent, windows);
    }

    /// Scatters the bytes of an extent. Returns, for each part that has some of them, the number of
    /// its published region, its memory, and the range of it that is filled.
    pub(super) fn scatter(
        &self,
        extent: &Extent,
        filled: Filled,
    ) -> Vec<(usize, Arc<Region>, Range<u64>)> {
        let windows = (self.state.lock().windows).remove(&(extent.region, extent.offset));
        let mut windows = windows.expect("carved before it was read");
        let parts = self.of(extent.region);
        for start in (0..extent.needed).step_by(BLOCK_BYTES) {
            let block = start..extent.needed.min(start + BLOCK_BYTES);
            for PartWindow { part, first, lease } in &mut windows {
                if let Some(shown) = shown(&parts[*part], extent, &block) {
                    let from = to_len(shown.first - *first);
                    let to = lease.bytes_mut(from..from + to_len(shown.len));
                    parts[*part].strides.pack(filled.bytes(), to, shown);
                }
            }
        }
        // The slot is free for the next read before the ranks are told.
        drop(filled);
        let published = windows
            .into_iter()
            .map(|PartWindow { part, first, lease }| {
                let len = lease.len();
                let filled = lease.written(len);
                let (region, _) = filled.region().expect("carved from a region");
                let number = self.first(extent.region) + part;
                (number, Arc::clone(region), first..first + len as u64)
            });
        published.collect()
    }

    /// Ends the load: frees the memory that is not published.
    pub(crate) fn close(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        drop(state);
    }
}

/// Returns what a block of an extent shows of a part, if it has bytes of it.
fn shown(part: &Part, extent: &Extent, block: &Range<usize>) -> Option<Shown> {
    let at = |offset: usize| extent.offset + offset as u64;
    let (start, end) = (part.range.start, at(block.end));
    let inside = at(block.start).saturating_sub(start)..end.checked_sub(start)?;
    let (_, first, len) = part.strides.found(inside)?;
    let signed = |offset: u64| i64::try_from(offset).expect("files are shorter");
    Some(Shown {
        offset: signed(extent.offset) - signed(start),
        first,
        len,
    })
}

fn lens(parts: &[Part]) -> impl Iterator<Item = usize> {
    parts.iter().map(|part| to_len(part.bytes()))
}

fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit addresses")
}
