//! Windows and reads: aligned edges, even extents, and the position of each tensor in memory.
//!
//! The rule that makes in-place reads possible: an address in a region is congruent to its file
//! offset modulo the alignment of direct I/O. Regions start on a page, so a region simply begins at
//! an aligned file offset.

use std::ops::Range;

use super::pack::{Packing, to_len};
use super::split::{Run, runs};
use super::{Extent, Piece, Plan, RegionPlan, Strides, Target, Wanted};

/// Minimum alignment of reads, even where the file system has none: it puts every dtype on an
/// address of its own alignment.
pub(super) const ALIGNMENT_MIN: u64 = 64;

/// Alignment of tensors that are rewritten in memory, bytes: a cache line, and the widest vectors.
pub const REWRITTEN_ALIGNMENT: usize = 64;

/// Parameters for splitting one source into reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Largest read, bytes. Reads may be longer by up to two alignments, for unaligned edges.
    pub extent_bytes: u64,
    /// Reads begin and end on multiples of this power of two, bytes.
    pub alignment: u64,
    /// Largest gap that costs less to read than to skip, bytes.
    pub gap_bytes: u64,
}

/// Arrangement of a destination's tensors in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// As in the file, including alignment: reads go straight there. Slices with gaps are packed,
    /// and a tensor that shares its region with none begins on a page if reads may begin anywhere.
    InPlace,
    /// Like [`Self::InPlace`], in memory that other processes map: a bounded number of regions.
    Published,
    /// Each at an aligned address, else as in the file: bytes are copied there.
    Packed(Packing),
    /// Each in separate memory that the plan does not know: bytes are copied there.
    Scattered,
}

impl Layout {
    /// Returns whether reads may begin and end at any byte.
    pub(super) fn reads_anywhere(&self) -> bool {
        self.alignment == 1
    }
}

impl Arrangement {
    /// Returns whether reads go straight to the tensors' memory.
    pub fn is_in_place(self) -> bool {
        matches!(self, Self::InPlace | Self::Published)
    }

    /// Returns the packing, if tensors are packed.
    pub(super) fn packing(self) -> Option<Packing> {
        match self {
            Self::Packed(packing) => Some(packing),
            Self::InPlace | Self::Published | Self::Scattered => None,
        }
    }
}

/// Plans the reads of `wanted`, which must be sorted by source and offset and must not overlap.
///
/// Worked example (alignment 4096, extents of 8192 bytes): a tensor at 5000..30000. Its window is
/// 4096..32768, 28672 bytes; 20480 bytes beyond the edges' two alignments make 3 extents; 28672 / 3
/// rounded up to the alignment is 12288, so the reads are 4096..16384, 16384..28672 and
/// 28672..32768. It begins at 904 in its region, an address congruent to 5000 modulo 4096.
pub fn build(wanted: &[Wanted], layouts: &[Layout], arrangements: &[Arrangement]) -> Plan {
    build_rewriting(wanted, layouts, arrangements, &|_| None)
}

/// As [`build`], but tensors for which `rewritten` returns a length are rewritten when they are
/// complete: they are read to memory of their own that has room for that many bytes, too. They
/// begin at the first multiple of [`REWRITTEN_ALIGNMENT`] behind the start of the tensor at the
/// latest. Destinations whose memory others share, or that take no memory, have none.
///
/// Worked example: a tensor of 8 bytes at 5000 is to have 16 bytes. It is read to 904 in its
/// region, and has its 16 bytes from 960 on at the latest: the window's 4096 bytes are enough.
pub fn build_rewriting(
    wanted: &[Wanted],
    layouts: &[Layout],
    arrangements: &[Arrangement],
    rewritten: &dyn Fn(usize) -> Option<u64>,
) -> Plan {
    let mut plan = Plan {
        targets: vec![Target::default(); wanted.len()],
        ..Plan::default()
    };
    for run in runs(wanted, layouts, arrangements, rewritten) {
        let arrangement = arrangements[run.destination];
        let layout = Layout {
            alignment: layouts[run.source].alignment.max(ALIGNMENT_MIN),
            ..layouts[run.source]
        };
        if let [tensor] = run.tensors[..]
            && let Some(strides) = &wanted[tensor].strides
        {
            place_slice(&mut plan, wanted, tensor, strides, arrangement, &layout);
        } else {
            let is_exact = layouts[run.source].reads_anywhere();
            place(&mut plan, wanted, &run, arrangement, &layout, is_exact);
        }
        if let [tensor] = run.tensors[..]
            && let Some(bytes) = rewritten(tensor)
        {
            let (region, offset) = plan.targets[tensor].place.expect("just placed");
            let room = offset.next_multiple_of(REWRITTEN_ALIGNMENT) + to_len(bytes);
            let region = &mut plan.regions[region];
            region.bytes = region.bytes.max(room);
        }
    }
    plan
}

/// Places a run in a separate region. If `is_exact`, reads may begin at any byte: a tensor that
/// is alone then begins with the region, on a page.
fn place(
    plan: &mut Plan,
    wanted: &[Wanted],
    run: &Run,
    arrangement: Arrangement,
    layout: &Layout,
    is_exact: bool,
) {
    let alignment = layout.alignment;
    let (start, end) = if is_exact && run.tensors.len() == 1 && arrangement.is_in_place() {
        (run.span.start, run.span.end)
    } else {
        let start = run.span.start / alignment * alignment;
        (start, run.span.end.next_multiple_of(alignment))
    };
    let region = plan.regions.len();
    let first_extent = plan.extents.len();

    let (offsets, bytes) = offsets(wanted, run, arrangement, &(start..end));
    for (&tensor, &offset) in run.tensors.iter().zip(&offsets) {
        plan.targets[tensor] = Target {
            place: Some((region, offset)),
            pieces: 0,
            realign: run.realign,
        };
    }

    let step = extent_step(end - start, alignment, layout.extent_bytes);
    let mut offset = start;
    // Index of the first tensor that may still have bytes at or after `offset`.
    let mut next = 0;
    while offset < end {
        let window = step.min(end - offset);
        let extent_end = offset + window;
        let first_piece = plan.pieces.len();
        for &tensor in &run.tensors[next..] {
            let range = &wanted[tensor].range;
            if range.start >= extent_end {
                break;
            }
            let from = range.start.max(offset);
            let to = range.end.min(extent_end);
            plan.pieces.push(Piece {
                tensor,
                extent_offset: to_len(from - offset),
                tensor_offset: from - range.start,
                len: to_len(to - from),
            });
            plan.targets[tensor].pieces += 1;
        }
        while next < run.tensors.len() && wanted[run.tensors[next]].range.end <= extent_end {
            next += 1;
        }
        plan.extents.push(Extent {
            source: run.source,
            region,
            offset,
            window: to_len(window),
            needed: to_len(run.span.end.min(extent_end) - offset),
            pieces: first_piece..plan.pieces.len(),
        });
        offset = extent_end;
    }

    plan.regions.push(RegionPlan {
        source: run.source,
        destination: run.destination,
        bytes,
        extents: first_extent..plan.extents.len(),
        tensors: u32::try_from(run.tensors.len()).expect("headers of files list fewer"),
    });
}

/// Returns the offset of each tensor of a run in its region, and the region's size. `span` is the
/// part of the source that is read.
fn offsets(
    wanted: &[Wanted],
    run: &Run,
    arrangement: Arrangement,
    span: &Range<u64>,
) -> (Vec<usize>, usize) {
    match arrangement {
        Arrangement::InPlace | Arrangement::Published => {
            let tensors = run.tensors.iter();
            let offsets = tensors.map(|&tensor| to_len(wanted[tensor].range.start - span.start));
            (offsets.collect(), to_len(span.end - span.start))
        }
        Arrangement::Packed(_) => {
            let packed = run.packed.as_ref();
            let packed = packed.expect("runs are packed if they should be");
            (packed.offsets().to_vec(), packed.bytes())
        }
        Arrangement::Scattered => (vec![0; run.tensors.len()], 0),
    }
}

/// Places a slice with gaps, which is alone in its region. Gaps worth reading are read; the wanted
/// bytes are joined in each window ([`Plan::gather`]) and, unless they are scattered, copied to the
/// region, which has room for no others.
fn place_slice(
    plan: &mut Plan,
    wanted: &[Wanted],
    tensor: usize,
    strides: &Strides,
    arrangement: Arrangement,
    layout: &Layout,
) {
    let Wanted {
        source,
        range,
        destination,
        ..
    } = &wanted[tensor];
    let (alignment, start) = (layout.alignment, range.start);
    let (region, first_extent) = (plan.regions.len(), plan.extents.len());
    // Windows of neighbours do not overlap.
    let gap = layout.gap_bytes.max(2 * alignment);
    let (mut found_bytes, mut read_end) = (0, 0);
    for span in strides.spans(gap) {
        let mut offset = (start + span.start) / alignment * alignment;
        let end = (start + span.end).next_multiple_of(alignment);
        let step = extent_step(end - offset, alignment, layout.extent_bytes);
        while offset < end {
            let extent_end = (offset + step).min(end);
            let here = offset.saturating_sub(start)..extent_end - start;
            // A read of nothing but a gap is left out.
            if let Some((found, number, len)) = strides.found(here.clone()) {
                assert!(read_end <= offset, "windows of a slice do not overlap");
                read_end = extent_end;
                found_bytes += len;
                let from = (start + here.start + found) - offset;
                plan.extents.push(Extent {
                    source: *source,
                    region,
                    offset,
                    window: to_len(extent_end - offset),
                    needed: to_len(start + strides.end_before(here.end) - offset),
                    pieces: plan.pieces.len()..plan.pieces.len() + 1,
                });
                plan.pieces.push(Piece {
                    tensor,
                    extent_offset: to_len(from),
                    tensor_offset: number,
                    len: to_len(len),
                });
            }
            offset = extent_end;
        }
    }
    assert_eq!(found_bytes, strides.bytes(), "each byte in one window");
    let extents = first_extent..plan.extents.len();
    let bytes = match arrangement {
        Arrangement::Scattered => 0,
        Arrangement::InPlace | Arrangement::Published | Arrangement::Packed(_) => {
            to_len(strides.bytes())
        }
    };
    plan.targets[tensor] = Target {
        place: Some((region, 0)),
        pieces: u32::try_from(extents.len()).expect("reads are counted before"),
        realign: false,
    };
    plan.regions.push(RegionPlan {
        source: *source,
        destination: *destination,
        bytes,
        extents,
        tensors: 1,
    });
    plan.slices.insert(tensor, (strides.clone(), start));
}

/// Returns an even step: a tensor just over the extent size is one longer read, not a full one and
/// a short rest.
fn extent_step(bytes: u64, alignment: u64, extent_bytes: u64) -> u64 {
    let inner = bytes.saturating_sub(2 * alignment).max(1);
    let extents = inner.div_ceil(extent_bytes);
    bytes.div_ceil(extents).next_multiple_of(alignment)
}
