//! What to read and where it goes: tensors and read hints in, regions, extents and pieces out. Pure.
//!
//! Does no I/O, reads no clock, allocates no tensor memory. The plan is made once, before the first read; the pipeline only
//! follows it.
//!
//! ```text
//!  file    ······[ tensor a ][b][c][      tensor d      ]·····
//!  runs          └── own ───┘└shared┘└────── own ───────┘          split.rs: which tensors share memory
//!  windows     └─────────────┘└──────┘└──────────────────┘         place.rs: aligned edges, read twice where they meet
//!  extents     └──────┴──────┘└──────┘└─────┴─────┴──────┘         place.rs: one read each
//! ```

mod place;
mod select;
mod slice;
mod split;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;

pub use place::{Arrangement, Layout, build};
pub use select::Selection;
pub use slice::{Slice, Steps, Strides};

/// One tensor to load: what the plan needs to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Index of its source.
    pub source: usize,
    /// Its bytes in the source: from the first that is wanted to the last.
    pub range: Range<u64>,
    /// Which of those; all if none.
    pub strides: Option<Strides>,
    /// Multiple that its address in memory should be of.
    pub alignment: usize,
    /// Where it is to live: an index into the arrangements. Tensors of different destinations share no memory.
    pub destination: usize,
}

impl Wanted {
    /// Bytes wanted.
    pub fn bytes(&self) -> u64 {
        let all = self.range.end - self.range.start;
        self.strides.as_ref().map_or(all, Strides::bytes)
    }
}

/// All reads of a load and where their bytes go.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Destination allocations, in file order.
    pub regions: Vec<RegionPlan>,
    /// Reads; those of one region stand together, in the order of their offsets.
    pub extents: Vec<Extent>,
    /// Parts of extents; those of one extent stand together.
    pub pieces: Vec<Piece>,
    /// For each wanted tensor, by the index it was given in: where it will be.
    pub targets: Vec<Target>,
    /// By tensor, the strides of those that have some, and where in the source they begin; empty if none has.
    slices: HashMap<usize, (Strides, u64)>,
}

/// One destination allocation and the reads that fill it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionPlan {
    /// Index of its source.
    pub source: usize,
    /// Where it is to live: an index into the arrangements.
    pub destination: usize,
    /// Bytes of memory: the windows of all its extents in place, its tensors when packed, 0 when scattered.
    pub bytes: usize,
    /// Its reads, as indices into [`Plan::extents`].
    pub extents: Range<usize>,
    /// How many tensors live in it, at least one.
    pub tensors: u32,
}

/// One read of a contiguous range of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Index of its source.
    pub source: usize,
    /// Index of its region.
    pub region: usize,
    /// Where the read begins in the source; aligned.
    pub offset: u64,
    /// Bytes of memory for it; aligned. The file may end before.
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
    /// Where it begins in the extent. Of a slice with gaps: where its first byte is, behind which [`Plan::gather`] puts the others.
    pub extent_offset: usize,
    /// Where it begins in the tensor.
    pub tensor_offset: u64,
    /// Bytes.
    pub len: usize,
}

/// Where a wanted tensor will be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Its region and where it begins there (nowhere, if scattered); none for a tensor without bytes.
    pub place: Option<(usize, usize)>,
    /// Pieces that must arrive before it is complete.
    pub pieces: u32,
    /// It is alone in its region and must be moved to an address of its alignment when complete: the file holds it at an
    /// offset that direct reads cannot put there.
    pub realign: bool,
    /// It is alone in its region, its pieces lie apart there, and they must be moved together when complete.
    pub join: bool,
}

impl Plan {
    /// Moves what belongs to a slice together, in a window that an extent was read into; nothing to do for whole tensors.
    pub fn gather(&self, extent: &Extent, window: &mut [u8]) {
        for piece in &self.pieces[extent.pieces.clone()] {
            if let Some((strides, start)) = self.slices.get(&piece.tensor) {
                let offset = signed(extent.offset) - signed(*start);
                strides.gather(window, offset, piece.tensor_offset, piece.len as u64);
            }
        }
    }

    /// Whether an extent brings a piece of a slice with gaps.
    pub fn has_gaps(&self, extent: &Extent) -> bool {
        // Slices are alone in their regions.
        let first = self.pieces.get(extent.pieces.start);
        !self.slices.is_empty()
            && first.is_some_and(|piece| self.slices.contains_key(&piece.tensor))
    }

    /// Where in its region each piece of a tensor that is alone there lies, and its bytes.
    pub fn pieces_in_place(&self, region: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut window_offset = 0;
        let extents = &self.extents[self.regions[region].extents.clone()];
        extents.iter().flat_map(move |extent| {
            let start = window_offset;
            window_offset += extent.window;
            let pieces = &self.pieces[extent.pieces.clone()];
            pieces
                .iter()
                .map(move |piece| (start + piece.extent_offset, piece.len))
        })
    }

    /// The largest region of a destination, bytes; what its budget must hold at least.
    pub fn region_bytes_max(&self, destination: usize) -> usize {
        self.regions_of(destination)
            .map(|region| region.bytes)
            .max()
            .unwrap_or(0)
    }

    /// All regions of a destination.
    pub fn regions_of(&self, destination: usize) -> impl Iterator<Item = &RegionPlan> {
        let regions = self.regions.iter();
        regions.filter(move |region| region.destination == destination)
    }

    /// The largest window of one read, bytes.
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
