//! Regions of a leader that are published in bands: one region for each band of columns, filled in
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
use crate::plan::{Band, Extent, Plan, SharedRange};
use crate::sync::lock::Mutex;

/// Bytes of a window that are scattered to all bands before those behind them: little enough to be
/// in the core's cache, and enough rows for each band. (2026-11.)
const SCATTER_BYTES: usize = 128 << 10;

/// Bands of the regions of a plan, and the memory of those that have begun.
#[derive(Debug, Default)]
pub struct PublishedBands {
    /// By region of the plan; none if it is published whole.
    bands: Vec<Vec<Band>>,
    /// By region of the plan: the number of its first published region.
    first: Vec<usize>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By region: the rest of the memory of each of its bands.
    writers: HashMap<usize, Vec<RegionWriter>>,
    /// By region and offset of an extent.
    windows: HashMap<(usize, u64), Vec<BandWindow>>,
}

/// Place of the bytes that one extent has of one band.
#[derive(Debug)]
struct BandWindow {
    band: usize,
    /// Number of its first byte among those of the band.
    first: u64,
    lease: Lease,
}

impl PublishedBands {
    /// Notes the bands of the shared ranges of which `plan` reads one tensor each, and the memory
    /// that they take.
    ///
    /// # Panics
    ///
    /// If a range that has bands shares its region with another one.
    pub fn new(plan: &mut Plan, shared: &[SharedRange]) -> Self {
        let mut bands = vec![Vec::new(); plan.regions.len()];
        let in_bands = |range: &&SharedRange| !range.bands.is_empty();
        for (range, target) in (shared.iter().zip(&plan.targets)).filter(|it| in_bands(&it.0)) {
            let (index, _) = target.place.expect("shared ranges have bytes");
            let region = &mut plan.regions[index];
            assert_eq!(region.tensors, 1, "bands are of one tensor");
            region.bytes = lens(&range.bands).map(Mapping::charge).sum();
            bands[index].clone_from(&range.bands);
        }
        let mut next = 0;
        let first = bands.iter().map(|bands| {
            let first = next;
            next += bands.len().max(1);
            first
        });
        Self {
            first: first.collect(),
            bands,
            state: Mutex::default(),
        }
    }

    /// Returns whether any region has bands.
    pub fn are_any(&self) -> bool {
        self.bands.iter().any(|bands| !bands.is_empty())
    }

    /// Returns the bands of a region of the plan; none if it is published whole.
    pub fn of(&self, region: usize) -> &[Band] {
        self.bands.get(region).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of the first region that a region of the plan is published as.
    pub fn first(&self, region: usize) -> usize {
        self.first.get(region).copied().unwrap_or(region)
    }

    /// Returns the length of each band of a region, if it has bands.
    pub(crate) fn lens(&self, region: usize) -> Option<Vec<usize>> {
        let bands = self.of(region);
        (!bands.is_empty()).then(|| lens(bands).collect())
    }

    /// Takes the memory of a region, by band.
    pub(crate) fn begun(&self, region: usize, writers: Vec<RegionWriter>) {
        self.state.lock().writers.insert(region, writers);
    }

    /// Prepares the windows of an extent of a region that has begun. Extents of a region come in
    /// the order of their offsets.
    pub(crate) fn carve(&self, extent: &Extent, is_last: bool) {
        let state = &mut *self.state.lock();
        let writers = (state.writers.get_mut(&extent.region)).expect("begun before its extents");
        let all = 0..extent.needed;
        let bands = self.of(extent.region).iter().zip(writers).enumerate();
        let windows = bands.filter_map(|(index, (band, writer))| {
            let shown = shown(band, extent, &all)?;
            Some(BandWindow {
                band: index,
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

    /// Scatters the bytes of an extent. Returns, for each band that has some of them, the number of
    /// its published region, its memory, and the range of it that is filled.
    pub(super) fn scatter(
        &self,
        extent: &Extent,
        filled: Filled,
    ) -> Vec<(usize, Arc<Region>, Range<u64>)> {
        let windows = (self.state.lock().windows).remove(&(extent.region, extent.offset));
        let mut windows = windows.expect("carved before it was read");
        let bands = self.of(extent.region);
        for start in (0..extent.needed).step_by(SCATTER_BYTES) {
            let step = start..extent.needed.min(start + SCATTER_BYTES);
            for BandWindow { band, first, lease } in &mut windows {
                if let Some(shown) = shown(&bands[*band], extent, &step) {
                    let from = to_len(shown.first - *first);
                    let to = lease.bytes_mut(from..from + to_len(shown.len));
                    bands[*band].strides.pack(filled.bytes(), to, shown);
                }
            }
        }
        // The slot is free for the next read before the ranks are told.
        drop(filled);
        let published = windows
            .into_iter()
            .map(|BandWindow { band, first, lease }| {
                let len = lease.len();
                let filled = lease.written(len);
                let (region, _) = filled.region().expect("carved from a region");
                let number = self.first(extent.region) + band;
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

/// Returns what a range of an extent shows of a band, if it has bytes of it.
fn shown(band: &Band, extent: &Extent, range: &Range<usize>) -> Option<Shown> {
    let at = |offset: usize| extent.offset + offset as u64;
    let (start, end) = (band.range.start, at(range.end));
    let inside = at(range.start).saturating_sub(start)..end.checked_sub(start)?;
    let (_, first, len) = band.strides.found(inside)?;
    let signed = |offset: u64| i64::try_from(offset).expect("files are shorter");
    Some(Shown {
        offset: signed(extent.offset) - signed(start),
        first,
        len,
    })
}

fn lens(bands: &[Band]) -> impl Iterator<Item = usize> {
    bands.iter().map(|band| to_len(band.bytes()))
}

fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit addresses")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::format::{Indices, Slice};
    use crate::memory::{PublishedPool, RegionsStart, Slab};
    use crate::plan::{Arrangement, Layout, RankWant, ShareRules, Wanted, build, share};

    const ROWS: usize = 1200;
    const COLUMNS: usize = 1000;
    const START: u64 = 5001;

    fn want(columns: Range<usize>) -> Vec<RankWant> {
        let slice = Slice::new([(0..ROWS).into(), Indices::from(columns)]);
        let cut = slice.cut(&[ROWS, COLUMNS], 8).expect("inside");
        vec![RankWant {
            tensor: 0,
            source: 0,
            range: START + cut.range.start..START + cut.range.end,
            strides: cut.strides,
            whole: false,
        }]
    }

    /// Returns the bytes of memory for other processes, as these see them.
    fn contents(region: &Region, len: usize) -> Vec<u8> {
        let memory = region.published().expect("it is published").as_fd();
        let memory = std::fs::File::from(memory.try_clone_to_owned().expect("a descriptor"));
        let mut bytes = vec![0; len];
        memory.read_exact_at(&mut bytes, 0).expect("long enough");
        bytes
    }

    /// Windows end in the middle of rows, of bands and of steps, and are filled from the last one.
    #[test]
    fn windows_in_any_order_fill_every_band() {
        if cfg!(any(miri, not(target_os = "linux"))) {
            return;
        }
        let columns = [0..1, 1..300, 300..301, 500..999];
        let rules = ShareRules {
            all: false,
            alignment: 4096,
            gap_bytes: 0,
        };
        let wants: Vec<_> = columns.iter().cloned().map(want).collect();
        let shared = share(&wants, &rules).shared;
        assert_eq!((shared.len(), shared[0].bands.len()), (1, columns.len()));
        let wanted = Wanted {
            source: 0,
            range: shared[0].range.clone(),
            strides: None,
            alignment: 1,
            destination: 0,
        };
        let layout = Layout {
            extent_bytes: 300_000,
            alignment: 4096,
            gap_bytes: 0,
        };
        let mut plan = build(&[wanted], &[layout], &[Arrangement::Published]);
        let bands = PublishedBands::new(&mut plan, &shared);
        let lens = bands.lens(0).expect("it has bands");
        let charge: usize = lens.iter().map(|len| Mapping::charge(*len)).sum();
        assert_eq!(plan.regions[0].bytes, charge);

        let pool = PublishedPool::new(charge as u64, charge as u64, Arc::default());
        let RegionsStart::Regions(writers) = pool.begin_regions(&lens, 1).expect("memory") else {
            unreachable!("the budget is large enough");
        };
        bands.begun(0, writers);
        let at = |offset: u64| u8::try_from(offset % 251).expect("less");
        let slab = Slab::new(400_000, plan.extents.len(), Arc::default()).expect("memory");
        let read = |(index, extent): (usize, &Extent)| {
            bands.carve(extent, index + 1 == plan.extents.len());
            let bytes: Vec<u8> = (0..extent.needed as u64)
                .map(|it| at(extent.offset + it))
                .collect();
            slab.try_lease(extent.window)
                .expect("free")
                .fill_from(&bytes)
        };
        let filled: Vec<_> = plan.extents.iter().enumerate().map(read).collect();
        assert!(filled.len() > 3);

        let mut regions = HashMap::new();
        for (extent, filled) in plan.extents.iter().zip(filled).rev() {
            for (number, region, range) in bands.scatter(extent, filled) {
                let filled =
                    regions.entry(number).or_insert((region, 0)).1 + range.end - range.start;
                regions.get_mut(&number).expect("inserted").1 = filled;
            }
        }
        let state = bands.state.lock();
        assert!(state.writers.is_empty() && state.windows.is_empty());
        for (number, columns) in columns.into_iter().enumerate() {
            let (region, filled) = &regions[&number];
            let rows = (0..ROWS).map(|row| row * COLUMNS);
            let bytes =
                rows.flat_map(|row| columns.clone().map(move |it| at(START + (row + it) as u64)));
            let wanted: Vec<u8> = bytes.collect();
            assert_eq!(*filled, wanted.len() as u64);
            assert!(contents(region, wanted.len()) == wanted, "band {number}");
        }
    }
}
