//! Plans a load: tensors and read hints in, regions, extents and pieces out. Pure.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! Does no I/O, reads no clock, allocates no tensor memory. The plan is made once, before the first
//! read; the pipeline only follows it.
//!
//! ```text
//!  file    ······[ tensor a ][b][c][      tensor d      ]·····
//!  runs          └── own ───┘└shared┘└────── own ───────┘      split.rs: tensors that share memory
//!                                                              pack.rs: positions in device memory
//!  windows     └─────────────┘└──────┘└──────────────────┘     place.rs: aligned, meet at edges
//!  extents     └──────┴──────┘└──────┘└─────┴─────┴──────┘     place.rs: one read each
//! ```
//!
//! Bytes at edges where two windows meet are read twice.

mod cluster;
mod near_glob;
mod order;
mod pack;
mod place;
mod read_hints;
mod region_need;
pub mod schedule;
mod select;
mod sharding;
mod share;
mod split;
mod unique;

// Paths of modules that are in crates below.
pub(crate) use tload_base::error;
pub(crate) use tload_format as format;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;

pub use cluster::{JointRange, NodeWants, divide};
pub use order::Order;
pub use pack::Packing;
pub use place::{Arrangement, Layout, REWRITTEN_ALIGNMENT, build, build_rewriting};
pub use read_hints::ReadHints;
pub use region_need::RegionNeed;
pub use select::Selection;
pub use sharding::{Sharded, Sharding};
pub use share::{RankWant, SharePlan, ShareRules, SharedRange, share, share_with};

pub use crate::format::{Band, Indices, Slice, Strides};
use format::Shown;

/// A tensor to load, as the plan needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Index of its source.
    pub source: usize,
    /// Range of its bytes in the source: from the first wanted byte to the last.
    pub range: Range<u64>,
    /// Wanted bytes of that range; all if `None`.
    pub strides: Option<Strides>,
    /// Alignment that its address in memory should have.
    pub alignment: usize,
    /// Destination: an index into the arrangements. Tensors of different destinations share no
    /// memory.
    pub destination: usize,
}

impl Wanted {
    /// Returns the number of bytes wanted.
    pub fn bytes(&self) -> u64 {
        let all = self.range.end - self.range.start;
        self.strides.as_ref().map_or(all, Strides::bytes)
    }
}

/// All reads of a load, and the destinations of their bytes.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Destination allocations, in file order.
    pub regions: Vec<RegionPlan>,
    /// Reads; those of one region are adjacent, in the order of their offsets.
    pub extents: Vec<Extent>,
    /// Parts of extents; those of one extent are adjacent.
    pub pieces: Vec<Piece>,
    /// Position of each wanted tensor, by the index it was given in.
    pub targets: Vec<Target>,
    /// Strides of those tensors that have some, and the offset in the source at which they begin,
    /// by tensor.
    slices: HashMap<usize, (Strides, u64)>,
}

/// One destination allocation and the reads that fill it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionPlan {
    /// Index of its source.
    pub source: usize,
    /// Destination: an index into the arrangements.
    pub destination: usize,
    /// Bytes of memory: the windows of all its extents if in place, its tensors if packed (slices
    /// with gaps always are), 0 if scattered.
    pub bytes: usize,
    /// Its reads, as indices into [`Plan::extents`].
    pub extents: Range<usize>,
    /// Number of tensors in it, at least one.
    pub tensors: u32,
}

/// One read of a contiguous range of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Index of its source.
    pub source: usize,
    /// Index of its region.
    pub region: usize,
    /// Offset in the source; aligned.
    pub offset: u64,
    /// Bytes of memory for it; aligned. The file may end earlier.
    pub window: usize,
    /// Bytes that must arrive: up to the last byte that a tensor wants.
    pub needed: usize,
    /// Its pieces, as indices into [`Plan::pieces`].
    pub pieces: Range<usize>,
}

/// The part of an extent that belongs to one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the tensor, as given to [`build`].
    pub tensor: usize,
    /// Offset in the extent. For a slice with gaps, the offset of its first byte; [`Plan::gather`]
    /// moves the others behind it.
    pub extent_offset: usize,
    /// Offset in the tensor.
    pub tensor_offset: u64,
    /// Length, bytes.
    pub len: usize,
}

/// Position of a wanted tensor in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Its region and its offset there (0 if scattered); `None` for a tensor without bytes.
    pub place: Option<(usize, usize)>,
    /// Pieces that must arrive before it is complete.
    pub pieces: u32,
    /// True if the tensor is alone in its region and must be moved to an aligned address when
    /// complete: the file holds it at an offset from which direct reads cannot place it there. Or
    /// if it is rewritten there.
    pub realign: bool,
}

impl Plan {
    /// Renumbers the tensors: tensor `i` becomes `numbers[i]`.
    #[doc(hidden)]
    pub fn renumber(&mut self, numbers: &[usize]) {
        for piece in &mut self.pieces {
            piece.tensor = numbers[piece.tensor];
        }
        let mut targets = vec![Target::default(); self.targets.len()];
        for (target, number) in std::mem::take(&mut self.targets).into_iter().zip(numbers) {
            targets[*number] = target;
        }
        self.targets = targets;
        let slices = std::mem::take(&mut self.slices).into_iter();
        self.slices = slices.map(|(tensor, it)| (numbers[tensor], it)).collect();
    }

    /// Joins the bytes of slices in the window that an extent was read into; does nothing for whole
    /// tensors.
    pub fn gather(&self, extent: &Extent, window: &mut [u8]) {
        for (strides, shown) in self.slices_in(extent) {
            strides.gather(window, shown);
        }
    }

    /// Copies the bytes of slices from those of an extent to where [`Self::gather`] moves them to
    /// in its window.
    #[doc(hidden)]
    pub fn gather_from(&self, extent: &Extent, bytes: &[u8], window: &mut [u8]) {
        for (strides, shown) in self.slices_in(extent) {
            strides.gather_from(bytes, window, shown);
        }
    }

    /// Returns the strides of each slice of an extent, and what the extent shows of the slice.
    fn slices_in(&self, extent: &Extent) -> impl Iterator<Item = (&Strides, Shown)> {
        let extent_offset = signed(extent.offset);
        let pieces = self.pieces[extent.pieces.clone()].iter();
        pieces.filter_map(move |piece| {
            let (strides, start) = self.slices.get(&piece.tensor)?;
            let shown = Shown {
                offset: extent_offset - signed(*start),
                first: piece.tensor_offset,
                len: piece.len as u64,
            };
            Some((strides, shown))
        })
    }

    /// Returns the piece of a slice with gaps that an extent contains, if it does.
    pub fn slice_in(&self, extent: &Extent) -> Option<&Piece> {
        // Slices are alone in their regions.
        let first = self.pieces.get(extent.pieces.start);
        first.filter(|piece| self.slices.contains_key(&piece.tensor))
    }

    /// Returns the size of the largest region of a destination, bytes: the least that its budget
    /// must hold.
    pub fn region_bytes_max(&self, destination: usize) -> usize {
        self.regions_of(destination)
            .map(|region| region.bytes)
            .max()
            .unwrap_or(0)
    }

    /// Returns all regions of a destination.
    pub fn regions_of(&self, destination: usize) -> impl Iterator<Item = &RegionPlan> {
        let regions = self.regions.iter();
        regions.filter(move |region| region.destination == destination)
    }

    /// Returns whether a region's tensor must be moved to an aligned address, or rewritten, when
    /// complete.
    #[doc(hidden)]
    pub fn is_realigned(&self, region: &RegionPlan) -> bool {
        let first = &self.extents[region.extents.start];
        let tensor = self.pieces[first.pieces.start].tensor;
        self.targets[tensor].realign
    }

    /// Returns the size of the largest window of one read, bytes.
    pub fn window_bytes_max(&self) -> usize {
        self.extents
            .iter()
            .map(|extent| extent.window)
            .max()
            .unwrap_or(0)
    }
}

/// File offsets are below 2^63.
fn signed(offset: u64) -> i64 {
    i64::try_from(offset).expect("files are shorter")
}
