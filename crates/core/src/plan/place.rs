//! Windows and reads: aligned edges, even extents, and where in memory each tensor begins.
//!
//! The rule that makes in-place reads possible: an address in a region is congruent to its file offset modulo the alignment of
//! direct I/O. Regions start on a page, so a region simply begins at an aligned file offset.

use super::split::{Run, runs};
use super::{Extent, Piece, Plan, RegionPlan, Target, Wanted};

/// Reads begin on such a boundary at least, also where the file system does not care: it puts every dtype on an address of
/// its own alignment.
const ALIGNMENT_MIN: u64 = 64;

/// How one source is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Largest read, bytes. Reads may be longer by up to two alignments, for unaligned edges.
    pub extent_bytes: u64,
    /// Reads begin and end on multiples of this power of two, bytes.
    pub alignment: u64,
    /// A gap that costs less to read than to skip, bytes.
    pub gap_bytes: u64,
}

/// Plans the reads of `wanted`, which must be sorted by source and offset and must not overlap.
///
/// Worked example (alignment 4096, extents of 8192 bytes): a tensor at 5000..30000. Its window is 4096..32768, 28672 bytes; 20480
/// bytes beyond the edges' two alignments make 3 extents; 28672 / 3 rounded up to the alignment is 12288, so the reads are
/// 4096..16384, 16384..28672 and 28672..32768. It begins at 904 in its region, an address congruent to 5000 modulo 4096.
pub fn build(wanted: &[Wanted], layouts: &[Layout]) -> Plan {
    let alignment_of = |source: usize| layouts[source].alignment.max(ALIGNMENT_MIN);
    let mut plan = Plan {
        targets: vec![Target::default(); wanted.len()],
        ..Plan::default()
    };
    for run in runs(wanted, alignment_of, |source| layouts[source].gap_bytes) {
        place(
            &mut plan,
            wanted,
            &run,
            alignment_of(run.source),
            layouts[run.source].extent_bytes,
        );
    }
    plan
}

fn place(plan: &mut Plan, wanted: &[Wanted], run: &Run, alignment: u64, extent_bytes: u64) {
    let start = run.span.start / alignment * alignment;
    let end = run.span.end.next_multiple_of(alignment);
    let region = plan.regions.len();
    let first_extent = plan.extents.len();

    for &tensor in &run.tensors {
        let offset = to_len(wanted[tensor].range.start - start);
        plan.targets[tensor] = Target {
            place: Some((region, offset)),
            pieces: 0,
            realign: run.realign,
        };
    }

    let step = extent_step(end - start, alignment, extent_bytes);
    let mut offset = start;
    // The first tensor that may still have bytes at or after `offset`.
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
        bytes: to_len(end - start),
        extents: first_extent..plan.extents.len(),
        tensors: u32::try_from(run.tensors.len()).expect("a shared region is at most 1 MiB"),
    });
}

/// Even steps: a tensor just over the extent size is one longer read, not a full one and a stump.
fn extent_step(bytes: u64, alignment: u64, extent_bytes: u64) -> u64 {
    let inner = bytes.saturating_sub(2 * alignment).max(1);
    let extents = inner.div_ceil(extent_bytes);
    bytes.div_ceil(extents).next_multiple_of(alignment)
}

/// Lengths inside a region: a region that does not fit into the address space is refused before it is mapped.
fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit addresses")
}
